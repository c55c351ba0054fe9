//! `hodo probe --dry-run` and `--list`: what probes would do and what can be probed, without running anything.

use std::collections::HashMap;
use std::io::Write;
use std::process::ExitCode;

use anyhow::{Result, bail};
use hodo_plan::model::Tactic;
use hodo_probe_compile::{Changed, DryRun, Examined, ExaminedPlace, Listed};
use hodo_symbols::{Style, demangle, spellings};
use serde_json::{Value, json};

use crate::args::ProbeArgs;
use crate::output::with_output;
use crate::plan::tactic_name;

/// `hodo probe --dry-run`. The exit status is 1 if a definition matches no place.
pub fn dry_run(args: &ProbeArgs) -> Result<ExitCode> {
    let file = args.command.first().map(std::ffi::OsString::as_os_str);
    let DryRun { examined, warnings } = hodo_probe_compile::dry_run(&args.probes, file)?;
    for warning in warnings {
        warn_user!("hodo: {warning}");
    }
    with_output(args.screen.no_pager, |out| {
        if args.inspect.json {
            let all: Value = examined.iter().map(as_json).collect();
            serde_json::to_writer_pretty(&mut *out, &all)?;
            writeln!(out)?;
            return Ok(());
        }
        examined
            .iter()
            .try_for_each(|one| as_text(one, args.screen.verbose > 0, out))
    })?;
    let mut code = ExitCode::SUCCESS;
    for failure in examined.iter().filter_map(|one| one.failure.as_ref()) {
        warn_user!("hodo: {failure}");
        code = ExitCode::FAILURE;
    }
    Ok(code)
}

/// The usage of `--list`.
const LIST: &str = "\
hodo probe --list FILE [FUNCTION…] lists the functions of a program or library that can be probed.
  FILE      a path, or the name of a program in PATH
  FUNCTION  a name, or a pattern with *, ? and […]; without any, all functions
Each line tells the function's address and size, how a probe at its entry would be made (by a jump, a hop, …, or not at all),
whether its return can be probed, and its name, which is what a definition names: hodo probe -e 'FILE:FUNCTION' PROGRAM.
To see where a definition would put probes, and what would be changed: hodo probe --dry-run -e DEFINITION FILE.
";

