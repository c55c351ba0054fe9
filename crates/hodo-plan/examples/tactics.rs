//! Reports how many functions and instructions of files can be traced and probed, and why the others cannot. With
//! `--refused`, it lists the others. The files may be for any supported instruction set.
//!
//! `cargo run --release -p hodo-plan --example tactics FILE…`

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use hodo_isa::Via;
use hodo_plan::model::{Extra, Mode, Tactic, Wanted};
use hodo_plan::{PlanOptions, plan, plan_probes};

/// Counts by name, and their total.
struct Shares(BTreeMap<String, usize>, usize);

impl Shares {
    fn new(all: usize) -> Self {
        Self(BTreeMap::new(), all)
    }

    fn add(&mut self, what: impl Into<String>, count: usize) {
        *self.0.entry(what.into()).or_default() += count;
    }

    fn print(&self) {
        for (what, count) in &self.0 {
            let share = *count as f64 * 100.0 / self.1.max(1) as f64;
            println!("  {count:>9} {share:>8.3} %  {what}");
        }
    }
}

fn how(tactic: Tactic, extra: &Extra, via: Via) -> String {
    let place = match extra {
        Extra::None => "",
        Extra::HopSlot(_) => " to a slot",
        Extra::HopDonor { .. } => " after another site",
        Extra::Near => " to nearby memory",
        Extra::Pun { .. } => " that shares bytes",
    };
    let register = match via {
        Via::Nothing => "",
        Via::Free(_) => ", a free register",
        Via::Kept(_) => ", a saved register",
    };
    format!("{tactic:?}{place}{register}")
}

fn functions(path: &Path, bytes: &[u8], each: bool) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    let plan = plan(path, bytes, &PlanOptions::default())?;
    let mut shares = Shares::new(plan.functions.len());
    for function in &plan.functions {
        match &function.outcome {
            Ok(site) => {
                shares.add("traced", 1);
                shares.add(how(site.tactic, &site.extra, site.via), 1);
                if let Mode::EntryOnly(reason) = site.mode {
                    shares.add(format!("entry only: {}", reason.as_str()), 1);
                }
                let of = |free: u32| match free.count_ones() {
                    few @ 0..4 => few.to_string(),
                    _ => "4 or more".to_owned(),
                };
                shares.add(format!("before: {} registers", of(site.free)), 1);
                shares.add(format!("after: {} registers", of(site.free_after)), 1);
            }
            Err(reason) => {
                if each {
                    println!("{:#x} {}: {reason}", function.addr, function.name);
                }
                shares.add(format!("refused: {reason}"), 1);
            }
        }
    }
    let (count, calls) = (plan.functions.len(), plan.libcalls.len());
    println!(
        "{} functions, {calls} library calls, {:?}",
        count,
        start.elapsed()
    );
    shares.print();
    Ok(())
}

fn probes(path: &Path, bytes: &[u8], each: bool) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    let plan = plan_probes(path, bytes, Wanted::Every, 0)?;
    let mut shares = Shares::new(plan.total);
    for site in &plan.sites {
        let count = site.probes.len();
        shares.add("probed", count);
        shares.add(how(site.tactic, &site.extra, site.via), count);
        let free = site.probes.iter().filter(|probe| probe.free != 0).count();
        shares.add("a register is free", free);
    }
    for refused in &plan.refused {
        if each {
            println!("{:#x} {}: {}", refused.addr, refused.insn, refused.reason);
        }
        shares.add(format!("refused: {}", refused.reason), 1);
    }
    println!(
        "{} instructions in {} sites, {:?}",
        plan.total,
        plan.sites.len(),
        start.elapsed()
    );
    shares.print();
    Ok(())
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut files: Vec<_> = std::env::args_os().skip(1).collect();
    let each = files.iter().any(|file| file == "--refused");
    files.retain(|file| file != "--refused");
    if files.is_empty() {
        eprintln!("usage: tactics [--refused] FILE…");
        return Ok(ExitCode::FAILURE);
    }
    for file in files {
        let path = Path::new(&file);
        let bytes = std::fs::read(path)?;
        println!("{}", path.display());
        functions(path, &bytes, each)?;
        probes(path, &bytes, each)?;
    }
    Ok(ExitCode::SUCCESS)
}
