//! Reads code: where it branches, which addresses it forms, and which stack slots it uses.

pub use crate::code::{Reference, Slot};
pub use crate::effects::Flow;

use super::LEN;
use super::decode::{Insn, Kind};
use super::effects::Effects;
use super::encode::NOP;
use super::regs::{BETWEEN, FRAME, LINK, SP, Set, VOLATILE, ZERO, general};

/// The numbers of the breakpoints with which compilers and libraries end a program: the `__builtin_trap` of clang and
/// GCC, and the undefined behavior sanitizer.
fn is_trap(number: u32) -> bool {
    matches!(number, 1 | 1000 | 0x5500..=0x55FF)
}

impl Insn {
    /// What it does with control.
    #[must_use]
    #[inline]
    pub fn flow(&self) -> Flow {
        let to = || self.target().unwrap_or_default();
        match self.kind {
            Kind::Branch => Flow::Jump(to()),
            Kind::BranchLink => Flow::Call(to()),
            // "Always", in both spellings.
            Kind::Conditional if self.field(1, 3) == 7 => Flow::Jump(to()),
            Kind::Conditional | Kind::CompareZero | Kind::TestBit => Flow::Branch(to()),
            Kind::JumpRegister => Flow::IndirectJump,
            Kind::CallRegister => Flow::IndirectCall,
            Kind::Return if self.bit(11) => Flow::returning(LINK, LINK),
            Kind::Return => Flow::returning(self.rn(), LINK),
            Kind::Undefined | Kind::Privileged => Flow::Fault,
            Kind::Breakpoint if is_trap(self.field(5, 16)) => Flow::Fault,
            Kind::Invalid => Flow::Invalid,
            _ => Flow::Next,
        }
    }

    /// Whether it does nothing, if nothing leads to it: `nop`, or a zero word.
    #[must_use]
    pub fn is_padding(&self) -> bool {
        self.is_nop() || self.kind == Kind::Undefined && self.word == 0
    }

    /// The register that a `mov` copies.
    #[must_use]
    pub fn copied(&self) -> Option<u8> {
        match self.kind {
            // orr REGISTER, zero, REGISTER, of all bits
            Kind::LogicalRegister if self.word & 0xFFE0_FFE0 == 0xAA00_03E0 => Some(self.rm()),
            // add REGISTER, REGISTER, #0, where one is usually the stack pointer
            Kind::AddImmediate if self.word & 0xFFFF_FC00 == 0x9100_0000 => Some(self.rn()),
            _ => None,
        }
    }

    /// The constant that a 64-bit addition adds to a register.
    #[must_use]
    pub fn added(&self) -> Option<i64> {
        if self.kind != Kind::AddImmediate || !self.bit(31) {
            return None;
        }
        let number = i64::from(self.field(10, 12)) << if self.bit(22) { 12 } else { 0 };
        Some(if self.bit(30) { -number } else { number })
    }
}

/// One instruction of the code.
#[derive(Debug, Clone, Copy)]
pub struct Scanned {
    /// The instruction.
    pub insn: Insn,
    /// What it does with control. A jump through a register whose address the preceding instructions have formed counts
    /// as a jump to that address.
    pub flow: Flow,
    /// The address it holds.
    pub reference: Reference,
    /// It does nothing: padding, if nothing leads to it.
    pub padding: bool,
    /// The stack slot that it uses first, or whose address it computes.
    pub slot: Slot,
    /// The registers and flags that it uses.
    pub effects: Effects,
    /// It calls the resolver of a thread-local variable, which changes only `x0` and the link register.
    pub keeps_all: bool,
}

/// What is known about a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    Nothing,
    /// Set by `adrp` alone: the page of an address.
    Page(u64),
    /// An address.
    Address(u64),
    /// Set by `movz` and `movk`: perhaps an address.
    Constant(u64),
    /// Loaded from this address.
    Loaded(u64),
}

/// What is known about all registers.
struct Values {
    known: Set,
    /// Those that were set since control last came from somewhere else.
    fresh: Set,
    of: [Known; 32],
}

impl Values {
    const NONE: Self = Self {
        known: 0,
        fresh: 0,
        of: [Known::Nothing; 32],
    };

    #[inline]
    fn get(&self, register: u8) -> Known {
        match self.known & general(register) {
            0 => Known::Nothing,
            _ => self.of[usize::from(register & 31)],
        }
    }

    #[inline]
    fn set(&mut self, register: u8, known: Known) {
        if known != Known::Nothing {
            self.known |= general(register);
            self.fresh |= general(register);
            self.of[usize::from(register & 31)] = known;
        }
    }

