//! The final trace format of DynamoRIO's drmemtrace, version 7: entries of twelve bytes, one file for each thread.
//!
//! Source: DynamoRIO's documentation, "Memory Traces", and clients/drcachesim/common/trace_entry.h.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use flate2::Compression;
use flate2::write::GzEncoder;
use hodo_dbi::{Access, Block, Client, Event, Events, Insn, Kind, Transfer};

use crate::packed;

const VERSION: u64 = 7;
/// It is of x86-64, and has encodings.
const FILE_TYPE: u64 = 0x40 | 0x200;
/// Instructions are missing (`OFFLINE_FILE_TYPE_IFILTERED`).
const FILTERED: u64 = 0x80;
/// Instructions between two times.
const OFTEN: u64 = 100_000;
/// From 1601, when the format's time begins, to 1970.
const EPOCH: Duration = Duration::from_secs(11_644_473_600);

/// Types of entries.
mod entry {
    pub(super) const READ: u16 = 0;
    pub(super) const WRITE: u16 = 1;
    pub(super) const INSTR: u16 = 10;
    pub(super) const INSTR_DIRECT_JUMP: u16 = 11;
    pub(super) const INSTR_INDIRECT_JUMP: u16 = 12;
    pub(super) const INSTR_DIRECT_CALL: u16 = 14;
    pub(super) const INSTR_INDIRECT_CALL: u16 = 15;
    pub(super) const INSTR_RETURN: u16 = 16;
    pub(super) const THREAD: u16 = 22;
    pub(super) const THREAD_EXIT: u16 = 23;
    pub(super) const PID: u16 = 24;
    pub(super) const HEADER: u16 = 25;
    pub(super) const FOOTER: u16 = 26;
    pub(super) const MARKER: u16 = 28;
    pub(super) const INSTR_NO_FETCH: u16 = 29;
    pub(super) const ENCODING: u16 = 47;
    pub(super) const INSTR_TAKEN_JUMP: u16 = 48;
    pub(super) const INSTR_UNTAKEN_JUMP: u16 = 49;
}

/// Sizes of marker entries: what they mark.
mod marker {
    pub(super) const KERNEL_EVENT: u16 = 0;
    pub(super) const KERNEL_XFER: u16 = 1;
    pub(super) const TIMESTAMP: u16 = 2;
    pub(super) const CPU_ID: u16 = 3;
    pub(super) const FILE_TYPE: u16 = 9;
    pub(super) const CACHE_LINE_SIZE: u16 = 10;
    pub(super) const VERSION: u16 = 12;
    pub(super) const PAGE_SIZE: u16 = 18;
    pub(super) const SYSTEM_CALL: u16 = 25;
    pub(super) const BRANCH_TARGET: u16 = 29;
}

/// An instruction whose entry depends on the next one.
#[derive(Debug)]
struct Open {
    insn: Insn,
    bytes: Vec<u8>,
    /// The entries of its accesses.
    accesses: Vec<(Kind, u64, u32)>,
    /// The kernel's number of the system call that it makes.
    call: Option<u64>,
}

/// The file of a thread.
#[derive(Debug)]
struct Output {
    file: GzEncoder<BufWriter<File>>,
    tid: i32,
    /// Not all instructions are received.
    filtered: bool,
    /// Instructions whose encodings are in the file.
    seen: HashMap<u64, Vec<u8>>,
    open: Option<Open>,
    /// The address at which the thread continues, if a signal has cut a block.
    cut: Option<u64>,
    /// A repeated instruction has begun, and is not finished.
    repeating: Option<u64>,
    instructions: u64,
    /// The last time that was written.
    now: u64,
}

/// Writes a directory that DynamoRIO's tools read (`drcachesim -indir DIR`).
#[derive(Debug)]
pub struct Writer {
    directory: PathBuf,
    name: String,
    filtered: bool,
    /// By number.
    threads: Vec<Option<Output>>,
    failed: Option<anyhow::Error>,
}

