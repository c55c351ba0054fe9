//! What an instruction does: with registers, flags, memory and control, and whether it may fault.

use hodo_isa::effects::Effects;
use iced_x86::{
    Decoder, DecoderOptions, FlowControl, InstructionInfo, InstructionInfoFactory, Mnemonic,
    OpAccess, OpKind, Register, UsedMemory,
};

use super::flags::{overwritten_flags, read_flags};
use super::special::cleared;
use crate::access::Kind;
use crate::block::Transfer;

pub(super) const RSP: usize = 4;
/// Registers that clients receive, by what is noted of an instruction (System V ABI for AMD64, section 3.2.3 and
/// A.2.1).
pub(super) const ENTRY: &[u8] = &[7, 6, 2, 4];
pub(super) const CALL: &[u8] = &[0, 7, 6, 2, 10, 8, 9];
pub(super) const RESULT: &[u8] = &[0];

/// What an instruction does, as far as blocks depend on that.
#[derive(Debug)]
pub(crate) struct Facts {
    insn: iced_x86::Instruction,
    pub(super) memory: Vec<UsedMemory>,
    /// What it does to general registers: a bit for each, by number.
    pub(super) effects: Effects<u16>,
    /// It sets the first register to the second one, if there is one, plus a number.
    pub(super) sets: Option<(usize, Option<usize>, i64)>,
    /// A register, the upper half of which it sets to zero or to copies of the lower half's sign.
    pub(super) extends: Option<(usize, Extension)>,
    pub(super) transfer: Transfer,
}

/// Finds out what an instruction does. `bytes` are its own. `factory` has memory for that.
pub(crate) fn facts(factory: &mut InstructionInfoFactory, pc: u64, bytes: &[u8]) -> Facts {
    let insn = Decoder::with_ip(64, bytes, pc, DecoderOptions::NONE).decode();
    let info = factory.info(&insn);
    let effects = effects(info, &insn);
    let memory = info.used_memory().iter();
    let memory = memory.filter(|used| !kinds(used.access()).is_empty());
    let mut memory: Vec<UsedMemory> = memory.copied().collect();
    if insn.mnemonic() == Mnemonic::Clzero {
        memory = vec![cleared()];
    }
    Facts {
        memory,
        effects,
        sets: sets(&insn),
        extends: extends(&insn),
        transfer: transfer(&insn),
        insn,
    }
}

/// What an instruction does to general registers.
fn effects(info: &InstructionInfo, insn: &iced_x86::Instruction) -> Effects<u16> {
    let mut effects = Effects::default();
    for register in info.used_registers() {
        let Some(number) = general(register.register()) else {
            continue;
        };
        let access = register.access();
        let writes = matches!(access, OpAccess::Write | OpAccess::ReadWrite);
        let may_write = matches!(access, OpAccess::CondWrite | OpAccess::ReadCondWrite);
        let is_whole = register.register().size() >= 4;
        effects.reads |= u16::from(access != OpAccess::Write || !is_whole) << number;
        effects.writes |= u16::from(writes && is_whole) << number;
        effects.changes |= u16::from(writes || may_write) << number;
    }
    if may_change_nothing(insn) {
        effects.reads |= effects.changes;
        effects.writes = 0;
    }
    effects
}

/// Whether an instruction may leave the registers that it writes as they are: those of shadow stacks do if there is
/// none, and others do if they find nothing (Intel's manual, volume 2).
fn may_change_nothing(insn: &iced_x86::Instruction) -> bool {
    matches!(
        insn.mnemonic(),
        Mnemonic::Rdsspd
            | Mnemonic::Rdsspq
            | Mnemonic::Bsf
            | Mnemonic::Bsr
            | Mnemonic::Lar
            | Mnemonic::Lsl
    )
}

/// How the upper half of a register comes from its lower half.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extension {
    Zero,
    Sign,
}

