//! Executes instructions on saved registers: those that use the instruction pointer, and some that are frequent at
//! probed places. They are prepared once, so executing one needs no decoder, none of our memory and no lock.

use iced_x86::{
    Code, ConditionCode, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind,
    Register,
};

use super::relocate::is_narrow;
use super::scan::is_nop;

pub(super) const RSP: usize = 4;
pub(super) const RCX: usize = 1;

pub(super) const CARRY: u64 = 1;
pub(super) const PARITY: u64 = 1 << 2;
pub(super) const ZERO: u64 = 1 << 6;
pub(super) const SIGN: u64 = 1 << 7;
pub(super) const OVERFLOW: u64 = 1 << 11;

/// A memory access that faults: the instruction has done nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault;

/// The memory on which instructions work.
pub trait Memory {
    /// Reads.
    ///
    /// # Errors
    /// If that faults.
    fn read(&mut self, addr: u64, into: &mut [u8]) -> Result<(), Fault>;

    /// Writes.
    ///
    /// # Errors
    /// If that faults.
    fn write(&mut self, addr: u64, from: &[u8]) -> Result<(), Fault>;
}

/// An eight-byte operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operand {
    Register(u8),
    Memory(Address),
}

/// A memory operand: base and index by their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Address {
    base: Option<u8>,
    index: Option<u8>,
    scale: u8,
    displacement: u64,
    /// The address is 32 bits wide.
    narrow: bool,
}

impl Address {
    fn of(&self, registers: &[u64; 16]) -> u64 {
        let register =
            |number: Option<u8>| number.map_or(0, |number| registers[usize::from(number)]);
        let index = register(self.index).wrapping_mul(u64::from(self.scale));
        let whole = register(self.base)
            .wrapping_add(index)
            .wrapping_add(self.displacement);
        if self.narrow {
            whole & 0xFFFF_FFFF
        } else {
            whole
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Nothing,
    Jump(u64),
    Branch(ConditionCode, u64),
    /// Depends on `rcx` or `ecx`, which is decreased first, and perhaps also on the zero flag.
    Count {
        wide: bool,
        decreases: bool,
        zero: Option<bool>,
        target: u64,
    },
    Call(u64),
    JumpTo(Operand),
    CallTo(Operand),
    Return(u16),
    Set(u8, u64),
    Load {
        to: u8,
        size: u8,
        from: Address,
    },
    Store {
        from: u8,
        size: u8,
        to: Address,
    },
    Push(u8),
    Pop(u8),
}

/// An instruction that can be simulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Simulation {
    kind: Kind,
    next: u64,
}

impl Simulation {
    /// Prepares the instruction at the start of `code`, whose address is `addr`; `None` if it cannot be simulated.
    #[must_use]
    pub fn new(code: &[u8], addr: u64) -> Option<Self> {
        let raw = Decoder::with_ip(64, code, addr, DecoderOptions::NONE).decode();
        if raw.is_invalid() {
            return None;
        }
        // Processors disagree on whether a 16-bit prefix makes a branch 16 bits wide.
        if raw.flow_control() != FlowControl::Next && is_narrow(code.get(..raw.len())?) {
            return None;
        }
        // A repetition prefix on a counting branch has an effect that is not documented.
        let repeats = raw.has_rep_prefix() || raw.has_repne_prefix();
        if repeats
            && raw.flow_control() == FlowControl::ConditionalBranch
            && !raw.is_jcc_short_or_near()
        {
            return None;
        }
        let next = raw.next_ip();
        kind(&raw).map(|kind| Self { kind, next })
    }

    /// Whether control may go elsewhere than to the next instruction.
    #[must_use]
    pub fn branches(&self) -> bool {
        !matches!(
            self.kind,
            Kind::Nothing
                | Kind::Set(..)
                | Kind::Load { .. }
                | Kind::Store { .. }
                | Kind::Push(_)
                | Kind::Pop(_)
        )
    }

