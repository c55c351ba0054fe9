//! Executes instructions on saved registers: those that use their own address and no memory, so none faults. They are
//! prepared once, so executing one needs no decoder, none of our memory and no lock.

use super::decode::{Insn, Kind};
use super::regs::{LINK, ZERO};

/// A thread's registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// `x0`–`x30`.
    pub x: [u64; 31],
    /// The flags, as `mrs` reads them: N, Z, C and V are bits 31 to 28.
    pub flags: u64,
    /// Address of the next instruction.
    pub pc: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Nothing,
    Set {
        register: u8,
        value: u64,
    },
    /// If the flags satisfy the condition.
    Conditional {
        condition: u8,
        to: u64,
    },
    /// If these bits of the register are all zero, or if they are not.
    Bits {
        register: u8,
        bits: u64,
        zero: bool,
        to: u64,
    },
    Jump {
        link: bool,
        to: u64,
    },
    JumpTo {
        link: bool,
        register: u8,
    },
}

/// An instruction that can be simulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Simulation {
    action: Action,
    next: u64,
}

/// Whether a condition holds.
fn holds(condition: u8, flags: u64) -> bool {
    let [v, c, z, n] = [28, 29, 30, 31].map(|bit| flags >> bit & 1 != 0);
    let holds = match condition >> 1 {
        0 => z,
        1 => c,
        2 => n,
        3 => v,
        4 => c && !z,
        5 => n == v,
        6 => n == v && !z,
        _ => return true,
    };
    holds != (condition & 1 != 0)
}

impl Simulation {
    /// Prepares the instruction at the start of `code`, whose address is `addr`; `None` if it cannot be simulated.
    #[must_use]
    pub fn new(code: &[u8], addr: u64) -> Option<Self> {
        let insn = Insn::new(code, addr);
        let to = insn.target();
        let register = insn.rd();
        let action = match insn.kind {
            Kind::Adr | Kind::Adrp => Action::Set {
                register,
                value: to?,
            },
            Kind::Conditional => Action::Conditional {
                condition: insn.field(0, 4) as u8,
                to: to?,
            },
            Kind::CompareZero => Action::Bits {
                register,
                bits: if insn.bit(31) {
                    u64::MAX
                } else {
                    u32::MAX.into()
                },
                zero: !insn.bit(24),
                to: to?,
            },
            Kind::TestBit => Action::Bits {
                register,
                bits: 1 << (insn.field(31, 1) << 5 | insn.field(19, 5)),
                zero: !insn.bit(24),
                to: to?,
            },
            Kind::Branch | Kind::BranchLink => Action::Jump {
                link: insn.kind == Kind::BranchLink,
                to: to?,
            },
            // Not those that authenticate: they use the processor's keys.
            Kind::JumpRegister | Kind::CallRegister | Kind::Return if !insn.bit(11) => {
                Action::JumpTo {
                    link: insn.kind == Kind::CallRegister,
                    register: insn.rn(),
                }
            }
            Kind::Hint if insn.is_nop() => Action::Nothing,
            _ => return None,
        };
        let next = insn.end();
        Some(Self { action, next })
    }

    /// Whether control may go elsewhere than to the next instruction.
    #[must_use]
    pub fn branches(&self) -> bool {
        !matches!(self.action, Action::Nothing | Action::Set { .. })
    }

    /// Executes it: changes registers, and sets `pc` to the address of the next instruction.
    pub fn run(&self, state: &mut State) {
        state.pc = self.run_on(&mut state.x, state.flags);
    }

    /// Executes it on `x0` to `x30`, with these flags. Returns the address of the next instruction.
    pub fn run_on(&self, x: &mut [u64; 31], flags: u64) -> u64 {
        let get = |register: u8| match register {
            ZERO => 0,
            _ => x[usize::from(register)],
        };
        let (to, link) = match self.action {
            Action::Nothing => (None, false),
            Action::Set { register, value } => {
                if register != ZERO {
                    x[usize::from(register)] = value;
                }
                (None, false)
            }
            Action::Conditional { condition, to } => (holds(condition, flags).then_some(to), false),
            Action::Bits {
                register,
                bits,
                zero,
                to,
            } => ((get(register) & bits == 0).eq(&zero).then_some(to), false),
            Action::Jump { link, to } => (Some(to), link),
            // Read before the link is written: both may be the same register.
            Action::JumpTo { link, register } => (Some(get(register)), link),
        };
        if link {
            x[usize::from(LINK)] = self.next;
        }
        to.unwrap_or(self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(word: u32, x: &[(usize, u64)], flags: u64) -> State {
        let mut state = State {
            x: [0; 31],
            flags: flags << 28,
            pc: 0x1000,
        };
        for &(register, value) in x {
            state.x[register] = value;
        }
        let simulation = Simulation::new(&word.to_le_bytes(), 0x1000).expect("it can be simulated");
        simulation.run(&mut state);
        state
    }

    #[test]
    fn addresses_and_jumps() {
        assert_eq!(run(0xB000_0003, &[], 0).x[3], 0x2000); // adrp x3, .+4096
        assert_eq!(run(0x1000_0043, &[], 0).x[3], 0x1008); // adr x3, .+8
        let state = run(0x9400_0010, &[], 0); // bl .+64
        assert_eq!((state.x[30], state.pc), (0x1004, 0x1040));
        let state = run(0xD63F_03C0, &[(30, 0x5000)], 0); // blr x30
        assert_eq!((state.x[30], state.pc), (0x1004, 0x5000));
        assert_eq!(run(0xD65F_03C0, &[(30, 0x5000)], 0).pc, 0x5000); // ret
        assert_eq!(run(0xD503_201F, &[], 0).pc, 0x1004); // nop
    }

    #[test]
    fn branches_by_registers() {
        let pc = |word: u32, value: u64| run(word, &[(4, value)], 0).pc;
        // cbz w4, .+8; cbnz x4, .+8; tbnz x4, #33, .+8
        assert_eq!(
            [pc(0x3400_0044, 1 << 32), pc(0x3400_0044, 1)],
            [0x1008, 0x1004]
        );
        assert_eq!(
            [pc(0xB500_0044, 1 << 32), pc(0xB500_0044, 0)],
            [0x1008, 0x1004]
        );
        assert_eq!(
            [pc(0xB708_0044, 1 << 33), pc(0xB708_0044, 1)],
            [0x1008, 0x1004]
        );
    }

    #[test]
    fn branches_by_flags() {
        let taken =
            |condition: u32, flags: u64| run(0x5400_0040 | condition, &[], flags).pc == 0x1008;
        let [n, z, c, v] = [8, 4, 2, 1];
        assert!(taken(0, z) && !taken(0, n) && taken(1, n));
        assert!(taken(2, c) && taken(3, z));
        assert!(taken(8, c) && !taken(8, c | z) && taken(9, c | z));
        assert!(taken(10, n | v) && !taken(10, n) && taken(11, v));
        assert!(taken(12, 0) && !taken(12, z) && taken(13, z));
        assert!(taken(14, 0) && taken(15, 0));
    }

    #[test]
    fn what_does_not_use_its_address_is_not_simulated() {
        // ldr x0, [x0]; svc #0; mov x0, x1; retaa; no instruction
        for word in [
            0xF940_0000,
            0xD400_0001,
            0xAA01_03E0,
            0xD65F_0BFF,
            0xFFFF_FFFFu32,
        ] {
            assert_eq!(Simulation::new(&word.to_le_bytes(), 0), None);
        }
    }
}
