//! The `events` file while it is being written: targets fill its chunks, and share its control area with hodo.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use hodo_abi::Span;
use hodo_trace::format::{
    BUCKET, BUCKET_ROOM, BUCKET_SIZE, CHUNK_HEADER_SIZE, CHUNK_MAGIC, CHUNK_SIZE, CONTROL_SIZE,
    FILE_MAGIC, FORMAT_VERSION, RECORD_SIZE, SHADOW_DISTANCE, chunk_header, file_header, record,
    tcb,
};
use memmap2::{MmapOptions, MmapRaw};

use crate::owner;
use hodo_ptrace::arch::counter;

/// How many bytes of the file targets map at most. It can grow to this size.
const SPAN: u64 = 256 << 30;

/// How many bytes of the file hodo maps, as far as its address space allows: the control area, and what it populates.
const OWN: [u64; 4] = [SPAN, 8 << 30, 64 << 20, CONTROL_SIZE];

/// The file has room for at least this many chunks more than are in use, and grows by as many when it has not. Unused
/// room is only address space of the file; filling it all takes a program much longer than hodo takes to wake up.
const ROOM_AHEAD: u64 = (1 << 30) / CHUNK_SIZE;

/// Maximum number of chunks in the file.
const MOST: u64 = (SPAN - CONTROL_SIZE) / CHUNK_SIZE;

/// Most recordings of small programs use fewer chunks than this.
const SMALL_TRACE: u64 = 8;

/// Bytes that stubs leave free at the end of a chunk.
const SPARE: u64 = 8 * RECORD_SIZE;

/// The rest of a chunk is given to another thread if it has at least this many bytes.
const WORTHWHILE: u64 = 4096;

/// Bytes that are allocated on the disk together.
const PAGE: usize = 4096;

