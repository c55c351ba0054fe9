//! The stub of a traced function.
//!
//! The entry half records the entry, puts the return address into the shadow and *calls* the body. The body's own
//! return leads to the exit half, which records the exit, fetches the return address and returns to it. So every return
//! is predicted. S is the stack pointer with which the function is entered and with which it returns; the return
//! address is in `x30` then.
//!
//! ```text
//! entry:  autiasp                              if the instruction in front of the site has signed x30
//!         block = [tpidr_el0 + …]              the address of the thread's control block
//!         does x30 point to an exit half?      → a traced function jumped here: record "tail", go to the body
//!         is S in the window?                  → if not: agent (maps its shadow, records a new window around it; or: record the
//!                                                entry alone, go to the body)
//!         [S − distance] = x30                 the shadow
//!         record "entry"
//!         bl body ────────────────────────┐
//! exit:   movz xzr, #…      ◄─ body's ret │    this tells an exit half from other code
//!         record "exit"                   │
//!         x30 = [S − distance]            │
//!         ret ──► the caller              │
//!         slow paths                      │
//! body:   paciasp           ◄─────────────┘    if x30 was signed at the site
//!         displaced instructions
//! ```
//!
//! `x30` is free in the exit half, and after the store to the shadow in the entry half. The other registers are those
//! that the planner has found free. If they are too few, some are saved on the stack below S. The stack pointer is
//! lowered first: there is no red zone, and signal handlers build their frames below the stack pointer. No vector
//! register is used, and no instruction changes the flags: branches ask whether a register is 0, or for one bit of it.
//! So numbers without a sign are compared by the highest bit of their difference, for which they must be below 2^63.
//! Times and addresses are.
//!
//! A traced function may sign its return address, which leads to the exit half. It authenticates the address before it
//! returns or jumps to another function, so the return address that a function finds at its entry is a plain one. In
//! the shadow it is plain, too.
//!
//! Whether S is in the window, and so has a shadow, is checked with the lowered stack pointer: there is a word for each
//! possible lowering ([`Layout::lowered_windows`]). The clock is read before that: the time shows readers if a signal
//! handler moved to another window before the record had its place.
//!
//! A record holds the bits of S from bit 4 on, and needs no mask for them: the processor requires that a stack pointer
//! is a multiple of 16.

mod exit;
mod filter;
mod scratch;
mod slow;
mod template;

use alloc::vec::Vec;
use core::ops::Range;
use hodo_isa::aarch64::asm::ops::Insns as _;

pub use crate::stub::{Body, Emitted, Layout, Records, Registers, Runtime, Scope};
use hodo_isa::Signing;
use hodo_isa::cfa::{Row, Rule};

use super::patch::{sign, state, take_signature};
use crate::reserve::scratch::Scratch;
use hodo_isa::aarch64::asm::operand::{DOUBLE, Extend, TPIDR_EL0, lsl, mem};
use hodo_isa::aarch64::asm::{Code, Label, Reach};
use hodo_isa::aarch64::cfa::pushed;
use hodo_isa::aarch64::encode::{MOVZ, WIDE, move_wide};
use hodo_isa::aarch64::regs::{LINK, SP, ZERO};
use scratch::{PREFERENCE, bytes, places};
use slow::{Slow, Then};
pub use template::Templates;

/// What tells an exit half from other code, as the number in an instruction that does nothing.
const MARK: u16 = 0x6F64;

/// The first instruction of an exit half, to which bodies return: `movz xzr, #…`, which no compiler emits. All our code
/// that functions return to must begin with it; otherwise functions that are jumped to do not recognize the return
/// address.
pub const RETURN_POINT: u32 = move_wide(WIDE | MOVZ, ZERO, MARK, 0);

/// The bit that is set if a number was less than the one that was subtracted from it.
const LESS: u8 = 63;

/// The registers of a half: the control block's address; two more; the time; and one that is free when a record is put
/// together.
#[derive(Debug, Clone, Copy)]
struct Hot {
    block: u8,
    a: u8,
    b: u8,
    time: u8,
    spare: u8,
}

