//! Reads code: where it branches to, which addresses it forms, and where instructions begin.

pub use crate::code::{Reference, Slot};
pub use crate::effects::Flow;

use super::decode::Insn;
use super::decode::Kind;
use super::decode::kept::{Decode, Fresh};
use super::decode::operand::{imm_b, imm_i, imm_j, imm_u};
use super::regs::{GP, RA, SP, ZERO, is_link};
use crate::effects::Effects;

/// The number of the register that most functions use as frame pointer, if they have one.
const FRAME: u8 = 8;
/// Registers that calls preserve: stack, global and thread pointer, and the callee-saved ones.
const KEPT: u32 = 0x0FFC_031C;
/// The registers that PLT entries use: for the target, and as link.
const PLT: u8 = 28;
const PLT_LINK: u8 = 6;

impl Insn {
    /// What it does with control.
    #[must_use]
    #[inline]
    pub fn flow(&self) -> Flow {
        let to = |distance: i64| self.addr.wrapping_add_signed(distance);
        match self.kind {
            Kind::Branch => Flow::Branch(to(imm_b(self.word))),
            Kind::Jal if self.rd() == ZERO => Flow::Jump(to(imm_j(self.word))),
            Kind::Jal => Flow::Call(to(imm_j(self.word))),
            Kind::Jalr if self.rd() != ZERO => Flow::IndirectCall,
            Kind::Jalr if is_link(self.rs1()) && imm_i(self.word) == 0 => {
                Flow::returning(self.rs1(), RA)
            }
            Kind::Jalr => Flow::IndirectJump,
            Kind::Unimp | Kind::Privileged => Flow::Fault,
            Kind::Invalid => Flow::Invalid,
            _ => Flow::Next,
        }
    }

    /// The register in which a jump puts the return address.
    #[must_use]
    pub fn link(&self) -> Option<u8> {
        let jumps = matches!(self.kind, Kind::Jal | Kind::Jalr);
        (jumps && self.rd() != ZERO).then_some(self.rd())
    }

    /// Whether it is `nop`, of either length.
    #[must_use]
    pub fn is_nop(&self) -> bool {
        self.word == NOP
    }

    /// Whether it does nothing but may give the processor a hint: it writes to the zero register, or it orders nothing,
    /// or it is a 16-bit form that changes nothing. A `nop` is not such an instruction.
    #[must_use]
    pub fn is_hint(&self) -> bool {
        let word = self.word;
        match self.kind {
            Kind::Auipc => self.rd() == ZERO,
            // Only base instructions: extensions do not promise that theirs remain without effect.
            Kind::Plain => match word & 0x7F {
                0x13 | 0x1B => {
                    self.rd() == ZERO && word != NOP && self.is_base() || self.adds_nothing()
                }
                0x33 | 0x3B => self.rd() == ZERO && self.is_base(),
                0x37 => self.rd() == ZERO,
                _ => false,
            },
            // The set of accesses before or after the fence is empty.
            Kind::Fence => word >> 28 == 0 && (word >> 24 & 15 == 0 || word >> 20 & 15 == 0),
            _ => false,
        }
    }

    /// Whether it is a 16-bit form that adds or shifts by zero.
    fn adds_nothing(&self) -> bool {
        let shifts = matches!(self.word >> 12 & 7, 1 | 5);
        self.len == 2
            && self.rd() == self.rs1()
            && self.rd() != ZERO
            && self.word & 0x7F == 0x13
            && (shifts && self.word >> 20 & 63 == 0
                || self.word >> 12 & 7 == 0 && self.word >> 20 == 0)
    }

    /// Whether the upper bits show that it is a base instruction.
    fn is_base(&self) -> bool {
        let word = self.word;
        let (function, upper) = (word >> 12 & 7, word >> 26);
        match word & 0x7F {
            0x13 | 0x1B => match function {
                1 => upper == 0,
                5 => upper == 0 || upper == 0x10,
                _ => true,
            },
            _ => {
                matches!(word >> 25, 0 | 0x20)
                    && !(word >> 25 == 0x20 && matches!(function, 4 | 6 | 7))
            }
        }
    }
}

