//! System calls that hodo sees before the kernel does, and their results.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use anyhow::{Result, bail};
use hodo_abi::Span;
use hodo_isa::native::asm::SYSTEM_CALL;
use hodo_ptrace::{Stopped, TargetAddr, TargetFd, is_confined, numbers_of};

use super::attach::with_sequences;
use super::refused::{free_for_good, free_for_kernel, writes_to_code};
use super::{Engine, Shared, Watched};
use crate::native::system_call::{
    CONSUMING, OPENS, PTRACE, READ_TO_TRAP, RSEQ, SETTING, SIGALTSTACK, path_of, prevents, refuse,
    was_refused,
};
use crate::process::{Place, Process, Stop, stripped};
use crate::shown::List;
use crate::spans::Spans;
use crate::state::restore_from;

/// A thread or process is not to be traced by who traces its maker.
const UNTRACED: u64 = libc::CLONE_UNTRACED as u64;
/// System calls that change mappings.
const MEMORY: [i64; 5] = [
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_pkey_mprotect,
    libc::SYS_munmap,
    libc::SYS_mremap,
];

impl Engine {
    /// A thread is about to make a system call that may change what can be executed. `at` is the instruction.
    pub(super) fn watch(&mut self, thread: Stopped, process: &Shared, at: u64) -> Result<()> {
        let mut regs = thread.regs()?;
        // The kernel has not been called yet: the number is where the program has put it.
        let (number, args) = regs.call();
        // The kernel takes the lower half.
        let number = i64::from(number as u32 as i32);
        if let Some(why) = prevents(number, args) {
            bail!("{why}");
        }
        if was_refused(&regs)
            && !free_for_kernel(thread, process, (number, args))?
            && !self.others_freed(thread, process, (number, args))
        {
            refuse(&mut regs, at);
            thread.set_regs(&regs)?;
            return self.go(thread, 0);
        }
        if CONSUMING.contains(&number) || SETTING.contains(&number) || number == libc::SYS_clone {
            free_for_good(thread, process, (number, args))?;
        }
        if number == libc::SYS_mremap {
            // Where it is moved to, nobody would know that hodo has taken the right to write.
            let range = range(number, args);
            process.borrow_mut().end_protection(Some(thread), range)?;
        }
        if number == SIGALTSTACK {
            let mut process = process.borrow_mut();
            if let Some(stack) = stack_of(&process, args[0]) {
                process.add_stack(thread, stack)?;
            }
        }
        regs.set_pc(at);
        if number == RSEQ && args[2] == 0 && self.refuses_sequences(thread, process) {
            // As if the kernel had none.
            regs.set_result(-i64::from(libc::ENOSYS));
            regs.set_pc(at + SYSTEM_CALL.len() as u64);
            thread.set_regs(&regs)?;
            return self.go(thread, 0);
        }
        if takes_own(&process.borrow(), number, args) {
            // As if there were no room.
            regs.set_result(-i64::from(libc::ENOMEM));
            regs.set_pc(at + SYSTEM_CALL.len() as u64);
            thread.set_regs(&regs)?;
            return self.go(thread, 0);
        }
        if number == PTRACE && self.leaves_to_debugger(thread, process, &regs, args)? {
            return Ok(());
        }
        if matches!(number, libc::SYS_execve | libc::SYS_execveat) {
            self.take(thread)?;
        }
        if is_untraced(number, args) {
            // What is made runs in the cache, and needs hodo.
            regs.set_argument(0, args[0] & !UNTRACED);
        }
        let matters = match number {
            libc::SYS_rt_sigaction => self.changes_action(thread, args),
            _ => matters(&process.borrow(), number, args),
        };
        thread.set_regs(&regs)?;
        if let Some(known) = self.threads.get_mut(&thread.tid()) {
            if number == libc::SYS_rt_sigprocmask {
                known.changes_mask(args, at)?;
            }
            known.call = matters.then_some(Watched {
                number,
                args,
                entered: false,
                stripped: false,
            });
        }
        self.go(thread, 0)
    }

