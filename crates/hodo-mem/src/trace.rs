//! Memory traces in files. `docs/memory-trace-format.md` describes the format.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};

use anyhow::{Context, Result, bail};
use hodo_dbi::{Block, Events, Listener, Message};
use twox_hash::XxHash3_64;

use crate::heap;
use crate::packing::{self, Packer, Unpacker};

/// The version of the format.
pub const VERSION: u32 = 5;
/// What a file begins with.
const MAGIC: &[u8; 8] = b"HODOMEM\n";
/// How much time zstd takes.
const LEVEL: i32 = 1;
/// Whether it helps to pack records is looked at again after this many chunks of them.
const AGAIN: u32 = 32;
/// No chunk is longer, decompressed.
const LONGEST: u64 = 1 << 30;
/// Bytes of a chunk's head.
const HEAD: usize = 32;

/// What a chunk has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum Content {
    /// A thread begins.
    Thread = 1,
    /// Blocks of code.
    Blocks = 2,
    /// Records of a thread.
    Records = 3,
    /// The trace is complete.
    End = 4,
    /// A thread has mapped a file.
    Mapped = 5,
    /// How many instructions of a thread are missing.
    Lost = 6,
    /// Records that can be read without those before.
    Alone = 7,
}

/// Writes what the engine tells to a file.
pub struct Writer {
    path: PathBuf,
    file: BufWriter<File>,
    /// Blocks that are not in the file yet.
    blocks: Vec<Arc<Block>>,
    /// By number, whether the file has a block, or these do.
    has: Vec<bool>,
    compressor: zstd::bulk::Compressor<'static>,
    packer: Packer,
    /// Whether that helps, and the number of chunks of records until it is looked at again.
    packs: bool,
    left: u32,
    /// Bytes in the file.
    written: u64,
}

impl Writer {
    /// Creates a file, or replaces it.
    ///
    /// # Errors
    /// If that cannot be written.
    pub fn create(path: &Path) -> Result<Self> {
        let file =
            File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
        let mut this = Self {
            path: path.to_owned(),
            file: BufWriter::with_capacity(1 << 20, file),
            blocks: Vec::new(),
            has: Vec::new(),
            compressor: zstd::bulk::Compressor::new(LEVEL).context("zstd")?,
            packer: Packer::default(),
            packs: false,
            left: 0,
            written: 16,
        };
        this.file.write_all(MAGIC)?;
        this.file.write_all(&VERSION.to_le_bytes())?;
        this.file.write_all(&[0; 4])?;
        Ok(this)
    }

    /// Bytes in the file.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written
    }

    fn cannot(&self) -> String {
        format!("cannot write {}", self.path.display())
    }

    fn chunk(&mut self, content: Content, thread: u32, raw: &[u8]) -> Result<()> {
        let stored = self.compressed(raw)?;
        self.put(content, thread, (raw.len(), &stored))
    }

    fn compressed(&mut self, raw: &[u8]) -> Result<Vec<u8>> {
        let compressed = self.compressor.compress(raw);
        compressed.context("compressing the trace")
    }

    /// Records of a thread, packed if that helps.
    fn records(&mut self, thread: u32, records: &[u8]) -> Result<()> {
        let content = match hodo_dbi::stands_alone(records) {
            true => Content::Alone,
            false => Content::Records,
        };
        let mut options = Vec::with_capacity(2);
        if self.left == 0 || !self.packs {
            options.push((false, packing::plain(records)));
        }
        if self.left == 0 || self.packs {
            options.push((true, self.packer.pack(records)));
        }
        self.left = self.left.checked_sub(1).unwrap_or(AGAIN);
        let mut best: Option<(bool, usize, Vec<u8>)> = None;
        for (packs, raw) in options {
            let stored = self.compressed(&raw)?;
            // Those that zstd makes as small are compressed faster as they are.
            let is_better =
                |(_, _, best): &(bool, usize, Vec<u8>)| stored.len() < best.len() / 20 * 19;
            if best.as_ref().is_none_or(is_better) {
                best = Some((packs, raw.len(), stored));
            }
        }
        let Some((packs, len, stored)) = best else {
            return Ok(());
        };
        self.packs = packs;
        self.put(content, thread, (len, &stored))
    }

    /// Writes a chunk: bytes that it has decompressed, and those that are stored.
    fn put(&mut self, content: Content, thread: u32, (len, stored): (usize, &[u8])) -> Result<()> {
        let mut head = Vec::with_capacity(HEAD);
        head.extend((content as u32).to_le_bytes());
        head.extend(thread.to_le_bytes());
        head.extend((len as u64).to_le_bytes());
        head.extend((stored.len() as u64).to_le_bytes());
        head.extend(sum(&head, stored).to_le_bytes());
        let written = self.file.write_all(&head);
        let written = written.and_then(|()| self.file.write_all(stored));
        written.with_context(|| self.cannot())?;
        self.written += (head.len() + stored.len()) as u64;
        Ok(())
    }

    fn flush_blocks(&mut self) -> Result<()> {
        if self.blocks.is_empty() {
            return Ok(());
        }
        let blocks = std::mem::take(&mut self.blocks);
        let blocks: Vec<&Block> = blocks.iter().map(AsRef::as_ref).collect();
        let raw = postcard::to_allocvec(&blocks)?;
        self.chunk(Content::Blocks, 0, &raw)
    }
}

