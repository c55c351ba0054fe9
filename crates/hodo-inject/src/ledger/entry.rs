//! The entries of a ledger. Addresses come in lists, and most are near the previous one, so differences are written.

use std::ops::Range;

use hodo_abi::Span;
use hodo_patch::{Copied, Lead, Patches, Stub};
use serde::{Deserialize, Serialize};

use hodo_module::image::Seen;

/// One entry.
#[derive(Debug, Serialize, Deserialize)]
pub enum Entry {
    /// Everything but patches, as it is from now on.
    State(State),
    /// A file's code is about to be changed.
    Patched(Patched),
    /// Another place is about to be changed: its address and original bytes.
    Original(u64, Bytes),
    /// All patches were undone except those at these addresses, and copies stay.
    Reverted(Vec<u64>),
    /// Counters of USDT probes and static keys are about to be reset.
    Lowered,
    /// The mapping that begins here is about to be unmapped, or was refused.
    Unmapped(u64),
    /// Something is about to be mapped.
    Mapped(Region),
}

/// A range of memory in its written form: start and length.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    start: u64,
    len: u64,
}

impl From<Span> for Region {
    fn from(span: Span) -> Self {
        Self {
            start: span.start,
            len: span.len(),
        }
    }
}

impl From<Region> for Span {
    fn from(Region { start, len }: Region) -> Self {
        Self::at(start, len)
    }
}

/// A page for single jumps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    pub start: u64,
    /// How many of its bytes are in use.
    pub used: u64,
}

impl Page {
    /// Bytes of a page.
    pub const SIZE: u64 = 4096;

    /// The whole page.
    pub fn span(self) -> Span {
        Span::at(self.start, Self::SIZE)
    }
}

/// The small parts of an address space.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    pub events: Region,
    pub counters: Vec<Region>,
    pub islands: [Region; 2],
    pub shadows: [Region; 2],
    pub scratch_page: u64,
    pub syscall: u64,
    pub ret: u64,
    pub trap_handler: u64,
    pub trampolines: Vec<Page>,
    pub private: Vec<Region>,
    pub r_brk: Option<u64>,
    pub unwinders: Vec<Region>,
    pub unwinding: Vec<u64>,
    /// Static keys that hodo holds, or is about to hold.
    pub keys: Vec<u64>,
    /// By how much limits are raised: address space, data, hard limits.
    pub extra: [u64; 3],
    pub debugger: bool,
    pub seen: Vec<(u64, u64, u64)>,
}

impl State {
    /// The files that were seen mapped.
    pub fn files(&self) -> impl Iterator<Item = Seen> {
        let files = self.seen.iter();
        files.map(|&(start, end, inode)| Seen { start, end, inode })
    }
}

/// What is written over the code of a file, and what it replaces.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Patched {
    /// Its addresses.
    pub range: Range<u64>,
    /// Runtime minus link-time address.
    pub bias: u64,
    originals: Writes,
    hooks: Writes,
    traps: Rows,
    faults: Rows,
    sites: Rows,
    ways: Rows,
    leaving: Rows,
    semaphores: Rows,
    copies: Rows,
    stubs: [Rows; 2],
}

impl Patched {
    /// `originals`: the bytes where the patches will be, as in the file. `stubs`: the new ones of the two islands.
    pub fn new<'a>(
        (range, bias): (Range<u64>, u64),
        originals: impl Iterator<Item = (u64, &'a [u8])>,
        patches: &Patches,
        stubs: [&[Stub]; 2],
    ) -> Self {
        let lead = |lead: &Lead| [lead.at, lead.to];
        let span = |span: &Span| [span.start, span.end];
        let hooks = (patches.hooks.iter()).map(|(at, bytes)| (*at, bytes.as_slice()));
        let copy = |copied: Copied| {
            let Copied {
                original,
                before,
                copy,
                call,
                leads,
            } = copied;
            let flags = u64::from(leads) << 1 | u64::from(call);
            [original, before, copy, flags]
        };
        let stub = |stub: &Stub| [stub.start, stub.body, stub.slow, stub.original, stub.entry];
        Self {
            range,
            bias,
            originals: Writes::new(originals),
            hooks: Writes::new(hooks),
            traps: Rows::new(patches.traps.iter().map(lead)),
            faults: Rows::new(patches.faults.iter().map(lead)),
            sites: Rows::new(patches.sites.iter().map(lead)),
            ways: Rows::new(patches.ways.iter().map(span)),
            leaving: Rows::new(patches.leaving.iter().map(span)),
            semaphores: Rows::new(patches.semaphores.iter().map(|&at| [at])),
            copies: Rows::new(patches.copies.iter().map(copy)),
            stubs: stubs.map(|stubs| Rows::new(stubs.iter().map(stub))),
        }
    }

