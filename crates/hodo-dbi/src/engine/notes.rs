//! What clients receive about threads that have stopped.

use std::cell::Ref;

use anyhow::Result;
use hodo_ptrace::Stopped;

use super::Engine;
use crate::client::Message;
use crate::process::Process;
use crate::recorder::{Beginning, Recorder, Recording, Rest};

impl Engine {
    /// The records of a thread are about to be taken. What other threads of its process have done before comes first,
    /// if that matters.
    pub(super) fn take_from_others(&mut self, thread: Stopped, process: &Process) -> Result<()> {
        let Some(recorder) = &self.recorder else {
            return Ok(());
        };
        let recorder = recorder.borrow();
        if !recorder.watch().order_matters() {
            return Ok(());
        }
        for (&tid, known) in self.threads.iter_mut() {
            let is_other = tid != thread.tid()
                && known.process.as_ref().is_some_and(|other| {
                    // The process of the thread may be borrowed.
                    std::ptr::eq(other.as_ptr(), process)
                });
            if let (true, Some(recording), Some(at)) = (is_other, &mut known.recording, known.block)
            {
                recorder.take_completed(recording, process.memory(), at)?;
            }
        }
        Ok(())
    }

    /// How a thread is observed, if it is, and where its block is.
    pub(super) fn recorded(
        &mut self,
        tid: i32,
    ) -> Option<(Ref<'_, Recorder>, &mut Recording, u64)> {
        let known = self.threads.get_mut(&tid)?;
        let recorder = self.recorder.as_ref()?.borrow();
        Some((recorder, known.recording.as_mut()?, known.block?))
    }

    /// A thread has made a process: clients receive what it has done before. Returns how the process begins.
    pub(super) fn make_known(&mut self, maker: Stopped) -> Result<Beginning> {
        let Some(process) = self.process(maker) else {
            return Ok(Beginning::Thread);
        };
        self.take_from_others(maker, &process.borrow())?;
        let Some((recorder, recording, at)) = self.recorded(maker.tid()) else {
            return Ok(Beginning::Thread);
        };
        recorder.drain(recording, process.borrow().memory(), at, Rest::NOTHING)?;
        Ok(Beginning::Process(recording.thread))
    }

    /// A thread is about to begin with the handler of a signal.
    pub(super) fn note_signal(
        &mut self,
        thread: Stopped,
        process: &Process,
        signal: i32,
    ) -> Result<()> {
        match self.recorded(thread.tid()) {
            Some((recorder, recording, at)) => {
                recorder.signal(recording, process.memory(), at, signal)
            }
            None => Ok(()),
        }
    }

    /// A thread has called `mmap` for a file, with these arguments. Code of the file may be executed.
    pub(super) fn note_file(&mut self, thread: Stopped, args: [u64; 6], result: i64) -> Result<()> {
        // Errors are between -4095 and -1.
        let is_file = args[3] & libc::MAP_ANONYMOUS as u64 == 0;
        if !is_file || (-4095..0).contains(&result) {
            return Ok(());
        }
        let Some(process) = self.process(thread) else {
            return Ok(());
        };
        let Some((recorder, recording, at)) = self.recorded(thread.tid()) else {
            return Ok(());
        };
        let descriptor = format!("/proc/{}/fd/{}", thread.tid(), args[4] as i32);
        let Ok(file) = std::fs::read_link(descriptor) else {
            return Ok(());
        };
        recorder.drain(recording, process.borrow().memory(), at, Rest::NOTHING)?;
        recorder.tell(Message::Mapped {
            thread: recording.thread,
            file,
            address: result.cast_unsigned(),
            size: args[1],
            offset: args[5],
        });
        Ok(())
    }
}
