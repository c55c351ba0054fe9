//! Replacements for the few functions of an unwinder that must know of islands.
//!
//! A traced frame returns into a stub, so unwinders meet addresses in islands. An island has frame information that
//! leads them through (see `frames`). These hooks make unwinders find it, and keep such frames out of backtraces that
//! the program asks for. To their callers, all hooks are ordinary C functions: they may use `t0` to `t6`.

use super::stub::Layout;
use crate::hooks::{ACTION_FLAGS, HANDLER_FLAGS, RESETS_HANDLER, RLIMIT_AS, RLIMIT_DATA, SIGTRAP};
pub use crate::hooks::{AskedCall, IslandLayout, LimitCall, Raise};
use crate::stub::UNTRACED;
use hodo_isa::riscv64::asm::ops::Insns as _;
use hodo_isa::riscv64::asm::{BREAKPOINT, Code, If, Label, Reach};
use hodo_isa::riscv64::regs::{RA, SP, TP, ZERO};

const T0: u8 = 5;
const T1: u8 = 6;
const T2: u8 = 7;
const T3: u8 = 28;
const T4: u8 = 29;
const A0: u8 = 10;
const A1: u8 = 11;
const A2: u8 = 12;
const A3: u8 = 13;

/// Bytes of the stack frame of every hook that calls, and offsets in it; the first is that of the return address.
const FRAME: i64 = 80;
const LINK: i64 = 72;

fn begin(code: &mut Code<'_>) {
    code.addi(SP, SP, -FRAME);
    code.sd(RA, LINK, SP);
}

fn end(code: &mut Code<'_>) {
    code.ld(RA, LINK, SP);
    code.addi(SP, SP, FRAME);
}

/// `t1` and `t2` = start and length of an island; branches if `address` is in it. `t0` holds the control block's
/// address. Clobbers `t3`.
fn in_island(code: &mut Code<'_>, address: u8, (lo, len): (u32, u32), ours: Label) {
    code.ld(T1, lo.into(), T0);
    code.ld(T2, len.into(), T0);
    code.sub(T3, address, T1);
    code.branch(If::Below, T3, T2, ours);
}

fn load_block(code: &mut Code<'_>, layout: &Layout) {
    code.ld(T0, layout.block.into(), TP);
}

/// `rd` = a base plus an offset.
fn offset(code: &mut Code<'_>, rd: u8, base: u8, offset: u32) {
    code.li(rd, offset.cast_signed());
    code.add(rd, rd, base);
}

/// Prologue for glibc's `_dl_find_object(pc, result)`; the function's own code follows.
/// The result's fields are those of `struct dl_find_object` (glibc 2.35, `dlfcn/dlfcn.h`).
pub fn find_object(code: &mut Code<'_>, layout: &Layout, island: IslandLayout) {
    load_block(code, layout);
    let ours = code.label();
    for range in layout.islands {
        in_island(code, A0, range, ours);
    }
    let theirs = code.label();
    code.jal(ZERO, theirs);
    code.bind(ours);
    code.add(T2, T1, T2);
    code.sd(ZERO, 0, A1); // flags
    code.sd(T1, 8, A1); // start
    code.sd(T2, 16, A1); // end
    code.sd(ZERO, 24, A1); // no link map
    // The second program header's address, which is relative to the island.
    offset(code, T3, T1, island.program_headers + 56 + 16);
    code.ld(T3, 0, T3);
    code.add(T3, T3, T1);
    code.sd(T3, 32, A1);
    code.li(A0, 0);
    code.jr(RA);
    code.bind(theirs);
}