    /// The value at this distance from a register's value.
    #[inline]
    fn sum(&self, register: u8, distance: i64) -> Known {
        match self.get(register) {
            Known::Page(value) | Known::Address(value) => {
                Known::Address(value.wrapping_add_signed(distance))
            }
            Known::Constant(value) => Known::Constant(value.wrapping_add_signed(distance)),
            Known::Loaded(_) | Known::Nothing => Known::Nothing,
        }
    }
}

/// Iterates over code, instruction by instruction. The value of a register is known until the register is overwritten
/// or a call may have overwritten it. Of the paths by which control may reach an instruction, only the straight one is
/// considered.
pub struct Sweep<'a> {
    code: &'a [u8],
    addr: u64,
    known: Values,
    /// The registers that the last instruction has written.
    last: Set,
}

impl<'a> Sweep<'a> {
    /// Starts at the first byte of `code`, whose address is `addr`.
    #[must_use]
    pub fn new(code: &'a [u8], addr: u64) -> Self {
        Self {
            code,
            addr,
            known: Values::NONE,
            last: 0,
        }
    }

    /// What an instruction computes, as far as it is known.
    #[inline]
    fn result(&self, insn: &Insn) -> Known {
        match insn.kind {
            Kind::Adr => insn.target().map_or(Known::Nothing, Known::Address),
            Kind::Adrp => insn.target().map_or(Known::Nothing, Known::Page),
            Kind::AddImmediate => match insn.added() {
                Some(added) => self.known.sum(insn.rn(), added),
                None => Known::Nothing,
            },
            Kind::MoveWide if insn.bit(31) => {
                let shift = 16 * insn.field(21, 2);
                let bits = u64::from(insn.field(5, 16)) << shift;
                match (insn.field(29, 2), self.known.get(insn.rd())) {
                    (2, _) => Known::Constant(bits),
                    (3, Known::Constant(value)) => {
                        Known::Constant(value & !(0xFFFF << shift) | bits)
                    }
                    _ => Known::Nothing,
                }
            }
            Kind::LogicalRegister => match insn.copied() {
                Some(ZERO) | None => Known::Nothing,
                Some(from) => self.known.get(from),
            },
            _ => Known::Nothing,
        }
    }

    /// The address that an instruction holds, and what it computes.
    #[inline]
    fn refers(&self, insn: &Insn) -> (Reference, Known) {
        if insn.kind == Kind::Literal {
            return (
                insn.target().map_or(Reference::None, Reference::Memory),
                Known::Nothing,
            );
        }
        if let Some(memory) = insn.memory() {
            let Some(distance) = memory.distance else {
                return (Reference::None, Known::Nothing);
            };
            // A value from before a jump may be wrong here, and memory that is accessed counts as data.
            let fresh = self.known.fresh & general(memory.base) != 0;
            return match self.known.sum(memory.base, distance) {
                Known::Address(addr) | Known::Constant(addr) if fresh => {
                    let whole = insn.kind == Kind::Single && insn.is_whole() && insn.is_load();
                    let loaded = if whole {
                        Known::Loaded(addr)
                    } else {
                        Known::Nothing
                    };
                    (Reference::Memory(addr), loaded)
                }
                _ => (Reference::None, Known::Nothing),
            };
        }
        let result = self.result(insn);
        let reference = match result {
            // The instruction that formed the address has reported it.
            _ if insn.kind == Kind::LogicalRegister => Reference::None,
            // No code is at such an address, and a value from before a jump may be wrong here.
            Known::Address(addr)
                if !addr.is_multiple_of(LEN)
                    && insn.kind == Kind::AddImmediate
                    && self.known.fresh & general(insn.rn()) == 0 =>
            {
                Reference::None
            }
            Known::Address(addr) => Reference::Forms(addr),
            Known::Constant(value) if value >> 12 != 0 => Reference::Constant(value),
            _ => Reference::None,
        };
        (reference, result)
    }

    /// Resolves jumps and calls through a register whose value is known.
    fn through(&self, insn: &Insn, flow: &mut Flow, reference: &mut Reference) {
        if !matches!(flow, Flow::IndirectJump | Flow::IndirectCall) {
            return;
        }
        match self.known.get(insn.rn()) {
            Known::Address(to) if self.last & general(insn.rn()) != 0 => {
                *flow = match flow {
                    Flow::IndirectJump => Flow::Jump(to),
                    _ => Flow::Call(to),
                };
            }
            Known::Loaded(from) => *reference = Reference::Memory(from),
            _ => {}
        }
    }

