//! What probes would do to files, without running anything.

use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use hodo_abi::Isa;
use hodo_isa::code::NAMES;
use hodo_plan::model::{Extra, ProbeSite, Reason, Tactic};

use super::kernel_calls::is_of_calls;
use super::placement::Planned;
use super::wanted::ProbePoint;
use super::{Probes, arch, is_many};
use hodo_module::Image;
use hodo_module::cache::Planning;
use hodo_module::image::canonical;
use hodo_module::linked;
use hodo_probe_syntax::Definition;
use hodo_ptrace::launch;

/// A definition, and the places that it names.
#[derive(Debug, Clone, Default)]
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
/// and in the files that definitions name by their paths. Nothing is run but the dynamic linker, to find libraries. The
/// files may be for any instruction set whose code can be planned; definitions name the registers of their file's.
///
/// # Errors
/// If a definition is none, or a file cannot be read.
pub fn dry_run(definitions: &[String], file: Option<&OsStr>) -> Result<DryRun> {
    let mut files = Files {
        given: file.map(found).transpose()?,
        libraries: OnceCell::new(),
    };
    let mut images = Images::default();
    let given = match &files.given {
        Some(path) => images.get(canonical(path))?.isa,
        None => Isa::NATIVE,
    };
    let mut isas = Vec::new();
    for text in definitions {
        let definition = parsed(text, given)?;
        if is_of_calls(&definition) {
            for path in files.all(text)? {
                images.get(path)?;
            }
            isas.push(given);
            continue;
        }
        isas.push(images.get(files.of(&definition, text, given)?)?.isa);
    }
    let mut examined: Vec<Examined> = Vec::new();
    examined.resize_with(definitions.len(), Examined::default);
    let mut warnings = Vec::new();
    for isa in Isa::ALL {
        let indices: Vec<usize> = (0..isas.len()).filter(|&i| isas[i] == isa).collect();
        let texts: Vec<String> = indices.iter().map(|&i| definitions[i].clone()).collect();
        if texts.is_empty() {
            continue;
        }
        let images = images.0.iter().filter(|one| one.isa == isa);
        let (of_set, more) = examine_all(isa, &texts, images.map(|one| &one.image))?;
        warnings.extend(more);
        for (index, one) in indices.into_iter().zip(of_set) {
            examined[index] = one;
        }
    }
    Ok(DryRun { examined, warnings })
}

/// Reads a definition whose file is not known yet: for the instruction set `likely`, or another one.
fn parsed(text: &str, likely: Isa) -> Result<Definition> {
    let read = |isa| hodo_probe_syntax::parse_for(arch::of(isa).names, text);
    read(likely).or_else(|error| {
        let mut others = Isa::ALL.into_iter().filter_map(|isa| read(isa).ok());
        others.next().ok_or_else(|| anyhow!("{error}"))
    })
}

/// Examines definitions for files of one instruction set. Returns warnings, too.
fn examine_all<'i>(
    isa: Isa,
    texts: &[String],
    images: impl Iterator<Item = &'i Image>,
) -> Result<(Vec<Examined>, Vec<String>)> {
    let probes = Probes::for_machine(arch::of(isa), texts, false)?;
    let mut examined: Vec<Examined> = (texts.iter())
        .map(|text| Examined {
            definition: text.clone(),
            ..Examined::default()
        })
        .collect();
    for (definition, &origin) in probes.definitions.iter().zip(&probes.origins) {
        examined[origin].many = is_many(definition) || is_of_calls(definition);
    }
    let mut warnings = Vec::new();
    for image in images {
        let planned = probes.planned(&Planning::only_shown(image), None)?;
        probes.examine(image, &planned, &mut examined);
        warnings.extend(planned.unseen.map(|unseen| unseen.text));
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
            let first = probes.origins.iter().position(|&origin| origin == index);
            let why = || first.map_or_else(String::new, |first| probes.why(first));
            one.failure = Some(refusal.unwrap_or_else(why));
        }
    }
    Ok((examined, warnings))
}

