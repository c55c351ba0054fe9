//! The ladder of tactics by which one site is changed. Each tactic overwrites whole instructions into which nothing
//! branches, or leaves all bytes but the first as they are.

use std::borrow::Cow;
use std::ops::Range;

use hodo_isa::code::{Flow, InstructionSet};
use hodo_isa::{Signing, Via};

use crate::ladder::Free;
use crate::model::{Extra, SitePlan, Spare, Tactic};
use crate::refusal::Refusal;
use crate::subject::{BLOCK_LIMIT, Planner, Subject};
use crate::sweep::Near;

/// What may be overwritten, and what that displaces.
pub(crate) struct Room {
    pub end: u64,
    /// Whether more is displaced than the patch needs.
    pub block: bool,
    /// The registers for the displaced instructions.
    pub spare: Spare,
}

impl<'a> Planner<'a> {
    /// Where a patch may begin: after the landing instruction, if there is one, or at the very start, unless calls need
    /// that instruction.
    pub(crate) fn places(&self, subject: &Subject<'_>) -> impl Iterator<Item = u64> + use<> {
        let code = subject.text.slice(subject.start, subject.end);
        let landing = self.isa().landing(code);
        let after = (landing != 0).then_some(subject.start + landing);
        let start = (!self.isa().must_land(code)).then_some(subject.start);
        after.into_iter().chain(start)
    }

