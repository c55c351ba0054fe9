//! The `events` file while it is being written: chunks are filled by the targets, the control area is shared with them.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use hodo_trace::format::{
    BUCKET, BUCKET_ROOM, BUCKET_SIZE, CHUNK_SIZE, CONTROL_SIZE, FILE_MAGIC, FORMAT_VERSION,
    RECORD_SIZE, SHADOW_DISTANCE, SHADOW_MARGIN, file_header, tcb,
};
use memmap2::{MmapOptions, MmapRaw};

/// Sizes of the sparse file that are tried, in bytes: not every file system takes the first.
const SPANS: [u64; 4] = [256 << 30, 32 << 30, 4 << 30, 512 << 20];

/// Bytes that have a place on the disk together.
const PAGE: usize = 4096;

/// The `events` file, mapped.
#[derive(Debug)]
pub struct Events {
    path: PathBuf,
    file: File,
    map: MmapRaw,
}

/// What a thread control block starts with. Addresses are the target's.
#[derive(Debug, Clone, Copy, Default)]
pub struct TcbInit {
    /// Task number.
    pub task: u32,
    /// Thread id.
    pub tid: u32,
    /// Process id.
    pub pid: u32,
    /// The thread's name, with a byte 0 at its end.
    pub comm: [u8; 16],
    /// Where the target has the file mapped.
    pub base: u64,
    /// How much of it.
    pub span: u64,
    /// Start and length of the island regions.
    pub islands: [(u64, u64); 2],
    /// Start and length of the stack whose shadow is mapped.
    pub shadow: (u64, u64),
    /// Start and length of the ranges whose shadow is mapped as a whole.
    pub regions: [(u64, u64); 2],
    /// Upper half of the counter.
    pub epoch: u32,
    /// Nothing is recorded: all goes to the bucket.
    pub silent: bool,
    /// How the agent makes system calls ([`tcb::FLAGS`]).
    pub calls: u64,
    /// The range of the stack stays as it is: several threads have this block.
    pub fixed: bool,
}

impl TcbInit {
    /// The block's contents.
    pub fn words(&self) -> [u64; tcb::SIZE as usize / 8] {
        let mut words = [0; tcb::SIZE as usize / 8];
        let mut put = |offset: u64, value: u64| words[offset as usize / 8] = value;
        put(
            tcb::EPOCH,
            u64::from(self.epoch) | u64::from(self.task) << 32,
        );
        put(tcb::EPOCH_END, (u64::from(self.epoch) + 1) << 32);
        put(tcb::TO_SHADOW, SHADOW_DISTANCE.wrapping_neg());
        put(tcb::TID & !7, u64::from(self.tid) << (tcb::TID % 8 * 8));
        put(tcb::PID, u64::from(self.pid));
        let (low, high) = self.comm.split_at(8);
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
        put(tcb::COMM, word(low));
        put(tcb::COMM + 8, word(high));
        put(tcb::SHADOW_LO, self.shadow.0);
        put(tcb::SHADOW_LEN, self.shadow.1);
        let top = self.shadow.0.wrapping_add(self.shadow.1);
        put(tcb::SHADOW_TOP, top.saturating_sub(SHADOW_MARGIN));
        put(tcb::ISLAND0_LO, self.islands[0].0);
        put(tcb::ISLAND0_LEN, self.islands[0].1);
        put(tcb::ISLAND1_LO, self.islands[1].0);
        put(tcb::ISLAND1_LEN, self.islands[1].1);
        put(tcb::REGION0_LO, self.regions[0].0);
        put(tcb::REGION0_LEN, self.regions[0].1);
        put(tcb::REGION1_LO, self.regions[1].0);
        put(tcb::REGION1_LEN, self.regions[1].1);
        // No list for return probes.
        put(tcb::CHAIN_TOP, u64::MAX);
        put(tcb::FLAGS, self.calls);
        put(tcb::SHADOW_BUSY, u64::from(self.fixed));
        put(tcb::BASE, self.base);
        put(tcb::BUCKET, self.base + BUCKET);
        // The first record asks for a chunk; the place before it can be read.
        put(tcb::CURSOR, self.base + BUCKET);
        put(tcb::LIMIT, self.base + BUCKET);
        if !self.silent {
            put(
                tcb::MAX_CHUNKS,
                self.span.saturating_sub(CONTROL_SIZE) / CHUNK_SIZE,
            );
        }
        words
    }
}

