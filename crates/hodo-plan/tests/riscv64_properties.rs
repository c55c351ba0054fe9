//! What must hold for every plan of a RISC-V file, checked on libraries and programs with an independent reading of
//! their code: each function by itself, from its start, without the planner's knowledge.

mod riscv;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::path::PathBuf;

use hodo_isa::riscv64::decode::Insn;
use hodo_isa::riscv64::isa::options;
use hodo_isa::riscv64::relocate::relocate_apart;
use hodo_isa::riscv64::scan::{Flow, Sweep};
use hodo_isa::riscv64::steps::{FIXED, steps};
use hodo_isa::riscv64::{Kind, Part, Riscv64};
use hodo_isa::{InstructionSet, Via};
use hodo_plan::model::{Extra, Pad, Plan, ProbePlan, Spare, Tactic, Wanted};
use hodo_plan::{PlanOptions, plan, plan_probes, plan_probes_with};
use object::{Object, ObjectSection, SectionKind};

fn programs() -> Vec<PathBuf> {
    let mut files = riscv::libraries();
    files.extend(riscv::compile("own", "functions.c", &["-static"]));
    files.extend(riscv::compile(
        "own-profiled",
        "functions.c",
        &["-pg", "-no-pie"],
    ));
    files
}

struct Code {
    /// Executable sections: address and content.
    text: BTreeMap<u64, Vec<u8>>,
}

impl Code {
    fn new(bytes: &[u8]) -> Self {
        let file = object::File::parse(bytes).expect("an ELF file");
        let text = file
            .sections()
            .filter(|s| s.kind() == SectionKind::Text)
            .map(|s| (s.address(), s.data().expect("a section's content").to_vec()))
            .collect();
        Self { text }
    }

    /// Without the calls that are dropped in any case.
    fn without_calls(mut self, plan: &Plan) -> Self {
        for (addr, nop) in &plan.nops {
            let (start, text) = self.text.range_mut(..=addr).next_back().expect("code");
            let at = (addr - start) as usize;
            text[at..at + nop.len()].copy_from_slice(nop);
        }
        self
    }

    fn from(&self, addr: u64) -> &[u8] {
        let (start, text) = self.text.range(..=addr).next_back().expect("code");
        text.get((addr - start) as usize..).unwrap_or_default()
    }

    fn at(&self, range: Range<u64>) -> &[u8] {
        &self.from(range.start)[..(range.end - range.start) as usize]
    }

    /// Places that direct branches, jumps and calls lead to, and from where; `starts` are the starts of functions.
    fn targets(&self, starts: &[u64]) -> Vec<(u64, u64)> {
        let mut targets = Vec::new();
        for (&start, text) in &self.text {
            let end = start + text.len() as u64;
            let mut cuts: Vec<u64> = starts
                .iter()
                .copied()
                .filter(|at| (start..end).contains(at))
                .collect();
            cuts.push(end);
            cuts.sort_unstable();
            for pair in cuts.windows(2) {
                for scanned in Sweep::new(self.at(pair[0]..pair[1]), pair[0]) {
                    match scanned.flow {
                        Flow::Branch(to) | Flow::Jump(to) => targets.push((to, scanned.insn.addr)),
                        Flow::Call(to) => targets.push((to, 0)),
                        _ => {}
                    }
                }
            }
        }
        targets.sort_unstable();
        targets
    }
}

/// What a site changes: bytes of the code, and the instructions that it displaces.
struct Site {
    patch: u64,
    len: u64,
    displaced: Range<u64>,
    /// Where another jump of the site is.
    slot: Option<Range<u64>>,
    tactic: Tactic,
    via: Via,
    spare: Spare,
}

impl Site {
    fn pad(&self, from: u64) -> Option<&Pad> {
        self.spare.pads.iter().find(|pad| pad.from == from)
    }

    /// Returns whether control continues after it at a place elsewhere.
    fn ends_in_pad(&self) -> bool {
        self.pad(self.displaced.end).is_some()
    }

