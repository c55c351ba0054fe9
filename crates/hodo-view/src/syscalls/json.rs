//! System calls as JSON: an object for each call, written when the call ends.

use std::io::Write;

use anyhow::Result;
use serde_json::json;

use super::args::{Call, put_name};
use super::errors::error;
use super::lines::{Open, Pending, executed_by, is_replaced};
use super::read::{Event, Exit, Pieces};
use super::result::result;
use crate::source::Source;

/// Writes calls as objects.
#[derive(Default)]
pub(super) struct Objects {
    open: Open,
}

impl Objects {
    /// Writes the calls that end with an event. A call that never returns has no `result`.
    pub fn event(&mut self, source: &Source, event: Event, out: &mut dyn Write) -> Result<()> {
        let open = &mut self.open;
        match event {
            Event::Enter(enter) => {
                if let Some(lost) = open.begin(enter) {
                    left(source, &lost, out)?;
                }
            }
            Event::Exit(exit) => {
                if let Some(pending) = open.end(exit.task) {
                    object(source, &pending, Some(&exit), out)?;
                }
            }
            Event::Begin(task) => {
                let Some(before) = executed_by(source, task) else {
                    return Ok(());
                };
                if let Some(pending) = open.end(before) {
                    let ns = source.scale.nanoseconds(source.task(task).began);
                    let exit = Exit {
                        task,
                        ns,
                        value: 0,
                        name: None,
                        listed: Vec::new(),
                        pieces: Pieces::default(),
                    };
                    object(source, &pending, Some(&exit), out)?;
                }
                // These calls were interrupted by the signal handler that executed the program.
                while let Some(pending) = open.end(before) {
                    left(source, &pending, out)?;
                }
            }
            Event::Signal(task, signal) => {
                open.interrupt(source, task, &source.trace.signals[signal]);
            }
            // Its call ends when the program that replaces this one begins.
            Event::End(task) if is_replaced(source, task) => {}
            Event::End(task) => {
                while let Some(pending) = open.end(task) {
                    left(source, &pending, out)?;
                }
            }
        }
        Ok(())
    }

    /// Writes the calls that have not ended, when nothing more will come.
    pub fn finish(&mut self, source: &Source, out: &mut dyn Write) -> Result<()> {
        while let Some(pending) = self.open.any() {
            left(source, &pending, out)?;
        }
        Ok(())
    }
}

/// Writes a call whose end will not be seen. It has a result if a handler interrupted it.
fn left(source: &Source, pending: &Pending, out: &mut dyn Write) -> Result<()> {
    object(source, pending, pending.end_at_signal().as_ref(), out)
}

fn object(
    source: &Source,
    pending: &Pending,
    exit: Option<&Exit>,
    out: &mut dyn Write,
) -> Result<()> {
    let enter = &pending.enter;
    let task = source.task(enter.task);
    let call = Call { enter, exit };
    let args = call.each_argument();
    let failed = exit
        .filter(|_| call.success().is_none())
        .map(|exit| exit.value.wrapping_neg());
    let ended = exit.filter(|_| !enter.earlier);
    let mut shown = result(call);
    if let Some(name) = exit.and_then(|exit| exit.name.as_deref()) {
        put_name(name, &mut shown);
    }
    let mut line = json!({
        "time_ns": enter.ns, "duration_ns": ended.map(|exit| exit.ns.saturating_sub(enter.ns)),
        "comm": task.comm, "pid": task.pid, "tid": task.tid,
        "name": call.name(), "number": enter.number, "values": &*enter.args, "args": args,
        "result": exit.map(|exit| exit.value.cast_signed()),
        "error": failed.and_then(error).map(|(name, _)| name), "shown": shown,
    });
    if enter.earlier {
        line["began_earlier"] = true.into();
    }
    writeln!(out, "{line}")?;
    Ok(())
}
