//! The memory of another process.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};

use crate::request::check;
use crate::target::TargetAddr;

/// Bytes that one request writes.
const WORD: usize = 8;

/// Another process's memory.
#[derive(Debug)]
pub struct Memory {
    file: File,
    /// A thread of the process.
    tid: i32,
}

/// Reads as much as this thread can read. Returns how many bytes that is.
pub(crate) fn load(tid: i32, at: TargetAddr, buffer: &mut [u8]) -> usize {
    let here = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    // SAFETY: the call writes at most the bytes of the buffer.
    let got = unsafe {
        let there = there(at, buffer.len());
        libc::process_vm_readv(tid, &raw const here, 1, &raw const there, 1, 0)
    };
    usize::try_from(got).unwrap_or(0)
}

/// Writes as much as this thread can write. Returns how many bytes that is.
pub(crate) fn store(tid: i32, at: TargetAddr, bytes: &[u8]) -> usize {
    let here = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: the call only reads the bytes.
    let put = unsafe {
        let there = there(at, bytes.len());
        libc::process_vm_writev(tid, &raw const here, 1, &raw const there, 1, 0)
    };
    usize::try_from(put).unwrap_or(0)
}

impl Memory {
    /// Opens the memory of the process that `tid` belongs to. It stays that process's memory across an exec: open anew.
    pub fn open(tid: i32) -> Result<Self> {
        let path = format!("/proc/{tid}/mem");
        let file = File::options().read(true).write(true).open(&path);
        let file = file.map_err(|error| {
            let why = match error.kind() {
                io::ErrorKind::PermissionDenied => {
                    ": it protects itself (prctl PR_SET_DUMPABLE), or belongs to another user; root may open it"
                }
                _ => "",
            };
            anyhow::Error::new(error)
                .context(format!("cannot open {path}, the memory of process {tid}{why}"))
        })?;
        Ok(Self { file, tid })
    }

    /// Another way to the same memory.
    ///
    /// # Errors
    /// If too many files are open.
    pub fn another(&self) -> Result<Self> {
        let file = self.file.try_clone().context("the target's memory")?;
        Ok(Self {
            file,
            tid: self.tid,
        })
    }

    /// Reads all of `buffer`.
    pub fn read(&self, at: TargetAddr, buffer: &mut [u8]) -> Result<()> {
        self.file
            .read_exact_at(buffer, at.0)
            .with_context(|| format!("reading the target's memory at {at:#x}"))
    }

    /// Writes all of `bytes`, also to read-only code (as a debugger does).
    ///
    /// A kernel may refuse to write read-only memory through the file (`proc_mem.force_override=never`, Linux 6.12).
    /// The bytes are then written by requests, if the thread that [`Memory::open`] was given is stopped.
    pub fn write(&self, at: TargetAddr, bytes: &[u8]) -> Result<()> {
        let written = self.file.write_all_at(bytes, at.0);
        let written = match written {
            Err(error) if error.raw_os_error() == Some(libc::EIO) => {
                self.poke(at, bytes).map_err(|_| error)
            }
            written => written,
        };
        written.with_context(|| format!("writing the target's memory at {at:#x}"))
    }

