//! Prints how the functions of files are planned: `coverage [-v] FILE...`.

use hodo_plan::model::{Mode, Tactic};
use hodo_plan::{PlanOptions, plan};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

fn main() {
    let mut verbose = false;
    for path in std::env::args().skip(1) {
        if path == "-v" {
            verbose = true;
            continue;
        }
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) => {
                eprintln!("{path}: {error}");
                continue;
            }
        };
        let start = Instant::now();
        let plan = match plan(Path::new(&path), &bytes, &PlanOptions::default()) {
            Ok(plan) => plan,
            Err(error) => {
                eprintln!("{path}: {error}");
                continue;
            }
        };
        let seconds = start.elapsed().as_secs_f64();
        let mut by_tactic = BTreeMap::new();
        let mut by_mode = BTreeMap::new();
        let mut refused: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for function in &plan.functions {
            match &function.outcome {
                Ok(site) => {
                    *by_tactic.entry(site.tactic).or_insert(0) += 1;
                    *by_mode.entry(format!("{:?}", site.mode)).or_insert(0) += 1;
                }
                Err(reason) => refused.entry(reason).or_default().push(&function.name),
            }
        }
        let total = plan.functions.len();
        let traced: usize = by_tactic.values().sum();
        let share = 100.0 * traced as f64 / total.max(1) as f64;
        println!(
            "{path}: {total} functions, {traced} traced ({share:.2} %), {by_tactic:?}, {} libcalls, {:.1} ms",
            plan.libcalls.len(),
            seconds * 1e3,
        );
        println!("  {by_mode:?}");
        for (reason, names) in refused {
            let shown = if verbose { names.len() } else { 5 };
            println!(
                "  {} × {reason}: {:?}",
                names.len(),
                &names[..shown.min(names.len())]
            );
        }
        for function in plan.functions.iter().filter(|_| verbose) {
            if let Ok(site) = &function.outcome
                && (site.tactic != Tactic::Jump || !matches!(site.mode, Mode::Call))
            {
                println!("  {} {site:x?}", function.name);
            }
        }
        for call in plan.libcalls.iter().filter(|_| verbose) {
            println!("  {call:x?}");
        }
        for (addr, bytes) in plan.nops.iter().filter(|_| verbose) {
            println!("  nop {addr:x}: {bytes:02x?}");
        }
        for remark in &plan.remarks {
            println!("  remark: {remark}");
        }
    }
}