    /// The bytes that are changed.
    fn changed(&self) -> Vec<Range<u64>> {
        let patch = self.patch..self.patch + self.len;
        let mut changed: Vec<_> = std::iter::once(patch).chain(self.slot.clone()).collect();
        let pads = self.spare.pads.iter().filter_map(|pad| pad.at);
        changed.extend(pads.map(|at| at..at + Via::PAD));
        if let Via::Kept(_) = self.spare.back
            && !self.ends_in_pad()
        {
            changed.push(self.displaced.end - Via::TAKE..self.displaced.end);
        }
        changed
    }
}

fn slot(extra: &Extra, via: Via) -> Option<Range<u64>> {
    match extra {
        Extra::HopSlot(slot) | Extra::HopDonor { slot, .. } => {
            Some(*slot..slot + Riscv64.jump(via).len)
        }
        Extra::None | Extra::Near => None,
        Extra::Pun { .. } => panic!("no long jump of RISC-V can share its bytes"),
    }
}

fn function_sites(plan: &Plan) -> Vec<Site> {
    let outcomes = plan
        .functions
        .iter()
        .filter_map(|f| f.outcome.as_ref().ok());
    let site = |site: &hodo_plan::model::SitePlan| Site {
        patch: site.patch,
        len: site.patch_len.into(),
        displaced: site.displaced.clone(),
        slot: slot(&site.extra, site.via),
        tactic: site.tactic,
        via: site.via,
        spare: site.spare.clone(),
    };
    outcomes.map(site).collect()
}

fn probe_sites(plan: &ProbePlan) -> Vec<Site> {
    let site = |site: &hodo_plan::model::ProbeSite| Site {
        patch: site.patch,
        len: site.patch_len.into(),
        displaced: site.displaced.clone(),
        slot: slot(&site.extra, site.via),
        tactic: site.tactic,
        via: site.via,
        spare: site.spare.clone(),
    };
    plan.sites.iter().map(site).collect()
}

/// What holds for all sites.
fn check(code: &Code, sites: &[Site], starts: &[u64]) {
    // Changed bytes do not overlap.
    let mut changed: Vec<(u64, u64)> = sites
        .iter()
        .flat_map(Site::changed)
        .map(|range| (range.start, range.end))
        .collect();
    changed.sort_unstable();
    for pair in changed.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "{pair:x?}");
    }
    // Nothing leads into them except to their first byte, or from instructions that are displaced with them and run
    // elsewhere. Long jumps in slots are reached only by hops, so no instruction of the program may lead there at all.
    let displaced: BTreeMap<u64, u64> = sites
        .iter()
        .map(|site| (site.displaced.start, site.displaced.end))
        .collect();
    let moved = |from: u64| {
        let before = displaced.range(..=from).next_back();
        before
            .filter(|(_, end)| from < **end)
            .map(|(start, _)| *start)
    };
    let patches: HashSet<u64> = sites.iter().map(|site| site.patch).collect();
    let targets = code.targets(starts);
    // Nothing may lead to a place between a patch and the code that restores a register after it, because it would run
    // into that code.
    for site in sites {
        if let Via::Kept(_) = site.spare.back
            && !site.ends_in_pad()
        {
            let (start, end) = (site.patch + site.len, site.displaced.end - Via::TAKE);
            let first = targets.partition_point(|&(to, _)| to < start);
            for &(to, from) in targets[first..].iter().take_while(|&&(to, _)| to < end) {
                let own = moved(from) == Some(site.displaced.start);
                assert!(own, "{from:#x} leads to {to:#x}, before {end:#x}");
            }
        }
    }
    for (to, from) in targets {
        let at = changed.partition_point(|&(start, _)| start <= to);
        let Some(&(start, end)) = at.checked_sub(1).and_then(|at| changed.get(at)) else {
            continue;
        };
        if to >= end || to == start && patches.contains(&start) {
            continue;
        }
        // A jump that runs elsewhere leads to the copy of its target.
        let own = moved(from).is_some() && moved(from) == moved(to);
        assert!(own, "{from:#x} leads to {to:#x}, in {start:#x}..{end:#x}");
    }
    for site in sites {
        check_site(code, site);
    }
}

