//! `hodo mem`: runs programs under the instrumentation engine.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use hodo_dbi::End;
use hodo_record::Exit;

use crate::args::{MemArgs, MemTool};
use crate::end::end;

/// Runs the tool.
pub fn mem(args: &MemArgs) -> Result<ExitCode> {
    let MemTool::None(none) = &args.tool;
    let no_name = OsString::new();
    let name = none.command.first().unwrap_or(&no_name);
    let program = match hodo_dbi::find_program(name) {
        Ok(program) => program,
        Err(error) => {
            crate::output::complain(&error);
            return Ok(ExitCode::from(127));
        }
    };
    let ran = match hodo_dbi::run(&program, &none.command) {
        Ok(ran) => ran,
        Err(error) => {
            crate::output::complain(&error);
            return Ok(ExitCode::from(125));
        }
    };
    if let Some(error) = ran.failure {
        warn_user!("hodo: cannot run {}: {error}", program.display());
        return Ok(ExitCode::from(126));
    }
    Ok(end(match ran.end {
        End::Code(code) => Exit::Code(code),
        End::Signal(signal) => Exit::Signal(signal),
        End::Core(signal) => Exit::Core(signal),
    }))
}