    /// Whether a process may not register restartable sequences, because there is a file that has some. What holds for
    /// its first thread holds for all.
    fn refuses_sequences(&self, thread: Stopped, process: &Shared) -> bool {
        let known = self.threads.get(&thread.tid());
        let pid = known.map_or(thread.tid(), |known| known.pid);
        let has_some = || with_sequences(pid).is_some();
        process.borrow_mut().refuses_sequences(has_some)
    }

    /// Whether another thread may have been the first to whom the kernel refused what it has refused to this one: hodo
    /// has changed something in the process since the thread was last resumed.
    fn others_freed(
        &self,
        thread: Stopped,
        process: &Shared,
        (number, args): (i64, [u64; 6]),
    ) -> bool {
        let process = process.borrow();
        let known = self.threads.get(&thread.tid());
        known.is_some_and(|known| known.resumed.get() != process.memory().count())
            && writes_to_code(&process, number, args)
    }

    /// A thread is at the beginning or at the end of a watched system call.
    pub(super) fn at_call(&mut self, thread: Stopped) -> Result<()> {
        let Some(known) = self.threads.get_mut(&thread.tid()) else {
            return thread.cont(0);
        };
        let Some(mut call) = known.call.take() else {
            return thread.cont(0);
        };
        if !call.entered {
            call.entered = true;
            call.stripped = match &known.process {
                // A filter of the program is to see the call that it makes.
                Some(process) => {
                    strips(&process.borrow(), call.number, call.args) && !is_confined(thread.tid())
                }
                None => false,
            };
            known.call = Some(call);
            if call.stripped {
                set_rights(thread, stripped(call.args[2]))?;
            }
            return thread.cont_to_call(0);
        }
        if call.stripped {
            set_rights(thread, call.args[2])?;
        }
        let regs = thread.regs()?;
        let Some(process) = known.process.clone() else {
            return thread.cont(0);
        };
        if call.number == libc::SYS_rt_sigreturn {
            known.look_at_mask(thread)?;
            self.returned(thread, &regs);
            return self.enter(thread, &process, regs.pc());
        }
        let mut process = process.borrow_mut();
        if call.number == libc::SYS_rt_sigaction {
            if regs.result() == 0 {
                self.action_changed(thread, &process, call.args)?;
            }
            return thread.cont(0);
        }
        if is_untraced(call.number, call.args) {
            let mut regs = regs;
            regs.set_argument(0, call.args[0]);
            thread.set_regs(&regs)?;
            return thread.cont(0);
        }
        if OPENS.contains(&call.number) {
            drop(process);
            if let Ok(fd) = u64::try_from(regs.result()) {
                self.show_mappings(thread, TargetFd(fd))?;
            }
            return thread.cont(0);
        }
        changed(thread, &mut process, &call, regs.result())?;
        drop(process);
        if call.number == libc::SYS_mmap && gives_execution(call.number, call.args) {
            self.note_file(thread, call.args, regs.result())?;
        }
        thread.cont(0)
    }

    /// A thread has faulted at an address in the cache. If that is where something is read that the program has given
    /// to a call, lets the kernel deal with it. Returns whether it is.
    pub(super) fn has_no_path(&self, thread: Stopped, process: &Shared, pc: u64) -> Result<bool> {
        let process = process.borrow();
        let stop = |distance| process.stop(pc.wrapping_add(distance));
        let (Some(Stop::Call(at)), Some(Place::Inside(original, saved))) =
            (READ_TO_TRAP.into_iter().find_map(stop), process.place(pc))
        else {
            return Ok(false);
        };
        let mut regs = thread.regs()?;
        let block = thread.block()?;
        restore_from(&process, (thread, block), &mut regs, (original, saved))?;
        regs.set_pc(at);
        thread.set_regs(&regs)?;
        Ok(true)
    }