    /// Whether instructions of the file have copies.
    pub fn has_copies(&self) -> bool {
        !self.copies.0.0.is_empty()
    }

    /// Addresses and original bytes.
    pub fn originals(&self) -> impl Iterator<Item = (u64, Vec<u8>)> {
        self.originals.all()
    }

    /// The new stubs of each island.
    pub fn stubs(&self) -> [Vec<Stub>; 2] {
        let stub = |[start, body, slow, original, entry]: [u64; 5]| Stub {
            start,
            body,
            slow,
            original,
            entry,
        };
        [0, 1].map(|island| self.stubs[island].all().map(stub).collect())
    }

    /// The rest, as far as it matters after the patches were written.
    pub fn patches(&self) -> Patches {
        let leads = |rows: &Rows| rows.all().map(|[at, to]| Lead { at, to }).collect();
        let spans = |rows: &Rows| {
            let spans = rows.all().map(|[start, end]| Span { start, end });
            spans.collect()
        };
        let copy = |[original, before, copy, flags]: [u64; 4]| Copied {
            original,
            before,
            copy,
            call: flags & 1 != 0,
            leads: flags & 2 != 0,
        };
        Patches {
            traps: leads(&self.traps),
            faults: leads(&self.faults),
            sites: leads(&self.sites),
            ways: spans(&self.ways),
            leaving: spans(&self.leaving),
            semaphores: self.semaphores.all().map(|[at]| at).collect(),
            copies: self.copies.all().map(copy).collect(),
            hooks: self.hooks.all().collect(),
            ..Patches::default()
        }
    }
}

/// Bytes, written as they are.
#[derive(Debug, Default)]
pub struct Bytes(pub Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Bytes;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Bytes, E> {
                Ok(Bytes(bytes.to_vec()))
            }
        }
        deserializer.deserialize_bytes(Visitor)
    }
}

/// Rows of addresses, as differences from the row before: most of them take one byte or two. Seven bits per byte, the
/// lowest first; the lowest bit of all is the sign. There are many, so they are written as one piece.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Rows(Bytes);

impl Rows {
    fn new<const N: usize>(rows: impl Iterator<Item = [u64; N]>) -> Self {
        let mut last = [0; N];
        let mut bytes = Vec::new();
        for row in rows {
            for (now, last) in row.iter().zip(last) {
                let difference = now.wrapping_sub(last).cast_signed();
                let mut rest = (difference << 1 ^ difference >> 63).cast_unsigned();
                while rest >= 0x80 {
                    bytes.push(rest as u8 | 0x80);
                    rest >>= 7;
                }
                bytes.push(rest as u8);
            }
            last = row;
        }
        Self(Bytes(bytes))
    }

    /// The complete rows.
    fn all<const N: usize>(&self) -> impl Iterator<Item = [u64; N]> {
        let mut bytes = self.0.0.iter();
        let mut next = move || {
            let mut rest = 0;
            for shift in (0..64).step_by(7) {
                let byte = *bytes.next()?;
                rest |= u64::from(byte & 0x7F) << shift;
                if byte < 0x80 {
                    return Some((rest >> 1) ^ (rest & 1).wrapping_neg());
                }
            }
            None
        };
        let mut row = [0u64; N];
        std::iter::from_fn(move || {
            for now in &mut row {
                *now = now.wrapping_add(next()?);
            }
            Some(row)
        })
    }
}

/// Addresses and bytes.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Writes {
    /// Address and length.
    rows: Rows,
    bytes: Bytes,
}

impl Writes {
    fn new<'a>(writes: impl Iterator<Item = (u64, &'a [u8])>) -> Self {
        let mut bytes = Vec::new();
        let rows = writes.map(|(at, more)| {
            bytes.extend_from_slice(more);
            [at, more.len() as u64]
        });
        let rows = Rows::new(rows);
        Self {
            rows,
            bytes: Bytes(bytes),
        }
    }

    fn all(&self) -> impl Iterator<Item = (u64, Vec<u8>)> {
        self.rows
            .all()
            .scan(self.bytes.0.as_slice(), |rest, [at, len]| {
                let (bytes, after) = rest.split_at_checked(usize::try_from(len).ok()?)?;
                *rest = after;
                Some((at, bytes.to_vec()))
            })
    }
}
