//! A function that is being planned: what its code shows, and what the planner knows about all others.

use hodo_isa::code::{EntryFacts, InstructionSet};
use hodo_isa::{Signing, Via};
use hodo_symbols::{Cfa, Function, Symbols};

use crate::bits::Bits;
use crate::image::{Image, Text};
use crate::live::Live;
use crate::model::{EntryOnlyReason, Extra, Mode, SitePlan};
use crate::pieces::Piece;
use crate::refusal::Refusal;
use crate::sites::Sites;
use crate::static_keys::Statics;
use crate::sweep::{HEAD, PieceFacts, Swept};
use crate::targets::Targets;
use crate::verdicts::Verdict;
use crate::{hosts, modes};

/// What is known about the functions of an image while sites are chosen.
pub(crate) struct Planner<'a> {
    pub image: &'a Image<'a>,
    pub symbols: &'a Symbols,
    pub pieces: &'a [Piece],
    pub heads: &'a [usize],
    pub verdicts: &'a [Verdict],
    /// For each piece, what is known about it and its parts.
    pub facts: &'a [PieceFacts],
    pub targets: &'a Targets,
    /// Bytes that patches have taken.
    pub occupied: Bits,
    /// Bytes of the jumps of puns, including those that stay as they are.
    pub punned: Bits,
    pub swept: &'a Swept,
    pub sites: &'a Sites,
    pub host: &'a hosts::Host,
    pub statics: &'a Statics,
    /// The registers that are free, for instruction sets whose jumps need them.
    pub live: Option<Live<'a>>,
}

/// The maximum number of bytes of a function that are moved as a whole.
pub(crate) const BLOCK_LIMIT: u64 = 512;

/// A function, and what its code shows.
pub(crate) struct Subject<'a> {
    pub text: &'a Text<'a>,
    pub piece: usize,
    pub start: u64,
    pub end: u64,
    pub mode: Mode,
    /// Whether it makes a frame before its first branch.
    pub makes_frame: bool,
    /// Whether it uses memory below the stack pointer.
    pub red_zone: bool,
    /// Registers that are free after it has returned.
    pub free_after: u32,
    isa: &'static dyn InstructionSet,
    /// For each instruction that may be moved, what is used from its start on.
    live: Vec<(u64, u32)>,
}

impl Subject<'_> {
    /// Returns the registers that are dead at one of its instructions.
    pub fn dead(&self, addr: u64) -> u32 {
        let found = self.live.binary_search_by_key(&addr, |&(addr, _)| addr);
        found.map_or(0, |at| !self.live[at].1)
    }

    /// Returns those of them that our code may use.
    pub fn free(&self, addr: u64) -> u32 {
        // A function that does not return may not use the return address, but tools that inspect the stack do.
        self.isa.usable(self.dead(addr)) & !self.isa.link()
    }

    /// Returns how the return address is signed after the landing instruction.
    pub fn signing(&self) -> Signing {
        self.isa.signing(self.text.slice(self.start, self.end))
    }

    /// Returns the register that a long jump uses at one of its instructions.
    pub fn via(&self, addr: u64) -> Via {
        self.isa.via(self.free(addr))
    }
}

impl<'a> Planner<'a> {
    pub(crate) fn occupy(&self, site: &SitePlan) {
        for addr in site.patch..site.patch + u64::from(site.patch_len) {
            self.occupied.set(addr);
        }
        if let Via::Kept(_) = site.spare.back {
            let end = site.displaced.end;
            (end - Via::TAKE..end).for_each(|addr| self.occupied.set(addr));
        }
        let jump = |site: &SitePlan| self.image.isa.jump(site.via).len;
        match site.extra {
            Extra::HopSlot(slot) | Extra::HopDonor { slot, .. } => {
                (slot..slot + jump(site)).for_each(|addr| self.occupied.set(addr));
            }
            Extra::Pun { .. } => {
                (site.patch..site.patch + jump(site)).for_each(|addr| self.punned.set(addr));
            }
            Extra::None | Extra::Near => {}
        }
    }

