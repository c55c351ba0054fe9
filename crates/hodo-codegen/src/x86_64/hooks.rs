//! Replacements for the few functions of an unwinder that must know of islands.
//!
//! A traced frame returns into a stub, so unwinders meet addresses in islands. An island has frame information that
//! leads them through (see `frames`). These hooks make unwinders find it, and keep such frames out of backtraces that
//! the program asks for. To their callers, all hooks are ordinary C functions: they may use call-clobbered registers.

use super::masm::*;
use super::stub::Layout;
use crate::hooks::{ACTION_FLAGS, HANDLER_FLAGS, RESETS_HANDLER, RLIMIT_AS, RLIMIT_DATA, SIGTRAP};
pub use crate::hooks::{AskedCall, IslandLayout, LimitCall, Raise};
use crate::stub::UNTRACED;

/// Bytes of the stack frame of every hook that calls, except the one for actions.
const FRAME: i8 = 88;
/// Bytes of the stack frames of hooks, at their calls.
pub const FRAMES: [u64; 2] = [FRAME as u64, ACTION_FRAME as u64];

/// Goes to `ours` if `rax` is an address in an island. Clobbers `rax`.
fn in_island(code: &mut Masm<'_>, (lo, len): (u32, u32), ours: Label) {
    code.sub_rm(RAX, gs(lo));
    code.cmp_rm(RAX, gs(len));
    code.jcc(Cond::B, ours);
}

/// After a call: erases its return address below the stack pointer. Left over in frames that are made there later, it
/// would look as if somebody was going to return here. Signal handlers leave this word alone (the red zone).
fn forget_return(code: &mut Masm<'_>) {
    code.mov_mi(QWORD, mem(RSP, -8), 0);
}

/// Prologue for glibc's `_dl_find_object(pc, result)`; the function's own code follows.
/// The result's fields are those of `struct dl_find_object` (glibc 2.35, `dlfcn/dlfcn.h`).
pub fn find_object(code: &mut Masm<'_>, layout: &Layout, island: IslandLayout) {
    let islands = layout.islands.map(|range| (range, code.label()));
    for (range, ours) in islands {
        code.mov_rr(RAX, RDI);
        in_island(code, range, ours);
    }
    let theirs = code.label();
    code.jmp(theirs);
    for ((lo, len), ours) in islands {
        code.bind(ours);
        code.mov_rm(RDX, gs(lo));
        code.mov_rr(RCX, RDX);
        code.add_rm(RCX, gs(len));
        code.xor_rr(EAX, EAX);
        code.mov_mr(mem(RSI, 0), RAX); // flags
        code.mov_mr(mem(RSI, 8), RDX); // start
        code.mov_mr(mem(RSI, 16), RCX); // end
        code.mov_mr(mem(RSI, 24), RAX); // no link map
        // The second program header's address, which is relative to the island.
        code.mov_rm(RCX, mem32(RDX, island.program_headers + 56 + 16));
        code.add_rr(RCX, RDX);
        code.mov_mr(mem(RSI, 32), RCX);
        code.ret();
    }
    code.bind(theirs);
}

/// Replaces `_Unwind_Backtrace(callback, argument)`: frames in islands are not reported. `get_ip` is the address of
/// `_Unwind_GetIP`. The function's own code follows, and is called.
pub fn backtrace(code: &mut Masm<'_>, layout: &Layout, get_ip: u64) {
    code.sub_ri8(RSP, FRAME);
    code.mov_mr(mem(RSP, 0), RDI);
    code.mov_mr(mem(RSP, 8), RSI);
    let filter = code.label();
    code.lea(RDI, label(filter));
    code.mov_rr(RSI, RSP);
    let body = code.label();
    code.call(body);
    forget_return(code);
    code.add_ri8(RSP, FRAME);
    code.ret();

    code.bind(filter);
    code.sub_ri8(RSP, FRAME);
    code.mov_mr(mem(RSP, 0), RDI); // the context
    code.mov_mr(mem(RSP, 8), RSI);
    code.call_to(get_ip);
    forget_return(code);
    code.mov_rr(RDX, RAX);
    let inside = code.label();
    for range in layout.islands {
        code.mov_rr(RAX, RDX);
        in_island(code, range, inside);
    }
    code.mov_rm(RDI, mem(RSP, 0));
    code.mov_rm(RSI, mem(RSP, 8));
    code.add_ri8(RSP, FRAME);
    code.mov_rm(RAX, mem(RSI, 0)); // the callback
    code.mov_rm(RSI, mem(RSI, 8)); // its argument
    code.jmp_r(RAX);
    code.bind(inside);
    code.xor_rr(EAX, EAX); // continue
    code.add_ri8(RSP, FRAME);
    code.ret();
    code.bind(body);
}

