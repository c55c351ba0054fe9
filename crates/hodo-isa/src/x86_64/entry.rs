//! What a function does with its return address, judged by the straight-line code at its entry.

use core::ops::{ControlFlow, Range};

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic,
    OpAccess, OpKind, Register, RflagsBits,
};

use super::scan::is_barrier;
pub use crate::code::EntryFacts;

/// The status flags.
const STATUS: u32 = RflagsBits::OF
    | RflagsBits::SF
    | RflagsBits::ZF
    | RflagsBits::AF
    | RflagsBits::CF
    | RflagsBits::PF;

/// Looks at this many instructions at most.
const LIMIT: usize = 64;

/// Follows the straight-line code from the entry of a function to the first jump or return.
#[must_use]
pub fn entry_facts(code: &[u8], addr: u64) -> EntryFacts {
    let mut walk = Walk {
        code: addr..addr.wrapping_add(code.len() as u64),
        ..Walk::default()
    };
    let mut decoder = Decoder::with_ip(64, code, addr, DecoderOptions::NONE);
    let mut raw = Instruction::default();
    for _ in 0..LIMIT {
        if !decoder.can_decode() {
            break;
        }
        decoder.decode_out(&mut raw);
        if walk.step(&raw).is_break() {
            break;
        }
    }
    walk.facts
}

/// What is known along the way.
#[derive(Default)]
struct Walk {
    facts: EntryFacts,
    /// The function's addresses.
    code: Range<u64>,
    called: bool,
    /// Bytes between the stack pointer and the return address.
    depth: i64,
    pushed_frame: bool,
    /// A register that holds the stack pointer as it was at this depth.
    copy: Option<(Register, i64)>,
    branched: bool,
    flags_known: bool,
    /// The flags come from an instruction that has no other result, and nothing has used them yet.
    flags_unused: bool,
    red_zone_known: bool,
}

