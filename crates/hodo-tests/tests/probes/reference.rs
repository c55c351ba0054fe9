//! Counts of a probe on every instruction, compared with single-stepping. RISC-V has no single steps; there
//! `riscv64/reference.rs` uses an emulator.
#![cfg(target_arch = "x86_64")]

use std::collections::BTreeMap;
use std::ffi::CString;
use std::path::Path;
use std::process::Command;

use hodo_tests::{Kind, build, hodo};
use iced_x86::{Decoder, DecoderOptions};
use serde_json::Value;

/// How often each address was executed, found by stepping through the program with ptrace.
fn stepped(program: &Path) -> BTreeMap<u64, u64> {
    let path = CString::new(program.to_str().expect("a path of text")).expect("no zero");
    let arguments = [path.as_ptr(), std::ptr::null()];
    let none = [std::ptr::null()];
    // Its output goes to a pipe, as under `hodo`; it fits into the pipe.
    let mut pipe = [0; 2];
    // SAFETY: pipe writes two ints.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    // SAFETY: between fork and exec the child only makes system calls; nothing that it reads is changed meanwhile.
    let child = unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
            libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong);
            libc::dup2(pipe[1], 1);
            libc::close(pipe[0]);
            libc::close(pipe[1]);
            libc::execve(path.as_ptr(), arguments.as_ptr(), none.as_ptr());
            libc::_exit(127);
        }
        child
    };
    assert!(child > 0, "fork");
    let mut counts = BTreeMap::new();
    let mut last = 0;
    loop {
        let mut status = 0;
        // SAFETY: waitpid writes one int.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        if !libc::WIFSTOPPED(status) {
            assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) != 127);
            // SAFETY: these are ours.
            unsafe { (libc::close(pipe[0]), libc::close(pipe[1])) };
            return counts;
        }
        assert_eq!(libc::WSTOPSIG(status), libc::SIGTRAP);
        // SAFETY: PTRACE_PEEKUSER gives a word; the offset is that of rip. PTRACE_SINGLESTEP takes no pointer.
        unsafe {
            let rip = std::mem::offset_of!(libc::user_regs_struct, rip);
            let at = libc::ptrace(libc::PTRACE_PEEKUSER, child, rip, 0).cast_unsigned();
            // A repeated string instruction stops after each iteration.
            if at != last {
                *counts.entry(at).or_default() += 1;
            }
            last = at;
            libc::ptrace(libc::PTRACE_SINGLESTEP, child, 0, 0);
        }
    }
}

/// The counts of `hodo probe`, by address.
fn counted(program: &Path) -> BTreeMap<u64, u64> {
    let data = hodo_tests::scratch(&format!(
        "reference-{}",
        program
            .file_name()
            .and_then(|name| name.to_str())
            .expect("a name")
    ));
    let every = format!("{}:*+* count", program.display());
    let output = Command::new("setarch")
        .args(["-R", "timeout", "-s", "KILL", "300", "env", "-i"])
        .arg(hodo())
        .args(["probe", "--format", "json", "-e", &every, "-d"])
        .arg(data.join("data"))
        .arg("--")
        .arg(program)
        .output()
        .expect("hodo can be run");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    let counts = text.lines().skip(1).map(|line| {
        let count: Value = serde_json::from_str(line).expect("an object");
        let number = |key: &str| count[key].as_u64().expect("a number");
        (number("addr"), number("hits"))
    });
    let counts = counts.collect();
    let _ = std::fs::remove_dir_all(&data);
    counts
}

/// The program's sections with code that leads to other functions, which has no probes: address and size.
fn linkage(program: &Path) -> Vec<(u64, u64)> {
    let output = Command::new("readelf")
        .args(["-SW"])
        .arg(program)
        .output()
        .expect("readelf can be run");
    let text = String::from_utf8(output.stdout).expect("text");
    // [Nr] Name Type Address Off Size …
    let lines = text.lines().filter_map(|line| {
        let (name, rest) = line.split_once(']')?.1.trim().split_once(' ')?;
        let mut words = rest.split_whitespace().skip(1);
        let mut number = |skip| u64::from_str_radix(words.nth(skip)?, 16).ok();
        name.starts_with(".plt").then_some((number(0)?, number(1)?))
    });
    lines.collect()
}

/// Returns whether an instruction jumps to itself, which looks like an iteration of a repeated instruction.
fn leads_to_itself(program: &Path, addr: u64) -> bool {
    let bytes = std::fs::read(program).expect("the program");
    // It is not position-independent, and linked as usual: file offset 0 is at address 0x400000.
    let at = usize::try_from(addr - 0x40_0000).expect("an address of the program");
    let code = &bytes[at..(at + 15).min(bytes.len())];
    let insn = Decoder::with_ip(64, code, addr, DecoderOptions::NONE).decode();
    insn.near_branch_target() == addr
}

/// Iterations of the repeated instruction in the program.
const ROUNDS: u64 = 7;

#[test]
fn counts_agree_with_single_steps() {
    for kind in [Kind::Fixed, Kind::Static, Kind::MuslStatic] {
        if !kind.is_available() {
            continue;
        }
        let program = build("reference.c", kind, &[]);
        let counts = counted(&program);
        let reference = stepped(&program);
        assert!(counts.len() > 100, "{kind:?}: {} probes", counts.len());
        let linkage = linkage(&program);
        let mut executed = 0;
        let mut rounds = 0;
        for (&addr, &hits) in &counts {
            let expected = reference.get(&addr).copied().unwrap_or(0);
            if hits != expected {
                assert!(
                    leads_to_itself(&program, addr),
                    "{kind:?}: {addr:#x} was executed {expected} times and counted {hits} times"
                );
                rounds += hits;
            }
            executed += u64::from(expected > 0);
        }
        assert_eq!(rounds, ROUNDS, "{kind:?}: `loop` to itself");
        assert!(executed > 100, "{kind:?}: {executed} instructions");
        // Nothing in the program was executed without being counted, except what the plan refuses.
        let (first, last) = (counts.keys().next(), counts.keys().next_back());
        let range = first.copied().unwrap_or(0)..=last.copied().unwrap_or(0);
        let missed = reference
            .range(range)
            .filter(|(addr, _)| !counts.contains_key(addr))
            .filter(|&(&addr, _)| {
                !linkage
                    .iter()
                    .any(|&(start, size)| (start..start + size).contains(&addr))
            });
        let missed: Vec<_> = missed
            .map(|(addr, hits)| format!("{addr:#x}: {hits}"))
            .collect();
        // `getrlimit` is such a function: hodo changes it for its own use.
        assert!(missed.len() < 12, "{kind:?}: {missed:?}");
    }
}