struct Stub<'s, 'c> {
    code: &'s mut Code<'c>,
    layout: &'s Layout,
    runtime: &'s Runtime,
    records: &'s Records,
    rows: &'s mut Vec<Row>,
    slow: Vec<Slow>,
    faults: Vec<(u64, u64)>,
    /// Jumps from the entry half to the body, without an exit.
    past: Option<Label>,
    scratch: Scratch,
    /// The registers that the entry half saves.
    entry_scratch: Scratch,
    /// How far the stack pointer is below S.
    lowered: u16,
    /// Whether the return address is in the shadow rather than in its register.
    shadow: bool,
    /// How the return address is signed now, if it is in its register.
    signing: Signing,
}

/// Emits a stub at `code.here()`. Calls `body` with the address of the body to get its relocated code. Adds to `rows`
/// where its frame is; offsets are those in the buffer.
///
/// # Errors
/// What `body` returns.
///
/// # Panics
/// If the body resumes at an address that is not within 128 MiB: bodies contain their own way back.
pub fn emit_stub<E>(
    code: &mut Code<'_>,
    layout: &Layout,
    runtime: &Runtime,
    records: &Records,
    rows: &mut Vec<Row>,
    body: impl FnOnce(u64) -> Result<Body, E>,
) -> Result<Emitted, E> {
    let faults = emit_halves(code, layout, runtime, records, rows);
    let body = emit_body(code, rows, body)?;
    Ok(Emitted { body, faults })
}

/// Emits everything in front of the body. Returns the loads that may fault, and where execution continues then.
fn emit_halves(
    code: &mut Code<'_>,
    layout: &Layout,
    runtime: &Runtime,
    records: &Records,
    rows: &mut Vec<Row>,
) -> Vec<(u64, u64)> {
    debug_assert_eq!(layout.cursor, 0, "atomic additions have no offset");
    let signing = records.registers.signing;
    let mut stub = Stub {
        code,
        layout,
        runtime,
        records,
        rows,
        slow: Vec::new(),
        faults: Vec::new(),
        past: None,
        scratch: Scratch::default(),
        entry_scratch: Scratch::default(),
        lowered: 0,
        shadow: false,
        signing,
    };
    let to_body = stub.code.label();
    stub.entry(to_body);
    if let Some(exit) = records.exit {
        stub.exit(exit);
    }
    stub.pass(to_body);
    let (faults, now) = (stub.faults, stub.signing);
    code.bind(to_body);
    if now != signing {
        let (at, rule) = (code.offset(), pushed(0));
        rows.push(Row { at, rule });
        sign(code, signing);
    }
    faults
}

/// Adds a row, unless the last one says the same or is for the same place.
fn add_row(rows: &mut Vec<Row>, Row { at, rule }: Row) {
    match rows.last_mut() {
        Some(last) if last.at == at => last.rule = rule,
        Some(last) if last.rule == rule => {}
        _ => rows.push(Row { at, rule }),
    }
}

fn emit_body<E>(
    code: &mut Code<'_>,
    rows: &mut Vec<Row>,
    body: impl FnOnce(u64) -> Result<Body, E>,
) -> Result<Range<u64>, E> {
    let at = code.here();
    let body = body(at)?;
    let start = code.offset();
    rows.extend(body.rows.iter().map(|row| Row {
        at: start + row.at,
        rule: row.rule,
    }));
    code.raw(&body.bytes);
    if let Some(resume) = body.resume {
        let near = code.jump(resume, Reach::Jump, ZERO);
        assert!(near.is_ok(), "a body that resumes far away");
    }
    Ok(at..code.here())
}

impl Stub<'_, '_> {
    /// From here on, the frame is as the state says. While the return address is signed, the stub is like a part of the
    /// function.
    fn row(&mut self) {
        let rule = match self.signing {
            Signing::None => Rule::Lowered {
                bytes: self.lowered,
                shadow: self.shadow,
            },
            signing => {
                let mut state = state(signing);
                state.lower(self.lowered.into());
                state.rule()
            }
        };
        let at = self.code.offset();
        add_row(self.rows, Row { at, rule });
    }