/// Replaces `_Unwind_Backtrace(callback, argument)`: frames in islands are not reported. `get_ip` is the address of
/// `_Unwind_GetIP`. The function's own code follows, and is called.
///
/// # Panics
/// If that address is not within 2 GiB.
pub fn backtrace(code: &mut Code<'_>, layout: &Layout, get_ip: u64) {
    let start = code.label();
    code.jal(ZERO, start);
    // This is called for each frame, with the context and the argument that was passed on.
    let filter = code.here();
    begin(code);
    code.sd(A0, 0, SP);
    code.sd(A1, 8, SP);
    let near = code.jump_and_link(get_ip, Reach::Pair, RA, RA);
    assert!(near.is_ok(), "an unwinder that is too far away");
    load_block(code, layout);
    let inside = code.label();
    for range in layout.islands {
        in_island(code, A0, range, inside);
    }
    code.ld(A0, 0, SP);
    code.ld(A1, 8, SP);
    end(code);
    code.ld(T0, 0, A1); // the callback
    code.ld(A1, 8, A1); // its argument
    code.jr(T0);
    code.bind(inside);
    code.li(A0, 0); // continue
    end(code);
    code.jr(RA);

    code.bind(start);
    begin(code);
    code.sd(A0, 0, SP);
    code.sd(A1, 8, SP);
    let near = code.address(A0, filter, Reach::Pair);
    debug_assert!(near.is_ok());
    code.addi(A1, SP, 0);
    let body = code.label();
    code.jal(RA, body);
    end(code);
    code.jr(RA);
    code.bind(body);
}

/// Replaces `dl_iterate_phdr(callback, data)`: islands are reported after all modules, with the short form of `struct
/// dl_phdr_info` (32 bytes), which no unwinder caches. The function's own code follows.
pub fn iterate_phdr(code: &mut Code<'_>, layout: &Layout, island: IslandLayout) {
    begin(code);
    code.sd(A0, 40, SP);
    code.sd(A1, 48, SP);
    let body = code.label();
    code.jal(RA, body);
    let out = code.label();
    code.branch(If::NotEqual, A0, ZERO, out);
    for (lo, len) in layout.islands {
        load_block(code, layout);
        code.ld(T1, len.into(), T0);
        let none = code.label();
        code.branch(If::Equal, T1, ZERO, none);
        code.ld(T1, lo.into(), T0);
        code.sd(T1, 0, SP); // dlpi_addr
        offset(code, T2, T1, island.name);
        code.sd(T2, 8, SP); // dlpi_name
        offset(code, T2, T1, island.program_headers);
        code.sd(T2, 16, SP); // dlpi_phdr
        code.li(T2, 2);
        code.sd(T2, 24, SP); // dlpi_phnum
        code.addi(A0, SP, 0);
        code.li(A1, 32);
        code.ld(A2, 48, SP);
        code.ld(T0, 40, SP);
        code.call(T0);
        code.branch(If::NotEqual, A0, ZERO, out);
        code.bind(none);
    }
    code.bind(out);
    end(code);
    code.jr(RA);
    code.bind(body);
}

