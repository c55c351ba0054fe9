//! Filters during recording: outside filter functions, too deep, switched off.

use super::{Hot, Scope, Stub};
use hodo_isa::riscv64::asm::If;
use hodo_isa::riscv64::asm::ops::Insns as _;
use hodo_isa::riscv64::regs::ZERO;

impl Stub<'_, '_> {
    /// The entry half's tests. Calls that do not pass go straight to the body.
    pub(super) fn filters(&mut self, hot: Hot) {
        let Hot { block, a, b, .. } = hot;
        if self.records.scope == Scope::Inside {
            self.code.ld(a, self.layout.inside.into(), block);
            self.branch_past(If::Equal, a, ZERO);
        }
        // While recording is switched off, the frame gets no shadow, so it has no exit. Frames that are already open
        // return as always, with an exit.
        if let Some(switch) = self.records.switch {
            let low = switch.cast_signed() << 20 >> 20;
            let high = switch.cast_signed().wrapping_sub(low);
            self.code.ld(a, self.layout.base.into(), block);
            if high != 0 {
                self.code.li(b, high);
                self.code.add(a, a, b);
            }
            self.code.lbu(a, low.into(), a);
            self.branch_past(If::Equal, a, ZERO);
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
        let stack = self.stack(b);
        let exit = self.records.exit.is_some();
        if self.records.scope == Scope::Filter {
            // The depth counts from here. The base is the block's register itself, not an address computed from it: the
            // first access through it may fault, and is then repeated with the right block.
            if exit {
                self.code.sd(stack, self.layout.frames.into(), block);
                self.code.li(a, 8);
                self.code.sd(a, self.layout.depth.into(), block);
            }
            return;
        }
        self.forget_frames(hot, stack, other);
        self.code.li(other, (depth * 8).cast_signed());
        self.branch_past(If::NotBelow, a, other);
        if exit {
            self.code.add(other, block, a);
            self.code.sd(stack, self.layout.frames.into(), other);
            self.code.addi(a, a, 8);
            self.code.sd(a, self.layout.depth.into(), block);
        }
    }

    /// `a` = bytes of the counting frames above the stack address in a register.
    fn forget_frames(&mut self, hot: Hot, stack: u8, other: u8) {
        let Hot { block, a, .. } = hot;
        self.code.ld(a, self.layout.depth.into(), block);
        let (again, done) = (self.code.label_here(), self.code.label());
        self.code.branch(If::Equal, a, ZERO, done);
        self.code.add(other, block, a);
        self.code
            .ld(other, i64::from(self.layout.frames) - 8, other);
        self.code.branch(If::Below, stack, other, done);
        self.code.addi(a, a, -8);
        self.code.branch(If::Equal, ZERO, ZERO, again);
        self.code.bind(done);
    }

    /// Changes the number of open frames of filter functions by one. Atomic, since a signal handler may interrupt it.
    pub(super) fn count_inside(&mut self, hot: Hot, change: i32) {
        let Hot { block, a, b, .. } = hot;
        self.code.addi(b, block, self.layout.inside.into());
        self.code.li(a, change);
        self.code.amoadd_d(ZERO, a, b);
    }

    /// The function returns: its frame no longer counts.
    pub(super) fn leave_frames(&mut self, hot: Hot) {
        let Hot {
            block, a, b, spare, ..
        } = hot;
        if self.records.scope == Scope::Filter {
            // The count may be too low if a stack has moved from one thread to another; 0 stays 0.
            self.code.ld(a, self.layout.inside.into(), block);
            let none = self.code.label();
            self.code.branch(If::Equal, a, ZERO, none);
            self.count_inside(hot, -1);
            self.code.bind(none);
        }
        if self.records.depth.is_some() {
            let stack = self.stack(b);
            self.forget_frames(hot, stack, spare);
            self.code.sd(a, self.layout.depth.into(), block);
        }
    }
}
