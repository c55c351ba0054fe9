//! Replacements for the few functions of an unwinder that must know of islands, where calls put the return address in a
//! register.
//!
//! A traced frame returns into a stub, so unwinders meet addresses in islands. An island has frame information that
//! leads them through (see `frames`). These hooks make unwinders find it, and keep such frames out of backtraces that
//! the program asks for. To their callers, all hooks are ordinary C functions: they may use temporary registers, and
//! flags if there are some.

use crate::detour::Register;
use crate::hooks::{
    ACTION_FLAGS, AskedCall, HANDLER_FLAGS, IslandLayout, LimitCall, RESETS_HANDLER, RLIMIT_AS,
    RLIMIT_DATA, Raise, SIGTRAP,
};
use crate::stub::{Layout, UNTRACED};
use hodo_isa::buffer::Label;
use hodo_isa::linked::If;

/// What hooks ask of an assembler. Each method writes the instructions for one step.
pub trait Hooks {
    /// A temporary register.
    const TEMP_0: Register;
    /// Another one, in which the tracer answers.
    const ANSWER: Register;
    /// Another one, in which a hook asks. No system call changes these two.
    const ASK: Register;
    /// Another one.
    const TEMP_1: Register;
    /// Another one.
    const TEMP_2: Register;
    /// The register of the first argument and of the result.
    const ARG_0: Register;
    /// The register of the second argument.
    const ARG_1: Register;
    /// The register of the third argument.
    const ARG_2: Register;
    /// The register of the fourth argument.
    const ARG_3: Register;
    /// The register that is always 0.
    const ZERO: Register;
    /// The stack pointer. Only bases of memory, and what numbers are added to, may be it.
    const STACK: Register;
    /// The link register of calls.
    const LINK: Register;

    /// A label that is not bound yet.
    fn label(&mut self) -> Label;
    /// Binds a label to this place.
    fn bind(&mut self, label: Label);
    /// The address of this place.
    fn here(&self) -> u64;
    /// A branch that compares two registers.
    fn branch(&mut self, condition: If, left: Register, right: Register, to: Label);
    /// A jump to a label.
    fn jump(&mut self, to: Label);
    /// A call of a label.
    fn call(&mut self, to: Label);
    /// A jump to a function whose address is in a register.
    fn jump_through(&mut self, register: Register);
    /// A call of it.
    fn call_through(&mut self, register: Register);
    /// A call of an address.
    fn call_far(&mut self, to: u64);
    /// A return.
    fn ret(&mut self);
    /// A breakpoint.
    fn breakpoint(&mut self);
    /// `rd` = an address in this code.
    fn address(&mut self, rd: Register, of: u64);
    /// `rd` = a number.
    fn number(&mut self, rd: Register, value: u64);
    /// `rd` = the control block's address.
    fn block(&mut self, rd: Register, layout: &Layout);
    /// Loads 8 bytes.
    fn load(&mut self, rd: Register, base: Register, offset: i64);
    /// Stores 8 bytes.
    fn store(&mut self, from: Register, base: Register, offset: i64);
    /// Loads 4 bytes; the upper half of the register has any value.
    fn load_half(&mut self, rd: Register, base: Register, offset: i64);
    /// Stores the lower 4 bytes.
    fn store_half(&mut self, from: Register, base: Register, offset: i64);
    /// Loads a byte, zero-extended.
    fn load_byte(&mut self, rd: Register, base: Register, offset: i64);
    /// `rd` = `rs` + a small number.
    fn add_number(&mut self, rd: Register, rs: Register, number: i64);
    /// Makes an argument or result of 32 bits a whole register, if it may not be one.
    fn extend(&mut self, rd: Register);
    /// `rd` = `left` + `right`.
    fn add(&mut self, rd: Register, left: Register, right: Register);
    /// `rd` = `left` - `right`.
    fn sub(&mut self, rd: Register, left: Register, right: Register);
    /// `rd` = `left` | `right`.
    fn or(&mut self, rd: Register, left: Register, right: Register);
    /// `rd` = `rs` & one bit.
    fn and_bit(&mut self, rd: Register, rs: Register, bit: u64);
    /// `rd` = `rs` | one bit.
    fn or_bit(&mut self, rd: Register, rs: Register, bit: u64);
}

