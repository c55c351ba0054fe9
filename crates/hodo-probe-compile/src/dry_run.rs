//! What probes would do to files, without running anything.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use hodo_plan::model::{Extra, ProbeSite, Reason, Tactic};

use super::placement::Planned;
use super::wanted::ProbePoint;
use super::{Probes, is_many};
use hodo_module::Image;
use hodo_module::cache::Planning;
use hodo_module::image::canonical;
use hodo_module::linked;
use hodo_probe_syntax::Definition;
use hodo_ptrace::launch;

/// A definition, and the places that it names.
#[derive(Debug, Clone)]
pub struct Examined {
    /// The definition as it was written.
    pub definition: String,
    /// Whether it may name many places: it is a pattern, or means every instruction.
    pub many: bool,
    /// The places, by file and address.
    pub places: Vec<ExaminedPlace>,
    /// Why there is no place that can have its probe, if so.
    pub failure: Option<String>,
}

/// A place that a definition names.
#[derive(Debug, Clone)]
pub struct ExaminedPlace {
    /// The file.
    pub path: PathBuf,
    /// Function.
    pub symbol: String,
    /// Bytes from the function's beginning.
    pub offset: u64,
    /// Link-time address.
    pub addr: u64,
    /// What would be changed, or why it cannot have a probe.
    pub outcome: Result<Changed, Reason>,
}

/// How code is changed for a probe. Addresses are link-time addresses.
#[derive(Debug, Clone)]
pub struct Changed {
    /// By which tactic.
    pub tactic: Tactic,
    /// The bytes that are overwritten, and where: at the site, and, of a hop, at the place of the long jump.
    pub writes: Vec<(u64, Vec<u8>)>,
    /// Instructions that are executed elsewhere: addresses, bytes, and texts in Intel's syntax.
    pub displaced: Vec<(u64, Vec<u8>, String)>,
    /// Whether the probe need not keep the arithmetic flags: nothing reads them.
    pub flags_dead: bool,
}

/// What is found without running anything.
#[derive(Debug, Clone)]
pub struct DryRun {
    /// By definition.
    pub examined: Vec<Examined>,
    /// What a user must know of them.
    pub warnings: Vec<String>,
}

/// Looks for the places of definitions: in `file`, a program or library, and if it is a program in its libraries too;
/// and in the files that definitions name by their paths. Nothing is run but the dynamic linker, to find libraries.
///
/// # Errors
/// If a definition is none, or a file cannot be read.
pub fn dry_run(definitions: &[String], file: Option<&OsStr>) -> Result<DryRun> {
    let probes = Probes::new(definitions, false)?;
    let mut files = Files {
        given: file.map(found).transpose()?,
        libraries: OnceCell::new(),
    };
    let mut images = Images::default();
    for (index, definition) in probes.definitions.iter().enumerate() {
        images.add(files.of(definition, &probes.texts[index])?)?;
    }
    let mut examined: Vec<Examined> = (0..probes.definitions.len())
        .map(|index| Examined {
            definition: probes.texts[index].clone(),
            many: is_many(&probes.definitions[index]),
            places: Vec::new(),
            failure: None,
        })
        .collect();
    let mut warnings = Vec::new();
    for image in &images.0 {
        let planned = probes.planned(&Planning::new(image), None)?;
        examine(image, &planned, &probes.texts, &mut examined);
        warnings.extend(planned.warnings);
        warnings.extend(planned.remarks);
    }
    for (index, one) in examined.iter_mut().enumerate() {
        if one.places.iter().any(|place| place.outcome.is_ok()) {
            one.failure = None;
        } else if one.failure.is_none() {
            let refusal = one.places.iter().find_map(|place| {
                let reason = place.outcome.as_ref().err()?;
                Some(format!(
                    "the probe '{}' cannot be: {}: {reason}",
                    one.definition,
                    super::at(&place.symbol, place.offset)
                ))
            });
            one.failure = Some(refusal.unwrap_or_else(|| probes.why(index)));
        }
    }
    Ok(DryRun { examined, warnings })
}

