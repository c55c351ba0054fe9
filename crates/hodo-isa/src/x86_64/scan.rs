//! Reads code: where it branches to, which addresses it forms, and where instructions begin.

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register,
};

use crate::code::How;

/// The landing instruction for indirect branches, `endbr64`, with which a function may start.
pub const LANDING: [u8; 4] = [0xF3, 0x0F, 0x1E, 0xFA];

pub use crate::code::{Flow, Insn, Reference, Slot};

/// Iterates over code, instruction by instruction. After bytes that are not an instruction it goes on one byte later.
pub struct Sweep<'a> {
    decoder: Decoder<'a>,
    raw: Instruction,
}

impl<'a> Sweep<'a> {
    /// Starts at the first byte of `code`, whose address is `addr`.
    #[must_use]
    pub fn new(code: &'a [u8], addr: u64) -> Self {
        let decoder = Decoder::with_ip(64, code, addr, DecoderOptions::NONE);
        Self {
            decoder,
            raw: Instruction::default(),
        }
    }
}

impl Iterator for Sweep<'_> {
    type Item = Insn;

    #[inline(always)]
    fn next(&mut self) -> Option<Insn> {
        if !self.decoder.can_decode() {
            return None;
        }
        let addr = self.decoder.ip();
        let position = self.decoder.position();
        let raw = &mut self.raw;
        self.decoder.decode_out(raw);
        if raw.code() == Code::INVALID {
            let _ = self.decoder.set_position(position + 1);
            self.decoder.set_ip(addr + 1);
            return Some(Insn {
                addr,
                len: 1,
                flow: Flow::Invalid,
                reference: Reference::None,
                padding: false,
                slot: Slot::None,
                word: None,
            });
        }
        let flow = flow(raw);
        Some(Insn {
            addr,
            len: raw.len() as u8,
            flow,
            reference: reference(raw, flow),
            padding: is_padding(raw),
            slot: slot(raw),
            word: None,
        })
    }
}

#[inline]
fn slot(raw: &Instruction) -> Slot {
    let make = match raw.memory_base() {
        Register::RSP => Slot::Stack,
        Register::RBP => Slot::Frame,
        _ => return Slot::None,
    };
    if raw.memory_index() != Register::None || is_nop(raw) || is_barrier(raw) {
        return Slot::None;
    }
    make(raw.memory_displacement64() as i32)
}

/// Whether this is a barrier: a locked instruction that does not change memory, which compilers use instead of
/// `mfence`.
pub(super) fn is_barrier(insn: &Instruction) -> bool {
    let wide = matches!(insn.memory_size().size(), 4 | 8);
    if !insn.has_lock_prefix() || insn.op_count() != 2 || !wide {
        return false;
    }
    let immediate = match insn.op1_kind() {
        OpKind::Immediate8to32
        | OpKind::Immediate8to64
        | OpKind::Immediate32
        | OpKind::Immediate32to64 => insn.immediate(1) as u32,
        _ => return false,
    };
    match insn.mnemonic() {
        Mnemonic::Or | Mnemonic::Add | Mnemonic::Sub | Mnemonic::Xor => immediate == 0,
        Mnemonic::And => immediate == u32::MAX,
        _ => false,
    }
}

#[inline]
pub(super) fn flow(raw: &Instruction) -> Flow {
    let near = |make: fn(u64) -> Flow, other: Flow| match raw.op0_kind() {
        OpKind::NearBranch64 => make(raw.near_branch64()),
        _ => other,
    };
    match raw.flow_control() {
        FlowControl::Next | FlowControl::Interrupt => Flow::Next,
        FlowControl::Exception => Flow::Fault,
        FlowControl::ConditionalBranch => Flow::Branch(raw.near_branch_target()),
        FlowControl::UnconditionalBranch => near(Flow::Jump, Flow::IndirectJump),
        FlowControl::IndirectBranch => Flow::IndirectJump,
        FlowControl::Call => near(Flow::Call, Flow::Next),
        FlowControl::IndirectCall => Flow::IndirectCall,
        FlowControl::Return => Flow::Return {
            how: match raw.code() {
                Code::Retnq_imm16 => How::Drops,
                _ => How::Plain,
            },
        },
        FlowControl::XbeginXabortXend => near(Flow::Branch, Flow::Next),
    }
}

#[inline]
fn reference(raw: &Instruction, flow: Flow) -> Reference {
    if raw.is_ip_rel_memory_operand() {
        let addr = raw.ip_rel_memory_address();
        return if raw.code() == Code::Lea_r64_m {
            Reference::Forms(addr)
        } else {
            Reference::Memory(addr)
        };
    }
    if raw.memory_base() == Register::None && raw.memory_displ_size() >= 4 {
        let addr = raw.memory_displacement64();
        return match flow {
            Flow::IndirectJump => Reference::Table(addr),
            _ => Reference::Memory(addr),
        };
    }
    let last = match raw.op_count() {
        1 => raw.op0_kind(),
        2 => raw.op1_kind(),
        _ => return Reference::None,
    };
    match last {
        OpKind::Immediate32 | OpKind::Immediate64 | OpKind::Immediate32to64 => {
            Reference::Constant(raw.immediate(raw.op_count() - 1))
        }
        _ => Reference::None,
    }
}

/// Whether an instruction is one of those that fill gaps between functions.
#[inline]
pub(super) fn is_padding(raw: &Instruction) -> bool {
    match raw.code() {
        Code::Nopw | Code::Nopd | Code::Nopq | Code::Nop_rm16 | Code::Nop_rm32 | Code::Nop_rm64 => {
            true
        }
        Code::Int3 => true,
        Code::Lea_r64_m | Code::Xchg_rm16_r16 => is_nop(raw),
        _ => false,
    }
}

/// Whether an instruction does nothing at all.
pub(crate) fn is_nop(raw: &Instruction) -> bool {
    match raw.code() {
        Code::Nopw | Code::Nopd | Code::Nopq | Code::Nop_rm16 | Code::Nop_rm32 | Code::Nop_rm64 => {
            true
        }
        Code::Lea_r64_m => {
            raw.op0_register() == raw.memory_base()
                && raw.memory_index() == Register::None
                && raw.memory_displacement64() == 0
        }
        Code::Xchg_rm16_r16 => raw.op0_register() == raw.op1_register(),
        _ => false,
    }
}

/// The `jmp *slot(%rip)` instructions in a PLT: address, slot, length.
pub fn got_jumps(bytes: &[u8], addr: u64) -> impl Iterator<Item = (u64, u64, u8)> {
    Sweep::new(bytes, addr).filter_map(|insn| match (insn.flow, insn.reference) {
        (Flow::IndirectJump, Reference::Memory(slot)) => Some((insn.addr, slot, insn.len)),
        _ => None,
    })
}

/// The recommended no-op of `len` bytes, for 1 to 9 bytes.
#[must_use]
pub fn nop(len: usize) -> &'static [u8] {
    const NOPS: [&[u8]; 9] = [
        &[0x90],
        &[0x66, 0x90],
        &[0x0F, 0x1F, 0x00],
        &[0x0F, 0x1F, 0x40, 0x00],
        &[0x0F, 0x1F, 0x44, 0x00, 0x00],
        &[0x66, 0x0F, 0x1F, 0x44, 0x00, 0x00],
        &[0x0F, 0x1F, 0x80, 0, 0, 0, 0],
        &[0x0F, 0x1F, 0x84, 0, 0, 0, 0, 0],
        &[0x66, 0x0F, 0x1F, 0x84, 0, 0, 0, 0, 0],
    ];
    NOPS[len.clamp(1, 9) - 1]
}
