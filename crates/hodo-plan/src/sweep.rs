//! The pass over all code: branch targets, padding, and what is to be known of each function.

use crate::bits::Bits;
use crate::image::{Image, Text};
use crate::live::Nodes;
use crate::pieces::{Piece, is_padding};
use crate::statics::Statics;
use hodo_arch::code::{EntryFacts, Flow, How, Isa, Read, Reference, Room, Slot};
use hodo_symbols::{Cfa, Frames};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// Branch targets are told apart by their source within so many bytes of a function's start.
pub(crate) const HEAD: u64 = 64;

/// A branch within a piece to an address near its start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Near {
    pub piece: usize,
    pub target: u64,
}

/// What the sweep found out about one piece.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PieceFacts {
    pub pops: bool,
    /// It returns by another register than that of most calls.
    pub other_link: bool,
    /// It returns, or jumps to something that may.
    pub leaves: bool,
    /// It jumps through a register or memory.
    pub jumps: bool,
    /// It forms the address of code of its own: perhaps a table has distances from there.
    pub forms_own: bool,
    /// It reads the return address, or takes the address of its place. The caller fills this by `Swept::return_reads`.
    pub reads_return: bool,
    /// It overwrites the return address.
    pub writes_return: bool,
    /// It finds out where to go on behalf of its caller.
    pub leads_on: bool,
    /// It uses memory below the stack pointer.
    pub red_zone: bool,
    pub invalid: bool,
    /// What the straight line from its start does, where that was asked for.
    pub entry: Option<EntryFacts>,
}

/// A call or jump that is of interest for where it goes.
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

/// Where transfers are of interest.
pub(crate) struct Wanted<'w> {
    pub addresses: &'w HashSet<u64>,
    pub slots: &'w HashMap<u64, String>,
    pub statics: &'w Statics,
}

/// A branch from one piece to another, one of which is doubtful.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Crossing {
    pub from: usize,
    pub to: u64,
    pub conditional: bool,
}

/// The result of the sweep.
#[derive(Default)]
pub(crate) struct Swept {
    /// One for each piece.
    pub facts: Vec<PieceFacts>,
    /// Sorted by piece.
    pub near: Vec<Near>,
    /// Unreachable padding, sorted.
    pub pads: Vec<Range<u64>>,
    pub transfers: Vec<Transfer>,
    /// Data addresses that code forms, with the piece that does: perhaps of jump tables.
    pub tables: Vec<(u64, usize)>,
    /// Data addresses that code jumps through, as tables of addresses.
    pub absolute: Vec<u64>,
    pub crossings: Vec<Crossing>,
    /// Instructions that read the return address, by piece.
    pub return_reads: Vec<(usize, u64)>,
    /// The instructions of all pieces, where the registers that are free are of interest: in the order of the pieces.
    pub decoded: Vec<Nodes>,
}

/// The address sets that the sweep fills.
pub(crate) struct Targets {
    /// Every target of a branch.
    pub any: Bits,
    /// Targets whose source is unknown or in another piece.
    pub foreign: Bits,
    /// Targets of direct calls.
    pub called: Bits,
    /// Addresses that code forms or data holds, jump tables left out.
    pub taken: Bits,
    /// Starts of pieces that may be functions or not; the caller fills it.
    pub doubtful: Bits,
    /// Bytes of the code that are read or written as data; perhaps more.
    pub data: Bits,
    /// Targets of direct calls behind which the flags are used.
    pub returns_flags: Bits,
}

impl Targets {
    pub fn new(image: &Image<'_>) -> Self {
        Self {
            any: Bits::new(&image.text),
            foreign: Bits::new(&image.text),
            called: Bits::new(&image.text),
            taken: Bits::new(&image.text),
            doubtful: Bits::new(&image.text),
            data: Bits::new(&image.text),
            returns_flags: Bits::new(&image.text),
        }
    }

    pub fn mark(&self, addr: u64) {
        self.any.set(addr);
        self.foreign.set(addr);
    }

    /// Marks an address that can come to any place.
    pub fn take(&self, addr: u64) {
        self.mark(addr);
        self.taken.set(addr);
    }
}

