//! Recognizes hodo's own instructions in memory by their bytes.

use hodo_isa::native::calls::{call_target, is_call_of_hook, jump_target};
use hodo_ptrace::Memory;
use hodo_ptrace::TargetAddr;

/// The target of our jump at `at`, if there is one.
pub fn jump_at(memory: &Memory, at: u64) -> Option<u64> {
    let mut jump = [0; 12];
    // The last instructions on a page may be shorter.
    (memory.read(TargetAddr(at), &mut jump).is_ok()
        || memory.read(TargetAddr(at), &mut jump[..8]).is_ok()
        || memory.read(TargetAddr(at), &mut jump[..4]).is_ok())
    .then(|| jump_target(at, &jump))?
}

/// What our call before `at` calls, if there is one whose bytes show it.
pub fn called_before(memory: &Memory, at: u64) -> Option<u64> {
    let (mut call, start) = ([0; 4], at.checked_sub(4)?);
    memory.read(TargetAddr(start), &mut call).ok()?;
    call_target(start, call)
}

/// Whether code of a hook before `at` makes a call.
pub fn follows_call(memory: &Memory, at: u64) -> bool {
    let mut code = [0; 4];
    let start = TargetAddr(at.wrapping_sub(4));
    memory.read(start, &mut code).is_ok() && is_call_of_hook(code)
}
