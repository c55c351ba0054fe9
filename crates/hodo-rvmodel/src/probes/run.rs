//! Runs a region with and without a probe on any registers, compares what is left, and counts.

use std::ops::Range;

use hodo_isa::riscv64::decode::Insn;
use hodo_isa::riscv64::regs::{SP, TP};

use super::kernel::{self, FRAME, HANDLER};
use super::region::Region;
use super::{BLOCK, COUNTER, Mechanism, Refused, Setup, copied, shadow, today};
use crate::encode::MRET;
use crate::front::Counts;
use crate::hart::{Hart, Step};
use crate::memory::{Memory, Unmapped, mix};
use crate::params::Proposals;

const THREAD: u64 = 0x5100_0000;
const STACK: u64 = 0x5_0000_0000;
/// Instructions after which a run is given up: a loop on random registers may last. With a probe, it may take more.
const LIMIT: u64 = 1000;
const PROBED: u64 = 500 * LIMIT;
/// Bytes of the stack that a probe may use.
const STACK_USED: u64 = 0x100;
/// Passes until everything is predicted that can be.
const WARM: usize = 8;

/// The result of passes through a region.
#[derive(Debug, Clone)]
pub struct Passes {
    /// Hits in a pass.
    pub hits: u64,
    /// What the first pass counts.
    pub cold: Counts,
    /// What the last one counts.
    pub warm: Counts,
    /// Where the first pass ended, with its registers and memory.
    end: Hart,
    /// The stack below the program's at each start of the probe's code.
    below: Vec<Range<u64>>,
}

/// Why a run says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Useless {
    /// It has an instruction that the model does not have, or it sets the thread pointer, by which a hit finds its
    /// counter.
    Foreign,
    /// It does not end, or does not reach the probe, on the registers that were tried.
    Path,
}

/// Builds a probe.
///
/// # Errors
/// If it is not possible in this way.
pub fn build(region: &Region<'_>, at: u64, mechanism: Mechanism) -> Result<Setup, Refused> {
    match mechanism {
        Mechanism::SingleStep => kernel::build(region, at, false),
        Mechanism::Boosted => kernel::build(region, at, true),
        Mechanism::Copied => copied::build(region, at),
        Mechanism::Detour => today::build(region, at),
        Mechanism::Shadow(way) => shadow::build(region, at, way),
    }
}

fn prepare(region: &Region<'_>, setup: Option<&Setup>, seed: u64, proposals: Proposals) -> Hart {
    let mut memory = Memory::new(Unmapped::Random(seed));
    memory.put(region.start(), region.code);
    memory.put(THREAD - 8, &BLOCK.to_le_bytes());
    let counter = BLOCK.wrapping_add_signed(COUNTER.into());
    memory.put(counter, &[0; 8]);
    for page in [FRAME, FRAME + 0x10_0000, FRAME + 0x20_0000] {
        memory.put(page, &[0; 256]);
    }
    for (at, bytes) in setup.map_or(&[][..], |setup| &setup.writes) {
        memory.put(*at, bytes);
    }
    let mut hart = Hart::new(memory, proposals);
    if setup.is_some_and(|setup| setup.handler) {
        hart.csrs.mtvec = HANDLER;
        hart.csrs.mscratch = FRAME;
    }
    hart
}

fn registers(hart: &mut Hart, seed: u64) {
    for (number, x) in (0..).zip(&mut hart.x).skip(1) {
        // Multiples of 8, or small numbers, which make loops end.
        let value = mix(seed ^ number << 32);
        *x = match value % 3 {
            0 => value >> 58,
            _ => value >> 1 & !7,
        };
    }
    hart.x[usize::from(SP)] = STACK;
    hart.x[usize::from(TP)] = THREAD;
}

/// Goes through a region several times.
///
/// # Errors
/// If nothing can be learned from that.
pub fn passes(
    region: &Region<'_>,
    at: u64,
    setup: Option<&Setup>,
    seed: u64,
) -> Result<Passes, Useless> {
    let mut hart = prepare(region, setup, seed, Proposals::default());
    let counter = BLOCK.wrapping_add_signed(COUNTER.into());
    let inside = |pc: u64| {
        let ours = |setup: &Setup| setup.contains(pc) || setup.handler && pc & !0xFFFF == HANDLER;
        region.site.displaced.contains(&pc) || setup.is_some_and(ours)
    };
    let limit = if setup.is_some() { PROBED } else { LIMIT };
    let mut found: Option<Passes> = None;
    for _ in 0..WARM {
        registers(&mut hart, seed);
        hart.pc = region.start();
        let before = hart.front.counts;
        let mut hits = 0;
        let mut below = Vec::new();
        while inside(hart.pc) {
            if (hart.front.counts - before).instructions > limit {
                return Err(Useless::Path);
            }
            hits += u64::from(hart.pc == at);
            if setup.is_some_and(|setup| setup.writes.iter().any(|write| write.0 == hart.pc)) {
                let sp = hart.x[usize::from(SP)];
                below.push(sp.wrapping_sub(STACK_USED)..sp);
            }
            if let Step::Trapped(_) = hart.step()
                && hart.csrs.mtvec == 0
            {
                return Err(Useless::Foreign);
            }
        }
        let counts = hart.front.counts - before;
        if setup.is_some() {
            hits = hart.memory.load(counter, 8).unwrap_or_default();
            let _ = hart.memory.store(counter, 8, 0);
        }
        let first = found.take();
        found = Some(Passes {
            hits,
            cold: first.as_ref().map_or(counts, |first| first.cold),
            warm: counts,
            below: first.as_ref().map_or(below, |first| first.below.clone()),
            end: first.map_or_else(|| hart.clone(), |first| first.end),
        });
    }
    found.filter(|passes| passes.hits > 0).ok_or(Useless::Path)
}

