//! What must hold for every plan of probes, checked on this machine's programs with an independent reading of their
//! code.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use hodo_isa::x86_64::relocate::relocate_mapped;
use hodo_plan::model::{Extra, ProbePlan, ProbeSite, Tactic, Wanted};
use hodo_plan::{PlanOptions, Survey, plan, plan_probes};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, OpKind, Register, RflagsBits};
use object::{Object, ObjectSection, RelocationFlags, SectionKind};

fn programs() -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = [
        "/bin/bash",
        "/usr/bin/sqlite3",
        "/usr/bin/python3",
        "/lib/x86_64-linux-gnu/libc.so.6",
        "/lib/x86_64-linux-gnu/libm.so.6",
        "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
        "/lib64/ld-linux-x86-64.so.2",
    ]
    .map(PathBuf::from)
    .into();
    files.retain(|file| file.exists());
    assert!(files.len() >= 3, "too few programs: {files:?}");
    files.push(std::env::current_exe().expect("this program"));
    files
}

/// Stands for the source of a return address: no instruction is here.
const RETURN: u64 = 1;

struct Program {
    path: PathBuf,
    bytes: Vec<u8>,
    /// Executable sections: address and content.
    text: BTreeMap<u64, Vec<u8>>,
}

impl Program {
    fn open(path: &Path) -> Self {
        let bytes = std::fs::read(path).expect("a readable file");
        let file = object::File::parse(&*bytes).expect("an ELF file");
        let text = file
            .sections()
            .filter(|s| s.kind() == SectionKind::Text)
            .map(|s| (s.address(), s.data().expect("a section's content").to_vec()))
            .collect();
        Self {
            path: path.to_owned(),
            bytes,
            text,
        }
    }

    fn probes(&self, wanted: Wanted<'_>) -> ProbePlan {
        plan_probes(&self.path, &self.bytes, wanted, 0).expect("a plan")
    }

    fn code(&self, range: Range<u64>) -> &[u8] {
        let (start, text) = self.text.range(..=range.start).next_back().expect("code");
        let range = (range.start - start) as usize..(range.end - start) as usize;
        text.get(range).expect("code")
    }

    fn decode(&self, range: Range<u64>) -> Vec<Instruction> {
        let code = self.code(range.clone());
        let decoder = Decoder::with_ip(64, code, range.start, DecoderOptions::NONE);
        decoder.into_iter().collect()
    }

    /// Places that something branches to, and from where (0 if unknown), read from the start of each function.
    fn targets(&self) -> Vec<(u64, u64)> {
        let functions = plan(&self.path, &self.bytes, &PlanOptions::default()).expect("a plan");
        let mut targets = Vec::new();
        for (&start, text) in &self.text {
            let end = start + text.len() as u64;
            let functions = functions.functions.iter().map(|f| f.addr);
            let mut starts: Vec<u64> = functions.filter(|a| (start..end).contains(a)).collect();
            targets.extend(starts.iter().map(|&start| (start, 0)));
            starts.push(end);
            starts.insert(0, start);
            for pair in starts.windows(2) {
                for instruction in self.decode(pair[0]..pair[1]) {
                    if instruction.op0_kind() == OpKind::NearBranch64 {
                        let call = matches!(
                            instruction.flow_control(),
                            FlowControl::Call | FlowControl::IndirectCall
                        );
                        let source = if call { 0 } else { instruction.ip() };
                        targets.push((instruction.near_branch64(), source));
                    } else if instruction.code() == iced_x86::Code::Lea_r64_m
                        && instruction.is_ip_rel_memory_operand()
                    {
                        targets.push((instruction.ip_rel_memory_address(), 0));
                    }
                    let back = matches!(
                        instruction.flow_control(),
                        FlowControl::Call | FlowControl::IndirectCall
                    ) && !matches!(
                        instruction.mnemonic(),
                        iced_x86::Mnemonic::Syscall | iced_x86::Mnemonic::Sysenter
                    );
                    if back {
                        // Where it returns to, if it does.
                        targets.push((instruction.next_ip(), RETURN));
                    }
                }
            }
        }
        let file = object::File::parse(&*self.bytes).expect("an ELF file");
        for (_, relocation) in file.dynamic_relocations().into_iter().flatten() {
            if let RelocationFlags::Elf { r_type: 8 } = relocation.flags() {
                targets.push((relocation.addend().cast_unsigned(), 0));
            }
        }
        targets.sort_unstable();
        targets.dedup();
        targets
    }