/// The `events` file, mapped.
#[derive(Debug)]
pub struct Events {
    path: PathBuf,
    file: File,
    map: MmapRaw,
    /// The number of chunks that the file has room for; `None` once the recording has ended.
    room: Mutex<Option<u64>>,
    /// Why the file no longer grows.
    stuck: OnceLock<String>,
    /// hodo writes the time to the control blocks below this number; 0: to none.
    timed: AtomicU64,
    /// Where the chunks of ended threads have room for another.
    rests: Mutex<Vec<u64>>,
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
    /// Where the target has mapped the file, and how much of it.
    pub trace: Span,
    /// The islands.
    pub islands: [Span; 2],
    /// The stack whose shadow is mapped.
    pub shadow: Span,
    /// The ranges whose shadow is mapped as a whole.
    pub regions: [Span; 2],
    /// The ranges in which words of a stack count as addresses of code.
    pub code: [Span; 2],
    /// The address where the thread's stack ends; 0 if it is not known.
    pub stack_top: u64,
    /// Upper half of the counter.
    pub epoch: u32,
    /// Nothing is recorded: everything goes to the bucket.
    pub silent: bool,
    /// How the agent makes system calls ([`tcb::FLAGS`]).
    pub calls: u64,
    /// The stack range must not change, because several threads use this block.
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
        put(tcb::SHADOW_LO, self.shadow.start);
        put(tcb::SHADOW_LEN, self.shadow.len());
        put(tcb::ISLAND0_LO, self.islands[0].start);
        put(tcb::ISLAND0_LEN, self.islands[0].len());
        put(tcb::ISLAND1_LO, self.islands[1].start);
        put(tcb::ISLAND1_LEN, self.islands[1].len());
        put(tcb::REGION0_LO, self.regions[0].start);
        put(tcb::REGION0_LEN, self.regions[0].len());
        put(tcb::REGION1_LO, self.regions[1].start);
        put(tcb::REGION1_LEN, self.regions[1].len());
        put(tcb::CODE0_LO, self.code[0].start);
        put(tcb::CODE0_LEN, self.code[0].len());
        put(tcb::CODE1_LO, self.code[1].start);
        put(tcb::CODE1_LEN, self.code[1].len());
        put(tcb::STACK_TOP, self.stack_top);
        // There is no list for return probes.
        put(tcb::CHAIN_TOP, u64::MAX);
        put(tcb::FLAGS, self.calls);
        put(tcb::SHADOW_BUSY, u64::from(self.fixed));
        put(tcb::BASE, self.trace.start);
        put(tcb::BUCKET, self.trace.start + BUCKET);
        // The first record requests a chunk; the place before it must be readable.
        put(tcb::CURSOR, self.trace.start + BUCKET);
        put(tcb::LIMIT, self.trace.start + BUCKET);
        if !self.silent {
            put(
                tcb::MAX_CHUNKS,
                self.trace.len().saturating_sub(CONTROL_SIZE) / CHUNK_SIZE,
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
        file.set_len(CONTROL_SIZE)?;
        let mut mapped = Err(io::Error::other("no size tried"));
        for size in OWN {
            let len = usize::try_from(size).expect("64-bit");
            mapped = MmapOptions::new().len(len).map_raw(&file);
            if mapped.is_ok() {
                break;
            }
        }
        let events = Self {
            path: path.canonicalize()?,
            file,
            map: mapped?,
            room: Mutex::new(Some(0)),
            stuck: OnceLock::new(),
            timed: AtomicU64::new(0),
            rests: Mutex::default(),
        };
        events.read_singly(CONTROL_SIZE + SMALL_TRACE * CHUNK_SIZE);
        // The bucket must have its room even if the disk is full.
        if !events.allocate(BUCKET, CONTROL_SIZE - BUCKET)? {
            let zeros = vec![0; (CONTROL_SIZE - BUCKET) as usize];
            events.file.write_all_at(&zeros, BUCKET)?;
        }
        events.put_u64(file_header::MAX_CHUNKS, MOST);
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
        events.grow();
        match events.room() {
            Some(0) => Err(io::Error::from_raw_os_error(libc::EFBIG)),
            _ => Ok(events),
        }
    }

    /// Keeps the kernel from reading more of the file's beginning into memory than what is accessed: the usual
    /// read-ahead would read megabytes of zeros for each page.
    fn read_singly(&self, bytes: u64) {
        let bytes = self.map.len().min(bytes as usize);
        // SAFETY: the range is inside the mapping, which lives as long as `self`; the advice changes no contents. If it
        // fails, nothing else changes.
        let _ = unsafe { libc::madvise(self.map.as_mut_ptr().cast(), bytes, libc::MADV_RANDOM) };
    }

    /// Absolute path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The maximum size of the file in bytes.
    pub fn span(&self) -> u64 {
        SPAN
    }

    /// Why the file did not grow when it should have.
    pub fn stuck(&self) -> Option<&str> {
        self.stuck.get().map(String::as_str)
    }

    /// The number of chunks that the file has room for, while the recording goes on.
    fn room(&self) -> Option<u64> {
        *self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the file grow if its room will soon be used up.
    pub fn grow(&self) {
        self.grow_beyond(self.chunks() + ROOM_AHEAD);
    }

    /// Lets the file grow to its full size, for recordings in which nobody can do so later.
    pub fn grow_whole(&self) {
        self.grow_beyond(MOST);
    }

    fn grow_beyond(&self, wanted: u64) {
        let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(has) = *room else {
            return;
        };
        if has >= wanted.min(MOST) || self.stuck.get().is_some() {
            return;
        }
        let size = |chunks: u64| CONTROL_SIZE + chunks * CHUNK_SIZE;
        let wanted = (wanted + ROOM_AHEAD).min(MOST);
        let allowed = hodo_ptrace::limits::file_size().saturating_sub(CONTROL_SIZE) / CHUNK_SIZE;
        let mut try_for = wanted.min(allowed);
        while try_for > has {
            match self.file.set_len(size(try_for)) {
                Ok(()) => break,
                // The file system has a size limit of its own.
                Err(_) => try_for = has + (try_for - has) / 2,
            }
        }
        if try_for < wanted {
            let bytes = size(try_for.max(has)) >> 20;
            self.stuck.get_or_init(|| match try_for == allowed {
                true => format!(
                    "the limit on the size of files (ulimit -f) lets the trace grow to {bytes} MiB: raise it to record everything"
                ),
                false => format!("the file system lets the trace grow to {bytes} MiB: choose another place with --data"),
            });
        }
        if try_for > has {
            *room = Some(try_for);
            self.put_u64(file_header::ROOM_CHUNKS, try_for);
        }
    }

    fn u64_at(&self, offset: u64) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= CONTROL_SIZE);
        // SAFETY: in bounds and aligned (checked above; mappings are page-aligned); the memory is shared with other
        // processes and is only touched by atomic operations here; it lives as long as `self`.
        unsafe { &*self.map.as_mut_ptr().add(offset as usize).cast() }
    }

