//! The pass over all code: branch targets, padding, and facts about each function.

use crate::image::{Image, Text};
use crate::nodes::Nodes;
use crate::pieces::{Piece, is_padding};
use crate::static_keys::Statics;
use crate::targets::Targets;
use hodo_isa::code::{EntryFacts, Flow, How, Insn, InstructionSet, Read, Reference, Room, Slot};
use hodo_symbols::{Cfa, Frames, Row};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// Within this many bytes of a function's start, branch targets are kept with their sources.
pub(crate) const HEAD: u64 = 64;

/// A branch within a piece to an address near its start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Near {
    pub piece: usize,
    pub target: u64,
}

/// What the sweep finds out about one piece.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PieceFacts {
    pub pops: bool,
    /// Whether it returns through another register than most calls use.
    pub other_link: bool,
    /// Whether it returns, or jumps to something that may return.
    pub leaves: bool,
    /// Whether it jumps through a register or memory.
    pub jumps: bool,
    /// Whether it forms the address of its own code: a table may have distances from there.
    pub forms_own: bool,
    /// Whether it reads the return address, or takes the address of its place. `Swept::return_reads` is added by the
    /// caller.
    pub reads_return: bool,
    /// Whether it overwrites the return address.
    pub writes_return: bool,
    /// Whether it jumps to another function, which knows the return address from it.
    pub hands_on: bool,
    /// Whether it continues at an address that it finds on behalf of its caller.
    pub leads_on: bool,
    /// Whether it uses memory below the stack pointer.
    pub red_zone: bool,
    pub invalid: bool,
    /// What the straight code from its start does, if that was requested.
    pub entry: Option<EntryFacts>,
}

/// A call or jump whose target is of interest.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Transfer {
    pub addr: u64,
    pub len: u8,
    pub to: To,
    pub call: bool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum To {
    Address(u64),
    Slot(u64),
}

/// Which transfers are of interest.
pub(crate) struct Wanted<'w> {
    pub addresses: &'w HashSet<u64>,
    pub slots: &'w HashMap<u64, String>,
    pub statics: &'w Statics,
}

/// A branch from one piece to another, one of which may not be a function.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Crossing {
    pub from: usize,
    pub to: u64,
    pub conditional: bool,
}

/// The result of the sweep.
#[derive(Default)]
pub(crate) struct Swept {
    /// One for each piece that is swept.
    pub facts: Vec<PieceFacts>,
    /// Sorted by piece.
    pub near: Vec<Near>,
    /// Unreachable padding, sorted.
    pub pads: Vec<Range<u64>>,
    pub transfers: Vec<Transfer>,
    /// Data addresses that code forms, with the piece that forms them: they may be jump tables.
    pub tables: Vec<(u64, usize)>,
    /// Data addresses through which code jumps, as tables of addresses.
    pub absolute: Vec<u64>,
    pub crossings: Vec<Crossing>,
    /// Instructions that read the return address, by piece.
    pub return_reads: Vec<(usize, u64)>,
    /// The instructions of all pieces, in the order of the pieces, if free registers are of interest.
    pub decoded: Vec<Nodes>,
}

/// What a sweep reads, and the address sets that it fills.
#[derive(Clone, Copy)]
pub(crate) struct Sweep<'s> {
    pub image: &'s Image<'s>,
    pub pieces: &'s [Piece],
    pub targets: &'s Targets,
    pub wanted: &'s Wanted<'s>,
    pub frames: &'s Frames,
    /// By piece: whether it is swept; `None`: all are.
    pub only: Option<&'s [bool]>,
}