    /// Executes it. The registers are in the order of the processor's numbers; sets `pc` to the address of the next
    /// instruction.
    ///
    /// # Errors
    /// If an access to memory faults; nothing is changed then.
    pub fn run(
        &self,
        registers: &mut [u64; 16],
        flags: &mut u64,
        pc: &mut u64,
        memory: &mut impl Memory,
    ) -> Result<(), Fault> {
        let mut next = self.next;
        match self.kind {
            Kind::Nothing => {}
            Kind::Jump(target) => next = target,
            Kind::Branch(condition, target) => {
                if holds(condition, *flags) {
                    next = target;
                }
            }
            Kind::Count {
                wide,
                decreases,
                zero,
                target,
            } => {
                let mask = if wide { u64::MAX } else { 0xFFFF_FFFF };
                let count = registers[RCX].wrapping_sub(u64::from(decreases)) & mask;
                if decreases {
                    registers[RCX] = count;
                }
                let flag = zero.is_none_or(|zero| zero == (*flags & ZERO != 0));
                if (count != 0) == decreases && flag {
                    next = target;
                }
            }
            Kind::Call(target) => {
                push(registers, memory, self.next)?;
                next = target;
            }
            Kind::JumpTo(operand) => next = word(operand, registers, memory)?,
            Kind::CallTo(operand) => {
                let target = word(operand, registers, memory)?;
                push(registers, memory, self.next)?;
                next = target;
            }
            Kind::Return(more) => {
                next = load(memory, registers[RSP], 8)?;
                registers[RSP] = registers[RSP].wrapping_add(8 + u64::from(more));
            }
            Kind::Set(to, value) => registers[usize::from(to)] = value,
            Kind::Load { to, size, from } => {
                registers[usize::from(to)] = load(memory, from.of(registers), size)?;
            }
            Kind::Store { from, size, to } => {
                let value = registers[usize::from(from)].to_le_bytes();
                memory.write(to.of(registers), &value[..usize::from(size)])?;
            }
            Kind::Push(from) => push(registers, memory, registers[usize::from(from)])?,
            Kind::Pop(to) => {
                let value = load(memory, registers[RSP], 8)?;
                registers[RSP] = registers[RSP].wrapping_add(8);
                registers[usize::from(to)] = value;
            }
        }
        *pc = next;
        Ok(())
    }
}

fn load(memory: &mut impl Memory, addr: u64, size: u8) -> Result<u64, Fault> {
    let mut value = [0; 8];
    memory.read(addr, &mut value[..usize::from(size)])?;
    Ok(u64::from_le_bytes(value))
}

fn push(registers: &mut [u64; 16], memory: &mut impl Memory, value: u64) -> Result<(), Fault> {
    let to = registers[RSP].wrapping_sub(8);
    memory.write(to, &value.to_le_bytes())?;
    registers[RSP] = to;
    Ok(())
}

fn word(operand: Operand, registers: &[u64; 16], memory: &mut impl Memory) -> Result<u64, Fault> {
    match operand {
        Operand::Register(number) => Ok(registers[usize::from(number)]),
        Operand::Memory(address) => load(memory, address.of(registers), 8),
    }
}

/// Whether a condition holds.
pub(super) fn holds(condition: ConditionCode, flags: u64) -> bool {
    let set = |flag: u64| flags & flag != 0;
    let less = set(SIGN) != set(OVERFLOW);
    match condition {
        ConditionCode::None => true,
        ConditionCode::o => set(OVERFLOW),
        ConditionCode::no => !set(OVERFLOW),
        ConditionCode::b => set(CARRY),
        ConditionCode::ae => !set(CARRY),
        ConditionCode::e => set(ZERO),
        ConditionCode::ne => !set(ZERO),
        ConditionCode::be => set(CARRY | ZERO),
        ConditionCode::a => !set(CARRY | ZERO),
        ConditionCode::s => set(SIGN),
        ConditionCode::ns => !set(SIGN),
        ConditionCode::p => set(PARITY),
        ConditionCode::np => !set(PARITY),
        ConditionCode::l => less,
        ConditionCode::ge => !less,
        ConditionCode::le => less || set(ZERO),
        ConditionCode::g => !less && !set(ZERO),
    }
}

fn number(register: Register) -> Option<u8> {
    register
        .is_gpr()
        .then(|| register.full_register().number() as u8)
}

/// The address of a memory operand; `None` if it has a segment, a vector register or another size.
fn address(raw: &Instruction) -> Option<Address> {
    let plain = [Register::DS, Register::SS, Register::CS, Register::ES];
    if !plain.contains(&raw.memory_segment()) {
        return None;
    }
    if raw.is_ip_rel_memory_operand() {
        let displacement = raw.ip_rel_memory_address();
        return Some(Address {
            base: None,
            index: None,
            scale: 1,
            displacement,
            narrow: false,
        });
    }
    let of = |register: Register| match register {
        Register::None => Some(None),
        _ => number(register).map(Some),
    };
    let narrow = [raw.memory_base(), raw.memory_index()]
        .iter()
        .any(|register| register.is_gpr32())
        || raw.memory_displ_size() == 4
            && raw.memory_base() == Register::None
            && raw.memory_index() == Register::None;
    Some(Address {
        base: of(raw.memory_base())?,
        index: of(raw.memory_index())?,
        scale: raw.memory_index_scale() as u8,
        displacement: raw.memory_displacement64(),
        narrow,
    })
}

fn operand(raw: &Instruction) -> Option<Operand> {
    match raw.op0_kind() {
        OpKind::Register => number(raw.op0_register()).map(Operand::Register),
        OpKind::Memory => address(raw).map(Operand::Memory),
        _ => None,
    }
}

fn kind(raw: &Instruction) -> Option<Kind> {
    let near = raw.op0_kind() == OpKind::NearBranch64;
    if near && raw.near_branch64() == 0 {
        return None;
    }
    match raw.flow_control() {
        FlowControl::UnconditionalBranch if near => return Some(Kind::Jump(raw.near_branch64())),
        FlowControl::ConditionalBranch if near => {
            let target = raw.near_branch64();
            let count = |wide, decreases, zero| {
                Some(Kind::Count {
                    wide,
                    decreases,
                    zero,
                    target,
                })
            };
            return match raw.code() {
                Code::Jrcxz_rel8_64 => count(true, false, None),
                Code::Jecxz_rel8_64 => count(false, false, None),
                Code::Loop_rel8_64_RCX => count(true, true, None),
                Code::Loop_rel8_64_ECX => count(false, true, None),
                Code::Loope_rel8_64_RCX => count(true, true, Some(true)),
                Code::Loope_rel8_64_ECX => count(false, true, Some(true)),
                Code::Loopne_rel8_64_RCX => count(true, true, Some(false)),
                Code::Loopne_rel8_64_ECX => count(false, true, Some(false)),
                _ if raw.is_jcc_short_or_near() => Some(Kind::Branch(raw.condition_code(), target)),
                _ => None,
            };
        }
        FlowControl::Call if raw.code() == Code::Call_rel32_64 => {
            return Some(Kind::Call(raw.near_branch64()));
        }
        FlowControl::IndirectCall if raw.code() == Code::Call_rm64 => {
            return operand(raw).map(Kind::CallTo);
        }
        FlowControl::IndirectBranch if raw.code() == Code::Jmp_rm64 => {
            return operand(raw).map(Kind::JumpTo);
        }
        FlowControl::Return => {
            return match raw.code() {
                Code::Retnq => Some(Kind::Return(0)),
                Code::Retnq_imm16 => Some(Kind::Return(raw.immediate16())),
                _ => None,
            };
        }
        FlowControl::Next => {}
        _ => return None,
    }
    match raw.code() {
        Code::Endbr64 => Some(Kind::Nothing),
        _ if is_nop(raw) => Some(Kind::Nothing),
        Code::Lea_r64_m if raw.is_ip_rel_memory_operand() => Some(Kind::Set(
            number(raw.op0_register())?,
            raw.ip_rel_memory_address(),
        )),
        Code::Lea_r32_m if raw.is_ip_rel_memory_operand() => {
            let value = raw.ip_rel_memory_address() & 0xFFFF_FFFF;
            Some(Kind::Set(number(raw.op0_register())?, value))
        }
        Code::Mov_r64_rm64 | Code::Mov_r32_rm32 if raw.op1_kind() == OpKind::Memory => {
            Some(Kind::Load {
                to: number(raw.op0_register())?,
                size: raw.op0_register().size() as u8,
                from: address(raw)?,
            })
        }
        Code::Mov_rm64_r64 | Code::Mov_rm32_r32 if raw.op0_kind() == OpKind::Memory => {
            Some(Kind::Store {
                from: number(raw.op1_register())?,
                size: raw.op1_register().size() as u8,
                to: address(raw)?,
            })
        }
        Code::Push_r64 => Some(Kind::Push(number(raw.op0_register())?)),
        Code::Pop_r64 if raw.mnemonic() == Mnemonic::Pop => {
            Some(Kind::Pop(number(raw.op0_register())?))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct None;

    impl Memory for None {
        fn read(&mut self, _: u64, _: &mut [u8]) -> Result<(), Fault> {
            Err(Fault)
        }

        fn write(&mut self, _: u64, _: &[u8]) -> Result<(), Fault> {
            Err(Fault)
        }
    }

    fn goes_to(code: &[u8], count: u64, flags: u64) -> u64 {
        let simulation = Simulation::new(code, 0x1000).expect("it can be simulated");
        let mut registers = [0; 16];
        registers[RCX] = count;
        let (mut flags, mut pc) = (flags, 0);
        simulation
            .run(&mut registers, &mut flags, &mut pc, &mut None)
            .expect("it does not fault");
        pc
    }

    #[test]
    fn counting_branches() {
        // loopne -10
        let code = [0xE0, 0xF6];
        assert_eq!(goes_to(&code, 2, 0), 0xFF8);
        assert_eq!(goes_to(&code, 2, ZERO), 0x1002);
        assert_eq!(goes_to(&code, 1, 0), 0x1002);
        assert_eq!(Simulation::new(&[0xF3, 0xE0, 0xF6], 0), Option::None);
        // loope, loop, jrcxz, jecxz
        assert_eq!(goes_to(&[0xE1, 0xF6], 2, ZERO), 0xFF8);
        assert_eq!(goes_to(&[0xE2, 0xF6], 0, 0), 0xFF8);
        assert_eq!(goes_to(&[0xE3, 0xF6], 0, 0), 0xFF8);
        assert_eq!(goes_to(&[0xE3, 0xF6], 1 << 32, 0), 0x1002);
        assert_eq!(goes_to(&[0x67, 0xE3, 0xF6], 1 << 32, 0), 0xFF9);
    }

    #[test]
    fn what_faults_changes_nothing() {
        // push rax
        let simulation = Simulation::new(&[0x50], 0x1000).expect("it can be simulated");
        let mut registers = [7; 16];
        let (mut flags, mut pc) = (0, 5);
        assert_eq!(
            simulation.run(&mut registers, &mut flags, &mut pc, &mut None),
            Err(Fault)
        );
        assert_eq!((registers, flags, pc), ([7; 16], 0, 5));
    }
}