/// Replaces a function that sets or gets limits. The function's own code follows, and is called.
pub fn limits(code: &mut Code<'_>, call: LimitCall, extra: Raise) {
    // The frame: a changed copy of the new limits, where the old ones go, and how much is added.
    const SAVE_OLD: i64 = 16;
    const SAVE_EXTRA: i64 = 24;
    let theirs = code.label();
    if call == LimitCall::Both {
        code.branch(If::NotEqual, A0, ZERO, theirs);
    }
    let (resource, new, old) = match call {
        LimitCall::Both => (A1, A2, A3),
        _ => (A0, A1, A1),
    };
    number(code, T0, extra.space);
    code.li(T1, RLIMIT_AS.into());
    let space = code.label();
    code.branch(If::Equal, resource, T1, space);
    number(code, T0, extra.data);
    code.li(T1, RLIMIT_DATA.into());
    code.branch(If::NotEqual, resource, T1, theirs);
    code.bind(space);
    if call == LimitCall::Get {
        code.branch(If::Equal, old, ZERO, theirs);
    } else {
        let none = code.label();
        code.branch(If::Equal, new, ZERO, none);
        // A soft limit above the hard one stays above it, and is refused.
        code.ld(T1, 0, new);
        code.ld(T2, 8, new);
        code.branch(If::Below, T2, T1, theirs);
        code.bind(none);
    }
    begin(code);
    number(code, T4, extra.hard);
    code.sd(T0, SAVE_EXTRA, SP);
    if call != LimitCall::Set {
        code.sd(old, SAVE_OLD, SP);
    }
    if call != LimitCall::Get {
        let none = code.label();
        code.branch(If::Equal, new, ZERO, none);
        for (at, more) in [(0, T0), (8, T4)] {
            code.ld(T1, at, new);
            // A limit that would become too large (infinity is the largest number) stays as it is.
            code.add(T2, T1, more);
            let fits = code.label();
            code.branch(If::NotBelow, T2, T1, fits);
            code.addi(T2, T1, 0);
            code.bind(fits);
            code.sd(T2, at, SP);
        }
        code.addi(new, SP, 0);
        code.bind(none);
    }
    let body = code.label();
    code.jal(RA, body);
    if call != LimitCall::Set {
        let failed = code.label();
        code.branch(If::NotEqual, A0, ZERO, failed);
        code.ld(T3, SAVE_OLD, SP);
        let none = code.label();
        code.branch(If::Equal, T3, ZERO, none);
        code.ld(T0, SAVE_EXTRA, SP);
        number(code, T4, extra.hard);
        // A limit that is too small, or infinite, was not changed.
        for (at, less) in [(0, T0), (8, T4)] {
            code.ld(T1, at, T3);
            let small = code.label();
            code.branch(If::Below, T1, less, small);
            code.addi(T2, ZERO, -1);
            let infinite = code.label();
            code.branch(If::Equal, T1, T2, infinite);
            code.sub(T1, T1, less);
            code.sd(T1, at, T3);
            code.bind(small);
            code.bind(infinite);
        }
        code.bind(failed);
        code.bind(none);
    }
    end(code);
    code.jr(RA);
    code.bind(theirs);
    code.bind(body);
}

/// Stops for the tracer before a function locks all memory of the process, which would be hodo's reservations, too. The
/// tracer finds the number of the system call in `t1`, and its arguments in `t2` and `t3`. It leaves 0 in `t1` if it
/// has done what the program wants; otherwise the function makes its call. Without a tracer, memory is locked when it
/// is used, so that reservations stay what they are. The function's own code follows. Returns the address of the
/// breakpoint, and where a thread goes on from there without a tracer.
pub fn ask(code: &mut Code<'_>, layout: &Layout, call: AskedCall) -> (u64, u64) {
    /// The number of the system call.
    const MLOCKALL: i32 = 230;
    /// In its flags: memory is locked when it is used, and not before.
    const MCL_ONFAULT: i64 = 4;
    let (theirs, alone) = (code.label(), code.label());
    let (first, second) = match call {
        AskedCall::LockAll | AskedCall::SetBase => (A0, A1),
        AskedCall::ByNumber => (A1, A2),
    };
    code.li(T1, MLOCKALL);
    if call == AskedCall::ByNumber {
        code.branch(If::NotEqual, A0, T1, theirs);
    }
    load_block(code, layout);
    code.ld(T0, layout.base.into(), T0);
    offset(code, T2, T0, layout.owner);
    code.lbu(T2, 0, T2);
    code.andi(T2, T2, UNTRACED.into());
    code.branch(If::NotEqual, T2, ZERO, alone);
    code.addi(T2, first, 0);
    code.addi(T3, second, 0);
    let stop = code.here();
    code.breakpoints(BREAKPOINT.len());
    code.branch(If::NotEqual, T1, ZERO, theirs);
    code.li(A0, 0);
    code.jr(RA);
    code.bind(alone);
    let untraced = code.here();
    code.ori(first, first, MCL_ONFAULT);
    code.bind(theirs);
    (stop, untraced)
}

