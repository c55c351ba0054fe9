//! Hooks on library functions, such as those that unwinders call: see `hodo_codegen::native::hooks`.

use crate::refusal::Refusal;
use hodo_abi::Span;
use hodo_codegen::native::hooks::{self, IslandLayout};
pub use hodo_codegen::native::hooks::{ASKED, AskedCall, LimitCall, Raise};
use hodo_codegen::native::masm::{Masm, fill};
use hodo_codegen::native::patch::{Leaving, displace, jump, sign, state, take_signature, window};
use hodo_isa::native::cfa;
use hodo_isa::{Signing, Via};

use crate::{Image, Island, Lead, OUT_OF_REACH, Patches, copied, layout};

/// How the dynamic linker announces libraries: see [`Island::add_announcement`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Announcement {
    /// The code.
    pub code: Span,
    /// The address of a thread that has sent itself a signal for the recorder,
    pub signal: u64,
    /// and of one that has hit the breakpoint.
    pub breakpoint: u64,
    /// What to write over the function.
    pub jump: [u8; 5],
}

/// Whether there can be an [`Announcement`] on this machine. If not, the dynamic linker always gets a breakpoint.
#[must_use]
pub fn announces() -> bool {
    hodo_agent::announce().is_some()
}

/// Which function is hooked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// glibc's `_dl_find_object`.
    FindObject,
    /// `dl_iterate_phdr` of any libc.
    IteratePhdr,
    /// `_Unwind_Backtrace` of any unwinder.
    Backtrace {
        /// Address of `_Unwind_GetIP`.
        get_ip: u64,
    },
    /// `setrlimit`, `getrlimit` or `prlimit` of any libc.
    Limits(LimitCall, Raise),
    /// `mlockall`, `arch_prctl` or `syscall` of any libc.
    Ask(AskedCall),
    /// `sigaction` of any libc.
    Action {
        /// The handler of SIGTRAP that the program must not see: see [`TrapHandler`](crate::TrapHandler).
        ours: u64,
        /// The address to which it returns.
        restorer: u64,
    },
}

/// Where the code ends that the hook of a function which asks first moves away, by the function's code and address.
/// `None`: it cannot be hooked.
#[must_use]
pub fn asked_end(code: &[u8], start: u64) -> Option<u64> {
    Some(window(code, start, true).ok()?.end)
}

impl Island {
    /// Hooks a function at a link-time address. Returns where the hook stops for the tracer, if it does, and where a
    /// thread goes on from there without a tracer.
    ///
    /// # Errors
    /// Why the function cannot be hooked.
    pub fn add_hook(
        &mut self,
        hook: Hook,
        function: std::ops::Range<u64>,
        image: Image<'_>,
        patches: &mut Patches,
    ) -> Result<Option<Lead>, Refusal> {
        let start = function.start;
        let code = (image.code)(function).ok_or("it is not in the file")?;
        // A function that asks first makes its call only if that fails or does nothing else.
        let calls = matches!(hook, Hook::Ask(_));
        let window = window(code, start, calls)?;
        let displaced = &code[(window.start - start) as usize..(window.end - start) as usize];
        let from = window.start.wrapping_add(image.bias);
        self.check_reach(from)?;
        self.check_room(4096)?;
        let mut bytes = Vec::new();
        let at = self.end().next_multiple_of(16);
        let mut out = Masm::new(&mut bytes, at);
        take_signature(&mut out, window.signing);
        let stop = self.write_hook(hook, &mut out);
        sign(&mut out, window.signing);
        let resume = window.end.wrapping_add(image.bias);
        let dead = |at: u64| window.dead(at.wrapping_sub(image.bias));
        let leaving = Leaving {
            dead: &dead,
            back: window.back,
            pads: &|_| None,
            signing: window.signing,
        };
        let moved = displace(displaced, (from, resume), out.here(), leaving)
            .map_err(|error| error.to_string())?;
        patches.copies.extend(copied(&moved.copies));
        moved.exits.into_iter().for_each(|way| patches.add_way(way));
        out.raw(&moved.body.bytes);
        self.add_code(at, &bytes, window.signing);
        let jump = jump(from, at, window.via).ok_or(OUT_OF_REACH)?;
        patches.add_way(from + 1..from + jump.len() as u64);
        patches.writes.push((from, jump));
        Ok(stop)
    }

    /// Hooks a function at a jump in it: the jump at the first of two runtime addresses now leads to the other one. So
    /// the function that contains the jump can still be traced.
    ///
    /// # Errors
    /// Why the function cannot be hooked.
    pub fn add_hook_at_jump(
        &mut self,
        hook: Hook,
        (from, to): (u64, u64),
        patches: &mut Patches,
    ) -> Result<(), Refusal> {
        self.check_reach(from)?;
        self.check_room(4096)?;
        let mut bytes = Vec::new();
        let at = self.end().next_multiple_of(16);
        let mut out = Masm::new(&mut bytes, at);
        self.write_hook(hook, &mut out);
        let on = jump(out.here(), to, Via::Nothing).ok_or(OUT_OF_REACH)?;
        out.raw(&on);
        self.add_code(at, &bytes, Signing::None);
        let jump = jump(from, at, Via::Nothing).ok_or(OUT_OF_REACH)?;
        patches.add_way(from + 1..from + jump.len() as u64);
        patches.writes.push((from, jump));
        Ok(())
    }

    /// Writes the hook itself. The function's own code must follow. Returns where it stops for the tracer, if it does.
    fn write_hook(&self, hook: Hook, out: &mut Masm<'_>) -> Option<Lead> {
        let island = IslandLayout {
            program_headers: self.frames.program_headers,
            name: self.frames.name,
        };
        match hook {
            Hook::FindObject => hooks::find_object(out, &layout(), island),
            Hook::IteratePhdr => hooks::iterate_phdr(out, &layout(), island),
            Hook::Backtrace { get_ip } => hooks::backtrace(out, &layout(), get_ip),
            Hook::Limits(call, extra) => hooks::limits(out, call, extra),
            Hook::Action { ours, restorer } => hooks::action(out, ours, restorer),
            Hook::Ask(call) => return Some(hooks::ask(out, &layout(), call).into()),
        }
        None
    }

    /// Adds code at an address, which is entered at its beginning, with a return address that is signed in this way.
    fn add_code(&mut self, at: u64, code: &[u8], signing: Signing) {
        let offset = (at - self.start()) as usize;
        fill(&mut self.code, offset);
        self.rows = cfa::code_rows(code, at, &[(0, state(signing))]);
        for row in &mut self.rows {
            row.at += offset as u32;
        }
        self.code.extend(code);
        self.close_group();
    }

    /// Code that replaces a function which does nothing but return, at a runtime address, and which is followed by at
    /// least four bytes of padding. While a recorder is there, it stops for it, and then returns. `None`: there can be
    /// none.
    pub fn add_announcement(&mut self, function: u64) -> Option<Announcement> {
        let agent = hodo_agent::announce()?;
        self.check_reach(function).ok()?;
        self.check_room(agent.code.len() + 64).ok()?;
        let at = self.end().next_multiple_of(16);
        self.add_code(at, agent.code, Signing::None);
        let jump = jump(function, at, Via::Nothing)?.try_into().ok()?;
        Some(Announcement {
            code: Span::at(at, agent.code.len() as u64),
            signal: at + agent.signal as u64,
            breakpoint: at + agent.breakpoint as u64,
            jump,
        })
    }
}
