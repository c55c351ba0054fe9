//! What a function does with its return address, judged by its first straight line of code.

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

/// Looks at no more instructions than this.
const LIMIT: usize = 64;

/// Follows the straight line of code from the entry of a function, to the first jump or return.
#[must_use]
pub fn entry_facts(code: &[u8], addr: u64) -> EntryFacts {
    let mut facts = EntryFacts::default();
    let mut decoder = Decoder::with_ip(64, code, addr, DecoderOptions::NONE);
    let mut raw = Instruction::default();
    // Bytes between the stack pointer and the return address.
    let mut depth = 0i64;
    let mut pushed_frame = false;
    // A register that holds the stack pointer as it was at a depth.
    let mut copy: Option<(Register, i64)> = None;
    let mut branched = false;
    let mut flags_known = false;
    let mut red_zone_known = false;
    for _ in 0..LIMIT {
        if !decoder.can_decode() {
            break;
        }
        decoder.decode_out(&mut raw);
        if !flags_known {
            // A system call only copies them to a register.
            let used = raw.code() != Code::Syscall && raw.rflags_read() & STATUS != 0;
            facts.reads_flags |= used;
            flags_known = branched || raw.rflags_modified() & STATUS != 0;
        }
        let on_stack = raw.memory_base() == Register::RSP && raw.memory_index() == Register::None;
        let lea = raw.mnemonic() == Mnemonic::Lea;
        let reaches = on_stack && !lea && raw.memory_displacement64() as i64 == depth;
        if reaches && !is_barrier(&raw) {
            // A push reads before it moves the stack pointer, a pop writes after it.
            if writes_memory(&raw) {
                facts.moves_return = true;
            } else {
                facts.reads_return = true;
            }
        }
        if on_stack && !red_zone_known && (raw.memory_displacement64() as i64) < 0 {
            facts.reads_red_zone |= !lea && !writes_memory(&raw);
            red_zone_known = true;
        }
        match raw.flow_control() {
            FlowControl::Next | FlowControl::Interrupt => {}
            FlowControl::Call | FlowControl::IndirectCall => {
                flags_known = true;
                continue;
            }
            FlowControl::ConditionalBranch => {
                branched = true;
                red_zone_known = true;
                continue;
            }
            _ => break,
        }
        let overwrites = |register: Register| {
            raw.op_count() > 0
                && raw.op0_kind() == OpKind::Register
                && raw.op0_register().full_register() == register
        };
        copy = copy.filter(|&(register, _)| !overwrites(register));
        match raw.code() {
            Code::Push_r64 | Code::Pushq_imm8 | Code::Pushq_imm32 | Code::Push_rm64 => {
                depth += 8;
                facts.makes_frame |= !branched;
                if raw.code() == Code::Push_r64 && raw.op0_register() == Register::RBP {
                    pushed_frame = depth == 8;
                }
            }
            Code::Pop_r64 | Code::Pop_rm64 => {
                if depth == 0 {
                    facts.moves_return = true;
                    break;
                }
                depth -= 8;
            }
            Code::Sub_rm64_imm8 | Code::Sub_rm64_imm32 if raw.op0_register() == Register::RSP => {
                depth += raw.immediate(1) as i64;
                facts.makes_frame |= !branched;
            }
            Code::Add_rm64_imm8 | Code::Add_rm64_imm32 if raw.op0_register() == Register::RSP => {
                depth -= raw.immediate(1) as i64;
            }
            Code::Lea_r64_m if raw.op0_register() == Register::RSP => {
                if !on_stack {
                    break;
                }
                depth -= raw.memory_displacement64() as i64;
            }
            Code::Mov_r64_rm64 | Code::Mov_rm64_r64
                if raw.op0_register() == Register::RBP && raw.op1_register() == Register::RSP =>
            {
                facts.frame_pointer |= pushed_frame && depth == 8;
            }
            // A copy of the stack pointer, to come back to.
            Code::Mov_r64_rm64 | Code::Mov_rm64_r64
                if raw.op1_kind() == OpKind::Register
                    && raw.op1_register() == Register::RSP
                    && raw.op0_kind() == OpKind::Register =>
            {
                copy = Some((raw.op0_register(), depth));
            }
            Code::Mov_r64_rm64 | Code::Mov_rm64_r64
                if raw.op0_register() == Register::RSP
                    && raw.op1_kind() == OpKind::Register
                    && copy.is_some_and(|(register, _)| register == raw.op1_register()) =>
            {
                depth = copy.map_or(depth, |(_, depth)| depth);
            }
            // Another stack: whatever is called here does not return where it came from.
            Code::Mov_r64_rm64 | Code::Mov_rm64_r64
                if raw.op0_register() == Register::RSP && !facts.frame_pointer =>
            {
                facts.moves_return = true;
                break;
            }
            // Anything else that moves the stack pointer ends what we know.
            _ if raw.op_count() > 0
                && raw.op0_kind() == OpKind::Register
                && raw.op0_register().full_register() == Register::RSP
                && !matches!(raw.mnemonic(), Mnemonic::Cmp | Mnemonic::Test) =>
            {
                break;
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
                break;
            }
            _ => {}
        }
        if depth < 0 {
            facts.moves_return = true;
            break;
        }
    }
    facts
}

/// Whether the return address, which the instruction at `read` loads, goes nowhere but to calls that are dropped.
/// `code` is the function's, from `addr` on.
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
    // Registers that hold it. Those that callees keep are taken to hold it to the function's end: blocks are not told
    // apart.
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
            // A jump to another function, perhaps: it gets all registers.
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

/// Whether code is a signal handler's return, which unwinders know by these bytes.
#[must_use]
pub fn is_signal_return(code: &[u8]) -> bool {
    // mov rax, 15; syscall, and the same with eax
    const LONG: [u8; 9] = [0x48, 0xC7, 0xC0, 15, 0, 0, 0, 0x0F, 0x05];
    const SHORT: [u8; 7] = [0xB8, 15, 0, 0, 0, 0x0F, 0x05];
    code.starts_with(&LONG) || code.starts_with(&SHORT)
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
