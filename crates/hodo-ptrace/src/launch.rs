//! Launches the program: a child waits until it is traced, then executes it.

use std::ffi::{CString, OsStr, OsString};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use hodo_abi::Isa;

fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: pipe2 writes two ints.
    if unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) } == -1 {
        return Err(io::Error::last_os_error()).context("making a pipe");
    }
    // SAFETY: both descriptors are new and nobody else's.
    Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

/// Finds a program as execvp does, and after PATH, as uftrace does, in the current directory.
///
/// # Errors
/// If there is no such program, or it cannot be executed.
pub fn find_program(name: &OsStr) -> Result<PathBuf> {
    let shown = name.to_string_lossy();
    let executable = |path: &Path| {
        let Ok(c) = CString::new(path.as_os_str().as_bytes()) else {
            return false;
        };
        // SAFETY: access reads a C string.
        path.is_file() && unsafe { libc::access(c.as_ptr(), libc::X_OK) } == 0
    };
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let in_path = || {
        let mut files = std::env::split_paths(&path).map(|dir| dir.join(name));
        files.find(|path| executable(path))
    };
    let is_path = name.as_bytes().contains(&b'/');
    if let Some(found) = (!is_path).then(in_path).flatten() {
        return Ok(found);
    }
    let path = match is_path {
        true => PathBuf::from(name),
        false => Path::new(".").join(name),
    };
    if is_path || path.is_file() {
        if !path.exists() {
            bail!("cannot run {shown}: no such file");
        }
        if path.is_dir() {
            bail!("cannot run {shown}: it is a directory");
        }
        if !executable(&path) {
            bail!("cannot run {shown}: it is not executable (chmod +x?)");
        }
        return Ok(path);
    }
    bail!("cannot run {shown}: there is no such program in PATH or in the current directory")
}

/// A child that has not executed yet.
#[derive(Debug)]
pub struct Waiting {
    /// Its process id.
    pub pid: i32,
    go: OwnedFd,
    failed: OwnedFd,
}

/// Forks: one process becomes the program when [`Waiting::go`] is called, the other returns from here. That is the
/// parent, or with `keep_pid` the child, and then the program has the process id that this process had.
///
/// # Errors
/// If there can be no more processes.
pub fn fork(program: &Path, command: &[OsString], keep_pid: bool) -> Result<Waiting> {
    let (wait, go) = pipe()?;
    let (failed, fail) = pipe()?;
    let path = CString::new(program.as_os_str().as_bytes())?;
    let args: Vec<CString> = command
        .iter()
        .map(|arg| CString::new(arg.as_bytes()))
        .collect::<Result<_, _>>()?;
    let mut argv: Vec<_> = args.iter().map(|arg| arg.as_ptr()).collect();
    argv.push(std::ptr::null());
    // What the kernel cannot execute is a script for the shell, as for execvp(3); but no broken program is.
    let mut script: Vec<_> = [c"/bin/sh".as_ptr(), path.as_ptr()].to_vec();
    script.extend(argv.iter().skip(1));
    let is_elf = is_elf(program);
    // SAFETY: the child calls nothing but async-signal-safe functions on memory prepared above, and then execs or
    // exits.
    unsafe {
        let before = libc::getpid();
        let pid = libc::fork();
        if pid == -1 {
            return Err(io::Error::last_os_error()).context("forking");
        }
        if (pid == 0) != keep_pid {
            if keep_pid {
                // Where only ancestors may trace, this allows it to the recorder.
                libc::prctl(libc::PR_SET_PTRACER, pid, 0, 0, 0);
            }
            libc::close(go.as_raw_fd());
            let mut byte = 0u8;
            let got = loop {
                let got = libc::read(wait.as_raw_fd(), (&raw mut byte).cast(), 1);
                if got != -1 || *libc::__errno_location() != libc::EINTR {
                    break got;
                }
            };
            if got != 1 {
                // The recorder has given up, and has said why.
                libc::_exit(125);
            }
            crate::inherited::restore();
            crate::signals::restore_mask();
            libc::execv(path.as_ptr(), argv.as_ptr());
            if *libc::__errno_location() == libc::ENOEXEC && !is_elf {
                libc::execv(script[0], script.as_ptr());
            }
            let error = *libc::__errno_location();
            libc::write(fail.as_raw_fd(), (&raw const error).cast(), 4);
            libc::_exit(127);
        }
        let pid = if keep_pid { before } else { pid };
        Ok(Waiting { pid, go, failed })
    }
}

