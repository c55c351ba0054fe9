//! The stub of a traced function.
//!
//! The entry half records the entry, puts the return address into the shadow and *calls* the body. The body's own
//! return leads to the exit half, which records the exit, fetches the return address and returns to it. So every return
//! is predicted. S is the stack pointer with which the function is entered and with which it returns; the return
//! address is in `ra` then.
//!
//! ```text
//! entry:  block = [tp + …]                     the address of the thread's control block
//!         does ra point to an exit half?       → a traced function jumped here: record "tail", go to the body
//!         is S in the window?                  → if not: agent (maps its shadow, records a new window around it; or: record the
//!                                                entry alone, go to the body)
//!         [S − distance] = ra                  the shadow
//!         record "entry"
//!         jal ra, body ───────────────────┐
//! exit:   block = [tp + …]  ◄─ body's ret │    this first instruction tells an exit half from other code
//!         record "exit"                   │
//!         ra = [S − distance]             │
//!         ret ──► the caller              │
//!         slow paths                      │
//! body:   displaced instructions ◄────────┘
//! ```
//!
//! `ra` is free in the exit half, and after the store to the shadow in the entry half. The other registers are those
//! that the planner has found free. If they are too few, some are saved on the stack below S. The stack pointer is
//! lowered first: there is no red zone, and signal handlers build their frames below the stack pointer. No vector or
//! floating-point register is used. Two registers besides `ra` are enough if nothing is filtered: if one was needed for
//! something else, the address of the control block is fetched again, which takes one instruction; saving a register
//! takes two.
//!
//! The upper half of the instruction at a return address nearly always shows at once whether the address leads to an
//! exit half. If other code has the same value by chance, the agent compares the address with those of islands.
//!
//! Whether S is in the window, and so has a shadow, is checked with the lowered stack pointer: there is a word for each
//! possible lowering ([`Layout::lowered_windows`]). If a third register is free, the clock is read before that: the
//! time shows readers if a signal handler moved to another window before the record had its place. If the link register
//! has to hold the time, this order is not possible.
//!
//! A record holds the bits of S from bit 4 on. Calls need no mask: S is a multiple of 16 by the calling convention. Go
//! does not keep to that, but only the entries of its functions are recorded.

mod exit;
mod filter;
mod scratch;
mod slow;

use alloc::vec::Vec;
use core::ops::Range;
use hodo_isa::riscv64::asm::ops::Insns as _;

pub use crate::stub::{Body, Emitted, Layout, Records, Registers, Runtime, Scope};
use hodo_isa::Via;
use hodo_isa::cfa::{Row, Rule};

use crate::reserve::scratch::Scratch;
use hodo_isa::riscv64::asm::{Code, If, Label, Reach};
use hodo_isa::riscv64::encode::{LOAD, i};
use hodo_isa::riscv64::regs::{RA, SP, TP, ZERO};
use scratch::{PREFERENCE, bytes, places};
use slow::{Slow, Then};

/// The first instruction of an exit half, to which bodies return: it puts the address of the control block into a
/// register. All our code that functions return to must begin with it; otherwise functions that are jumped to do not
/// recognize the return address.
#[must_use]
pub fn return_point(layout: &Layout, register: u8) -> u32 {
    i(LOAD, 3, register, TP, layout.block.into())
}

/// How many low bits of S are 0 by the calling convention.
const ALIGNED: u8 = 4;

/// The upper half of that instruction, as a signed load fetches it. It is the same for all registers.
fn return_mark(layout: &Layout) -> i32 {
    return_point(layout, ZERO).cast_signed() >> 16
}

/// The registers of a half: the control block's address; two more; the time; and one that is free when a record is put
/// together. If `a` and `b` are the same, each record loses the control block's address, because the limit is loaded
/// into its register.
#[derive(Debug, Clone, Copy)]
struct Hot {
    block: u8,
    a: u8,
    b: u8,
    time: u8,
    spare: u8,
}

/// Where the upper half of a record comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Info {
    Number(u32),
    /// A word after the exit half, addressed relative to the return point, which is still in `ra`.
    Word,
}

