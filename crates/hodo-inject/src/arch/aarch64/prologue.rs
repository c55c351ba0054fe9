//! Frames of functions without unwind tables, read from their code.

use hodo_isa::aarch64::LEN;
use hodo_isa::aarch64::cfa::State;
use hodo_isa::aarch64::decode::{Insn, Kind};
use hodo_isa::aarch64::regs::{LINK, SP};
use hodo_isa::aarch64::scan::{Flow, Sweep};
use hodo_ptrace::Memory;
use hodo_ptrace::TargetAddr;

/// How many bytes of a function are read at most.
const MOST: usize = 8192;

/// How the code of one function uses the stack.
#[derive(Debug)]
pub struct Made {
    start: u64,
    /// S minus the stack pointer before each instruction, where it is known.
    lowered: Vec<Option<i32>>,
    /// How far below S the return address is stored, for each instruction that does so.
    stores: Vec<i32>,
}

/// Where an instruction stores the link register: as far above an address, if it does.
fn stored_link(insn: &Insn) -> Option<(u8, i64)> {
    const WORD: i64 = 8;
    let memory = insn.memory().filter(|memory| memory.writes)?;
    let more = match insn.kind {
        _ if !insn.is_whole() => return None,
        Kind::Single | Kind::Pair if insn.rd() == LINK => 0,
        Kind::Pair if insn.ra() == LINK => WORD,
        _ => return None,
    };
    Some((memory.base, memory.distance? + more))
}

impl Made {
    /// For the function at an address, which ends before `end`. Its code must be the original one.
    pub fn of(memory: &Memory, start: u64, end: Option<u64>) -> Self {
        let most = end.map_or(MOST as u64, |end| end.saturating_sub(start));
        let mut code = vec![0; most.min(MOST as u64) as usize];
        // Fewer bytes may be left in the mapping.
        while memory.read(TargetAddr(start), &mut code).is_err() {
            code.truncate(code.len() / 8 * 4);
        }
        Self::by_code(&code, start)
    }

    /// Follows the code, and branches forward.
    fn by_code(code: &[u8], start: u64) -> Self {
        let mut states = vec![None; code.len() / LEN as usize];
        if let Some(first) = states.first_mut() {
            *first = Some(State::ENTRY);
        }
        let mut stores = Vec::new();
        for (index, scanned) in Sweep::new(code, start).take(states.len()).enumerate() {
            let Some(mut state) = states[index] else {
                continue;
            };
            let below = stored_link(&scanned.insn)
                .and_then(|(base, distance)| state.address(base, distance));
            stores.extend(below);
            state.step(&scanned.insn, &scanned.effects);
            let mut leads_to = |at: usize| {
                if let Some(there @ None) = states.get_mut(at) {
                    *there = Some(state);
                }
            };
            if let Flow::Branch(to) | Flow::Jump(to) = scanned.flow {
                let forward = to.wrapping_sub(start) / LEN;
                leads_to(usize::try_from(forward).unwrap_or(usize::MAX));
            }
            if !scanned.flow.is_end() {
                leads_to(index + 1);
            }
        }
        let lowered = states
            .iter()
            .map(|state| state.as_ref()?.address(SP, 0))
            .collect();
        Self {
            start,
            lowered,
            stores,
        }
    }

    /// How far below S it keeps its return address, if that is always at the same place.
    pub fn kept(&self) -> Option<i32> {
        let (&first, others) = self.stores.split_first()?;
        others.iter().all(|&place| place == first).then_some(first)
    }

    /// S of a thread that is at `pc` in it, as far as the code shows it without the frame pointer.
    pub fn frame(&self, pc: u64, sp: u64) -> Option<u64> {
        let index = usize::try_from(pc.checked_sub(self.start)? / LEN).ok()?;
        let lowered = self.lowered.get(index).copied().flatten()?;
        Some(sp.wrapping_add_signed(lowered.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(words: &[u32]) -> Made {
        let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        Made::by_code(&code, 0x1000)
    }

    #[test]
    fn the_frame_is_followed_through_a_function() {
        let made = made(&[
            0xB400_00E0, // cbz x0, .+28
            0xD503_233F, // paciasp
            0xA9BE_7BFD, // stp x29, x30, [sp, #-32]!
            0x9100_03FD, // mov x29, sp
            0xA8C2_7BFD, // ldp x29, x30, [sp], #32
            0xD503_23BF, // autiasp
            0xD65F_03C0, // ret
            0xD65F_03C0, // ret
            0xD503_201F, // nop
        ]);
        assert_eq!(made.kept(), Some(24));
        let frame = |index: u64| made.frame(0x1000 + 4 * index, 0x8000);
        for (index, expected) in [
            (0, Some(0x8000)),
            (2, Some(0x8000)),
            (3, Some(0x8020)),
            (4, Some(0x8020)),
            (5, Some(0x8000)),
            (7, Some(0x8000)),
            (8, None),
            (9, None),
        ] {
            assert_eq!(frame(index), expected, "{index}");
        }
    }

    #[test]
    fn a_return_address_that_is_at_two_places_is_at_none() {
        // str x30, [sp, #-16]!; stp x0, x30, [sp, #-32]!
        let once = made(&[0xF81F_0FFE]);
        assert_eq!(once.kept(), Some(16));
        let twice = made(&[0xF81F_0FFE, 0xA9BE_7BE0]);
        assert_eq!(twice.kept(), None);
        // Another register, and half of the register
        assert_eq!(made(&[0xF81F_0FE1, 0xB81F_0FFE]).kept(), None);
    }
}
