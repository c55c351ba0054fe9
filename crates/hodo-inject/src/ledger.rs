//! The ledger: what hodo has changed in a process, recorded in that process. If hodo is killed, the next one reads the
//! ledger and restores everything (`adopt.rs`).
//!
//! It is a mapping of its own at one of a few addresses, which only a tracer can write: a header, followed by entries.
//! An entry counts once the length in the header covers it, and it is written before the change that it describes. So
//! if hodo is killed between the two, the entry describes something that has not happened. This does no harm: bytes are
//! restored that are already there.
//!
//! Each entry has a checksum. A damaged ledger is not used at all.

mod entry;

use std::cell::Cell;
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use hodo_abi::Span;
use hodo_trace::format::SHADOW_DISTANCE;
use twox_hash::XxHash3_64;

pub(crate) use entry::{Bytes, Entry, Page, Patched, Region, State};

use crate::arch::ledger_at;
use hodo_abi::Isa;
use hodo_ptrace::auxv;
use hodo_ptrace::maps;
use hodo_ptrace::{Memory, Syscalls, TargetAddr};

const MAGIC: [u8; 16] = *b"\x7fhodo's ledger\r\n";
/// The format of entries. It changes with [`entry`], and with the meaning of entries.
const FORMAT: u32 = 3;
/// Size of its address space. It uses only as much memory as is written.
const SIZE: u64 = 512 << 20;
/// Its size if address space is scarce.
const SMALL: u64 = 4 << 20;
/// Bytes of the header: the magic, the format (4), the instruction set of the ELF file (4), the shadow's distance (8),
/// the size of the mapping (8), the name of the build (48), and a checksum of all that (8). Then, not covered by it:
/// bytes of entries (8), and whether some are missing (8).
const HEADER: usize = 128;
const BUILD: usize = 48;
const SUM_AT: usize = 40 + BUILD;
const LENGTH_AT: u64 = SUM_AT as u64 + 8;
const MISSING_AT: u64 = LENGTH_AT + 8;
/// Bytes before each entry: its length and its checksum.
const BEFORE: usize = 16;

/// The ledger of one address space, as known to the hodo that writes it.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    /// Its address; 0: there is none.
    at: u64,
    size: u64,
    /// Bytes of entries.
    length: Cell<u64>,
    /// What was last written of everything but patches.
    state: Option<Rc<State>>,
    /// The number of stubs that it has for each island.
    stubs: [usize; 2],
    /// Lengths at which stubs were added, and the numbers of stubs then.
    grown: Vec<(u64, [usize; 2])>,
    /// There was no room for some entries.
    missing: Cell<bool>,
}

/// The name of this build of hodo.
pub fn build() -> String {
    let version = env!("CARGO_PKG_VERSION");
    match hodo_module::cache::build_id() {
        Some(id) => {
            let id: String = id
                .iter()
                .take(8)
                .map(|byte| format!("{byte:02x}"))
                .collect();
            format!("hodo {version} ({id})")
        }
        None => format!("hodo {version}"),
    }
}

fn header(size: u64) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[..16].copy_from_slice(&MAGIC);
    bytes[16..20].copy_from_slice(&FORMAT.to_le_bytes());
    bytes[20..24].copy_from_slice(&u32::from(Isa::NATIVE.elf_machine()).to_le_bytes());
    bytes[24..32].copy_from_slice(&SHADOW_DISTANCE.to_le_bytes());
    bytes[32..40].copy_from_slice(&size.to_le_bytes());
    let build = build();
    let build = &build.as_bytes()[..build.len().min(BUILD)];
    bytes[40..40 + build.len()].copy_from_slice(build);
    let sum = XxHash3_64::oneshot(&bytes[..SUM_AT]);
    bytes[SUM_AT..SUM_AT + 8].copy_from_slice(&sum.to_le_bytes());
    bytes
}

