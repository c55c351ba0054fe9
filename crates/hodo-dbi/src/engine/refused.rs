//! What the kernel refuses because hodo has protected memory that the program may write to: system calls, and frames of
//! handlers.

use anyhow::Result;
use hodo_abi::Span;
use hodo_ptrace::{Regs, Stopped, TargetAddr};

use super::{Engine, Shared};
use crate::native::outputs::{MESSAGE, MESSAGES, Output, outputs};
use crate::native::system_call::{CALL_TO_LOOK, NUMBER, TRAP_TO_CALL};
use crate::process::{Process, Stop};

/// Bytes below the stack pointer that the frame of a handler may take.
const FRAME: u64 = 16 << 10;
/// The maximum number of buffers, and of messages, of a call.
const MOST: u64 = 1024;

/// If hodo has protected memory that the kernel writes to for this call, lets the program write to it. Returns whether
/// there is such memory.
///
/// # Errors
/// If the process is gone.
pub(crate) fn free_for_kernel(
    thread: Stopped,
    process: &Shared,
    (number, args): (i64, [u64; 6]),
) -> Result<bool> {
    let mut process = process.borrow_mut();
    let mut freed = false;
    for span in guarded(&process, number, args) {
        freed |= process.end_protection(Some(thread), span)?;
    }
    Ok(freed)
}

/// Lets the program write to what the kernel writes to for this call from now on, also while other threads execute code
/// there: the call must not be refused.
///
/// # Errors
/// If the process is gone.
pub(super) fn free_for_good(
    thread: Stopped,
    process: &Shared,
    (number, args): (i64, [u64; 6]),
) -> Result<()> {
    let mut process = process.borrow_mut();
    for span in guarded(&process, number, args) {
        process.add_stack(thread, span)?;
    }
    Ok(())
}

/// Whether the kernel writes to code for this call that the program may change.
pub(super) fn writes_to_code(process: &Process, number: i64, args: [u64; 6]) -> bool {
    let all = written(process, number, args);
    all.into_iter().any(|span| process.has_writable_code(span))
}

impl Engine {
    /// A thread is about to take a signal. If hodo has protected memory to which the kernel writes the frame of the
    /// handler, lets the program write to that: the kernel would end it. The signal comes again. Returns whether it
    /// does.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(super) fn frees_frame(
        &mut self,
        thread: Stopped,
        process: &Shared,
        regs: &Regs,
        (signal, is_fault): (i32, bool),
    ) -> Result<bool> {
        let frame = Span::from(regs.sp().saturating_sub(FRAME)..regs.sp());
        if !process.borrow().guards(frame) {
            return Ok(false);
        }
        let info = thread.siginfo()?;
        process.borrow_mut().add_stack(thread, frame)?;
        if is_fault && signal != libc::SIGTRAP {
            // The same instruction faults again.
            self.keep(signal, thread, process)?;
            return Ok(true);
        }
        if let Some(known) = self.threads.get_mut(&thread.tid()) {
            known.sent_again = Some(info);
        }
        hodo_ptrace::send(thread.tid(), signal)?;
        Ok(true)
    }

    /// A thread is about to be shown to the program. If the kernel has just refused a call because of memory that hodo
    /// has protected, and the thread has not seen that yet: it is before the call again.
    ///
    /// # Errors
    /// If the process is gone.
    pub(super) fn hide_refusal(thread: Stopped, process: &Process, regs: &mut Regs) -> Result<()> {
        if regs.result() != -i64::from(libc::EFAULT) {
            return Ok(());
        }
        let calls = CALL_TO_LOOK.map(|distance| regs.pc().wrapping_sub(distance));
        let is_call = |at: &u64| {
            let trap = at.wrapping_sub(TRAP_TO_CALL);
            matches!(process.stop(trap), Some(Stop::Call(_)))
        };
        let Some(call) = calls.into_iter().find(is_call) else {
            return Ok(());
        };
        let number = TargetAddr(thread.block()? + u64::from(NUMBER));
        let number = process.memory().read_u64(number)?.cast_signed();
        let (_, args) = regs.call();
        if !guarded(process, number, args).is_empty() {
            regs.set_result(number);
            regs.set_pc(call);
        }
        Ok(())
    }
}

/// The memory that the kernel writes to for this call and that hodo has protected.
fn guarded(process: &Process, number: i64, args: [u64; 6]) -> Vec<Span> {
    if !process.protects() {
        return Vec::new();
    }
    let mut all = written(process, number, args);
    all.retain(|&span| process.guards(span));
    all
}

