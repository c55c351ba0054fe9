//! What is installed in a process is taken back: its code and its mappings are then as they were, and it does what it
//! does alone.

use std::cell::RefCell;
use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Result;
use hodo_abi::Span;
use hodo_inject::install::{self, Wanted};
use hodo_inject::leave;
use hodo_inject::recorder::{Recorder, Shared};
use hodo_inject::space::Space;
use hodo_module::{Chosen, Image, Module, Number, Probed};
use hodo_patch::{Raise, Recording};
use hodo_plan::PlanOptions;
use hodo_ptrace as ptrace;
use hodo_ptrace::TargetAddr;
use hodo_ptrace::maps::{self, Mapping};
use hodo_ptrace::stops::{self, PATIENCE, Stops};
use hodo_ptrace::{Memory, Stopped, Syscalls, launch};
use hodo_symbols::Key;

const PROGRAM: &str = "
    __attribute__((noipa)) static long leaf(long n) { return n * 3 + 1; }
    __attribute__((noipa)) static long calls(long n) { return n ? calls(n - 1) + leaf(n) : 0; }
    int main(void) { return (int)calls(5); }
";
/// What it returns: 3 * (1 + 2 + 3 + 4 + 5) + 5.
const STATUS: i32 = 50;
/// Bytes of the trace.
const TRACE: u64 = 64 << 20;

/// A recording of all functions of one program.
struct All {
    events: (File, PathBuf),
    remarks: Vec<String>,
    /// Only functions of at least this many bytes, if that is said.
    least: Option<u64>,
}

impl All {
    /// Makes the trace in a directory.
    fn new(place: &Path) -> Self {
        let path = place.join("events");
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(true);
        let events = options.open(&path).expect("the trace");
        events.set_len(TRACE).expect("room for it");
        Self {
            events: (events, path),
            remarks: Vec::new(),
            least: None,
        }
    }
}

/// Builds a program in a directory.
fn build(place: &Path, text: &str, kind: &[&str]) -> PathBuf {
    let (source, program) = (place.join("program.c"), place.join("program"));
    std::fs::write(&source, text).expect("the source");
    let mut gcc = Command::new("gcc");
    let gcc = gcc
        .args(["-O2", "-o"])
        .arg(&program)
        .args(kind)
        .arg(&source);
    assert!(gcc.status().expect("gcc can be run").success());
    program
}

impl Recorder for All {
    fn observes(&mut self, _pid: i32) {}

    fn recording(&self) -> Recording {
        Recording::default()
    }

    fn module(&mut self, real: &Path, path: &Path, program: bool) -> Result<Rc<Module>> {
        let image = Image::open(real, path.to_owned())?;
        let options = PlanOptions {
            libcalls: false,
            ..PlanOptions::default()
        };
        let plan = hodo_plan::plan(path, &image.bytes, &options)?;
        let possible = plan.functions.iter().enumerate();
        let least = self.least.unwrap_or(0);
        let possible = possible
            .filter(|(_, function)| program && function.outcome.is_ok() && function.size >= least);
        let chosen = possible.map(|(index, _)| Chosen {
            index,
            id: index as u32 + 1,
            filter: false,
        });
        Ok(Rc::new(Module {
            functions: chosen.collect(),
            image: Rc::new(image),
            plan: Rc::new(plan),
            libcalls: Vec::new(),
            probed: Probed::default(),
            number: Number {
                id: 0,
                first: 1,
                main: program,
                kinds: Vec::new(),
            },
        }))
    }

    fn selects_library(&self, _: &Path) -> bool {
        false
    }

    fn probes_path(&self, _: &Path) -> bool {
        false
    }

    fn probes(&self, _: &Image) -> bool {
        false
    }

    fn unplaced_in(&self, _: &Path) -> Option<String> {
        None
    }

    fn traces_stacks(&self) -> bool {
        false
    }

    fn wants_keys(&self) -> bool {
        false
    }

    fn wants_key(&self, _: &Key, _: &Path) -> bool {
        false
    }

    fn is_roomy(&self) -> bool {
        false
    }