impl Writer {
    /// Creates the directory. `name` becomes part of the names of files. `filtered`: instructions will be missing,
    /// which is no sign of a signal.
    ///
    /// # Errors
    /// If it cannot be created, or has traces already.
    pub fn create(directory: &Path, name: &str, filtered: bool) -> Result<Self> {
        let directory = directory.join("trace");
        let cannot = || format!("cannot create {}", directory.display());
        std::fs::create_dir_all(&directory).with_context(cannot)?;
        let mut there = std::fs::read_dir(&directory).with_context(cannot)?;
        if there.next().is_some() {
            bail!(
                "{} is not empty: its files would be read together with the new ones",
                directory.display()
            );
        }
        let name = name.chars().map(|c| if c == '/' { '_' } else { c });
        Ok(Self {
            directory,
            name: name.collect(),
            filtered,
            threads: Vec::new(),
            failed: None,
        })
    }

    fn begin(&self, process: i32, tid: i32) -> Result<Output> {
        let path = self
            .directory
            .join(format!("{}.{process}.{tid}.trace.gz", self.name));
        let cannot = || format!("cannot create {}", path.display());
        let file = File::create_new(&path).with_context(cannot)?;
        let mut output = Output {
            file: GzEncoder::new(BufWriter::with_capacity(1 << 18, file), Compression::fast()),
            tid,
            filtered: self.filtered,
            seen: HashMap::new(),
            open: None,
            cut: None,
            repeating: None,
            instructions: 0,
            now: 0,
        };
        output.entry(entry::HEADER, 0, VERSION)?;
        output.entry(entry::MARKER, marker::VERSION, VERSION)?;
        let filtered = if self.filtered { FILTERED } else { 0 };
        output.entry(entry::MARKER, marker::FILE_TYPE, FILE_TYPE | filtered)?;
        output.entry(entry::THREAD, 4, tid as u64)?;
        output.entry(entry::PID, 4, process as u64)?;
        output.entry(entry::MARKER, marker::CACHE_LINE_SIZE, 64)?;
        output.entry(entry::MARKER, marker::PAGE_SIZE, 4096)?;
        output.time()?;
        Ok(output)
    }

    fn cannot(&self) -> String {
        format!("cannot write {}", self.directory.display())
    }

    fn end_all(&mut self) -> Result<()> {
        for output in std::mem::take(&mut self.threads).into_iter().flatten() {
            output.end().with_context(|| self.cannot())?;
        }
        Ok(())
    }
}

impl Output {
    fn entry(&mut self, kind: u16, size: u16, address: u64) -> Result<()> {
        let mut bytes = [0; 12];
        bytes[..2].copy_from_slice(&kind.to_le_bytes());
        bytes[2..4].copy_from_slice(&size.to_le_bytes());
        bytes[4..].copy_from_slice(&address.to_le_bytes());
        Ok(self.file.write_all(&bytes)?)
    }