/// The memory that the kernel writes to for this call.
fn written(process: &Process, number: i64, args: [u64; 6]) -> Vec<Span> {
    let Some(outputs) = outputs(number) else {
        return perhaps(process, args);
    };
    let parts = outputs
        .into_iter()
        .map(|output| parts(process, args, output));
    parts.flatten().collect()
}

/// This many bytes at an address, or fewer at the end of all addresses.
fn span(at: u64, size: u64) -> Span {
    Span::at(at, size.min(u64::MAX - at))
}

/// The words at an address, as far as they can be read.
fn words(process: &Process, at: u64, count: u64) -> Vec<u64> {
    let mut list = vec![0; 8 * count as usize];
    let count = process.memory().read_some(TargetAddr(at), &mut list);
    let (words, _) = list[..count].as_chunks();
    words.iter().map(|&word| u64::from_le_bytes(word)).collect()
}

/// A word of four bytes, or 0.
fn word(process: &Process, at: u64) -> u64 {
    words(process, at, 1).first().map_or_else(
        || {
            let mut word = [0; 4];
            let read = process.memory().read_some(TargetAddr(at), &mut word);
            if read == word.len() {
                u32::from_le_bytes(word).into()
            } else {
                0
            }
        },
        |&word| word & u64::from(u32::MAX),
    )
}

/// The memory that an output is.
fn parts(process: &Process, args: [u64; 6], output: Output) -> Vec<Span> {
    match output {
        Output::Fixed(at, size) => vec![span(args[at], size)],
        Output::Array(at, count, size, more) => {
            let size = args[count].saturating_mul(size).saturating_add(more);
            vec![span(args[at], size)]
        }
        Output::Measured(at, size) => {
            let len = word(process, args[size]);
            vec![span(args[at], len), span(args[size], 4)]
        }
        Output::List(at, count) => buffers(process, args[at], args[count]),
        Output::Message(at) => message(process, args[at]),
        Output::Messages(at, count) => {
            let starts = (0..args[count].min(MOST)).map(|number| number * MESSAGES);
            let messages = starts.map(|start| args[at].wrapping_add(start));
            let parts = messages.map(|at| [message(process, at), vec![span(at, MESSAGES)]]);
            parts.flatten().flatten().collect()
        }
    }
}

/// The buffers that some `struct iovec` are.
fn buffers(process: &Process, at: u64, count: u64) -> Vec<Span> {
    let list = words(process, at, 2 * count.min(MOST));
    let pairs = list.chunks_exact(2);
    pairs.map(|pair| span(pair[0], pair[1])).collect()
}

/// What the kernel writes to for a `struct msghdr`.
fn message(process: &Process, at: u64) -> Vec<Span> {
    let header = words(process, at, MESSAGE / 8);
    let &[name, name_len, list, count, control, control_len, _] = header.as_slice() else {
        return Vec::new();
    };
    let mut all = buffers(process, list, count);
    all.push(span(name, name_len & u64::from(u32::MAX)));
    all.push(span(control, control_len));
    all.push(span(at, MESSAGE));
    all
}

/// What the kernel may write to for a call that hodo does not know: an argument may point to memory, of which another
/// argument may be the size; or to a list of such pointers and sizes, or to a structure with a pointer to a list.
fn perhaps(process: &Process, args: [u64; 6]) -> Vec<Span> {
    /// Bytes of structures.
    const STRUCTURE: u64 = 4096;
    /// Larger numbers are no sizes.
    const LARGEST: u64 = 1 << 40;
    let sizes = args.iter().copied().filter(|&size| size < LARGEST);
    let size = sizes.max().unwrap_or(0).max(STRUCTURE);
    let mut parts: Vec<(u64, u64)> = args.map(|at| (at, size)).to_vec();
    for list in args.map(|at| words(process, at, MOST)) {
        let within = list.iter().take(8).map(|&at| words(process, at, MOST));
        for list in within.chain([list.clone()]) {
            parts.extend(list.windows(2).map(|pair| (pair[0], pair[1])));
        }
    }
    // What comes after a pointer may be another one.
    let size_of = |size| if size < LARGEST { size } else { STRUCTURE };
    parts
        .into_iter()
        .map(|(at, size)| span(at, size_of(size)))
        .collect()
}