impl Events {
    /// Makes the file in `directory`.
    ///
    /// # Errors
    /// Whatever the file system says.
    pub fn create(directory: &Path, timed: bool) -> io::Result<Self> {
        let path = directory.join("events");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        let mut made = Err(io::Error::other("no size tried"));
        for span in SPANS {
            made = file.set_len(span).and_then(|()| {
                let len = usize::try_from(span).expect("64-bit");
                MmapOptions::new().len(len).map_raw(&file)
            });
            if made.is_ok() {
                break;
            }
        }
        let events = Self {
            path: path.canonicalize()?,
            file,
            map: made?,
        };
        // The bucket has to be there when the disk is full.
        for at in (BUCKET..CONTROL_SIZE).step_by(PAGE) {
            events.file.write_all_at(&[0], at)?;
        }
        events.put_u64(
            file_header::MAX_CHUNKS,
            (events.span() - CONTROL_SIZE) / CHUNK_SIZE,
        );
        events.put_u64(file_header::MAGIC, u64::from_le_bytes(FILE_MAGIC));
        events.put_u32(file_header::VERSION, FORMAT_VERSION);
        events.put_u32(
            file_header::CHUNK_SIZE,
            u32::try_from(CHUNK_SIZE).expect("small"),
        );
        events.put_u64(file_header::CONTROL_SIZE, CONTROL_SIZE);
        for at in (file_header::SWITCHES..file_header::SWITCHES_END).step_by(8) {
            events.put_u64(at, u64::from_le_bytes([1; 8]));
        }
        events.put_u64(file_header::FLAGS, u64::from(timed));
        Ok(events)
    }

    /// Absolute path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Bytes of the sparse file.
    pub fn span(&self) -> u64 {
        self.map.len() as u64
    }