/// The checksum of a chunk: of the head before it, and of the stored bytes.
fn sum(head: &[u8], stored: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(XxHash3_64::oneshot(&head[..24]), stored)
}

impl Listener for Writer {
    fn hear(&mut self, message: &Message) -> Result<()> {
        match message {
            Message::Thread {
                thread,
                process,
                tid,
                maker,
            } => {
                let raw = postcard::to_allocvec(&(process, tid, maker))?;
                self.chunk(Content::Thread, *thread, &raw)
            }
            Message::Mapped {
                thread,
                file,
                address,
                size,
                offset,
            } => {
                let name = file.as_os_str().as_bytes();
                let raw = postcard::to_allocvec(&(name, address, size, offset))?;
                self.chunk(Content::Mapped, *thread, &raw)
            }
            Message::Block(block) => {
                let number = block.id as usize;
                if self.has.len() <= number {
                    self.has.resize(number + 1, false);
                }
                // In another part of a run, the same blocks come again.
                if !std::mem::replace(&mut self.has[number], true) {
                    self.packer.add(block);
                    self.blocks.push(Arc::clone(block));
                }
                Ok(())
            }
            Message::Records { thread, bytes } => {
                self.flush_blocks()?;
                self.records(*thread, bytes)
            }
            Message::Lost {
                thread,
                instructions,
            } => {
                let raw = postcard::to_allocvec(instructions)?;
                self.chunk(Content::Lost, *thread, &raw)
            }
            // A trace has no counts.
            Message::Counts { .. }
            | Message::Part { .. }
            | Message::Progress { .. }
            | Message::Words { .. } => Ok(()),
        }
    }

    fn events(&self) -> Events {
        heap::events().system_calls()
    }

    fn end(&mut self) -> Result<()> {
        self.flush_blocks()?;
        self.chunk(Content::End, 0, &[])?;
        let flushed = self.file.flush();
        flushed.with_context(|| self.cannot())
    }
}

/// Tells a listener what a file has. Returns what is wrong with the file, if something is: everything before that was
/// told.
///
/// # Errors
/// If there is no such file, it is not a memory trace, or the listener fails.
pub fn read(path: &Path, listener: &mut impl Listener) -> Result<Option<String>> {
    let name = path.display();
    let file = File::open(path).with_context(|| format!("cannot open {name}"))?;
    let mut file = BufReader::with_capacity(1 << 20, file);
    check(&mut file).with_context(|| name.to_string())?;
    tell(file, listener)
}

/// The same with the bytes of a file.
///
/// # Errors
/// If they are not a memory trace, or the listener fails.
pub fn read_from(
    mut file: impl Read + Send,
    listener: &mut impl Listener,
) -> Result<Option<String>> {
    check(&mut file)?;
    tell(file, listener)
}

/// Reads the head of a trace.
fn check(file: &mut impl Read) -> Result<()> {
    let mut head = [0; 16];
    file.read_exact(&mut head)
        .context("it is too short for a memory trace")?;
    if head[..8] != MAGIC[..] {
        bail!("it is not a memory trace of hodo");
    }
    let version = number(&head, 8);
    if version != VERSION {
        bail!("it has version {version} of the format; this hodo reads {VERSION}");
    }
    Ok(())
}

/// Tells a listener what comes after the head.
fn tell(mut file: impl Read + Send, listener: &mut impl Listener) -> Result<Option<String>> {
    // Another thread reads and unpacks, some chunks ahead.
    const AHEAD: usize = 8;
    let (sender, parts) = mpsc::sync_channel(AHEAD);
    let damage = std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut unpacker = Unpacker::default();
            loop {
                let part = next(&mut file, &mut unpacker);
                let is_last = matches!(part, Part::End(_));
                // If nobody receives it, the listener has enough.
                if sender.send(part).is_err() || is_last {
                    break;
                }
            }
        });
        for part in parts {
            match part {
                Part::Messages(messages) => {
                    for message in &messages {
                        listener.hear(message)?;
                    }
                }
                Part::End(damage) => return Ok(damage),
            }
            if listener.has_enough() {
                break;
            }
        }
        anyhow::Ok(None)
    })?;
    listener.end()?;
    Ok(damage)
}