impl Walk {
    /// Goes over one instruction; breaks if nothing is known of what follows.
    fn step(&mut self, raw: &Instruction) -> ControlFlow<()> {
        self.look(raw);
        self.note_flags(raw);
        match raw.flow_control() {
            FlowControl::Next | FlowControl::Interrupt => {}
            FlowControl::Call | FlowControl::IndirectCall => {
                self.flags_known = true;
                self.called = true;
                return ControlFlow::Continue(());
            }
            FlowControl::ConditionalBranch => {
                self.branched = true;
                self.red_zone_known = true;
                return ControlFlow::Continue(());
            }
            FlowControl::IndirectBranch | FlowControl::UnconditionalBranch => {
                self.leave(raw);
                return ControlFlow::Break(());
            }
            FlowControl::Return => {
                self.facts.returns_flags = self.flags_unused;
                return ControlFlow::Break(());
            }
            _ => return ControlFlow::Break(()),
        }
        self.copy = self
            .copy
            .filter(|&(register, _)| overwritten(raw) != Some(register));
        self.move_stack(raw)?;
        if self.depth < 0 {
            self.facts.moves_return = true;
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    /// Follows whether the flags are only there for the caller. Compilers leave no comparison that nothing uses.
    fn note_flags(&mut self, raw: &Instruction) {
        let is_call = matches!(
            raw.flow_control(),
            FlowControl::Call | FlowControl::IndirectCall
        );
        if is_call || raw.rflags_read() & STATUS != 0 {
            self.flags_unused = false;
        }
        if raw.rflags_modified() & STATUS != 0 {
            self.flags_unused = matches!(
                raw.mnemonic(),
                Mnemonic::Cmp
                    | Mnemonic::Test
                    | Mnemonic::Bt
                    | Mnemonic::Comiss
                    | Mnemonic::Comisd
                    | Mnemonic::Ucomiss
                    | Mnemonic::Ucomisd
                    | Mnemonic::Ptest
                    | Mnemonic::Clc
                    | Mnemonic::Stc
                    | Mnemonic::Cmc
                    | Mnemonic::Sahf
            );
        }
    }

    /// A jump: to another function, perhaps, which has the return address for its own.
    fn leave(&mut self, raw: &Instruction) {
        let inside =
            raw.op0_kind() == OpKind::NearBranch64 && self.code.contains(&raw.near_branch64());
        if inside || self.called || self.depth != 0 {
            return;
        }
        // The stack pointer, as it was at the entry, is the address of the return address.
        self.facts.reads_return |= self.copy.is_some_and(|(_, depth)| depth == 0);
        self.facts.hands_return_on = self.facts.reads_return;
    }

    /// How an instruction uses flags, the return address and the red zone.
    fn look(&mut self, raw: &Instruction) {
        if !self.flags_known {
            // A system call only copies the flags to a register.
            let used = raw.code() != Code::Syscall && raw.rflags_read() & STATUS != 0;
            self.facts.reads_flags |= used;
            self.flags_known = self.branched || raw.rflags_modified() & STATUS != 0;
        }
        let on_stack = is_on_stack(raw);
        let lea = raw.mnemonic() == Mnemonic::Lea;
        let reaches = on_stack && raw.memory_displacement64() as i64 == self.depth;
        if reaches && !is_barrier(raw) {
            // A push reads before it moves the stack pointer, a pop writes after it. Who has the address of the return
            // address can read it.
            if !lea && writes_memory(raw) {
                self.facts.moves_return = true;
            } else {
                self.facts.reads_return = true;
            }
        }
        if on_stack && !self.red_zone_known && (raw.memory_displacement64() as i64) < 0 {
            self.facts.reads_red_zone |= !lea && !writes_memory(raw);
            self.red_zone_known = true;
        }
    }

    /// How an instruction changes the stack pointer and the frame pointer.
    fn move_stack(&mut self, raw: &Instruction) -> ControlFlow<()> {
        if matches!(raw.code(), Code::Mov_r64_rm64 | Code::Mov_rm64_r64) && self.copies(raw)? {
            return ControlFlow::Continue(());
        }
        match raw.code() {
            Code::Push_r64 | Code::Pushq_imm8 | Code::Pushq_imm32 | Code::Push_rm64 => {
                self.depth += 8;
                self.facts.makes_frame |= !self.branched;
                if raw.code() == Code::Push_r64 && raw.op0_register() == Register::RBP {
                    self.pushed_frame = self.depth == 8;
                }
            }
            Code::Pop_r64 | Code::Pop_rm64 => {
                if self.depth == 0 {
                    self.facts.moves_return = true;
                    return ControlFlow::Break(());
                }
                self.depth -= 8;
            }
            Code::Sub_rm64_imm8 | Code::Sub_rm64_imm32 if raw.op0_register() == Register::RSP => {
                self.depth += raw.immediate(1) as i64;
                self.facts.makes_frame |= !self.branched;
            }
            Code::Add_rm64_imm8 | Code::Add_rm64_imm32 if raw.op0_register() == Register::RSP => {
                self.depth -= raw.immediate(1) as i64;
            }
            Code::Lea_r64_m if raw.op0_register() == Register::RSP => {
                if !is_on_stack(raw) {
                    return ControlFlow::Break(());
                }
                self.depth -= raw.memory_displacement64() as i64;
            }
            // We lose track if anything else moves the stack pointer.
            _ if overwritten(raw) == Some(Register::RSP)
                && !matches!(raw.mnemonic(), Mnemonic::Cmp | Mnemonic::Test) =>
            {
                return ControlFlow::Break(());
            }
            _ if matches!(
                raw.mnemonic(),
                Mnemonic::Leave
                    | Mnemonic::Enter
                    | Mnemonic::Pushfq
                    | Mnemonic::Popfq
                    | Mnemonic::Push
                    | Mnemonic::Pop
            ) =>
            {
                return ControlFlow::Break(());
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }

    /// Whether a move copies the stack pointer to a register, or back from it.
    fn copies(&mut self, raw: &Instruction) -> ControlFlow<(), bool> {
        let (to, from) = (raw.op0_register(), raw.op1_register());
        if to == Register::RBP && from == Register::RSP {
            self.facts.frame_pointer |= self.pushed_frame && self.depth == 8;
            return ControlFlow::Continue(true);
        }
        let registers = raw.op0_kind() == OpKind::Register && raw.op1_kind() == OpKind::Register;
        // A copy of the stack pointer, to restore it later.
        if registers && from == Register::RSP {
            self.copy = Some((to, self.depth));
            return ControlFlow::Continue(true);
        }
        if to != Register::RSP {
            return ControlFlow::Continue(false);
        }
        if let Some((register, depth)) = self.copy
            && registers
            && register == from
        {
            self.depth = depth;
            return ControlFlow::Continue(true);
        }
        // Another stack: functions that are called from here do not return to the original one.
        if !self.facts.frame_pointer {
            self.facts.moves_return = true;
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(false)
    }
}

/// Whether its memory operand is at a constant distance from the stack pointer.
fn is_on_stack(raw: &Instruction) -> bool {
    raw.memory_base() == Register::RSP && raw.memory_index() == Register::None
}

/// The whole register that is its first operand.
fn overwritten(raw: &Instruction) -> Option<Register> {
    let register = raw.op_count() > 0 && raw.op0_kind() == OpKind::Register;
    register.then(|| raw.op0_register().full_register())
}

/// Whether the return address, which the instruction at `read` loads, is used for nothing but calls that are dropped.
/// `code` is the function's code from `addr` on.
#[must_use]
pub fn is_only_passed_on(
    code: &[u8],
    addr: u64,
    read: u64,
    is_dropped: &dyn Fn(u64) -> bool,
) -> bool {
    const VOLATILE: [Register; 9] = [
        Register::RAX,
        Register::RCX,
        Register::RDX,
        Register::RSI,
        Register::RDI,
        Register::R8,
        Register::R9,
        Register::R10,
        Register::R11,
    ];
    let end = code.len() as u64;
    let Some(code) = read
        .checked_sub(addr)
        .and_then(|at| code.get(usize::try_from(at).ok()?..))
    else {
        return false;
    };
    let mut decoder = Decoder::with_ip(64, code, read, DecoderOptions::NONE);
    let mut info = InstructionInfoFactory::new();
    let first = decoder.decode();
    if first.code() != Code::Mov_r64_rm64 {
        return false;
    }
    // Registers that hold it. Callee-saved registers count as holding it to the function's end, since we do not tell
    // blocks apart.
    let mut holders = vec![first.op0_register()];
    for raw in decoder {
        if holders.is_empty() {
            return true;
        }
        if matches!(
            raw.flow_control(),
            FlowControl::Call | FlowControl::IndirectCall
        ) {
            if !is_dropped(raw.ip()) && holders.iter().any(|r| VOLATILE.contains(r)) {
                return false;
            }
            holders.retain(|r| !VOLATILE.contains(r));
            continue;
        }
        if raw.mnemonic() == Mnemonic::Pop {
            continue;
        }
        let registers = [raw.op0_register(), raw.op1_register()];
        let copies = matches!(raw.code(), Code::Mov_r64_rm64 | Code::Mov_rm64_r64)
            && raw.op0_kind() == OpKind::Register
            && raw.op1_kind() == OpKind::Register;
        if copies && holders.contains(&registers[1]) {
            holders.push(registers[0]);
            continue;
        }
        for used in info.info(&raw).used_registers() {
            let register = used.register().full_register();
            if !holders.contains(&register) {
                continue;
            }
            match used.access() {
                OpAccess::Write if VOLATILE.contains(&register) => {
                    holders.retain(|r| *r != register);
                }
                OpAccess::Write => {}
                _ => return false,
            }
        }
        match raw.flow_control() {
            FlowControl::Return if holders.contains(&Register::RAX) => return false,
            // Perhaps a jump to another function, which gets all registers.
            FlowControl::UnconditionalBranch | FlowControl::IndirectBranch => {
                let inside = raw.op0_kind() == OpKind::NearBranch64
                    && raw.near_branch64().wrapping_sub(addr) < end;
                if !inside && !is_dropped(raw.ip()) && holders.iter().any(|r| VOLATILE.contains(r))
                {
                    return false;
                }
                if !inside {
                    holders.retain(|r| !VOLATILE.contains(r));
                }
            }
            _ => {}
        }
    }
    true
}

/// Whether code is a signal handler's return, which unwinders recognize by these bytes.
#[must_use]
pub fn is_signal_return(code: &[u8]) -> bool {
    // mov rax, 15; syscall, and the same with eax
    const LONG: [u8; 9] = [0x48, 0xC7, 0xC0, 15, 0, 0, 0, 0x0F, 0x05];
    const SHORT: [u8; 7] = [0xB8, 15, 0, 0, 0, 0x0F, 0x05];
    code.starts_with(&LONG) || code.starts_with(&SHORT)
}

/// Whether code begins with the instruction that reads the time counter (`rdtsc`).
#[must_use]
pub fn reads_time(code: &[u8]) -> bool {
    code.starts_with(&[0x0F, 0x31])
}

/// Whether an instruction is a breakpoint or a software interrupt: `int3`, `int1`, `int n`.
#[must_use]
pub fn is_interrupt(code: &[u8]) -> bool {
    matches!(code, [0xCC | 0xF1] | [0xCD, _])
}

/// Whether the instruction at the start of `code` writes its memory operand.
#[must_use]
pub fn stores(code: &[u8]) -> bool {
    let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    writes_memory(&decoder.decode())
}

fn writes_memory(raw: &Instruction) -> bool {
    if raw.op_count() == 0 {
        return false;
    }
    if raw.mnemonic() == Mnemonic::Xchg {
        return true;
    }
    raw.op0_kind() == OpKind::Memory
        && !matches!(
            raw.mnemonic(),
            Mnemonic::Cmp
                | Mnemonic::Test
                | Mnemonic::Push
                | Mnemonic::Jmp
                | Mnemonic::Call
                | Mnemonic::Bt
                | Mnemonic::Nop
                | Mnemonic::Mul
                | Mnemonic::Div
                | Mnemonic::Idiv
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_prologues() {
        // push rbp; mov rbp, rsp; sub rsp, 16; mov rax, [rsp+8]; ret
        let facts = entry_facts(
            &[
                0x55, 0x48, 0x89, 0xE5, 0x48, 0x83, 0xEC, 0x10, 0x48, 0x8B, 0x44, 0x24, 8, 0xC3,
            ],
            0,
        );
        assert!(facts.frame_pointer && facts.makes_frame);
        assert!(!facts.reads_return && !facts.moves_return);
    }

    #[test]
    fn return_address_readers() {
        // mov rax, [rsp]; ret
        assert!(entry_facts(&[0x48, 0x8B, 0x04, 0x24, 0xC3], 0).reads_return);
        // sub rsp, 24; mov rax, [rsp+24]
        let code = [0x48, 0x83, 0xEC, 0x18, 0x48, 0x8B, 0x44, 0x24, 0x18];
        assert!(entry_facts(&code, 0).reads_return);
        // lea rdi, [rsp]; ret: the address of the return address
        let facts = entry_facts(&[0x48, 0x8D, 0x3C, 0x24, 0xC3], 0);
        assert!(facts.reads_return && !facts.moves_return && !facts.hands_return_on);
        // sub rsp, 24; lea rax, [rsp+16]: something else
        let code = [0x48, 0x83, 0xEC, 0x18, 0x48, 0x8D, 0x44, 0x24, 0x10];
        assert!(!entry_facts(&code, 0).reads_return);
    }

    #[test]
    fn flags_that_are_returned() {
        let returns = |code: &[u8]| entry_facts(code, 0).returns_flags;
        // cmp rdi, 5; ret
        assert!(returns(&[0x48, 0x83, 0xFF, 5, 0xC3]));
        // call +0; stc; pop rbx; ret
        assert!(returns(&[0x53, 0xE8, 0, 0, 0, 0, 0xF9, 0x5B, 0xC3]));
        // cmp rdi, 5; setb al; ret
        assert!(!returns(&[0x48, 0x83, 0xFF, 5, 0x0F, 0x92, 0xC0, 0xC3]));
        // cmp rdi, 5; je +1; ret
        assert!(!returns(&[0x48, 0x83, 0xFF, 5, 0x74, 1, 0xC3]));
        // test rdi, rdi; sub rsp, 8; add rsp, 8; ret
        let code = [
            0x48, 0x85, 0xFF, 0x48, 0x83, 0xEC, 8, 0x48, 0x83, 0xC4, 8, 0xC3,
        ];
        assert!(!returns(&code));
    }

    #[test]
    fn return_addresses_that_are_handed_on() {
        let hands_on = |code: &[u8]| entry_facts(code, 0).hands_return_on;
        // lea rax, [rsp]; xchg rdi, rax; jmp rax
        assert!(hands_on(&[0x48, 0x8D, 0x04, 0x24, 0x48, 0x97, 0xFF, 0xE0]));
        // mov rdi, rsp; jmp +100
        assert!(hands_on(&[0x48, 0x89, 0xE7, 0xE9, 100, 0, 0, 0]));
        // The same jump, within the function.
        assert!(!hands_on(&[0x48, 0x89, 0xE7, 0xE9, 0, 0, 0, 0, 0xC3]));
        // mov rsi, [rsp]; push rax; jmp rax: what it jumps to returns to another address.
        assert!(!hands_on(&[0x48, 0x8B, 0x34, 0x24, 0x50, 0xFF, 0xE0]));
        // mov rdi, rsp; mov edi, 1; jmp rax
        assert!(!hands_on(&[0x48, 0x89, 0xE7, 0xBF, 1, 0, 0, 0, 0xFF, 0xE0]));
        // jmp rax
        assert!(!hands_on(&[0xFF, 0xE0]));
    }

    #[test]
    fn return_address_movers() {
        // pop rcx; jmp rcx
        assert!(entry_facts(&[0x59, 0xFF, 0xE1], 0).moves_return);
        // mov [rsp], rax; ret
        assert!(entry_facts(&[0x48, 0x89, 0x04, 0x24, 0xC3], 0).moves_return);
        // mov rsp, rbx; mov rdi, [rsp]
        assert!(entry_facts(&[0x48, 0x89, 0xDC, 0x48, 0x8B, 0x3C, 0x24], 0).moves_return);
        // add rsp, 8; ret
        assert!(entry_facts(&[0x48, 0x83, 0xC4, 8, 0xC3], 0).moves_return);
    }

    #[test]
    fn barriers_move_no_return_address() {
        let barrier = [0xF0, 0x48, 0x83, 0x0C, 0x24, 0, 0xC3]; // lock or qword [rsp], 0; ret
        let facts = entry_facts(&barrier, 0);
        assert!(!facts.moves_return && !facts.reads_return);
        let writes = [0xF0, 0x48, 0x83, 0x0C, 0x24, 1, 0xC3]; // lock or qword [rsp], 1; ret
        assert!(entry_facts(&writes, 0).moves_return);
        let unlocked = &barrier[1..];
        assert!(entry_facts(unlocked, 0).moves_return);
    }

    #[test]
    fn return_addresses_for_dropped_calls() {
        // mov rbx, [rsp+8]; mov rsi, rbx; call +0; pop rbx; ret
        let code = [
            0x48, 0x8B, 0x5C, 0x24, 8, 0x48, 0x89, 0xDE, 0xE8, 0, 0, 0, 0, 0x5B, 0xC3,
        ];
        assert!(is_only_passed_on(&code, 0, 0, &|call| call == 8));
        assert!(!is_only_passed_on(&code, 0, 0, &|_| false));
        // The same, with mov rax, rbx before the return.
        let code = [
            0x48, 0x8B, 0x5C, 0x24, 8, 0x48, 0x89, 0xDE, 0xE8, 0, 0, 0, 0, 0x48, 0x89, 0xD8, 0x5B,
            0xC3,
        ];
        assert!(!is_only_passed_on(&code, 0, 0, &|call| call == 8));
    }
}