/// Bytes of the stack frame of every hook that calls, and offsets in it; the first is that of the return address.
const FRAME: i64 = 80;
const LINK: i64 = 72;

fn begin<C: Hooks>(code: &mut C) {
    code.add_number(C::STACK, C::STACK, -FRAME);
    code.store(C::LINK, C::STACK, LINK);
}

fn end<C: Hooks>(code: &mut C) {
    code.load(C::LINK, C::STACK, LINK);
    code.add_number(C::STACK, C::STACK, FRAME);
}

/// `ANSWER` and `ASK` = start and length of an island; branches if `address` is in it. `TEMP_0` holds the control
/// block's
/// address. Clobbers `TEMP_1`.
fn in_island<C: Hooks>(code: &mut C, address: Register, (lo, len): (u32, u32), ours: Label) {
    code.load(C::ANSWER, C::TEMP_0, lo.into());
    code.load(C::ASK, C::TEMP_0, len.into());
    code.sub(C::TEMP_1, address, C::ANSWER);
    code.branch(If::Below, C::TEMP_1, C::ASK, ours);
}

fn load_block<C: Hooks>(code: &mut C, layout: &Layout) {
    code.block(C::TEMP_0, layout);
}

/// `rd` = a base plus an offset.
fn offset<C: Hooks>(code: &mut C, rd: Register, base: Register, offset: u32) {
    code.number(rd, offset.into());
    code.add(rd, rd, base);
}

/// Prologue for glibc's `_dl_find_object(pc, result)`; the function's own code follows.
/// The result's fields are those of `struct dl_find_object` (glibc 2.35, `dlfcn/dlfcn.h`).
pub fn find_object<C: Hooks>(code: &mut C, layout: &Layout, island: IslandLayout) {
    load_block(code, layout);
    let ours = code.label();
    for range in layout.islands {
        in_island(code, C::ARG_0, range, ours);
    }
    let theirs = code.label();
    code.jump(theirs);
    code.bind(ours);
    code.add(C::ASK, C::ANSWER, C::ASK);
    code.store(C::ZERO, C::ARG_1, 0); // flags
    code.store(C::ANSWER, C::ARG_1, 8); // start
    code.store(C::ASK, C::ARG_1, 16); // end
    code.store(C::ZERO, C::ARG_1, 24); // no link map
    // The second program header's address, which is relative to the island.
    offset(code, C::TEMP_1, C::ANSWER, island.program_headers + 56 + 16);
    code.load(C::TEMP_1, C::TEMP_1, 0);
    code.add(C::TEMP_1, C::TEMP_1, C::ANSWER);
    code.store(C::TEMP_1, C::ARG_1, 32);
    code.number(C::ARG_0, 0);
    code.ret();
    code.bind(theirs);
}

/// Replaces `_Unwind_Backtrace(callback, argument)`: frames in islands are not reported. `get_ip` is the address of
/// `_Unwind_GetIP`. The function's own code follows, and is called.
///
/// # Panics
/// If that address is too far away.
pub fn backtrace<C: Hooks>(code: &mut C, layout: &Layout, get_ip: u64) {
    let start = code.label();
    code.jump(start);
    // This is called for each frame, with the context and the argument that was passed on.
    let filter = code.here();
    begin(code);
    code.store(C::ARG_0, C::STACK, 0);
    code.store(C::ARG_1, C::STACK, 8);
    code.call_far(get_ip);
    load_block(code, layout);
    let inside = code.label();
    for range in layout.islands {
        in_island(code, C::ARG_0, range, inside);
    }
    code.load(C::ARG_0, C::STACK, 0);
    code.load(C::ARG_1, C::STACK, 8);
    end(code);
    code.load(C::TEMP_0, C::ARG_1, 0); // the callback
    code.load(C::ARG_1, C::ARG_1, 8); // its argument
    code.jump_through(C::TEMP_0);
    code.bind(inside);
    code.number(C::ARG_0, 0); // continue
    end(code);
    code.ret();

    code.bind(start);
    begin(code);
    code.store(C::ARG_0, C::STACK, 0);
    code.store(C::ARG_1, C::STACK, 8);
    code.address(C::ARG_0, filter);
    code.add_number(C::ARG_1, C::STACK, 0);
    let body = code.label();
    code.call(body);
    end(code);
    code.ret();
    code.bind(body);
}

