//! A probe with a condition, or with actions that share values: each value is fetched once.

use alloc::vec::Vec;

use super::condition::{Label, Needs, Test, Writer, kept_at};
use super::event::emit_record;
use super::saved::Saved;
use super::{Cold, Counter, DetourError, Event, Fetch, RCX, RDX, Register, emit_count};
use crate::x86_64::emit::Code;
use crate::x86_64::stub::Layout;

/// What is done at a hit, if a condition holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Offset of the control block's word with the address of the events file.
    pub base: u32,
    /// A byte of that file; nothing is done while it is 0.
    pub switch: Option<u32>,
    /// Values of the condition, and of events.
    pub values: Vec<Fetch>,
    /// What must be true.
    pub condition: Option<Test>,
    /// What is done, in this order.
    pub deeds: Vec<Deed>,
}

/// One thing that is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deed {
    /// The hit is counted.
    Count(Counter),
    /// An event is written. Its values are the block's.
    Record(Event),
}

/// Values that a block can have.
pub const MOST_VALUES: usize = 32;

/// Bytes of machine code that a block takes at most.
#[must_use]
pub fn size(block: &Block, layout: &Layout) -> u64 {
    let mut bytes = Vec::new();
    let mut cold = Cold::default();
    let mut code = Code::new(&mut bytes, 0);
    // What fails takes no room: its place is refused later.
    let _ = emit_block(&mut code, layout, false, block, 0, &mut cold);
    let slow = cold.epoch.len() + cold.chunk.len() + cold.fault.len();
    bytes.len() as u64 + 16 * slow as u64 + 16
}

pub(super) fn emit_block(
    code: &mut Code<'_>,
    layout: &Layout,
    flags_dead: bool,
    block: &Block,
    here: u64,
    cold: &mut Cold,
) -> Result<(), DetourError> {
    if block.values.len() > MOST_VALUES {
        return Err(DetourError::TooManyValues);
    }
    let needs = needs(block);
    let mut saved = Saved::begin(code, flags_dead);
    let begun = saved.slots.len();
    let mut off = Label::new();
    if let Some(switch) = block.switch {
        let mut writer = writer(code, &saved, block, here, Needs::default(), 0);
        writer.switch(block.base, switch, &mut off);
    }
    if needs.registers {
        saved.push(code, RCX);
        saved.push(code, RDX);
    }
    let frame = saved.frame(code, needs.words());
    let mut writer = writer(code, &saved, block, here, needs, frame);
    let mut out = Label::new();
    if let Some(condition) = &block.condition {
        writer.jump(condition, false, &mut out);
    }
    let fetched = writer.fetched;
    let loads = core::mem::take(&mut writer.loads);
    let failed = core::mem::replace(&mut writer.out, Label::new());
    let kept = |value: usize| {
        let at = kept_at(needs.kept, value)?;
        (fetched >> value & 1 == 1).then_some(frame - 1 - at)
    };
    for deed in &block.deeds {
        match deed {
            Deed::Count(counter) => emit_counter(code, *counter),
            Deed::Record(event) => {
                emit_record(code, layout, &mut saved, event, (here, &kept), cold)?;
            }
        }
    }
    let exit = code.here();
    let mut writer = self::writer(code, &saved, block, here, needs, frame);
    writer.bind(out);
    writer.bind(failed);
    cold.leave
        .extend(loads.into_iter().map(|load| (load, exit)));
    saved.back(code, begun);
    let mut writer = self::writer(code, &saved, block, here, needs, frame);
    writer.bind(off);
    saved.end(code);
    Ok(())
}

/// What the condition needs, found by writing it somewhere.
fn needs(block: &Block) -> Needs {
    let mut bytes = Vec::new();
    let mut code = Code::new(&mut bytes, 0);
    let saved = Saved {
        slots: Vec::<Option<Register>>::new(),
    };
    let mut writer = writer(&mut code, &saved, block, 0, Needs::default(), 0);
    if let Some(condition) = &block.condition {
        let mut out = Label::new();
        writer.jump(condition, false, &mut out);
    }
    writer.needs
}

fn writer<'a, 'c>(
    code: &'a mut Code<'c>,
    saved: &'a Saved,
    block: &'a Block,
    here: u64,
    needs: Needs,
    frame: usize,
) -> Writer<'a, 'c> {
    Writer {
        code,
        saved,
        here,
        values: &block.values,
        keeps: needs.kept,
        frame,
        needs,
        scratch: 0,
        fetched: 0,
        loads: Vec::new(),
        out: Label::new(),
    }
}

impl Writer<'_, '_> {
    /// Goes to `off` if a byte of the events file is 0.
    fn switch(&mut self, base: u32, at: u32, off: &mut Label) {
        self.code.op32(&[0x65, 0x48, 0x8B, 0x04, 0x25], base); // mov rax, gs:[base]
        self.code.op32(&[0x80, 0xB8], at); // cmp byte [rax+at], 0
        self.code.raw(&[0]);
        self.jump_if(super::condition::JE, off);
    }
}

/// Counts, where `rax` and the flags are saved.
fn emit_counter(code: &mut Code<'_>, counter: Counter) {
    match counter {
        Counter::Thread(at) => emit_count(code, at),
        Counter::Shared { base, at } => {
            code.op32(&[0x65, 0x48, 0x8B, 0x04, 0x25], base); // mov rax, gs:[base]
            code.op32(&[0xF0, 0x48, 0xFF, 0x80], at.cast_unsigned()); // lock inc qword [rax+at]
        }
    }
}