/// The register whose upper half an instruction sets, if it changes that, whatever it computes.
fn extends(insn: &iced_x86::Instruction) -> Option<(usize, Extension)> {
    if insn.mnemonic() == Mnemonic::Cdqe {
        return Some((0, Extension::Sign));
    }
    if insn.op_count() == 0 || insn.op0_kind() != OpKind::Register {
        return None;
    }
    let to = insn.op0_register();
    let number = general(to)?;
    match insn.mnemonic() {
        Mnemonic::Movsx | Mnemonic::Movsxd if to.is_gpr64() => Some((number, Extension::Sign)),
        // Results of 32 bits are extended with zeros. Some other instructions may leave the register as it is.
        Mnemonic::Mov
        | Mnemonic::Movzx
        | Mnemonic::Movsx
        | Mnemonic::Lea
        | Mnemonic::Add
        | Mnemonic::Adc
        | Mnemonic::Sub
        | Mnemonic::Sbb
        | Mnemonic::And
        | Mnemonic::Or
        | Mnemonic::Xor
        | Mnemonic::Imul
        | Mnemonic::Inc
        | Mnemonic::Dec
        | Mnemonic::Neg
        | Mnemonic::Not
        | Mnemonic::Shr
        | Mnemonic::Shl
        | Mnemonic::Sar
        | Mnemonic::Movd
        | Mnemonic::Vmovd
        | Mnemonic::Pmovmskb
        | Mnemonic::Vpmovmskb
        | Mnemonic::Popcnt
            if to.is_gpr32() =>
        {
            Some((number, Extension::Zero))
        }
        // The smaller ones too: the register is written as a whole.
        Mnemonic::Movzx if to.is_gpr64() => Some((number, Extension::Zero)),
        _ => None,
    }
}

/// The sum that an instruction leaves in a register: the register, another one, and a number.
fn sets(insn: &iced_x86::Instruction) -> Option<(usize, Option<usize>, i64)> {
    let is_plain_stack = matches!(
        insn.mnemonic(),
        Mnemonic::Push | Mnemonic::Pop | Mnemonic::Pushfq | Mnemonic::Popfq
    );
    let pops_itself =
        insn.mnemonic() == Mnemonic::Pop && insn.op0_register().full_register() == Register::RSP;
    if is_plain_stack && !pops_itself {
        return Some((RSP, Some(RSP), insn.stack_pointer_increment().into()));
    }
    if insn.op_count() == 0 || insn.op0_kind() != OpKind::Register {
        return None;
    }
    let to = general(insn.op0_register())?;
    if insn.op0_register().is_gpr32() {
        let constant = match insn.mnemonic() {
            Mnemonic::Mov => insn.try_immediate(1).ok()? & u64::from(u32::MAX),
            Mnemonic::Xor if insn.op1_kind() == OpKind::Register => {
                (insn.op0_register() == insn.op1_register()).then_some(0)?
            }
            _ => return None,
        };
        return Some((to, None, constant.cast_signed()));
    }
    if !insn.op0_register().is_gpr64() {
        return None;
    }
    let immediate = || insn.try_immediate(1).ok().map(u64::cast_signed);
    let whole = |register: Register| general(register).filter(|_| register.is_gpr64());
    Some(match insn.mnemonic() {
        Mnemonic::Add => (to, Some(to), immediate()?),
        Mnemonic::Sub => (to, Some(to), immediate()?.wrapping_neg()),
        Mnemonic::Inc => (to, Some(to), 1),
        Mnemonic::Dec => (to, Some(to), -1),
        Mnemonic::Mov if insn.op1_kind() == OpKind::Register => {
            (to, Some(whole(insn.op1_register())?), 0)
        }
        Mnemonic::Mov => (to, None, immediate()?),
        Mnemonic::Lea if insn.is_ip_rel_memory_operand() => {
            (to, None, insn.ip_rel_memory_address().cast_signed())
        }
        Mnemonic::Lea if insn.memory_index() == Register::None => {
            let base = whole(insn.memory_base())?;
            (to, Some(base), insn.memory_displacement64().cast_signed())
        }
        _ => return None,
    })
}

impl Facts {
    /// General registers that it reads, or of which it may leave a part as it is: a bit for each, by number.
    pub(super) fn reads(&self) -> u16 {
        self.effects.reads
    }

    /// Those that it changes, or may change.
    pub(super) fn changes(&self) -> u16 {
        self.effects.changes
    }

    /// Those that it reads or changes.
    pub(super) fn used(&self) -> u16 {
        self.effects.reads | self.effects.changes
    }