    fn u32_at(&self, offset: u64) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= CONTROL_SIZE);
        // SAFETY: as in `u64_at`.
        unsafe { &*self.map.as_mut_ptr().add(offset as usize).cast() }
    }

    fn put_u64(&self, offset: u64, value: u64) {
        self.u64_at(offset).store(value, Ordering::SeqCst);
    }

    fn put_u32(&self, offset: u64, value: u32) {
        self.u32_at(offset).store(value, Ordering::SeqCst);
    }

    /// Switches off what the switch at an offset stands for, before anyone else writes to the same word.
    pub fn switch_off(&self, offset: u64) {
        let mut bytes = self.get_u64(offset & !7).to_le_bytes();
        bytes[(offset & 7) as usize] = 0;
        self.put_u64(offset & !7, u64::from_le_bytes(bytes));
    }

    /// Whether the switch at an offset is on.
    pub fn switch(&self, offset: u64) -> bool {
        let word = self.get_u64(offset & !7);
        word.to_le_bytes()[(offset & 7) as usize] != 0
    }

    fn get_u64(&self, offset: u64) -> u64 {
        self.u64_at(offset).load(Ordering::SeqCst)
    }

    /// Shows targets that the calling thread traces them from here on.
    pub fn own(&self) {
        owner::take(self.u32_at(file_header::OWNER));
    }

    /// Shows targets that nobody traces them any more.
    pub fn disown(&self) {
        owner::give_up(self.u32_at(file_header::OWNER));
    }

    /// Allocates disk space for a part of the file, whose contents stay the same. Returns `false` if the file system
    /// cannot do that.
    ///
    /// Writing one byte in each page is not enough: file systems may have smaller blocks (1 KiB on a small ext4). When
    /// the disk is full, a store to a page raises SIGBUS if even one of its blocks is not allocated.
    fn allocate(&self, at: u64, len: u64) -> io::Result<bool> {
        let (at, len) = (at.cast_signed(), len.cast_signed());
        loop {
            // SAFETY: the call takes numbers, and the file is open.
            if unsafe { libc::fallocate(self.file.as_raw_fd(), 0, at, len) } == 0 {
                return Ok(true);
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EOPNOTSUPP | libc::ENOSYS) => return Ok(false),
                _ => return Err(error),
            }
        }
    }

    /// Allocates disk space for a thread control block, so that it can be filled.
    ///
    /// # Errors
    /// If there is no room. Then the block must not be accessed: a store to it would raise SIGBUS.
    pub fn reserve_tcb(&self, number: u64) -> io::Result<()> {
        // A page holds several. The first one allocates it, by writing a byte that is 0 in all unused blocks.
        let at = number * tcb::SIZE;
        if at.is_multiple_of(PAGE as u64) && !self.allocate(at, PAGE as u64)? {
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

    /// Some words of a thread control block.
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
    pub fn shadow_range(&self, number: u64) -> Span {
        let at = number * tcb::SIZE;
        Span::at(
            self.get_u64(at + tcb::SHADOW_LO),
            self.get_u64(at + tcb::SHADOW_LEN),
        )
    }

    /// From now on, writes the time to the control blocks below `end`, whose threads may not read the time counter.
    pub fn tell_time_to(&self, end: u64) {
        self.timed.fetch_max(end, Ordering::SeqCst);
        self.tell_time();
    }

    /// Writes the time to the control blocks that need it.
    pub fn tell_time(&self) {
        for number in tcb::FIRST..self.timed.load(Ordering::SeqCst) {
            let at = number * tcb::SIZE;
            let now = counter();
            // Only the thread itself changes the upper half; if it does not, its time stops there.
            let epoch = self.get_u64(at + tcb::EPOCH) & u64::from(u32::MAX);
            let time = match now >> 32 == epoch {
                true => now & u64::from(u32::MAX),
                false => u64::from(u32::MAX),
            };
            self.put_u64(at + tcb::NOW, time);
        }
    }

    /// Whether the time is written to any control block.
    pub fn tells_time(&self) -> bool {
        self.timed.load(Ordering::SeqCst) > 0
    }

    /// Stops the recording of a thread.
    pub fn stop_tcb(&self, number: u64) {
        self.put_u64(number * tcb::SIZE + tcb::MAX_CHUNKS, 0);
    }

    /// The start of the chunk that contains an offset of the file.
    pub fn chunk_at(offset: u64) -> Option<u64> {
        let inside = offset.checked_sub(CONTROL_SIZE)?;
        Some(CONTROL_SIZE + inside / CHUNK_SIZE * CHUNK_SIZE)
    }

    /// Redirects a thread's next records to the bucket.
    pub fn divert_tcb(&self, number: u64) {
        let at = number * tcb::SIZE;
        let bucket = self.get_u64(at + tcb::BUCKET);
        self.stop_tcb(number);
        self.put_u64(at + tcb::LIMIT, bucket + BUCKET_SIZE);
        self.put_u64(at + tcb::CURSOR, bucket);
    }

    /// Appends an event to a stopped thread's records, as its stubs would. If the disk has no room for it, it is lost,
    /// and counted.
    pub fn append(&self, number: u64, (id, time): (u32, u64), payload: &[u64]) {
        let at = number * tcb::SIZE;
        let epoch = (time >> 32) as u32;
        if time != 0 && self.u32_at(at + tcb::EPOCH).swap(epoch, Ordering::SeqCst) != epoch {
            self.put_u64(at + tcb::EPOCH_END, (u64::from(epoch) + 1) << 32);
            let special = record::SPECIAL << record::KIND_SHIFT | record::SPECIAL_EPOCH;
            self.append_words(number, &[u64::from(epoch) | u64::from(special) << 32]);
            if self.tells_time() {
                self.tell_time();
            }
        }
        let words = payload.len() as u64;
        let special = record::SPECIAL << record::KIND_SHIFT | record::SPECIAL_PAYLOAD;
        let mut all = vec![
            u64::from(id | record::ENTRY << record::KIND_SHIFT) << 32 | time & 0xFFFF_FFFF,
            u64::from(special) << 32 | words,
        ];
        all.extend(payload);
        self.append_words(number, &all);
    }

    fn append_words(&self, number: u64, words: &[u64]) {
        let at = number * tcb::SIZE;
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let length = bytes.len() as u64;
        let base = self.get_u64(at + tcb::BASE);
        let fits = |cursor: u64| {
            let limit = self.get_u64(at + tcb::LIMIT);
            cursor >= base + CONTROL_SIZE && cursor + length <= limit
        };
        let mut cursor = self.get_u64(at + tcb::CURSOR);
        if !fits(cursor) {
            cursor = self.open_chunk(number).unwrap_or(0);
        }
        // Uses writes, not stores: if the disk is full, writes fail, but stores raise signals. The first word is
        // written last: a reader that follows takes a record once it sees that word.
        let write = |bytes: &[u8], at| self.file.write_all_at(bytes, at).is_ok();
        let (first, rest) = bytes.split_at(RECORD_SIZE as usize);
        let place = cursor.wrapping_sub(base);
        let done = fits(cursor) && write(rest, place + RECORD_SIZE) && write(first, place);
        match done {
            true => self.put_u64(at + tcb::CURSOR, cursor + length),
            false => {
                let lost = self.get_u64(at + tcb::LOST);
                self.put_u64(at + tcb::LOST, lost + 1);
            }
        }
    }

    /// Gives a stopped thread its next chunk. Returns the address of its records in the thread's memory.
    fn open_chunk(&self, number: u64) -> Option<u64> {
        let at = number * tcb::SIZE;
        self.grow();
        let room = self.get_u64(file_header::ROOM_CHUNKS);
        let most = self.get_u64(at + tcb::MAX_CHUNKS).min(room);
        // Other threads open chunks at the same time.
        let taken = self.u64_at(file_header::NEXT_CHUNK).fetch_update(
            Ordering::SeqCst,
            Ordering::SeqCst,
            |next| (next < most).then_some(next + 1),
        );
        let chunk = taken.ok()?;
        self.begin_chunk(number, CONTROL_SIZE + chunk * CHUNK_SIZE)
    }

    /// Begins a stopped thread's next chunk at a place in the file. Returns the address of its records in the thread's
    /// memory.
    fn begin_chunk(&self, number: u64, place: u64) -> Option<u64> {
        let at = number * tcb::SIZE;
        let mut header = [0; CHUNK_HEADER_SIZE as usize];
        let mut put = |offset: u64, bytes: &[u8]| {
            header[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        };
        let word = |offset: u64| self.u32_at(at + offset).load(Ordering::SeqCst);
        put(chunk_header::MAGIC, &CHUNK_MAGIC.to_le_bytes());
        put(chunk_header::SEQ, &word(tcb::SEQ).to_le_bytes());
        put(chunk_header::TASK, &word(tcb::TASK).to_le_bytes());
        put(chunk_header::EPOCH, &word(tcb::EPOCH).to_le_bytes());
        put(
            chunk_header::LOST,
            &self.get_u64(at + tcb::LOST).to_le_bytes(),
        );
        self.file.write_all_at(&header, place).ok()?;
        self.put_u32(at + tcb::SEQ, word(tcb::SEQ) + 1);
        let base = self.get_u64(at + tcb::BASE);
        let first = base + place + CHUNK_HEADER_SIZE;
        let end = Self::chunk_at(place)? + CHUNK_SIZE;
        self.put_u64(at + tcb::CURSOR, first);
        self.put_u64(at + tcb::LIMIT, base + end - SPARE);
        Some(first)
    }

    /// Keeps the rest of the last chunk of a thread that has ended, for another thread. Short threads need far less
    /// than a chunk, and what they use of one is memory of their process.
    pub fn keep_rest(&self, number: u64) {
        let at = number * tcb::SIZE;
        let [base, cursor, limit] =
            [tcb::BASE, tcb::CURSOR, tcb::LIMIT].map(|offset| self.get_u64(at + offset));
        let offset = cursor.wrapping_sub(base);
        let Some(chunk) = Self::chunk_at(offset) else {
            return;
        };
        // A thread whose recording has stopped is in the bucket, or is about to be.
        if limit != base + chunk + CHUNK_SIZE - SPARE {
            return;
        }
        let rest = offset.next_multiple_of(CHUNK_HEADER_SIZE);
        if rest + WORTHWHILE > chunk + CHUNK_SIZE
            || self.chunks() <= (chunk - CONTROL_SIZE) / CHUNK_SIZE
        {
            return;
        }
        let half = |place: u64| {
            let mut word = [0; 4];
            let read = self.file.read_exact_at(&mut word, place);
            read.map(|()| u64::from(u32::from_le_bytes(word)))
        };
        // Its own part is the last one there.
        let mut own = chunk;
        while let Ok(next @ 1..) = half(own + chunk_header::REST) {
            if chunk + next <= own || chunk + next >= offset {
                return;
            }
            own = chunk + next;
        }
        let task = u64::from(self.u32_at(at + tcb::TASK).load(Ordering::SeqCst));
        if half(own).ok() != Some(CHUNK_MAGIC.into())
            || half(own + chunk_header::TASK).ok() != Some(task)
        {
            return;
        }
        // A thread that was killed may have written beyond its cursor, which readers would take for another's records.
        let mut after = vec![0; (chunk + CHUNK_SIZE - offset) as usize];
        if self.file.read_exact_at(&mut after, offset).is_err() || after.iter().any(|&b| b != 0) {
            return;
        }
        let word = ((rest - chunk) as u32).to_le_bytes();
        if self
            .file
            .write_all_at(&word, own + chunk_header::REST)
            .is_ok()
        {
            let mut rests = self.rests.lock().unwrap_or_else(PoisonError::into_inner);
            rests.push(rest);
            // Whatever else runs with this control block, unknown to hodo, must not write there.
            self.divert_tcb(number);
        }
    }

    /// Gives a thread that has not begun yet the rest of another one's chunk, if there is any.
    pub fn give_rest(&self, number: u64) {
        let mut rests = self.rests.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(&place) = rests.last() else { return };
        let most = self.get_u64(number * tcb::SIZE + tcb::MAX_CHUNKS);
        if (place - CONTROL_SIZE) / CHUNK_SIZE < most && self.begin_chunk(number, place).is_some() {
            rests.pop();
        }
    }

    /// The number of records that a thread has lost so far.
    pub fn lost(&self, number: u64) -> u64 {
        let at = number * tcb::SIZE;
        let bucket = self.get_u64(at + tcb::BUCKET);
        let cursor = self.get_u64(at + tcb::CURSOR);
        // The cursor of a thread that was killed on its way to its first chunk looks the same, but nothing was lost.
        let limit = self.get_u64(at + tcb::LIMIT);
        let diverted = limit > bucket && limit <= bucket + BUCKET_ROOM;
        let inside = cursor
            .checked_sub(bucket)
            .filter(|&bytes| diverted && bytes <= BUCKET_ROOM)
            .unwrap_or(0);
        self.get_u64(at + tcb::LOST) + inside / RECORD_SIZE
    }

    /// The number of a thread's entries that have no exit because their stack has no shadow.
    pub fn unshadowed(&self, number: u64) -> u64 {
        self.get_u64(number * tcb::SIZE + tcb::UNSHADOWED)
    }

    /// Chunks handed out so far.
    pub fn chunks(&self) -> u64 {
        self.get_u64(file_header::NEXT_CHUNK).min(MOST)
    }

    /// Allocates disk space for the chunks in `range`, so that targets need not do so page by page. Returns whether
    /// there was room.
    pub fn populate(&self, range: std::ops::Range<u64>) -> bool {
        let mapped = self.map.len() as u64;
        let most = self.room().unwrap_or(0);
        let start = CONTROL_SIZE + range.start * CHUNK_SIZE;
        let end = (CONTROL_SIZE + range.end.min(most) * CHUNK_SIZE).min(mapped);
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

    /// Truncates the file after its last chunk.
    ///
    /// # Errors
    /// Whatever the file system says.
    pub fn finish(&self) -> io::Result<()> {
        let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        *room = None;
        // Threads that still run get no chunk after the end.
        self.put_u64(file_header::ROOM_CHUNKS, 0);
        self.file.set_len(CONTROL_SIZE + self.chunks() * CHUNK_SIZE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMBER: u64 = tcb::FIRST;

    /// A thread that has recorded an event. Returns its chunk, too.
    fn recorded(name: &str) -> (Events, u64) {
        let directory = std::env::temp_dir().join(format!("hodo-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).expect("a directory");
        let events = Events::create(&directory, true).expect("events");
        let _ = std::fs::remove_dir_all(&directory);
        let none = Span::default();
        events.init_tcb(
            NUMBER,
            &TcbInit {
                task: 7,
                tid: 100,
                pid: 100,
                comm: [0; 16],
                trace: Span::at(1 << 40, SPAN),
                islands: [none; 2],
                shadow: none,
                regions: [none; 2],
                code: [none; 2],
                stack_top: 0,
                epoch: 0,
                silent: false,
                calls: 0,
                fixed: false,
            },
        );
        events.append(NUMBER, (1, 5), &[1, 2, 3]);
        (events, CONTROL_SIZE)
    }

    fn word(events: &Events, place: u64) -> u32 {
        let mut word = [0; 4];
        let read = events.file.read_exact_at(&mut word, place);
        read.expect("a word");
        u32::from_le_bytes(word)
    }

    #[test]
    fn the_rest_of_a_chunk_is_given_once() {
        let (events, chunk) = recorded("rest");
        events.keep_rest(NUMBER);
        // The header, and five words.
        assert_eq!(word(&events, chunk + chunk_header::REST), 128);
        events.keep_rest(NUMBER);
        assert_eq!(events.rests.lock().expect("rests").len(), 1);
        // What runs on with this control block writes elsewhere.
        events.append(NUMBER, (1, 5), &[1]);
        assert_eq!(word(&events, chunk + 128), 0);
    }

    #[test]
    fn a_chunk_that_was_written_to_after_its_end_is_given_to_nobody() {
        let (events, chunk) = recorded("written");
        let written = events.file.write_all_at(&[1], chunk + 512);
        written.expect("a byte");
        events.keep_rest(NUMBER);
        assert_eq!(word(&events, chunk + chunk_header::REST), 0);
        assert!(events.rests.lock().expect("rests").is_empty());
    }
}