/// Goes through a region with a probe once, and takes an interrupt before the instruction with this number, whose
/// handler returns at once. `None` if the region ends before.
///
/// # Errors
/// If it does not end, or an instruction fails: the interrupt has broken it.
pub fn interrupted(
    region: &Region<'_>,
    setup: &Setup,
    seed: u64,
    (proposals, number): (Proposals, u64),
) -> Result<Option<Passes>, Useless> {
    let mut hart = prepare(region, Some(setup), seed, proposals);
    hart.memory.put(HANDLER, &MRET.to_le_bytes());
    hart.csrs.mtvec = HANDLER;
    hart.csrs.mstatus = 1 << 3;
    registers(&mut hart, seed);
    hart.pc = region.start();
    let mut pending = true;
    while region.site.displaced.contains(&hart.pc) || setup.contains(hart.pc) || hart.pc == HANDLER
    {
        let counts = hart.front.counts;
        if counts.instructions > LIMIT {
            return Err(Useless::Path);
        }
        if pending && counts.instructions >= number {
            pending = !hart.interrupt();
        }
        if let Step::Trapped(_) = hart.step() {
            return Err(Useless::Foreign);
        }
    }
    if pending {
        return Ok(None);
    }
    let counter = BLOCK.wrapping_add_signed(COUNTER.into());
    Ok(Some(Passes {
        hits: hart.memory.load(counter, 8).unwrap_or_default(),
        cold: hart.front.counts,
        warm: hart.front.counts,
        end: hart,
        below: Vec::new(),
    }))
}

/// What differs after a probe from what is left without it: empty if it changed nothing. Registers whose values nobody
/// needs do not count, nor does memory that the probe may use.
#[must_use]
pub fn changes(plain: &Passes, probed: &Passes, setup: &Setup) -> Vec<String> {
    let (left, right) = (&plain.end, &probed.end);
    let mut wrong = Vec::new();
    if left.pc != right.pc {
        wrong.push(format!(
            "it ends at {:#x} instead of {:#x}",
            right.pc, left.pc
        ));
    }
    if right.spc.is_some() {
        wrong.push("the mode is still on".to_owned());
    }
    if plain.hits != probed.hits {
        wrong.push(format!("{} hits instead of {}", probed.hits, plain.hits));
    }
    for number in (1..32).filter(|number| setup.clobbers >> number & 1 == 0) {
        if left.x[number] != right.x[number] {
            wrong.push(format!(
                "x{number} is {:#x} instead of {:#x}",
                right.x[number], left.x[number]
            ));
        }
    }
    let handler = HANDLER..HANDLER + 0x1000;
    let mut except = vec![handler, BLOCK..BLOCK + 0x1000, FRAME..FRAME + 0x30_0000];
    except.extend(
        setup
            .writes
            .iter()
            .map(|(at, bytes)| *at..at + bytes.len() as u64),
    );
    let sp = left.x[usize::from(SP)];
    except.push(sp.wrapping_sub(STACK_USED)..sp);
    let memory = left.memory.differences(&right.memory, &except);
    // What was below the stack pointer may be in a frame later, which has not been written yet.
    let mut fresh = Memory::new(left.memory.unmapped());
    let mut left = left.memory.clone();
    let mut unwritten = |at: u64| left.load(at, 1) == fresh.load(at, 1);
    let below = |at: u64| probed.below.iter().any(|below| below.contains(&at));
    if let Some(at) = memory.into_iter().find(|&at| !(below(at) && unwritten(at))) {
        wrong.push(format!("memory at {at:#x} differs"));
    }
    wrong
}

/// Finds registers on which a region reaches an instruction and ends. Returns their number, and the passes.
///
/// # Errors
/// If there are none among those that are tried.
pub fn reaching(region: &Region<'_>, at: u64) -> Result<(u64, Passes), Useless> {
    let sets_thread = |insn: &Insn| insn.writes().x >> TP & 1 == 1;
    if region.insns.iter().any(sets_thread) {
        return Err(Useless::Foreign);
    }
    let mut why = Useless::Path;
    for seed in 1..12 {
        match passes(region, at, None, seed) {
            Ok(passes) => return Ok((seed, passes)),
            Err(Useless::Foreign) => return Err(Useless::Foreign),
            Err(other) => why = other,
        }
    }
    Err(why)
}
