//! `hodo probe --dry-run`: what probes would do, without running anything.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use hodo_plan::model::Tactic;
use hodo_process::{Changed, Examined, ExaminedPlace};
use hodo_symbols::{Style, demangle};
use serde_json::{Value, json};

use crate::args::ProbeArgs;
use crate::output::with_output;
use crate::plan::tactic_name;

/// `hodo probe --dry-run`. The exit status is 1 if a definition has no place.
pub fn dry_run(args: &ProbeArgs) -> Result<ExitCode> {
    let file = args.command.first().map(std::ffi::OsString::as_os_str);
    let examined = hodo_process::dry_run(&args.events, file)?;
    with_output(args.screen.no_pager, |out| {
        if args.looking.json {
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
        eprintln!("hodo: {failure}");
        code = ExitCode::FAILURE;
    }
    Ok(code)
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

/// What a tactic writes.
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
            format!("a jump at {at:x}, over {original}; its last bytes are those that follow")
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

/// How many places have which tactic.
fn summary(one: &Examined, out: &mut dyn Write) -> Result<()> {
    let mut tactics = std::collections::BTreeMap::new();
    let mut reasons = std::collections::BTreeMap::new();
    for place in &one.places {
        match &place.outcome {
            Ok(changed) => *tactics.entry(changed.tactic).or_insert(0usize) += 1,
            Err(reason) => {
                // Behind the reason stands the instruction.
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
