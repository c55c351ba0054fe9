//! Instructions of hodo in memory whose bytes have to be known.

use hodo_isa::riscv64::calls::{call_target, is_call_of_hook, jump_target};
use hodo_ptrace::Memory;
use hodo_ptrace::TargetAddr;

/// Where our jump at `at` leads to, if it is one.
pub fn jump_at(memory: &Memory, at: u64) -> Option<u64> {
    let mut jump = [0; 12];
    // The last ones on a page may be shorter.
    (memory.read(TargetAddr(at), &mut jump).is_ok()
        || memory.read(TargetAddr(at), &mut jump[..8]).is_ok()
        || memory.read(TargetAddr(at), &mut jump[..4]).is_ok())
    .then(|| jump_target(at, &jump))?
}

/// What our call in front of `at` calls, if it is one whose bytes tell.
pub fn called_before(memory: &Memory, at: u64) -> Option<u64> {
    let (mut call, start) = ([0; 4], at.checked_sub(4)?);
    memory.read(TargetAddr(start), &mut call).ok()?;
    call_target(start, call)
}

/// Does the code of a hook stand in front of `at` that makes a call?
pub fn follows_call(memory: &Memory, at: u64) -> bool {
    let mut code = [0; 4];
    let start = TargetAddr(at.wrapping_sub(4));
    memory.read(start, &mut code).is_ok() && is_call_of_hook(code)
}
