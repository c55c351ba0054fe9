//! Return probes: the detour of the code at a function's beginning calls the rest of the function, so the function's
//! own `ret` returns to the probes, which then return to the caller. [`crate::x86_64::stub`] explains why this is
//! correct.
//! S is the address of the function's return address. Nothing is live below it at entry and after the return. All
//! registers are preserved at both points, but the flags are not.

use alloc::vec::Vec;

use super::{Cold, DetourError, Probe, When, emit_probe};
use crate::x86_64::masm::*;
use crate::x86_64::stub::{Layout, Runtime, pop_scratch, push_scratch};
use hodo_isa::x86_64::cfa::{Row, Rule, State, code_rows};

/// Code whose frames are found by following how it changes the stack pointer.
struct Followed {
    start: u32,
    at: u64,
    state: State,
}

impl Followed {
    fn begin(code: &Masm<'_>, state: State) -> Self {
        Self {
            start: code.offset(),
            at: code.here(),
            state,
        }
    }

    fn end(self, code: &Masm<'_>, rows: &mut Vec<Row>) {
        let followed = code_rows(code.from(self.start), self.at, &[(0, self.state)]);
        rows.extend(followed.into_iter().map(|row| Row {
            at: row.at + self.start,
            ..row
        }));
    }
}

/// From here on, the frame follows this rule.
fn row(rows: &mut Vec<Row>, code: &Masm<'_>, rule: Rule) {
    rows.push(Row {
        at: code.offset(),
        rule,
    });
}

/// The word at S, once the scratch registers are pushed.
const S: Mem = mem(RSP, 24);

/// What return probes are written with.
struct Returns<'r, 'c, 'p> {
    code: &'r mut Masm<'c>,
    layout: &'r Layout,
    runtime: &'r Runtime,
    /// The probes of the first instruction, and its address.
    first: Vec<Probe<'p>>,
    from: u64,
    cold: &'r mut Cold,
    rows: &'r mut Vec<Row>,
    /// The first instruction.
    body: Label,
    /// Where a function returns to from its own frame, or from one that others share.
    return_point: Label,
    chain_point: Label,
    /// Where another traced function returns to from this frame.
    chained: Label,
    /// No shadow is known for this stack; and where to continue if one is found.
    shadow: Label,
    shadow_back: Label,
    /// The list is full.
    full: Label,
    /// A function jumps to its own beginning.
    own: Label,
}