/// Replaces `dl_iterate_phdr(callback, data)`: islands are reported after all modules, with the short form of `struct
/// dl_phdr_info` (32 bytes), which no unwinder caches. The function's own code follows.
pub fn iterate_phdr<C: Hooks>(code: &mut C, layout: &Layout, island: IslandLayout) {
    begin(code);
    code.store(C::ARG_0, C::STACK, 40);
    code.store(C::ARG_1, C::STACK, 48);
    let body = code.label();
    code.call(body);
    let out = code.label();
    code.extend(C::ARG_0);
    code.branch(If::NotEqual, C::ARG_0, C::ZERO, out);
    for (lo, len) in layout.islands {
        load_block(code, layout);
        code.load(C::ANSWER, C::TEMP_0, len.into());
        let none = code.label();
        code.branch(If::Equal, C::ANSWER, C::ZERO, none);
        code.load(C::ANSWER, C::TEMP_0, lo.into());
        code.store(C::ANSWER, C::STACK, 0); // dlpi_addr
        offset(code, C::ASK, C::ANSWER, island.name);
        code.store(C::ASK, C::STACK, 8); // dlpi_name
        offset(code, C::ASK, C::ANSWER, island.program_headers);
        code.store(C::ASK, C::STACK, 16); // dlpi_phdr
        code.number(C::ASK, 2);
        code.store(C::ASK, C::STACK, 24); // dlpi_phnum
        code.add_number(C::ARG_0, C::STACK, 0);
        code.number(C::ARG_1, 32);
        code.load(C::ARG_2, C::STACK, 48);
        code.load(C::TEMP_0, C::STACK, 40);
        code.call_through(C::TEMP_0);
        code.extend(C::ARG_0);
        code.branch(If::NotEqual, C::ARG_0, C::ZERO, out);
        code.bind(none);
    }
    code.bind(out);
    end(code);
    code.ret();
    code.bind(body);
}

/// Replaces a function that sets or gets limits. The function's own code follows, and is called.
pub fn limits<C: Hooks>(code: &mut C, call: LimitCall, extra: Raise) {
    // The frame: a changed copy of the new limits, where the old ones go, and how much is added.
    const SAVE_OLD: i64 = 16;
    const SAVE_EXTRA: i64 = 24;
    let theirs = code.label();
    if call == LimitCall::Both {
        code.extend(C::ARG_0);
        code.branch(If::NotEqual, C::ARG_0, C::ZERO, theirs);
    }
    let (resource, new, old) = match call {
        LimitCall::Both => (C::ARG_1, C::ARG_2, C::ARG_3),
        _ => (C::ARG_0, C::ARG_1, C::ARG_1),
    };
    code.extend(resource);
    code.number(C::TEMP_0, extra.space);
    code.number(C::ANSWER, RLIMIT_AS.cast_unsigned().into());
    let space = code.label();
    code.branch(If::Equal, resource, C::ANSWER, space);
    code.number(C::TEMP_0, extra.data);
    code.number(C::ANSWER, RLIMIT_DATA.cast_unsigned().into());
    code.branch(If::NotEqual, resource, C::ANSWER, theirs);
    code.bind(space);
    if call == LimitCall::Get {
        code.branch(If::Equal, old, C::ZERO, theirs);
    } else {
        let none = code.label();
        code.branch(If::Equal, new, C::ZERO, none);
        // A soft limit above the hard one stays above it, and is refused.
        code.load(C::ANSWER, new, 0);
        code.load(C::ASK, new, 8);
        code.branch(If::Below, C::ASK, C::ANSWER, theirs);
        code.bind(none);
    }
    begin(code);
    code.number(C::TEMP_2, extra.hard);
    code.store(C::TEMP_0, C::STACK, SAVE_EXTRA);
    if call != LimitCall::Set {
        code.store(old, C::STACK, SAVE_OLD);
    }
    if call != LimitCall::Get {
        let none = code.label();
        code.branch(If::Equal, new, C::ZERO, none);
        for (at, more) in [(0, C::TEMP_0), (8, C::TEMP_2)] {
            code.load(C::ANSWER, new, at);
            // A limit that would become too large (infinity is the largest number) stays as it is.
            code.add(C::ASK, C::ANSWER, more);
            let fits = code.label();
            code.branch(If::NotBelow, C::ASK, C::ANSWER, fits);
            code.add_number(C::ASK, C::ANSWER, 0);
            code.bind(fits);
            code.store(C::ASK, C::STACK, at);
        }
        code.add_number(new, C::STACK, 0);
        code.bind(none);
    }
    let body = code.label();
    code.call(body);
    if call != LimitCall::Set {
        lower_limits(code, (SAVE_OLD, SAVE_EXTRA), extra);
    }
    end(code);
    code.ret();
    code.bind(theirs);
    code.bind(body);
}