    /// The entry half.
    fn entry(&mut self, to_body: Label) {
        let Records { timed, exit, .. } = *self.records;
        self.row();
        // Without an exit, the return address is only looked at if it is handed on.
        if exit.is_some() || self.records.hands_on {
            take_signature(self.code, self.signing);
            self.signing = Signing::None;
            self.row();
        }
        let fourth = timed || self.records.depth.is_some();
        self.take_registers(3 + usize::from(fourth) + usize::from(exit.is_none()));
        let mut hot = self.hot(fourth);
        self.fetch_block(hot.block);
        self.filters(hot);
        if exit.is_some() {
            self.find_tail(hot);
        }
        if timed {
            self.take_time(hot);
        }
        if exit.is_some() {
            self.find_window(hot, self.runtime.shadow);
            self.put_into_shadow(hot);
            hot.spare = LINK;
        } else if self.records.placed {
            self.find_window(hot, self.runtime.window);
        }
        if self.records.hands_on {
            self.hand_on(hot);
        }
        self.record(hot, self.records.entry);
        if exit.is_some() && self.records.scope == Scope::Filter {
            self.count_inside(hot, 1);
        }
        self.give_back();
        match exit {
            Some(_) => self.code.bl(to_body),
            None => self.code.b(to_body),
        }
    }

    /// Slow paths, and the code that enters the body without an exit.
    fn pass(&mut self, to_body: Label) {
        self.emit_slow();
        let Some(past) = self.past else { return };
        self.code.bind(past);
        // The state in which the entry half has left it.
        self.scratch = self.entry_scratch;
        self.lowered = bytes(&self.scratch);
        self.shadow = false;
        self.row();
        self.give_back();
        self.code.b(to_body);
    }

    /// The place from which the body is entered without an exit.
    fn past(&mut self) -> Label {
        *self.past.get_or_insert_with(|| self.code.label())
    }

    /// Makes available the registers that the entry half works with.
    fn take_registers(&mut self, need: usize) {
        let free = self.records.registers.free;
        self.scratch = Scratch::choose(free, need, None, PREFERENCE);
        self.entry_scratch = self.scratch;
        self.keep();
    }

    /// Lowers the stack pointer and saves registers.
    fn keep(&mut self) {
        let bytes = bytes(&self.scratch);
        if bytes != 0 {
            self.code.addi(SP, SP, -i64::from(bytes));
            self.lowered = bytes;
            self.row();
        }
        for (first, second, place) in places(self.scratch) {
            match second {
                Some(second) => self.code.stp(first, second, mem(SP, place)),
                None => self.code.str(first, mem(SP, place)),
            }
        }
    }

    /// Restores what was saved, so that the stack pointer is S.
    fn give_back(&mut self) {
        for (first, second, place) in places(self.scratch) {
            match second {
                Some(second) => self.code.ldp(first, second, mem(SP, place)),
                None => self.code.ldr(first, mem(SP, place)),
            }
        }
        if self.lowered != 0 {
            self.code.addi(SP, SP, self.lowered.into());
            self.lowered = 0;
            self.row();
        }
    }

    /// The registers that were made available, with a fourth one for the time or without. In the exit half, the link
    /// register is spare.
    fn hot(&self, fourth: bool) -> Hot {
        let mut rest = (0..).map_while(|index| self.scratch.get(index));
        let mut next = || rest.next().unwrap_or(ZERO);
        let [block, a, b] = [next(), next(), next()];
        let time = if fourth { next() } else { ZERO };
        Hot {
            block,
            a,
            b,
            time,
            spare: rest.next().unwrap_or(LINK),
        }
    }

    /// `register` = S.
    fn stack(&mut self, register: u8) {
        self.code.addi(register, SP, self.lowered.into());
    }

    /// `register` = a word of the control block.
    fn load(&mut self, register: u8, block: u8, offset: u32) {
        self.code.ldr(register, mem(block, offset.into()));
    }

    /// Stores a register in a word of the control block.
    fn store(&mut self, register: u8, block: u8, offset: u32) {
        self.code.str(register, mem(block, offset.into()));
    }

    /// A return address that leads to an exit half means that a traced function jumped here.
    fn find_tail(&mut self, hot: Hot) {
        let Hot { a, b, .. } = hot;
        let load = self.code.here();
        self.code.ldr_w(a, mem(LINK, 0));
        self.code.li(b, RETURN_POINT.into());
        self.code.sub(a, a, b);
        let pending = self.code.label();
        self.code.cbz(a, pending);
        let words = vec![self.records.tail];
        // An address that cannot be read is not in an island.
        self.faults.push((load, self.code.here()));
        self.slow(pending, self.runtime.tail, hot, words, Then::Pass);
    }

