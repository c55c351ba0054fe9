//! Detours of probes that only count: no handler is called, no register saved. The counter is near the detour, and the
//! flags are kept only if the program may still read them.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use super::{RED_ZONE, near};
use hodo_isa::native::scan::Flow;
use hodo_isa::native::steps::{CARRY, FLAGS, Steps};
use hodo_isa::x86_64::asm::{AL, Code, QWORD, RAX, RSP, address, mem};

/// Instructions that are looked at for the flags; after that all are taken to be read.
const MOST: usize = 256;

/// The arithmetic flags that the program may read from `addr` on, before it writes them. `code` is that of the
/// function, as the program has it. Where control leaves it, all are taken to be read: nothing is known of what comes
/// there.
fn live(code: &[u8], function: &Range<u64>, addr: u64) -> u8 {
    let mut seen: BTreeMap<u64, u8> = BTreeMap::new();
    let mut todo: Vec<(u64, u8)> = [(addr, FLAGS)].into();
    let mut found = 0;
    let mut looked = 0;
    while let Some((at, open)) = todo.pop() {
        let known = seen.entry(at).or_insert(0);
        // What may be read is asked once for each instruction and flag.
        let open = open & !*known & !found;
        *known |= open;
        if open == 0 {
            continue;
        }
        looked += 1;
        let step = function
            .contains(&at)
            .then(|| code.get((at - function.start) as usize..))
            .flatten()
            .and_then(|code| Steps::new(code, at).next());
        let Some(step) = step.filter(|step| looked <= MOST && !step.leaves) else {
            return found | open;
        };
        found |= open & step.effects.reads;
        let open = open & !step.effects.reads & !step.effects.writes;
        match step.flow {
            Flow::Next => todo.push((step.end(), open)),
            Flow::Branch(to) => todo.extend([(step.end(), open), (to, open)]),
            Flow::Jump(to) => todo.push((to, open)),
            _ => found |= open,
        }
    }
    found
}

/// Whether counting at an address must save the flags. An increment does not change the carry.
pub(super) fn keeps_flags(code: &[u8], function: &Range<u64>, addr: u64) -> bool {
    live(code, function, addr) & !CARRY != 0
}

/// How many hits a counter has seen since it was zero.
pub(crate) fn hits(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// The code that counts, at `start`.
pub(super) fn emit(start: u64, counter: u64, keep_flags: bool) -> Option<Vec<u8>> {
    near(start, &[counter])?;
    let mut bytes = Vec::new();
    let mut code = Code::new(&mut bytes, start);
    if keep_flags {
        code.lea(RSP, mem(RSP, -RED_ZONE));
        code.push_r(RAX);
        code.lahf();
        code.seto(AL);
    }
    code.lock().inc_m(QWORD, address(counter));
    if keep_flags {
        // Sets the overflow flag again, by an overflow.
        code.add_ri(AL, 127);
        code.sahf();
        code.pop_r(RAX);
        code.lea(RSP, mem(RSP, RED_ZONE));
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keeps(code: &[u8], at: u64) -> bool {
        keeps_flags(code, &(0x1000..0x1000 + code.len() as u64), 0x1000 + at)
    }

    #[test]
    fn flags_are_kept_where_they_may_be_read() {
        // mov eax, edi; sub eax, 3; ret
        assert!(!keeps(&[0x89, 0xF8, 0x83, 0xE8, 3, 0xC3], 0));
        // The caller may look at what is there at the return.
        assert!(keeps(&[0x89, 0xF8, 0x83, 0xE8, 3, 0xC3], 5));
        assert!(keeps(&[0x89, 0xF8, 0xC3], 0));
        // mov eax, edi; jz over; sub eax, 3; over: ret
        assert!(keeps(&[0x89, 0xF8, 0x74, 3, 0x83, 0xE8, 3, 0xC3], 0));
        // mov eax, edi; jmp over; (ret); over: sub eax, 3; ret
        assert!(!keeps(&[0x89, 0xF8, 0xEB, 1, 0xC3, 0x83, 0xE8, 3, 0xC3], 0));
        // A count does not change the carry: adc eax, 3; ret
        assert!(!keeps(&[0x83, 0xD0, 3, 0xC3], 0));
        // inc eax; jc and ret: the others are written
        assert!(!keeps(&[0xFF, 0xC0, 0x72, 0, 0x29, 0xC0, 0xC3], 0));
        // A call, an indirect jump, the end: nobody knows.
        assert!(keeps(&[0xE8, 0, 0, 0, 0, 0x29, 0xC0, 0xC3], 0));
        assert!(keeps(&[0xFF, 0xE0, 0x29, 0xC0], 0));
        assert!(keeps(&[0x89, 0xF8], 0));
        // Around a loop: again: dec edi (the first is known to write); jnz again; ret reads all
        assert!(keeps(&[0x89, 0xC0, 0x75, 0xFC, 0xC3], 0));
        // A loop without end that touches none: jmp to itself
        assert!(!keeps(&[0xEB, 0xFE], 0));
        // pushfq reads all.
        assert!(keeps(&[0x9C, 0x29, 0xC0, 0xC3], 0));
        // syscall: the kernel sees the flags.
        assert!(keeps(&[0x0F, 0x05, 0x29, 0xC0, 0xC3], 0));
    }

    #[test]
    fn no_more_than_some_instructions_are_looked_at() {
        let mut code = vec![0x90; MOST + 20];
        code.extend([0x29, 0xC0, 0xC3]);
        assert!(keeps(&code, 0));
        assert!(!keeps(&code, 40));
    }
}
