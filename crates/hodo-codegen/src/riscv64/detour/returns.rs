//! Return probes: the detour of the code at a function's beginning calls the rest of the function, so the function's
//! own return leads to the probes, which then return to the caller. [`stub`](crate::riscv64::stub) explains why this is
//! correct.
//!
//! S is the stack pointer at entry and after the return. Nothing below it is live then. In between, the real return
//! address is in the shadow of S. The link register is free when the function has returned.

use super::super::stub::return_point;
use super::frame::{self, Frame};
use super::{Cold, DetourError, Layout, Probe, Runtime, When, agent, emit_probe};
use crate::riscv64::masm::{Asm, If, Insns as _, Label, Op};
use hodo_isa::riscv64::regs::{RA, SP, TP, ZERO};

/// Bytes of an entry of the thread's list: S, and the address that the function returns to.
const ENTRY: i64 = 16;

/// What stays the same while the detour of a function is written.
struct Returns<'a> {
    layout: &'a Layout,
    runtime: &'a Runtime,
    probes: &'a [Probe<'a>],
    from: u64,
    /// The registers that the entry works with.
    frame: Frame,
    body: Label,
    return_point: Label,
    chain_point: Label,
    /// Another function that returns to our code may have jumped here.
    marked: Label,
    unmarked: Label,
    shadow: Label,
    shadow_back: Label,
}

