//! A hart that executes RV64IMAC, traps included, and the two proposed instructions.

use hodo_isa::riscv64::Kind;
use hodo_isa::riscv64::decode::Insn;
use hodo_isa::riscv64::decode::operand::{field, funct3, imm_b, imm_i, imm_j, imm_s, imm_u};
use hodo_isa::riscv64::regs::{SP, is_link};

use crate::alu;
use crate::encode::{EBREAK, ECALL, MRET, csr, is_c_jall, is_lrw2spc};
use crate::front::{Flow, FrontEnd};
use crate::memory::{Fault, Memory};
use crate::params::{
    Advance, Calls, Constant, End, Interrupts, LinkValue, Prediction, Proposals, Reservation,
    Saved, Side, Target,
};

/// Why a trap was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Nothing is mapped where the instruction is.
    FetchFault,
    /// No instruction, or one that this hart does not have.
    Illegal,
    /// `ebreak`.
    Breakpoint,
    /// An atomic operation on an address that is not a multiple of its size.
    Misaligned,
    /// A load from where nothing is mapped.
    LoadFault,
    /// A store to where nothing is mapped.
    StoreFault,
    /// `ecall`.
    Call,
    /// An interrupt, of the timer.
    Interrupt,
}

impl Cause {
    /// Its number in `mcause`.
    #[must_use]
    pub const fn number(self) -> u64 {
        match self {
            Self::FetchFault => 12,
            Self::Illegal => 2,
            Self::Breakpoint => 3,
            Self::Misaligned => 6,
            Self::LoadFault => 13,
            Self::StoreFault => 15,
            Self::Call => 11,
            Self::Interrupt => 1 << 63 | 7,
        }
    }
}

/// A trap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trap {
    /// Why.
    pub cause: Cause,
    /// What `mtval` holds.
    pub value: u64,
}

const fn trap(cause: Cause, value: u64) -> Trap {
    Trap { cause, value }
}

/// Control registers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Csrs {
    /// Status: interrupts are enabled, and were.
    pub mstatus: u64,
    /// The handler of traps; 0: there is none, and a trap stops the hart before the instruction.
    pub mtvec: u64,
    /// A word for the handler.
    pub mscratch: u64,
    /// Where the trap was taken.
    pub mepc: u64,
    /// Its cause.
    pub mcause: u64,
    /// Its address.
    pub mtval: u64,
    /// Proposed: the shadow pc there, and whether the mode was on.
    pub mspc: u64,
}

const MIE: u64 = 1 << 3;
const MPIE: u64 = 1 << 7;

impl Csrs {
    fn register(&mut self, number: u16) -> Option<&mut u64> {
        Some(match number {
            csr::MSTATUS => &mut self.mstatus,
            csr::MTVEC => &mut self.mtvec,
            csr::MSCRATCH => &mut self.mscratch,
            csr::MEPC => &mut self.mepc,
            csr::MCAUSE => &mut self.mcause,
            csr::MTVAL => &mut self.mtval,
            csr::MSPC => &mut self.mspc,
            _ => return None,
        })
    }
}

/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It executed an instruction.
    Executed,
    /// A trap was taken: the hart is at its handler; or before the instruction, if there is none.
    Trapped(Trap),
}

/// What happens to the shadow pc.
enum Shadow {
    /// It goes on, or the mode ends.
    Follows,
    /// It is set for the next instruction.
    Set(Option<u64>),
}

/// Where an instruction leads.
struct Done {
    /// `None`: to the next instruction.
    to: Option<u64>,
    flow: Flow,
    shadow: Shadow,
}

impl Done {
    const fn flow(to: Option<u64>, flow: Flow) -> Self {
        Self {
            to,
            flow,
            shadow: Shadow::Follows,
        }
    }
}

const NEXT: Done = Done::flow(None, Flow::Next);

/// A hart.
#[derive(Debug, Clone)]
pub struct Hart {
    /// General registers. The first is always zero.
    pub x: [u64; 32],
    /// The address of the next instruction.
    pub pc: u64,
    /// The shadow pc, while the mode is on: the next instruction takes it for its address.
    pub spc: Option<u64>,
    /// Control registers.
    pub csrs: Csrs,
    /// Memory.
    pub memory: Memory,
    /// What the proposals are.
    pub proposals: Proposals,
    /// What fetches and predicts.
    pub front: FrontEnd,
    reservation: Option<u64>,
    /// The shadow pc was loaded, and not yet when it would have been needed.
    unknown: bool,
}

