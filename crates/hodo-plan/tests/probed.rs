//! Probes on an assembly program, for which it is known where they must be.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use hodo_plan::model::{Extra, ProbePlan, ProbeSite, Tactic, Wanted};
use hodo_plan::{PlanOptions, Survey, plan, plan_probes};

struct Program {
    path: PathBuf,
    bytes: Vec<u8>,
    functions: HashMap<String, u64>,
}

impl Program {
    fn build() -> Self {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("probed");
        std::fs::create_dir_all(&directory).expect("a directory for the program");
        // Tests run at the same time, in threads of one process or in several processes.
        let (process, thread) = (std::process::id(), std::thread::current().id());
        let path = directory.join(format!("{process}-{thread:?}"));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/probes.s");
        let output = Command::new("gcc")
            .stdin(Stdio::null())
            .arg(source)
            .arg("-o")
            .arg(&path)
            .output()
            .expect("gcc is needed");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
        let bytes = std::fs::read(&path).expect("a program");
        let plan = plan(&path, &bytes, &PlanOptions::default()).expect("a plan");
        let functions = plan
            .functions
            .into_iter()
            .map(|f| (f.name, f.addr))
            .collect();
        Self {
            path,
            bytes,
            functions,
        }
    }

    fn addr(&self, function: &str, offset: u64) -> u64 {
        self.functions[function] + offset
    }

    fn every(&self) -> ProbePlan {
        plan_probes(&self.path, &self.bytes, Wanted::Every, 1).expect("a plan")
    }

    fn at(&self, addresses: &[u64]) -> ProbePlan {
        plan_probes(&self.path, &self.bytes, Wanted::At(addresses), 1).expect("a plan")
    }

    /// All probes as breakpoints.
    fn breakpoints(&self) -> ProbePlan {
        let options = PlanOptions {
            breakpoints: true,
            ..PlanOptions::default()
        };
        let survey = Survey::new(&self.path, &self.bytes, 1).expect("a survey");
        survey.plan_probes(Wanted::Every, &options)
    }

    /// The site that displaces an offset of a function: its tactic, range and probes as offsets.
    fn site(&self, plan: &ProbePlan, function: &str, offset: u64) -> (Tactic, u64, u64, Vec<u64>) {
        let addr = self.addr(function, offset);
        let site = self.raw(plan, addr);
        let offset = |addr: u64| addr - self.addr(function, 0);
        (
            site.tactic,
            offset(site.displaced.start),
            offset(site.displaced.end),
            site.probes.iter().map(|probe| offset(probe.addr)).collect(),
        )
    }

    fn raw<'p>(&self, plan: &'p ProbePlan, addr: u64) -> &'p ProbeSite {
        let mut sites = plan.sites.iter();
        let site = sites.find(|site| site.displaced.contains(&addr));
        site.unwrap_or_else(|| panic!("{addr:#x}: {:x?}", plan.refused))
    }
}

#[test]
fn regions_are_as_large_as_their_entries_allow() {
    let program = Program::build();
    let plan = program.every();
    let site = |function, offset| program.site(&plan, function, offset);
    assert_eq!(site("main", 0), (Tactic::Jump, 0, 3, vec![0, 2]));
    // The loop leads to the patch's first byte, which is inside.
    assert_eq!(site("itself", 0), (Tactic::Jump, 0, 5, vec![0, 2, 4]));
    assert_eq!(site("one", 0), (Tactic::Jump, 0, 1, vec![0]));
    assert_eq!(site("narrow", 0), (Tactic::Trap, 0, 1, vec![0]));
    assert_eq!(site("follower", 0), (Tactic::Jump, 0, 6, vec![0, 5]));
    // The table's targets begin regions.
    assert_eq!(site("table", 0), (Tactic::Jump, 0, 16, vec![0, 7, 11, 14]));
    for offset in [16, 22, 28] {
        let (tactic, start, end, probes) = site("table", offset);
        assert_eq!((tactic, start, end), (Tactic::Jump, offset, offset + 6));
        assert_eq!(probes, [offset, offset + 5]);
    }
    // jrcxz and loop lead to places inside.
    assert_eq!(site("counted", 0), (Tactic::Block, 0, 8, vec![0, 2, 5, 7]));
    assert_eq!(site("calls", 0), (Tactic::Jump, 0, 6, vec![0, 1]));
    let (tactic, start, end, _) = site("calls", 6);
    assert_eq!((tactic, start, end), (Tactic::Hop, 6, 10));
    assert_eq!(site("calls", 10), (Tactic::Jump, 10, 12, vec![10, 11]));
}

#[test]
fn unresolved_jumps_limit_regions_to_one_instruction() {
    let program = Program::build();
    let plan = program.every();
    for (offset, len) in [(0, 7), (7, 4), (11, 2), (13, 3), (16, 1), (17, 3), (20, 1)] {
        let (_, start, end, probes) = program.site(&plan, "computed", offset);
        assert_eq!((start, end), (offset, offset + len));
        assert_eq!(probes, [offset]);
    }
}

#[test]
fn short_regions_hop_to_spare_bytes() {
    let program = Program::build();
    let plan = program.every();
    let site = program.raw(&plan, program.addr("hops", 7));
    assert_eq!(site.tactic, Tactic::Hop, "{site:x?}");
    assert_eq!(site.displaced.end - site.displaced.start, 2);
    let Extra::HopSlot(_) = site.extra else {
        panic!("{site:x?}");
    };
}

