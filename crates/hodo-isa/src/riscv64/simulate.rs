//! Executes instructions on saved registers: those that use their own address and no memory, so none faults. They are
//! prepared once, so executing one needs no decoder, none of our memory and no lock.

use super::decode::Insn;
use super::decode::Kind;
use super::decode::operand::{funct3, imm_b, imm_i, imm_j, imm_u};
use super::regs::ZERO;

/// A thread's registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// General registers by their numbers. The first always counts as zero.
    pub x: [u64; 32],
    /// Address of the next instruction.
    pub pc: u64,
}

fn get(x: &[u64; 32], register: u8) -> u64 {
    match register {
        ZERO => 0,
        _ => x[usize::from(register)],
    }
}

fn set(x: &mut [u64; 32], register: u8, value: u64) {
    if register != ZERO {
        x[usize::from(register)] = value;
    }
}

/// How two registers must compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Condition {
    Equal,
    NotEqual,
    Less,
    GreaterOrEqual,
    Below,
    AboveOrEqual,
}

impl Condition {
    /// The comparison for the three bits of a branch.
    fn new(bits: u32) -> Option<Self> {
        Some(match bits {
            0 => Self::Equal,
            1 => Self::NotEqual,
            4 => Self::Less,
            5 => Self::GreaterOrEqual,
            6 => Self::Below,
            7 => Self::AboveOrEqual,
            _ => return None,
        })
    }

    fn holds(self, a: u64, b: u64) -> bool {
        match self {
            Self::Equal => a == b,
            Self::NotEqual => a != b,
            Self::Less => (a as i64) < b as i64,
            Self::GreaterOrEqual => a as i64 >= b as i64,
            Self::Below => a < b,
            Self::AboveOrEqual => a >= b,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Nothing,
    Set {
        rd: u8,
        value: u64,
    },
    Branch {
        condition: Condition,
        rs1: u8,
        rs2: u8,
        to: u64,
    },
    Jump {
        rd: u8,
        to: u64,
    },
    JumpTo {
        rd: u8,
        rs1: u8,
        distance: i64,
    },
}

/// An instruction that can be simulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Simulation {
    action: Action,
    next: u64,
}

impl Simulation {
    /// Prepares the instruction at the start of `code`, whose address is `addr`; `None` if it cannot be simulated.
    #[must_use]
    pub fn new(code: &[u8], addr: u64) -> Option<Self> {
        let insn = Insn::new(code, addr);
        let word = insn.word;
        let to = |distance: i64| addr.wrapping_add_signed(distance);
        let (rd, rs1) = (insn.rd(), insn.rs1());
        let action = match insn.kind {
            Kind::Auipc => Action::Set {
                rd,
                value: to(imm_u(word)),
            },
            Kind::Branch => Action::Branch {
                condition: Condition::new(funct3(word))?,
                rs1,
                rs2: insn.rs2(),
                to: to(imm_b(word)),
            },
            Kind::Jal => Action::Jump {
                rd,
                to: to(imm_j(word)),
            },
            Kind::Jalr => Action::JumpTo {
                rd,
                rs1,
                distance: imm_i(word),
            },
            Kind::Plain if insn.is_nop() => Action::Nothing,
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
        state.pc = self.run_on(&mut state.x);
    }

    /// Executes it on general registers by their numbers; the first may hold anything and is not changed. Returns the
    /// address of the next instruction. Copies no memory.
    #[must_use]
    pub fn run_on(&self, x: &mut [u64; 32]) -> u64 {
        let mut next = self.next;
        match self.action {
            Action::Nothing => {}
            Action::Set { rd, value } => set(x, rd, value),
            Action::Branch {
                condition,
                rs1,
                rs2,
                to,
            } => {
                if condition.holds(get(x, rs1), get(x, rs2)) {
                    next = to;
                }
            }
            Action::Jump { rd, to } => {
                set(x, rd, next);
                next = to;
            }
            Action::JumpTo { rd, rs1, distance } => {
                // Read before the link is written: both may be the same register.
                let to = get(x, rs1).wrapping_add_signed(distance) & !1;
                set(x, rd, next);
                next = to;
            }
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(code: &[u8], x: &[(usize, u64)]) -> State {
        let mut state = State {
            x: [0; 32],
            pc: 0x1000,
        };
        for &(register, value) in x {
            state.x[register] = value;
        }
        let simulation = Simulation::new(code, 0x1000).expect("it can be simulated");
        simulation.run(&mut state);
        state
    }

    #[test]
    fn addresses_and_jumps() {
        // auipc ra, 0x2; auipc zero, 0x2
        assert_eq!(run(&[0x97, 0x20, 0, 0], &[]).x[1], 0x3000);
        let state = run(&[0x17, 0x20, 0, 0], &[(0, 7)]);
        assert_eq!((state.x[0], state.pc), (7, 0x1004));
        // jal ra, +16
        let state = run(&[0xEF, 0, 0, 1], &[]);
        assert_eq!((state.x[1], state.pc), (0x1004, 0x1010));
        // jalr ra, -292(ra): reads ra first, and drops the lowest bit
        let state = run(&[0xE7, 0x80, 0xC0, 0xED], &[(1, 0x5001)]);
        assert_eq!((state.x[1], state.pc), (0x1004, 0x4EDC));
        // c.jalr a0; c.jr ra
        let state = run(&[0x02, 0x95], &[(10, 0x2001)]);
        assert_eq!((state.x[1], state.pc), (0x1002, 0x2000));
        assert_eq!(run(&[0x82, 0x80], &[(1, 0x2000)]).pc, 0x2000);
        // c.j -2
        assert_eq!(run(&[0xFD, 0xBF], &[]).pc, 0xFFE);
    }

    #[test]
    fn branches_compare_with_and_without_signs() {
        let branch = |f3: u32, a: u64, b: u64| {
            let word = super::super::encode::b(f3, 10, 11, -8).to_le_bytes();
            run(&word, &[(10, a), (11, b)]).pc == 0xFF8
        };
        let minus = u64::MAX;
        assert!(branch(0, 3, 3) && !branch(0, 3, 4));
        assert!(!branch(1, 3, 3) && branch(1, 3, 4));
        assert!(branch(4, minus, 0) && !branch(4, 0, minus));
        assert!(!branch(5, minus, 0) && branch(5, 0, minus) && branch(5, 1, 1));
        assert!(!branch(6, minus, 0) && branch(6, 0, minus));
        assert!(branch(7, minus, 0) && !branch(7, 0, minus) && branch(7, 1, 1));
    }

    #[test]
    fn what_does_not_use_its_address_is_not_simulated() {
        // ld, ecall, lui, no instruction
        for code in [
            [0x03, 0x35, 0x85, 0],
            [0x73, 0, 0, 0],
            [0x37, 0x15, 0, 0],
            [0x7F, 0, 0, 0],
        ] {
            assert_eq!(Simulation::new(&code, 0), None);
        }
        let nop = Simulation::new(&[1, 0], 0x1000).expect("nop");
        assert!(!nop.branches());
    }
}
