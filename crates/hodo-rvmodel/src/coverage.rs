//! Probes on every instruction that a run has executed: which ways can probe it, and what a hit costs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use hodo_isa::Via;
use hodo_isa::riscv64::decode::Insn;
use hodo_plan::model::{Extra, PlanOptions, ProbeSite, Tactic, Wanted};
use hodo_plan::plan_probes_with;
use object::{Object as _, ObjectSegment as _, SegmentFlags};

use crate::front::Counts;
use crate::probes::region::{Execution, Region, execution};
use crate::probes::run::{self, Useless};
use crate::probes::{Mechanism, Refused, Setup, Way};

/// What is known of the executed instructions of a file.
#[derive(Debug, Clone, Default)]
pub struct Coverage {
    /// Executed instructions.
    pub executed: usize,
    /// In how many regions they are.
    pub regions: usize,
    /// How many there are by the way in which the planner probes them.
    pub tactics: BTreeMap<&'static str, usize>,
    /// How many need these to be probed by today's detours.
    pub needs: BTreeMap<&'static str, usize>,
    /// And by the reason why it does not probe them.
    pub reasons: BTreeMap<String, usize>,
    /// For each mechanism, how many it can probe.
    pub covered: [usize; MECHANISMS],
    /// How many can be probed in shadow mode without `c.jall`, by one of the jumps or another, and with it.
    pub shadow: [usize; 2],
    /// Why it cannot probe others.
    pub refused: [BTreeMap<Refused, usize>; MECHANISMS],
    /// How many a kernel simulates.
    pub simulated: usize,
    /// What hits cost, of instructions that all mechanisms can probe.
    pub costs: [Cost; MECHANISMS],
    /// Hits that were run and compared, of any mechanism.
    pub compared: usize,
    /// Instructions that were not run: the model does not have an instruction of their region, or the region sets the
    /// thread pointer or calls the kernel.
    pub foreign: usize,
    /// Or no registers were found on which their region reaches them and ends.
    pub unreached: usize,
    /// What was changed by a probe.
    pub wrong: Vec<String>,
}

/// How many mechanisms there are.
pub const MECHANISMS: usize = Mechanism::ALL.len();

/// The sum of what hits cost.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cost {
    /// Probed instructions.
    pub sites: u64,
    /// Bytes that change at the site.
    pub patched: u64,
    /// Bytes of code elsewhere.
    pub elsewhere: u64,
    /// Hits, once everything is predicted that can be.
    pub hits: u64,
    /// What these executed in addition to what they execute without the probe.
    pub warm: [i64; 5],
    /// Hits when nothing is predicted, and their additional mispredictions.
    pub cold: (u64, i64),
}

/// What is summed: instructions, bytes, fetches, mispredictions, traps.
fn counted(counts: Counts) -> [i64; 5] {
    let Counts {
        instructions,
        bytes,
        fetches,
        mispredictions,
        traps,
        ..
    } = counts;
    [instructions, bytes, fetches, mispredictions, traps].map(|count| count as i64)
}

impl Cost {
    /// Adds the passes of a probe.
    pub fn add(&mut self, setup: &Setup, plain: &run::Passes, probed: &run::Passes) {
        self.sites += 1;
        self.patched += setup.patched as u64;
        self.elsewhere += setup.elsewhere as u64;
        self.hits += probed.hits;
        let (more, less) = (counted(probed.warm), counted(plain.warm));
        for ((sum, more), less) in self.warm.iter_mut().zip(more).zip(less) {
            *sum += more - less;
        }
        let cold = counted(probed.cold)[3] - counted(plain.cold)[3];
        self.cold = (self.cold.0 + probed.hits, self.cold.1 + cold);
    }
}

/// The addresses of instructions that qemu translated to execute them (`-d in_asm`), less the address at which the file
/// was mapped; those of other files are left out.
#[must_use]
pub fn executed(log: &str, base: u64, size: u64) -> BTreeSet<u64> {
    let address = |line: &str| {
        let digits = line.strip_prefix("0x")?.split(':').next()?;
        let at = u64::from_str_radix(digits, 16).ok()?.checked_sub(base)?;
        (at < size).then_some(at)
    };
    log.lines().filter_map(address).collect()
}

/// The executable segment of a file: its address and bytes.
fn text(file: &[u8]) -> Result<(u64, Vec<u8>)> {
    let elf = object::File::parse(file).context("not a readable ELF file")?;
    for segment in elf.segments() {
        if let SegmentFlags::Elf { p_flags } = segment.flags()
            && p_flags & object::elf::PF_X != 0
        {
            return Ok((segment.address(), segment.data()?.to_vec()));
        }
    }
    anyhow::bail!("it has no executable segment")
}

/// What the plan says of a tactic.
const fn tactic(tactic: Tactic) -> &'static str {
    match tactic {
        Tactic::Trap => "breakpoint",
        Tactic::Hop => "hop",
        _ => "jump",
    }
}

