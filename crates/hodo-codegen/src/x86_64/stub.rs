//! The stub of a traced function.
//!
//! The entry half records the entry, puts the real return address into the shadow and *calls* the body. The body's own
//! `ret` returns to the exit half, which records the exit, fetches the real return address and returns to it. So every
//! `ret` is predicted, and nothing differs from the untraced run but the return address on the stack. All general and
//! vector registers are preserved, at entry and at exit: gcc's `-fipa-ra` lets callers keep values in registers that
//! the ABI calls clobbered. Flags are dead at both points (System V ABI, x86-64 supplement, 3.2.1).
//!
//! S is the address of the return address when the function is entered. Three registers are pushed below it; at entry
//! and after return, nothing is live there.

mod template;

use alloc::vec::Vec;
use core::ops::Range;

use super::clock;
use super::frames::RETURN_POINT;
use super::masm::*;
pub use crate::stub::{Body, Emitted, Layout, Records, Registers, Runtime, Scope};
use hodo_isa::cfa::SAVED;
use hodo_isa::x86_64::cfa::{self, Row, Rule, pushed};
pub use template::Templates;

/// In a record, the upper of the two bits of the kind, which is set in tail calls.
const KIND_TAIL_BIT: u8 = 53;
/// The top bit of a return address. It is set in the shadow while the frame is open, if frames are checked.
const OPEN_BIT: u8 = 63;
/// The word at S, once the scratch registers are pushed.
const S: Mem = mem(RSP, SCRATCH);
/// Bytes of the scratch registers.
const SCRATCH: i32 = 24;

/// A slow path: where it begins and where it returns to.
type Way = (Label, Label);

/// Slow paths of one stub, emitted after its hot code.
#[derive(Default)]
struct Slow {
    epoch: Vec<Way>,
    /// The same, if `rcx` holds the return address.
    entry: Option<Way>,
    chunk: Vec<Way>,
}

/// A stub being written.
struct Writer<'w, 'c> {
    code: &'w mut Masm<'c>,
    layout: &'w Layout,
    runtime: &'w Runtime,
    records: &'w Records,
    rows: &'w mut Vec<Row>,
    slow: Slow,
    /// Pops the scratch registers, and then executes the body.
    pass: Label,
    /// Executes the body.
    body: Label,
}

/// Emits a stub at `code.here()`. Calls `body` with the address of the body to get its relocated code. Adds to `rows`
/// where its frame is; offsets are those in the buffer.
///
/// # Errors
/// What `body` returns.
pub fn emit_stub<E>(
    code: &mut Masm<'_>,
    layout: &Layout,
    runtime: &Runtime,
    records: &Records,
    rows: &mut Vec<Row>,
    body: impl FnOnce(u64) -> Result<Body, E>,
) -> Result<Emitted, E> {
    let (pass, at_body) = (code.label(), code.label());
    let mut writer = Writer {
        code,
        layout,
        runtime,
        records,
        rows,
        slow: Slow::default(),
        pass,
        body: at_body,
    };
    match records.exit {
        Some(exit) => writer.both(exit),
        None => writer.entry_only(),
    }
    let at = emit_body(writer.code, writer.rows, body)?;
    writer.slow();
    debug_assert!(code.all_bound());
    Ok(at.into())
}

/// Pushes `rax`, `rdx` and `rcx`.
pub(super) fn push_scratch(code: &mut Masm<'_>) {
    code.push_r(RAX);
    code.push_r(RDX);
    code.push_r(RCX);
}

/// Pops what [`push_scratch`] has pushed.
pub(super) fn pop_scratch(code: &mut Masm<'_>) {
    code.pop_r(RCX);
    code.pop_r(RDX);
    code.pop_r(RAX);
}