/// What holds for each site by itself.
fn check_site(code: &Code, site: &Site) {
    let what = format!("{:#x}", site.patch);
    // Whole instructions are displaced.
    let instructions: Vec<Insn> = Sweep::new(code.at(site.displaced.clone()), site.displaced.start)
        .map(|scanned| scanned.insn)
        .collect();
    assert_eq!(
        instructions.last().map(Insn::end),
        Some(site.displaced.end),
        "{what}"
    );
    check_jump(site, &what);
    check_copy(code, site, &instructions, &what);
    if let Via::Kept(_) = site.spare.back
        && !site.ends_in_pad()
    {
        let take = site.displaced.end - Via::TAKE;
        assert!(
            site.patch + site.len <= take,
            "{what}: no room to take the register back"
        );
    }
    if let Via::Free(register) = site.via {
        assert_unread(code, site.patch, 1 << register);
    }
    if let Via::Free(register) = site.spare.back {
        assert_unread(code, site.displaced.end, 1 << register);
    }
    for &(addr, registers) in &site.spare.dead {
        assert_unread(code, addr, registers);
    }
}

/// The jump has one of the known forms, and reaches its target.
fn check_jump(site: &Site, what: &str) {
    let jump = Riscv64.jump(site.via).len;
    let (len, slot) = (site.len, site.slot.as_ref());
    match (site.tactic, slot) {
        (Tactic::Trap, _) => assert_eq!(len, 2, "{what}"),
        (_, None) => assert!(len == jump || len == 4, "{what}: {len}"),
        (_, Some(slot)) => {
            let distance = slot.start.wrapping_sub(site.patch).cast_signed();
            let reach = match len {
                2 => 1 << 11,
                4 => 1 << 20,
                _ => panic!("{what}: {len}"),
            };
            assert!((-reach..reach).contains(&distance), "{what}: {distance:#x}");
            assert_eq!(slot.end - slot.start, jump);
            assert_eq!((slot.start | site.patch) % 2, 0);
        }
    }
}

/// The instructions can be moved with the registers that the site names, and continue where it says.
fn check_copy(code: &Code, site: &Site, instructions: &[Insn], what: &str) {
    let dead: HashMap<u64, u32> = site.spare.dead.iter().copied().collect();
    let dead = |addr: u64| dead.get(&addr).copied().unwrap_or_default();
    let pads = |addr: u64| site.pad(addr).map(|pad| pad.at.unwrap_or(pad.to));
    for pad in &site.spare.pads {
        let distance = pad.at.unwrap_or(pad.to).abs_diff(pad.to);
        assert!(distance + Via::PAD <= 1 << 20, "{what}: {distance:#x}");
        let leaves = instructions.iter().find(|insn| insn.addr == pad.from);
        let to = leaves.map_or(site.displaced.end, |insn| match insn.flow() {
            Flow::Branch(to) | Flow::Jump(to) | Flow::Call(to) => to,
            // The instruction before it determines the target.
            Flow::IndirectCall => pad.to,
            flow => panic!("{what}: {flow:?}"),
        });
        assert_eq!(pad.to, to, "{what}");
    }
    let far = site.displaced.start.wrapping_add(1 << 30);
    let bytes = code.at(site.displaced.clone());
    let last = instructions.last().expect("one");
    let call = last.link().is_some();
    // The registers that a jump to it overwrites: at least its link register, unless it returns through that register.
    let way = last.link().map(|link| dead(last.addr) | 1 << link);
    let way = way.unwrap_or_default() & !last.reads().x & !FIXED;
    // A branch to it would skip its probes.
    let led = instructions
        .iter()
        .any(|insn| matches!(insn.flow(), Flow::Branch(to) | Flow::Jump(to) if to == last.addr));
    let (bytes, left) = match way != 0 && !led && last.addr >= site.patch + site.len {
        // It stays in its place.
        true => (&bytes[..(last.addr - site.displaced.start) as usize], true),
        false => (bytes, false),
    };
    let copy = relocate_apart(
        bytes,
        site.displaced.start,
        far,
        &options(&dead, &pads),
        &[],
    );
    let copy = copy.unwrap_or_else(|error| panic!("{what}: {error}"));
    let goes_on = copy.falls_through && !left && !call;
    assert_eq!(goes_on, site.spare.back != Via::Nothing, "{what}");
}