/// Emits the code before the moved code: the probes at its first instruction, and what its return probes need. Returns
/// the label of the first instruction.
pub(super) fn emit_returns(
    code: &mut Masm<'_>,
    (layout, runtime): (&Layout, &Runtime),
    probes: &[Probe<'_>],
    from: u64,
    (cold, rows): (&mut Cold, &mut Vec<Row>),
) -> Result<Label, DetourError> {
    let mut labels = || code.label();
    let mut returns = Returns {
        body: labels(),
        return_point: labels(),
        chain_point: labels(),
        chained: labels(),
        shadow: labels(),
        shadow_back: labels(),
        full: labels(),
        own: labels(),
        code,
        layout,
        runtime,
        first: probes.iter().filter(|p| p.offset == 0).cloned().collect(),
        from,
        cold,
        rows,
    };
    returns.enter()?;
    returns.exit()?;
    returns.chain()?;
    returns.unchain()?;
    returns.missed()?;
    Ok(returns.body)
}

impl Returns<'_, '_, '_> {
    fn all(&mut self, when: When) -> Result<(), DetourError> {
        let context = (self.layout, self.runtime);
        for probe in self.first.iter().filter(|probe| probe.when == when) {
            emit_probe(self.code, context, probe, self.from, self.cold)?;
        }
        Ok(())
    }

    fn follow(&self, state: State) -> Followed {
        Followed::begin(self.code, state)
    }

    fn followed(&mut self, followed: Followed) {
        followed.end(self.code, self.rows);
    }

    fn row(&mut self, rule: Rule) {
        row(self.rows, self.code, rule);
    }

    /// `rdx` = what must be added to a stack address to get its shadow's address.
    fn distance(&mut self) {
        let distance = self.layout.shadow_distance.wrapping_neg();
        self.code.movabs_ri(RDX, distance);
    }

    /// The probes at the entry; after these, the return address is stored in the shadow, and the rest of the function
    /// is called.
    fn enter(&mut self) -> Result<(), DetourError> {
        let before = self.follow(State::ENTRY);
        self.all(When::Hit)?;
        self.followed(before);
        self.row(Rule::Stub);
        push_scratch(self.code);
        self.code.mov_rm(RAX, S); // the return address
        for (lo, len) in self.layout.islands {
            self.code.mov_rr(RDX, RAX);
            self.code.sub_rm(RDX, gs(lo));
            self.code.cmp_rm(RDX, gs(len));
            self.code.jcc(Cond::B, self.chained);
        }
        self.code.lea(RDX, S);
        self.code.sub_rm(RDX, gs(self.layout.shadow_lo));
        self.code.cmp_rm(RDX, gs(self.layout.shadow_len));
        self.code.jcc(Cond::AE, self.shadow);
        self.code.bind(self.shadow_back);
        self.distance();
        self.code.mov_mr(S.plus(RDX), RAX);
        self.call();
        Ok(())
    }

    /// Returns to the caller, whose address is in the shadow.
    fn exit(&mut self) -> Result<(), DetourError> {
        let after = self.at_return(self.return_point)?;
        self.code.push_r(RDX);
        self.distance();
        self.code.mov_rm(RDX, mem(RSP, 8).plus(RDX));
        self.code.mov_mr(mem(RSP, 8), RDX);
        self.code.pop_r(RDX);
        self.code.ret();
        self.followed(after);
        Ok(())
    }

    /// Another traced function returns from this frame: stores the address in the thread's list.
    fn chain(&mut self) -> Result<(), DetourError> {
        self.row(Rule::Stub);
        self.code.bind(self.chained);
        // A function that jumps to its own beginning does not start again: that is a loop, or equivalent to one. If the
        // list was full, functions in between may have been missed.
        for point in [self.return_point, self.chain_point] {
            self.code.lea(RDX, label(point));
            self.code.cmp_rr(RAX, RDX);
            self.code.jcc(Cond::E, self.own);
        }
        emit_keep(self.code, self.layout, self.full);
        self.call();
        Ok(())
    }

    /// The function returns from such a frame, to the address in the list.
    fn unchain(&mut self) -> Result<(), DetourError> {
        let after = self.at_return(self.chain_point)?;
        push_scratch(self.code);
        let lost = self.code.label();
        emit_find(self.code, self.layout, lost);
        let found = self.code.label_here();
        self.code.mov_mr(S, RAX);
        pop_scratch(self.code);
        self.code.ret();
        // Another thread has begun this frame: the other functions that share it are missed.
        self.code.bind(lost);
        self.all(When::Missed)?;
        self.distance();
        self.code.mov_rm(RAX, S.plus(RDX));
        self.code.btr_ri(RAX, 63); // `--check-frames` marks it
        self.code.jmp(found);
        self.followed(after);
        Ok(())
    }

    /// There is no shadow, or no room in the list.
    fn missed(&mut self) -> Result<(), DetourError> {
        self.row(Rule::Stub);
        self.code.bind(self.shadow);
        self.code.call_to(self.runtime.shadow);
        self.code.jcc(Cond::AE, self.shadow_back);
        let missing = self.code.label();
        self.code.jmp(missing);
        self.code.bind(self.full);
        let top = gs(self.layout.chain_top);
        self.code.sub_mi8(QWORD, top, ENTRY);
        self.code.bind(missing);
        let missed = self.follow(State::pushed(24));
        self.all(When::Missed)?;
        self.followed(missed);
        self.row(Rule::Stub);
        let leave = self.code.label_here();
        pop_scratch(self.code);
        self.code.jmp(self.body);
        self.row(Rule::Stub);
        self.code.bind(self.own);
        self.code.mov_rm(RDX, top);
        self.code.sub_rm(RDX, gs(self.layout.chain_lo));
        let room = self.layout.chain_size - ENTRY_BYTES;
        self.code.cmp_ri(RDX, room);
        self.code.jcc(Cond::A, missing);
        self.code.jmp(leave);
        self.row(Rule::Unknown);
        Ok(())
    }

    /// Calls the rest of the function, in the frame of its caller.
    fn call(&mut self) {
        pop_scratch(self.code);
        self.code.lea(RSP, mem(RSP, 8));
        self.code.call(self.body);
    }

    /// The instruction to which the function returns, by which unwinders recognize it, and the code that runs there
    /// with the caller's stack pointer.
    fn at_return(&mut self, point: Label) -> Result<Followed, DetourError> {
        self.code.bind(point);
        self.code.lea(RSP, mem(RSP, -8));
        let after = self.follow(State::ENTRY);
        self.code.lea(RSP, mem(RSP, 8));
        self.all(When::Return)?;
        self.code.lea(RSP, mem(RSP, -8));
        Ok(after)
    }
}

