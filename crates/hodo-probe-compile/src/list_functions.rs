//! Lists the functions of a file, and whether they can be probed.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::PathBuf;

use anyhow::{Context, Result};
use hodo_plan::model::{Mode, Reason, Tactic, Wanted};
use hodo_plan::{PlanOptions, Survey};
use hodo_probe_syntax::Symbol;

use super::arch::reader;
use super::dry_run::found;
use super::places::fitting;
use hodo_module::Image;
use hodo_module::image::canonical;

/// A function of a file.
#[derive(Debug, Clone)]
pub struct Listed {
    /// Raw symbol name; made of the address where there is none.
    pub name: String,
    /// Other names of the same address.
    pub aliases: Vec<String>,
    /// Link-time address.
    pub addr: u64,
    /// Bytes; 0 where unknown.
    pub size: u64,
    /// How its first instruction can be probed, or why not.
    pub entry: Result<Tactic, Reason>,
    /// Why its return cannot be probed, if so.
    pub no_return: Option<String>,
    /// Source file and line where it begins, if there is debugging information.
    pub source: Option<(String, u32)>,
}

/// The USDT probes of a file.
///
/// # Errors
/// If there is no such file, or it is no program or library.
pub fn list_usdt(file: &OsStr) -> Result<(PathBuf, Vec<hodo_symbols::Usdt>)> {
    let path = canonical(&found(file)?);
    let image = Image::read(&path, path.clone())?;
    Ok((path, hodo_symbols::usdt(&image.bytes)))
}

/// The functions of a file, by address. With patterns those that fit one of them: a name, or a pattern with `*`, `?`,
/// `[…]`.
///
/// # Errors
/// If there is no such file, it is no program or library, or a pattern is malformed.
pub fn list(file: &OsStr, patterns: &[String]) -> Result<(PathBuf, Vec<Listed>)> {
    let path = canonical(&found(file)?);
    let image = Image::read(&path, path.clone())?;
    let symbols = (image.code_symbols()).with_context(|| format!("reading {}", path.display()))?;
    let mut fits = Vec::new();
    for pattern in patterns {
        fits.push(fitting(&match pattern.contains(['*', '?', '[']) {
            true => Symbol::Pattern(pattern.clone()),
            false => Symbol::Name(pattern.clone()),
        })?);
    }
    let mut functions = symbols.functions;
    functions.retain(|function| {
        let mut names = std::iter::once(&function.name).chain(&function.aliases);
        fits.is_empty() || names.any(|name| fits.iter().any(|fits| fits(name)))
    });
    let wanted: Vec<u64> = functions.iter().map(|function| function.addr).collect();
    let planning = || format!("planning {}", path.display());
    let options = PlanOptions {
        libcalls: false,
        ..PlanOptions::default()
    };
    let survey = Survey::with_names(&path, (&image.bytes, image.separate()), options.threads)
        .with_context(planning)?;
    let probes = survey.plan_probes(Wanted::At(&wanted), &options);
    let calls = survey.plan(&options);
    let mut entries: HashMap<u64, Result<Tactic, Reason>> = HashMap::new();
    for site in &probes.sites {
        entries.extend(
            site.probes
                .iter()
                .map(|probe| (probe.addr, Ok(site.tactic))),
        );
    }
    for refused in probes.refused {
        entries.insert(refused.addr, Err(refused.reason.into()));
    }
    let mut returns: HashMap<u64, Option<String>> = HashMap::new();
    for function in calls.functions {
        let reason = match function.outcome {
            Ok(site) => match site.mode {
                Mode::Call => None,
                Mode::EntryOnly(reason) => Some(reason.as_str().to_owned()),
            },
            Err(reason) => Some(reason.to_string()),
        };
        returns.insert(function.addr, reason);
    }
    let begins = wanted.iter().copied().collect();
    let debug = image.debug().ok();
    let mut sources = debug.map_or_else(HashMap::new, |debug| debug.lines_at(&begins));
    let listed = functions.into_iter().map(|function| Listed {
        entry: entries.remove(&function.addr).unwrap_or_else(|| {
            let code = image.at(function.addr..function.addr + 1);
            Err(match code {
                Some(code) => format!(
                    "it cannot be decoded: {}",
                    reader(&image).text(code, function.addr)
                )
                .into(),
                None => "it has no code in the file".into(),
            })
        }),
        no_return: returns
            .remove(&function.addr)
            .unwrap_or_else(|| Some("it is a part of another function".to_owned())),
        source: sources.remove(&function.addr),
        name: function.name,
        aliases: function.aliases,
        addr: function.addr,
        size: function.size,
    });
    Ok((path.clone(), listed.collect()))
}
