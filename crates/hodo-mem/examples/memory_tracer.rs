//! Writes every access of memory of a program to a file, one a line.
//!
//!     cargo run --release -p hodo-mem --example memory_tracer -- FILE PROGRAM ARGUMENTS…

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use hodo_dbi::{Access, Block, Client, Kind, Observe, Ran, Target};

struct Tracer<W> {
    out: W,
    failed: Option<std::io::Error>,
}

impl<W: Write + Send> Client for Tracer<W> {
    fn executed(&mut self, thread: u32, block: &Arc<Block>, _: usize, accesses: &[Access]) {
        for access in accesses {
            let pc = block.insns[usize::from(access.insn)].pc;
            let kind = match access.kind {
                Kind::Load => "loads",
                Kind::Store => "stores",
            };
            let (address, size) = (access.address, access.size);
            let line = writeln!(
                self.out,
                "thread {thread} at {pc:#x} {kind} {size} bytes at {address:#x}"
            );
            self.failed = self.failed.take().or(line.err());
        }
    }

    fn end(&mut self) -> Result<()> {
        match self.failed.take() {
            Some(error) => Err(error.into()),
            None => Ok(self.out.flush()?),
        }
    }
}

/// Runs a program, and writes its accesses to a file.
pub fn trace(file: &Path, command: &[OsString]) -> Result<Ran> {
    let out = File::create(file).with_context(|| format!("cannot create {}", file.display()))?;
    let tracer = Tracer {
        out: BufWriter::new(out),
        failed: None,
    };
    let program = hodo_dbi::find_program(command.first().context("no program is given")?)?;
    Ok(hodo_dbi::observe(
        &Target::program(&program, command),
        Observe::Accesses,
        tracer,
    )?
    .0)
}

fn main() -> Result<()> {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let (file, command) = words.split_first().context("no file is given")?;
    println!("{:?}", trace(file.as_ref(), command)?.end);
    Ok(())
}