impl Writer<'_, '_> {
    /// The code before the body of a stub that records entry and exit. The exit half is part of it.
    fn both(&mut self, exit: u32) {
        self.scope();
        push_scratch(self.code);
        self.switch();
        self.depth(true);
        self.code.mov_rm(RCX, S);
        let tail = self.code.label();
        // A return address in an island means that a traced function jumped here.
        for (lo, len) in self.layout.islands {
            self.code.mov_rr(RDX, RCX);
            self.code.sub_rm(RDX, gs(lo));
            self.code.cmp_rm(RDX, gs(len));
            self.code.jcc(Cond::B, tail);
        }
        // The time is read before the window is checked: it shows readers if a signal handler changed the window before
        // the record had its place.
        if self.records.timed {
            self.slow.entry = Some(self.clock());
        }
        // The whole window has a shadow.
        self.window();
        let shadow = self.code.label();
        self.code.jcc(Cond::AE, shadow);
        let shadow_back = self.code.label_here();
        self.shadow_distance();
        if self.records.check.is_some() {
            // A frame is marked while it is open.
            self.code.bts_ri(RCX, OPEN_BIT);
        }
        self.code.mov_mr(S.plus(RDX), RCX);
        self.place(self.records.entry);
        if self.records.scope == Scope::Filter {
            self.code.inc_m(QWORD, gs(self.layout.inside));
        }
        pop_scratch(self.code);
        self.code.lea(RSP, mem(RSP, 8));
        self.code.call(self.body);

        self.exit(exit);
        self.outside(shadow, shadow_back, tail);
    }

    /// The exit half, to which the body returns.
    fn exit(&mut self, exit: u32) {
        self.code.lea(RSP, mem(RSP, -8));
        push_scratch(self.code);
        let dropped = self.take_back();
        if self.records.timed {
            let epoch = self.clock();
            self.slow.epoch.push(epoch);
        }
        self.place(exit);
        if let Some(dropped) = dropped {
            self.code.bind(dropped);
        }
        self.leave();
        self.shadow_distance();
        self.code.mov_rm(RAX, S.plus(RDX));
        let bad = self.code.label();
        if self.records.check.is_some() {
            self.code.btr_ri(RAX, OPEN_BIT);
            self.code.jcc(Cond::AE, bad);
        }
        let go_back = self.code.label_here();
        self.code.mov_mr(S, RAX);
        if self.records.check.is_some() {
            // Not earlier: unwinders must find the return address somewhere.
            self.code.mov_mi(QWORD, S.plus(RDX), 0);
        }
        pop_scratch(self.code);
        self.code.ret();
        if let Some(id) = self.records.check {
            self.code.bind(bad);
            self.code.mov_ri(ECX, id);
            self.code.call_to(self.runtime.frame);
            self.code.jmp(go_back);
        }
    }

    /// Outside the window. If there can be no shadow, only the entry is recorded.
    fn outside(&mut self, shadow: Label, shadow_back: Label, tail: Label) {
        let code = &mut *self.code;
        code.bind(shadow);
        code.call_to(self.runtime.shadow);
        code.call_to(self.runtime.window);
        code.jcc(Cond::AE, shadow_back);
        code.mov_ri(ECX, self.records.entry);
        let no_shadow = code.label();
        code.jmp(no_shadow);
        code.bind(tail);
        code.mov_ri(ECX, self.records.tail);
        code.bind(no_shadow);
        code.call_to(self.runtime.record);
        code.bind(self.pass);
        pop_scratch(code);
        code.bind(self.body);
    }

    /// The code before the body of a stub that records only the entry.
    fn entry_only(&mut self) {
        self.scope();
        push_scratch(self.code);
        self.switch();
        self.depth(false);
        if self.records.placed {
            self.window();
            let inside = self.code.label();
            self.code.jcc(Cond::B, inside);
            self.code.call_to(self.runtime.window);
            self.code.bind(inside);
        }
        if self.records.hands_on {
            self.hand_on();
        }
        self.code.mov_ri(ECX, self.records.entry);
        self.code.call_to(self.runtime.record);
        self.code.bind(self.pass);
        pop_scratch(self.code);
        self.code.bind(self.body);
    }

    /// Has the next stub ask the agent, which compares S and the return address with these.
    fn hand_on(&mut self) {
        let handed = self.layout.handed_on;
        self.code.mov_rm(RDX, S);
        self.code.mov_mr(gs(handed + 8), RDX);
        self.code.lea(RDX, S);
        self.code.mov_mr(gs(handed), RDX);
        self.code.mov_mi(QWORD, gs(self.layout.window), 0);
    }

    /// The slow paths.
    fn slow(&mut self) {
        let slow = core::mem::take(&mut self.slow);
        let entry = slow.entry.into_iter().map(|way| (way, true));
        for ((from, back), entry) in entry.chain(slow.epoch.into_iter().map(|way| (way, false))) {
            self.code.bind(from);
            self.code.call_to(self.runtime.epoch);
            if entry {
                self.code.mov_rm(RCX, S);
            }
            self.code.jmp(back);
        }
        for (from, back) in slow.chunk {
            self.code.bind(from);
            self.code.call_to(self.runtime.chunk);
            self.code.jmp(back);
        }
    }