/// `nop`.
const NOP: u32 = 0x13;

/// One instruction of the code.
#[derive(Debug, Clone, Copy)]
pub struct Scanned {
    /// The instruction.
    pub insn: Insn,
    /// What it does with control. A jump through a register that the preceding instruction has set by `auipc` counts as
    /// a jump to that address.
    pub flow: Flow,
    /// The address it holds.
    pub reference: Reference,
    /// It does nothing: padding. So are zeros, if nothing leads to them.
    pub padding: bool,
    /// The place on the stack that it uses, or whose address it computes.
    pub slot: Slot,
    /// The general registers that it uses.
    pub effects: Effects<u32>,
}

/// What is known about a register.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    Nothing,
    /// Set by `auipc`: an address.
    Address(u64),
    /// Set by `lui`: perhaps an address.
    Constant(u64),
}

/// What is known about all registers.
struct Values {
    /// The registers that hold an address, and those that hold a constant, as bits.
    addresses: u32,
    constants: u32,
    of: [u64; 32],
}

impl Values {
    const NONE: Self = Self {
        addresses: 0,
        constants: 0,
        of: [0; 32],
    };

    #[inline]
    fn get(&self, register: u8) -> Known {
        let value = self.of[usize::from(register & 31)];
        match 1 << (register & 31) {
            bit if self.addresses & bit != 0 => Known::Address(value),
            bit if self.constants & bit != 0 => Known::Constant(value),
            _ => Known::Nothing,
        }
    }

    #[inline]
    fn set(&mut self, register: u8, known: Known) {
        let bit = 1 << (register & 31);
        let value = match known {
            Known::Nothing => return,
            Known::Address(value) => {
                self.addresses |= bit;
                value
            }
            Known::Constant(value) => {
                self.constants |= bit;
                value
            }
        };
        self.of[usize::from(register & 31)] = value;
    }

    /// Forgets all registers but these.
    #[inline]
    fn keep(&mut self, registers: u32) {
        self.addresses &= registers;
        self.constants &= registers;
    }
}

/// Iterates over code, instruction by instruction. After bytes that are not an instruction it goes on by the length
/// that they indicate.
pub struct Sweep<'a, D = Fresh> {
    code: &'a [u8],
    decode: D,
    addr: u64,
    known: Values,
    /// What the global pointer holds.
    globals: Option<u64>,
    /// The register that the last instruction has set by `auipc`.
    pair: Option<u8>,
}

impl<'a> Sweep<'a> {
    /// Starts at the first byte of `code`, whose address is `addr`.
    #[must_use]
    pub fn new(code: &'a [u8], addr: u64) -> Self {
        Self::by(Fresh, code, addr, None)
    }

    /// Starts at the first byte of `code` with a known global pointer, which is the same in all code of an executable.
    #[must_use]
    pub fn with_globals(code: &'a [u8], addr: u64, globals: Option<u64>) -> Self {
        Self::by(Fresh, code, addr, globals)
    }
}

impl<'a, D> Sweep<'a, D> {
    /// The same, with a way to decode.
    pub(crate) fn by(decode: D, code: &'a [u8], addr: u64, globals: Option<u64>) -> Self {
        Self {
            code,
            decode,
            addr,
            known: Values::NONE,
            globals,
            pair: None,
        }
    }

    /// The value at `distance` from a register's value.
    #[inline]
    fn value(&self, register: u8, distance: i64) -> Known {
        match self.known.get(register) {
            Known::Nothing if register == GP => match self.globals {
                Some(globals) => Known::Address(globals.wrapping_add_signed(distance)),
                None => Known::Nothing,
            },
            Known::Nothing => Known::Nothing,
            Known::Address(value) => Known::Address(value.wrapping_add_signed(distance)),
            Known::Constant(value) => Known::Constant(value.wrapping_add_signed(distance)),
        }
    }