/// Becomes a program, as if it had been started instead of this one. Returns why that cannot be.
pub fn execute(command: &[OsString]) -> anyhow::Error {
    let Some(name) = command.first() else {
        return anyhow::anyhow!("there is no program to run");
    };
    let program = match find_program(name) {
        Ok(program) => program,
        Err(error) => return error,
    };
    let words = command.iter().map(|word| CString::new(word.as_bytes()));
    let words = words.collect::<Result<Vec<_>, _>>();
    let path = CString::new(program.as_os_str().as_bytes());
    let (Ok(words), Ok(path)) = (words, path) else {
        return anyhow::anyhow!("a word of the command has a byte 0");
    };
    let mut argv: Vec<_> = words.iter().map(|word| word.as_ptr()).collect();
    argv.push(std::ptr::null());
    crate::inherited::restore();
    // SAFETY: path and words are strings with an end, and a null pointer comes after the last word.
    unsafe { libc::execv(path.as_ptr(), argv.as_ptr()) };
    let why = why_not(&program, &io::Error::last_os_error());
    anyhow::anyhow!("cannot run {}: {why}", name.to_string_lossy())
}

/// Why the kernel did not execute a file that is there and may be executed.
#[must_use]
pub fn why_not(program: &Path, error: &io::Error) -> String {
    let mut header = [0; 20];
    let read = std::fs::File::open(program).and_then(|mut file| file.read_exact(&mut header));
    match error.raw_os_error() {
        Some(libc::ENOENT) if program.exists() => {
            "the program that starts it (its dynamic linker, or the interpreter of a script) does not exist".to_owned()
        }
        Some(libc::ENOEXEC) if read.is_ok() && header.starts_with(b"\x7fELF") => {
            let own = Isa::NATIVE.title();
            match machine(&header) {
                Some(other) if other != own => {
                    format!("it is for {other}; this machine is {own}")
                }
                _ => "it is damaged, or no program".to_owned(),
            }
        }
        _ => error.to_string(),
    }
}

/// The processors that a program is for, by the first bytes of its ELF file (`elf.h`).
fn machine(header: &[u8; 20]) -> Option<String> {
    /// `EI_CLASS` and `EI_DATA`
    const CLASS: usize = 4;
    const ORDER: usize = 5;
    let wide = header[CLASS] == 2;
    let number = [header[18], header[19]];
    let number = match header[ORDER] {
        2 => u16::from_be_bytes(number),
        _ => u16::from_le_bytes(number),
    };
    if let Some(isa) = Isa::of_elf(number).filter(|_| wide) {
        return Some(isa.title().to_owned());
    }
    let name = match number {
        3 => "32-bit x86",
        8 => "MIPS",
        20 | 21 => "PowerPC",
        22 => "IBM Z",
        40 => "32-bit Arm",
        62 => "x32",
        183 => "AArch64 with 32-bit addresses",
        243 => "32-bit RISC-V",
        258 => "LoongArch",
        0 => return None,
        other => return Some(format!("processors of ELF machine number {other}")),
    };
    Some(name.to_owned())
}

fn is_elf(path: &Path) -> bool {
    let mut magic = [0; 4];
    std::fs::File::open(path)
        .and_then(|mut file| file.read_exact(&mut magic))
        .is_ok_and(|()| magic == *b"\x7fELF")
}

impl Waiting {
    /// Lets the child execute. The result tells later whether it could: see [`Failure::error`].
    ///
    /// # Errors
    /// If the child is gone.
    pub fn go(self) -> Result<Failure> {
        std::fs::File::from(self.go)
            .write_all(&[1])
            .context("starting the program")?;
        Ok(Failure(self.failed))
    }
}

/// Where the child says that it could not execute.
#[derive(Debug)]
pub struct Failure(OwnedFd);

impl Failure {
    /// Why the program could not be executed, after the child has exited.
    pub fn error(self) -> Option<io::Error> {
        let mut error = [0; 4];
        std::fs::File::from(self.0)
            .read_exact(&mut error)
            .ok()
            .map(|()| io::Error::from_raw_os_error(i32::from_ne_bytes(error)))
    }
}