    /// The flags that it reads, and those that it overwrites.
    pub(super) fn flags(&self) -> (u32, u32) {
        (read_flags(&self.insn), overwritten_flags(&self.insn))
    }

    /// The flags that it may change.
    pub(super) fn changed_flags(&self) -> u32 {
        self.insn.rflags_modified()
    }

    /// The instruction.
    pub(super) fn insn(&self) -> &iced_x86::Instruction {
        &self.insn
    }

    /// Whether it may be repeated.
    pub(super) fn repeats(&self) -> bool {
        self.insn.is_string_instruction()
            && (self.insn.has_rep_prefix() || self.insn.has_repne_prefix())
    }

    /// Whether it may access other bytes than its operand in memory says: a bit that a register numbers.
    pub(super) fn is_of_bit_string(&self) -> bool {
        let is_of_bits = matches!(
            self.insn.mnemonic(),
            Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc
        );
        is_of_bits && self.insn.op1_kind() == OpKind::Register
    }

    /// Whether it cannot fault, as is known of many instructions that access no memory and only general registers: a
    /// move to a segment register may.
    pub(super) fn cannot_fault(&self) -> bool {
        let mut operands = 0..self.insn.op_count();
        self.memory.is_empty()
            && operands.all(|operand| {
                self.insn.op_kind(operand) != OpKind::Register
                    || general(self.insn.op_register(operand)).is_some()
            })
            && matches!(
                self.insn.mnemonic(),
                Mnemonic::Mov
                    | Mnemonic::Movzx
                    | Mnemonic::Movsx
                    | Mnemonic::Movsxd
                    | Mnemonic::Lea
                    | Mnemonic::Add
                    | Mnemonic::Adc
                    | Mnemonic::Sub
                    | Mnemonic::Sbb
                    | Mnemonic::And
                    | Mnemonic::Or
                    | Mnemonic::Xor
                    | Mnemonic::Cmp
                    | Mnemonic::Test
                    | Mnemonic::Imul
                    | Mnemonic::Inc
                    | Mnemonic::Dec
                    | Mnemonic::Neg
                    | Mnemonic::Not
                    | Mnemonic::Shl
                    | Mnemonic::Shr
                    | Mnemonic::Sar
                    | Mnemonic::Cdq
                    | Mnemonic::Cdqe
                    | Mnemonic::Cqo
            )
    }
}

pub(super) fn general(register: Register) -> Option<usize> {
    let is_general = register.is_gpr() && !matches!(register, Register::None);
    is_general.then(|| register.full_register().number())
}

pub(super) fn kinds(access: OpAccess) -> &'static [Kind] {
    match access {
        OpAccess::Read | OpAccess::CondRead => &[Kind::Load],
        OpAccess::Write | OpAccess::CondWrite => &[Kind::Store],
        OpAccess::ReadWrite | OpAccess::ReadCondWrite => &[Kind::Load, Kind::Store],
        OpAccess::None | OpAccess::NoMemAccess => &[],
    }
}

/// The name of the operation of an instruction, with these bytes.
#[must_use]
pub fn mnemonic(bytes: &[u8]) -> String {
    let insn = Decoder::new(64, bytes, DecoderOptions::NONE).decode();
    format!("{:?}", insn.mnemonic()).to_lowercase()
}

/// Where a direct branch or call at `pc`, with these bytes, leads.
#[must_use]
pub fn branch_target(pc: u64, bytes: &[u8]) -> Option<u64> {
    let insn = Decoder::with_ip(64, bytes, pc, DecoderOptions::NONE).decode();
    let is_near = matches!(
        insn.op0_kind(),
        OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64
    );
    is_near.then(|| insn.near_branch_target())
}

fn transfer(insn: &iced_x86::Instruction) -> Transfer {
    match insn.flow_control() {
        FlowControl::ConditionalBranch => Transfer::Branch,
        FlowControl::UnconditionalBranch => Transfer::Jump,
        FlowControl::IndirectBranch => Transfer::IndirectJump,
        FlowControl::Call if insn.mnemonic() == Mnemonic::Syscall => Transfer::SystemCall,
        FlowControl::Call => Transfer::Call,
        FlowControl::IndirectCall => Transfer::IndirectCall,
        FlowControl::Return => Transfer::Return,
        _ => Transfer::Next,
    }
}
