//! What is installed in a process is taken back: its code and its mappings are then as they were, and it does what it
//! does alone.

use std::cell::RefCell;
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use anyhow::Result;
use hodo_abi::Span;
use hodo_inject::install;
use hodo_inject::leave;
use hodo_inject::recorder::{Recorder, Shared};
use hodo_module::{Chosen, Image, Module, Number, Probed};
use hodo_patch::{Raise, Recording};
use hodo_plan::PlanOptions;
use hodo_ptrace as ptrace;
use hodo_ptrace::TargetAddr;
use hodo_ptrace::maps::{self, Mapping};
use hodo_ptrace::stops::{self, PATIENCE};
use hodo_ptrace::{Memory, Stopped, launch};
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
}

impl Recorder for All {
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
        let possible = possible.filter(|(_, function)| program && function.outcome.is_ok());
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
    let (source, program) = (place.join("program.c"), place.join("program"));
    std::fs::write(&source, PROGRAM).expect("the source");
    for kind in [&["-static"][..], &["-pie", "-fPIE"]] {
        let mut gcc = Command::new("gcc");
        gcc.args(["-O2", "-o"])
            .arg(&program)
            .args(kind)
            .arg(&source);
        assert!(gcc.status().expect("gcc can be run").success());
        let path = place.join("events");
        let events = File::options();
        let events = events
            .clone()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path);
        let events = events.expect("the trace");
        events.set_len(TRACE).expect("room for it");
        let mut recorder = All {
            events: (events, path),
            remarks: Vec::new(),
        };

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