    /// Whether a call is one of the resolver of a thread-local variable, whose descriptor is at the address in `x0`.
    fn is_descriptor_call(&self, insn: &Insn) -> bool {
        let (by, descriptor) = (self.known.get(insn.rn()), self.known.get(0));
        insn.kind == Kind::CallRegister
            && matches!((by, descriptor), (Known::Loaded(a), Known::Address(b)) if a == b)
    }
}

impl Iterator for Sweep<'_> {
    type Item = Scanned;

    #[inline]
    fn next(&mut self) -> Option<Scanned> {
        if self.code.is_empty() {
            return None;
        }
        let insn = Insn::new(self.code, self.addr);
        self.code = &self.code[usize::from(insn.len)..];
        self.addr = insn.end();
        let mut flow = insn.flow();
        let (mut reference, result) = self.refers(&insn);
        self.through(&insn, &mut flow, &mut reference);
        let keeps_all = self.is_descriptor_call(&insn);
        let effects = insn.effects();
        let from = match insn.kind {
            Kind::AddImmediate => Some(insn.rn()),
            Kind::LogicalRegister => insn.copied(),
            _ => None,
        };
        let stale = from.is_some_and(|from| self.known.fresh & general(from) == 0);
        self.known.known &= !effects.changes;
        if effects.writes & general(insn.rd()) != 0 {
            self.known.set(insn.rd(), result);
            if stale {
                self.known.fresh &= !general(insn.rd());
            }
        }
        self.last = effects.writes;
        if flow.is_end() {
            self.known.fresh = 0;
        }
        if matches!(flow, Flow::Call(_) | Flow::IndirectCall) {
            self.known.known &= !if keeps_all { 1 | 1 << LINK } else { VOLATILE };
        }
        Some(Scanned {
            flow,
            reference,
            padding: insn.is_padding(),
            slot: slot(&insn),
            effects,
            keeps_all,
            insn,
        })
    }
}

/// The stack slot that an instruction uses first, or whose address it computes.
#[inline]
fn slot(insn: &Insn) -> Slot {
    let (base, distance) = match insn.memory() {
        Some(memory) => match memory.distance {
            Some(distance) => (memory.base, distance),
            None => return Slot::None,
        },
        None => match insn.added() {
            Some(added) => (insn.rn(), added),
            None => return Slot::None,
        },
    };
    at(base, distance)
}

/// The slot at this distance above a register.
pub(super) fn at(base: u8, distance: i64) -> Slot {
    match (base, i32::try_from(distance)) {
        (SP, Ok(distance)) => Slot::Stack(distance),
        (FRAME, Ok(distance)) => Slot::Frame(distance),
        _ => Slot::None,
    }
}

/// How far above its base register a load or store has the link register; in a pair, it may be the second.
#[must_use]
pub fn link_distance(insn: &Insn) -> Option<i64> {
    let distance = insn.memory()?.distance?;
    match insn.kind {
        _ if !insn.is_whole() => None,
        Kind::Single if insn.rd() == LINK => Some(distance),
        Kind::Pair if insn.rd() == LINK => Some(distance),
        Kind::Pair if insn.ra() == LINK => Some(distance + 8),
        _ => None,
    }
}

/// The entries in a PLT, which jump to the address in a slot: the entry's address, the slot, and the length of the
/// jump.
pub fn got_jumps(bytes: &[u8], addr: u64) -> impl Iterator<Item = (u64, u64, u8)> {
    let [page, target] = BETWEEN;
    let mut start = None;
    Sweep::new(bytes, addr).filter_map(move |scanned| {
        let insn = scanned.insn;
        match insn.kind {
            Kind::Adrp if insn.rd() == page => start = Some((insn.addr, None)),
            Kind::Single if insn.rd() == target => {
                if let (Some((_, slot)), Reference::Memory(from)) = (&mut start, scanned.reference)
                {
                    *slot = Some(from);
                }
            }
            Kind::JumpRegister if insn.rn() == target => {
                let (start, slot) = start.take()?;
                let len = insn.end().wrapping_sub(start) as u8;
                return Some((start, slot?, len));
            }
            // The slot's address, for the lazy binder, or an authentication of the target.
            Kind::AddImmediate | Kind::Hint => {}
            _ => start = None,
        }
        None
    })
}