    /// Checks everything that must hold for any plan.
    fn check(&self, plan: &ProbePlan, targets: &[(u64, u64)]) {
        let name = self.path.display();
        let mut written: Vec<(u64, u64)> = Vec::new();
        let mut probes = HashSet::new();
        let mut before = 0;
        for site in &plan.sites {
            let what = format!("{name}: {site:x?}");
            assert!(site.displaced.start >= before, "regions overlap: {what}");
            before = site.displaced.end;
            written.push((site.patch, u64::from(site.patch_len)));
            if let Extra::HopSlot(slot) = site.extra {
                written.push((slot, 5));
            }
            self.check_site(site, targets, &what);
            for probe in site.probes.iter().map(|probe| probe.addr) {
                assert!(probes.insert(probe), "{probe:#x} is probed twice: {what}");
            }
        }
        for refused in &plan.refused {
            assert!(refused.reason.len() > 10, "{refused:?}");
            assert!(!probes.contains(&refused.addr), "{name}: {refused:?}");
        }
        assert_eq!(plan.total, probes.len() + plan.refused.len(), "{name}");
        written.sort_unstable();
        for pair in written.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{name}: {pair:x?}");
        }
        self.check_slots(plan, targets);
        let puns = plan.sites.iter().filter(|s| s.tactic == Tactic::Pun);
        assert!(puns.count() <= 4096, "{name}");
        for site in plan.sites.iter().filter(|s| s.tactic == Tactic::Pun) {
            // The bytes that a pun shares with the following instructions stay unchanged.
            let shared = site.patch + u64::from(site.patch_len)..site.patch + 5;
            let from = written.partition_point(|w| w.0 + w.1 <= shared.start);
            if let Some(next) = written.get(from) {
                assert!(next.0 >= shared.end, "{name}: {site:x?} {next:x?}");
            }
        }
    }

    fn check_site(&self, site: &ProbeSite, targets: &[(u64, u64)], what: &str) {
        let len = match site.tactic {
            Tactic::Jump | Tactic::Block => 5..=5,
            Tactic::Hop => 2..=2,
            Tactic::Pun => 1..=4,
            Tactic::Trap => 1..=1,
            Tactic::Site => panic!("{what}"),
        };
        assert!(len.contains(&site.patch_len), "{what}");
        assert_eq!(site.patch, site.displaced.start, "{what}");
        assert!(!site.probes.is_empty(), "{what}");
        assert!(site.probes.is_sorted_by(|a, b| a.addr < b.addr), "{what}");
        let instructions = self.decode(site.displaced.clone());
        let (last, others) = instructions.split_last().expect("an instruction");
        assert_eq!(last.next_ip(), site.displaced.end, "{what}");
        if site.tactic == Tactic::Trap {
            assert!(others.is_empty(), "{what}");
        }
        for instruction in others {
            let calls = matches!(
                instruction.flow_control(),
                FlowControl::Call | FlowControl::IndirectCall
            ) && instruction.mnemonic() != iced_x86::Mnemonic::Syscall;
            assert!(!calls, "a call inside: {what}");
        }
        for probe in site.probes.iter().map(|probe| probe.addr) {
            let known = instructions.binary_search_by_key(&probe, Instruction::ip);
            assert!(known.is_ok(), "{what}: {probe:#x} is no instruction");
        }
        match site.extra {
            Extra::HopSlot(slot) => {
                let distance = slot as i64 - (site.patch as i64 + 2);
                assert!(i8::try_from(distance).is_ok(), "{what}");
            }
            Extra::Pun { free } => assert_eq!(free + 1, site.patch_len, "{what}"),
            Extra::None | Extra::Near | Extra::HopDonor { .. } => {}
        }
        // Only the region itself leads past its first byte. An exception may be the middle of a single instruction.
        let patch_end = site.patch + u64::from(site.patch_len);
        let end = site.displaced.end.max(patch_end);
        let from = targets.partition_point(|t| t.0 <= site.patch);
        for &(target, source) in targets[from..].iter().take_while(|t| t.0 < end) {
            let middle = others.is_empty() && target >= patch_end;
            assert!(
                middle || site.displaced.contains(&source),
                "{source:#x} leads to {target:#x}: {what}"
            );
        }
        // It can be moved, with all its branches.
        let place = site.patch.wrapping_sub(1 << 30);
        let code = self.code(site.displaced.clone());
        let moved =
            relocate_mapped(code, site.patch, place).unwrap_or_else(|e| panic!("{e}: {what}"));
        let places = moved.map.iter().map(|m| site.patch + m.old as u64);
        assert!(
            places.eq(instructions.iter().map(Instruction::ip)),
            "{what}"
        );
    }

    /// Slots are where nothing is executed any more, or never was.
    fn check_slots(&self, plan: &ProbePlan, targets: &[(u64, u64)]) {
        for site in &plan.sites {
            let Extra::HopSlot(slot) = site.extra else {
                continue;
            };
            let what = format!("{}: {site:x?}", self.path.display());
            let at = plan.sites.partition_point(|s| s.patch <= slot);
            let host = at.checked_sub(1).map(|at| &plan.sites[at]);
            let next = plan.sites.get(at).map_or(u64::MAX, |next| next.patch);
            assert!(slot + 5 <= next, "{what}");
            match host.filter(|host| host.displaced.contains(&slot)) {
                Some(host) => {
                    let last = *self.decode(host.displaced.clone()).last().expect("one");
                    let end = match last.flow_control() {
                        FlowControl::Call | FlowControl::IndirectCall
                            if last.mnemonic() != iced_x86::Mnemonic::Syscall =>
                        {
                            last.ip()
                        }
                        _ => host.displaced.end,
                    };
                    assert!(slot >= host.patch + u64::from(host.patch_len), "{what}");
                    assert!(slot + 5 <= end, "{what}: {host:x?}");
                }
                None => {
                    let from = targets.partition_point(|t| t.0 < slot);
                    let led = targets[from..].iter().take_while(|t| t.0 < slot + 5);
                    // A call with padding after it does not return.
                    let led = led.into_iter().find(|t| t.1 != RETURN);
                    assert_eq!(led, None, "{what}");
                }
            }
        }
    }
}