    /// What an instruction computes, as far as it is known.
    #[inline]
    fn result(&self, insn: &Insn) -> Known {
        let word = insn.word;
        match (insn.kind, word & 0x7F, word >> 12 & 7) {
            (Kind::Auipc, ..) => Known::Address(insn.addr.wrapping_add_signed(imm_u(word))),
            (Kind::Plain, 0x37, _) => Known::Constant(imm_u(word) as u64),
            (Kind::Plain, 0x13, 0) => self.value(insn.rs1(), imm_i(word)),
            // A sum of 32 bits.
            (Kind::Plain, 0x1B, 0) => match self.value(insn.rs1(), imm_i(word)) {
                Known::Constant(value) => Known::Constant(value as i32 as u64),
                _ => Known::Nothing,
            },
            // A copy.
            (Kind::Plain, 0x33, 0) if insn.rs1() == ZERO && word >> 25 == 0 => {
                self.value(insn.rs2(), 0)
            }
            _ => Known::Nothing,
        }
    }
}

impl<D: Decode> Iterator for Sweep<'_, D> {
    type Item = Scanned;

    #[inline]
    fn next(&mut self) -> Option<Scanned> {
        if self.code.is_empty() {
            return None;
        }
        let (insn, (reads, writes)) = self.decode.decode(self.code, self.addr);
        self.code = &self.code[usize::from(insn.len)..];
        self.addr = insn.end();

        let mut flow = insn.flow();
        if matches!(flow, Flow::IndirectJump | Flow::IndirectCall)
            && self.pair == Some(insn.rs1())
            && let Known::Address(base) = self.known.get(insn.rs1())
        {
            // The lowest bit is dropped.
            let to = base.wrapping_add_signed(imm_i(insn.word)) & !1;
            flow = match flow {
                Flow::IndirectJump => Flow::Jump(to),
                _ => Flow::Call(to),
            };
        }
        let place = insn.place();
        let mut result = Known::Nothing;
        let reference = if let Some((base, distance)) = place {
            match self.value(base, distance) {
                Known::Address(addr) | Known::Constant(addr) => Reference::Memory(addr),
                Known::Nothing => Reference::None,
            }
        } else {
            result = self.result(&insn);
            match result {
                Known::Address(addr) => Reference::Forms(addr),
                Known::Constant(value) if insn.word & 0x7F != 0x37 => Reference::Constant(value),
                _ => Reference::None,
            }
        };

        self.known.keep(!writes);
        if writes & 1 << insn.rd() != 0 {
            self.known.set(insn.rd(), result);
        }
        self.pair = (insn.kind == Kind::Auipc).then_some(insn.rd());
        match flow {
            Flow::Next | Flow::Branch(_) => {}
            Flow::Call(_) | Flow::IndirectCall => self.known.keep(KEPT),
            _ => self.known.keep(0),
        }
        Some(Scanned {
            flow,
            reference,
            padding: insn.is_nop() || insn.kind == Kind::Unimp && insn.len == 2,
            slot: slot(&insn, place),
            effects: Effects::of(reads, writes),
            insn,
        })
    }
}

#[inline]
fn slot(insn: &Insn, place: Option<(u8, i64)>) -> Slot {
    let adds = insn.kind == Kind::Plain && insn.word & 0x707F == 0x13;
    let (base, distance) = match place {
        Some(place) => place,
        None if adds => (insn.rs1(), imm_i(insn.word)),
        None => return Slot::None,
    };
    match base {
        SP => Slot::Stack(distance as i32),
        FRAME => Slot::Frame(distance as i32),
        _ => Slot::None,
    }
}

/// The entries in a PLT, which jump to the address in a slot: the entry's address, the slot, and the length of the
/// jump.
pub fn got_jumps(bytes: &[u8], addr: u64) -> impl Iterator<Item = (u64, u64, u8)> {
    let mut start = addr;
    let mut slot = None;
    Sweep::new(bytes, addr).filter_map(move |scanned| {
        let insn = scanned.insn;
        match (insn.kind, scanned.reference) {
            (Kind::Auipc, _) if insn.rd() == PLT => start = insn.addr,
            (Kind::Load(8), Reference::Memory(from)) if insn.rd() == PLT => slot = Some(from),
            (Kind::Jalr, _) if insn.rs1() == PLT && matches!(insn.rd(), PLT_LINK | ZERO) => {
                let len = insn.end().wrapping_sub(start) as u8;
                return slot.take().map(|slot| (start, slot, len));
            }
            _ => slot = None,
        }
        None
    })
}