impl Sweep<'_> {
    /// Returns whether a piece is swept.
    fn includes(self, index: usize) -> bool {
        self.only.is_none_or(|only| only[index])
    }

    /// Sweeps over the pieces with several threads.
    pub fn run(self, threads: usize) -> Swept {
        let mut all = Swept::default();
        std::thread::scope(|scope| {
            let mut workers = Vec::new();
            let mut chunks = self.chunks(threads).into_iter();
            let first = chunks.next();
            for chunk in chunks {
                workers.push(scope.spawn(move || self.chunk(chunk)));
            }
            let parts = first.map(|chunk| self.chunk(chunk)).into_iter();
            let parts = parts.chain(workers.into_iter().map(|w| {
                w.join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            }));
            for part in parts {
                all.facts.extend(part.facts);
                all.near.extend(part.near);
                all.pads.extend(part.pads);
                all.transfers.extend(part.transfers);
                all.tables.extend(part.tables);
                all.absolute.extend(part.absolute);
                all.crossings.extend(part.crossings);
                all.return_reads.extend(part.return_reads);
                all.decoded.extend(part.decoded);
            }
        });
        all
    }

    /// Divides the pieces among threads.
    fn chunks(self, threads: usize) -> Vec<Range<usize>> {
        let length = |(index, piece): (usize, &Piece)| match self.includes(index) {
            true => piece.limit - piece.start,
            false => 0,
        };
        let total: u64 = self.pieces.iter().enumerate().map(length).sum();
        let share = (total / threads.max(1) as u64).max(64 << 10);
        let mut chunks = Vec::new();
        let mut start = 0;
        let mut size = 0;
        for (index, piece) in self.pieces.iter().enumerate() {
            size += length((index, piece));
            if size >= share {
                chunks.push(start..index + 1);
                start = index + 1;
                size = 0;
            }
        }
        chunks.push(start..self.pieces.len());
        chunks
    }

    fn chunk(self, chunk: Range<usize>) -> Swept {
        let Self { image, pieces, .. } = self;
        let mut part = Swept::default();
        let mut room = Room::default();
        let registers = image.isa.tracks_registers();
        let bytes = pieces[chunk.clone()].iter().map(|p| p.end - p.start).sum();
        let mut decoded = registers.then(|| Nodes::with_room(bytes));
        for index in chunk.filter(|&index| self.includes(index)) {
            let read = read(image, &pieces[index], &mut room);
            if let Some(decoded) = &mut decoded {
                decoded.begin(image.isa, &pieces[index]);
            }
            match &read {
                Some(read) => self.piece(index, read, &mut part, decoded.as_mut()),
                None => part.facts.push(PieceFacts::default()),
            }
            if let Some(decoded) = &mut decoded {
                decoded.end();
            }
        }
        part.decoded.extend(decoded);
        part
    }

    /// Sweeps over one piece.
    fn piece(
        self,
        index: usize,
        (text, read): &(&Text<'_>, Read<'_>),
        out: &mut Swept,
        nodes: Option<&mut Nodes>,
    ) {
        let isa = self.image.isa;
        let piece = &self.pieces[index];
        let mut facts = PieceFacts::default();
        let frames = self.frames.near(piece.start);
        // Where the return address is on the stack, relative to the frame's start.
        let place = |addr: u64, slot: Slot| distance(slot, frames.at(addr));
        let link = piece.function.and_then(|_| read.link_use(place));
        if isa.tracks_registers() && piece.function.is_some() {
            facts.entry = Some(read.entry_facts());
        }
        let place = match &link {
            None => Some(-8).filter(|_| isa.calls_push()),
            Some(link) => link
                .saves
                .iter()
                .find_map(|&(addr, slot)| place(addr, slot)),
        };
        if let Some(link) = &link {
            facts.writes_return |= link.moves;
            facts.leads_on = link.leads_on;
            facts.hands_on = link.hands_on;
            let reads = link.reads.iter().map(|&addr| (index, addr));
            out.return_reads.extend(reads);
        }
        let sweeping = Sweeping {
            sweep: self,
            index,
            piece,
            text,
            read,
            facts,
            rows: frames.rows,
            has_link: link.is_some(),
            return_place: place,
            frame_pointer: None,
            out,
        };
        sweeping.run(nodes);
    }
}

/// Reads the instructions of a piece.
fn read<'a>(
    image: &'a Image<'_>,
    piece: &Piece,
    room: &'a mut Room,
) -> Option<(&'a Text<'a>, Read<'a>)> {
    let text = image.text_at(piece.start)?;
    let code = text.slice(piece.start, piece.end);
    let read = image.isa.read(code, piece.start, image.globals, room);
    Some((text, read))
}