/// On any path from `addr` that needs no knowledge of other functions, no instruction reads one of these registers
/// before it is overwritten.
fn assert_unread(code: &Code, addr: u64, registers: u32) {
    const MOST: usize = 40;
    assert_eq!(registers & FIXED, 0, "{addr:#x}");
    let mut open = vec![(addr, registers)];
    let mut seen = HashSet::new();
    while let Some((at, mut rest)) = open.pop() {
        for scanned in Sweep::new(code.from(at), at).take(MOST) {
            let insn = scanned.insn;
            if rest == 0 || seen.len() > 400 || !seen.insert((insn.addr, rest)) {
                break;
            }
            let (reads, writes) = insn.general();
            assert_eq!(
                reads & rest,
                0,
                "{:#x} reads what is free at {addr:#x}",
                insn.addr
            );
            rest &= !writes;
            match scanned.flow {
                Flow::Next if !matches!(insn.kind, Kind::Ecall | Kind::Ebreak) => {}
                Flow::Branch(to) => open.push((to, rest)),
                _ => break,
            }
        }
    }
}

#[test]
fn sites_of_functions_can_be_changed() {
    let (mut all, mut traced, mut traps) = (0, 0, 0);
    for path in programs() {
        let bytes = std::fs::read(&path).expect("a file");
        let plan = plan(&path, &bytes, &PlanOptions::default()).expect("a plan");
        let sites = function_sites(&plan);
        let starts: Vec<u64> = plan.functions.iter().map(|f| f.addr).collect();
        let code = Code::new(&bytes).without_calls(&plan);
        check(&code, &sites, &starts);
        // A host has the slot after its patch.
        for function in &plan.functions {
            if let Ok(site) = &function.outcome
                && let Extra::HopDonor { slot, host } = site.extra
            {
                let host = plan.functions.iter().find(|f| f.addr == host);
                let host = host
                    .and_then(|f| f.outcome.as_ref().ok())
                    .expect("a host's site");
                let room = host.patch + u64::from(host.patch_len)..host.displaced.end;
                assert!(room.start <= slot && slot + Riscv64.jump(site.via).len <= room.end);
            }
            if let Ok(site) = &function.outcome {
                assert_unread(&code, site.patch, site.free);
            }
        }
        all += plan.functions.len();
        traced += sites.len();
        traps += sites
            .iter()
            .filter(|site| site.tactic == Tactic::Trap)
            .count();
    }
    // One of these libraries has neither symbols nor unwind tables for part of its code, so less is known of it.
    println!("{traced} of {all} functions, {traps} by breakpoints");
    assert!(traced * 1000 >= all * 985, "{traced} of {all}");
    assert!(traps * 1000 <= all * 10, "{traps} of {all}");
}

#[test]
fn regions_of_probes_can_be_moved() {
    let mut all = (0, 0);
    for path in programs() {
        let bytes = std::fs::read(&path).expect("a file");
        let plan = plan_probes(&path, &bytes, Wanted::Every, 0).expect("a plan");
        let code = Code::new(&bytes);
        let mut starts: Vec<u64> = plan.sites.iter().map(|site| site.patch).collect();
        starts.extend(plan.refused.iter().map(|refused| refused.addr));
        starts.sort_unstable();
        check(&code, &probe_sites(&plan), &starts);
        let mut probed = 0;
        for site in &plan.sites {
            for probe in &site.probes {
                assert!(site.displaced.contains(&probe.addr));
                if probe.addr % 7 == 0 {
                    assert_unread(&code, probe.addr, probe.free);
                }
            }
            // We add nothing between lr and sc, which are moved together.
            for step in steps(code.at(site.displaced.clone()), site.displaced.start) {
                let between = matches!(step.part, Part::Between | Part::Last);
                let probed = |addr| site.probes.iter().any(|probe| probe.addr == addr);
                assert!(!between || !probed(step.addr), "{step:x?}");
            }
            probed += site.probes.len();
        }
        assert_eq!(probed + plan.refused.len(), plan.total);
        all.0 += plan.total;
        all.1 += probed;
    }
    println!("{} of {} instructions", all.1, all.0);
    assert!(all.1 * 1000 >= all.0 * 985, "{all:?}");
}