/// Replaces `dl_iterate_phdr(callback, data)`: islands are reported after all modules, with the short form of `struct
/// dl_phdr_info` (32 bytes), which no unwinder caches. The function's own code follows.
pub fn iterate_phdr(code: &mut Masm<'_>, layout: &Layout, island: IslandLayout) {
    code.sub_ri8(RSP, FRAME);
    code.mov_mr(mem(RSP, 72), RDI);
    code.mov_mr(mem(RSP, 80), RSI);
    let body = code.label();
    code.call(body);
    forget_return(code);
    code.test_rr(EAX, EAX);
    let out = code.label();
    code.jcc(Cond::NE, out);
    for (lo, len) in layout.islands {
        code.mov_rm(RDX, gs(len));
        code.test_rr(RDX, RDX);
        let none = code.label();
        code.jcc(Cond::E, none);
        code.mov_rm(RDX, gs(lo));
        code.mov_mr(mem(RSP, 0), RDX); // dlpi_addr
        code.lea(RCX, mem32(RDX, island.name));
        code.mov_mr(mem(RSP, 8), RCX); // dlpi_name
        code.lea(RCX, mem32(RDX, island.program_headers));
        code.mov_mr(mem(RSP, 16), RCX); // dlpi_phdr
        code.mov_mi(QWORD, mem(RSP, 24), 2); // dlpi_phnum
        code.mov_rr(RDI, RSP);
        code.mov_ri(ESI, 32);
        code.mov_rm(RDX, mem(RSP, 80));
        code.call_m(mem(RSP, 72));
        forget_return(code);
        code.test_rr(EAX, EAX);
        code.jcc(Cond::NE, out);
        code.bind(none);
        code.xor_rr(EAX, EAX);
    }
    code.bind(out);
    code.add_ri8(RSP, FRAME);
    code.ret();
    code.bind(body);
}

/// Offsets in the frame of a hook for limits: a changed copy of the new limits, where the old ones go, and how much is
/// added.
const CHANGED: i8 = 0;
const SAVE_OLD: i32 = 16;
const SAVE_EXTRA: i32 = 24;

/// Replaces a function that sets or gets limits. The function's own code follows, and is called.
pub fn limits(code: &mut Masm<'_>, call: LimitCall, extra: Raise) {
    let theirs = code.label();
    if call == LimitCall::Both {
        code.test_rr(EDI, EDI);
        code.jcc(Cond::NE, theirs);
    }
    let resource = if call == LimitCall::Both { ESI } else { EDI };
    code.movabs_ri(RAX, extra.space);
    code.cmp_ri8(resource, RLIMIT_AS);
    let space = code.label();
    code.jcc(Cond::E, space);
    code.movabs_ri(RAX, extra.data);
    code.cmp_ri8(resource, RLIMIT_DATA);
    code.jcc(Cond::NE, theirs);
    code.bind(space);
    if call == LimitCall::Get {
        code.test_rr(RSI, RSI);
        code.jcc(Cond::E, theirs);
    } else {
        if call == LimitCall::Set {
            code.mov_rr(RDX, RSI);
        }
        code.test_rr(RDX, RDX);
        let none = code.label();
        code.jcc(Cond::E, none);
        // A soft limit above the hard one stays above it, and is refused.
        code.mov_rm(R8, mem(RDX, 0));
        code.cmp_rm(R8, mem(RDX, 8));
        code.jcc(Cond::A, theirs);
        code.bind(none);
    }
    code.sub_ri8(RSP, FRAME);
    code.movabs_ri(R9, extra.hard);
    code.mov_mr(mem(RSP, SAVE_EXTRA), RAX);
    match call {
        LimitCall::Set => {}
        LimitCall::Get => code.mov_mr(mem(RSP, SAVE_OLD), RSI),
        LimitCall::Both => code.mov_mr(mem(RSP, SAVE_OLD), RCX),
    }
    if call != LimitCall::Get {
        raise(code, if call == LimitCall::Set { RSI } else { RDX });
    }
    let body = code.label();
    code.call(body);
    forget_return(code);
    if call != LimitCall::Set {
        lower(code, extra);
    }
    code.add_ri8(RSP, FRAME);
    code.ret();
    code.bind(theirs);
    code.bind(body);
}