    fn events(&self) -> Shared<'_> {
        Shared {
            file: &self.events.0,
            path: &self.events.1,
            size: TRACE,
        }
    }

    fn tables(&self) -> (Option<Shared<'_>>, Option<Shared<'_>>) {
        (None, None)
    }

    fn log_map(&mut self, _: i32, _: &Mapping) -> Result<()> {
        Ok(())
    }

    fn log_islands(&mut self, _: i32, _: &[Span]) -> Result<()> {
        Ok(())
    }

    fn remark(&mut self, _: i32, text: &str) -> Result<()> {
        self.remarks.push(text.to_owned());
        Ok(())
    }
}

/// The program, stopped before its first instruction.
fn begun(program: &Path) -> Stopped {
    let command = [OsString::from(program)];
    let child = launch::fork(program, &command, false).expect("a child");
    let pid = child.pid;
    let options = libc::PTRACE_O_TRACEEXEC | libc::PTRACE_O_TRACESYSGOOD | ptrace::arch::OPTIONS;
    ptrace::seize(pid, options).expect("seizing");
    let _failure = child.go().expect("it executes");
    let report = stops::wait_for(pid, PATIENCE)
        .expect("waiting")
        .expect("a stop");
    assert_eq!(report.event(), libc::PTRACE_EVENT_EXEC, "{report:?}");
    report.stopped().expect("it has stopped")
}

/// The bytes of all code of the program's file.
fn code(pid: i32, program: &Path) -> Vec<u8> {
    let memory = Memory::open(pid).expect("its memory");
    let maps = maps::read(pid).expect("its mappings");
    let own = maps.iter().filter(|m| m.executable && m.path == program);
    let mut all = Vec::new();
    for mapping in own {
        let mut bytes = vec![0; (mapping.end - mapping.start) as usize];
        memory
            .read(TargetAddr(mapping.start), &mut bytes)
            .expect("its code");
        all.extend(bytes);
    }
    assert!(!all.is_empty());
    all
}

fn ranges(pid: i32) -> Vec<(u64, u64)> {
    let maps = maps::read(pid).expect("its mappings");
    // A stack grows.
    let fixed = maps.iter().filter(|m| m.path.as_os_str() != "[stack]");
    fixed.map(|m| (m.start, m.end)).collect()
}

#[test]
fn what_is_installed_at_exec_is_taken_back() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().canonicalize().expect("its path");
    for kind in [&["-static"][..], &["-pie", "-fPIE"]] {
        let program = build(&place, PROGRAM, kind);
        let mut recorder = All::new(&place);

        let thread = begun(&program);
        let pid = thread.tid();
        let (before, mapped) = (code(pid, &program), ranges(pid));
        let installed = install::program(thread, Raise::default(), &mut recorder);
        let (mut space, sites) = installed.expect("it can be installed");
        assert_eq!(code(pid, &program), before, "the sites wait");
        assert!(ranges(pid).len() > mapped.len());
        sites
            .arm_linker(pid, &mut space)
            .expect("the linker is armed");
        sites
            .write(pid, &mut space, &mut recorder)
            .expect("the sites are written");
        let changed = code(pid, &program);
        let differ = changed
            .iter()
            .zip(&before)
            .filter(|(now, then)| now != then);
        // Two functions of its own at least, with a jump each.
        assert!(differ.count() >= 8, "{:?}", recorder.remarks);

        let memory = Memory::open(pid).expect("its memory");
        let space = Rc::new(RefCell::new(space));
        let left = leave::leave_child(thread, &space).expect("it can be taken back");
        assert!(left, "nothing of ours has run");
        assert_eq!(code(pid, &program), before);
        assert_eq!(ranges(pid), mapped);
        drop(memory);
        thread.detach().expect("it is let go");
        let report = stops::wait_for(pid, PATIENCE)
            .expect("waiting")
            .expect("its end");
        assert_eq!(report.exit_code(), Some(STATUS), "{report:?}");
    }
}

/// The same program, which waits for a byte first.
const WAITS: &str = "
    #include <unistd.h>
    __attribute__((noipa)) static long leaf(long n) { return n * 3 + 1; }
    __attribute__((noipa)) static long calls(long n) { return n ? calls(n - 1) + leaf(n) : 0; }
    int main(void) { char byte; return read(0, &byte, 1) == 1 ? (int)calls(5) : 1; }
";