/// Sweeps over all pieces with several threads.
pub(crate) fn sweep(
    image: &Image<'_>,
    pieces: &[Piece],
    targets: &Targets,
    wanted: &Wanted<'_>,
    frames: &Frames,
    threads: usize,
) -> Swept {
    let total: u64 = pieces.iter().map(|p| p.limit - p.start).sum();
    let share = (total / threads.max(1) as u64).max(64 << 10);
    let mut chunks = Vec::new();
    let mut start = 0;
    let mut size = 0;
    for (index, piece) in pieces.iter().enumerate() {
        size += piece.limit - piece.start;
        if size >= share {
            chunks.push(start..index + 1);
            start = index + 1;
            size = 0;
        }
    }
    chunks.push(start..pieces.len());
    let run = |chunk: Range<usize>| {
        let mut part = Swept::default();
        let mut room = Room::default();
        let registers = image.isa.needs_register();
        let bytes = pieces[chunk.clone()].iter().map(|p| p.end - p.start).sum();
        let mut decoded = registers.then(|| Nodes::with_room(bytes));
        for index in chunk {
            let read = read(image, &pieces[index], &mut room);
            if let Some(decoded) = &mut decoded {
                decoded.begin(image.isa, &pieces[index]);
            }
            let out = (&mut part, decoded.as_mut());
            one(image, pieces, index, read, targets, wanted, frames, out);
            if let Some(decoded) = &mut decoded {
                decoded.end();
            }
        }
        part.decoded.extend(decoded);
        part
    };
    let mut all = Swept::default();
    let run = &run;
    std::thread::scope(|scope| {
        let mut workers = Vec::new();
        let mut chunks = chunks.into_iter();
        let first = chunks.next();
        for chunk in chunks {
            workers.push(scope.spawn(move || run(chunk)));
        }
        let parts = first.map(run).into_iter();
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

#[expect(clippy::too_many_arguments, reason = "all are of the sweep")]
fn one(
    image: &Image<'_>,
    pieces: &[Piece],
    index: usize,
    read: Option<(&Text<'_>, Read<'_>)>,
    targets: &Targets,
    wanted: &Wanted<'_>,
    frames: &Frames,
    (out, mut nodes): (&mut Swept, Option<&mut Nodes>),
) {
    let piece = &pieces[index];
    let mut facts = PieceFacts::default();
    let Some((text, read)) = read else {
        out.facts.push(facts);
        return;
    };
    let isa = image.isa;
    let head = piece.start..piece.limit.min(piece.start + HEAD);
    let frames = frames.near(piece.start);
    let mut rows = frames.rows;
    // Without an unwind table, the first instructions tell whether there is a frame pointer.
    let mut frame = None;
    let mut framed = || *frame.get_or_insert_with(|| read.entry_facts().frame_pointer);
    // Where the return address is on the stack, from the frame's start on.
    let place = |addr: u64, slot: Slot| distance(slot, frames.at(addr));
    let link = piece.function.and_then(|_| read.link_use(place));
    if isa.needs_register() && piece.function.is_some() {
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
        let reads = link.reads.iter().map(|&addr| (index, addr));
        out.return_reads.extend(reads);
    }
    let mut dead = false;
    let mut ends = false;
    let mut pad: Option<Range<u64>> = None;
    let mut called = None;
    for (at, insn) in wanted.statics.seen(piece.start, read.insns()).enumerate() {
        if let Some(nodes) = &mut nodes {
            let what = (insn.addr, insn.flow, insn.padding);
            nodes.push((image, pieces), piece, what, read.registers(at));
        }
        if dead && insn.padding {
            match &mut pad {
                Some(pad) => pad.end = insn.end(),
                None => pad = Some(insn.addr..insn.end()),
            }
            continue;
        }
        out.pads.extend(pad.take());
        dead = insn.flow.is_end();
        // What a compiler ends a function with and is a call does not return.
        let call = matches!(insn.flow, Flow::Call(_) | Flow::IndirectCall);
        ends = dead || call && piece.function.is_some();
        if let (Some(called), Flow::Branch(_)) = (called, insn.flow) {
            targets.returns_flags.set(called);
        }
        called = match insn.flow {
            Flow::Call(to) => Some(to),
            _ => None,
        };
        match insn.flow {
            Flow::Branch(to) | Flow::Jump(to) => {
                if to >= piece.start && to < piece.limit {
                    targets.any.set(to);
                    if head.contains(&to) {
                        out.near.push(Near {
                            piece: index,
                            target: to,
                        });
                    }
                } else {
                    targets.mark(to);
                    facts.leaves = true;
                    if targets.doubtful.get(to) || targets.doubtful.get(piece.start) {
                        out.crossings.push(Crossing {
                            from: index,
                            to,
                            conditional: matches!(insn.flow, Flow::Branch(_)),
                        });
                    }
                }
                if matches!(insn.flow, Flow::Jump(_)) && wanted.addresses.contains(&to) {
                    out.transfers.push(Transfer {
                        addr: insn.addr,
                        len: insn.len,
                        to: To::Address(to),
                        call: false,
                    });
                }
            }
            Flow::Call(to) => {
                targets.mark(to);
                targets.called.set(to);
                if !wanted.addresses.is_empty() && wanted.addresses.contains(&to) {
                    out.transfers.push(Transfer {
                        addr: insn.addr,
                        len: insn.len,
                        to: To::Address(to),
                        call: true,
                    });
                }
            }
            Flow::IndirectCall | Flow::IndirectJump => {
                let call = insn.flow == Flow::IndirectCall;
                facts.leaves |= !call;
                facts.jumps |= !call;
                if let Reference::Memory(slot) = insn.reference
                    && wanted.slots.contains_key(&slot)
                {
                    out.transfers.push(Transfer {
                        addr: insn.addr,
                        len: insn.len,
                        to: To::Slot(slot),
                        call,
                    });
                }
            }
            Flow::Return { how } => {
                facts.pops |= how == How::Drops;
                facts.other_link |= how == How::OtherLink;
                facts.leaves = true;
            }
            Flow::Invalid => facts.invalid = true,
            Flow::Next | Flow::Fault => {}
        }
        if insn.slot != Slot::None {
            while let [_, next, ..] = rows
                && next.addr <= insn.addr
            {
                rows = &rows[1..];
            }
            let cfa = rows.first().map(|row| row.cfa);
            let distance = match (insn.slot, cfa) {
                // The frame was realigned; a copy of the return address lies above the old frame pointer.
                (Slot::Frame(8), Some(Cfa::Other)) if link.is_none() => Some(-8),
                (Slot::Frame(8), None) if link.is_none() && framed() => Some(-8),
                (slot, cfa) => distance(slot, cfa),
            };
            if distance.is_some() && distance == place {
                if isa.stores(text.slice(insn.addr, insn.end())) {
                    facts.writes_return = true;
                } else {
                    out.return_reads.push((index, insn.addr));
                }
            }
            facts.red_zone |= matches!(insn.slot, Slot::Stack(..0));
        }
        match insn.reference {
            // Where the image can be loaded anywhere, no constant is an address.
            Reference::Constant(_) if !image.fixed => {}
            Reference::Forms(addr) | Reference::Constant(addr) => {
                if image.text_at(addr).is_some() {
                    facts.forms_own |= (piece.start..piece.limit).contains(&addr);
                    targets.take(addr);
                    // Perhaps the table lies between the code.
                    if matches!(insn.reference, Reference::Forms(_)) {
                        out.tables.push((addr, index));
                    }
                } else if image.data_at(addr).is_some() {
                    out.tables.push((addr, index));
                }
            }
            Reference::Table(addr) => out.absolute.push(addr),
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
    out.pads.extend(pad.take());
    out.facts.push(facts);
    if ends {
        gap(isa, text, piece, out);
    }
}

/// How far above the frame's start a place on the stack is.
fn distance(slot: Slot, cfa: Option<Cfa>) -> Option<i32> {
    match (slot, cfa) {
        (Slot::Stack(at), Some(Cfa::Stack(cfa))) => Some(at.wrapping_sub(cfa)),
        (Slot::Frame(at), Some(Cfa::Frame(cfa))) => Some(at.wrapping_sub(cfa)),
        _ => None,
    }
}

/// Bytes that one instruction reads at most.
const LARGEST_OPERAND: u64 = 64;

/// Finds the padding between a function and the next.
fn gap(isa: Isa, text: &Text<'_>, piece: &Piece, out: &mut Swept) {
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
