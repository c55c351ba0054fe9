//! Sites whose long jump needs a register: how control continues after the displaced instructions, and hops to bytes
//! that other sites displace after their patches.

use std::ops::Range;

use hodo_isa::Via;
use hodo_isa::code::{Flow, Insn};

use crate::model::{Extra, Pad, PlannedFunction, SitePlan, Spare, Tactic};
use crate::refusal::Refusal;
use crate::subject::{Planner, Subject};
use crate::tactics::{Room, site};

/// The maximum number of bytes of a function that are displaced to reach a point where a register is free.
const FARTHER: u64 = 128;
/// The maximum number of bytes of a function that are displaced to make room for the jumps of others.
const ROOM: u64 = 64;

/// Functions whose sites could displace more than they need.
pub(crate) struct Donors {
    /// In ascending order.
    hosts: Vec<Host>,
}

struct Host {
    /// Index of the planned function.
    planned: usize,
    patch: u64,
    /// The free bytes after its patch, and the site that frees them; `None` until they are looked up.
    room: Option<(Range<u64>, Option<SitePlan>)>,
}

impl Donors {
    /// Lists functions in the order of their addresses. The list is empty if no site may use another site's bytes.
    pub fn new(planned: &[PlannedFunction], wanted: bool) -> Self {
        let sites = planned.iter().enumerate().filter(|_| wanted);
        let hosts = sites.filter_map(|(index, function)| {
            let site = function.outcome.as_ref().ok()?;
            (site.tactic == Tactic::Jump).then_some(Host {
                planned: index,
                patch: site.patch,
                room: None,
            })
        });
        Self {
            hosts: hosts.collect(),
        }
    }
}

