//! Branches on static keys: the program changes them itself, so no patch may contain one of their bytes, and no copy
//! one of them.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use hodo_plan::model::{Extra, Plan, ProbePlan, Tactic, Wanted};
use hodo_plan::{PlanOptions, plan, plan_probes};
use hodo_symbols::Keys;
use object::{Object, ObjectSection};

const IN_THE_WAY: &str = "a static branch is in the way";
const IS_ONE: &str = "it is a static branch, which the program itself changes";
const DAMAGED: &str = "its table of static branches is damaged";

struct Program {
    path: PathBuf,
    bytes: Vec<u8>,
    keys: Keys,
}

impl Program {
    fn compile(name: &str, flags: &[&str]) -> Self {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("statics");
        std::fs::create_dir_all(&directory).expect("a directory for programs");
        let path = directory.join(name);
        let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hodo-tests/programs");
        let output = Command::new("gcc")
            .stdin(Stdio::null())
            .args(flags)
            .arg("-pthread")
            .arg(programs.join("static_keys.c"))
            .arg("-o")
            .arg(&path)
            .output()
            .expect("gcc is needed");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{flags:?}: {text}");
        let bytes = std::fs::read(&path).expect("a program");
        let keys = hodo_symbols::keys(&bytes).expect("its keys");
        assert!(keys.branches.len() >= 9);
        Self { path, bytes, keys }
    }

    fn plan(&self) -> Plan {
        plan(&self.path, &self.bytes, &PlanOptions::default()).expect("a plan")
    }

    fn probes(&self, wanted: Wanted<'_>) -> ProbePlan {
        plan_probes(&self.path, &self.bytes, wanted, 0).expect("a plan")
    }

    /// Checks that a site contains no byte of these branches, and that none of them leads into its middle.
    fn check(&self, what: &str, patch: u64, len: u8, displaced: &Range<u64>, extra: &Extra) {
        let second = match *extra {
            Extra::None | Extra::Near | Extra::HopDonor { .. } => 0..0,
            Extra::HopSlot(slot) => slot..slot + 5,
            Extra::Pun { .. } => patch..patch + 5,
        };
        let bytes = patch..patch + u64::from(len);
        for branch in &self.keys.branches {
            for range in [&bytes, displaced, &second] {
                let apart =
                    range.is_empty() || range.end <= branch.code || branch.end() <= range.start;
                assert!(apart, "{what}: {range:x?} has {branch:x?}");
                for to in [branch.target, branch.end()] {
                    let into = range.contains(&to) && to != range.start;
                    assert!(!into, "{what}: {branch:x?} leads into {range:x?}");
                }
            }
        }
    }
}

fn outcome(plan: &Plan, name: &str) -> Result<Tactic, String> {
    let mut functions = plan.functions.iter().filter(|f| f.name == name);
    let function = functions.next().unwrap_or_else(|| panic!("no {name}"));
    let tactic = function.outcome.clone().map(|site| site.tactic);
    tactic.map_err(|reason| reason.to_string())
}