/// Part of a file.
enum Part {
    /// What a chunk says.
    Messages(Vec<Message>),
    /// Nothing more can be read. If that is not where the trace ends: why.
    End(Option<String>),
}

/// Reads the next part of a file.
fn next(file: &mut impl Read, unpacker: &mut Unpacker) -> Part {
    let damage = |error: anyhow::Error| Part::End(Some(format!("it is damaged: {error:#}")));
    match chunk(file) {
        Ok(Some((Content::End, ..))) => Part::End(None),
        Ok(Some((content, thread, raw))) => match messages((content, thread, raw), unpacker) {
            Ok(messages) => Part::Messages(messages),
            Err(error) => damage(error),
        },
        Ok(None) => Part::End(Some("it ends too early: the recording was cut".to_owned())),
        Err(error) => damage(error),
    }
}

/// What a chunk says.
fn messages(
    (content, thread, raw): (Content, u32, Vec<u8>),
    unpacker: &mut Unpacker,
) -> Result<Vec<Message>> {
    let message = match content {
        Content::Thread => {
            let (process, tid, maker) =
                postcard::from_bytes(&raw).context("a thread cannot be read")?;
            Message::Thread {
                thread,
                process,
                tid,
                maker,
            }
        }
        Content::Mapped => {
            let (name, address, size, offset): (Vec<u8>, u64, u64, u64) =
                postcard::from_bytes(&raw).context("a file cannot be read")?;
            Message::Mapped {
                thread,
                file: OsString::from_vec(name).into(),
                address,
                size,
                offset,
            }
        }
        Content::Blocks => {
            let blocks: Vec<Block> = postcard::from_bytes(&raw).context("blocks cannot be read")?;
            let mut messages = Vec::with_capacity(blocks.len());
            for block in blocks {
                if !block.is_sound() {
                    bail!("a block makes no sense");
                }
                unpacker.add(&block);
                messages.push(Message::Block(Arc::new(block)));
            }
            return Ok(messages);
        }
        Content::Lost => Message::Lost {
            thread,
            instructions: postcard::from_bytes(&raw).context("a number cannot be read")?,
        },
        Content::Records | Content::Alone => Message::Records {
            thread,
            bytes: unpacker.unpack(&raw)?,
        },
        Content::End => return Ok(Vec::new()),
    };
    Ok(vec![message])
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(number(bytes, at)) | u64::from(number(bytes, at + 4)) << 32
}

/// Reads a chunk. `None`: the file ends here, or inside of it.
fn chunk(file: &mut impl Read) -> Result<Option<(Content, u32, Vec<u8>)>> {
    let mut head = [0; HEAD];
    if let Err(error) = file.read_exact(&mut head) {
        return end_of(error);
    }
    let content = match number(&head, 0) {
        1 => Content::Thread,
        2 => Content::Blocks,
        3 => Content::Records,
        4 => Content::End,
        5 => Content::Mapped,
        6 => Content::Lost,
        7 => Content::Alone,
        other => bail!("there is no content {other}"),
    };
    let (raw, stored) = (long(&head, 8), long(&head, 16));
    if raw > LONGEST || stored > LONGEST + LONGEST / 8 {
        bail!("a chunk is too long");
    }
    let mut bytes = Vec::new();
    // Not more than there is, whatever the head says.
    let read = file.take(stored).read_to_end(&mut bytes)?;
    if read as u64 != stored {
        return Ok(None);
    }
    if sum(&head, &bytes) != long(&head, 24) {
        bail!("the checksum of a chunk is wrong");
    }
    let bytes = zstd::bulk::decompress(&bytes, raw as usize).context("decompressing a chunk")?;
    Ok(Some((content, number(&head, 4), bytes)))
}

fn end_of<T>(error: io::Error) -> Result<Option<T>> {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Ok(None),
        _ => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Heard(Vec<(u32, u64)>);

    impl Listener for Heard {
        fn hear(&mut self, message: &Message) -> Result<()> {
            if let &Message::Lost {
                thread,
                instructions,
            } = message
            {
                self.0.push((thread, instructions));
            }
            Ok(())
        }

        fn end(&mut self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn losses_are_kept() {
        let path = std::env::temp_dir().join(format!("hodo-losses-{}", std::process::id()));
        let mut writer = Writer::create(&path).expect("a file");
        let losses = [(0, 7), (3, u64::MAX)];
        for (thread, instructions) in losses {
            let lost = Message::Lost {
                thread,
                instructions,
            };
            writer.hear(&lost).expect("room");
        }
        writer.end().expect("room");
        let mut heard = Heard::default();
        let damage = read(&path, &mut heard).expect("a trace");
        std::fs::remove_file(&path).expect("own file");
        assert_eq!((damage, heard.0), (None, losses.to_vec()));
    }
}