impl Hart {
    /// Creates a hart with zeros in its registers.
    #[must_use]
    pub fn new(memory: Memory, proposals: Proposals) -> Self {
        Self {
            x: [0; 32],
            pc: 0,
            spc: None,
            csrs: Csrs::default(),
            memory,
            proposals,
            front: FrontEnd::default(),
            reservation: None,
            unknown: false,
        }
    }

    fn get(&self, register: u8) -> u64 {
        self.x[usize::from(register)]
    }

    fn set(&mut self, register: u8, value: u64) {
        if register != 0 {
            self.x[usize::from(register)] = value;
        }
    }

    /// Executes one instruction.
    pub fn step(&mut self) -> Step {
        let pc = self.pc;
        let (insn, bytes) = match self.fetch() {
            Ok(fetched) => fetched,
            Err(trap) => return self.enter(trap),
        };
        let len = u64::from(insn.len);
        let half = bytes as u16;
        let proposed = self.proposals;
        let link = is_c_jall(proposed.cjall, half, proposed.cjall_link);
        let (len, done) = match link {
            Some(link) => (6, self.call_literal(link)),
            None => (len, self.execute(&insn)),
        };
        let done = match done {
            Ok(done) => done,
            Err(trap) => return self.enter(trap),
        };
        self.front.fetch(pc, len);
        let next = done.to.unwrap_or(pc.wrapping_add(len));
        self.front.executed(pc, len, done.flow, next);
        self.pc = next;
        let over = done.to.is_some() || proposed.end == End::Branch && done.flow != Flow::Next;
        let step = match proposed.advance {
            Advance::Length => len,
            Advance::Four => 4,
        };
        self.spc = match done.shadow {
            Shadow::Set(shadow) => shadow,
            Shadow::Follows => self.spc.filter(|_| !over).map(|spc| spc.wrapping_add(step)),
        };
        Step::Executed
    }

    /// Executes instructions until `until` holds before one of them, at most `limit`. Returns whether it did.
    pub fn run(&mut self, limit: u64, mut until: impl FnMut(&Self) -> bool) -> bool {
        for _ in 0..limit {
            if until(self) {
                return true;
            }
            if let Step::Trapped(_) = self.step()
                && self.csrs.mtvec == 0
            {
                return false;
            }
        }
        until(self)
    }

    /// A timer interrupts, if that is allowed now. Returns whether it did.
    pub fn interrupt(&mut self) -> bool {
        let held = self.spc.is_some() && self.proposals.interrupts == Interrupts::Held;
        let taken = !held && self.csrs.mstatus & MIE != 0 && self.csrs.mtvec != 0;
        if taken {
            self.enter(trap(Cause::Interrupt, 0));
        }
        taken
    }

    /// The instruction at the pc, and its first bytes.
    fn fetch(&mut self) -> Result<(Insn, u32), Trap> {
        let pc = self.pc;
        let fault = |Fault(at)| trap(Cause::FetchFault, at);
        let low = self.memory.fetch(pc, 2).map_err(fault)? as u32;
        let mut word = low;
        if low & 0b11 == 0b11 {
            word |= (self.memory.fetch(pc.wrapping_add(2), 2).map_err(fault)? as u32) << 16;
        }
        let bytes = word.to_le_bytes();
        let len = if low & 0b11 == 0b11 { 4 } else { 2 };
        Ok((Insn::new(&bytes[..len], pc), word))
    }

    /// The address that the instruction takes for its own.
    fn own(&mut self) -> u64 {
        let Some(spc) = self.spc else {
            return self.pc;
        };
        if std::mem::take(&mut self.unknown) {
            self.front.counts.waits += 1;
        }
        spc
    }

    /// The return address of a jump with this length.
    fn after(&mut self, len: u8) -> u64 {
        let at = match self.proposals.link_value {
            LinkValue::Shadow => self.own(),
            LinkValue::Real => self.pc,
        };
        at.wrapping_add(len.into())
    }