    fn u64_at(&self, offset: u64) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.span());
        // SAFETY: in bounds and aligned (checked above; mappings are page-aligned); the memory is shared with other
        // processes and is only touched by atomic operations here; it lives as long as `self`.
        unsafe { &*self.map.as_mut_ptr().add(offset as usize).cast() }
    }

    fn u32_at(&self, offset: u64) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.span());
        // SAFETY: as in `u64_at`.
        unsafe { &*self.map.as_mut_ptr().add(offset as usize).cast() }
    }

    fn put_u64(&self, offset: u64, value: u64) {
        self.u64_at(offset).store(value, Ordering::SeqCst);
    }

    fn put_u32(&self, offset: u64, value: u32) {
        self.u32_at(offset).store(value, Ordering::SeqCst);
    }

    fn get_u64(&self, offset: u64) -> u64 {
        self.u64_at(offset).load(Ordering::SeqCst)
    }

    /// Gives a thread control block its place on the disk, so that it can be filled.
    ///
    /// # Errors
    /// If there is no room. The block must not be touched then: a store to it would be a SIGBUS.
    pub fn reserve_tcb(&self, number: u64) -> io::Result<()> {
        // A page holds some. The first of them has it made, with a byte that is 0 in all blocks that nobody has used.
        let at = number * tcb::SIZE;
        if at.is_multiple_of(PAGE as u64) {
            self.file.write_all_at(&[0], at)?;
        }
        Ok(())
    }

    /// Fills a thread control block.
    pub fn init_tcb(&self, number: u64, init: &TcbInit) {
        let at = number * tcb::SIZE;
        for (index, &word) in init.words().iter().enumerate() {
            self.put_u64(at + index as u64 * 8, word);
        }
    }

    /// The words of a range of a thread control block.
    pub fn tcb_words(&self, number: u64, range: std::ops::Range<u64>) -> Vec<u64> {
        let at = number * tcb::SIZE;
        range
            .step_by(8)
            .map(|offset| self.get_u64(at + offset))
            .collect()
    }

    /// Writes words into a thread control block.
    pub fn put_tcb_words(&self, number: u64, offset: u64, words: &[u64]) {
        let at = number * tcb::SIZE + offset;
        for (index, &word) in words.iter().enumerate() {
            self.put_u64(at + index as u64 * 8, word);
        }
    }

    /// The stack range whose shadow a thread has mapped.
    pub fn shadow_range(&self, number: u64) -> (u64, u64) {
        let at = number * tcb::SIZE;
        (
            self.get_u64(at + tcb::SHADOW_LO),
            self.get_u64(at + tcb::SHADOW_LEN),
        )
    }

    /// Lets a thread record no more.
    pub fn stop_tcb(&self, number: u64) {
        self.put_u64(number * tcb::SIZE + tcb::MAX_CHUNKS, 0);
    }

    /// Where the chunk is that holds an offset of the file.
    pub fn chunk_at(offset: u64) -> Option<u64> {
        let inside = offset.checked_sub(CONTROL_SIZE)?;
        Some(CONTROL_SIZE + inside / CHUNK_SIZE * CHUNK_SIZE)
    }

    /// Leads a thread's next records into the bucket.
    pub fn divert_tcb(&self, number: u64) {
        let at = number * tcb::SIZE;
        let bucket = self.get_u64(at + tcb::BUCKET);
        self.stop_tcb(number);
        self.put_u64(at + tcb::LIMIT, bucket + BUCKET_SIZE);
        self.put_u64(at + tcb::CURSOR, bucket);
    }

    /// Records that a thread has lost so far.
    pub fn lost(&self, number: u64) -> u64 {
        let at = number * tcb::SIZE;
        let bucket = self.get_u64(at + tcb::BUCKET);
        let cursor = self.get_u64(at + tcb::CURSOR);
        // A thread that was killed on its way to its first chunk has a cursor there, too, but lost nothing.
        let limit = self.get_u64(at + tcb::LIMIT);
        let diverted = limit > bucket && limit <= bucket + BUCKET_ROOM;
        let inside = cursor
            .checked_sub(bucket)
            .filter(|&bytes| diverted && bytes <= BUCKET_ROOM)
            .unwrap_or(0);
        self.get_u64(at + tcb::LOST) + inside / RECORD_SIZE
    }

    /// Entries of a thread that have no exit because their stack has no shadow.
    pub fn unshadowed(&self, number: u64) -> u64 {
        self.get_u64(number * tcb::SIZE + tcb::UNSHADOWED)
    }

    /// Chunks handed out so far.
    pub fn chunks(&self) -> u64 {
        let most = (self.span() - CONTROL_SIZE) / CHUNK_SIZE;
        self.get_u64(file_header::NEXT_CHUNK).min(most)
    }

    /// Gives the chunks in `range` their place on the disk, so that the targets need not do so page by page.
    /// Tells whether there was room.
    pub fn populate(&self, range: std::ops::Range<u64>) -> bool {
        let start = (CONTROL_SIZE + range.start * CHUNK_SIZE).min(self.span());
        let end = (CONTROL_SIZE + range.end * CHUNK_SIZE).min(self.span());
        if start >= end {
            return true;
        }
        // SAFETY: the range is inside the mapping, which lives as long as `self`; populating changes no contents.
        let done = unsafe {
            libc::madvise(
                self.map.as_mut_ptr().add(start as usize).cast(),
                (end - start) as usize,
                libc::MADV_POPULATE_WRITE,
            )
        };
        done == 0
    }

    /// Cuts the file behind its last chunk.
    ///
    /// # Errors
    /// Whatever the file system says.
    pub fn finish(&self) -> io::Result<()> {
        self.file.set_len(CONTROL_SIZE + self.chunks() * CHUNK_SIZE)
    }
}