    /// `rdx` = what must be added to a stack address to get its shadow's address.
    fn shadow_distance(&mut self) {
        let distance = self.layout.shadow_distance.wrapping_neg();
        self.code.movabs_ri(RDX, distance);
    }

    /// Checks whether the stack pointer is in the window; if the carry is clear, it is below or above. Clobbers `rdx`.
    fn window(&mut self) {
        self.code.lea(RDX, S);
        self.code.sub_rm(RDX, gs(self.layout.window));
        self.code.cmp_ri(RDX, self.layout.window_size);
    }

    /// Skips calls outside filter functions.
    fn scope(&mut self) {
        if self.records.scope == Scope::Inside {
            self.row(pushed(0));
            self.code.cmp_mi8(QWORD, gs(self.layout.inside), 0);
            self.code.jcc(Cond::E, self.body);
        }
        self.row(Rule::Stub);
    }

    /// Skips calls while recording is switched off: the frame gets no shadow, so it has no exit. Frames that are
    /// already open return as always, with an exit.
    fn switch(&mut self) {
        if let Some(switch) = self.records.switch {
            self.code.mov_rm(RAX, gs(self.layout.base));
            self.code.cmp_mi(BYTE, mem32(RAX, switch), 0);
            self.code.jcc(Cond::E, self.pass);
        }
    }

    /// From here on, the frame follows this rule.
    fn row(&mut self, rule: Rule) {
        row(self.rows, self.code, rule);
    }

    /// Skips calls that are too deep. First forgets frames that the stack has left; if `open`, adds this one.
    fn depth(&mut self, open: bool) {
        let Some(depth) = self.records.depth else {
            return;
        };
        self.code.lea(RDX, S);
        if self.records.scope == Scope::Filter {
            self.code.xor_rr(ECX, ECX); // the depth counts from here
        } else {
            self.pop();
        }
        self.code.cmp_ri(RCX, depth * 8);
        self.code.jcc(Cond::AE, self.pass);
        if open {
            let frame = mem32(RCX, self.layout.frames).in_gs();
            self.code.mov_mr(frame, RDX);
            self.code.add_ri8(RCX, 8);
            self.code.mov_mr(gs(self.layout.depth), RCX);
        }
    }

    /// `rcx` = bytes of the counting frames above the stack address in `rdx`. Clobbers nothing else.
    fn pop(&mut self) {
        let code = &mut *self.code;
        code.mov_rm(RCX, gs(self.layout.depth));
        let (again, done) = (code.label_here(), code.label());
        code.test_rr(RCX, RCX);
        code.jcc(Cond::E, done);
        let below = self.layout.frames.wrapping_sub(8);
        code.cmp_mr(mem32(RCX, below).in_gs(), RDX);
        code.jcc(Cond::A, done);
        code.sub_ri8(RCX, 8);
        code.jmp(again);
        code.bind(done);
    }

    /// The function returns: its frame no longer counts.
    fn leave(&mut self) {
        if self.records.scope == Scope::Filter {
            // The count may be too low if a stack has moved from one thread to another; 0 stays 0.
            self.code.cmp_mi8(QWORD, gs(self.layout.inside), 0);
            let none = self.code.label();
            self.code.jcc(Cond::E, none);
            self.code.dec_m(QWORD, gs(self.layout.inside));
            self.code.bind(none);
        }
        if self.records.depth.is_some() {
            self.code.lea(RDX, S);
            self.pop();
            self.code.mov_mr(gs(self.layout.depth), RCX);
        }
    }

    /// `edx` = upper half of a record; S is at this distance from the stack pointer.
    fn info(&mut self, s: i32, info: u32) {
        self.code.lea(EDX, mem(RSP, s));
        self.code.shl_ri(EDX, self.layout.sp_shift);
        self.code.and_ri(EDX, self.layout.sp_mask);
        self.code.or_ri(EDX, info);
    }