#[test]
fn flags_are_dead_where_nothing_reads_them() {
    let program = Program::build();
    let plan = program.every();
    let dead = |function: &str| -> Vec<bool> {
        let start = program.addr(function, 0);
        let probes = &program.raw(&plan, start).probes;
        probes.iter().map(|probe| probe.flags_dead).collect()
    };
    // cmp; mov; je; mov; ret
    assert_eq!(dead("flags"), [true, false, false, true, true]);
    // dec leaves the carry flag, which nothing reads; jnz; ret
    assert_eq!(dead("itself"), [true, false, true]);
}

#[test]
fn refused_instructions_say_why() {
    let program = Program::build();
    let plan = program.every();
    let reason = |addr: u64| {
        let mut refused = plan.refused.iter();
        let refused = refused.find(|refused| refused.addr == addr);
        refused.map(|refused| refused.reason.as_str())
    };
    for offset in [0, 6, 8] {
        let reason = reason(program.addr("transaction", offset));
        assert!(
            reason.is_some_and(|r| r.contains("transaction")),
            "{reason:?}"
        );
    }
    let far = reason(program.addr("far", 0));
    assert_eq!(far, Some("it cannot be moved: a far return"));
    // Another instruction begins after the prefix: only the first byte can be changed.
    let lock = program.raw(&plan, program.addr("prefixed", 4));
    assert_eq!((lock.tactic, lock.patch_len), (Tactic::Trap, 1));
    assert_eq!(lock.probes.len(), 1);

    let wanted = [
        program.addr("follower", 2),
        program.addr("one", 3),
        program.addr("one", 0),
        0x10,
    ];
    let plan = program.at(&wanted);
    assert_eq!((plan.total, plan.sites.len()), (4, 1));
    let text: Vec<_> = plan
        .refused
        .iter()
        .map(|r| (r.addr, r.reason.clone()))
        .collect();
    let expected = [
        (0x10, "it is not in executable code".to_owned()),
        (wanted[1], "it is padding, which is not executed".to_owned()),
        (
            wanted[0],
            format!(
                "it is the middle of `mov eax, 0x1` at {:#x}",
                program.addr("follower", 0)
            ),
        ),
    ];
    assert_eq!(text, expected);
}

#[test]
fn single_instructions_take_no_more_than_they_need() {
    let program = Program::build();
    // Five bytes, starting at the instruction.
    let plan = program.at(&[program.addr("table", 0)]);
    assert_eq!(
        program.site(&plan, "table", 0),
        (Tactic::Jump, 0, 7, vec![0])
    );
    let plan = program.at(&[program.addr("table", 7)]);
    assert_eq!(
        program.site(&plan, "table", 7),
        (Tactic::Jump, 7, 14, vec![7])
    );
    // Too close to the region's end, so the patch begins earlier.
    let plan = program.at(&[program.addr("table", 14)]);
    assert_eq!(
        program.site(&plan, "table", 14),
        (Tactic::Jump, 11, 16, vec![14])
    );
    // Each instruction alone, and the same address twice.
    for offset in [0, 2, 5, 7] {
        let addr = program.addr("counted", offset);
        let plan = program.at(&[addr, addr]);
        assert_eq!((plan.total, plan.refused.len()), (1, 0));
        let probes = &plan.sites[0].probes;
        assert!(probes.iter().map(|probe| probe.addr).eq([addr]));
    }
}

#[test]
fn sequences_that_the_kernel_restarts_stay() {
    let program = Program::build();
    let plan = program.every();
    for offset in [5, 7] {
        let addr = program.addr("restarted", offset);
        let refused = plan.refused.iter().find(|refused| refused.addr == addr);
        let reason = refused.map_or("", |refused| &refused.reason);
        assert!(reason.contains("restartable"), "{offset}: {reason}");
    }
    // What is before and after the sequence can be probed, but not what the kernel compares.
    assert_eq!(
        program.site(&plan, "restarted", 0),
        (Tactic::Jump, 0, 5, vec![0])
    );
    let (_, start, end, _) = program.site(&plan, "restarted", 17);
    assert_eq!((start, end), (17, 23));
    let compared = program.addr("restarted", 13)..program.addr("restarted", 17);
    for site in &plan.sites {
        let slot = match site.extra {
            Extra::HopSlot(slot) => slot..slot + 5,
            _ => 0..0,
        };
        let written = [site.patch..site.patch + u64::from(site.patch_len), slot];
        for range in written {
            let apart = range.end <= compared.start || compared.end <= range.start;
            assert!(apart, "{site:x?}");
        }
    }
}

#[test]
fn breakpoints_are_at_all_places_that_jumps_are_made_for() {
    let program = Program::build();
    let probed = |plan: &ProbePlan| {
        let sites = plan.sites.iter();
        let probes = sites.flat_map(|site| site.probes.iter().map(|probe| probe.addr));
        let mut all: Vec<u64> = probes.collect();
        all.sort_unstable();
        all
    };
    let (jumps, traps) = (program.every(), program.breakpoints());
    assert!(jumps.sites.iter().any(|site| site.tactic == Tactic::Jump));
    assert_eq!(probed(&jumps), probed(&traps));
    for site in &traps.sites {
        assert_eq!((site.tactic, site.patch_len), (Tactic::Trap, 1));
        assert_eq!(site.probes.len(), 1);
        assert_eq!(site.probes[0].addr, site.patch);
    }
}