/// The piece that is being read.
struct Sweeping<'s> {
    sweep: Sweep<'s>,
    index: usize,
    piece: &'s Piece,
    text: &'s Text<'s>,
    read: &'s Read<'s>,
    facts: PieceFacts,
    /// The unwind table from the current instruction on.
    rows: &'s [Row],
    /// Whether calls pass the return address in a register and its use is known.
    has_link: bool,
    /// Where the return address is on the stack, relative to the frame's start.
    return_place: Option<i32>,
    /// Whether there is a frame pointer, if that was needed.
    frame_pointer: Option<bool>,
    out: &'s mut Swept,
}

impl Sweeping<'_> {
    fn run(mut self, mut nodes: Option<&mut Nodes>) {
        let Sweep {
            image,
            pieces,
            targets,
            wanted,
            ..
        } = self.sweep;
        let piece = self.piece;
        let mut dead = false;
        let mut ends = false;
        let mut pad: Option<Range<u64>> = None;
        let mut called = None;
        let insns = wanted.statics.seen(piece.start, self.read.insns());
        for (at, insn) in insns.enumerate() {
            if let Some(nodes) = &mut nodes {
                let what = (insn.addr, insn.flow, insn.padding);
                nodes.push((image, pieces), piece, what, self.read.registers(at));
            }
            if dead && insn.padding {
                match &mut pad {
                    Some(pad) => pad.end = insn.end(),
                    None => pad = Some(insn.addr..insn.end()),
                }
                continue;
            }
            self.out.pads.extend(pad.take());
            dead = insn.flow.is_end();
            // A call with which a compiler ends a function does not return.
            let call = matches!(insn.flow, Flow::Call(_) | Flow::IndirectCall);
            ends = dead || call && piece.function.is_some();
            if let (Some(called), Flow::Branch(_)) = (called, insn.flow) {
                targets.returns_flags.set(called);
            }
            called = match insn.flow {
                Flow::Call(to) => Some(to),
                _ => None,
            };
            self.flow(&insn);
            if insn.slot != Slot::None {
                self.stack_use(&insn);
            }
            self.reference(insn.reference);
        }
        self.out.pads.extend(pad.take());
        self.out.facts.push(self.facts);
        if ends {
            gap(image.isa, self.text, piece, self.out);
        }
    }

    /// Notes the target of an instruction.
    #[inline]
    fn flow(&mut self, insn: &Insn) {
        let Sweep {
            targets, wanted, ..
        } = self.sweep;
        match insn.flow {
            Flow::Branch(to) => self.branch(to, true),
            Flow::Jump(to) => {
                self.branch(to, false);
                if wanted.addresses.contains(&to) {
                    self.transfer(insn, To::Address(to), false);
                }
            }
            Flow::Call(to) => {
                targets.mark(to);
                targets.called.set(to);
                if !wanted.addresses.is_empty() && wanted.addresses.contains(&to) {
                    self.transfer(insn, To::Address(to), true);
                }
            }
            Flow::IndirectCall | Flow::IndirectJump => {
                let call = insn.flow == Flow::IndirectCall;
                self.facts.leaves |= !call;
                self.facts.jumps |= !call;
                if let Reference::Memory(slot) = insn.reference
                    && wanted.slots.contains_key(&slot)
                {
                    self.transfer(insn, To::Slot(slot), call);
                }
            }
            Flow::Return { how } => {
                self.facts.pops |= how == How::Drops;
                self.facts.other_link |= how == How::OtherLink;
                self.facts.leaves = true;
            }
            Flow::Invalid => self.facts.invalid = true,
            Flow::Next | Flow::Fault => {}
        }
    }

    #[inline]
    fn branch(&mut self, to: u64, conditional: bool) {
        let targets = self.sweep.targets;
        let piece = self.piece;
        if to >= piece.start && to < piece.limit {
            targets.any.set(to);
            if to < piece.start + HEAD {
                self.out.near.push(Near {
                    piece: self.index,
                    target: to,
                });
            }
            return;
        }
        targets.mark(to);
        self.facts.leaves = true;
        if targets.doubtful.get(to) || targets.doubtful.get(piece.start) {
            self.out.crossings.push(Crossing {
                from: self.index,
                to,
                conditional,
            });
        }
    }

    fn transfer(&mut self, insn: &Insn, to: To, call: bool) {
        self.out.transfers.push(Transfer {
            addr: insn.addr,
            len: insn.len,
            to,
            call,
        });
    }

    /// Notes what an instruction does with the stack: it may use the return address.
    #[inline]
    fn stack_use(&mut self, insn: &Insn) {
        while let [_, next, ..] = self.rows
            && next.addr <= insn.addr
        {
            self.rows = &self.rows[1..];
        }
        let cfa = self.rows.first().map(|row| row.cfa);
        let distance = match (insn.slot, cfa) {
            // The frame was realigned; a copy of the return address is above the old frame pointer.
            (Slot::Frame(8), Some(Cfa::Other)) if !self.has_link => Some(-8),
            (Slot::Frame(8), None) if !self.has_link && self.has_frame_pointer() => Some(-8),
            (slot, cfa) => distance(slot, cfa),
        };
        if distance.is_some() && distance == self.return_place {
            let code = self.text.slice(insn.addr, insn.end());
            if self.sweep.image.isa.stores(code) {
                self.facts.writes_return = true;
            } else {
                self.out.return_reads.push((self.index, insn.addr));
            }
        }
        self.facts.red_zone |= matches!(insn.slot, Slot::Stack(..0));
    }

    /// Returns whether there is a frame pointer, judged by the first instructions; for code without an unwind table.
    fn has_frame_pointer(&mut self) -> bool {
        let read = self.read;
        *self
            .frame_pointer
            .get_or_insert_with(|| read.entry_facts().frame_pointer)
    }

    /// Notes the addresses that an instruction refers to.
    #[inline]
    fn reference(&mut self, reference: Reference) {
        let Sweep { image, targets, .. } = self.sweep;
        match reference {
            // If the image can be loaded anywhere, no constant is an address.
            Reference::Constant(_) if !image.fixed => {}
            Reference::Forms(addr) | Reference::Constant(addr) => {
                if image.text_at(addr).is_some() {
                    self.facts.forms_own |= (self.piece.start..self.piece.limit).contains(&addr);
                    targets.take(addr);
                    // The table may be between the code.
                    if matches!(reference, Reference::Forms(_)) {
                        self.out.tables.push((addr, self.index));
                    }
                } else if image.data_at(addr).is_some() {
                    self.out.tables.push((addr, self.index));
                }
            }
            Reference::Table(addr) => self.out.absolute.push(addr),
            // Data between the code.
            Reference::Memory(addr) => {
                if image.text_at(addr).is_some() {
                    for addr in addr..addr.saturating_add(LARGEST_OPERAND) {
                        targets.mark(addr);
                        targets.data.set(addr);
                    }
                }
            }
            Reference::None => {}
        }
    }
}

/// Returns how far above the frame's start a place on the stack is.
fn distance(slot: Slot, cfa: Option<Cfa>) -> Option<i32> {
    match (slot, cfa) {
        (Slot::Stack(at), Some(Cfa::Stack(cfa))) => Some(at.wrapping_sub(cfa)),
        (Slot::Frame(at), Some(Cfa::Frame(cfa))) => Some(at.wrapping_sub(cfa)),
        _ => None,
    }
}

/// The maximum number of bytes that one instruction reads.
const LARGEST_OPERAND: u64 = 64;

/// Finds the padding between a function and the next.
fn gap(isa: &'static dyn InstructionSet, text: &Text<'_>, piece: &Piece, out: &mut Swept) {
    let bytes = text.slice(piece.end, piece.limit);
    if bytes.is_empty() {
        return;
    }
    if is_padding(isa, text, piece.end, piece.limit) {
        match out.pads.last_mut() {
            Some(last) if last.end == piece.end && last.start >= piece.start => {
                last.end = piece.limit;
            }
            _ => out.pads.push(piece.end..piece.limit),
        }
    }
}