    /// If a call was short and its entry is the last record, takes that record back, and records no exit. Returns where
    /// that case continues. Single instructions change the cursor and the record, so records that a signal handler
    /// makes in between are kept.
    fn take_back(&mut self) -> Option<Label> {
        // rbx is saved below the scratch registers.
        const S_NOW: i32 = SCRATCH + 8;
        let mut below = [0; SAVED];
        below[0] = 5;
        let saved = Rule::Frame {
            base: cfa::RSP,
            offset: S_NOW + 8,
            saved: below,
        };
        let shortest = self.records.shortest.filter(|_| self.records.timed)?;
        let shortest = shortest.min(i32::MAX as u32);
        let size = i8::try_from(self.layout.record_size).ok()?;
        let again = self.code.label_here();
        let epoch = self.clock();
        self.slow.epoch.push(epoch);
        self.code.push_r(RBX);
        self.row(saved);
        self.code.mov_rm(RCX, gs(self.layout.cursor));
        self.code.mov_rm(RBX, mem8(RCX, -size)); // the last record
        self.info(S_NOW, self.records.entry);
        self.code.shl_ri(RDX, 32);
        self.code.xor_rr(RDX, RBX); // if it is this call's entry, its time
        self.code.neg_r(RDX);
        self.code.add_rr(RDX, RAX); // now - then, or something huge
        self.code.cmp_ri(RDX, shortest);
        let (keep, lost, dropped) = (self.code.label(), self.code.label(), self.code.label());
        self.code.jcc(Cond::AE, keep);
        self.code.mov_rr(RAX, RCX);
        self.code.lea(RDX, mem8(RCX, -size));
        self.code.cmpxchg_mr(gs(self.layout.cursor), RDX);
        self.code.jcc(Cond::NE, lost);
        self.code.mov_rr(RAX, RBX);
        self.code.xor_rr(EBX, EBX);
        self.code.cmpxchg_mr(mem(RDX, 0), RBX);
        self.pop_rbx();
        self.code.jmp(dropped);
        self.code.bind(lost);
        self.row(saved);
        self.pop_rbx();
        self.code.jmp(again);
        self.code.bind(keep);
        self.row(saved);
        // The entry may be followed by records of jumps to other functions.
        self.code.bt_ri(RBX, KIND_TAIL_BIT);
        let still = self.code.label();
        self.code.jcc(Cond::AE, still);
        self.info(S_NOW, self.records.entry);
        self.code.mov_ri(ECX, shortest);
        self.code.call_to(self.runtime.tails);
        self.code.jcc(Cond::AE, still);
        self.pop_rbx();
        self.code.jmp(dropped);
        self.code.bind(still);
        self.row(saved);
        self.pop_rbx();
        Some(dropped)
    }

    fn pop_rbx(&mut self) {
        self.code.pop_r(RBX);
        self.row(Rule::Stub);
    }

    /// `eax` = lower half of the time counter. Clobbers `rdx`, and `rcx` if the upper half has changed. Returns the
    /// slow path for that case.
    fn clock(&mut self) -> Way {
        clock::read_into(self.code, self.layout);
        let changed = self.code.label();
        self.code.jcc(Cond::NE, changed);
        (changed, self.code.label_here())
    }

    /// Appends a record, with the time in `rax`. `rdx`, `rcx` are free.
    fn place(&mut self, info: u32) {
        // Unlocked xadd: one instruction, so a signal handler that records gets a slot of its own.
        self.code.mov_ri(ECX, self.layout.record_size);
        self.code.xadd_mr(gs(self.layout.cursor), RCX);
        self.code.cmp_rm(RCX, gs(self.layout.limit));
        let full = self.code.label();
        self.code.jcc(Cond::AE, full);
        let back = self.code.label_here();
        self.slow.chunk.push((full, back));
        self.info(SCRATCH, info);
        self.code.shl_ri(RDX, 32);
        if self.records.timed {
            self.code.or_rr(RDX, RAX);
        }
        self.code.mov_mr(mem(RCX, 0), RDX);
    }
}

/// From here on, the frame follows this rule.
fn row(rows: &mut Vec<Row>, code: &Masm<'_>, rule: Rule) {
    rows.push(Row {
        at: code.offset(),
        rule,
    });
}

fn emit_body<E>(
    code: &mut Masm<'_>,
    rows: &mut Vec<Row>,
    body: impl FnOnce(u64) -> Result<Body, E>,
) -> Result<Range<u64>, E> {
    let at = code.here();
    let body = body(at)?;
    if !body.returns && body.bytes.windows(4).any(|code| code == RETURN_POINT) {
        // Unwinders would misread the code here.
        row(rows, code, Rule::Unknown);
    } else {
        let start = code.offset();
        rows.extend(body.rows.iter().map(|row| Row {
            at: start + row.at,
            rule: row.rule,
        }));
    }
    code.raw(&body.bytes);
    if let Some(resume) = body.resume {
        code.jmp_to(resume);
    }
    row(rows, code, Rule::Stub);
    Ok(at..code.here())
}