    /// Inspects a function.
    ///
    /// # Errors
    /// Why it cannot be traced.
    pub(crate) fn subject(
        &self,
        index: usize,
        function: &Function,
    ) -> Result<Subject<'a>, Refusal> {
        let names = || std::iter::once(&function.name).chain(&function.aliases);
        let reason = |name: &String| modes::untouchable(name).or_else(|| self.host.copies(name));
        let reason = names().find_map(reason);
        if let Some(reason) = reason.or_else(|| self.host.lends(function.addr)) {
            return Err(Refusal::LeftAlone(reason));
        }
        if function.signal {
            return Err(Refusal::SignalReturn);
        }
        if let Some(reason) = self.host.refuses() {
            return Err(Refusal::LeftAlone(reason));
        }
        if self.verdicts[index] == Verdict::Unclear {
            return Err(Refusal::Unclear);
        }
        let piece = self.heads[index];
        let (Some(text), Some(facts)) = (self.image.text_at(function.addr), self.facts.get(piece))
        else {
            return Err(Refusal::NotCode);
        };
        let end = self.pieces[piece].end;
        let code = text.slice(function.addr, end);
        if code.is_empty() {
            return Err(Refusal::Empty);
        }
        let entry = facts.entry;
        let entry = entry.unwrap_or_else(|| self.image.isa.entry_facts(code, function.addr));
        if entry.reads_flags {
            return Err(Refusal::ReadsFlags);
        }
        if entry.reads_red_zone {
            return Err(Refusal::EnteredWithRedZone);
        }
        Ok(Subject {
            text,
            piece,
            start: function.addr,
            end,
            mode: self.mode(function, &entry, facts),
            makes_frame: entry.makes_frame,
            red_zone: facts.red_zone,
            free_after: self.live.as_ref().map_or(0, |live| live.after(piece)),
            isa: self.image.isa,
            live: self.live(piece),
        })
    }

    /// Returns what is used from the first instructions of a piece on.
    fn live(&self, piece: usize) -> Vec<(u64, u32)> {
        let Some(live) = &self.live else {
            return Vec::new();
        };
        let mut found = Vec::new();
        let within = BLOCK_LIMIT + HEAD;
        let nodes = live.of_piece(piece, within, &mut found);
        let piece = &self.pieces[piece];
        let addresses = nodes.iter().map(|node| piece.start + node.at());
        // If the end is near, these are all instructions.
        let end = Some(piece.end).filter(|&end| end <= piece.start + within);
        addresses.chain(end).zip(found).collect()
    }

    /// Returns whether the exit of a function can be recorded.
    fn mode(&self, function: &Function, entry: &EntryFacts, facts: &PieceFacts) -> Mode {
        let named = std::iter::once(&function.name)
            .chain(&function.aliases)
            .map(|name| modes::by_name(self.image.isa, name))
            .find(|mode| *mode != Mode::Call);
        let cfa = self.symbols.frames.at(function.addr);
        let reason = if let Some(mode) = named {
            return mode;
        } else if function.addr == self.image.entry
            || facts.leads_on
            || cfa.is_some_and(|cfa| cfa != Cfa::Stack(self.image.isa.entry_frame()))
        {
            EntryOnlyReason::NotCalled
        } else if facts.pops {
            EntryOnlyReason::PopsArguments
        } else if facts.other_link {
            EntryOnlyReason::OtherLink
        } else if entry.hands_return_on || facts.hands_on {
            EntryOnlyReason::HandsReturnAddressOn
        } else if entry.moves_return || facts.writes_return {
            EntryOnlyReason::MovesReturnAddress
        } else if facts.reads_return || entry.reads_return && cfa.is_none() {
            EntryOnlyReason::ReadsReturnAddress
        } else if entry.returns_flags {
            EntryOnlyReason::ReturnsFlags
        } else if let Some(reason) = self.host.mode() {
            reason
        } else {
            return Mode::Call;
        };
        Mode::EntryOnly(reason)
    }
}

const _: () = assert!(HEAD >= 16, "windows must lie within the head of a piece");
