//! Our code takes no registers that a probe looks at.

use std::path::Path;
use std::process::{Command, Stdio};

use hodo_isa::Via;
use hodo_plan::model::{Spare, Wanted};
use hodo_plan::{PlanOptions, plan, plan_probes_with};

const GCC: &str = "riscv64-linux-gnu-gcc";

/// Functions with arguments that they do not use, or use only at the beginning.
const SOURCE: &str = r#"
int volatile shared;
__attribute__((noipa)) int first(int a, int b, int c) { shared += a; return shared * 3 + a; }
__attribute__((noipa)) int second(int a, long unused, char *text) { int sum = 0; while (*text) sum += *text++ * a; return sum; }
__attribute__((noipa)) int third(int a) { return first(a, a + 1, 2) + second(a, 3, "text"); }
"#;

/// The registers of a plan that our code takes: at sites, where code is moved, after functions.
fn taken(via: Via, spare: &Spare) -> u32 {
    let of = |via| match via {
        Via::Free(register) => 1 << register,
        Via::Nothing | Via::Kept(_) => 0,
    };
    let dead = spare.dead.iter().map(|(_, registers)| registers);
    of(via) | of(spare.back) | dead.fold(0, |all, of| all | of)
}

#[test]
fn registers_that_probes_look_at_are_not_free() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, file) = (directory.join("kept.c"), directory.join("kept.so"));
    std::fs::write(&source, SOURCE).expect("a source");
    let mut gcc = Command::new(GCC);
    gcc.args([
        "-O2",
        "-shared",
        "-fPIC",
        "-fasynchronous-unwind-tables",
        "-o",
    ])
    .arg(&file)
    .arg(&source)
    .stdin(Stdio::null());
    let output = match gcc.output() {
        Ok(output) => output,
        Err(error) => {
            eprintln!("not done: {GCC}: {error}");
            return;
        }
    };
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let bytes = std::fs::read(&file).expect("a library");
    let all = |keep: u32| {
        let options = PlanOptions {
            keep,
            ..PlanOptions::default()
        };
        let functions = plan(&file, &bytes, &options).expect("a plan").functions;
        let sites: Vec<_> = functions
            .iter()
            .filter_map(|f| f.outcome.as_ref().ok())
            .collect();
        let probes = plan_probes_with(&file, &bytes, Wanted::Every, &options).expect("a plan");
        assert!(sites.len() >= 3 && probes.sites.len() >= 3);
        let of_functions = sites
            .iter()
            .map(|site| taken(site.via, &site.spare) | site.free | site.free_after);
        let of_probes = probes.sites.iter().map(|site| {
            let free = site.probes.iter().fold(0, |all, of| all | of.free);
            taken(site.via, &site.spare) | free
        });
        let union = |all: u32, of: u32| all | of;
        [of_functions.fold(0, union), of_probes.fold(0, union)]
    };
    // a1 and a2 are arguments that the first function does not use.
    const ARGUMENTS: u32 = 3 << 11;
    for taken in all(0) {
        assert_eq!(taken & ARGUMENTS, ARGUMENTS);
    }
    for keep in [ARGUMENTS, 1 << 12, 1 << 5, 0xFFFF_0000, u32::MAX] {
        for taken in all(keep) {
            assert_eq!(taken & keep, 0, "{keep:#x}");
        }
    }
}
