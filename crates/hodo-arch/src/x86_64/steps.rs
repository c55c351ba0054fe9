//! Instructions as a planner of probes sees them: what they do with control and with the arithmetic flags, and whether they
//! can be moved.

use alloc::string::String;
use iced_x86::{
    Code, Decoder, DecoderOptions, FastFormatter, FlowControl, Instruction, Mnemonic, OpKind,
    Register, RflagsBits,
};

use super::relocate::{is_movable, relocated_len};
use super::scan::{Flow, flow, is_padding};

/// The arithmetic flags, as the masks of [`Step`] have them.
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
    pub reads: u8,
    /// The arithmetic flags that it overwrites whatever happens.
    pub writes: u8,
    /// It does nothing: padding, where nothing leads to it.
    pub padding: bool,
    /// [`relocate`](super::relocate::relocate) takes it.
    pub movable: bool,
    /// It begins or ends a transaction.
    pub transaction: Transaction,
    /// It enters the kernel or ends a transaction at will, and what happens then is not the instruction's to say.
    pub leaves: bool,
}

pub use crate::code::{Origin, Transaction};

impl From<Step> for crate::code::Step {
    #[inline]
    fn from(step: Step) -> Self {
        Self {
            addr: step.addr,
            flow: step.flow,
            len: step.len,
            reads: step.reads.into(),
            writes: step.writes.into(),
            padding: step.padding,
            movable: step.movable,
            transaction: step.transaction,
            leaves: step.leaves,
        }
    }
}