impl Probes {
    /// Adds the places of a file to the definitions that name them.
    fn examine(&self, image: &Image, planned: &Planned, examined: &mut [Examined]) {
        let calls: BTreeSet<usize> = (self.origins.iter().enumerate())
            .filter(|(definition, _)| self.kernel_calls.has(*definition))
            .map(|(_, &origin)| origin)
            .collect();
        let mut add = |addr, point: &ProbePoint, outcome: Result<Changed, Reason>| {
            let mut add = |origin: usize| {
                examined[origin].places.push(ExaminedPlace {
                    path: image.path.clone(),
                    symbol: point.symbol.to_string(),
                    offset: point.offset(addr),
                    addr,
                    outcome: outcome.clone(),
                });
            };
            match self.kernel_calls.has(point.definition) {
                true => calls.iter().for_each(|&origin| add(origin)),
                false => add(self.origins[point.definition]),
            }
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
            let text = &self.texts[*definition];
            let reason = format!("the probe '{text}' cannot be: {reason}");
            let one = &mut examined[self.origins[*definition]];
            one.failure.get_or_insert(reason);
        }
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
    /// The file that was given, and what it is linked with.
    fn all(&self, text: &str) -> Result<Vec<PathBuf>> {
        let Some(given) = &self.given else {
            bail!("the probe '{text}' names no path: say in which FILE to look");
        };
        let main = canonical(given);
        let libraries = self.libraries(&main);
        let libraries = libraries.iter().map(|path| canonical(path));
        Ok(std::iter::once(main.clone()).chain(libraries).collect())
    }

    fn libraries(&self, main: &Path) -> &[PathBuf] {
        self.libraries.get_or_init(|| {
            let bytes = std::fs::read(main).unwrap_or_default();
            linked::libraries(&bytes, main)
        })
    }

    /// The file that a definition names, whose text is `text`. The file that was given is for `given_isa`.
    fn of(&mut self, definition: &Definition, text: &str, given_isa: Isa) -> Result<PathBuf> {
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
        let mut libraries = self.libraries(&main).iter().map(|path| canonical(path));
        libraries.find(|path| is(path)).with_context(|| {
            let hint = match given_isa == Isa::NATIVE {
                true => String::new(),
                false => format!(
                    "; libraries for {} cannot be found here: name the library by its path",
                    given_isa.name()
                ),
            };
            format!(
                "the probe '{text}': {} is not {}, nor linked with such a library{hint}",
                given.display(),
                definition.path
            )
        })
    }
}

/// Files, each once.
#[derive(Default)]
struct Images(Vec<Known>);

/// A file whose code can be planned.
struct Known {
    image: Image,
    isa: Isa,
}

impl Images {
    /// The file with this path.
    ///
    /// # Errors
    /// If it cannot be read, or is for a processor that hodo does not know.
    fn get(&mut self, path: PathBuf) -> Result<&Known> {
        let known = self.0.iter().position(|known| known.image.path == path);
        let index = match known {
            Some(index) => index,
            None => {
                let image = Image::read(&path.clone(), path)?;
                let Some(isa) = image.isa() else {
                    bail!("{} is not a file for {NAMES}", image.path.display());
                };
                self.0.push(Known { image, isa });
                self.0.len() - 1
            }
        };
        Ok(&self.0[index])
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
    let reader = arch::reader(image);
    let mut writes = vec![bytes(site.patch, u64::from(site.patch_len))];
    if let Extra::HopSlot(slot) = site.extra {
        writes.push(bytes(slot, reader.jump(site.via).len));
    }
    let code = image.at(site.displaced.clone()).unwrap_or_default();
    let displaced = reader
        .sweep(code, site.displaced.start)
        .map(|insn| {
            let at = (insn.addr - site.displaced.start) as usize;
            let insn_bytes = &code[at..(at + usize::from(insn.len)).min(code.len())];
            (
                insn.addr,
                insn_bytes.to_vec(),
                reader.text(insn_bytes, insn.addr),
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