/// Makes `new` point to a changed copy of the limits at `rdx`: `rax` is added to the soft one, `r9` to the hard one.
fn raise(code: &mut Masm<'_>, new: Reg) {
    code.test_rr(RDX, RDX);
    let none = code.label();
    code.jcc(Cond::E, none);
    // A limit that would become too large (infinity is the largest number) stays as it is.
    for (limit, more) in [(0, RAX), (8, R9)] {
        code.mov_rm(R8, mem8(RDX, limit));
        code.mov_rr(R10, R8);
        code.add_rr(R10, more);
        code.cmovcc(Cond::B, R10, R8);
        code.mov_mr(mem8(RSP, CHANGED + limit), R10);
    }
    code.mov_rr(new, RSP);
    code.bind(none);
}

/// Subtracts from what the function has reported what [`raise`] adds.
fn lower(code: &mut Masm<'_>, extra: Raise) {
    let none = code.label();
    code.test_rr(EAX, EAX);
    code.jcc(Cond::NE, none);
    code.mov_rm(RSI, mem(RSP, SAVE_OLD));
    code.test_rr(RSI, RSI);
    code.jcc(Cond::E, none);
    code.mov_rm(RCX, mem(RSP, SAVE_EXTRA));
    code.movabs_ri(R9, extra.hard);
    // A limit that is too small, or infinite, was not changed.
    for (limit, more) in [(0, RCX), (8, R9)] {
        code.mov_rm(RDX, mem8(RSI, limit));
        code.mov_rr(RDI, RDX);
        code.sub_rr(RDI, more);
        code.cmovcc(Cond::B, RDI, RDX);
        code.cmp_ri8(RDX, -1);
        code.cmovcc(Cond::E, RDI, RDX);
        code.mov_mr(mem8(RSI, limit), RDI);
    }
    code.bind(none);
}

/// `SA_RESTORER`: the action has an address to which its handler returns.
const HAS_RESTORER: u32 = 0x0400_0000;
/// Bytes of the stack frame of the hook for actions: a `struct sigaction` of libc, and a word.
const ACTION_FRAME: u32 = 168;
const SAVE_ACTION: i32 = 152;

/// Stops for the tracer before a function locks all memory of the process, which would be hodo's reservations, too; and
/// before it sets or asks for the base of `gs`, which is hodo's while calls are recorded. The tracer finds the number
/// of the system call in `eax`, and its arguments in `r10` and `r11`. It leaves 0 in `eax` if it has done what the
/// program wants; otherwise the function makes its call. Without a tracer, memory is locked when it is used, so that
/// reservations stay what they are, and the base of `gs` is not set: the kernel finds no such code. The function's own
/// code follows. Returns the address of the breakpoint, and where a thread goes on from there without a tracer.
pub fn ask(code: &mut Masm<'_>, layout: &Layout, call: AskedCall) -> (u64, u64) {
    /// Numbers of system calls.
    const MLOCKALL: u32 = 151;
    const ARCH_PRCTL: u32 = 158;
    /// In the flags of `mlockall`: memory is locked when it is used, and not before.
    const MCL_ONFAULT: u32 = 4;
    /// `asm/prctl.h`
    const ARCH_SET_GS: u32 = 0x1001;
    const ARCH_GET_GS: u32 = 0x1004;
    let (first, second) = match call {
        AskedCall::LockAll | AskedCall::SetBase => (RDI, RSI),
        AskedCall::ByNumber => (RSI, RDX),
    };
    let first_32 = if first == RDI { EDI } else { ESI };
    let (theirs, asks, alone) = (code.label(), code.label(), code.label());
    if call == AskedCall::ByNumber {
        code.cmp_ri(EDI, MLOCKALL);
        code.jcc(Cond::E, asks);
        code.cmp_ri(EDI, ARCH_PRCTL);
        code.jcc(Cond::NE, theirs);
    }
    if call != AskedCall::LockAll {
        code.cmp_ri(first_32, ARCH_SET_GS);
        code.jcc(Cond::E, asks);
        code.cmp_ri(first_32, ARCH_GET_GS);
        code.jcc(Cond::NE, theirs);
    }
    code.bind(asks);
    code.mov_rm(RAX, gs(layout.base));
    code.test_mi(mem32(RAX, layout.owner), UNTRACED);
    code.jcc(Cond::NE, alone);
    match call {
        AskedCall::LockAll => code.mov_ri(EAX, MLOCKALL),
        AskedCall::SetBase => code.mov_ri(EAX, ARCH_PRCTL),
        AskedCall::ByNumber => code.mov_rr(EAX, EDI),
    }
    code.mov_rr(R10, first);
    code.mov_rr(R11, second);
    let stop = code.here();
    code.int3();
    code.test_rr(EAX, EAX);
    code.jcc(Cond::NE, theirs);
    code.ret();
    code.bind(alone);
    let untraced = code.here();
    if call != AskedCall::SetBase {
        let other = code.label();
        if call == AskedCall::ByNumber {
            code.cmp_ri(EDI, MLOCKALL);
            code.jcc(Cond::NE, other);
        }
        code.or_ri(first_32, MCL_ONFAULT);
        code.jmp(theirs);
        code.bind(other);
    }
    if call != AskedCall::LockAll {
        let sets = code.label();
        code.cmp_ri(first_32, ARCH_GET_GS);
        code.jcc(Cond::NE, sets);
        code.xor_rr(EAX, EAX);
        code.mov_mr(mem(second, 0), RAX);
        code.ret();
        code.bind(sets);
        code.xor_rr(first_32, first_32);
    }
    code.bind(theirs);
    (stop, untraced)
}

