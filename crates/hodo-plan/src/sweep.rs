//! The pass over all code: branch targets, padding, and what is to be known of each function.

use crate::bits::Bits;
use crate::image::{Image, Text};
use hodo_arch::x86_64::entry::stores;
use hodo_arch::x86_64::scan::{Flow, Reference, Sweep};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// Branch targets are told apart by their source within so many bytes of a function's start.
pub(crate) const HEAD: u64 = 64;

/// A stretch of code that begins where something is known to begin.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    pub start: u64,
    /// Where the code ends, as far as known.
    pub end: u64,
    /// Where the next piece begins.
    pub limit: u64,
    /// Index of the function that begins here.
    pub function: Option<usize>,
}

/// A branch within a piece to an address near its start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Near {
    pub piece: usize,
    pub target: u64,
    /// The branch instruction.
    pub source: (u64, u64),
}

/// What the sweep found out about one piece.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PieceFacts {
    pub calls: bool,
    pub pops: bool,
    pub frame_return_read: bool,
    pub frame_return_written: bool,
    pub invalid: bool,
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
}

/// The address sets that the sweep fills.
pub(crate) struct Targets {
    /// Every target of a branch.
    pub any: Bits,
    /// Targets whose source is unknown or in another piece.
    pub foreign: Bits,
    /// Targets of conditional branches from another piece.
    pub conditional: Bits,
}

impl Targets {
    pub fn new(image: &Image<'_>) -> Self {
        Self {
            any: Bits::new(&image.text),
            foreign: Bits::new(&image.text),
            conditional: Bits::new(&image.text),
        }
    }

    pub fn mark(&self, addr: u64) {
        self.any.set(addr);
        self.foreign.set(addr);
    }
}

/// Sweeps over all pieces with several threads.
pub(crate) fn sweep(
    image: &Image<'_>,
    pieces: &[Piece],
    targets: &Targets,
    wanted: &Wanted<'_>,
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
        for index in chunk {
            one(image, pieces, index, targets, wanted, &mut part);
        }
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
        let parts = parts.chain(workers.into_iter().filter_map(|w| w.join().ok()));
        for part in parts {
            all.facts.extend(part.facts);
            all.near.extend(part.near);
            all.pads.extend(part.pads);
            all.transfers.extend(part.transfers);
            all.tables.extend(part.tables);
        }
    });
    // A worker that failed leaves its pieces without facts; nothing is planned for them.
    all.facts.resize(pieces.len(), PieceFacts::default());
    all
}

fn one(
    image: &Image<'_>,
    pieces: &[Piece],
    index: usize,
    targets: &Targets,
    wanted: &Wanted<'_>,
    out: &mut Swept,
) {
    let piece = &pieces[index];
    let mut facts = PieceFacts::default();
    let Some(text) = image.text_at(piece.start) else {
        out.facts.push(facts);
        return;
    };
    let head = piece.start..piece.limit.min(piece.start + HEAD);
    let mut dead = false;
    let mut pad: Option<Range<u64>> = None;
    for insn in Sweep::new(text.slice(piece.start, piece.end), piece.start) {
        if dead && insn.padding {
            match &mut pad {
                Some(pad) => pad.end = insn.end(),
                None => pad = Some(insn.addr..insn.end()),
            }
            continue;
        }
        out.pads.extend(pad.take());
        dead = insn.flow.is_end();
        match insn.flow {
            Flow::Branch(to) | Flow::Jump(to) => {
                if to >= piece.start && to < piece.limit {
                    targets.any.set(to);
                    if head.contains(&to) {
                        out.near.push(Near {
                            piece: index,
                            target: to,
                            source: (insn.addr, insn.end()),
                        });
                    }
                } else {
                    targets.mark(to);
                    if matches!(insn.flow, Flow::Branch(_)) {
                        targets.conditional.set(to);
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
                facts.calls = true;
                targets.mark(to);
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
                facts.calls |= call;
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
            Flow::Return { pops } => facts.pops |= pops,
            Flow::Invalid => facts.invalid = true,
            Flow::Next | Flow::Fault => {}
        }
        if insn.frame_return {
            if stores(text.slice(insn.addr, insn.end())) {
                facts.frame_return_written = true;
            } else {
                facts.frame_return_read = true;
            }
        }
        match insn.reference {
            // Where the image can be loaded anywhere, no constant is an address.
            Reference::Constant(_) if !image.fixed => {}
            Reference::Forms(addr) | Reference::Constant(addr) => {
                if image.text_at(addr).is_some() {
                    targets.mark(addr);
                } else if image.data_at(addr).is_some() {
                    out.tables.push((addr, index));
                }
            }
            // Addresses in the data are found by other means.
            Reference::Table(_) | Reference::Memory(_) | Reference::None => {}
        }
    }
    out.pads.extend(pad.take());
    out.facts.push(facts);
    gap(text, piece, out);
}

/// Finds the padding between a function and the next.
fn gap(text: &Text<'_>, piece: &Piece, out: &mut Swept) {
    let bytes = text.slice(piece.end, piece.limit);
    if bytes.is_empty() {
        return;
    }
    let zeros = bytes.iter().all(|&b| b == 0);
    if zeros || Sweep::new(bytes, 0).all(|insn| insn.padding) {
        match out.pads.last_mut() {
            Some(last) if last.end == piece.end && last.start >= piece.start => {
                last.end = piece.limit;
            }
            _ => out.pads.push(piece.end..piece.limit),
        }
    }
}