    /// The time, which never goes back in a file, though a clock may.
    fn time(&mut self) -> Result<()> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = now.unwrap_or_default() + EPOCH;
        self.now = self.now.max(now.as_micros() as u64);
        self.entry(entry::MARKER, marker::TIMESTAMP, self.now)?;
        self.entry(entry::MARKER, marker::CPU_ID, 0)
    }

    /// Counts an instruction. The time comes before all that belongs to it.
    fn count(&mut self) -> Result<()> {
        self.instructions += 1;
        match self.instructions.is_multiple_of(OFTEN) {
            true => self.time(),
            false => Ok(()),
        }
    }

    /// The entry of the instruction that is open, now that the next one is known.
    fn close(&mut self, next: Option<u64>) -> Result<()> {
        let Some(open) = self.open.take() else {
            return Ok(());
        };
        let Insn { pc, len, transfer } = open.insn;
        let after = pc + u64::from(len);
        let target = next.unwrap_or(after);
        let is_taken = || hodo_dbi::branch_target(pc, &open.bytes) == Some(target);
        let kind = match transfer {
            Transfer::Next | Transfer::SystemCall => entry::INSTR,
            Transfer::Branch if is_taken() => entry::INSTR_TAKEN_JUMP,
            Transfer::Branch => entry::INSTR_UNTAKEN_JUMP,
            Transfer::Jump => entry::INSTR_DIRECT_JUMP,
            Transfer::IndirectJump => entry::INSTR_INDIRECT_JUMP,
            Transfer::Call => entry::INSTR_DIRECT_CALL,
            Transfer::IndirectCall => entry::INSTR_INDIRECT_CALL,
            Transfer::Return => entry::INSTR_RETURN,
        };
        self.count()?;
        if matches!(
            transfer,
            Transfer::IndirectJump | Transfer::IndirectCall | Transfer::Return
        ) {
            self.entry(entry::MARKER, marker::BRANCH_TARGET, target)?;
        }
        self.instruction(kind, pc, &open.bytes)?;
        for (kind, address, size) in open.accesses {
            self.access(kind, address, size)?;
        }
        if let Some(number) = open.call {
            // Readers of this version expect the time directly before it.
            self.time()?;
            self.entry(entry::MARKER, marker::SYSTEM_CALL, number)?;
        }
        if self.filtered {
            return Ok(());
        }
        let continues = match kind {
            entry::INSTR | entry::INSTR_UNTAKEN_JUMP if transfer != Transfer::SystemCall => {
                target == after
            }
            _ => true,
        };
        if !continues {
            self.entry(entry::MARKER, marker::KERNEL_EVENT, after)?;
        }
        if transfer == Transfer::SystemCall && next.is_some_and(|next| next != after) {
            self.entry(entry::MARKER, marker::KERNEL_XFER, after)?;
        }
        Ok(())
    }

    fn instruction(&mut self, kind: u16, pc: u64, bytes: &[u8]) -> Result<()> {
        if self.seen.get(&pc).is_none_or(|seen| seen != bytes) {
            self.seen.insert(pc, bytes.to_vec());
            for part in bytes.chunks(8) {
                let mut word = [0; 8];
                word[..part.len()].copy_from_slice(part);
                self.entry(entry::ENCODING, part.len() as u16, u64::from_le_bytes(word))?;
            }
        }
        self.entry(kind, bytes.len() as u16, pc)
    }

    fn access(&mut self, kind: Kind, address: u64, size: u32) -> Result<()> {
        let kind = match kind {
            Kind::Load => entry::READ,
            Kind::Store => entry::WRITE,
        };
        self.entry(kind, u16::try_from(size).unwrap_or(u16::MAX), address)
    }

    fn executed(&mut self, block: &Block, upto: usize, accesses: &[Access]) -> Result<()> {
        let first = block.insns[0];
        if self.repeating != Some(first.pc) {
            self.close(Some(first.pc))?;
            // It was interrupted. When it goes on, it is fetched again.
            self.cut = self.repeating.take().or(self.cut);
        }
        if let Some(cut) = self.cut.take()
            && cut != first.pc
            && !self.filtered
        {
            self.entry(entry::MARKER, marker::KERNEL_EVENT, cut)?;
        }
        if block.is_repeated() {
            return self.repeated(block, upto, accesses);
        }
        let mut accesses = accesses.iter().peekable();
        for (number, &insn) in block.insns.iter().enumerate().take(upto) {
            self.close(Some(insn.pc))?;
            let mut own = Vec::new();
            while let Some(access) = accesses.next_if(|access| usize::from(access.insn) == number) {
                own.push((access.kind, access.address, access.size));
            }
            self.open = Some(Open {
                insn,
                bytes: block.bytes(number).to_vec(),
                accesses: own,
                call: None,
            });
        }
        if let Some(next) = block.insns.get(upto)
            && self
                .open
                .as_ref()
                .is_none_or(|open| open.insn.transfer != Transfer::Branch)
        {
            self.close(Some(next.pc))?;
            self.cut = Some(next.pc);
        }
        Ok(())
    }

    /// A repeated instruction: one entry for each repetition.
    fn repeated(&mut self, block: &Block, upto: usize, accesses: &[Access]) -> Result<()> {
        let (pc, bytes) = (block.insns[0].pc, block.bytes(0));
        let each = block.accesses_each().max(1);
        for one in accesses.chunks(each) {
            if self.repeating.replace(pc) == Some(pc) {
                self.entry(entry::INSTR_NO_FETCH, bytes.len() as u16, pc)?;
            } else {
                self.count()?;
                self.instruction(entry::INSTR, pc, bytes)?;
            }
            for access in one {
                self.access(access.kind, access.address, access.size)?;
            }
        }
        if upto > 0 && self.repeating.take().is_none() {
            self.count()?;
            self.instruction(entry::INSTR, pc, bytes)?;
        }
        Ok(())
    }

    fn end(mut self) -> Result<()> {
        self.close(None)?;
        self.entry(entry::THREAD_EXIT, 4, self.tid as u64)?;
        self.entry(entry::FOOTER, 0, 0)?;
        Ok(self.file.finish()?.flush()?)
    }
}