/// Bytes of an entry of the list: S, and the address that the function returns to.
const ENTRY: i8 = 16;
/// The same, unsigned.
const ENTRY_BYTES: u32 = ENTRY as u32;

/// Stores the return address in `rax` in the thread's list. A signal handler that interrupts this leaves the list as it
/// was, because the place is reserved first, with a 0 in it. Jumps to `full` if the list is full; the place stays
/// reserved then.
fn emit_keep(code: &mut Masm<'_>, layout: &Layout, full: Label) {
    code.mov_ri(EDX, ENTRY_BYTES);
    code.xadd_mr(gs(layout.chain_top), RDX);
    code.mov_rr(RCX, RDX);
    code.sub_rm(RCX, gs(layout.chain_lo));
    code.cmp_ri(RCX, layout.chain_size - ENTRY_BYTES);
    code.jcc(Cond::A, full);
    code.lea(RCX, S);
    code.mov_mr(mem(RDX, 8), RAX);
    code.mov_mr(mem(RDX, 0), RCX);
}

/// Takes the address that was stored for this frame into `rax`, searching from the top: lower entries with the same S
/// belong to a function that jumped here, or to a frame that was left. Jumps to `lost` if there is none.
///
/// Sets the entry's S to 1. Entries at the top of the list that have 1 there are then removed one by one, and get a 0.
fn emit_find(code: &mut Masm<'_>, layout: &Layout, lost: Label) {
    code.lea(RCX, S);
    code.mov_rm(RDX, gs(layout.chain_top));
    code.mov_rr(RAX, RDX);
    code.sub_rm(RAX, gs(layout.chain_lo));
    code.cmp_ri(RAX, layout.chain_size);
    code.jcc(Cond::A, lost);
    let next = code.label_here();
    code.cmp_rm(RDX, gs(layout.chain_lo));
    code.jcc(Cond::BE, lost);
    code.sub_ri8(RDX, ENTRY);
    code.cmp_mr(mem(RDX, 0), RCX);
    code.jcc(Cond::NE, next);
    code.mov_rm(RAX, mem(RDX, 8));
    code.mov_mi(QWORD, mem(RDX, 0), 1);
    code.mov_rm(RDX, gs(layout.chain_top));
    let (off, done) = (code.label_here(), code.label());
    code.cmp_rm(RDX, gs(layout.chain_lo));
    code.jcc(Cond::BE, done);
    code.cmp_mi8(QWORD, mem(RDX, -16), 1);
    code.jcc(Cond::NE, done);
    code.mov_mi(QWORD, mem(RDX, -16), 0);
    code.sub_ri8(RDX, ENTRY);
    code.mov_mr(gs(layout.chain_top), RDX);
    code.jmp(off);
    code.bind(done);
}