/// What the global pointer holds, if this code sets it: `auipc gp; addi gp, gp`.
#[must_use]
pub fn globals(code: &[u8], addr: u64) -> Option<u64> {
    const UPPER: u32 = (GP as u32) << 7 | 0x17;
    const LOWER: u32 = (GP as u32) << 15 | (GP as u32) << 7 | 0x13;
    let word = |at: usize| {
        let bytes = code.get(at..).and_then(<[u8]>::first_chunk);
        bytes.map_or(0, |&bytes| u32::from_le_bytes(bytes))
    };
    // Wherever instructions begin.
    let halves = code.as_chunks::<2>().0.iter().enumerate();
    halves
        .filter(|&(_, half)| u32::from(u16::from_le_bytes(*half)) & 0xFFF == UPPER)
        .map(|(index, _)| index * 2)
        .find(|at| word(at + 4) & 0xF_FFFF == LOWER)
        .map(|at| {
            let upper = (addr + at as u64).wrapping_add_signed(imm_u(word(at)));
            upper.wrapping_add_signed(imm_i(word(at + 4)))
        })
}

/// Fills `len` bytes, an even number, with as few `nop`s as possible.
pub fn nops(len: usize) -> impl Iterator<Item = u8> {
    const SHORT: [u8; 2] = [0x01, 0];
    const LONG: [u8; 4] = [0x13, 0, 0, 0];
    let short = if len & 2 == 0 { &SHORT[..0] } else { &SHORT };
    core::iter::repeat_n(LONG, len / 4)
        .flatten()
        .chain(short.iter().copied())
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::effects::How;

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn flow(word: u32) -> Flow {
        Insn::new(&word.to_le_bytes(), 0x1000).flow()
    }

    #[test]
    fn flows() {
        // beq x0, x0, +8; j +16; jal ra, +16; jal t1, +16
        assert_eq!(flow(0x0000_0463), Flow::Branch(0x1008));
        assert_eq!(flow(0x0100_006F), Flow::Jump(0x1010));
        assert_eq!(flow(0x0100_00EF), Flow::Call(0x1010));
        assert_eq!(flow(0x0100_036F), Flow::Call(0x1010));
        // jr a0; jalr a0; jalr t1, t3; ret; jr t0; jr 8(ra)
        assert_eq!(flow(0x0005_0067), Flow::IndirectJump);
        assert_eq!(flow(0x0005_00E7), Flow::IndirectCall);
        assert_eq!(flow(0x000E_0367), Flow::IndirectCall);
        assert_eq!(flow(0x0000_8067), Flow::Return { how: How::Plain });
        let other = How::OtherLink;
        assert_eq!(flow(0x0002_8067), Flow::Return { how: other });
        assert_eq!(flow(0x0080_8067), Flow::IndirectJump);
        // unimp, mret, ecall, ebreak
        assert_eq!(flow(0xC000_1073), Flow::Fault);
        assert_eq!(flow(0x3020_0073), Flow::Fault);
        assert_eq!(flow(0x0000_0073), Flow::Next);
        assert_eq!(flow(0x0010_0073), Flow::Next);
        // c.unimp
        assert_eq!(Insn::new(&[0, 0], 0).flow(), Flow::Fault);
    }

    #[test]
    fn pairs_are_addresses() {
        let code = words(&[
            0x0000_2097, // auipc ra, 2
            0x0100_80E7, // jalr ra, 16(ra)
            0x0000_1797, // auipc a5, 1
            0xFF87_B503, // ld a0, -8(a5)
            0x0000_1797, // auipc a5, 1
            0x0047_8793, // addi a5, a5, 4
            0x0001_2537, // lui a0, 0x12
            0x0105_051B, // addiw a0, a0, 16
            0x0000_0317, // auipc t1, 0
            0x0083_0067, // jr 8(t1)
        ]);
        let all: Vec<_> = Sweep::new(&code, 0x1000)
            .map(|scanned| (scanned.flow, scanned.reference))
            .collect();
        assert_eq!(all[0], (Flow::Next, Reference::Forms(0x3000)));
        assert_eq!(all[1].0, Flow::Call(0x3010));
        assert_eq!(all[3].1, Reference::Memory(0x2000));
        assert_eq!(all[5].1, Reference::Forms(0x2014));
        assert_eq!(all[6].1, Reference::None);
        assert_eq!(all[7].1, Reference::Constant(0x1_2010));
        assert_eq!(all[9].0, Flow::Jump(0x1028));
    }

    #[test]
    fn a_jump_that_does_not_follow_its_auipc_is_indirect() {
        let code = words(&[0x0000_0317, 0x0000_0013, 0x0083_0067]);
        let last = Sweep::new(&code, 0).last().expect("three");
        assert_eq!(last.flow, Flow::IndirectJump);
    }

    #[test]
    fn globals_are_found_and_known() {
        // auipc gp, 2; addi gp, gp, -8; addi a4, gp, 16
        let code = words(&[0x0000_2197, 0xFF81_8193, 0x0101_8713]);
        let gp = globals(&code, 0x1000);
        assert_eq!(gp, Some(0x2FF8));
        assert_eq!(globals(&code[..4], 0x1000), None);
        let last = Sweep::with_globals(&code[8..], 0x1008, gp).next();
        let reference = last.map(|scanned| scanned.reference);
        assert_eq!(reference, Some(Reference::Forms(0x3008)));
    }

    #[test]
    fn entries_of_a_plt() {
        // auipc t3, 2; ld t3, -1496(t3); jalr t1, t3; nop
        let code = words(&[0x0000_2E17, 0xA28E_3E03, 0x000E_0367, 0x13]);
        let found: Vec<_> = got_jumps(&code, 0x1_0600).collect();
        assert_eq!(found, [(0x1_0600, 0x1_2028, 12)]);
    }

    #[test]
    fn hints_and_nops() {
        let hint = |code: &[u8]| Insn::new(code, 0).is_hint();
        let nop = |code: &[u8]| Insn::new(code, 0).is_nop();
        // nop, c.nop
        assert!(nop(&[0x13, 0, 0, 0]) && nop(&[1, 0]));
        assert!(!hint(&[0x13, 0, 0, 0]) && !hint(&[1, 0]));
        // c.nop 1; lui x0, 1; pause; add x0, x0, x2; slli x0, x0, 31; c.addi a0, 0
        for code in [
            &[0x05, 0][..],
            &[0x37, 0x10, 0, 0],
            &[0x0F, 0, 0, 1],
            &[0x33, 0, 0x20, 0],
            &[0x13, 0x10, 0xF0, 1],
            &[0x01, 0x05],
        ] {
            assert!(hint(code) && !nop(code), "{code:02x?}");
        }
        // fence; mul x0, x1, x2; addi a0, a0, 0; lw x0, (a0)
        for code in [
            [0x0F, 0, 0xF0, 0x0F],
            [0x33, 0x80, 0x20, 2],
            [0x13, 0x05, 0x05, 0],
            [0x03, 0x20, 0x05, 0],
        ] {
            assert!(!hint(&code) && !nop(&code), "{code:02x?}");
        }
        let len = |len| nops(len).count();
        assert_eq!((len(2), len(4), len(6), len(0)), (2, 4, 6, 0));
    }

    #[test]
    fn places_on_the_stack() {
        let slot = |code: &[u8]| Sweep::new(code, 0).next().expect("one").slot;
        // c.sdsp ra, 8(sp); addi s0, sp, 16; ld a0, -24(s0); ld a0, (a1)
        assert_eq!(slot(&[0x06, 0xE4]), Slot::Stack(8));
        assert_eq!(slot(&[0x00, 0x08]), Slot::Stack(16));
        assert_eq!(slot(&0xFE84_3503u32.to_le_bytes()), Slot::Frame(-24));
        assert_eq!(slot(&0x0005_B503u32.to_le_bytes()), Slot::None);
    }
}