    /// Writes by `PTRACE_POKEDATA`, in aligned words.
    fn poke(&self, at: TargetAddr, bytes: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let here = at.offset(done as u64);
            let inside = here.0 as usize % WORD;
            let count = (WORD - inside).min(bytes.len() - done);
            let start = TargetAddr(here.0 - inside as u64);
            let mut word = [0; WORD];
            if count < WORD {
                self.read(start, &mut word)?;
            }
            word[inside..inside + count].copy_from_slice(&bytes[done..done + count]);
            // SAFETY: the request takes a number, and no pointer into our memory.
            let result = unsafe {
                let word = u64::from_ne_bytes(word);
                libc::ptrace(libc::PTRACE_POKEDATA, self.tid, start.0, word)
            };
            check(result, "the memory", self.tid)?;
            done += count;
        }
        Ok(())
    }

    /// Reads what can be read of `buffer`; returns how many bytes that was.
    pub fn read_some(&self, at: TargetAddr, buffer: &mut [u8]) -> usize {
        let mut done = 0;
        while done < buffer.len() {
            match self
                .file
                .read_at(&mut buffer[done..], at.offset(done as u64).0)
            {
                Ok(count) if count > 0 => done += count,
                _ => break,
            }
        }
        done
    }

    /// Reads as much of `buffer` as the target itself can read (`process_vm_readv(2)`). Returns how many bytes that is.
    /// None, if the thread has ended by which the memory was opened.
    pub fn load(&self, at: TargetAddr, buffer: &mut [u8]) -> usize {
        load(self.tid, at, buffer)
    }

    /// Writes as much of `bytes` as the target itself can write (`process_vm_writev(2)`). Returns how many that is.
    /// None, if the thread has ended by which the memory was opened.
    pub fn store(&self, at: TargetAddr, bytes: &[u8]) -> usize {
        store(self.tid, at, bytes)
    }

    /// Writes words at these addresses, in this order, where the target itself can write. Returns at how many
    /// addresses.
    pub fn store_words<const N: usize>(&self, words: &[(TargetAddr, [u64; N])]) -> usize {
        /// The kernel's limit (`UIO_MAXIOV`).
        const MOST: usize = 1024;
        let mut done = 0;
        for part in words.chunks(MOST) {
            let here: Vec<u64> = part.iter().flat_map(|&(_, words)| words).collect();
            let from = libc::iovec {
                iov_base: here.as_ptr().cast_mut().cast(),
                iov_len: here.len() * WORD,
            };
            let to = part.iter().map(|&(at, _)| there(at, N * WORD));
            let to: Vec<libc::iovec> = to.collect();
            // SAFETY: the call only reads the words.
            let put = unsafe {
                let (from, count) = (&raw const from, to.len() as libc::c_ulong);
                libc::process_vm_writev(self.tid, from, 1, to.as_ptr(), count, 0)
            };
            done += usize::try_from(put).unwrap_or(0) / (N * WORD);
            if done % MOST != 0 {
                break;
            }
        }
        done
    }

    /// Reads a word.
    pub fn read_u64(&self, at: TargetAddr) -> Result<u64> {
        let mut word = [0; 8];
        self.read(at, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }
}

/// A range of the target's memory, as the kernel takes it. We never follow the pointer.
fn there(at: TargetAddr, len: usize) -> libc::iovec {
    libc::iovec {
        iov_base: std::ptr::without_provenance_mut(at.0 as usize),
        iov_len: len,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A child that is stopped for good.
    struct Stopped(i32);

    impl Stopped {
        fn new() -> Self {
            // SAFETY: the child makes three system calls and nothing else.
            let pid = unsafe {
                match libc::fork() {
                    0 => {
                        libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
                        libc::raise(libc::SIGSTOP);
                        libc::_exit(0)
                    }
                    pid => pid,
                }
            };
            let mut status = 0;
            // SAFETY: the call writes one number.
            assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
            assert!(libc::WIFSTOPPED(status), "status {status:#x}");
            Self(pid)
        }
    }

    impl Drop for Stopped {
        fn drop(&mut self) {
            // SAFETY: system calls with numbers; nobody asks for the status.
            unsafe {
                libc::kill(self.0, libc::SIGKILL);
                libc::waitpid(self.0, std::ptr::null_mut(), 0);
            }
        }
    }

    #[test]
    fn requests_write_any_number_of_bytes_anywhere() {
        static PLACE: [u8; 64] = [b'.'; 64];
        let start = TargetAddr((&raw const PLACE).addr() as u64);
        let child = Stopped::new();
        let memory = Memory::open(child.0).expect("its memory");
        let mut expected = PLACE;
        for (offset, len) in [
            (0, 8),
            (3, 1),
            (5, 3),
            (6, 11),
            (21, 22),
            (48, 16),
            (63, 1),
            (9, 0),
        ] {
            let bytes: Vec<u8> = (0..len)
                .map(|index| b'a' + (offset + index) as u8 % 26)
                .collect();
            memory
                .poke(start.offset(offset as u64), &bytes)
                .expect("written");
            expected[offset..offset + len].copy_from_slice(&bytes);
            let mut seen = [0; 64];
            memory.read(start, &mut seen).expect("there is memory");
            assert_eq!(seen, expected, "{len} bytes at {offset}");
        }
        let nowhere = memory.poke(TargetAddr(4096), &[1]);
        assert!(nowhere.is_err());
    }

    #[test]
    fn loads_and_stores_respect_what_the_target_may_do() {
        static PLACE: [u8; 4] = *b"code";
        let mut own = *b"data";
        let read_only = TargetAddr((&raw const PLACE).addr() as u64);
        let writable = TargetAddr((&raw mut own).addr() as u64);
        let child = Stopped::new();
        let memory = Memory::open(child.0).expect("its memory");
        assert_eq!(memory.store(read_only, b"else"), 0);
        assert_eq!(memory.store(writable, b"else"), 4);
        let mut seen = [0; 4];
        assert_eq!(memory.load(read_only, &mut seen), 4);
        assert_eq!(&seen, b"code");
        assert_eq!(memory.load(writable, &mut seen), 4);
        assert_eq!(&seen, b"else");
        assert_eq!(memory.load(TargetAddr(4096), &mut seen), 0);
    }
}