#[test]
fn regions_can_be_moved_where_no_register_is_free() {
    let flags = ["-Os", "-mno-relax", "-fstack-protector-all"];
    let Some(path) = riscv::compile("full", "functions.c", &flags) else {
        return;
    };
    let bytes = std::fs::read(&path).expect("a program");
    let options = PlanOptions {
        // `t0`–`t6`, `a0`–`a7`
        keep: 0xF003_FCE0,
        ..PlanOptions::default()
    };
    let plan = plan_probes_with(&path, &bytes, Wanted::Every, &options).expect("a plan");
    let code = Code::new(&bytes);
    let mut starts: Vec<u64> = plan.sites.iter().map(|site| site.patch).collect();
    starts.extend(plan.refused.iter().map(|refused| refused.addr));
    starts.sort_unstable();
    let sites = probe_sites(&plan);
    check(&code, &sites, &starts);
    // Calls whose targets were computed before the region.
    let calls = sites.iter().flat_map(|site| &site.spare.pads);
    let calls = calls.filter(|pad| {
        let insn = Insn::new(code.from(pad.from), pad.from);
        insn.flow() == Flow::IndirectCall
    });
    assert_ne!(calls.count(), 0);
}

#[test]
fn some_probes_are_planned_as_all_are() {
    let Some(path) = riscv::compile("some", "functions.c", &[]) else {
        return;
    };
    let bytes = std::fs::read(&path).expect("a program");
    let all = plan_probes(&path, &bytes, Wanted::Every, 1).expect("a plan");
    let refused: HashSet<u64> = all.refused.iter().map(|refused| refused.addr).collect();
    let code = Code::new(&bytes);
    let every = all.sites.iter().flat_map(|site| &site.probes);
    let every = every.map(|probe| &probe.addr);
    for &addr in every.clone().chain(&refused) {
        let one = plan_probes(&path, &bytes, Wanted::At(&[addr]), 1).expect("a plan");
        assert_eq!(
            one.refused.is_empty(),
            !refused.contains(&addr),
            "{addr:#x}"
        );
        let starts: Vec<u64> = every.clone().copied().collect();
        check(&code, &probe_sites(&one), &starts);
    }
}

#[test]
fn probes_without_a_register_are_alone_what_they_are_among_all() {
    let Some(path) = riscv::libraries().into_iter().next() else {
        return;
    };
    let bytes = std::fs::read(&path).expect("a library");
    let all = plan_probes(&path, &bytes, Wanted::Every, 0).expect("a plan");
    let code = Code::new(&bytes);
    let needy: Vec<_> = all
        .sites
        .iter()
        .filter(|site| !site.spare.pads.is_empty())
        .collect();
    assert!(!needy.is_empty());
    let starts: Vec<u64> = all.sites.iter().map(|site| site.patch).collect();
    let (mut found, mut wanted) = (0, 0);
    for site in needy.into_iter().take(12) {
        let one =
            plan_probes(&path, &bytes, Wanted::At(&[site.probes[0].addr]), 0).expect("a plan");
        assert!(one.refused.is_empty());
        check(&code, &probe_sites(&one), &starts);
        let pads = one.sites.iter().flat_map(|site| &site.spare.pads);
        let own = pads.clone().filter(|pad| pad.at.is_some());
        (found, wanted) = (found + own.count(), wanted + pads.count());
    }
    println!("{found} of {wanted} have a place in the file");
    assert!(found * 10 >= wanted * 8, "{found} of {wanted}");
}
