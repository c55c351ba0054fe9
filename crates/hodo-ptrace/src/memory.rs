//! The memory of another process.

use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};

use crate::target::TargetAddr;

/// Another process's memory.
#[derive(Debug)]
pub struct Memory(File);

impl Memory {
    /// Opens the memory of the process that `tid` belongs to. It stays that process's memory across an exec: open anew.
    pub fn open(tid: i32) -> Result<Self> {
        let path = format!("/proc/{tid}/mem");
        let file = File::options()
            .read(true)
            .write(true)
            .open(&path)
            .with_context(|| path.clone())?;
        Ok(Self(file))
    }

    /// Reads all of `buffer`.
    pub fn read(&self, at: TargetAddr, buffer: &mut [u8]) -> Result<()> {
        self.0
            .read_exact_at(buffer, at.0)
            .with_context(|| format!("reading the target's memory at {at:#x}"))
    }

    /// Writes all of `bytes`, also to read-only code (as a debugger does).
    pub fn write(&self, at: TargetAddr, bytes: &[u8]) -> Result<()> {
        self.0
            .write_all_at(bytes, at.0)
            .with_context(|| format!("writing the target's memory at {at:#x}"))
    }

    /// Reads what can be read of `buffer`; returns how many bytes that was.
    pub fn read_some(&self, at: TargetAddr, buffer: &mut [u8]) -> usize {
        let mut done = 0;
        while done < buffer.len() {
            match self
                .0
                .read_at(&mut buffer[done..], at.offset(done as u64).0)
            {
                Ok(count) if count > 0 => done += count,
                _ => break,
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