/// Emits the code before the moved code: the probes at its first instruction, and what its return probes need. Returns
/// the label for the first moved instruction, which the caller binds.
pub(super) fn emit(
    asm: &mut Asm,
    (layout, runtime): (&Layout, &Runtime),
    probes: &[Probe<'_>],
    from: u64,
    cold: &mut Cold,
) -> Result<Label, DetourError> {
    let free = probes
        .iter()
        .filter(|probe| probe.offset == 0 && probe.when != When::Return)
        .fold(u32::MAX, |free, probe| free & probe.free);
    let returns = Returns {
        layout,
        runtime,
        probes,
        from,
        frame: Frame::new(frame::COMPUTES, free, 1 << RA, 0),
        body: asm.label(),
        return_point: asm.label(),
        chain_point: asm.label(),
        marked: asm.label(),
        unmarked: asm.label(),
        shadow: asm.label(),
        shadow_back: asm.label(),
    };
    cold.rows.turn(asm, Some(false), 0);
    returns.all(asm, When::Hit, cold)?;
    returns.enter(asm, cold);
    asm.bind(returns.return_point);
    returns.come_back(asm, cold)?;
    returns.leave(asm);
    returns.chain(asm, cold)?;
    asm.bind(returns.chain_point);
    returns.come_back(asm, cold)?;
    returns.unchain(asm, cold)?;
    returns.find_shadow(asm, cold)?;
    cold.rows.turn(asm, None, 0);
    Ok(returns.body)
}

impl Returns<'_> {
    /// Emits the probes that act at this moment.
    fn all(&self, asm: &mut Asm, when: When, cold: &mut Cold) -> Result<(), DetourError> {
        let here = |probe: &&Probe<'_>| probe.when == when && probe.offset == 0;
        for probe in self.probes.iter().filter(here) {
            let probe = Probe {
                free: match when {
                    // Unwinders find the return address where the rows say.
                    When::Hit => probe.free & !(1 << RA),
                    // It holds the address of our code.
                    When::Return => 1 << RA,
                    When::Missed => 0,
                },
                ..probe.clone()
            };
            emit_probe(asm, (self.layout, self.runtime), &probe, self.from, cold)?;
        }
        Ok(())
    }

    /// Stores the return address in the shadow, and calls the body.
    fn enter(&self, asm: &mut Asm, cold: &mut Cold) {
        let (layout, frame) = (self.layout, &self.frame);
        let regs = frame.regs;
        let (x, v, t) = (regs.x, regs.v, regs.t);
        frame.begin(asm, &mut cold.rows);
        asm.ld(regs.block, layout.block.into(), TP);
        let load = asm.load_signed_half(x, RA, 2);
        let mark = return_point(layout, ZERO).cast_signed() >> 16;
        asm.li(t, i64::from(mark).cast_unsigned());
        asm.branch(If::Equal, x, t, self.marked);
        asm.bind(self.unmarked);
        // An address that cannot be read is not in our code.
        cold.leave.push((load, self.unmarked));
        asm.add(v, SP, frame.depth());
        asm.ld(x, layout.shadow_lo.into(), regs.block);
        asm.ld(t, layout.shadow_len.into(), regs.block);
        asm.op(Op::SUB, x, v, x);
        asm.branch(If::NotBelow, x, t, self.shadow);
        asm.bind(self.shadow_back);
        asm.ld(t, layout.to_shadow.into(), regs.block);
        asm.op(Op::ADD, t, t, SP);
        asm.store(8, RA, t, frame.depth(), x);
        cold.rows.turn(asm, Some(true), frame.depth());
        frame.end(asm, &mut cold.rows);
        asm.call(RA, self.body);
    }

    /// The function returns.
    fn come_back(&self, asm: &mut Asm, cold: &mut Cold) -> Result<(), DetourError> {
        cold.rows.turn(asm, Some(true), 0);
        // Functions that jump here recognize our code by this instruction.
        asm.raw(&return_point(self.layout, RA).to_le_bytes());
        self.all(asm, When::Return, cold)
    }

    /// Returns to the caller.
    fn leave(&self, asm: &mut Asm) {
        asm.ld(RA, self.layout.block.into(), TP);
        asm.ld(RA, self.layout.to_shadow.into(), RA);
        asm.op(Op::ADD, RA, RA, SP);
        asm.ld(RA, 0, RA);
        asm.ret();
    }

    /// Another traced function returns from this frame: stores the address in the thread's list. A signal handler that
    /// interrupts this leaves the list as it was, because the place is reserved first, with a 0 in it.
    fn chain(&self, asm: &mut Asm, cold: &mut Cold) -> Result<(), DetourError> {
        let (layout, frame) = (self.layout, &self.frame);
        let regs = frame.regs;
        let (x, v, t) = (regs.x, regs.v, regs.t);
        let (chained, own) = (asm.label(), asm.label());
        let full = asm.label();
        asm.bind(self.marked);
        cold.rows.turn(asm, Some(false), frame.depth());
        for (lo, len) in layout.islands {
            asm.ld(x, lo.into(), regs.block);
            asm.ld(t, len.into(), regs.block);
            asm.op(Op::SUB, x, RA, x);
            asm.branch(If::Below, x, t, chained);
        }
        asm.jump(self.unmarked);
        asm.bind(chained);
        // A function that jumps to its own beginning does not start again: that is a loop, or equivalent to one. If the
        // list was full, functions in between may have been missed.
        for point in [self.return_point, self.chain_point] {
            asm.address(x, point);
            asm.branch(If::Equal, x, RA, own);
        }
        self.top(asm);
        asm.li(v, ENTRY.cast_unsigned());
        asm.amoadd_d(v, v, x);
        self.room(asm, v, full);
        asm.store(8, RA, v, 8, ZERO);
        asm.add(x, SP, frame.depth());
        asm.store(8, x, v, 0, ZERO);
        frame.end(asm, &mut cold.rows);
        let after = asm.label();
        asm.jump(after);

        asm.bind(own);
        cold.rows.turn(asm, Some(false), frame.depth());
        let missing = asm.label();
        asm.ld(v, layout.chain_top.into(), regs.block);
        self.room(asm, v, missing);
        let pass = asm.here();
        frame.end(asm, &mut cold.rows);
        asm.jump(self.body);
        asm.bind(full);
        cold.rows.turn(asm, Some(false), frame.depth());
        self.top(asm);
        asm.li(v, (-ENTRY).cast_unsigned());
        asm.amoadd_d(ZERO, v, x);
        asm.bind(missing);
        self.all(asm, When::Missed, cold)?;
        asm.jump(pass);

        asm.bind(after);
        cold.rows.turn(asm, Some(true), 0);
        asm.call(RA, self.body);
        Ok(())
    }

    /// `x` = the address of the word with the list's top.
    fn top(&self, asm: &mut Asm) {
        let regs = self.frame.regs;
        asm.add(regs.x, regs.block, self.layout.chain_top.into());
    }

    /// Jumps to `full` if there is no room for an entry at the address in a register. Clobbers `x` and `t`.
    fn room(&self, asm: &mut Asm, at: u8, full: Label) {
        let regs = self.frame.regs;
        asm.ld(regs.t, self.layout.chain_lo.into(), regs.block);
        asm.op(Op::SUB, regs.t, at, regs.t);
        asm.li(
            regs.x,
            u64::from(self.layout.chain_size) - ENTRY.cast_unsigned(),
        );
        asm.branch(If::Below, regs.x, regs.t, full);
    }

    /// Takes the address that was stored for this frame, searching from the top, and returns there: lower entries with
    /// the same S belong to a function that jumped here, or to a frame that was left.
    ///
    /// Sets the entry's S to 1. Entries at the top of the list that have 1 there are then removed one by one, and get a
    /// 0.
    fn unchain(&self, asm: &mut Asm, cold: &mut Cold) -> Result<(), DetourError> {
        let layout = self.layout;
        // The link register will receive the address.
        let frame = Frame::new(frame::RECORDS, 0, 1 << RA, 0);
        let regs = frame.regs;
        let (x, v, t, p) = (regs.x, regs.v, regs.t, regs.p);
        let (lost, off, done) = (asm.label(), asm.label(), asm.label());
        frame.begin(asm, &mut cold.rows);
        asm.ld(regs.block, layout.block.into(), TP);
        asm.add(x, SP, frame.depth());
        asm.ld(v, layout.chain_top.into(), regs.block);
        asm.ld(p, layout.chain_lo.into(), regs.block);
        asm.op(Op::SUB, t, v, p);
        asm.li(RA, layout.chain_size.into());
        asm.branch(If::Below, RA, t, lost);
        let next = asm.here();
        asm.branch(If::NotBelow, p, v, lost);
        asm.add(v, v, -ENTRY);
        asm.ld(t, 0, v);
        asm.branch(If::NotEqual, t, x, next);
        asm.ld(RA, 8, v);
        asm.li(t, 1);
        asm.store(8, t, v, 0, ZERO);
        asm.ld(v, layout.chain_top.into(), regs.block);
        asm.bind(off);
        asm.branch(If::NotBelow, p, v, done);
        asm.ld(t, -ENTRY, v);
        asm.add(t, t, -1);
        asm.branch(If::NotEqual, t, ZERO, done);
        asm.store(8, ZERO, v, -ENTRY, ZERO);
        asm.add(v, v, -ENTRY);
        asm.store(8, v, regs.block, layout.chain_top.into(), x);
        asm.jump(off);
        asm.bind(done);
        let bytes = cold.rows.bytes;
        frame.end(asm, &mut cold.rows);
        asm.ret();
        // Another thread has begun this frame: the other functions that share it are missed.
        asm.bind(lost);
        cold.rows.turn(asm, Some(true), bytes);
        self.all(asm, When::Missed, cold)?;
        asm.ld(t, layout.to_shadow.into(), regs.block);
        asm.op(Op::ADD, t, t, x);
        asm.ld(RA, 0, t);
        // `--check-frames` marks it in its top bit.
        asm.op_imm(Op::SLL, RA, RA, 1);
        asm.op_imm(Op::SRL, RA, RA, 1);
        asm.jump(done);
        Ok(())
    }

    /// Handles a stack whose shadow may not be mapped.
    fn find_shadow(&self, asm: &mut Asm, cold: &mut Cold) -> Result<(), DetourError> {
        let frame = &self.frame;
        asm.bind(self.shadow);
        cold.rows.turn(asm, Some(false), frame.depth());
        let missing = asm.label();
        let told = (&frame.regs, frame.depth());
        agent::shadow(asm, self.runtime.shadow, told, missing, &mut cold.rows);
        asm.jump(self.shadow_back);
        asm.bind(missing);
        self.all(asm, When::Missed, cold)?;
        frame.end(asm, &mut cold.rows);
        asm.jump(self.body);
        Ok(())
    }
}