impl Client for Writer {
    fn thread(&mut self, thread: u32, process: i32, tid: i32) {
        let index = thread as usize;
        if self.threads.len() <= index {
            self.threads.resize_with(index + 1, || None);
        }
        match self.begin(process, tid) {
            Ok(output) => self.threads[index] = Some(output),
            Err(error) => self.failed = self.failed.take().or(Some(error)),
        }
    }

    fn executed(&mut self, thread: u32, block: &Arc<Block>, upto: usize, accesses: &[Access]) {
        if self.failed.is_some() {
            return;
        }
        if let Some(Some(output)) = self.threads.get_mut(thread as usize)
            && let Err(error) = output.executed(block, upto, accesses)
        {
            self.failed = Some(error.context(self.cannot()));
        }
    }

    fn events(&self) -> Events {
        Events::default().system_calls()
    }

    fn event(&mut self, thread: u32, event: &Event<'_>) {
        let Some(Some(output)) = self.threads.get_mut(thread as usize) else {
            return;
        };
        match *event {
            Event::SystemCall { number, .. } => {
                if let Some(open) = &mut output.open {
                    open.call = Some(number);
                }
            }
            // What comes next does not follow from what came last.
            Event::Lost { .. } => {
                (output.cut, output.repeating) = (None, None);
                if let Err(error) = output.close(None) {
                    self.failed = self.failed.take().or(Some(error));
                }
            }
            _ => {}
        }
    }

    fn end(&mut self) -> Result<()> {
        match self.failed.take() {
            Some(error) => Err(error),
            None => self.end_all(),
        }
    }
}

/// What a directory has of DynamoRIO's.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// Files of the final format, one for each thread.
    Final(Vec<PathBuf>),
    /// A trace that is not converted to that format, in this directory.
    Raw(PathBuf),
    /// A directory for each process, each with a trace.
    Several(Vec<PathBuf>),
    Nothing,
}

/// Whether a directory was written by DynamoRIO's tracer, or for its tools. [`read`] may still fail.
#[must_use]
pub fn is_trace(directory: &Path) -> bool {
    find(directory) != Found::Nothing
}

/// Looks for traces: in a directory as the tracer leaves it (`drmemtrace.NAME.dir`, with `raw` and, once they are
/// converted, `trace`), in one that directly has files with traces, and in one with several of the former. Other files
/// beside the traces are schedules and logs.
fn find(directory: &Path) -> Found {
    let inside = files(&directory.join("trace"), "trace");
    if !inside.is_empty() {
        return Found::Final(inside);
    }
    let own = files(directory, "trace");
    if !own.is_empty() {
        return Found::Final(own);
    }
    let is_raw = |directory: &Path| {
        directory.join("modules.log").is_file() || !files(directory, "raw").is_empty()
    };
    if is_raw(&directory.join("raw")) {
        return Found::Raw(directory.to_owned());
    }
    if is_raw(directory) {
        let parent = directory.parent().unwrap_or(directory);
        return Found::Raw(parent.to_owned());
    }
    let mut several = entries(directory);
    several.retain(|path| path.join("raw").is_dir() || path.join("trace").is_dir());
    match several.is_empty() {
        true => Found::Nothing,
        false => Found::Several(several),
    }
}

/// The content of a directory, in order.
fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// The files in a directory with this extension, perhaps followed by that of a compressed file.
fn files(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let mut files = entries(directory);
    files.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let mut parts = name.rsplit('.').take(2);
        name.contains('.') && parts.any(|part| part == extension) && path.is_file()
    });
    files
}