/// The functions that ask first, by name.
pub const ASKED: [(&str, AskedCall); 2] = [
    ("mlockall", AskedCall::LockAll),
    ("syscall", AskedCall::ByNumber),
];

/// Replaces `sigaction(signal, new, old)`. Our handler, at `ours`, stands for the default action of SIGTRAP: programs
/// see and set the default. The function's own code follows, and is called.
pub fn action(code: &mut Code<'_>, ours: u64, _restorer: u64) {
    /// The frame: libc's `struct sigaction`, where the old action goes, and the return address.
    const FRAME: i64 = 176;
    const SAVE_OLD: i64 = 152;
    const LINK: i64 = 160;
    let (theirs, call, out) = (code.label(), code.label(), code.label());
    code.li(T0, SIGTRAP.into());
    code.branch(If::NotEqual, A0, T0, theirs);
    code.addi(SP, SP, -FRAME);
    code.sd(RA, LINK, SP);
    code.sd(A2, SAVE_OLD, SP);
    code.branch(If::Equal, A1, ZERO, call);
    code.ld(T0, 0, A1);
    code.branch(If::NotEqual, T0, ZERO, call);
    // The handler with its flags instead of the default.
    for word in (8..SAVE_OLD).step_by(8) {
        code.ld(T0, word, A1);
        code.sd(T0, word, SP);
    }
    number(code, T0, ours);
    code.sd(T0, 0, SP);
    flags(code, A1, T0);
    code.or(T0, T0, T1);
    // The bit is set first, so that subtracting it clears it.
    code.li(T1, RESETS_HANDLER.cast_signed());
    code.or(T0, T0, T1);
    code.sub(T0, T0, T1);
    code.sw(T0, ACTION_FLAGS.into(), SP);
    code.addi(A1, SP, 0);
    code.bind(call);
    let body = code.label();
    code.jal(RA, body);
    code.ld(T1, SAVE_OLD, SP);
    code.branch(If::Equal, T1, ZERO, out);
    code.branch(If::NotEqual, A0, ZERO, out);
    number(code, T0, ours);
    code.ld(T2, 0, T1);
    code.branch(If::NotEqual, T0, T2, out);
    code.sd(ZERO, 0, T1);
    code.addi(T2, T1, 0);
    flags(code, T2, T0);
    code.or(T0, T0, T1);
    code.sub(T0, T0, T1);
    code.sw(T0, ACTION_FLAGS.into(), T2);
    code.bind(out);
    code.ld(RA, LINK, SP);
    code.addi(SP, SP, FRAME);
    code.jr(RA);
    code.bind(theirs);
    code.bind(body);
}

/// `rd` = the flags of an action, `t1` = those of our handler.
fn flags(code: &mut Code<'_>, action: u8, rd: u8) {
    code.lw(rd, ACTION_FLAGS.into(), action);
    code.li(T1, HANDLER_FLAGS.cast_signed());
}

/// `rd` = a number.
fn number(code: &mut Code<'_>, rd: u8, value: u64) {
    // Eleven bits at a time: no part is negative.
    let mut shift = 55;
    code.li(rd, (value >> shift) as i32);
    while shift > 0 {
        shift -= 11;
        code.slli(rd, rd, 11);
        code.addi(rd, rd, (value >> shift & 0x7FF) as i64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hodo_isa::riscv64::text;
    use std::string::ToString;

    #[test]
    fn numbers_have_all_bits() {
        for value in [0, 1, 1 << 40, u64::MAX, 0x0123_4567_89AB_CDEF] {
            let mut bytes = alloc::vec::Vec::new();
            number(&mut Code::new(&mut bytes, 0), T0, value);
            let mut result = 0u64;
            for word in bytes.chunks(4) {
                let text = text(word, 0).to_string();
                if text == "slli t0, t0, 0xb" {
                    result <<= 11;
                } else {
                    let digits = text.rsplit(' ').next().expect("a number");
                    result += digits.parse::<u64>().expect("a number");
                }
            }
            assert_eq!(result, value);
        }
    }
}
