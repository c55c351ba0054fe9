//! Instructions as a planner of probes sees them: what they do with control and with the arithmetic flags, and whether
//! they can be moved.

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register, RflagsBits,
};

use super::relocate::{is_movable, relocated_len};
use super::scan::{Flow, flow, is_padding};
use crate::effects::Effects;

/// The arithmetic flags, as in the masks of [`Step`].
pub const FLAGS: u8 = (RflagsBits::OF
    | RflagsBits::SF
    | RflagsBits::ZF
    | RflagsBits::AF
    | RflagsBits::CF
    | RflagsBits::PF) as u8;

/// The carry flag, one of [`FLAGS`].
pub const CARRY: u8 = RflagsBits::CF as u8;

/// One instruction.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// Its address.
    pub addr: u64,
    /// What it does with control.
    pub flow: Flow,
    /// Its length.
    pub len: u8,
    /// The arithmetic flags that it uses.
    pub effects: Effects<u8>,
    /// It does nothing: padding, if nothing leads to it.
    pub padding: bool,
    /// [`relocate`](super::relocate::relocate) can move it.
    pub movable: bool,
    /// It begins or ends a transaction.
    pub transaction: Transaction,
    /// It enters the kernel or ends a transaction at will, so the instruction alone does not say what happens next.
    pub leaves: bool,
}

pub use crate::code::Transaction;

impl From<Step> for crate::code::Step {
    #[inline]
    fn from(step: Step) -> Self {
        Self {
            addr: step.addr,
            flow: step.flow,
            len: step.len,
            reads: step.effects.reads.into(),
            writes: step.effects.writes.into(),
            padding: step.padding,
            movable: step.movable,
            transaction: step.transaction,
            leaves: step.leaves,
        }
    }
}

impl Step {
    /// The address after it.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.addr + u64::from(self.len)
    }

    /// Whether it is a call.
    #[must_use]
    pub fn is_call(&self) -> bool {
        matches!(self.flow, Flow::Call(_) | Flow::IndirectCall)
    }
}

/// Iterates over code, instruction by instruction. After bytes that are not an instruction it goes on one byte later.
pub struct Steps<'a> {
    code: &'a [u8],
    decoder: Decoder<'a>,
    raw: Instruction,
}

impl<'a> Steps<'a> {
    /// Starts at the first byte of `code`, whose address is `addr`.
    #[must_use]
    pub fn new(code: &'a [u8], addr: u64) -> Self {
        Self {
            code,
            decoder: Decoder::with_ip(64, code, addr, DecoderOptions::NONE),
            raw: Instruction::default(),
        }
    }
}

impl Iterator for Steps<'_> {
    type Item = Step;

    #[inline]
    fn next(&mut self) -> Option<Step> {
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
            return Some(Step {
                addr,
                flow: Flow::Invalid,
                len: 1,
                effects: Effects::of(FLAGS, 0),
                padding: false,
                movable: false,
                transaction: Transaction::None,
                leaves: false,
            });
        }
        Some(Step {
            addr,
            flow: flow(raw),
            len: raw.len() as u8,
            effects: flags(raw),
            padding: is_padding(raw),
            movable: is_movable(raw, &self.code[position..position + raw.len()]),
            transaction: match raw.mnemonic() {
                Mnemonic::Xbegin => Transaction::Begin,
                Mnemonic::Xend => Transaction::End,
                _ => Transaction::None,
            },
            leaves: flow(raw) == Flow::Next && raw.flow_control() != FlowControl::Next,
        })
    }
}

/// The arithmetic flags that an instruction uses, and those that it overwrites whatever its operands are.
#[inline]
fn flags(raw: &Instruction) -> Effects<u8> {
    // These bits are in the order of the masks.
    let reads = raw.rflags_read() as u8 & FLAGS;
    let changes = raw.rflags_modified() as u8 & FLAGS;
    if changes == 0 {
        return Effects::of(reads, 0);
    }
    // Shifts by zero and zero repetitions leave the flags as they are.
    let shifts = raw.op_count() >= 2
        && raw.op_kind(raw.op_count() - 1) == OpKind::Register
        && raw.op_register(raw.op_count() - 1) == Register::CL
        && matches!(
            raw.mnemonic(),
            Mnemonic::Shl
                | Mnemonic::Sal
                | Mnemonic::Shr
                | Mnemonic::Sar
                | Mnemonic::Rol
                | Mnemonic::Ror
                | Mnemonic::Rcl
                | Mnemonic::Rcr
                | Mnemonic::Shld
                | Mnemonic::Shrd
        );
    let repeats = raw.is_string_instruction() && (raw.has_rep_prefix() || raw.has_repne_prefix());
    let writes = if shifts || repeats { 0 } else { changes };
    Effects {
        reads,
        writes,
        changes,
    }
}

/// Why the instruction at the start of `code` cannot be moved; `None` if it can.
#[must_use]
pub fn immovable(code: &[u8], addr: u64) -> Option<&'static str> {
    let raw = Decoder::with_ip(64, code, addr, DecoderOptions::NONE).decode();
    if raw.is_invalid() {
        return Some("no valid instruction");
    }
    let code = code.get(..raw.len())?;
    relocated_len(code, addr).err()?;
    Some(match raw.flow_control() {
        FlowControl::Next if raw.is_ip_rel_memory_operand() => {
            "it cannot be moved: its memory is addressed by 32 bits of the instruction pointer"
        }
        FlowControl::Call
        | FlowControl::IndirectCall
        | FlowControl::IndirectBranch
        | FlowControl::UnconditionalBranch => {
            "it cannot be moved: a call or jump that is far, of 16 bits, or by the stack pointer"
        }
        FlowControl::Return => "it cannot be moved: a far return",
        _ => "it cannot be moved",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(code: &[u8]) -> Step {
        Steps::new(code, 0x1000).next().expect("an instruction")
    }

    #[test]
    fn flags_are_read_and_written() {
        let cases: [(&[u8], u8, u8); 7] = [
            // add eax, ecx
            (&[0x01, 0xC8], 0, FLAGS),
            // inc eax: all but the carry
            (&[0xFF, 0xC0], 0, FLAGS & !(RflagsBits::CF as u8)),
            // adc eax, ecx
            (&[0x11, 0xC8], RflagsBits::CF as u8, FLAGS),
            // je
            (&[0x74, 0x00], RflagsBits::ZF as u8, 0),
            // shl eax, cl: perhaps by zero
            (&[0xD3, 0xE0], 0, 0),
            // rep cmpsb: perhaps zero times
            (&[0xF3, 0xA6], 0, 0),
            // mov eax, ecx
            (&[0x89, 0xC8], 0, 0),
        ];
        for (code, reads, writes) in cases {
            let found = step(code).effects;
            assert_eq!((found.reads, found.writes), (reads, writes), "{code:x?}");
        }
    }

    #[test]
    fn what_cannot_be_moved_says_why() {
        // jmp far [rax]; call rsp; retf; lock add [eip+0], eax with a 32-bit address
        for code in [
            &[0xFF, 0x28][..],
            &[0xFF, 0xD4],
            &[0xCB],
            &[0x67, 0x01, 0x05, 0, 0, 0, 0],
        ] {
            assert!(!step(code).movable, "{code:x?}");
            assert!(immovable(code, 0x1000).is_some(), "{code:x?}");
        }
        assert!(step(&[0x90]).movable);
        assert_eq!(immovable(&[0x90], 0x1000), None);
    }
}