/// The files of a directory's trace.
fn traces(directory: &Path) -> Result<Vec<PathBuf>> {
    match find(directory) {
        Found::Final(files) => Ok(files),
        Found::Raw(whole) => bail!(
            "{} has only DynamoRIO's raw trace, which needs the traced program's files to be understood: convert it first, by \
             DynamoRIO's 'drraw2trace -indir {}'",
            directory.display(),
            whole.display()
        ),
        Found::Several(traces) => {
            let example = traces.first().map(|path| path.display().to_string());
            bail!(
                "{} has traces of DynamoRIO in {} directories: choose one, as in '-d {}'",
                directory.display(),
                traces.len(),
                example.unwrap_or_default()
            )
        }
        Found::Nothing => bail!("{} has no traces", directory.display()),
    }
}

/// Tells a client what a directory has. It receives one thread after the other.
///
/// # Errors
/// If a file cannot be read, or is not of the final format.
pub fn read(directory: &Path, client: &mut impl Client) -> Result<()> {
    let mut blocks = Blocks::default();
    let mut threads = Vec::new();
    for (thread, path) in traces(directory)?.into_iter().enumerate() {
        let opened = packed::open(&path).and_then(|file| Thread::new(file, thread as u32));
        threads.push((opened.with_context(|| path.display().to_string())?, path));
    }
    // The threads go on in the order of the times that they have.
    let mut next: BinaryHeap<Reverse<(u64, usize)>> = (0..threads.len())
        .map(|thread| Reverse((0, thread)))
        .collect();
    while let Some(Reverse((_, number))) = next.pop()
        && !client.has_enough()
    {
        let (thread, path) = &mut threads[number];
        client.continues(number as u32);
        let read = thread.go_on(&mut blocks, client);
        if let Some(time) = read.with_context(|| path.display().to_string())? {
            next.push(Reverse((time, number)));
        }
    }
    client.end()
}

/// Blocks of one instruction each.
#[derive(Default)]
struct Blocks {
    known: HashMap<(u64, Vec<u8>), Arc<Block>>,
}

impl Blocks {
    fn of(&mut self, insn: Insn, bytes: &[u8], client: &mut impl Client) -> Arc<Block> {
        let next = self.known.len() as u32;
        let key = (insn.pc, bytes.to_vec());
        if let Some(known) = self.known.get(&key) {
            return Arc::clone(known);
        }
        let block = Arc::new(Block::of_instruction(next, insn, bytes));
        client.block(&block);
        self.known.insert(key, Arc::clone(&block));
        block
    }
}

/// Tells a client what the bytes of a file of one thread say.
///
/// # Errors
/// If they are not of the final format.
pub fn read_from(file: impl Read, client: &mut impl Client) -> Result<()> {
    let mut thread = Thread::new(file, 0)?;
    let mut blocks = Blocks::default();
    while thread.go_on(&mut blocks, client)?.is_some() {}
    client.end()
}

/// A thread whose file is read.
struct Thread<R> {
    file: R,
    reading: Reading,
}

impl<R: Read> Thread<R> {
    /// Reads the beginning of a file.
    fn new(mut file: R, thread: u32) -> Result<Self> {
        let mut bytes = [0; 12];
        if !read_entry(&mut file, &mut bytes)? {
            bail!("it is empty");
        }
        let (kind, _, version) = parts(bytes);
        if kind != entry::HEADER {
            bail!("it is not a trace of DynamoRIO's final format");
        }
        if version > VERSION {
            bail!("it has version {version} of the format; this hodo reads up to {VERSION}");
        }
        let reading = Reading {
            thread,
            tid: 0,
            encoding: Vec::new(),
            encodings: HashMap::new(),
            now: None,
            accesses: Vec::new(),
        };
        Ok(Self { file, reading })
    }

    /// Tells a client what it does up to the next time that its file has. Returns that time, or nothing at the end.
    fn go_on(&mut self, blocks: &mut Blocks, client: &mut impl Client) -> Result<Option<u64>> {
        let mut bytes = [0; 12];
        while read_entry(&mut self.file, &mut bytes)? {
            let (kind, size, value) = parts(bytes);
            if (kind, size) == (entry::MARKER, marker::TIMESTAMP) {
                self.reading.tell(blocks, client)?;
                return Ok(Some(value));
            }
            self.reading.entry((kind, size, value), blocks, client)?;
        }
        self.reading.tell(blocks, client)?;
        Ok(None)
    }
}

