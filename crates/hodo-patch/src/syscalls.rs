//! System calls: the code that is called around them, and its table.

use crate::refusal::Refusal;
use hodo_codegen::native::detour::Detour;
use hodo_codegen::native::frames;
use hodo_codegen::native::masm::Masm;
use hodo_trace::format::record;
use hodo_trace::syscalls::{HEADER, Limits};

use crate::{Island, Lead, Patches};

/// How system calls are recorded.
#[derive(Debug, Clone)]
pub struct SyscallEvents {
    /// The function ids of the events before a call and after it.
    pub ids: (u32, u32),
    /// The processor has `rdpid`.
    pub rdpid: bool,
    /// See [`hodo_trace::syscalls::table`].
    pub table: Vec<u64>,
    /// How much of what arguments point to is recorded.
    pub limits: Limits,
}

impl Island {
    /// Adds the code that is called around system calls. Probes that are added afterward use it.
    ///
    /// # Errors
    /// If the island is full.
    pub fn add_syscalls(
        &mut self,
        events: &SyscallEvents,
        timed: bool,
        patches: &mut Patches,
    ) -> Result<(), Refusal> {
        let agent = hodo_agent::syscalls();
        let bytes = agent.code.len() + HEADER as usize + events.table.len() * 8;
        if (self.used().bytes + bytes + 64) as u64 > self.capacity {
            return Err(Refusal::Full);
        }
        let runtime = self.runtime_addresses(timed);
        let mut out = Masm::new(&mut self.code, self.base + self.origin as u64);
        out.align(64);
        let start = out.here();
        out.raw(agent.code);
        let info = |id: u32| u64::from(id | record::ENTRY << record::KIND_SHIFT);
        let header = [
            runtime.epoch,
            runtime.chunk,
            info(events.ids.0) | info(events.ids.1) << 32,
            u64::from(timed) | u64::from(events.rdpid) << 1,
        ];
        let limits = events.limits.words();
        for word in header.iter().chain(&limits).chain(&events.table) {
            out.raw(&word.to_le_bytes());
        }
        let at = |offset: u32| start + u64::from(offset);
        let faults = agent.faults.iter().map(|&[load, next]| Lead {
            at: at(load),
            to: at(next),
        });
        patches.faults.extend(faults);
        self.syscalls = Some((start + agent.enter as u64, start + agent.exit as u64));
        Ok(())
    }

    /// Describes the frames of the detour that was just added, if it makes system calls: threads wait in these, and
    /// code that interrupts or cancels them there needs to find their callers.
    pub(crate) fn frame_detour(&mut self, start: u64, detour: &Detour) {
        let first = self.start();
        let offset = |at: u64| (at - first) as u32;
        let calls = detour
            .syscalls
            .iter()
            .map(|&(at, original)| (offset(at), original));
        match &mut self.detours {
            Some((_, all)) => all.extend(calls),
            None if detour.syscalls.is_empty() => {}
            None => self.detours = Some((offset(start), calls.collect())),
        }
        let long = |&(start, _): &(u32, _)| self.code.len() as u32 - start >= frames::GROUP;
        if self.detours.as_ref().is_some_and(long) {
            self.close_detours();
        }
    }

    /// Completes the FDE of the detours that were added.
    pub(crate) fn close_detours(&mut self) {
        if let Some((start, calls)) = self.detours.take() {
            let entry = frames::detours(&mut self.code, &self.frames, start, &calls);
            self.table.push(entry);
        }
    }
}