/// Fills `len` bytes, a multiple of four, with `nop`s.
pub fn nops(len: usize) -> impl Iterator<Item = u8> {
    core::iter::repeat_n(NOP.to_le_bytes(), len / LEN as usize).flatten()
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn sweep(code: &[u32]) -> Vec<Scanned> {
        Sweep::new(&words(code), 0x1_2340).collect()
    }

    #[test]
    fn addresses_of_pairs() {
        // adrp x0, .+4096; add x1, x0, #0x18; ldr x2, [x0, #8]; str w3, [x1, #4]; mov x4, x1; blr x4
        let found = sweep(&[
            0xB000_0000,
            0x9100_6001,
            0xF940_0402,
            0xB900_0423,
            0xAA01_03E4,
            0xD63F_0080,
        ]);
        let references: Vec<_> = found.iter().map(|scanned| scanned.reference).collect();
        let expected = [
            Reference::None,
            Reference::Forms(0x1_3018),
            Reference::Memory(0x1_3008),
            Reference::Memory(0x1_301C),
            Reference::None,
            Reference::None,
        ];
        assert_eq!(references, expected);
        assert_eq!(found[5].flow, Flow::Call(0x1_3018));
    }

    #[test]
    fn calls_leave_what_functions_keep() {
        // adrp x0, .; adrp x19, .; bl .; add x0, x0, #1; add x1, x19, #1
        let found = sweep(&[
            0x9000_0000,
            0x9000_0013,
            0x9400_0000,
            0x9100_0400,
            0x9100_0661,
        ]);
        assert_eq!(found[3].reference, Reference::None);
        assert_eq!(found[4].reference, Reference::Forms(0x1_2001));
    }

    #[test]
    fn what_is_left_from_before_is_not_used_as_data() {
        // adrp x0, .; ret; add x1, x0, #4; add x2, x0, #1; ldr x3, [x0, #8]; ldr x3, [x1]; adrp x0, .; ldr x3, [x0, #8]
        let found = sweep(&[
            0x9000_0000,
            0xD65F_03C0,
            0x9100_1001,
            0x9100_0402,
            0xF940_0403,
            0xF940_0023,
            0x9000_0000,
            0xF940_0403,
        ]);
        let references: Vec<_> = found[2..].iter().map(|scanned| scanned.reference).collect();
        let expected = [
            Reference::Forms(0x1_2004),
            Reference::None,
            Reference::None,
            Reference::None,
            Reference::None,
            Reference::Memory(0x1_2008),
        ];
        assert_eq!(references, expected);
    }

    #[test]
    fn a_resolver_of_thread_local_variables_keeps_registers() {
        // adrp x0, .; ldr x1, [x0, #16]; add x0, x0, #16; blr x1
        let found = sweep(&[0x9000_0000, 0xF940_0801, 0x9100_4000, 0xD63F_0020]);
        assert!(found[3].keeps_all && found[3].flow == Flow::IndirectCall);
        // The same with another register's address: add x2, x0, #16
        let found = sweep(&[0x9000_0000, 0xF940_0801, 0x9100_4002, 0xD63F_0020]);
        assert!(!found[3].keeps_all);
    }

    #[test]
    fn constants_in_parts() {
        // movz x0, #0x1234; movk x0, #0x5678, lsl #16; movn x0, #0
        let found = sweep(&[0xD282_4680, 0xF2AA_CF00, 0x9280_0000]);
        assert_eq!(found[0].reference, Reference::Constant(0x1234));
        assert_eq!(found[1].reference, Reference::Constant(0x5678_1234));
        assert_eq!(found[2].reference, Reference::None);
    }

    #[test]
    fn entries_of_the_plt() {
        // bti c; adrp x16, .; ldr x17, [x16, #0xfe0]; add x16, x16, #0xfe0; br x17
        let entry = [
            0xD503_245F,
            0x9000_0010,
            0xF947_F211,
            0x913F_8210,
            0xD61F_0220,
        ];
        let found: Vec<_> = got_jumps(&words(&entry), 0x1000).collect();
        assert_eq!(found, [(0x1004, 0x1FE0, 16)]);
        assert_eq!(got_jumps(&words(&entry[2..]), 0x1000).count(), 0);
    }

    #[test]
    fn places_of_the_link_register() {
        let distance = |word: u32| link_distance(&Insn::of(word, 0));
        assert_eq!(distance(0xA9BF_7BFD), Some(-8)); // stp x29, x30, [sp, #-16]!
        assert_eq!(distance(0xA8C2_7BFD), Some(8)); // ldp x29, x30, [sp], #32
        assert_eq!(distance(0xF90007FE), Some(8)); // str x30, [sp, #8]
        assert_eq!(distance(0xB90007FE), None); // str w30, [sp, #8]
        assert_eq!(distance(0xA901_53F3), None); // stp x19, x20, [sp, #16]
    }
}
