//! Return probes: the detour of the code that begins a function calls the rest of it, so that the function's own `ret`
//! comes back to the probes, and then returns to the caller. Why that is right is explained in [`crate::x86_64::stub`].
//!
//! S is the address of the function's return address. Nothing lives below it at entry and after the return; all
//! registers are kept at both, but for the flags.

use alloc::vec::Vec;

use super::{Cold, DetourError, Probe, When, emit_probe};
use crate::x86_64::masm::*;
use crate::x86_64::stub::{Layout, Runtime, pop_scratch, push_scratch};
use hodo_isa::x86_64::cfa::{Row, Rule, State, code_rows};

/// Code of which the frames are found by following what it does to the stack pointer.
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

/// From here on this tells where the frame is.
fn row(rows: &mut Vec<Row>, code: &Masm<'_>, rule: Rule) {
    rows.push(Row {
        at: code.offset(),
        rule,
    });
}

/// S, once the scratch registers are pushed.
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
    /// A function returns from its own frame, or from one that others share.
    return_point: Label,
    chain_point: Label,
    /// Another traced function returns from this frame.
    chained: Label,
    /// No shadow is known for this stack, and where to go on if one is found.
    shadow: Label,
    shadow_back: Label,
    /// The list is full.
    full: Label,
    /// A function jumps to its own beginning.
    own: Label,
}

/// Emits what comes before the moved code: the probes that stand at its first instruction, and what belongs to its
/// return probes. Gives the label of the first instruction.
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

    /// `rdx` = what is added to an address on the stack for that of its shadow.
    fn distance(&mut self) {
        let distance = self.layout.shadow_distance.wrapping_neg();
        self.code.movabs_ri(RDX, distance);
    }

    /// The probes at the entry; then the return address goes into the shadow, and the rest is called.
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

    /// The function returns to the caller, whose address is in the shadow.
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

    /// Another traced function returns from this frame; the thread's list keeps it.
    fn chain(&mut self) -> Result<(), DetourError> {
        self.row(Rule::Stub);
        self.code.bind(self.chained);
        // A function that jumps to its own beginning does not begin again: it is a loop, or as good as one. With a full
        // list, functions in between may have been missed.
        for point in [self.return_point, self.chain_point] {
            self.code.lea(RDX, label(point));
            self.code.cmp_rr(RAX, RDX);
            self.code.jcc(Cond::E, self.own);
        }
        emit_keep(self.code, self.layout, self.full);
        self.call();
        Ok(())
    }

    /// The function returns from such a frame, to where the list says.
    fn unchain(&mut self) -> Result<(), DetourError> {
        let after = self.at_return(self.chain_point)?;
        push_scratch(self.code);
        let lost = self.code.label();
        emit_find(self.code, self.layout, lost);
        let found = self.code.label_here();
        self.code.mov_mr(S, RAX);
        pop_scratch(self.code);
        self.code.ret();
        // Another thread has begun this frame: the others that share it are missed.
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

    /// The instruction to which the function returns, which unwinders know, and what is done there with the stack
    /// pointer of the caller.
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

/// Bytes of an entry of the list: S, and where the function returns to.
const ENTRY: i8 = 16;
/// The same.
const ENTRY_BYTES: u32 = ENTRY as u32;

/// Keeps the return address in `rax` in the thread's list. A signal handler that interrupts this leaves the list as it
/// finds it: first the place is taken, which holds a 0. Goes to `full` if the list is full; the place stays taken then.
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

/// Takes what was kept for this frame into `rax`, from above: what has the same S below belongs to a function that
/// jumped here, or to a frame that was left. Goes to `lost` if nothing is there.
///
/// The entry's S becomes 1; entries at the top of the list that have 1 there are taken off, one by one, and get a 0.
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