impl Planner<'_> {
    /// Returns where the displaced instructions end: at `end` or later, so that control can continue from there; and
    /// the registers that are free for the jump back and for the moved instructions.
    ///
    /// # Errors
    /// Why they cannot be moved.
    pub(crate) fn resume(
        &self,
        subject: &Subject<'_>,
        patch: Range<u64>,
        end: u64,
    ) -> Result<(u64, Spare), Refusal> {
        let moved = self.movable(subject, patch.start..end);
        if !self.isa().needs_register() {
            return moved.map(|()| (end, Spare::default()));
        }
        let code = subject.text.slice(patch.start, subject.end);
        let code = self.isa().sweep(code, patch.start);
        let mut dead = Vec::new();
        let mut kept = None;
        for insn in self.statics.seen(patch.start, code) {
            if insn.end() > end + FARTHER {
                break;
            }
            if insn.flow != Flow::Next {
                dead.push((insn.addr, self.isa().usable(subject.dead(insn.addr))));
            }
            if insn.end() < end {
                continue;
            }
            // If more instructions are displaced, more branches stay within them.
            let movable = self.movable(subject, patch.start..insn.end()).is_ok();
            let call = matches!(insn.flow, Flow::Call(_) | Flow::IndirectCall)
                && !self.sites.is_dropped(insn.addr);
            if !movable {
                if call {
                    break;
                }
                continue;
            }
            let spare = |back| Spare {
                dead: dead.clone(),
                back,
                pads: Vec::new(),
            };
            if insn.flow.is_end() || call {
                return Ok((insn.end(), spare(Via::Nothing)));
            }
            if let via @ Via::Free(_) = subject.via(insn.end()) {
                return Ok((insn.end(), spare(via)));
            }
            let take = insn.end() - Via::TAKE..insn.end();
            // Branches to code between the patch and this place would run into it.
            let moved = patch.start..insn.end();
            let reached = || self.is_led_into(subject, &moved, patch.end..take.end);
            let free = || !self.occupied.any(take.clone()) && !self.statics.any(take.clone());
            if kept.is_none() && patch.end <= take.start && free() && !reached() {
                kept = Some((insn.end(), spare(subject.via(insn.end()))));
            }
        }
        let error = || moved.err().unwrap_or(Refusal::NoRegister);
        kept.ok_or_else(error)
    }

    /// What a patch of `len` bytes displaces if no register is free afterward: control leaves through hodo's memory
    /// nearby.
    pub(crate) fn by_pads(&self, subject: &Subject<'_>, patch: u64, len: u64) -> Option<Room> {
        let patch_end = patch + len;
        let is_whole = self.pieces[subject.piece].limit >= patch_end
            && self.isa().needs_register()
            && !self.foreign(patch + 1..patch_end)
            && !self.is_led_back(subject, patch_end);
        if !is_whole {
            return None;
        }
        let end = self.window(subject, patch, patch_end).ok()?;
        if self.statics.any(patch..end.max(patch_end)) {
            return None;
        }
        let code = subject.text.slice(patch, end);
        let mut insns: Vec<Insn> = self.isa().sweep(code, patch).collect();
        let last = insns.pop()?;
        let moved = match last.flow {
            Flow::Next => end,
            Flow::Jump(to) if !(patch..end).contains(&to) => last.addr,
            _ => return None,
        };
        let straight = insns.iter().all(|insn| insn.flow == Flow::Next);
        if !straight || self.movable(subject, patch..moved).is_err() {
            return None;
        }
        let (to, back, dead) = match last.flow {
            Flow::Jump(to) => {
                let dead = self.isa().usable(subject.dead(last.addr));
                (to, Via::Nothing, vec![(last.addr, dead)])
            }
            _ => (end, subject.via(end), Vec::new()),
        };
        let (from, at) = (moved, None);
        Some(Room {
            end,
            block: false,
            spare: Spare {
                dead,
                back,
                pads: vec![Pad { from, at, to }],
            },
        })
    }

    /// A site that reaches hodo's memory by a short jump and pads.
    pub(crate) fn hop_by_pads(&self, subject: &Subject<'_>) -> Option<SitePlan> {
        let near = self.isa().near().first()?;
        self.places(subject).find_map(|patch| {
            let room = self.by_pads(subject, patch, near.len)?;
            let short = (near.len, subject.via(patch));
            Some(site(subject, Tactic::Hop, patch, short, room, Extra::Near))
        })
    }

    /// Returns whether something outside the displaced instructions leads to these bytes of them. Their own branches
    /// follow them to the new place.
    fn is_led_into(&self, subject: &Subject<'_>, moved: &Range<u64>, range: Range<u64>) -> bool {
        if !self.targets.any.any(range.clone()) {
            return false;
        }
        let code = subject.text.slice(subject.start, subject.end);
        let code = self.isa().sweep(code, subject.start);
        let leads = |insn: Insn| match insn.flow {
            Flow::Branch(to) | Flow::Jump(to) | Flow::Call(to) => {
                range.contains(&to) && !moved.contains(&insn.addr)
            }
            _ => false,
        };
        self.targets.foreign.any(range.clone()) || self.statics.seen(subject.start, code).any(leads)
    }

    /// Returns whether nothing leads to these bytes of displaced instructions, and nothing else needs them.
    fn unused(&self, range: Range<u64>) -> bool {
        !self.targets.any.any(range.clone())
            && !self.occupied.any(range.clone())
            && !self.statics.any(range)
    }

    /// A short jump to bytes after the patch of another site, which displaces more to free them.
    pub(crate) fn hop_to_donor(
        &self,
        subject: &Subject<'_>,
        donors: &mut Donors,
        planned: &mut [PlannedFunction],
    ) -> Option<SitePlan> {
        for patch in self.places(subject) {
            let via = subject.via(patch);
            let jump = self.isa().jump(via).len;
            for near in self.isa().near() {
                let Ok(room) = self.room(subject, patch, near.len) else {
                    continue;
                };
                let reach = near.reach(patch);
                let from = reach.start().saturating_sub(ROOM);
                let first = donors.hosts.partition_point(|host| host.patch < from);
                for host in &mut donors.hosts[first..] {
                    if host.patch > *reach.end() {
                        break;
                    }
                    let (free, wider) = host
                        .room
                        .get_or_insert_with(|| self.widen(&planned[host.planned]));
                    let slot = free.start.max(*reach.start());
                    if slot + jump > free.end || slot > *reach.end() {
                        continue;
                    }
                    free.start = slot + jump;
                    let function = &mut planned[host.planned];
                    if let Some(wider) = wider.take() {
                        self.occupy(&wider);
                        function.outcome = Ok(wider);
                    }
                    let extra = Extra::HopDonor {
                        slot,
                        host: function.addr,
                    };
                    let short = (near.len, via);
                    return Some(site(subject, Tactic::Hop, patch, short, room, extra));
                }
            }
        }
        None
    }

    /// Returns the bytes after the patch of a function's site that could be freed, and the site that frees them.
    fn widen(&self, function: &PlannedFunction) -> (Range<u64>, Option<SitePlan>) {
        self.widened(function).unwrap_or((0..0, None))
    }

    fn widened(&self, function: &PlannedFunction) -> Option<(Range<u64>, Option<SitePlan>)> {
        let old = function.outcome.as_ref().ok()?;
        let functions = &self.symbols.functions;
        let index = functions
            .binary_search_by_key(&function.addr, |function| function.addr)
            .ok()?;
        let subject = self.subject(index, &functions[index]).ok()?;
        // If the target of one of its jumps is unknown, that jump may lead back to these bytes.
        if self.facts[subject.piece].jumps {
            return None;
        }
        let start = old.patch + u64::from(old.patch_len);
        let code = subject.text.slice(old.patch, subject.end);
        let mut end = start;
        for insn in self.isa().sweep(code, old.patch) {
            let bytes = insn.addr.max(start)..insn.end();
            if insn.end() > old.patch + ROOM
                || !self.unused(bytes)
                || self.movable(&subject, old.patch..insn.end()).is_err()
            {
                break;
            }
            end = insn.end();
        }
        let patch = old.patch..start;
        let mut wider = old.clone();
        // Shrinks it to an end from which control can continue.
        let code = self.isa().sweep(code, old.patch);
        let mut ends: Vec<u64> = code
            .map(|insn| insn.end())
            .take_while(|&at| at <= end)
            .collect();
        while let Some(at) = ends.pop()
            && at > old.displaced.end
        {
            let Ok((found, spare)) = self.resume(&subject, patch.clone(), at) else {
                continue;
            };
            if found == at {
                let taken = match spare.back {
                    Via::Kept(_) => Via::TAKE,
                    _ => 0,
                };
                wider.displaced.end = at;
                wider.spare = spare;
                return Some((start..at - taken, Some(wider)));
            }
        }
        None
    }

    /// A short jump to our memory.
    pub(crate) fn near_hop(&self, subject: &Subject<'_>) -> Option<SitePlan> {
        if self.isa().has_puns() {
            return None;
        }
        let near = self.isa().near().first()?;
        self.places(subject).find_map(|patch| {
            let room = self.room(subject, patch, near.len).ok()?;
            let short = (near.len, subject.via(patch));
            Some(site(subject, Tactic::Hop, patch, short, room, Extra::Near))
        })
    }
}