/// After a successful call: lowers the limits that it has returned. The stack has their address and how much is to be
/// subtracted.
fn lower_limits<C: Hooks>(code: &mut C, saved: (i64, i64), extra: Raise) {
    let failed = code.label();
    code.extend(C::ARG_0);
    code.branch(If::NotEqual, C::ARG_0, C::ZERO, failed);
    code.load(C::TEMP_1, C::STACK, saved.0);
    let none = code.label();
    code.branch(If::Equal, C::TEMP_1, C::ZERO, none);
    code.load(C::TEMP_0, C::STACK, saved.1);
    code.number(C::TEMP_2, extra.hard);
    // A limit that is too small, or infinite, was not changed.
    for (at, less) in [(0, C::TEMP_0), (8, C::TEMP_2)] {
        code.load(C::ANSWER, C::TEMP_1, at);
        let small = code.label();
        code.branch(If::Below, C::ANSWER, less, small);
        code.number(C::ASK, u64::MAX);
        let infinite = code.label();
        code.branch(If::Equal, C::ANSWER, C::ASK, infinite);
        code.sub(C::ANSWER, C::ANSWER, less);
        code.store(C::ANSWER, C::TEMP_1, at);
        code.bind(small);
        code.bind(infinite);
    }
    code.bind(failed);
    code.bind(none);
}