/// Starts it, and returns when it waits.
fn waiting(program: &Path) -> Child {
    let child = Command::new(program).stdin(Stdio::piped()).spawn();
    let child = child.expect("it can be run");
    let asleep = || {
        let call = std::fs::read_to_string(format!("/proc/{}/syscall", child.id()));
        call.is_ok_and(|call| call.starts_with(&format!("{} ", libc::SYS_read)))
    };
    let begun = Instant::now();
    while !asleep() {
        assert!(begun.elapsed() < PATIENCE, "the program does not wait");
        std::thread::sleep(Duration::from_millis(1));
    }
    child
}

/// Bytes that are different.
fn differ(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).filter(|(a, b)| a != b).count()
}

/// Attaches to the program while all of its threads are stopped, as far as code and mappings go.
fn attach(pid: i32, stops: &mut Stops, recorder: &mut All) -> Space {
    let wanted = Wanted::new(pid, recorder).expect("it can be traced");
    let prepared = install::prepare(wanted, recorder).expect("it can be prepared");
    let mut prepared = prepared.expect("no library comes or goes");
    assert!(prepared.holds().expect("its mappings"));
    let memory = Memory::open(pid).expect("its memory");
    let worker = stops.worker().expect("a thread");
    let maps = maps::read(pid).expect("its mappings");
    let calls = Syscalls::begin_anywhere(worker, &memory, &maps).expect("calls");
    prepared.map(&calls, &memory, recorder).expect("mapped");
    let group = calls.end_in_stop().expect("the calls end");
    stops.set_group(worker, group);
    prepared.write_islands(&memory).expect("the islands");
    let mut space = std::mem::take(&mut prepared.space);
    prepared
        .write_sites(&memory, &mut space)
        .expect("the sites");
    space
}

#[test]
fn what_is_installed_at_attach_and_changed_is_taken_back() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().canonicalize().expect("its path");
    for kind in [&["-static"][..], &["-pie", "-fPIE"]] {
        let program = build(&place, WAITS, kind);
        let mut recorder = All::new(&place);
        let mut child = waiting(&program);
        let pid = child.id().cast_signed();
        let (before, mapped) = (code(pid, &program), ranges(pid));
        let mut stops = Stops::new(pid, libc::PTRACE_O_TRACESYSGOOD | ptrace::arch::OPTIONS);
        stops.stop_all().expect("all threads stop");
        let mut space = attach(pid, &mut stops, &mut recorder);
        let all = code(pid, &program);
        assert!(differ(&all, &before) >= 8, "{:?}", recorder.remarks);
        assert!(ranges(pid).len() > mapped.len());

        // Fewer functions: their sites alone are left.
        recorder.least = Some(10);
        let settings = "large functions".into();
        let change = install::build(pid, &mut space, &mut recorder, &settings);
        let change = change.expect("it can be built");
        assert!(change.holds(pid, &space));
        let worker = stops.worker().expect("a thread");
        change.make(worker, &mut space).expect("it can be changed");
        let fewer = code(pid, &program);
        let (now, then) = (differ(&fewer, &before), differ(&all, &before));
        assert!(0 < now && now < then, "{now} of {then} bytes");
        // None at all.
        recorder.least = Some(u64::MAX);
        let settings = "no functions".into();
        let change = install::build(pid, &mut space, &mut recorder, &settings);
        let change = change.expect("it can be built");
        change.make(worker, &mut space).expect("it can be changed");
        assert!(differ(&code(pid, &program), &before) < now);
        // And all again.
        recorder.least = None;
        let settings = "all functions".into();
        let change = install::build(pid, &mut space, &mut recorder, &settings);
        let change = change.expect("it can be built");
        change.make(worker, &mut space).expect("it can be changed");
        // New stubs are elsewhere, so the jumps are not the same bytes.
        assert!(differ(&code(pid, &program), &before) > now);

        let memory = Memory::open(pid).expect("its memory");
        leave::restore(pid, &memory, &space).expect("its code");
        let maps = maps::read(pid).expect("its mappings");
        leave::unmap(worker, &memory, &maps, &mut space).expect("unmapped");
        assert_eq!(code(pid, &program), before);
        assert_eq!(ranges(pid), mapped);
        stops.detach();
        let mut input = child.stdin.take().expect("its input");
        input.write_all(b"x").expect("it reads");
        let end = child.wait().expect("its end");
        assert_eq!(end.code(), Some(STATUS), "{end:?}");
    }
}
