//! `hodo detach`: restores processes that a killed hodo left changed.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};
use hodo_record::{RecordOptions, TraceDir};

use crate::args::{DEFAULT_DATA, DetachArgs};
use crate::output;
use crate::run::{command_line, divide};
use crate::temporary::Temporary;

/// Restores processes, or lists those that need it.
pub fn detach(args: &DetachArgs) -> Result<ExitCode> {
    let pids: Vec<i32> = args.pids.iter().chain(&args.pid).copied().collect();
    if pids.is_empty() {
        return list();
    }
    let front = match divide(true) {
        Ok(front) => front,
        Err(code) => return Ok(code),
    };
    let mut code = ExitCode::SUCCESS;
    for pid in pids {
        match one(pid, front) {
            Ok(true) => {}
            Ok(false) => warn_user!("hodo: hodo has left nothing in process {pid}"),
            Err(error) => {
                output::complain(&error);
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}

fn one(pid: i32, front: Option<i32>) -> Result<bool> {
    let temporary = Temporary::make().with_context(|| {
        let place = std::env::temp_dir();
        format!("making a temporary directory in {}", place.display())
    })?;
    let mut options = RecordOptions {
        data: temporary.path().join(DEFAULT_DATA),
        attach: vec![pid],
        cmdline: command_line(),
        ..RecordOptions::default()
    };
    let place = TraceDir::create(&mut options.data)?;
    let done = hodo_record::detach(&options, place, pid, front);
    if let Err(error) = temporary.close() {
        warn_user!("hodo: removing the temporary directory: {error}");
    }
    done
}

fn list() -> Result<ExitCode> {
    let mut out = crate::output::stdout();
    for process in hodo_record::left_behind() {
        writeln!(out, "{process}")?;
    }
    Ok(ExitCode::SUCCESS)
}
