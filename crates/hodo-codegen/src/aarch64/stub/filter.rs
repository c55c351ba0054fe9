//! Filters during recording: outside filter functions, too deep, switched off.

use super::{Hot, LESS, Scope, Stub};
use hodo_isa::aarch64::asm::operand::{DOUBLE, indexed, mem};
use hodo_isa::aarch64::asm::ops::Insns as _;
use hodo_isa::aarch64::regs::ZERO;

impl Stub<'_, '_> {
    /// The entry half's tests. Calls that do not pass go straight to the body.
    pub(super) fn filters(&mut self, hot: Hot) {
        let Hot { block, a, b, .. } = hot;
        if self.records.scope == Scope::Inside {
            let past = self.past();
            self.load(a, block, self.layout.inside);
            self.code.cbz(a, past);
        }
        // While recording is switched off, the frame gets no shadow, so it has no exit. Frames that are already open
        // return as always, with an exit.
        if let Some(switch) = self.records.switch {
            let past = self.past();
            self.load(a, block, self.layout.base);
            self.code.li(b, switch.into());
            self.code.ldrb(a, indexed(a, b));
            self.code.cbz_w(a, past);
        }
        if let Some(depth) = self.records.depth {
            self.filter_depth(hot, depth);
        }
    }

    /// First forgets frames that the stack has left; if the exit is recorded, adds this one.
    fn filter_depth(&mut self, hot: Hot, depth: u32) {
        let Hot {
            block,
            a,
            b,
            time: other,
            ..
        } = hot;
        self.stack(b);
        let exit = self.records.exit.is_some();
        if self.records.scope == Scope::Filter {
            // The depth counts from here. The base is the block's register itself, not an address computed from it: the
            // first access through it may fault, and is then repeated with the right block.
            if exit {
                self.store(b, block, self.layout.frames);
                self.code.li(a, 8);
                self.store(a, block, self.layout.depth);
            }
            return;
        }
        self.forget_frames(hot, other);
        let past = self.past();
        self.code.li(other, (depth * 8).into());
        self.code.sub(other, a, other);
        self.code.tbz(other, LESS, past);
        if exit {
            self.code.add(other, block, a);
            self.code.str(b, mem(other, self.layout.frames.into()));
            self.code.addi(a, a, 8);
            self.store(a, block, self.layout.depth);
        }
    }

    /// `a` = bytes of the counting frames above the stack address in `b`.
    fn forget_frames(&mut self, hot: Hot, other: u8) {
        let Hot { block, a, b, .. } = hot;
        self.load(a, block, self.layout.depth);
        let (again, done) = (self.code.label_here(), self.code.label());
        self.code.cbz(a, done);
        self.code.add(other, block, a);
        self.code
            .ldr(other, mem(other, i64::from(self.layout.frames) - 8));
        self.code.sub(other, b, other);
        self.code.tbnz(other, LESS, done);
        self.code.addi(a, a, -8);
        self.code.b(again);
        self.code.bind(done);
    }

    /// Changes the number of open frames of filter functions by one. Atomic, since a signal handler may interrupt it.
    pub(super) fn count_inside(&mut self, hot: Hot, change: i64) {
        let Hot {
            block, a, b, spare, ..
        } = hot;
        self.code.addi(b, block, self.layout.inside.into());
        if self.layout.atomics {
            self.code.li(a, change.cast_unsigned());
            self.code.ldadd(DOUBLE, a, ZERO, b);
        } else {
            let again = self.code.label_here();
            self.code.ldxr(DOUBLE, a, b);
            self.code.addi(a, a, change);
            self.code.stxr(DOUBLE, spare, a, b);
            self.code.cbnz_w(spare, again);
        }
    }

    /// The function returns: its frame no longer counts.
    pub(super) fn leave_frames(&mut self, hot: Hot) {
        let Hot {
            block, a, b, spare, ..
        } = hot;
        if self.records.scope == Scope::Filter {
            // The count may be too low if a stack has moved from one thread to another; 0 stays 0.
            let none = self.code.label();
            self.load(a, block, self.layout.inside);
            self.code.cbz(a, none);
            self.count_inside(hot, -1);
            self.code.bind(none);
        }
        if self.records.depth.is_some() {
            self.stack(b);
            self.forget_frames(hot, spare);
            self.store(a, block, self.layout.depth);
        }
    }
}
