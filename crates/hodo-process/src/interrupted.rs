//! Signals that arrive while a thread is in a stub: their handlers may take a backtrace, and find an address of the program
//! in place of that instruction's. (Unwinders find their way without this.)

use std::rc::Rc;

use anyhow::Result;
use hodo_arch::x86_64::interrupted::before_return;
use hodo_arch::x86_64::scan::{Flow, Sweep};
use hodo_patch::{Island, PAIRS, Stub};

use crate::instrument::Space;
use crate::remote::{self, Memory};

/// No stub has more bytes.
const LONGEST: u64 = 1024;
/// No stub displaces more bytes.
const DISPLACED: usize = 64;

/// What is known of the stubs of one island.
#[derive(Debug, Clone, Default)]
pub struct Stubs {
    /// In ascending order. Children have them in common with their parents.
    all: Rc<Vec<Stub>>,
    /// The instructions for which the island has the program's address.
    paired: Vec<u64>,
}

impl Stubs {
    /// Adds the stubs of an island that was extended.
    pub fn extend(&mut self, island: &Island) {
        if !island.stubs.is_empty() {
            Rc::make_mut(&mut self.all).extend(&island.stubs);
        }
    }

    /// Is there none?
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Where each stub begins, and for which instruction of the program it stands as long as nothing of it was executed.
    pub fn starts(&self) -> impl Iterator<Item = (u64, u64)> {
        let functions = self.all.iter().filter(|stub| stub.original != 0);
        functions.map(|stub| (stub.start, stub.original))
    }

    /// Is this an address in a stub? What lies behind the last one does not count.
    pub fn is_inside(&self, at: u64) -> bool {
        let next = self.all.partition_point(|stub| stub.start <= at);
        let stub = next.checked_sub(1).and_then(|index| self.all.get(index));
        stub.is_some_and(|stub| at < stub.slow)
    }

    /// Is this where a traced function returns to?
    pub fn returns_to(&self, memory: &Memory, at: u64) -> bool {
        let Some(stub) = self.all[..self.all.partition_point(|stub| stub.start <= at)].last()
        else {
            return false;
        };
        // Behind the call of its body.
        let mut call = [0; 5];
        at > stub.start + 4
            && at < stub.slow.max(stub.body)
            && memory.read(at - 5, &mut call).is_ok()
            && call[0] == 0xE8
            && at.wrapping_add_signed(i64::from(i32::from_le_bytes([
                call[1], call[2], call[3], call[4],
            ]))) == stub.body
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
    if !(stub.body..stub.slow).contains(&pc) {
        return Some(stub.original);
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

/// Sees to it that backtraces show the right address in handlers of the signal that is about to be delivered to a stopped
/// thread.
pub fn prepare(tid: i32, space: &mut Space) -> Result<()> {
    let pc = remote::regs(tid)?.rip;
    let inside = |&(base, size): &(u64, u64)| (base..base + size).contains(&pc);
    let Some(index) = space.islands.iter().position(inside) else {
        return Ok(());
    };
    let (base, size) = space.islands[index];
    if space.stubs[index].paired.contains(&pc) {
        return Ok(());
    }
    let memory = Memory::open(tid)?;
    // A stub of a libcall stands for nothing in the program.
    let Some((stub, code)) = space.stubs[index]
        .around(&memory, pc, base + size)
        .filter(|(stub, _)| stub.original != 0)
    else {
        return Ok(());
    };
    if !before_return(&code, stub.start, stub.body..stub.slow, pc) {
        return Ok(());
    }
    if let Some(original) = original(&memory, space, pc, stub, &code) {
        let stubs = &mut space.stubs[index];
        if stubs.paired.len() == PAIRS {
            stubs.paired.clear();
        }
        for (at, word) in Island::new(base, size).write_pair(stubs.paired.len(), pc, original) {
            memory.write(at, &word.to_le_bytes())?;
        }
        stubs.paired.push(pc);
    }
    Ok(())
}