    /// A thread has opened a file. If that is a list of the mappings of a process in the cache, puts a copy in its
    /// place, with the rights that the mappings have without hodo.
    fn show_mappings(&self, thread: Stopped, fd: TargetFd) -> Result<()> {
        let path = format!("/proc/{thread}/fd/{}", fd.0);
        let Ok(link) = fs::read_link(&path) else {
            return Ok(());
        };
        let Some((owner, list, file)) = self.owner(thread, &link) else {
            return Ok(());
        };
        // Lists of the kernel have no size. A process that is confined may not be allowed what is needed here.
        let is_list = fs::metadata(&path).is_ok_and(|file| file.is_file() && file.len() == 0);
        let (true, Ok(text)) = (is_list && !is_confined(thread.tid()), fs::read(file)) else {
            return Ok(());
        };
        let text = owner.borrow().shown().list(list, &text);
        let Some(process) = self.process(thread) else {
            return Ok(());
        };
        let process = process.borrow();
        let flags = fs::read_to_string(format!("/proc/{thread}/fdinfo/{}", fd.0));
        let closes = flags.is_ok_and(|text| has_flag(&text, libc::O_CLOEXEC));
        let name = process.scratch(thread)?;
        process.memory().write(name, b"maps\0")?;
        let calls = process.calls_of(thread)?;
        if let Some(new) = calls.memfd(name, libc::MFD_CLOEXEC)? {
            let file = File::options()
                .write(true)
                .open(format!("/proc/{thread}/fd/{}", new.0));
            if file.and_then(|mut file| file.write_all(&text)).is_ok() {
                calls.dup(new, fd, if closes { libc::O_CLOEXEC } else { 0 })?;
            }
            calls.close(new)?;
        }
        calls.end()
    }

    /// The process whose list of mappings the file is that a thread has opened, and where hodo finds that list.
    fn owner(&self, thread: Stopped, link: &Path) -> Option<(Shared, List, String)> {
        let parts: Vec<&str> = link.to_str()?.split('/').collect();
        let (number, name) = match parts[..] {
            [.., number, "task", _, name] | [.., number, name] => (number, name),
            _ => return None,
        };
        let (number, list) = (number.parse().ok()?, List::of(name)?);
        let owner = match numbers_of(thread.tid()).contains(&number) {
            true => thread.tid(),
            false => number,
        };
        let process = self.threads.get(&owner)?.process.clone()?;
        Some((process, list, format!("/proc/{owner}/{name}")))
    }
}

/// The stack for handlers that a program gives to `sigaltstack`.
fn stack_of(process: &Process, at: u64) -> Option<Span> {
    let [start, _, size] = [0, 8, 16].map(|offset| {
        let at = TargetAddr(at.wrapping_add(offset));
        process.memory().read_u64(at).ok()
    });
    let (start, size) = (start?, size?);
    Some(Span::from(start..start.checked_add(size)?)).filter(|_| at != 0)
}

/// Whether a text from `/proc/PID/fdinfo` has a flag, as for `open`.
fn has_flag(text: &str, flag: i32) -> bool {
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|octal| i32::from_str_radix(octal.trim(), 8).ok());
    flags.is_some_and(|flags| flags & flag != 0)
}

/// Whether a call makes a thread or process that is not to be traced.
fn is_untraced(number: i64, args: [u64; 6]) -> bool {
    number == libc::SYS_clone && args[0] & UNTRACED != 0
}

/// Whether a call asks for memory that can be executed.
fn gives_execution(number: i64, args: [u64; 6]) -> bool {
    (protects(number) || number == libc::SYS_mmap) && args[2] & libc::PROT_EXEC as u64 != 0
}

/// Whether a call changes rights of memory that is mapped.
fn protects(number: i64) -> bool {
    matches!(number, libc::SYS_mprotect | libc::SYS_pkey_mprotect)
}

