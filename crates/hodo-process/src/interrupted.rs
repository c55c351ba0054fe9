//! Signals that arrive while a thread is in a stub: their handlers may unwind, and find a rule for that instruction.

use std::rc::Rc;

use anyhow::Result;
use hodo_arch::x86_64::scan::{Flow, Sweep};
use hodo_patch::{Island, RULES, Stub};

use crate::instrument::Space;
use crate::remote::{self, Memory};

/// No stub has more bytes.
const LONGEST: u64 = 1024;
/// No stub displaces more bytes.
const DISPLACED: usize = 64;
/// The agent's routines call each other, but not deeper.
const DEEPEST: usize = 4;

/// What is known of the stubs of one island.
#[derive(Debug, Clone, Default)]
pub struct Stubs {
    /// In ascending order. Children have them in common with their parents.
    all: Rc<Vec<Stub>>,
    /// The instructions that have their own rules.
    ruled: Vec<u64>,
}

impl Stubs {
    /// Adds the stubs of an island that was extended.
    pub fn extend(&mut self, island: &Island) {
        if !island.stubs.is_empty() {
            Rc::make_mut(&mut self.all).extend(&island.stubs);
        }
    }

    /// The stub that an address is in, with its code.
    fn around(&self, memory: &Memory, pc: u64, end: u64) -> Option<(Stub, Vec<u8>)> {
        let next = self.all.partition_point(|stub| stub.start <= pc);
        let stub = *self.all.get(next.checked_sub(1)?)?;
        let end = self.all.get(next).map_or(end, |stub| stub.start);
        let mut code = vec![0; usize::try_from((end - stub.start).min(LONGEST)).ok()?];
        memory.read(stub.start, &mut code).ok()?;
        Some((stub, code))
    }
}

/// The program's instruction for which the one at `pc` in a stub stands: until the function begins, its first.
fn original(memory: &Memory, space: &Space, pc: u64, stub: Stub, code: &[u8]) -> Option<u64> {
    if stub.original == 0 || pc < stub.body {
        return Some(stub.original).filter(|&original| original != 0);
    }
    // The displaced instructions and what became of them, side by side.
    let mut bytes = [0; DISPLACED];
    memory.read(stub.original, &mut bytes).ok()?;
    let end = stub.original + DISPLACED as u64;
    for (at, old) in space.originals.iter().rev() {
        for (at, byte) in (*at..)
            .zip(old)
            .filter(|(at, _)| (stub.original..end).contains(at))
        {
            bytes[(at - stub.original) as usize] = *byte;
        }
    }
    let body = code.get((stub.body - stub.start) as usize..)?;
    for (moved, old) in Sweep::new(body, stub.body).zip(Sweep::new(&bytes, stub.original)) {
        if moved.addr == pc {
            return Some(match moved.flow {
                // Back to what follows the displaced instructions.
                Flow::Jump(to) if !matches!(old.flow, Flow::Jump(_)) => to,
                _ => old.addr,
            });
        }
    }
    None
}

/// Sees to it that a handler of the signal that is about to be delivered to a stopped thread can unwind.
pub fn prepare(tid: i32, space: &mut Space) -> Result<()> {
    let regs = remote::regs(tid)?;
    let (mut pc, mut rsp) = (regs.rip, regs.rsp);
    for _ in 0..DEEPEST {
        let inside = |&(base, size): &(u64, u64)| (base..base + size).contains(&pc);
        let Some(index) = space.islands.iter().position(inside) else {
            break;
        };
        let (base, size) = space.islands[index];
        let island = Island::new(base, size);
        let memory = Memory::open(tid)?;
        let stub = space.stubs[index].around(&memory, pc, base + size);
        let code = stub.as_ref().map(|(stub, code)| (stub.start, &code[..]));
        let Some(found) = island.rule(pc, code) else {
            break;
        };
        if !space.stubs[index].ruled.contains(&found.at.start) {
            // A return address leads to the end of a call, and stands for nothing in the program.
            let original = stub
                .filter(|_| found.before_return && pc == regs.rip)
                .and_then(|(stub, code)| original(&memory, space, pc, stub, &code));
            let stubs = &mut space.stubs[index];
            if stubs.ruled.len() == RULES {
                stubs.ruled.clear();
            }
            for (at, bytes) in island.write_rule(stubs.ruled.len(), &found, original) {
                memory.write(at, &bytes)?;
            }
            stubs.ruled.push(found.at.start);
        }
        if !island.is_agent(pc) {
            break;
        }
        // The agent was called by a stub, or by itself.
        rsp += u64::from(found.rule.depth);
        pc = memory.read_u64(rsp)?.wrapping_sub(1);
        rsp += 8;
    }
    Ok(())
}