    pub(crate) fn isa(&self) -> &'static dyn InstructionSet {
        self.image.isa
    }

    /// Branches from within the same piece to places near its start.
    fn near(&self, piece: usize) -> &'a [Near] {
        let from = self.swept.near.partition_point(|near| near.piece < piece);
        let to = self.swept.near.partition_point(|near| near.piece <= piece);
        &self.swept.near[from..to]
    }

    /// The long jump.
    pub(crate) fn jump(&self, subject: &Subject<'_>) -> Result<SitePlan, Refusal> {
        let mut reason = None;
        for patch in self.places(subject) {
            let via = subject.via(patch);
            let len = self.isa().jump(via).len;
            match self.room(subject, patch, len) {
                Ok(room) => {
                    let tactic = match room.block {
                        true => Tactic::Block,
                        false => Tactic::Jump,
                    };
                    let long = (len, via);
                    return Ok(site(subject, tactic, patch, long, room, Extra::None));
                }
                Err(error) => reason = reason.or(Some(error)),
            }
        }
        Err(reason.unwrap_or(Refusal::Empty))
    }

    /// Returns what a patch of `len` bytes at `patch` displaces.
    pub(crate) fn room(
        &self,
        subject: &Subject<'_>,
        patch: u64,
        len: u64,
    ) -> Result<Room, Refusal> {
        let patch_end = patch + len;
        if patch_end > self.pieces[subject.piece].limit {
            return Err(Refusal::TooShort);
        }
        if self.statics.any(patch..patch_end) {
            return Err(Refusal::StaticBranch);
        }
        let end = self.window(subject, patch, patch_end)?;
        if self.foreign(patch + 1..patch_end) {
            return Err(Refusal::FromElsewhere);
        }
        let near = self.near(subject.piece);
        let into = near
            .iter()
            .any(|near| near.target > patch && near.target < patch_end);
        // A branch to the very start runs the stub again, which takes it for a tail call of the function itself. That
        // is right if there is a frame to leave first; otherwise it is more likely a loop.
        let again = near.iter().any(|near| near.target <= patch) && !subject.makes_frame;
        if into || again {
            let block = self
                .block(subject, patch, end.max(patch_end))
                .and_then(|end| self.resume(subject, patch..patch_end, end));
            if let Ok((end, spare)) = block {
                return Ok(Room {
                    end,
                    block: true,
                    spare,
                });
            }
            if into {
                return Err(Refusal::Loop);
            }
            if subject.red_zone {
                return Err(Refusal::RedZone);
            }
        }
        let (end, spare) = self.resume(subject, patch..patch_end, end)?;
        Ok(Room {
            end,
            block: false,
            spare,
        })
    }

    /// Returns whether a byte of the range is reached from elsewhere, or belongs to another patch.
    pub(crate) fn foreign(&self, range: Range<u64>) -> bool {
        self.targets.foreign.any(range.clone()) || self.occupied.any(range)
    }

    /// Returns whether code of the same piece leads to bytes before the end of a patch.
    pub(crate) fn is_led_back(&self, subject: &Subject<'_>, patch_end: u64) -> bool {
        let near = self.near(subject.piece);
        near.iter().any(|near| near.target < patch_end)
    }

    /// Returns the end of the instructions that a patch up to `patch_end` displaces.
    pub(crate) fn window(
        &self,
        subject: &Subject<'_>,
        patch: u64,
        patch_end: u64,
    ) -> Result<u64, Refusal> {
        let mut end = patch;
        for insn in self
            .isa()
            .sweep(subject.text.slice(patch, subject.end), patch)
        {
            if insn.flow == Flow::Invalid {
                return Err(Refusal::Invalid);
            }
            end = insn.end();
            if end >= patch_end {
                return Ok(end);
            }
            if insn.flow.is_end() {
                break;
            }
            if matches!(insn.flow, Flow::Call(_) | Flow::IndirectCall)
                && !self.sites.is_dropped(insn.addr)
            {
                return Err(Refusal::Call);
            }
        }
        if end == patch {
            return Err(Refusal::Empty);
        }
        // Its code ends here; what follows must be unused.
        let at = self.swept.pads.partition_point(|pad| pad.start <= end);
        let pad = at.checked_sub(1).map(|at| &self.swept.pads[at]);
        match pad {
            Some(pad) if pad.end >= patch_end => Ok(end),
            _ => Err(Refusal::TooShort),
        }
    }

    /// Returns the end of what must be displaced from `patch` on, at least up to `end`, so that only its own branches
    /// lead into it, and none from outside leads back to the start.
    fn block(&self, subject: &Subject<'_>, patch: u64, mut end: u64) -> Result<u64, Refusal> {
        let limit = subject.end.min(patch + BLOCK_LIMIT);
        let mut branches = Vec::new();
        let mut starts = Vec::new();
        let code = self
            .isa()
            .sweep(subject.text.slice(patch, subject.end), patch);
        for insn in self.statics.seen(patch, code) {
            if insn.end() <= limit {
                starts.push(insn.end());
            }
            if let Flow::Branch(to) | Flow::Jump(to) = insn.flow
                && to < limit
                && to >= subject.start
            {
                branches.push((insn.end(), to));
            }
        }
        loop {
            // Whole instructions, or all of them and the padding that follows.
            end = starts
                .iter()
                .copied()
                .find(|&start| start >= end)
                .unwrap_or(end);
            let outside = branches
                .iter()
                .filter(|(source, to)| *source > end && *to < end)
                .map(|(source, _)| *source)
                .max();
            match outside {
                None => break,
                Some(source) if source > limit => return Err(Refusal::Loop),
                Some(source) => end = source,
            }
        }
        if self.foreign(patch + 1..end) {
            return Err(Refusal::FromElsewhere);
        }
        Ok(end.min(subject.end))
    }

    /// Returns whether the instructions can run elsewhere. Those that become nops need not.
    pub(crate) fn movable(&self, subject: &Subject<'_>, range: Range<u64>) -> Result<(), Refusal> {
        if self.statics.any(range.clone()) {
            return Err(Refusal::StaticBranch);
        }
        let code = subject.text.slice(range.start, range.end);
        let mut code = Cow::Borrowed(code);
        for (addr, nop) in self.sites.nops_in(range.clone()) {
            let at = (addr - range.start) as usize;
            let len = nop.len().min(code.len() - at);
            code.to_mut()[at..at + len].copy_from_slice(&nop[..len]);
        }
        let dead = |addr: u64| subject.dead(addr);
        self.isa()
            .movable(&code, range.start, &dead)
            .map_err(Refusal::Immovable)
    }

    /// Padding that does not belong to a patch yet.
    pub(crate) fn free_pads(&self) -> Free {
        let mut free = Free::default();
        for pad in &self.swept.pads {
            // From the first target of a branch on, it is executed.
            let end = pad
                .clone()
                .find(|&addr| self.targets.any.get(addr))
                .unwrap_or(pad.end);
            let mut start = pad.start;
            for addr in pad.start..end {
                if self.occupied.get(addr) {
                    free.add(start..addr);
                    start = addr + 1;
                }
            }
            free.add(start..end);
        }
        free.sort();
        free
    }

    /// A short jump to padding nearby, which has room for the long one.
    pub(crate) fn hop(&self, subject: &Subject<'_>, pads: &mut Free) -> Option<SitePlan> {
        for patch in self.places(subject) {
            for near in self.isa().near() {
                let Ok(room) = self.room(subject, patch, near.len) else {
                    continue;
                };
                let via = subject.via(patch);
                let jump = self.isa().jump(via).len;
                let own = patch..room.end.max(patch + near.len);
                let fits = |slot: Range<u64>| {
                    let own = slot.start < own.end && slot.end > own.start;
                    !own && !self.occupied.any(slot)
                };
                if let Some(slot) = pads.take(near.reach(patch), jump, fits) {
                    let extra = Extra::HopSlot(slot);
                    let short = (near.len, via);
                    return Some(site(subject, Tactic::Hop, patch, short, room, extra));
                }
            }
        }
        None
    }

    /// A long jump whose last bytes are those of the instructions after the first.
    pub(crate) fn pun(&self, subject: &Subject<'_>) -> Option<SitePlan> {
        let patch = self.places(subject).next()?;
        let via = subject.via(patch);
        let jump = self.isa().jump(via).len;
        if !self.isa().has_puns() || patch + jump > subject.text.end() {
            return None;
        }
        // The more bytes can be chosen, the more targets the jump can have. With one byte there is only one, which is
        // free more often than not.
        let (room, own) = (1..jump).rev().find_map(|len| {
            let room = self.room(subject, patch, len).ok()?;
            Some((room, len))
        })?;
        // The bytes of one pun must not depend on those of another.
        if self.punned.any(patch..patch + jump) {
            return None;
        }
        let extra = Extra::Pun {
            free: (own - 1) as u8,
        };
        Some(site(subject, Tactic::Pun, patch, (own, via), room, extra))
    }

    /// A breakpoint. All other bytes stay, so branches into the middle of displaced instructions do no harm.
    pub(crate) fn trap(&self, subject: &Subject<'_>) -> Result<SitePlan, Refusal> {
        let patch = self.places(subject).next().unwrap_or(subject.start);
        let len = self.isa().trap_len();
        let room = self.room(subject, patch, len);
        let room = room.or_else(|error| self.by_pads(subject, patch, len).ok_or(error))?;
        let trap = (len, Via::Nothing);
        Ok(site(subject, Tactic::Trap, patch, trap, room, Extra::None))
    }
}

pub(crate) fn site(
    subject: &Subject<'_>,
    tactic: Tactic,
    patch: u64,
    (len, via): (u64, Via),
    room: Room,
    extra: Extra,
) -> SitePlan {
    SitePlan {
        tactic,
        mode: subject.mode,
        patch,
        patch_len: len as u8,
        displaced: patch..room.end,
        extra,
        via,
        signing: match patch {
            patch if patch == subject.start => Signing::None,
            _ => subject.signing(),
        },
        spare: room.spare,
        free: subject.free(patch),
        free_after: subject.free_after,
        far: None,
    }
}