/// `hodo probe --list`.
pub fn list(args: &ProbeArgs) -> Result<ExitCode> {
    let Some((file, patterns)) = args.command.split_first() else {
        crate::output::stdout().write_all(LIST.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    };
    let patterns: Vec<String> = (patterns.iter())
        .map(|pattern| pattern.to_string_lossy().into_owned())
        .collect();
    let (path, listed) = hodo_probe_compile::list(file, &patterns)?;
    if listed.is_empty() {
        match patterns[..] {
            [] => bail!("{} has no functions", path.display()),
            _ => bail!(
                "no function of {} is named {}",
                path.display(),
                patterns.join(" or ")
            ),
        }
    }
    with_output(args.screen.no_pager, |out| {
        if args.inspect.json {
            let all: Value = listed.iter().map(listed_json).collect();
            serde_json::to_writer_pretty(&mut *out, &all)?;
            writeln!(out)?;
            return Ok(());
        }
        let mut counts: HashMap<String, u32> = HashMap::new();
        for function in &listed {
            *counts
                .entry(demangle(&function.name, Style::Simple))
                .or_default() += 1;
        }
        // Overloads and instances of templates have the same short name.
        let name = |function: &Listed| {
            let short = demangle(&function.name, Style::Simple);
            let mut spellings = spellings(&function.name).into_iter();
            match spellings.find(|name| name.contains('(')) {
                Some(long) if counts[&short] > 1 => long,
                _ => short,
            }
        };
        writeln!(out, "#      ADDRESS    SIZE  ENTRY    RETURN  FUNCTION")?;
        for function in &listed {
            let entry = function.entry.as_ref().map(|tactic| tactic_name(*tactic));
            write!(
                out,
                "{:>14x} {:>7}  {:<7}  {:<6}  {}",
                function.addr,
                function.size,
                entry.as_ref().unwrap_or(&"-"),
                if function.no_return.is_none() {
                    "yes"
                } else {
                    "-"
                },
                name(function),
            )?;
            if let Some((file, line)) = &function.source {
                // The file's name, as in a definition.
                let name = file.rsplit('/').next().unwrap_or(file);
                write!(out, "  {name}:{line}")?;
            }
            if args.screen.verbose > 0 {
                let reason = function.no_return.as_deref();
                match (entry.err(), reason) {
                    (Some(entry), _) => write!(out, ": {entry}")?,
                    (None, Some(reason)) => write!(out, ": no return: {reason}")?,
                    (None, None) => {}
                }
            }
            writeln!(out)?;
        }
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

/// `hodo probe --list-armed`.
pub fn armed(args: &ProbeArgs) -> Result<ExitCode> {
    let [pid] = args.attach.pids()[..] else {
        bail!("--list-armed needs one process: hodo probe -p PID --list-armed");
    };
    let Some(armed) = hodo_record::armed(pid)? else {
        bail!("no hodo records process {pid}: it has no probes of hodo");
    };
    if armed.is_empty() {
        bail!("hodo records process {pid}, but the process has no probes");
    }
    with_output(args.screen.no_pager, |out| {
        if args.inspect.json {
            serde_json::to_writer_pretty(&mut *out, &armed)?;
            writeln!(out)?;
            return Ok(());
        }
        armed.iter().try_for_each(|one| armed_line(one, out))
    })?;
    Ok(ExitCode::SUCCESS)
}

/// A line as in the kernel's `kprobes/list`, with the counted hits and the probe's name.
fn armed_line(one: &Value, out: &mut dyn Write) -> Result<()> {
    let text = |key: &str| one[key].as_str().unwrap_or_default();
    let number = |key: &str| one[key].as_u64().unwrap_or_default();
    write!(
        out,
        "{:016x}  {}  {}+{:#x}  {}",
        number("addr"),
        text("kind"),
        text("symbol"),
        number("offset"),
        text("module")
    )?;
    for flag in one["flags"].as_array().into_iter().flatten() {
        write!(out, " [{}]", flag.as_str().unwrap_or_default())?;
    }
    if let Some(hits) = one["hits"].as_u64() {
        write!(out, "  hits={hits}")?;
    }
    writeln!(out, "  {}:{}", text("group"), text("name"))?;
    Ok(())
}

/// `hodo probe --usdt`.
pub fn usdt(args: &ProbeArgs) -> Result<ExitCode> {
    let [file] = &args.command[..] else {
        bail!("--usdt lists the probes of one file: hodo probe --usdt FILE");
    };
    let (path, probes) = hodo_probe_compile::list_usdt(file)?;
    if probes.is_empty() {
        bail!("{} has no USDT probes", path.display());
    }
    with_output(args.screen.no_pager, |out| {
        if args.inspect.json {
            let one = |probe: &hodo_symbols::Usdt| {
                json!({
                    "provider": probe.provider, "name": probe.name, "addr": probe.addr,
                    "semaphore": probe.semaphore, "arguments": probe.arguments,
                })
            };
            let all: Value = probes.iter().map(one).collect();
            serde_json::to_writer_pretty(&mut *out, &all)?;
            writeln!(out)?;
            return Ok(());
        }
        writeln!(out, "#      ADDRESS  SEMAPHORE  PROVIDER:NAME  ARGUMENTS")?;
        for probe in &probes {
            let semaphore = probe.semaphore.map(|at| format!("{at:x}"));
            let semaphore = semaphore.unwrap_or_else(|| "-".to_owned());
            let (provider, name) = (&probe.provider, &probe.name);
            let (addr, arguments) = (probe.addr, &probe.arguments);
            writeln!(
                out,
                "{addr:>14x}  {semaphore:>9}  {provider}:{name}  {arguments}"
            )?;
        }
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

fn listed_json(function: &Listed) -> Value {
    json!({
        "name": function.name, "aliases": function.aliases, "addr": function.addr, "size": function.size,
        "entry": function.entry.as_ref().ok().map(|tactic| tactic_name(*tactic)),
        "refused": function.entry.as_ref().err(),
        "file": function.source.as_ref().map(|source| &source.0), "line": function.source.as_ref().map(|source| source.1),
        "return": function.no_return.is_none(), "no_return": function.no_return,
    })
}

fn hex(bytes: &[u8]) -> String {
    let words: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    words.join(" ")
}

fn place_json(place: &ExaminedPlace) -> Value {
    let mut value = json!({
        "path": place.path.display().to_string(), "symbol": place.symbol, "offset": place.offset, "addr": place.addr,
    });
    match &place.outcome {
        Ok(changed) => {
            value["tactic"] = tactic_name(changed.tactic).into();
            value["flags_dead"] = changed.flags_dead.into();
            value["writes"] = (changed.writes.iter())
                .map(|(addr, bytes)| json!({"addr": addr, "original": hex(bytes)}))
                .collect();
            value["displaced"] = (changed.displaced.iter())
                .map(|(addr, bytes, text)| json!({"addr": addr, "bytes": hex(bytes), "insn": text}))
                .collect();
        }
        Err(reason) => value["refused"] = reason.as_str().into(),
    }
    value
}

fn as_json(one: &Examined) -> Value {
    let places: Value = one.places.iter().map(place_json).collect();
    json!({"definition": one.definition, "places": places, "failure": one.failure})
}

/// Describes what a tactic writes.
fn what(changed: &Changed) -> String {
    let (at, bytes) = &changed.writes[0];
    let original = hex(bytes);
    match (changed.tactic, changed.writes.get(1)) {
        (Tactic::Trap, _) => format!("a breakpoint at {at:x}, over {original}"),
        (Tactic::Hop, Some((slot, slot_bytes))) => format!(
            "a short jump at {at:x}, over {original}; a jump at {slot:x}, over {}",
            hex(slot_bytes)
        ),
        (Tactic::Pun, _) => {
            format!("a jump at {at:x}, over {original}; its last bytes are the original ones")
        }
        _ => format!("a jump at {at:x}, over {original}"),
    }
}

fn shown(place: &ExaminedPlace) -> String {
    let name = demangle(&place.symbol, Style::Simple);
    format!("{name}+{:#x}", place.offset)
}

fn as_text(one: &Examined, verbose: bool, out: &mut dyn Write) -> Result<()> {
    writeln!(out, "{}", one.definition)?;
    if one.many {
        summary(one, out)?;
        if verbose {
            for place in &one.places {
                write!(out, "  {:>14x}  ", place.addr)?;
                match &place.outcome {
                    Ok(changed) => write!(out, "{:<7}", tactic_name(changed.tactic))?,
                    Err(_) => write!(out, "refused")?,
                }
                write!(out, "  {}", shown(place))?;
                match &place.outcome {
                    Ok(_) => writeln!(out)?,
                    Err(reason) => writeln!(out, ": {reason}")?,
                }
            }
        }
        return Ok(());
    }
    for place in &one.places {
        let path = place.path.display();
        writeln!(out, "  {} at {:x} in {path}", shown(place), place.addr)?;
        match &place.outcome {
            Ok(changed) => {
                writeln!(out, "    tactic     {}", tactic_name(changed.tactic))?;
                writeln!(out, "    changed    {}", what(changed))?;
                let dead = match changed.flags_dead {
                    true => "nothing reads them",
                    false => "kept",
                };
                writeln!(out, "    flags      {dead}")?;
                let mut title = "displaced";
                for (addr, bytes, text) in &changed.displaced {
                    let mark = if *addr == place.addr { "→" } else { " " };
                    writeln!(
                        out,
                        "    {title:<9} {mark}{addr:>12x}  {:<30}  {text}",
                        hex(bytes)
                    )?;
                    title = "";
                }
            }
            Err(reason) => writeln!(out, "    refused    {reason}")?,
        }
    }
    Ok(())
}

/// Counts the places by tactic.
fn summary(one: &Examined, out: &mut dyn Write) -> Result<()> {
    let mut tactics = std::collections::BTreeMap::new();
    let mut reasons = std::collections::BTreeMap::new();
    for place in &one.places {
        match &place.outcome {
            Ok(changed) => *tactics.entry(changed.tactic).or_insert(0usize) += 1,
            Err(reason) => {
                // The reason is followed by the instruction in parentheses.
                let reason = reason.as_str();
                let reason = reason.split(" (").next().unwrap_or(reason);
                *reasons.entry(reason).or_insert(0usize) += 1;
            }
        }
    }
    let mut paths: Vec<_> = one.places.iter().map(|place| &place.path).collect();
    paths.dedup();
    let paths: Vec<String> = paths.iter().map(|p| p.display().to_string()).collect();
    writeln!(
        out,
        "  places {:>9}  {}",
        one.places.len(),
        paths.join(", ")
    )?;
    for (tactic, n) in tactics {
        writeln!(out, "    {:<7}{n:>7}", tactic_name(tactic))?;
    }
    let refused: usize = reasons.values().sum();
    if refused > 0 {
        writeln!(out, "    refused{refused:>7}")?;
    }
    for (reason, n) in reasons {
        writeln!(out, "    {n:>14}  {reason}")?;
    }
    Ok(())
}
