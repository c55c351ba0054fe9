//! Library functions that must behave differently in a traced program: those that unwinders call, and those that affect
//! all of the program's memory.

use hodo_abi::Span;
use std::ops::Range;

use hodo_patch::{ASKED, AskedCall, Hook, Island, LimitCall, Patches, Raise, asked_end};

use crate::arch::{self, leaving_jump};
use crate::space::Space;
use hodo_module::Image;

/// This many functions, first in the list below, are called by programs, and do not call each other.
const ENTRIES: usize = 4;

/// Hooks such functions of a module.
pub fn add(
    image: &Image,
    bias: u64,
    island: &mut Island,
    space: &mut Space,
    patches: &mut Patches,
) {
    let view = hodo_patch::Image {
        bias,
        code: &|range| image.at(range),
    };
    note_unwinders(image, bias, space);
    let before = patches.writes.len();
    let symbols = image.symbols(&[
        "_dl_find_object",
        "dl_iterate_phdr",
        "_Unwind_Backtrace",
        "_Unwind_GetIP",
        "setrlimit",
        "getrlimit",
        "prlimit",
        "sigaction",
    ]);
    let range = |index: usize| symbols[index].map(Span::range);
    let asked = image.symbols(&ASKED.map(|(name, _)| name));
    for ((_, call), function) in ASKED.into_iter().zip(asked) {
        if let Some(function) = function {
            add_asked(call, function.range(), view, (island, space, patches));
        }
    }
    let mut hook = |hook: Hook, function: Range<u64>| {
        let at = function.start;
        let added = island.add_hook(hook, function, view, patches);
        let done = added.is_ok();
        if let Err(reason) = added {
            patches.failed.push((at, reason));
        }
        done
    };
    if let Some(function) = range(0)
        && hook(Hook::FindObject, function)
    {
        space.set_finds_objects();
    }
    // Programs may list their modules, so islands are shown only if unwinders have no better way.
    if let Some(function) = range(1)
        && !space.finds_objects()
    {
        hook(Hook::IteratePhdr, function);
    }
    let at = |index: usize| range(index).map(|function| function.start.wrapping_add(bias));
    if let (Some(function), Some(get_ip)) = (range(2), at(3)) {
        hook(Hook::Backtrace { get_ip }, function);
    }
    if space.raised() != Raise::default() {
        for (index, call) in [
            (4, LimitCall::Set),
            (5, LimitCall::Get),
            (6, LimitCall::Both),
        ] {
            if let Some(function) = range(index) {
                hook(Hook::Limits(call, space.raised()), function);
            }
        }
    }
    if let (Some(handler), Some(function)) = (space.trap_handler(), range(7))
        && space.trap_blocks().are_needed()
    {
        let (ours, restorer) = (handler.at, handler.restorer);
        let hook = Hook::Action { ours, restorer };
        add_action(hook, function, view, island, patches);
    }
    let hooks = patches.writes[before..].to_vec();
    patches.hooks.extend(hooks);
}

/// Hooks a function that locks all memory, which would include the trace's whole room and the shadow, or sets the base
/// of a segment. If that is not possible, `mlockall` succeeds and does nothing, as with sanitizers.
fn add_asked(
    call: AskedCall,
    function: Range<u64>,
    view: hodo_patch::Image<'_>,
    (island, space, patches): (&mut Island, &mut Space, &mut Patches),
) {
    let at = function.start.wrapping_add(view.bias);
    let code = (view.code)(function.clone()).unwrap_or_default();
    // Another function may have the same name.
    if !arch::makes_call(code) {
        return;
    }
    let end = asked_end(code, function.start).map_or(at + MOST, |end| end.wrapping_add(view.bias));
    if !is_free(&patches.writes, at..end) {
        return;
    }
    match island.add_hook(Hook::Ask(call), function, view, patches) {
        Ok(stop) => {
            if let Some(stop) = stop {
                // If hodo is killed there, the thread goes on without it.
                space.trap_blocks_mut().add_hook(island, stop);
                space.add_asked(stop.at, at);
            }
        }
        Err(_) if call == AskedCall::LockAll => {
            patches.add_way(at + 1..at + arch::RETURN_ZERO.len() as u64);
            patches.writes.push((at, arch::RETURN_ZERO.to_vec()));
        }
        Err(_) => {}
    }
}

/// Notes which functions of a module unwind stacks.
fn note_unwinders(image: &Image, bias: u64, space: &mut Space) {
    let unwinder = image.symbols(&[
        "_Unwind_RaiseException",
        "_Unwind_Resume",
        "_Unwind_Resume_or_Rethrow",
        "_Unwind_ForcedUnwind",
        "_Unwind_Backtrace",
        "_Unwind_Find_FDE",
        "_Unwind_RaiseException_Phase2",
        "_Unwind_ForcedUnwind_Phase2",
        "uw_frame_state_for",
        "uw_update_context",
        "uw_update_context_1",
        "uw_init_context_1",
        "uw_install_context_1",
        "execute_cfa_program",
        "execute_stack_op",
    ]);
    let in_memory = |function: &Span| Span::at(function.start.wrapping_add(bias), function.len());
    let ranges = unwinder.iter().flatten().map(in_memory);
    // The first of them.
    let entries = unwinder.iter().take(ENTRIES).flatten().map(in_memory);
    let entries = entries.map(|function| function.start);
    space
        .written_mut()
        .add_unwinders(ranges.collect(), entries.collect());
}

/// Hooks `sigaction`: at its jump to another function, if it has one, so that it can still be traced. If it has none
/// and is itself traced, the program sees the handler.
fn add_action(
    hook: Hook,
    function: Range<u64>,
    view: hodo_patch::Image<'_>,
    island: &mut Island,
    patches: &mut Patches,
) {
    let start = function.start.wrapping_add(view.bias);
    let code = (view.code)(function.clone()).unwrap_or_default();
    let added = match leaving_jump(start, code) {
        Some(jump) if is_free(&patches.writes, jump.0..jump.0 + MOST) => {
            island.add_hook_at_jump(hook, jump, patches).map(|()| None)
        }
        _ if is_free(&patches.writes, start..start + MOST) => {
            island.add_hook(hook, function, view, patches)
        }
        _ => return,
    };
    if let Err(reason) = added {
        patches.failed.push((start, reason));
    }
}

/// No jump of a hook is longer.
const MOST: u64 = 16;

/// Whether nothing else is written over code.
fn is_free(writes: &[(u64, Vec<u8>)], code: Range<u64>) -> bool {
    let overlaps = |start: u64, len: usize| start < code.end && code.start < start + len as u64;
    !(writes.iter()).any(|(start, bytes)| overlaps(*start, bytes.len()))
}
