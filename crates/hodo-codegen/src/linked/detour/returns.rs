//! Return probes: the detour of the code at a function's beginning calls the rest of the function, so the function's
//! own return leads to the probes, which then return to the caller. The description of stubs explains why this is
//! correct.
//!
//! S is the stack pointer at entry and after the return. Nothing below it is live then. In between, the real return
//! address is in the shadow of S. The link register is free when the function has returned.

use super::frame::{self, Frame};
use super::{Arithmetic, Cold, Context, DetourError, Probe, When, agent, emit_probe};
use crate::linked::asm::Assembler;
use hodo_isa::Signing;
use hodo_isa::buffer::Label;
use hodo_isa::linked::If;

/// Bytes of an entry of the thread's list: S, and the address that the function returns to.
const ENTRY: i64 = 16;

/// What stays the same while the detour of a function is written.
struct Returns<'a> {
    context: Context<'a>,
    probes: &'a [Probe<'a>],
    from: u64,
    /// The registers that the entry works with.
    frame: Frame,
    /// Whether the flags are needed at the beginning, or after the return, by callers that know that the function
    /// leaves them alone.
    keeps_flags: bool,
    /// The body; if the return address was signed, the code before it that signs it again.
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
pub(super) fn emit<A: Assembler>(
    asm: &mut A,
    context: Context<'_>,
    probes: &[Probe<'_>],
    from: u64,
    cold: &mut Cold,
) -> Result<Label, DetourError> {
    let free = probes
        .iter()
        .filter(|probe| probe.offset == 0 && probe.when != When::Return)
        .fold(u32::MAX, |free, probe| free & probe.free);
    let flags_dead = |probe: &Probe<'_>| probe.offset != 0 || probe.flags_dead;
    let keeps_flags = !probes.iter().all(flags_dead);
    let frame =
        Frame::new::<A>(frame::COMPUTES, free, 1 << A::LINK, 0).with_flags::<A>(keeps_flags);
    let body = asm.label();
    let returns = Returns {
        context,
        probes,
        from,
        frame,
        keeps_flags,
        body: match context.signing {
            Signing::None => body,
            Signing::A | Signing::B => asm.label(),
        },
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
    if context.signing != Signing::None {
        asm.bind(returns.body);
        asm.sign(context.signing);
        asm.jump(body);
    }
    Ok(body)
}

impl Returns<'_> {
    /// Emits the probes that act at this moment.
    fn all<A: Assembler>(
        &self,
        asm: &mut A,
        when: When,
        cold: &mut Cold,
    ) -> Result<(), DetourError> {
        let here = |probe: &&Probe<'_>| probe.when == when && probe.offset == 0;
        for probe in self.probes.iter().filter(here) {
            let probe = Probe {
                free: match when {
                    // Unwinders find the return address where the rows say.
                    When::Hit => probe.free & !(1 << A::LINK),
                    // It holds the address of our code.
                    When::Return => 1 << A::LINK,
                    When::Missed => 0,
                },
                ..probe.clone()
            };
            let context = Context {
                signing: match when {
                    When::Hit => self.context.signing,
                    When::Return | When::Missed => Signing::None,
                },
                ..self.context
            };
            emit_probe(asm, context, &probe, self.from, cold)?;
        }
        Ok(())
    }

    /// Stores the return address in the shadow, and calls the body. The function may have signed the address before.
    fn enter<A: Assembler>(&self, asm: &mut A, cold: &mut Cold) {
        let (layout, frame) = (self.context.layout, &self.frame);
        let regs = frame.regs;
        let (x, v, t) = (regs.x, regs.v, regs.t);
        asm.authenticate(self.context.signing);
        frame.begin(asm, &mut cold.rows);
        asm.block(regs.block, layout);
        let load = asm.if_return_point(layout, (x, t), self.marked);
        asm.bind(self.unmarked);
        // An address that cannot be read is not in our code.
        cold.leave.push((load, self.unmarked));
        asm.add(v, A::STACK, frame.depth());
        asm.load(8, x, regs.block, layout.shadow_lo.into());
        asm.load(8, t, regs.block, layout.shadow_len.into());
        asm.op(Arithmetic::Subtract, x, v, x);
        asm.branch(If::NotBelow, x, t, self.shadow);
        asm.bind(self.shadow_back);
        asm.load(8, t, regs.block, layout.to_shadow.into());
        asm.add_stack(t, t);
        asm.store(8, A::LINK, t, frame.depth(), x);
        cold.rows.turn(asm, Some(true), frame.depth());
        frame.end(asm, &mut cold.rows);
        asm.call(self.body);
    }

    /// The function returns.
    fn come_back<A: Assembler>(&self, asm: &mut A, cold: &mut Cold) -> Result<(), DetourError> {
        cold.rows.turn(asm, Some(true), 0);
        // Functions that jump here recognize our code by this instruction.
        asm.return_point(self.context.layout);
        self.all(asm, When::Return, cold)
    }

    /// Returns to the caller.
    fn leave<A: Assembler>(&self, asm: &mut A) {
        let layout = self.context.layout;
        asm.block(A::LINK, layout);
        asm.load(8, A::LINK, A::LINK, layout.to_shadow.into());
        asm.add_stack(A::LINK, A::LINK);
        asm.load(8, A::LINK, A::LINK, 0);
        asm.ret();
    }

    /// Another traced function returns from this frame: stores the address in the thread's list. A signal handler that
    /// interrupts this leaves the list as it was, because the place is reserved first, with a 0 in it.
    fn chain<A: Assembler>(&self, asm: &mut A, cold: &mut Cold) -> Result<(), DetourError> {
        let (layout, frame) = (self.context.layout, &self.frame);
        let regs = frame.regs;
        let (x, v, t) = (regs.x, regs.v, regs.t);
        let (chained, own) = (asm.label(), asm.label());
        let full = asm.label();
        asm.bind(self.marked);
        cold.rows.turn(asm, Some(false), frame.depth());
        for (lo, len) in layout.islands {
            asm.load(8, x, regs.block, lo.into());
            asm.load(8, t, regs.block, len.into());
            asm.op(Arithmetic::Subtract, x, A::LINK, x);
            asm.branch(If::Below, x, t, chained);
        }
        asm.jump(self.unmarked);
        asm.bind(chained);
        // A function that jumps to its own beginning does not start again: that is a loop, or equivalent to one. If the
        // list was full, functions in between may have been missed.
        for point in [self.return_point, self.chain_point] {
            asm.address(x, point);
            asm.branch(If::Equal, x, A::LINK, own);
        }
        self.top(asm);
        asm.fetch_add(layout, ENTRY, (v, t), x);
        self.room(asm, v, full);
        asm.store(8, A::LINK, v, 8, A::ZERO);
        asm.add(x, A::STACK, frame.depth());
        asm.store(8, x, v, 0, A::ZERO);
        frame.end(asm, &mut cold.rows);
        let after = asm.label();
        asm.jump(after);

        asm.bind(own);
        cold.rows.turn(asm, Some(false), frame.depth());
        let missing = asm.label();
        asm.load(8, v, regs.block, layout.chain_top.into());
        self.room(asm, v, missing);
        let pass = asm.here();
        frame.end(asm, &mut cold.rows);
        asm.jump(self.body);
        asm.bind(full);
        cold.rows.turn(asm, Some(false), frame.depth());
        self.top(asm);
        asm.add_at(layout, -ENTRY, (v, t), x);
        asm.bind(missing);
        self.all(asm, When::Missed, cold)?;
        asm.jump(pass);

        asm.bind(after);
        cold.rows.turn(asm, Some(true), 0);
        asm.call(self.body);
        Ok(())
    }

    /// `x` = the address of the word with the list's top.
    fn top<A: Assembler>(&self, asm: &mut A) {
        let regs = self.frame.regs;
        asm.add(regs.x, regs.block, self.context.layout.chain_top.into());
    }

    /// Jumps to `full` if there is no room for an entry at the address in a register. Clobbers `x` and `t`.
    fn room<A: Assembler>(&self, asm: &mut A, at: u8, full: Label) {
        let regs = self.frame.regs;
        asm.load(8, regs.t, regs.block, self.context.layout.chain_lo.into());
        asm.op(Arithmetic::Subtract, regs.t, at, regs.t);
        asm.li(
            regs.x,
            u64::from(self.context.layout.chain_size) - ENTRY.cast_unsigned(),
        );
        asm.branch(If::Below, regs.x, regs.t, full);
    }

    /// Takes the address that was stored for this frame, searching from the top, and returns there: lower entries with
    /// the same S belong to a function that jumped here, or to a frame that was left.
    ///
    /// Sets the entry's S to 1. Entries at the top of the list that have 1 there are then removed one by one, and get a
    /// 0.
    fn unchain<A: Assembler>(&self, asm: &mut A, cold: &mut Cold) -> Result<(), DetourError> {
        let layout = self.context.layout;
        // The link register will receive the address.
        let frame =
            Frame::new::<A>(frame::RECORDS, 0, 1 << A::LINK, 0).with_flags::<A>(self.keeps_flags);
        let regs = frame.regs;
        let (x, v, t, p) = (regs.x, regs.v, regs.t, regs.p);
        let (lost, off, done) = (asm.label(), asm.label(), asm.label());
        frame.begin(asm, &mut cold.rows);
        asm.block(regs.block, layout);
        asm.add(x, A::STACK, frame.depth());
        asm.load(8, v, regs.block, layout.chain_top.into());
        asm.load(8, p, regs.block, layout.chain_lo.into());
        asm.op(Arithmetic::Subtract, t, v, p);
        asm.li(A::LINK, layout.chain_size.into());
        asm.branch(If::Below, A::LINK, t, lost);
        let next = asm.here();
        asm.branch(If::NotBelow, p, v, lost);
        asm.add(v, v, -ENTRY);
        asm.load(8, t, v, 0);
        asm.branch(If::NotEqual, t, x, next);
        asm.load(8, A::LINK, v, 8);
        asm.li(t, 1);
        asm.store(8, t, v, 0, A::ZERO);
        asm.load(8, v, regs.block, layout.chain_top.into());
        asm.bind(off);
        asm.branch(If::NotBelow, p, v, done);
        asm.load(8, t, v, -ENTRY);
        asm.add(t, t, -1);
        asm.branch(If::NotEqual, t, A::ZERO, done);
        asm.store(8, A::ZERO, v, -ENTRY, A::ZERO);
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
        asm.load(8, t, regs.block, layout.to_shadow.into());
        asm.op(Arithmetic::Add, t, t, x);
        asm.load(8, A::LINK, t, 0);
        // `--check-frames` marks it in its top bit.
        asm.op_number((Arithmetic::ShiftLeft, false), A::LINK, A::LINK, 1);
        asm.op_number((Arithmetic::ShiftRight, false), A::LINK, A::LINK, 1);
        asm.jump(done);
        Ok(())
    }

    /// Handles a stack whose shadow may not be mapped.
    fn find_shadow<A: Assembler>(&self, asm: &mut A, cold: &mut Cold) -> Result<(), DetourError> {
        let frame = &self.frame;
        asm.bind(self.shadow);
        cold.rows.turn(asm, Some(false), frame.depth());
        let missing = asm.label();
        let told = (&frame.regs, frame.depth());
        agent::shadow(
            asm,
            self.context.runtime.shadow,
            told,
            missing,
            &mut cold.rows,
        );
        asm.jump(self.shadow_back);
        asm.bind(missing);
        self.all(asm, When::Missed, cold)?;
        frame.end(asm, &mut cold.rows);
        asm.jump(self.body);
        Ok(())
    }
}