#[test]
fn no_site_has_a_static_branch() {
    let kinds = [
        ("O0", &["-O0"][..]),
        ("O1", &["-O1"]),
        ("O2", &["-O2"]),
        ("O3", &["-O3", "-fno-pie", "-no-pie"]),
        ("Os", &["-Os", "-fcf-protection=full"]),
        (
            "dense",
            &[
                "-O2",
                "-falign-functions=1",
                "-falign-jumps=1",
                "-falign-loops=1",
            ],
        ),
        ("static", &["-O2", "-static"]),
        ("library", &["-O2", "-shared", "-fPIC", "-DLIBRARY"]),
    ];
    let mut refused = 0;
    for (name, flags) in kinds {
        let program = Program::compile(name, flags);
        let plan = program.plan();
        for function in &plan.functions {
            let what = format!("{name}, {}", function.name);
            match &function.outcome {
                Ok(site) => {
                    program.check(
                        &what,
                        site.patch,
                        site.patch_len,
                        &site.displaced,
                        &site.extra,
                    );
                }
                Err(reason) => refused += usize::from(reason.as_str() == IN_THE_WAY),
            }
        }
        let ranges: Vec<_> = (program.keys.branches.iter())
            .map(|branch| branch.code..branch.end())
            .collect();
        assert_eq!(plan.static_branches, ranges);
        let all = program.probes(Wanted::Every);
        let codes: Vec<u64> = ranges.iter().map(|range| range.start).collect();
        for site in &all.sites {
            let what = format!("{name}, {:#x}", site.patch);
            program.check(
                &what,
                site.patch,
                site.patch_len,
                &site.displaced,
                &site.extra,
            );
        }
        let told: Vec<u64> = (all.refused.iter())
            .filter(|refused| refused.reason == IS_ONE)
            .map(|refused| refused.addr)
            .collect();
        assert_eq!(told, codes, "{name}");
        // The targets in both directions are code, whatever the instruction in the file is.
        let probed = all.sites.iter().flat_map(|site| &site.probes);
        let probed: Vec<u64> = probed.map(|probe| probe.addr).collect();
        for branch in &program.keys.branches {
            for to in [branch.target, branch.end()] {
                assert!(
                    probed.contains(&to) || codes.contains(&to),
                    "{name}: {to:#x} of {branch:x?} is not probed"
                );
            }
        }
        let wanted = program.probes(Wanted::At(&codes));
        assert_eq!(wanted.sites, []);
        assert!(
            wanted
                .refused
                .iter()
                .all(|refused| refused.reason == IS_ONE)
        );
    }
    assert!(refused >= 5, "{refused}");
}

#[test]
fn a_function_that_begins_with_a_static_branch_is_refused_and_others_find_a_way() {
    let program = Program::compile(
        "ways",
        &["-O2", "-falign-functions=1", "-fcf-protection=none"],
    );
    let plan = program.plan();
    assert_eq!(outcome(&plan, "first"), Err(IN_THE_WAY.to_owned()));
    // Its branches follow after three and four bytes: too few for a jump.
    for name in ["second", "distant"] {
        let tactic = outcome(&plan, name).unwrap_or_else(|reason| panic!("{name}: {reason}"));
        assert!(
            matches!(tactic, Tactic::Hop | Tactic::Pun | Tactic::Trap),
            "{name}: {tactic:?}"
        );
    }
    assert_eq!(outcome(&plan, "all"), Ok(Tactic::Jump));
    // The landing instruction stays before the branch.
    let program = Program::compile("landing", &["-O2", "-fcf-protection=full"]);
    let first = outcome(&program.plan(), "first");
    assert!(
        matches!(first, Ok(Tactic::Hop | Tactic::Pun | Tactic::Trap)),
        "{first:?}"
    );
}

#[test]
fn nothing_is_changed_in_a_file_whose_table_is_damaged() {
    let program = Program::compile("damaged", &["-O2"]);
    let mut bytes = program.bytes.clone();
    let file = object::File::parse(&*program.bytes).expect("an ELF file");
    let section = file.section_by_name("hodo_keys").expect("the section");
    let (start, _) = section.file_range().expect("its place");
    bytes[start as usize + 3] = 0x40;
    let plan = plan(&program.path, &bytes, &PlanOptions::default()).expect("a plan");
    assert!(!plan.functions.is_empty() && plan.libcalls.is_empty());
    for function in &plan.functions {
        assert_eq!(function.outcome, Err(DAMAGED.into()));
    }
    let [remark] = &plan.remarks[..] else {
        panic!("{:?}", plan.remarks);
    };
    let begin = format!("nothing is traced: {DAMAGED}: entry 0 refers to 0x4");
    assert!(remark.starts_with(&begin), "{remark}");
    let probes = plan_probes(&program.path, &bytes, Wanted::Every, 0).expect("a plan");
    assert_eq!(probes.sites, []);
    assert!(
        probes
            .refused
            .iter()
            .all(|refused| refused.reason == DAMAGED)
    );
    let begin = format!("nothing is probed: {DAMAGED}: entry 0 refers to 0x4");
    assert!(
        probes.remarks[0].starts_with(&begin),
        "{:?}",
        probes.remarks
    );
}