    fn execute(&mut self, insn: &Insn) -> Result<Done, Trap> {
        let word = insn.word;
        let (rd, f3) = (insn.rd(), funct3(word));
        let (a, b) = (self.get(insn.rs1()), self.get(insn.rs2()));
        let illegal = trap(Cause::Illegal, word.into());
        let narrow = word & 8 != 0;
        let value = match (insn.kind, word & 0x7F) {
            (Kind::Invalid, _) => {
                let distance = is_lrw2spc(self.proposals.immediate, word).filter(|_| insn.len == 4);
                return self.load_shadow(distance.ok_or(illegal)?);
            }
            (_, 0x37) => imm_u(word) as u64,
            (Kind::Auipc, _) => self.own().wrapping_add_signed(imm_u(word)),
            (Kind::Plain, 0x13 | 0x1B) => {
                let value = alu::op_imm(word, f3, a, imm_i(word) as u64, narrow);
                value.ok_or(illegal)?
            }
            (Kind::Plain, 0x33 | 0x3B) => {
                alu::op(field(word, 25, 7), f3, a, b, narrow).ok_or(illegal)?
            }
            (Kind::Jal, _) => {
                let to = self.own().wrapping_add_signed(imm_j(word));
                return Ok(self.jump(insn, to, false));
            }
            (Kind::Jalr, _) => {
                let to = a.wrapping_add_signed(imm_i(word)) & !1;
                return Ok(self.jump(insn, to, true));
            }
            (Kind::Branch, _) => {
                let taken = alu::taken(f3, a, b).ok_or(illegal)?;
                let to = taken.then(|| self.own().wrapping_add_signed(imm_b(word)));
                return Ok(Done::flow(to, Flow::Branch));
            }
            (Kind::Load(size), 0x03) => {
                let at = a.wrapping_add_signed(imm_i(word));
                let value = self.load(at, size)?;
                if f3 < 4 { extend(value, size) } else { value }
            }
            (Kind::Store(size), 0x23) => {
                self.store(a.wrapping_add_signed(imm_s(word)), size, b)?;
                return Ok(NEXT);
            }
            (Kind::LoadReserved(size) | Kind::StoreConditional(size) | Kind::Atomic(size), _) => {
                self.atomic(insn, size, (a, b))?
            }
            (Kind::Fence, _) => return Ok(NEXT),
            (Kind::FenceI, _) => {
                self.memory.synchronize();
                return Ok(NEXT);
            }
            (Kind::Ecall | Kind::Ebreak | Kind::Csr | Kind::Privileged, _) => {
                return self.system(insn, a);
            }
            _ => return Err(illegal),
        };
        self.set(rd, value);
        Ok(NEXT)
    }

    fn jump(&mut self, insn: &Insn, to: u64, through: bool) -> Done {
        let rd = insn.rd();
        let after = self.after(insn.len);
        self.set(rd, after);
        let returns = through && is_link(insn.rs1()) && insn.rs1() != rd;
        let flow = match (is_link(rd), returns) {
            (false, false) => Flow::Jump,
            (true, false) => Flow::Call(after),
            (false, true) => Flow::Return,
            (true, true) => Flow::ReturnAndCall(after),
        };
        Done::flow(Some(to), flow)
    }

    fn load(&mut self, at: u64, size: u8) -> Result<u64, Trap> {
        self.front.counts.accesses += 1;
        let fault = |Fault(at)| trap(Cause::LoadFault, at);
        self.memory.load(at, size).map_err(fault)
    }

    fn store(&mut self, at: u64, size: u8, value: u64) -> Result<(), Trap> {
        self.front.counts.accesses += 1;
        let below = self.get(SP).wrapping_sub(at);
        self.front.counts.exposed += u64::from((1..=4096).contains(&below));
        let fault = |Fault(at)| trap(Cause::StoreFault, at);
        self.memory.store(at, size, value).map_err(fault)
    }

    /// `lr`, `sc` and atomic operations: the value of their destination.
    fn atomic(&mut self, insn: &Insn, size: u8, (at, operand): (u64, u64)) -> Result<u64, Trap> {
        if !(size == 4 || size == 8) {
            return Err(trap(Cause::Illegal, insn.word.into()));
        }
        if !at.is_multiple_of(size.into()) {
            return Err(trap(Cause::Misaligned, at));
        }
        match insn.kind {
            Kind::LoadReserved(_) => {
                let value = self.load(at, size)?;
                self.reservation = Some(at);
                Ok(extend(value, size))
            }
            Kind::StoreConditional(_) => {
                let holds = self.reservation.take() == Some(at);
                if holds {
                    self.store(at, size, operand)?;
                }
                Ok(u64::from(!holds))
            }
            _ => {
                let old = extend(self.load(at, size)?, size);
                let new = alu::amo(field(insn.word, 27, 5), old, operand, size == 4);
                let new = new.ok_or(trap(Cause::Illegal, insn.word.into()))?;
                self.store(at, size, new)?;
                Ok(old)
            }
        }
    }