impl Ledger {
    /// Maps one, using system calls of a stopped thread. If there is no room, the process has none. `scarce`: address
    /// space is scarce. `linker`: where the dynamic linker is.
    ///
    /// # Errors
    /// If the thread is gone, or its memory cannot be written.
    pub fn map(
        calls: &Syscalls,
        memory: &Memory,
        scarce: bool,
        linker: Option<u64>,
    ) -> Result<Self> {
        let size = if scarce { SMALL } else { SIZE };
        let flags = libc::MAP_PRIVATE
            | libc::MAP_ANONYMOUS
            | libc::MAP_FIXED_NOREPLACE
            | libc::MAP_NORESERVE;
        for at in ledger_at(linker) {
            let wanted = TargetAddr(at);
            let got = calls.mmap(wanted, size, libc::PROT_READ, flags, None)?;
            if !got.is_at(wanted) {
                continue;
            }
            calls.madvise(wanted, size, libc::MADV_DONTDUMP)?;
            memory.write(wanted, &header(size))?;
            return Ok(Self {
                at,
                size,
                ..Self::default()
            });
        }
        Ok(Self::default())
    }

    /// Its mapping; empty if there is none.
    pub fn region(&self) -> Span {
        Span::at(self.at, self.size)
    }

    /// The number of stubs that it has for each island; from now on it has these.
    pub fn count_stubs(&mut self, now: [usize; 2]) -> [usize; 2] {
        if now != self.stubs {
            self.grown.push((self.length.get(), self.stubs));
        }
        std::mem::replace(&mut self.stubs, now)
    }

    /// This is the ledger of a process that was forked. Another thread may have forked it before its maker's last
    /// entries were written: it continues from the existing ones.
    ///
    /// # Errors
    /// If the process's memory cannot be read.
    pub fn is_forked(&mut self, memory: &Memory) -> Result<()> {
        if self.at == 0 {
            return Ok(());
        }
        let length = memory.read_u64(TargetAddr(self.at + LENGTH_AT))?;
        if length == self.length.get() {
            return Ok(());
        }
        self.length.set(length);
        self.state = None;
        if let Some(index) = self.grown.iter().position(|&(at, _)| at >= length) {
            self.stubs = self.grown[index].1;
            self.grown.truncate(index);
        }
        Ok(())
    }

    /// Writes everything but patches, unless that was written last.
    ///
    /// # Errors
    /// If the process's memory cannot be written.
    pub fn note_state(&mut self, memory: &Memory, state: State) -> Result<()> {
        if self.at == 0 || self.state.as_deref() == Some(&state) {
            return Ok(());
        }
        self.state = Some(Rc::new(state.clone()));
        self.note(memory, &Entry::State(state))
    }

    /// Writes an entry.
    ///
    /// # Errors
    /// If the process's memory cannot be written.
    pub fn note(&self, memory: &Memory, entry: &Entry) -> Result<()> {
        if self.at == 0 {
            return Ok(());
        }
        let bytes = encode(entry)?;
        let start = self.length.get();
        let end = start + bytes.len() as u64;
        if HEADER as u64 + end > self.size {
            self.missing.set(true);
            return memory.write(TargetAddr(self.at + MISSING_AT), &1u64.to_le_bytes());
        }
        memory.write(TargetAddr(self.at + HEADER as u64 + start), &bytes)?;
        memory.write(TargetAddr(self.at + LENGTH_AT), &end.to_le_bytes())?;
        self.length.set(end);
        Ok(())
    }
}

fn encode(entry: &Entry) -> Result<Vec<u8>> {
    let mut bytes = postcard::to_extend(entry, vec![0; BEFORE])?;
    let length = (bytes.len() - BEFORE) as u64;
    let sum = XxHash3_64::oneshot(&bytes[BEFORE..]);
    bytes[..8].copy_from_slice(&length.to_le_bytes());
    bytes[8..BEFORE].copy_from_slice(&sum.to_le_bytes());
    Ok(bytes)
}

/// A ledger that was found in a process.
#[derive(Debug)]
pub struct Found {
    at: u64,
    header: [u8; HEADER],
}