#[test]
fn every_instruction_is_in_one_region_that_nothing_else_enters() {
    for path in programs() {
        let program = Program::open(&path);
        let plan = program.probes(Wanted::Every);
        program.check(&plan, &program.targets());
        for site in &plan.sites {
            let all = program.decode(site.displaced.clone());
            let all = all.iter().map(Instruction::ip);
            assert!(
                all.eq(site.probes.iter().map(|probe| probe.addr)),
                "{}: {site:x?}",
                path.display()
            );
        }
    }
}

#[test]
fn some_instructions_are_in_small_regions() {
    for path in programs() {
        let program = Program::open(&path);
        let every = program.probes(Wanted::Every);
        let targets = program.targets();
        let all: Vec<u64> = every
            .sites
            .iter()
            .flat_map(|site| site.probes.iter().map(|probe| probe.addr))
            .collect();
        // Every `step`-th instruction, and some pairs of adjacent ones, in no order.
        for step in [1, 7, 101] {
            let mut wanted: Vec<u64> = all.iter().copied().step_by(step).collect();
            wanted.extend(all.windows(2).step_by(5 * step).flatten());
            wanted.reverse();
            let plan = program.probes(Wanted::At(&wanted));
            program.check(&plan, &targets);
            let wanted: BTreeSet<u64> = wanted.into_iter().collect();
            assert_eq!(plan.total, wanted.len());
            let probed = plan.sites.iter().flat_map(|site| &site.probes);
            let probed: BTreeSet<u64> = probed.map(|probe| probe.addr).collect();
            let refused = plan.refused.iter().map(|refused| refused.addr);
            assert!(
                plan.refused.len() <= wanted.len() / 1000,
                "{:x?}",
                plan.refused
            );
            assert!(probed.union(&refused.collect()).eq(&wanted));
            let size = |plan: &ProbePlan| -> u64 {
                plan.sites
                    .iter()
                    .map(|s| s.displaced.end - s.displaced.start)
                    .sum()
            };
            if step == 101 {
                assert!(size(&plan) * 8 < size(&every), "{}", path.display());
            }
        }
    }
}