/// The functions that ask first, by name.
pub const ASKED: [(&str, AskedCall); 3] = [
    ("mlockall", AskedCall::LockAll),
    ("syscall", AskedCall::ByNumber),
    ("arch_prctl", AskedCall::SetBase),
];

/// Replaces `sigaction(signal, new, old)`. Our handler, at `ours`, stands for the default action of SIGTRAP: programs
/// see and set the default. Its action has `restorer` if hodo has set it. The function's own code follows, and is
/// called.
pub fn action(code: &mut Masm<'_>, ours: u64, restorer: u64) {
    let (theirs, call, out) = (code.label(), code.label(), code.label());
    code.cmp_ri8(EDI, SIGTRAP);
    code.jcc(Cond::NE, theirs);
    code.sub_ri(RSP, ACTION_FRAME);
    code.mov_mr(mem32(RSP, SAVE_ACTION as u32), RDX);
    code.test_rr(RSI, RSI);
    code.jcc(Cond::E, call);
    code.mov_rm(RAX, mem(RSI, 0));
    code.test_rr(RAX, RAX);
    code.jcc(Cond::NE, call);
    // The handler with its flags instead of the default.
    for word in (8..ACTION_FRAME - 16).step_by(8) {
        code.mov_rm(RAX, mem32(RSI, word));
        code.mov_mr(mem32(RSP, word), RAX);
    }
    code.movabs_ri(RCX, ours);
    code.mov_mr(mem(RSP, 0), RCX);
    code.mov_rm(EAX, mem32(RSI, ACTION_FLAGS));
    code.and_ri(EAX, !RESETS_HANDLER);
    code.or_ri(EAX, HANDLER_FLAGS);
    code.mov_mr(mem32(RSP, ACTION_FLAGS), EAX);
    code.mov_rr(RSI, RSP);
    code.bind(call);
    let body = code.label();
    code.call(body);
    forget_return(code);
    code.mov_rm(RDX, mem32(RSP, SAVE_ACTION as u32));
    code.test_rr(RDX, RDX);
    code.jcc(Cond::E, out);
    code.test_rr(EAX, EAX);
    code.jcc(Cond::NE, out);
    code.movabs_ri(RCX, ours);
    code.cmp_rm(RCX, mem(RDX, 0));
    code.jcc(Cond::NE, out);
    code.xor_rr(ECX, ECX);
    code.mov_mr(mem(RDX, 0), RCX);
    code.mov_rm(ECX, mem32(RDX, ACTION_FLAGS));
    code.and_ri(ECX, !HANDLER_FLAGS);
    code.movabs_ri(RSI, restorer);
    code.cmp_rm(RSI, mem32(RDX, ACTION_FLAGS + 8));
    let theirs_too = code.label();
    code.jcc(Cond::NE, theirs_too);
    code.and_ri(ECX, !HAS_RESTORER);
    code.xor_rr(ESI, ESI);
    code.mov_mr(mem32(RDX, ACTION_FLAGS + 8), RSI);
    code.bind(theirs_too);
    code.mov_mr(mem32(RDX, ACTION_FLAGS), ECX);
    code.bind(out);
    code.add_ri(RSP, ACTION_FRAME);
    code.ret();
    code.bind(theirs);
    code.bind(body);
}