/// The kind of an entry, its size, and its address or value.
fn parts(bytes: [u8; 12]) -> (u16, u16, u64) {
    let [a, b, c, d, ref address @ ..] = bytes;
    let (kind, size) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
    (kind, size, u64::from_le_bytes(*address))
}

/// Reads twelve bytes. Returns whether there are some.
fn read_entry(file: &mut impl Read, bytes: &mut [u8; 12]) -> Result<bool> {
    let mut have = 0;
    while have < bytes.len() {
        let read = file.read(&mut bytes[have..])?;
        if read == 0 && have == 0 {
            return Ok(false);
        }
        if read == 0 {
            bail!("its last entry is cut");
        }
        have += read;
    }
    Ok(true)
}

struct Reading {
    thread: u32,
    tid: i32,
    /// The encoding of the next instruction, as far as it was read.
    encoding: Vec<u8>,
    encodings: HashMap<u64, Vec<u8>>,
    now: Option<Insn>,
    accesses: Vec<Access>,
}

impl Reading {
    fn entry(
        &mut self,
        (kind, size, address): (u16, u16, u64),
        blocks: &mut Blocks,
        client: &mut impl Client,
    ) -> Result<()> {
        let transfer = match kind {
            entry::READ | entry::WRITE => {
                let kind = if kind == entry::READ {
                    Kind::Load
                } else {
                    Kind::Store
                };
                self.accesses.push(Access {
                    address,
                    size: size.into(),
                    insn: 0,
                    kind,
                    offset: 0,
                });
                return Ok(());
            }
            entry::ENCODING => {
                let bytes = address.to_le_bytes();
                self.tell(blocks, client)?;
                self.encoding.extend(&bytes[..usize::from(size).min(8)]);
                return Ok(());
            }
            entry::THREAD => {
                self.tid = address as i32;
                return Ok(());
            }
            entry::PID => {
                client.thread(self.thread, address as i32, self.tid);
                return Ok(());
            }
            entry::INSTR => Transfer::Next,
            entry::INSTR_DIRECT_JUMP => Transfer::Jump,
            entry::INSTR_INDIRECT_JUMP => Transfer::IndirectJump,
            entry::INSTR_DIRECT_CALL => Transfer::Call,
            entry::INSTR_INDIRECT_CALL => Transfer::IndirectCall,
            entry::INSTR_RETURN => Transfer::Return,
            entry::INSTR_TAKEN_JUMP | entry::INSTR_UNTAKEN_JUMP => Transfer::Branch,
            // A further repetition: its accesses are of the same instruction.
            _ => return Ok(()),
        };
        self.tell(blocks, client)?;
        if !self.encoding.is_empty() {
            let encoding = std::mem::take(&mut self.encoding);
            self.encodings.insert(address, encoding);
        }
        let len = u8::try_from(size).context("an instruction is too long")?;
        self.now = Some(Insn {
            pc: address,
            len,
            transfer,
        });
        Ok(())
    }