/// Finds the ledger of a process by its mark, at the few addresses where it can be.
///
/// # Errors
/// If the process is gone, or this user may not inspect it.
pub fn find(pid: i32) -> Result<Option<Found>> {
    let maps = maps::read(pid)?;
    let mapped = |at: u64| {
        let index = maps.partition_point(|mapping| mapping.end <= at);
        (maps.get(index)).filter(|mapping| mapping.start <= at && mapping.inode == 0)
    };
    let linker = auxv::value(pid, libc::AT_BASE).filter(|&base| base != 0);
    for (at, mapping) in ledger_at(linker)
        .into_iter()
        .filter_map(|at| Some((at, mapped(at)?)))
    {
        let mut header = [0; HEADER];
        if Memory::open(pid)?
            .read(TargetAddr(at), &mut header)
            .is_err()
        {
            continue;
        }
        if header[..16] == MAGIC {
            return Ok(Some(Found { at, header }));
        }
        // Its hodo was killed before writing anything.
        let size = mapping.end - mapping.start;
        let is_new = mapping.start == at && [SIZE, SMALL].contains(&size) && !mapping.writable;
        if is_new && header == [0; HEADER] {
            let header = self::header(size);
            return Ok(Some(Found { at, header }));
        }
    }
    Ok(None)
}

/// Why a damaged ledger cannot be used.
const DAMAGED: &str =
    "hodo's notes in the process about its changes are damaged; the process was left as it is";

impl Found {
    fn word(&self, at: usize) -> u64 {
        let bytes = self.header[at..at + 8].try_into();
        u64::from_le_bytes(bytes.unwrap_or_default())
    }

    /// All entries, and the ledger as known to the hodo that wrote it.
    ///
    /// # Errors
    /// If another build with another format wrote it, or it is damaged.
    pub fn read(&self, memory: &Memory) -> Result<(Ledger, Vec<Entry>)> {
        if XxHash3_64::oneshot(&self.header[..SUM_AT]) != self.word(SUM_AT) {
            bail!("{DAMAGED} (its header)");
        }
        let own = header(self.word(32));
        if self.header[..40] != own[..40] {
            let name = String::from_utf8_lossy(&self.header[40..40 + BUILD]);
            bail!(
                "{0} left it, and this {1} cannot read the notes of {0} about its changes: run `hodo detach` with {0}",
                name.trim_end_matches('\0'),
                build()
            );
        }
        let (size, length) = (self.word(32), self.word(LENGTH_AT as usize));
        if size > SIZE {
            bail!("{DAMAGED} (its size)");
        }
        if length > size.saturating_sub(HEADER as u64) {
            bail!("{DAMAGED} (its length)");
        }
        if self.word(MISSING_AT as usize) != 0 {
            bail!(
                "hodo had no room in the process for notes about all of its changes: they cannot be undone"
            );
        }
        let mut bytes = vec![0; usize::try_from(length)?];
        memory
            .read(TargetAddr(self.at + HEADER as u64), &mut bytes)
            .context(DAMAGED)?;
        let ledger = Ledger {
            at: self.at,
            size,
            length: Cell::new(length),
            ..Ledger::default()
        };
        Ok((ledger, decode(&bytes)?))
    }
}

fn decode(mut bytes: &[u8]) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    while !bytes.is_empty() {
        let entry = next(&mut bytes);
        entries.push(entry.with_context(|| format!("{DAMAGED} (entry {})", entries.len()))?);
    }
    Ok(entries)
}

fn next(bytes: &mut &[u8]) -> Option<Entry> {
    let (before, rest) = bytes.split_at_checked(BEFORE)?;
    let [length, sum] = *before.as_chunks::<8>().0 else {
        return None;
    };
    let length = usize::try_from(u64::from_le_bytes(length)).ok()?;
    let (entry, rest) = rest.split_at_checked(length)?;
    if XxHash3_64::oneshot(entry) != u64::from_le_bytes(sum) {
        return None;
    }
    *bytes = rest;
    let (entry, left) = postcard::take_from_bytes(entry).ok()?;
    left.is_empty().then_some(entry)
}

#[cfg(test)]
mod tests;