impl Records {
    /// Whether anything is done besides recording all calls.
    fn is_filtered(&self) -> bool {
        self.depth.is_some()
            || self.check.is_some()
            || self.shortest.is_some()
            || self.switch.is_some()
            || self.scope == Scope::Filter
    }
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
}

/// Emits stubs as [`emit_stub`] does.
#[derive(Debug)]
pub struct Templates(Layout);

impl Templates {
    /// All stubs will have this layout.
    #[must_use]
    pub fn new(layout: Layout) -> Self {
        Self(layout)
    }

    /// Emits a stub.
    ///
    /// # Errors
    /// What `body` returns.
    pub fn emit<E>(
        &mut self,
        code: &mut Code<'_>,
        runtime: &Runtime,
        records: &Records,
        rows: &mut Vec<Row>,
        body: impl FnOnce(u64) -> Result<Body, E>,
    ) -> Result<Emitted, E> {
        emit_stub(code, &self.0, runtime, records, rows, body)
    }
}

/// Emits a stub at `code.here()`. Calls `body` with the address of the body to get its relocated code. Adds to `rows`
/// where its frame is; offsets are those in the buffer. If the jump to the stub saves a register on the stack,
/// [`KEEP`](hodo_isa::riscv64::KEEP) bytes of code before the stub do so, too, for breakpoints that lead here.
///
/// # Errors
/// What `body` returns.
///
/// # Panics
/// If the body resumes at an address that is not within 1 MiB: bodies contain their own way back if it is longer.
pub fn emit_stub<E>(
    code: &mut Code<'_>,
    layout: &Layout,
    runtime: &Runtime,
    records: &Records,
    rows: &mut Vec<Row>,
    body: impl FnOnce(u64) -> Result<Body, E>,
) -> Result<Emitted, E> {
    debug_assert_eq!(layout.cursor, 0, "atomic additions have no offset");
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
    };
    let to_body = stub.code.label();
    stub.entry(to_body);
    if let Some(exit) = records.exit {
        stub.exit(exit);
    }
    stub.pass(to_body);
    let faults = stub.faults;
    code.bind(to_body);
    let body = emit_body(code, rows, body)?;
    Ok(Emitted { body, faults })
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
    /// From here on, the frame is as the state says.
    fn row(&mut self) {
        let rule = Rule::Lowered {
            bytes: self.lowered,
            shadow: self.shadow,
        };
        let at = self.code.offset();
        match self.rows.last_mut() {
            Some(last) if last.at == at => last.rule = rule,
            Some(last) if last.rule == rule => {}
            _ => self.rows.push(Row { at, rule }),
        }
    }

    /// The entry half.
    fn entry(&mut self, to_body: Label) {
        let Records { timed, exit, .. } = *self.records;
        // The link register is free only while the return address is in the shadow.
        let need = match (self.records.is_filtered(), exit) {
            (false, Some(_)) => 2,
            (false, None) => 3,
            (true, None) if timed => 4,
            (true, _) => 3 + usize::from(self.records.depth.is_some()),
        };
        // If one register is needed only for the tests of the depth, or one more costs nothing, it holds a time that is
        // read early.
        let with_time = need + usize::from(exit.is_some() && self.records.depth.is_none());
        let early = need == with_time || PREFERENCE.available(self.free()) >= with_time;
        self.take_registers(if timed && early { with_time } else { need });
        let mut hot = self.hot();
        self.code.word(return_point(self.layout, hot.block));
        self.filters(hot);
        if exit.is_some() {
            self.find_tail(hot);
        }
        if timed && early {
            self.take_time(hot);
        }
        if exit.is_some() {
            self.find_window(hot, self.runtime.shadow);
            self.put_into_shadow(hot);
            hot.spare = RA;
            if !early {
                hot.time = RA;
            }
        } else if self.records.placed {
            self.find_window(hot, self.runtime.window);
        }
        if self.records.hands_on {
            self.hand_on(hot);
        }
        if timed && !early {
            self.take_time(hot);
        }
        self.record(hot, Info::Number(self.records.entry));
        if exit.is_some() && self.records.scope == Scope::Filter {
            self.count_inside(hot, 1);
        }
        self.give_back();
        let link = if exit.is_some() { RA } else { ZERO };
        self.code.jal(link, to_body);
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
        self.code.jal(ZERO, to_body);
    }

    /// A branch to the body, without an exit.
    fn branch_past(&mut self, condition: If, left: u8, right: u8) {
        let past = *self.past.get_or_insert_with(|| self.code.label());
        self.code.branch(condition, left, right, past);
    }

    /// The registers that are free before the body.
    fn free(&self) -> u32 {
        let Registers { free, via, .. } = self.records.registers;
        match via {
            Via::Free(register) => free | 1 << register,
            Via::Nothing => free,
            // The saved register counts as being on the stack, even if the planner has found it free.
            Via::Kept(register) => free & !(1 << register),
        }
    }

    /// Makes available the registers that the entry half works with.
    fn take_registers(&mut self, need: usize) {
        let Registers { via, .. } = self.records.registers;
        let free = self.free();
        let on_stack = match via {
            Via::Kept(register) => Some(register),
            Via::Nothing | Via::Free(_) => None,
        };
        self.scratch = Scratch::choose(free, need, on_stack, PREFERENCE);
        self.entry_scratch = self.scratch;
        let mut stored = 0;
        if let Some(register) = on_stack {
            self.lowered = 16;
            self.row();
            if self.scratch.slot(register).is_some() {
                stored = 1;
            } else {
                self.code.ld(register, 0, SP);
                self.code.addi(SP, SP, 16);
                self.lowered = 0;
            }
        }
        self.row();
        self.keep(stored);
    }

    /// Lowers the stack pointer and saves registers; the first `stored` ones are saved already.
    fn keep(&mut self, stored: usize) {
        let bytes = bytes(&self.scratch);
        if bytes != self.lowered {
            self.code
                .addi(SP, SP, i64::from(self.lowered) - i64::from(bytes));
            self.lowered = bytes;
            self.row();
        }
        for (register, place) in places(self.scratch).skip(stored) {
            self.code.sd(register, place, SP);
        }
    }

    /// Restores what was saved, so that the stack pointer is S.
    fn give_back(&mut self) {
        for (register, place) in places(self.scratch) {
            self.code.ld(register, place, SP);
        }
        if self.lowered != 0 {
            self.code.addi(SP, SP, self.lowered.into());
            self.lowered = 0;
            self.row();
        }
    }

    /// The registers that were made available. If there is none for the time, it is read later, and a register that is
    /// no longer needed is spare.
    fn hot(&self) -> Hot {
        let mut rest = (0..).map_while(|index| self.scratch.get(index));
        let mut next = || rest.next();
        let block = next().unwrap_or(ZERO);
        let a = next().unwrap_or(ZERO);
        let b = match self.records.is_filtered() {
            true => next().unwrap_or(ZERO),
            false => a,
        };
        let last = next().unwrap_or(block);
        Hot {
            block,
            a,
            b,
            time: last,
            spare: last,
        }
    }

    /// S: the stack pointer, or else computed in the given register.
    fn stack(&mut self, register: u8) -> u8 {
        if self.lowered == 0 {
            return SP;
        }
        self.code.addi(register, SP, self.lowered.into());
        register
    }

    /// A return address that leads to an exit half means that a traced function jumped here.
    fn find_tail(&mut self, hot: Hot) {
        let load = self.code.here();
        self.code.lh(hot.a, 2, RA);
        let mark = i64::from(return_mark(self.layout));
        self.code.addi(hot.a, hot.a, -mark);
        let pending = self.code.label();
        self.code.branch(If::Equal, hot.a, ZERO, pending);
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
        self.code.ld(b, word.into(), block);
        self.code.sub(b, SP, b);
        let bits = self.layout.window_size.ilog2() as u8;
        self.code.srli(b, b, bits);
        let outside = self.code.label();
        self.code.branch(If::NotEqual, b, ZERO, outside);
        let (words, then) = match self.records.exit {
            Some(_) => (vec![self.records.entry], Then::Pass),
            None => (Vec::new(), Then::Back),
        };
        self.slow(outside, agent, hot, words, then);
    }

    /// Has the next stub ask the agent, which compares S and the return address with these.
    fn hand_on(&mut self, hot: Hot) {
        let Hot { block, a, .. } = hot;
        let handed = i64::from(self.layout.handed_on);
        let stack = self.stack(a);
        self.code.sd(RA, handed + 8, block);
        self.code.sd(stack, handed, block);
        for word in [
            self.layout.window,
            self.layout.lowered_windows,
            self.layout.lowered_windows + 8,
        ] {
            self.code.sd(ZERO, word.into(), block);
        }
    }

    fn put_into_shadow(&mut self, hot: Hot) {
        let Hot { block, a, b, .. } = hot;
        self.code.ld(b, self.layout.to_shadow.into(), block);
        self.code.add(b, SP, b);
        let mut from = RA;
        if self.records.check.is_some() {
            // A frame is marked while it is open.
            self.code.addi(a, ZERO, -1);
            self.code.slli(a, a, 63);
            self.code.or(a, a, RA);
            from = a;
        }
        self.code.sd(from, self.lowered.into(), b);
        self.shadow = true;
        self.row();
    }

    fn take_time(&mut self, hot: Hot) {
        let Hot { block, b, time, .. } = hot;
        self.code.rdtime(time);
        self.code.ld(b, self.layout.epoch_end.into(), block);
        let pending = self.code.label();
        self.code.branch(If::NotBelow, time, b, pending);
        self.slow(pending, self.runtime.epoch, hot, Vec::new(), Then::Back);
    }

    /// Fetches the address of the control block again.
    fn fetch_block(&mut self, block: u8) {
        self.code.word(return_point(self.layout, block));
    }

    /// Appends a record. Returns the offset of the instruction that loads a word, for [`Info::Word`].
    fn record(&mut self, hot: Hot, info: Info) -> Option<u32> {
        let Hot {
            block,
            a,
            b,
            time,
            spare,
        } = hot;
        // A single instruction, so a signal handler that records gets a place of its own.
        self.code.li(b, self.layout.record_size as i32);
        self.code.amoadd_d(a, b, block);
        let other = if a == b { block } else { b };
        self.code.ld(other, self.layout.limit.into(), block);
        let pending = self.code.label();
        self.code.branch(If::NotBelow, a, other, pending);
        self.slow(pending, self.runtime.chunk, hot, Vec::new(), Then::Back);
        // The upper half is written last: without it, a record does not count.
        self.code
            .sw(if self.records.timed { time } else { ZERO }, 0, a);
        let shift = self.layout.sp_shift;
        let at = match info {
            Info::Number(info) if self.records.exit.is_some() => {
                self.number(info, spare, other);
                None
            }
            Info::Number(info) => {
                let stack = self.stack(spare);
                self.code.srli(spare, stack, ALIGNED);
                self.code.slli(spare, spare, shift + ALIGNED);
                self.code.li(other, info.cast_signed());
                self.code.or(spare, spare, other);
                None
            }
            Info::Word => {
                let at = self.code.offset();
                self.code.lw(RA, 0, RA);
                let stack = self.stack(other);
                self.code.slli(other, stack, shift);
                self.code.or(spare, RA, other);
                Some(at)
            }
        };
        self.code.sw(spare, 4, a);
        at
    }

    /// `register` = the upper half of a record. Uses another register. The numbers include how far the stack is
    /// lowered: they are added, and the low bits of S are 0, so these can hold the record's kind.
    fn number(&mut self, info: u32, register: u8, other: u8) {
        let shift = self.layout.sp_shift;
        let (high, low) = (info >> shift, info & ((1 << shift) - 1));
        if low < 1 << 11 && high < 1 << ALIGNED {
            let mut from = SP;
            let more = i64::from(self.lowered) + i64::from(high);
            if more != 0 {
                self.code.addi(register, SP, more);
                from = register;
            }
            self.code.slli(register, from, shift);
            self.code.addi(register, register, low.into());
        } else {
            let lowered = u32::from(self.lowered) << shift;
            let info = info.wrapping_add(lowered);
            self.code.li(register, info.cast_signed());
            self.code.slli(other, SP, shift);
            self.code.add(register, register, other);
        }
    }
}

#[cfg(test)]
pub(in crate::riscv64) mod tests;