/// What today's detours need at a site besides room and a free register.
fn needs(site: &ProbeSite) -> impl Iterator<Item = &'static str> {
    let stack = matches!(site.via, Via::Kept(_)) || matches!(site.spare.back, Via::Kept(_));
    let all = [
        (
            site.extra != Extra::None,
            "a slot within reach of a short jump",
        ),
        (
            site.extra == Extra::Near,
            "memory for that slot within 1 MiB",
        ),
        (stack, "a register on the stack"),
        (!site.spare.pads.is_empty(), "pads, which restore it"),
        (
            site.spare.pads.iter().any(|pad| pad.at.is_none()),
            "memory for pads within 1 MiB",
        ),
    ];
    all.into_iter()
        .filter_map(|(needed, what)| needed.then_some(what))
}

/// Looks at every executed instruction of a file.
///
/// # Errors
/// If the file is not readable, or the log has nothing of it.
pub fn cover(path: &Path, log: &str, base: u64) -> Result<Coverage> {
    let bytes =
        std::fs::read(path).with_context(|| format!("{} cannot be read", path.display()))?;
    let (first, text) = text(&bytes).with_context(|| path.display().to_string())?;
    let end = first + text.len() as u64;
    let executed = executed(log, base, end);
    ensure!(
        !executed.is_empty(),
        "the log has no instruction of {} at {base:#x}: give the address of its first mapping",
        path.display()
    );
    let code = |from: u64, to: u64| &text[(from - first) as usize..(to.min(end) - first) as usize];
    let options = PlanOptions {
        threads: 1,
        ..PlanOptions::default()
    };
    let plan = plan_probes_with(path, &bytes, Wanted::Every, &options)?;
    let mut found = Coverage {
        executed: executed.len(),
        ..Coverage::default()
    };
    let mut seen = BTreeSet::new();
    for site in &plan.sites {
        let range = site.displaced.clone();
        let mut probed = executed.range(range.clone()).peekable();
        if probed.peek().is_none() {
            continue;
        }
        found.regions += 1;
        let region = Region::new(site, code(range.start, range.end));
        for &at in probed {
            if site.probes.iter().all(|probe| probe.addr != at) {
                continue;
            }
            seen.insert(at);
            *found.tactics.entry(tactic(site.tactic)).or_default() += 1;
            for need in needs(site) {
                *found.needs.entry(need).or_default() += 1;
            }
            found.probe(&region, at);
        }
    }
    let rest: Vec<u64> = executed.difference(&seen).copied().collect();
    let plan = plan_probes_with(path, &bytes, Wanted::At(&rest), &options)?;
    for refused in &plan.refused {
        *found.reasons.entry(refused.reason.clone()).or_default() += 1;
    }
    for &at in &rest {
        found.alone(&Insn::new(code(at, at + 4), at));
    }
    Ok(found)
}

impl Coverage {
    /// An instruction that the planner refuses: only a kernel may probe it.
    fn alone(&mut self, insn: &Insn) {
        match execution(insn) {
            Ok(how) => {
                self.simulated += usize::from(how == Execution::Simulated);
                self.covered[0] += 1;
            }
            Err(why) => *self.refused[0].entry(why).or_default() += 1,
        }
        for refused in &mut self.refused[1..] {
            *refused.entry(Refused::Planner).or_default() += 1;
        }
    }

    /// Probes an instruction in all ways.
    fn probe(&mut self, region: &Region<'_>, at: u64) {
        let setups = Mechanism::ALL.map(|mechanism| run::build(region, at, mechanism));
        for (index, setup) in setups.iter().enumerate() {
            match setup {
                Ok(_) => self.covered[index] += 1,
                Err(why) => *self.refused[index].entry(*why).or_default() += 1,
            }
        }
        let possible = |way: Way| {
            let all = Mechanism::ALL.into_iter().zip(&setups);
            all.into_iter()
                .any(|(mechanism, setup)| mechanism == Mechanism::Shadow(way) && setup.is_ok())
        };
        let without = [Way::Pair, Way::Kept, Way::Planned]
            .into_iter()
            .any(possible);
        self.shadow[0] += usize::from(without);
        self.shadow[1] += usize::from(without || possible(Way::Jall));
        let insn = region.index(at).map(|index| &region.insns[index]);
        let how = insn.map(execution);
        self.simulated += usize::from(how == Some(Ok(Execution::Simulated)));
        let (seed, plain) = match run::reaching(region, at) {
            Ok(found) => found,
            Err(Useless::Foreign) => return self.foreign += 1,
            Err(Useless::Path) => return self.unreached += 1,
        };
        let all = setups.iter().all(Result::is_ok);
        for (index, setup) in setups.iter().enumerate() {
            let Ok(setup) = setup else { continue };
            let name = Mechanism::ALL[index].name();
            match run::passes(region, at, Some(setup), seed) {
                Ok(probed) => {
                    self.compared += 1;
                    let changes = run::changes(&plain, &probed, setup);
                    self.wrong.extend(
                        changes
                            .into_iter()
                            .map(|change| format!("{at:#x}, {name}: {change}")),
                    );
                    if all {
                        self.costs[index].add(setup, &plain, &probed);
                    }
                }
                Err(why) => self.wrong.push(format!("{at:#x}, {name}: {why:?}")),
            }
        }
    }
}