/// Adds the places of a file to the definitions that name them.
fn examine(image: &Image, planned: &Planned, texts: &[String], examined: &mut [Examined]) {
    let mut add = |addr, point: &ProbePoint, outcome| {
        examined[point.definition].places.push(ExaminedPlace {
            path: image.path.clone(),
            symbol: point.symbol.to_string(),
            offset: point.offset(addr),
            addr,
            outcome,
        });
    };
    for (addr, point, reason) in &planned.no_returns {
        add(*addr, point, Err(reason.clone().into()));
    }
    let mut site_of = HashMap::new();
    for site in &planned.sites {
        let probed = site.probes.iter();
        site_of.extend(probed.map(|probe| (probe.addr, (site, probe.flags_dead))));
    }
    for (addr, point) in planned.places.all() {
        let outcome = match (site_of.get(&addr), planned.refused.get(&addr)) {
            (Some((site, dead)), _) => Ok(changed(image, site, *dead)),
            (None, Some(reason)) => Err(reason.clone().into()),
            (None, None) => Err("this is not code of a function".into()),
        };
        add(addr, point, outcome);
    }
    for (definition, reason) in &planned.failed {
        let text = &texts[*definition];
        let reason = format!("the probe '{text}' cannot be: {reason}");
        examined[*definition].failure.get_or_insert(reason);
    }
}

/// The files in which definitions are looked for.
struct Files {
    /// The one that was given.
    given: Option<PathBuf>,
    /// What it is linked with, once it is asked for.
    libraries: OnceCell<Vec<PathBuf>>,
}

impl Files {
    /// The file that a definition names, whose text is `text`.
    fn of(&mut self, definition: &Definition, text: &str) -> Result<PathBuf> {
        if definition.path.contains('/') {
            return Ok(canonical(Path::new(&definition.path)));
        }
        let Some(given) = &self.given else {
            bail!("the probe '{text}' names no path: say in which FILE to look");
        };
        let is = |path: &Path| super::is_file(definition, path);
        let main = canonical(given);
        if is(&main) {
            return Ok(main);
        }
        let libraries = self.libraries.get_or_init(|| {
            let bytes = std::fs::read(&main).unwrap_or_default();
            linked::libraries(&bytes, &main)
        });
        let mut libraries = libraries.iter().map(|path| canonical(path));
        libraries.find(|path| is(path)).with_context(|| {
            format!(
                "the probe '{text}': {} is not {}, nor linked with such a library",
                given.display(),
                definition.path
            )
        })
    }
}

/// Files, each once.
#[derive(Default)]
struct Images(Vec<Image>);

impl Images {
    fn add(&mut self, path: PathBuf) -> Result<()> {
        if !self.0.iter().any(|image| image.path == path) {
            self.0.push(Image::open(&path.clone(), path)?);
        }
        Ok(())
    }
}

/// A file by its path; or a program by its name, as a shell finds it.
///
/// # Errors
/// If there is none.
pub fn found(name: &OsStr) -> Result<PathBuf> {
    let path = Path::new(name);
    if path.exists() {
        return Ok(path.to_owned());
    }
    let shown = name.to_string_lossy();
    if shown.contains('/') {
        bail!("there is no file {shown}");
    }
    launch::find_program(name)
        .ok()
        .with_context(|| format!("there is no file {shown}, nor such a program in PATH"))
}

/// What a site does to the code.
fn changed(image: &Image, site: &ProbeSite, flags_dead: bool) -> Changed {
    let bytes = |start: u64, len: u64| {
        let bytes = image.at(start..start + len).unwrap_or_default();
        (start, bytes.to_vec())
    };
    let mut writes = vec![bytes(site.patch, u64::from(site.patch_len))];
    if let Extra::HopSlot(slot) = site.extra {
        writes.push(bytes(slot, hodo_isa::NATIVE.jump(site.via).len));
    }
    let code = image.at(site.displaced.clone()).unwrap_or_default();
    let displaced = hodo_isa::NATIVE
        .sweep(code, site.displaced.start)
        .map(|insn| {
            let at = (insn.addr - site.displaced.start) as usize;
            let insn_bytes = &code[at..(at + usize::from(insn.len)).min(code.len())];
            (
                insn.addr,
                insn_bytes.to_vec(),
                hodo_isa::NATIVE.text(insn_bytes, insn.addr),
            )
        })
        .collect();
    Changed {
        tactic: site.tactic,
        writes,
        displaced,
        flags_dead,
    }
}