/// Stops for the tracer before a function locks all memory of the process, which would be hodo's reservations, too. The
/// tracer finds the number of the system call in `ANSWER`, and its arguments in `ASK` and `TEMP_1`. It leaves 0 in
/// `ANSWER` if it
/// has done what the program wants; otherwise the function makes its call. Without a tracer, memory is locked when it
/// is used, so that reservations stay what they are. The function's own code follows. Returns the address of the
/// breakpoint, and where a thread goes on from there without a tracer.
pub fn ask<C: Hooks>(code: &mut C, layout: &Layout, call: AskedCall) -> (u64, u64) {
    /// The number of the system call.
    const MLOCKALL: u64 = 230;
    /// In its flags: memory is locked when it is used, and not before.
    const MCL_ONFAULT: u64 = 4;
    let (theirs, alone) = (code.label(), code.label());
    let (first, second) = match call {
        AskedCall::LockAll | AskedCall::SetBase => (C::ARG_0, C::ARG_1),
        AskedCall::ByNumber => (C::ARG_1, C::ARG_2),
    };
    code.number(C::ANSWER, MLOCKALL);
    if call == AskedCall::ByNumber {
        code.branch(If::NotEqual, C::ARG_0, C::ANSWER, theirs);
    }
    load_block(code, layout);
    code.load(C::TEMP_0, C::TEMP_0, layout.base.into());
    offset(code, C::ASK, C::TEMP_0, layout.owner);
    code.load_byte(C::ASK, C::ASK, 0);
    code.and_bit(C::ASK, C::ASK, UNTRACED.into());
    code.branch(If::NotEqual, C::ASK, C::ZERO, alone);
    code.add_number(C::ASK, first, 0);
    code.add_number(C::TEMP_1, second, 0);
    let stop = code.here();
    code.breakpoint();
    code.branch(If::NotEqual, C::ANSWER, C::ZERO, theirs);
    code.number(C::ARG_0, 0);
    code.ret();
    code.bind(alone);
    let untraced = code.here();
    code.or_bit(first, first, MCL_ONFAULT);
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
pub fn action<C: Hooks>(code: &mut C, ours: u64, _restorer: u64) {
    /// The frame: libc's `struct sigaction`, where the old action goes, and the return address.
    const FRAME: i64 = 176;
    const SAVE_OLD: i64 = 152;
    const LINK: i64 = 160;
    let (theirs, call, out) = (code.label(), code.label(), code.label());
    code.extend(C::ARG_0);
    code.number(C::TEMP_0, SIGTRAP.cast_unsigned().into());
    code.branch(If::NotEqual, C::ARG_0, C::TEMP_0, theirs);
    code.add_number(C::STACK, C::STACK, -FRAME);
    code.store(C::LINK, C::STACK, LINK);
    code.store(C::ARG_2, C::STACK, SAVE_OLD);
    code.branch(If::Equal, C::ARG_1, C::ZERO, call);
    code.load(C::TEMP_0, C::ARG_1, 0);
    code.branch(If::NotEqual, C::TEMP_0, C::ZERO, call);
    // The handler with its flags instead of the default.
    for word in (8..SAVE_OLD).step_by(8) {
        code.load(C::TEMP_0, C::ARG_1, word);
        code.store(C::TEMP_0, C::STACK, word);
    }
    code.number(C::TEMP_0, ours);
    code.store(C::TEMP_0, C::STACK, 0);
    flags(code, C::ARG_1, C::TEMP_0);
    code.or(C::TEMP_0, C::TEMP_0, C::ANSWER);
    // The bit is set first, so that subtracting it clears it.
    code.number(C::ANSWER, RESETS_HANDLER.into());
    code.or(C::TEMP_0, C::TEMP_0, C::ANSWER);
    code.sub(C::TEMP_0, C::TEMP_0, C::ANSWER);
    code.store_half(C::TEMP_0, C::STACK, ACTION_FLAGS.into());
    code.add_number(C::ARG_1, C::STACK, 0);
    code.bind(call);
    let body = code.label();
    code.call(body);
    code.load(C::ANSWER, C::STACK, SAVE_OLD);
    code.branch(If::Equal, C::ANSWER, C::ZERO, out);
    code.extend(C::ARG_0);
    code.branch(If::NotEqual, C::ARG_0, C::ZERO, out);
    code.number(C::TEMP_0, ours);
    code.load(C::ASK, C::ANSWER, 0);
    code.branch(If::NotEqual, C::TEMP_0, C::ASK, out);
    code.store(C::ZERO, C::ANSWER, 0);
    code.add_number(C::ASK, C::ANSWER, 0);
    flags(code, C::ASK, C::TEMP_0);
    code.or(C::TEMP_0, C::TEMP_0, C::ANSWER);
    code.sub(C::TEMP_0, C::TEMP_0, C::ANSWER);
    code.store_half(C::TEMP_0, C::ASK, ACTION_FLAGS.into());
    code.bind(out);
    code.load(C::LINK, C::STACK, LINK);
    code.add_number(C::STACK, C::STACK, FRAME);
    code.ret();
    code.bind(theirs);
    code.bind(body);
}

/// `rd` = the flags of an action, `ANSWER` = those of our handler.
fn flags<C: Hooks>(code: &mut C, action: Register, rd: Register) {
    code.load_half(rd, action, ACTION_FLAGS.into());
    code.number(C::ANSWER, HANDLER_FLAGS.into());
}
