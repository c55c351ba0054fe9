//! Reading code: what branches where, and how instructions lie.

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, OpKind};

/// What an instruction does with control.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// Goes on to the next.
    Next,
    /// A conditional branch to an address.
    Branch(u64),
    /// A jump to an address.
    Jump(u64),
    /// A call of an address.
    Call(u64),
    /// A jump through a register or memory.
    IndirectJump,
    /// A call through a register or memory.
    IndirectCall,
    /// A return.
    Return,
    /// An instruction that only faults.
    Fault,
    /// No instruction.
    Invalid,
}

/// One instruction as the planner sees it.
#[derive(Debug, Clone, Copy)]
pub struct Insn {
    /// Its address.
    pub addr: u64,
    /// Its length.
    pub len: u8,
    /// What it does with control.
    pub flow: Flow,
    /// The decoded instruction.
    pub raw: Instruction,
}

/// Goes through code, instruction by instruction; behind bytes that are none it goes on one byte later.
pub struct Sweep<'a> {
    decoder: Decoder<'a>,
}

impl<'a> Sweep<'a> {
    /// Starts at the first byte of `code`, whose address is `addr`.
    #[must_use]
    pub fn new(code: &'a [u8], addr: u64) -> Self {
        let decoder = Decoder::with_ip(64, code, addr, DecoderOptions::NONE);
        Self { decoder }
    }

    /// The next instruction.
    #[inline]
    pub fn next_into(&mut self, raw: &mut Instruction) -> Option<Flow> {
        if !self.decoder.can_decode() {
            return None;
        }
        let position = self.decoder.position();
        let ip = self.decoder.ip();
        self.decoder.decode_out(raw);
        if raw.is_invalid() {
            let _ = self.decoder.set_position(position + 1);
            self.decoder.set_ip(ip + 1);
            raw.set_len(1);
            raw.set_ip(ip);
            raw.set_next_ip(ip + 1);
        }
        Some(flow(raw))
    }
}

impl Iterator for Sweep<'_> {
    type Item = Insn;

    fn next(&mut self) -> Option<Insn> {
        let mut raw = Instruction::default();
        let flow = self.next_into(&mut raw)?;
        Some(Insn {
            addr: raw.ip(),
            len: raw.len() as u8,
            flow,
            raw,
        })
    }
}

/// What an instruction does with control.
#[inline]
#[must_use]
pub fn flow(instruction: &Instruction) -> Flow {
    match instruction.flow_control() {
        FlowControl::Next | FlowControl::Interrupt => Flow::Next,
        FlowControl::Exception if instruction.code() == Code::INVALID => Flow::Invalid,
        FlowControl::Exception => Flow::Fault,
        FlowControl::ConditionalBranch => Flow::Branch(instruction.near_branch_target()),
        FlowControl::UnconditionalBranch => match instruction.op0_kind() {
            OpKind::NearBranch64 => Flow::Jump(instruction.near_branch64()),
            _ => Flow::IndirectJump,
        },
        FlowControl::IndirectBranch => Flow::IndirectJump,
        FlowControl::Call => match instruction.op0_kind() {
            OpKind::NearBranch64 => Flow::Call(instruction.near_branch64()),
            _ => Flow::Next,
        },
        FlowControl::IndirectCall => Flow::IndirectCall,
        FlowControl::Return => Flow::Return,
        FlowControl::XbeginXabortXend => match instruction.op0_kind() {
            OpKind::NearBranch64 => Flow::Branch(instruction.near_branch64()),
            _ => Flow::Next,
        },
    }
}

/// Whether all of `bytes` is padding: no-ops, breakpoints or zeros.
#[must_use]
pub fn is_padding(bytes: &[u8]) -> bool {
    if bytes.iter().all(|&b| b == 0xCC || b == 0) {
        return true;
    }
    Sweep::new(bytes, 0).all(|insn| is_nop(&insn.raw) || insn.raw.code() == Code::Int3)
}

/// Whether an instruction does nothing.
#[must_use]
pub fn is_nop(instruction: &Instruction) -> bool {
    match instruction.code() {
        Code::Nopw | Code::Nopd | Code::Nopq | Code::Nop_rm16 | Code::Nop_rm32 | Code::Nop_rm64 => {
            true
        }
        // xchg ax, ax in the form 66 90 is Nopw; lea rsi, [rsi+0] is old padding.
        Code::Lea_r64_m => {
            instruction.op0_register() == instruction.memory_base()
                && instruction.memory_index() == iced_x86::Register::None
                && instruction.memory_displacement64() == 0
        }
        Code::Xchg_rm16_r16 => instruction.op0_register() == instruction.op1_register(),
        _ => false,
    }
}

/// The `jmp *slot(%rip)` instructions in a PLT: address, slot, length.
pub fn got_jump(bytes: &[u8], addr: u64) -> impl Iterator<Item = (u64, u64, u8)> {
    Sweep::new(bytes, addr).filter_map(|insn| {
        let jump = insn.raw.code() == Code::Jmp_rm64 && insn.raw.is_ip_rel_memory_operand();
        jump.then(|| (insn.addr, insn.raw.ip_rel_memory_address(), insn.len))
    })
}