const STATUS: u32 = RflagsBits::OF
    | RflagsBits::SF
    | RflagsBits::ZF
    | RflagsBits::AF
    | RflagsBits::CF
    | RflagsBits::PF;

#[test]
fn dead_flags_are_not_read() {
    for path in programs() {
        let program = Program::open(&path);
        let plan = program.probes(Wanted::Every);
        let (mut dead, mut all) = (0, 0);
        for site in &plan.sites {
            let instructions = program.decode(site.displaced.clone());
            for probe in &site.probes {
                all += 1;
                if !probe.flags_dead {
                    continue;
                }
                dead += 1;
                let first = instructions.partition_point(|i| i.ip() < probe.addr);
                let mut open = STATUS;
                for instruction in &instructions[first..] {
                    assert_eq!(
                        instruction.rflags_read() & open,
                        0,
                        "{}: {probe:x?}, {:#x}",
                        path.display(),
                        instruction.ip()
                    );
                    let name = format!("{:?}", instruction.mnemonic());
                    let shifts = ["Sh", "Sa", "Ro", "Rc"].iter().any(|n| name.starts_with(n));
                    let counted = shifts
                        && instruction.op_register(instruction.op_count() - 1) == Register::CL;
                    if !counted && !instruction.has_rep_prefix() && !instruction.has_repne_prefix()
                    {
                        open &= !instruction.rflags_modified();
                    }
                    if instruction.flow_control() != FlowControl::Next || open == 0 {
                        break;
                    }
                }
            }
        }
        assert!(
            dead * 2 > all && dead < all,
            "{}: {dead} of {all}",
            path.display()
        );
    }
}

#[test]
fn coverage() {
    let mut files = programs();
    files.extend(
        ["/usr/lib/gcc/x86_64-linux-gnu/12/cc1", "/usr/bin/gdb"]
            .map(PathBuf::from)
            .into_iter()
            .filter(|file| file.exists()),
    );
    for path in files {
        let program = Program::open(&path);
        let plan = program.probes(Wanted::Every);
        let traps = plan.sites.iter().filter(|s| s.tactic == Tactic::Trap);
        let traps: usize = traps.map(|s| s.probes.len()).sum();
        let share = |n: usize| n as f64 / plan.total as f64;
        let name = path.display();
        println!(
            "{name}: {} of {}, {traps} traps",
            plan.total - plan.refused.len(),
            plan.total
        );
        assert!(plan.total > 1000, "{name}");
        // Rust programs without optimization have many of these, which are executed at most once.
        let refused = plan.refused.iter().filter(|r| r.insn != "ud2").count();
        assert!(
            share(refused) < 0.001,
            "{name}: {refused} of {}: {:x?}",
            plan.total,
            plan.refused.first()
        );
        // This program contains decoders whose switches have thousands of cases of one or two short instructions.
        assert!(share(traps) < 0.01, "{name}: {traps} of {}", plan.total);
    }
}

#[test]
fn one_survey_serves_all_plans() {
    let program = Program::open(Path::new("/proc/self/exe"));
    let options = PlanOptions::default();
    let survey = Survey::new(&program.path, &program.bytes, 0).expect("a survey");
    let every = program.probes(Wanted::Every);
    let some: Vec<u64> = every
        .sites
        .iter()
        .step_by(101)
        .map(|s| s.displaced.start)
        .collect();
    // In an order in which each could affect the next.
    let plans = [survey.plan(&options), survey.plan(&options)];
    let of_some = survey.plan_probes(Wanted::At(&some), &options);
    let of_every = survey.plan_probes(Wanted::Every, &options);
    let alone = plan(&program.path, &program.bytes, &options).expect("a plan");
    for plan in plans {
        assert!(format!("{plan:?}") == format!("{alone:?}"));
    }
    assert!(format!("{of_some:?}") == format!("{:?}", program.probes(Wanted::At(&some))));
    assert!(format!("{of_every:?}") == format!("{every:?}"));
}