    /// Checks that S is in the window, or lets the agent choose another window. If there can be no shadow, only the
    /// entry is recorded.
    fn find_window(&mut self, hot: Hot, agent: u64) {
        let Hot { block, b, .. } = hot;
        let word = match self.lowered {
            0 => self.layout.window,
            bytes => self.layout.lowered_windows + u32::from(bytes / 16 - 1) * 8,
        };
        self.load(b, block, word);
        self.code.sub_extended(b, SP, b, (Extend::Uxtx, 0));
        let bits = self.layout.window_size.ilog2() as u8;
        self.code.lsri(b, b, bits);
        let outside = self.code.label();
        self.code.cbnz(b, outside);
        let (words, then) = match self.records.exit {
            Some(_) => (vec![self.records.entry], Then::Pass),
            None => (Vec::new(), Then::Back),
        };
        self.slow(outside, agent, hot, words, then);
    }

    /// Has the next stub ask the agent, which compares S and the return address with these.
    fn hand_on(&mut self, hot: Hot) {
        let Hot { block, a, .. } = hot;
        let handed = self.layout.handed_on;
        self.stack(a);
        self.store(LINK, block, handed + 8);
        self.store(a, block, handed);
        for word in [
            self.layout.window,
            self.layout.lowered_windows,
            self.layout.lowered_windows + 8,
        ] {
            self.store(ZERO, block, word);
        }
    }

    fn put_into_shadow(&mut self, hot: Hot) {
        let Hot { block, a, b, .. } = hot;
        self.load(b, block, self.layout.to_shadow);
        self.code.add_extended(b, SP, b, (Extend::Uxtx, 0));
        let mut from = LINK;
        if self.records.check.is_some() {
            // A frame is marked while it is open.
            self.code.orri(a, LINK, OPEN);
            from = a;
        }
        self.code.str(from, mem(b, self.lowered.into()));
        self.shadow = true;
        self.row();
    }

    fn take_time(&mut self, hot: Hot) {
        let Hot { block, b, time, .. } = hot;
        self.code.rdtime(time);
        self.load(b, block, self.layout.epoch_end);
        self.code.sub(b, time, b);
        let pending = self.code.label();
        self.code.tbz(b, LESS, pending);
        self.slow(pending, self.runtime.epoch, hot, Vec::new(), Then::Back);
    }

    /// Fetches the address of the control block.
    fn fetch_block(&mut self, block: u8) {
        self.code.mrs(block, TPIDR_EL0);
        self.code.ldr(block, mem(block, self.layout.block.into()));
    }

    /// `a` = the word at an address; adds a number to it. A signal handler that records gets a place of its own: it can
    /// only come before the addition or after it. Changes `b` and the spare register.
    fn add_at(&mut self, hot: Hot, address: u8, number: u16) {
        let Hot { a, b, spare, .. } = hot;
        if self.layout.atomics {
            self.code.movz(b, number, 0);
            self.code.ldadd(DOUBLE, b, a, address);
        } else {
            // What comes in between takes the reservation away.
            let again = self.code.label_here();
            self.code.ldxr(DOUBLE, a, address);
            self.code.addi(b, a, number.into());
            self.code.stxr(DOUBLE, spare, b, address);
            self.code.cbnz_w(spare, again);
        }
    }

    /// Appends a record.
    fn record(&mut self, hot: Hot, info: u32) {
        let Hot {
            block,
            a,
            b,
            time,
            spare,
        } = hot;
        self.add_at(hot, block, self.layout.record_size as u16);
        self.load(b, block, self.layout.limit);
        self.code.sub(b, a, b);
        let pending = self.code.label();
        self.code.tbz(b, LESS, pending);
        self.slow(pending, self.runtime.chunk, hot, Vec::new(), Then::Back);
        self.number(info, spare, b);
        let time = if self.records.timed { time } else { ZERO };
        self.code.stp_w(time, spare, mem(a, 0));
    }

    /// `register` = the upper half of a record. Changes another register.
    fn number(&mut self, info: u32, register: u8, other: u8) {
        self.code.li(register, info.into());
        self.stack(other);
        let shift = self.layout.sp_shift;
        self.code.orr_w(register, register, lsl(other, shift));
    }
}

/// The bit in the shadow that is set while a frame is open, if that is checked.
const OPEN: u64 = 1 << 63;

#[cfg(test)]
mod tests;
