//! The file with the records of all threads and processes.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use hodo_trace::format::{
    CHUNK_HEADER_SIZE, CHUNK_MAGIC, CHUNK_SIZE, CONTROL_SIZE, FILE_MAGIC, FORMAT_VERSION,
    chunk_header, file_header,
};

/// How much of the file is reserved at a time.
const STEP: u64 = 4 << 20;
/// How large it may become.
const LARGEST: u64 = 64 << 30;

// Words that all processes of a recording share. The first thread control block is there in other traces; only a
// running recorder reads those.
/// The number of tasks.
pub const TASKS: u64 = 4096;
/// The number of modules.
pub const MODULES: u64 = 4104;
/// The number of functions.
pub const FUNCTIONS: u64 = 4112;
/// Records that were lost.
pub const LOST: u64 = 4120;

/// The mapped file.
pub struct Events {
    path: PathBuf,
    start: usize,
    /// The number of chunks that are mapped.
    most: u64,
}

impl Events {
    /// Makes it.
    pub fn create(directory: &Path) -> io::Result<Self> {
        let path = directory.join("events");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        file.set_len(CONTROL_SIZE)?;
        let mut size = LARGEST;
        let start = loop {
            // Limits may forbid to map as much.
            match map(&file, size) {
                Ok(start) => break start,
                Err(_) if size > CONTROL_SIZE + STEP => size /= 2,
                Err(error) => return Err(error),
            }
        };
        let most = (size - CONTROL_SIZE) / CHUNK_SIZE;
        let write = |at: u64, bytes: &[u8]| file.write_all_at(bytes, at);
        write(file_header::VERSION, &FORMAT_VERSION.to_le_bytes())?;
        write(file_header::CHUNK_SIZE, &(CHUNK_SIZE as u32).to_le_bytes())?;
        write(file_header::CONTROL_SIZE, &CONTROL_SIZE.to_le_bytes())?;
        write(file_header::MAX_CHUNKS, &most.to_le_bytes())?;
        write(file_header::FLAGS, &1u64.to_le_bytes())?;
        write(file_header::SWITCHES, &[1; 3072])?;
        write(file_header::MAGIC, &FILE_MAGIC)?;
        let events = Self { path, start, most };
        // The pages of the control area that are used exist, whatever happens to the disk.
        reserve(&file, 0, 2 * 4096)?;
        events.grow(0)?;
        Ok(events)
    }

    /// A word of the control area.
    pub fn word(&self, at: u64) -> &'static AtomicU64 {
        // SAFETY: the control area is mapped, and stays so; words in it are aligned.
        unsafe { &*((self.start as u64 + at) as *const AtomicU64) }
    }

    /// The number of chunks that were handed out.
    pub fn chunks(&self) -> u64 {
        let next = self.word(file_header::NEXT_CHUNK).load(Ordering::Relaxed);
        next.min(self.most)
    }

    /// Reserves room for a chunk, and for some after it.
    fn grow(&self, chunk: u64) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(&self.path)?;
        let begin = CONTROL_SIZE + chunk * CHUNK_SIZE;
        let end = (begin + STEP).min(CONTROL_SIZE + self.most * CHUNK_SIZE);
        let mut limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: it writes such a structure. A larger file would end the program by a signal.
        let known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } == 0;
        if known && end > limit.rlim_cur {
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        }
        reserve(&file, begin, end - begin)?;
        let room = (end - CONTROL_SIZE) / CHUNK_SIZE;
        self.word(file_header::ROOM_CHUNKS)
            .fetch_max(room, Ordering::Relaxed);
        Ok(())
    }

    /// Hands out a chunk. Returns the addresses of its first record, and of its end; none if there is no room for it.
    pub fn chunk(&self, task: u32, seq: u32, epoch: u32, lost: u64) -> Option<(usize, usize)> {
        let next = self.word(file_header::NEXT_CHUNK);
        let mut chunk = next.load(Ordering::Relaxed);
        loop {
            if chunk >= self.most {
                return None;
            }
            if chunk >= self.word(file_header::ROOM_CHUNKS).load(Ordering::Relaxed) {
                self.grow(chunk).ok()?;
            }
            match next.compare_exchange(chunk, chunk + 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break,
                Err(other) => chunk = other,
            }
        }
        let at = self.start as u64 + CONTROL_SIZE + chunk * CHUNK_SIZE;
        let set = |field: u64, value: u32| {
            // SAFETY: the chunk is mapped, and belongs to this thread.
            unsafe { &*((at + field) as *const AtomicU32) }.store(value, Ordering::Relaxed);
        };
        set(chunk_header::SEQ, seq);
        set(chunk_header::TASK, task);
        set(chunk_header::EPOCH, epoch);
        set(chunk_header::LOST, lost as u32);
        set(chunk_header::LOST + 4, (lost >> 32) as u32);
        set(chunk_header::MAGIC, CHUNK_MAGIC);
        Some((
            (at + CHUNK_HEADER_SIZE) as usize,
            (at + CHUNK_SIZE) as usize,
        ))
    }
}

/// Maps a file; more than it has now.
fn map(file: &File, size: u64) -> io::Result<usize> {
    // SAFETY: a new mapping.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_NORESERVE,
            file.as_raw_fd(),
            0,
        )
    };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(at as usize)
}

/// Makes room on the disk: writing to a mapped page for which there is none would end the program.
fn reserve(file: &File, from: u64, length: u64) -> io::Result<()> {
    // SAFETY: it changes only the file.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), from as i64, length as i64) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}
