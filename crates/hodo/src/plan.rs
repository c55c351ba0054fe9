//! `hodo plan`: what can be traced or probed in a file.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};
use hodo_plan::model::{Mode, Plan, ProbePlan, ProbedInsn, Tactic, Wanted};
use hodo_plan::{PlanOptions, Survey};
use hodo_symbols::{Style, demangle, symbol_file};
use serde_json::json;

use crate::args::PlanArgs;
use crate::output::with_output;

const TACTICS: [(Tactic, &str); 6] = [
    (Tactic::Site, "site"),
    (Tactic::Jump, "jump"),
    (Tactic::Block, "block"),
    (Tactic::Hop, "hop"),
    (Tactic::Pun, "pun"),
    (Tactic::Trap, "trap"),
];

/// Returns the displayed name of a tactic.
pub fn tactic_name(tactic: Tactic) -> &'static str {
    let named = TACTICS.iter().find(|named| named.0 == tactic);
    named.map_or("", |named| named.1)
}

fn by_tactic(plan: &Plan, tactic: Tactic) -> usize {
    let is = |f: &&hodo_plan::model::PlannedFunction| {
        f.outcome.as_ref().is_ok_and(|site| site.tactic == tactic)
    };
    plan.functions.iter().filter(is).count()
}

/// `hodo plan`.
pub fn plan(args: &PlanArgs) -> Result<ExitCode> {
    let bytes = std::fs::read(&args.file)
        .with_context(|| format!("cannot read {}", args.file.display()))?;
    const RELOCATABLE: [u8; 2] = [1, 0];
    if bytes.get(16..18) == Some(&RELOCATABLE) && bytes.starts_with(b"\x7fELF") {
        anyhow::bail!(
            "cannot plan {}: it is an object file; link it first",
            args.file.display()
        );
    }
    let error = || format!("cannot plan {}", args.file.display());
    let separate = symbol_file(&args.file, &bytes);
    let names = separate.and_then(|path| std::fs::read(path).ok());
    let survey =
        || Survey::with_names(&args.file, (&bytes, names.as_deref()), 0).with_context(error);
    if args.every_instruction {
        let plan = survey()?.plan_probes(Wanted::Every, &PlanOptions::default());
        with_output(args.screen.no_pager, |out| {
            if args.json {
                instructions_json(&plan, out)
            } else {
                instructions_text(args, &plan, out)
            }
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let survey = survey()?;
    let prepared_by = survey.prepared_by();
    let plan = survey.plan(&PlanOptions::default());
    with_output(args.screen.no_pager, |out| {
        if args.json {
            json(&plan, &prepared_by, out)
        } else {
            text(args, &plan, &prepared_by, out)
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

fn json(plan: &Plan, prepared_by: &BTreeSet<String>, out: &mut dyn Write) -> Result<()> {
    let total = plan.functions.len();
    let traced = plan.functions.iter().filter(|f| f.outcome.is_ok()).count();
    let tactics: serde_json::Map<_, _> = TACTICS
        .iter()
        .map(|&(tactic, name)| (name.to_owned(), by_tactic(plan, tactic).into()))
        .collect();
    let refused: Vec<_> = plan
        .functions
        .iter()
        .filter_map(|f| {
            let reason = f.outcome.as_ref().err()?;
            Some(json!({"name": f.name, "addr": f.addr, "reason": reason}))
        })
        .collect();
    let value = json!({
        "functions": {"total": total, "traced": traced, "by_tactic": tactics, "refused": refused},
        "static_branches": plan.static_branches.len(),
        "prepared_by": prepared_by,
    });
    serde_json::to_writer_pretty(&mut *out, &value)?;
    writeln!(out)?;
    Ok(())
}

fn text(
    args: &PlanArgs,
    plan: &Plan,
    prepared_by: &BTreeSet<String>,
    out: &mut dyn Write,
) -> Result<()> {
    if args.screen.verbose > 0 {
        function_table(plan, out)?;
    }
    writeln!(out, "{}", args.file.display())?;
    coverage(plan, out)?;
    writeln!(out, "  library calls {:>4}", plan.libcalls.len())?;
    if !prepared_by.is_empty() {
        let names: Vec<&str> = prepared_by.iter().map(String::as_str).collect();
        writeln!(out, "  prepared by {}", names.join(", "))?;
    }
    if !plan.static_branches.is_empty() {
        let count = plan.static_branches.len();
        writeln!(
            out,
            "  static branches {count}, which the program changes itself"
        )?;
    }
    for remark in &plan.remarks {
        writeln!(out, "  remark: {remark}")?;
    }
    Ok(())
}

/// Writes each function with its tactic, or with the reason why it is refused.
fn function_table(plan: &Plan, out: &mut dyn Write) -> Result<()> {
    writeln!(out, "#      ADDRESS    SIZE  TACTIC   RECORDED    FUNCTION")?;
    for function in &plan.functions {
        let name = demangle(&function.name, Style::Simple);
        let (tactic, mode) = match &function.outcome {
            Ok(site) => {
                let tactic = TACTICS.iter().find(|t| t.0 == site.tactic);
                let mode = match site.mode {
                    Mode::Call => "entry,exit",
                    Mode::EntryOnly(_) => "entry",
                };
                (tactic.map_or("", |t| t.1), mode)
            }
            Err(_) => ("refused", "-"),
        };
        write!(
            out,
            "{:>14x} {:>7}  {tactic:<7}  {mode:<10}  {name}",
            function.addr, function.size
        )?;
        match &function.outcome {
            Err(reason) => writeln!(out, ": {reason}")?,
            Ok(site) => match site.mode {
                Mode::EntryOnly(reason) => writeln!(out, ": {}", reason.as_str())?,
                Mode::Call => writeln!(out)?,
            },
        }
    }
    writeln!(out)?;
    Ok(())
}

/// Writes how many functions are traced, by tactic, and how many are not, by reason.
fn coverage(plan: &Plan, out: &mut dyn Write) -> Result<()> {
    let total = plan.functions.len();
    let percent = |n: usize| 100.0 * n as f64 / total.max(1) as f64;
    let sites = || {
        plan.functions
            .iter()
            .filter_map(|f| f.outcome.as_ref().ok())
    };
    let traced = sites().count();
    writeln!(out, "  functions {total:>8}")?;
    writeln!(out, "  traced    {traced:>8}  {:6.2} %", percent(traced))?;
    for (tactic, name) in TACTICS {
        let n = by_tactic(plan, tactic);
        writeln!(out, "    {name:<8}{n:>8}  {:6.2} %", percent(n))?;
    }
    let entries = counted(sites().filter_map(|site| match site.mode {
        Mode::EntryOnly(reason) => Some(reason.as_str()),
        Mode::Call => None,
    }));
    let without: usize = entries.values().sum();
    writeln!(out, "  entry only{without:>8}  {:6.2} %", percent(without))?;
    for (reason, n) in entries {
        writeln!(out, "    {n:>8}  {reason}")?;
    }
    let refused = total - traced;
    writeln!(out, "  refused   {refused:>8}  {:6.2} %", percent(refused))?;
    let errors = plan
        .functions
        .iter()
        .filter_map(|f| f.outcome.as_ref().err());
    for (reason, n) in counted(errors.map(|reason| reason.as_str())) {
        writeln!(out, "    {n:>8}  {reason}")?;
    }
    Ok(())
}

/// Counts the reasons.
fn counted<'r>(reasons: impl Iterator<Item = &'r str>) -> BTreeMap<&'r str, usize> {
    let mut counts = BTreeMap::new();
    for reason in reasons {
        *counts.entry(reason).or_insert(0) += 1;
    }
    counts
}

/// Returns the tactics of probes. Compilers leave no sites in the middle of functions.
fn probe_tactics() -> impl Iterator<Item = (Tactic, &'static str)> {
    TACTICS
        .into_iter()
        .filter(|(tactic, _)| *tactic != Tactic::Site)
}

/// Returns how many instructions a tactic probes.
fn probed_by(plan: &ProbePlan, tactic: Tactic) -> usize {
    let sites = plan.sites.iter().filter(|site| site.tactic == tactic);
    sites.map(|site| site.probes.len()).sum()
}

fn instructions_json(plan: &ProbePlan, out: &mut dyn Write) -> Result<()> {
    let tactics: serde_json::Map<_, _> = probe_tactics()
        .map(|(tactic, name)| (name.to_owned(), probed_by(plan, tactic).into()))
        .collect();
    let probed: usize = plan.sites.iter().map(|site| site.probes.len()).sum();
    let refused = plan.refused.iter();
    let refused: Vec<_> = refused
        .map(|r| json!({"addr": r.addr, "insn": r.insn, "reason": r.reason}))
        .collect();
    let value = json!({
        "instructions": {"total": plan.total, "probed": probed, "by_tactic": tactics, "refused": refused},
    });
    serde_json::to_writer_pretty(&mut *out, &value)?;
    writeln!(out)?;
    Ok(())
}

fn instructions_text(args: &PlanArgs, plan: &ProbePlan, out: &mut dyn Write) -> Result<()> {
    // On instruction sets without flags, free registers are reported instead.
    let mut probes = plan.sites.iter().flat_map(|site| &site.probes);
    let registers = probes.any(|probe| probe.free != 0);
    let is_dead = |probe: &&ProbedInsn| match registers {
        true => probe.free != 0,
        false => probe.flags_dead,
    };
    if args.screen.verbose > 0 {
        let dead = if registers { "REGISTER" } else { "FLAGS DEAD" };
        writeln!(out, "#      ADDRESS   BYTES  TACTIC   PROBES  {dead:>10}")?;
        for site in &plan.sites {
            let tactic = TACTICS.iter().find(|t| t.0 == site.tactic);
            let dead = site.probes.iter().filter(is_dead).count();
            writeln!(
                out,
                "{:>14x} {:>7}  {:<7} {:>7} {dead:>11}",
                site.patch,
                site.displaced.end - site.displaced.start,
                tactic.map_or("", |t| t.1),
                site.probes.len(),
            )?;
        }
        for refused in &plan.refused {
            writeln!(
                out,
                "{:>14x}       -  refused        -           -  {}: {}",
                refused.addr, refused.insn, refused.reason
            )?;
        }
        writeln!(out)?;
    }
    let percent = |n: usize| 100.0 * n as f64 / plan.total.max(1) as f64;
    let probed: usize = plan.sites.iter().map(|site| site.probes.len()).sum();
    let probes = plan.sites.iter().flat_map(|site| &site.probes);
    let count = probes.filter(is_dead).count();
    writeln!(out, "{}", args.file.display())?;
    writeln!(out, "  instructions {:>9}", plan.total)?;
    writeln!(out, "  probed       {probed:>9}  {:6.2} %", percent(probed))?;
    for (tactic, name) in probe_tactics() {
        let n = probed_by(plan, tactic);
        writeln!(out, "    {name:<11}{n:>9}  {:6.2} %", percent(n))?;
    }
    let what = match registers {
        false => "flags dead   ",
        true => "register free",
    };
    writeln!(out, "  {what}{count:>9}  {:6.2} %", percent(count))?;
    let refused = plan.refused.len();
    writeln!(
        out,
        "  refused      {refused:>9}  {:6.2} %",
        percent(refused)
    )?;
    let mut reasons = std::collections::BTreeMap::new();
    for refused in &plan.refused {
        *reasons.entry(refused.reason.as_str()).or_insert(0usize) += 1;
    }
    for (reason, n) in reasons {
        writeln!(out, "    {n:>9}  {reason}")?;
    }
    writeln!(out, "  sites        {:>9}", plan.sites.len())?;
    for remark in &plan.remarks {
        writeln!(out, "  remark: {remark}")?;
    }
    Ok(())
}