    /// Tells the client about the instruction that was read.
    fn tell(&mut self, blocks: &mut Blocks, client: &mut impl Client) -> Result<()> {
        let Some(insn) = self.now.take() else {
            return Ok(());
        };
        let nothing = vec![0; insn.len.into()];
        let bytes = self.encodings.get(&insn.pc).unwrap_or(&nothing);
        if bytes.len() != usize::from(insn.len) || bytes.is_empty() {
            bail!(
                "the encoding at {:#x} has another length than the instruction",
                insn.pc
            );
        }
        let block = blocks.of(insn, bytes, client);
        client.executed(self.thread, &block, 1, &self.accesses);
        self.accesses.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Heard {
        /// Threads and addresses of instructions, in order.
        executed: Vec<(u32, u64)>,
        continued: Vec<u32>,
    }

    impl Client for Heard {
        fn continues(&mut self, thread: u32) {
            self.continued.push(thread);
        }

        fn executed(&mut self, thread: u32, block: &Arc<Block>, _: usize, _: &[Access]) {
            self.executed.push((thread, block.insns[0].pc));
        }
    }

    fn write(path: &Path, entries: &[(u16, u16, u64)]) {
        let bytes = entries.iter().flat_map(|(kind, size, value)| {
            [
                &kind.to_le_bytes()[..],
                &size.to_le_bytes(),
                &value.to_le_bytes(),
            ]
            .concat()
        });
        std::fs::write(path, bytes.collect::<Vec<u8>>()).expect("the file can be written");
    }

    #[test]
    fn threads_go_on_in_the_order_of_their_times() {
        let directory = std::env::temp_dir().join(format!("hodo-times-{}", std::process::id()));
        let files = directory.join("trace");
        std::fs::create_dir_all(&files).expect("a directory");
        let header = (entry::HEADER, 0, VERSION);
        let time = |value| (entry::MARKER, marker::TIMESTAMP, value);
        let insn = |pc| [(entry::ENCODING, 1, 0x90), (entry::INSTR, 1, pc)];
        let [a, b, c, d] = [10, 20, 30, 40].map(insn);
        let first = [&[header, time(5)][..], &a, &[time(50)], &b].concat();
        let second = [&[header, time(7)][..], &c, &d, &[time(60)]].concat();
        write(&files.join("1.trace"), &first);
        write(&files.join("2.trace"), &second);
        let mut heard = Heard::default();
        read(&directory, &mut heard).expect("a trace");
        assert_eq!(heard.continued, [0, 1, 0, 1, 0, 1]);
        assert_eq!(heard.executed, [(0, 10), (1, 30), (1, 40), (0, 20)]);
        std::fs::remove_dir_all(&directory).expect("the directory can be removed");
    }

    /// A directory for a test, with these empty files.
    fn directory(test: &str, files: &[&str]) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("hodo-{test}-{}", std::process::id()));
        for file in files {
            let path = directory.join(file);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            std::fs::write(path, []).expect("the file can be written");
        }
        directory
    }

    #[test]
    fn directories_as_the_tracer_leaves_them() {
        let raw = [
            "raw/drmemtrace.cat.77.1.raw.lz4",
            "raw/modules.log",
            "raw/encodings.bin",
        ];
        let converted = [
            "trace/drmemtrace.cat.77.1.trace.zip",
            "trace/cpu_schedule.bin.zip",
            "trace/serial_schedule.bin.gz",
        ];
        let whole = directory("converted", &[&raw[..], &converted].concat());
        let one = whole.join(converted[0]);
        assert_eq!(find(&whole), Found::Final(vec![one.clone()]));
        assert_eq!(find(&whole.join("trace")), Found::Final(vec![one]));
        std::fs::remove_dir_all(whole).expect("the directory can be removed");

        let unconverted = directory("raw", &[&raw[..], &["cpu_schedule.bin.zip"]].concat());
        std::fs::create_dir(unconverted.join("trace")).expect("a directory");
        for place in [unconverted.clone(), unconverted.join("raw")] {
            assert!(is_trace(&place));
            let error = read(&place, &mut Heard::default()).expect_err("nothing to read");
            let advice = format!("drraw2trace -indir {}", unconverted.display());
            assert!(error.to_string().contains(&advice), "{error}");
        }
        std::fs::remove_dir_all(unconverted).expect("the directory can be removed");

        let several = directory(
            "several",
            &["a.dir/raw/modules.log", "b.dir/raw/modules.log"],
        );
        let error = read(&several, &mut Heard::default()).expect_err("no choice");
        assert!(error.to_string().contains("2 directories"), "{error}");
        std::fs::remove_dir_all(several).expect("the directory can be removed");

        let empty = directory("empty", &["trace/x.trace"]);
        let error = read(&empty, &mut Heard::default()).expect_err("nothing to read");
        assert!(
            format!("{error:#}").contains("x.trace: it is empty"),
            "{error:#}"
        );
        std::fs::remove_dir_all(empty).expect("the directory can be removed");
        let other = directory("other", &["accesses.hodomem"]);
        assert!(!is_trace(&other));
        std::fs::remove_dir_all(other).expect("the directory can be removed");
    }
}