/// Whether the kernel gets a call without the right to execute the memory, which it would grant.
fn strips(process: &Process, number: i64, args: [u64; 6]) -> bool {
    protects(number) && gives_execution(number, args) && process.was_granted(range(number, args))
}

/// Changes the rights that a thread asks for that is at the beginning or at the end of such a call.
fn set_rights(thread: Stopped, rights: u64) -> Result<()> {
    let mut regs = thread.regs()?;
    regs.set_argument(2, rights);
    thread.set_regs(&regs)
}

/// Whether a call would change memory of hodo.
fn takes_own(process: &Process, number: i64, args: [u64; 6]) -> bool {
    MEMORY.contains(&number) && process.has_own([range(number, args), moved(number, args)])
}

/// Where a call moves memory to, if it says that.
fn moved(number: i64, args: [u64; 6]) -> Span {
    match number {
        libc::SYS_mremap if args[3] & libc::MREMAP_FIXED as u64 != 0 => Span::at(args[4], args[2]),
        _ => Span::EMPTY,
    }
}

/// The memory that a call is about.
fn range(number: i64, args: [u64; 6]) -> Span {
    let size = args[1].saturating_add(4095) & !4095;
    match number {
        libc::SYS_mmap if args[3] & libc::MAP_FIXED as u64 == 0 => Span::EMPTY,
        _ => Span::from(args[0]..args[0].saturating_add(size)),
    }
}

fn matters(process: &Process, number: i64, args: [u64; 6]) -> bool {
    let is_memory = MEMORY.contains(&number);
    let is_known = || {
        let at = range(number, args);
        let others = || [at, moved(number, args)].map(|at| process.has_granted(at));
        process.has_code(at) || !protects(number) && others().contains(&true)
    };
    number == libc::SYS_rt_sigreturn
        || OPENS.contains(&number) && may_be_list(process, number, args)
        || is_untraced(number, args)
        || is_memory && (gives_execution(number, args) || is_known())
}

/// Whether the path of a file that a thread opens may be that of a list of mappings.
fn may_be_list(process: &Process, number: i64, args: [u64; 6]) -> bool {
    let at = path_of(number, args);
    let mut path = [0; libc::PATH_MAX as usize];
    let count = process.memory().read_some(TargetAddr(at), &mut path);
    let path = path[..count].split(|&byte| byte == 0).next();
    path.is_some_and(|path| path.windows(4).any(|part| part == b"maps"))
}

/// The kernel has done what a call asked for, or not.
fn changed(thread: Stopped, process: &mut Process, call: &Watched, result: i64) -> Result<()> {
    let Watched { number, args, .. } = *call;
    // Errors are between -4095 and -1.
    if (-4095..0).contains(&result) {
        return Ok(());
    }
    let mut at = range(number, args);
    if number == libc::SYS_mmap {
        at = Span::at(result.cast_unsigned(), args[1].saturating_add(4095) & !4095);
    }
    if !protects(number) {
        process.forget_granted(at);
        process.forget_granted(moved(number, args));
    }
    if number == libc::SYS_mremap {
        let to = Span::at(result.cast_unsigned(), args[2].saturating_add(4095) & !4095);
        return process.move_code(at, to);
    }
    if !gives_execution(number, args) {
        return process.remove_code(at);
    }
    let shared = (libc::MAP_ANONYMOUS | libc::MAP_SHARED) as u64;
    let of_file = number == libc::SYS_mmap && args[3] & shared == 0;
    let is_writable = args[2] & libc::PROT_WRITE as u64 != 0;
    let mut parts = Spans::default();
    parts.add(at);
    if protects(number) && !is_writable {
        // The rest stays as it is: programs give the same rights again to all that they have.
        parts = process.changeable(at);
    }
    for part in parts.all() {
        process.remove_code(part)?;
    }
    if !call.stripped {
        process.strip(thread, at, args[2])?;
    }
    for part in parts.all() {
        process.add_code(part, is_writable, !of_file || is_writable)?;
    }
    Ok(())
}