    fn system(&mut self, insn: &Insn, a: u64) -> Result<Done, Trap> {
        let word = insn.word;
        let illegal = trap(Cause::Illegal, word.into());
        match word {
            ECALL => return Err(trap(Cause::Call, 0)),
            EBREAK => return Err(trap(Cause::Breakpoint, self.pc)),
            MRET => return Ok(self.leave()),
            _ => {}
        }
        let register = insn.csr().and_then(|number| self.csrs.register(number));
        let register = register.ok_or(illegal)?;
        let operand = match funct3(word) & 4 {
            0 => a,
            _ => insn.rs1().into(),
        };
        let old = *register;
        match funct3(word) & 3 {
            1 => *register = operand,
            2 => *register |= operand,
            _ => *register &= !operand,
        }
        self.set(insn.rd(), old);
        Ok(NEXT)
    }

    /// `lrw2spc`. Its literal is at a distance from the real pc, also in the mode.
    fn load_shadow(&mut self, distance: i64) -> Result<Done, Trap> {
        let at = self.pc.wrapping_add_signed(distance);
        let size = match self.proposals.constant {
            Constant::Word => 4,
            Constant::Double => 8,
        };
        let value = self.literal(at, size)?;
        if self.proposals.reservation == Reservation::Lost {
            self.reservation = None;
        }
        let known = self.front.shadowed(self.pc, value);
        self.unknown = !(known && self.proposals.prediction == Prediction::Table);
        Ok(Done {
            shadow: Shadow::Set(Some(value & !1)),
            ..NEXT
        })
    }

    /// Reads a literal, sign-extended.
    fn literal(&mut self, at: u64, size: u8) -> Result<u64, Trap> {
        let value = match self.proposals.side {
            Side::Data => self.load(at, size)?,
            Side::Instruction => {
                self.front.fetch(at, size.into());
                let fault = |Fault(at)| trap(Cause::FetchFault, at);
                self.memory.fetch(at, size).map_err(fault)?
            }
        };
        Ok(extend(value, size))
    }

    /// `c.jall`. Its literal follows it, so it is at the real pc; a relative target is relative to the address that the
    /// instruction takes for its own.
    fn call_literal(&mut self, link: u8) -> Result<Done, Trap> {
        let at = self.pc.wrapping_add(2);
        // `step` counts the literal as a part of the instruction.
        let value = match self.proposals.side {
            Side::Data => self.load(at, 4)?,
            Side::Instruction => {
                let fault = |Fault(at)| trap(Cause::FetchFault, at);
                self.memory.fetch(at, 4).map_err(fault)?
            }
        };
        let value = extend(value, 4);
        let to = match self.proposals.target {
            Target::Relative => self.own().wrapping_add(value),
            Target::Absolute => value,
        };
        let after = self.after(6);
        self.set(link, after);
        let flow = if is_link(link) {
            Flow::Call(after)
        } else {
            Flow::Jump
        };
        Ok(Done::flow(Some(to & !1), flow))
    }

    /// Takes a trap.
    fn enter(&mut self, trap: Trap) -> Step {
        if self.csrs.mtvec == 0 {
            return Step::Trapped(trap);
        }
        let calls = matches!(trap.cause, Cause::Call | Cause::Breakpoint);
        let saved = match self.proposals.calls {
            Calls::End if calls => Saved::Shadow,
            _ => self.proposals.saved,
        };
        let shadow = self.spc.take();
        self.csrs.mepc = match (saved, shadow) {
            (Saved::Shadow, Some(spc)) => spc,
            _ => self.pc,
        };
        self.csrs.mspc = match (saved, shadow) {
            (Saved::Both, Some(spc)) => spc | 1,
            _ => 0,
        };
        self.csrs.mcause = trap.cause.number();
        self.csrs.mtval = trap.value;
        let enabled = self.csrs.mstatus & MIE != 0;
        self.csrs.mstatus &= !(MIE | MPIE);
        self.csrs.mstatus |= if enabled { MPIE } else { 0 };
        self.reservation = None;
        self.unknown = false;
        self.pc = self.csrs.mtvec;
        self.front.counts.traps += 1;
        self.front.flush();
        Step::Trapped(trap)
    }

    /// `mret`.
    fn leave(&mut self) -> Done {
        let was = self.csrs.mstatus & MPIE != 0;
        self.csrs.mstatus &= !(MIE | MPIE);
        self.csrs.mstatus |= MPIE | if was { MIE } else { 0 };
        let shadow = std::mem::take(&mut self.csrs.mspc);
        Done {
            to: Some(self.csrs.mepc & !1),
            flow: Flow::Resume,
            shadow: Shadow::Set((shadow & 1 != 0).then_some(shadow & !1)),
        }
    }
}

/// Sign-extends a number of this many bytes.
const fn extend(value: u64, size: u8) -> u64 {
    let shift = 64 - 8 * size as u32;
    (((value << shift) as i64) >> shift) as u64
}