impl Step {
    /// The address behind it.
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

/// Goes through code, instruction by instruction; behind bytes that are none it goes on one byte later.
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
                reads: FLAGS,
                writes: 0,
                padding: false,
                movable: false,
                transaction: Transaction::None,
                leaves: false,
            });
        }
        let (reads, writes) = flags(raw);
        Some(Step {
            addr,
            flow: flow(raw),
            len: raw.len() as u8,
            reads,
            writes,
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
fn flags(raw: &Instruction) -> (u8, u8) {
    // The order of these bits is that of the masks.
    let reads = raw.rflags_read() as u8 & FLAGS;
    let writes = raw.rflags_modified() as u8 & FLAGS;
    if writes == 0 {
        return (reads, 0);
    }
    // Shifts by zero and repetitions of none leave the flags as they are.
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
    match shifts || repeats {
        true => (reads, 0),
        false => (reads, writes),
    }
}

/// The instruction at the start of `code` as text, in Intel's syntax.
#[must_use]
pub fn text(code: &[u8], addr: u64) -> String {
    let raw = Decoder::with_ip(64, code, addr, DecoderOptions::NONE).decode();
    if raw.is_invalid() {
        return format!(".byte 0x{:02x}", code.first().copied().unwrap_or_default());
    }
    let mut text = String::new();
    let mut formatter = FastFormatter::new();
    let options = formatter.options_mut();
    options.set_use_hex_prefix(true);
    options.set_uppercase_hex(false);
    options.set_space_after_operand_separator(true);
    options.set_rip_relative_addresses(false);
    formatter.format(&raw, &mut text);
    text
}

/// Why the instruction at the start of `code` cannot be moved; nothing if it can.
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

/// Tells for a jump by the instructions before it: code and address of each, the jump first, then backwards.
#[must_use]
pub fn origin<'c>(path: impl IntoIterator<Item = (&'c [u8], u64)>) -> Origin {
    let decode = |(code, addr)| Decoder::with_ip(64, code, addr, DecoderOptions::NONE).decode();
    let mut path = path.into_iter().map(decode);
    let Some(last) = path.next() else {
        return Origin::Computed;
    };
    if last.op0_kind() != OpKind::Register {
        // Through memory, which holds whole addresses.
        return Origin::Loaded;
    }
    let mut register = last.op0_register();
    // The two that were added: the distance and where it is from.
    let mut sum: Option<[Register; 2]> = None;
    let mut leaves = false;
    // The distance is extended to 64 bits by an instruction of its own, as code has it that is not optimized.
    let mut extended = false;
    for raw in path {
        if matches!(
            raw.flow_control(),
            FlowControl::Call | FlowControl::IndirectCall
        ) {
            // What it returned, or what was kept.
            leaves = true;
            break;
        }
        if let Some(sum) = sum
            && raw.mnemonic() == Mnemonic::Cdqe
            && sum.contains(&Register::RAX)
        {
            extended = true;
            continue;
        }
        let on_stack = raw.op0_register() == Register::RSP && raw.mnemonic() == Mnemonic::Add;
        leaves |= on_stack || matches!(raw.mnemonic(), Mnemonic::Pop | Mnemonic::Leave);
        let writes = raw.op_count() > 0
            && raw.op0_kind() == OpKind::Register
            && !matches!(
                raw.mnemonic(),
                Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push | Mnemonic::Bt | Mnemonic::Jmp
            );
        if !writes {
            continue;
        }
        let to = raw.op0_register().full_register();
        if let Some(sum) = sum {
            if !sum.contains(&to) {
                continue;
            }
            let entry = raw.is_ip_rel_memory_operand() || raw.memory_index_scale() == 4;
            if raw.mnemonic() == Mnemonic::Movsxd && raw.op1_kind() == OpKind::Memory && entry {
                let other = if sum[0] == to { sum[1] } else { sum[0] };
                // The table's own start may be overwritten by the distance; then it is not what is added.
                return match raw.memory_base() {
                    base if base == other && base != to => Origin::Table,
                    _ => Origin::Distances,
                };
            }
            let loads = extended
                && raw.mnemonic() == Mnemonic::Mov
                && raw.op0_register() == Register::EAX
                && raw.op1_kind() == OpKind::Memory;
            if loads {
                return Origin::Table;
            }
            // Where the distance is from may be formed between the two.
            match raw.mnemonic() {
                Mnemonic::Lea if raw.is_ip_rel_memory_operand() => continue,
                _ => return Origin::Computed,
            }
        }
        if to != register {
            continue;
        }
        match raw.mnemonic() {
            Mnemonic::Mov if raw.op1_kind() == OpKind::Register => {
                register = raw.op1_register().full_register();
            }
            Mnemonic::Mov | Mnemonic::Pop => return Origin::Loaded,
            Mnemonic::Lea if raw.is_ip_rel_memory_operand() => return Origin::Loaded,
            Mnemonic::Lea
                if raw.memory_index() != Register::None
                    && raw.memory_index_scale() == 1
                    && raw.memory_displacement64() == 0 =>
            {
                sum = Some([raw.memory_base(), raw.memory_index()]);
            }
            Mnemonic::Add if raw.op1_kind() == OpKind::Register => {
                sum = Some([to, raw.op1_register().full_register()]);
            }
            // Protection of pointers in memory.
            Mnemonic::Xor | Mnemonic::Ror => {}
            _ => return Origin::Computed,
        }
    }
    match sum {
        // The frame is gone: this is a call at the function's end.
        None if leaves => Origin::Loaded,
        None => Origin::Open,
        Some(_) => Origin::Computed,
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn step(code: &[u8]) -> Step {
        Steps::new(code, 0x1000).next().expect("an instruction")
    }

    #[test]
    fn flags_are_read_and_written() {
        let cases: [(&[u8], u8, u8); 7] = [
            // add eax, ecx
            (&[0x01, 0xC8], 0, FLAGS),
            // inc eax: not the carry
            (&[0xFF, 0xC0], 0, FLAGS & !(RflagsBits::CF as u8)),
            // adc eax, ecx
            (&[0x11, 0xC8], RflagsBits::CF as u8, FLAGS),
            // je
            (&[0x74, 0x00], RflagsBits::ZF as u8, 0),
            // shl eax, cl: by zero, perhaps
            (&[0xD3, 0xE0], 0, 0),
            // rep cmpsb: of nothing, perhaps
            (&[0xF3, 0xA6], 0, 0),
            // mov eax, ecx
            (&[0x89, 0xC8], 0, 0),
        ];
        for (code, reads, writes) in cases {
            let step = step(code);
            assert_eq!((step.reads, step.writes), (reads, writes), "{code:x?}");
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
        assert_eq!(
            text(&[0x48, 0x8B, 0x05, 0x10, 0, 0, 0], 0x1000),
            "mov rax, [0x1017]"
        );
    }

    #[test]
    fn origins_of_jumps() {
        fn of(code: &[u8]) -> Origin {
            let steps: Vec<Step> = Steps::new(code, 0).collect();
            let at = |step: &Step| (&code[step.addr as usize..step.end() as usize], step.addr);
            origin(steps.iter().rev().map(at))
        }
        // jmp rax, alone; pop rbx before it
        assert_eq!(of(&[0xFF, 0xE0]), Origin::Open);
        assert_eq!(of(&[0x5B, 0xFF, 0xE0]), Origin::Loaded);
        // movsxd rax, dword [rdx+rax*4]; add rax, rdx; jmp rax
        let table = [0x48, 0x63, 0x04, 0x82, 0x48, 0x01, 0xD0, 0xFF, 0xE0];
        assert_eq!(of(&table), Origin::Table);
        // mov rax, [rdi]; jmp rax
        assert_eq!(of(&[0x48, 0x8B, 0x07, 0xFF, 0xE0]), Origin::Loaded);
        // jmp [rdi+8]
        assert_eq!(of(&[0xFF, 0x67, 8]), Origin::Loaded);
        // lea rax, [rax+rcx*8]; jmp rax
        assert_eq!(of(&[0x48, 0x8D, 0x04, 0xC8, 0xFF, 0xE0]), Origin::Computed);
        // add rax, rcx; jmp rax
        assert_eq!(of(&[0x48, 0x01, 0xC8, 0xFF, 0xE0]), Origin::Computed);
    }
}
