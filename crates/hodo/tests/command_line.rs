//! The `hodo` command from outside: what it prints, where, and how it ends.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Returns a `hodo` command with arguments, to run in its own directory.
fn hodo(place: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hodo"));
    command
        .args(arguments)
        .current_dir(place)
        .stdin(Stdio::null())
        .env_remove("PAGER");
    command
}

fn run(place: &Path, arguments: &[&str]) -> Output {
    hodo(place, arguments).output().expect("hodo starts")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("the output is text")
}

fn place() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

/// Runs a script alone and under hodo. Both must do the same.
fn shell(place: &Path, script: &str) -> (Output, Output) {
    let alone = Command::new("/bin/sh")
        .args(["-c", script])
        .current_dir(place)
        .stdin(Stdio::null())
        .output()
        .expect("sh starts");
    let traced = run(place, &["record", "/bin/sh", "-c", script]);
    (alone, traced)
}

#[test]
fn a_missing_program_is_named_and_nothing_is_left_behind() {
    let place = place();
    for command in ["record", "live"] {
        let output = run(place.path(), &[command, "no-such-program-at-all"]);
        assert_eq!(output.status.code(), Some(127));
        assert!(text(&output.stderr).starts_with("hodo: cannot run no-such-program-at-all: "));
        assert_eq!(text(&output.stdout), "");
    }
    assert_eq!(place.path().read_dir().unwrap().count(), 0);
}

#[test]
fn a_file_that_is_not_a_program_is_refused() {
    let place = place();
    std::fs::write(place.path().join("text"), "some text\n").unwrap();
    let output = run(place.path(), &["record", "./text"]);
    assert_eq!(output.status.code(), Some(126));
    assert!(text(&output.stderr).contains("./text: it is not executable"));
    let output = run(place.path(), &["record", "/"]);
    assert_eq!(output.status.code(), Some(126));
}

#[test]
fn an_unknown_option_runs_nothing() {
    let place = place();
    let output = run(place.path(), &["record", "--frobnicate", "touch", "ran"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).starts_with("hodo: unexpected argument '--frobnicate'"));
    assert!(!place.path().join("ran").exists());
}

#[test]
fn a_directory_that_is_not_a_trace_is_not_overwritten() {
    let place = place();
    std::fs::create_dir(place.path().join("mine")).unwrap();
    std::fs::write(place.path().join("mine/file"), "precious").unwrap();
    let output = run(place.path(), &["record", "-d", "mine", "touch", "ran"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(text(&output.stderr).contains("mine exists and is not a trace"));
    assert!(!place.path().join("ran").exists());
    let kept = std::fs::read_to_string(place.path().join("mine/file")).unwrap();
    assert_eq!(kept, "precious");
}

#[test]
fn readers_say_what_to_do_without_a_trace() {
    let place = place();
    for command in ["replay", "report", "graph", "dump", "info"] {
        let output = run(place.path(), &[command]);
        assert_eq!(output.status.code(), Some(1), "{command}");
        assert_eq!(text(&output.stdout), "", "{command}");
        let error = text(&output.stderr);
        assert!(error.starts_with("hodo: "), "{command}: {error}");
        assert!(error.contains("hodo.data"), "{command}: {error}");
        assert!(error.contains("hodo record"), "{command}: {error}");
    }
}

#[test]
fn output_and_status_are_those_of_the_program() {
    let place = place();
    for script in ["echo out; echo err >&2", "exit 7", "exit 255"] {
        let (alone, traced) = shell(place.path(), script);
        assert_eq!(alone, traced, "{script}");
    }
}

#[test]
fn hodo_ends_by_the_signal_that_ended_the_program() {
    let place = place();
    for signal in [libc::SIGTERM, libc::SIGKILL, libc::SIGSEGV, libc::SIGINT] {
        let (alone, traced) = shell(place.path(), &format!("kill -{signal} $$"));
        assert_eq!(alone.status.signal(), Some(signal));
        assert_eq!(traced.status.signal(), Some(signal), "{signal}");
        assert_eq!(text(&traced.stderr), "");
    }
}

/// Returns what a program reports about its signals and descriptors, when `sh -c` starts it after `around`.
fn circumstances(place: &Path, around: &str, traced: bool) -> (String, Option<i32>) {
    const TELL: &str = "grep Sig[PBIC] /proc/self/status >&3; ls /proc/self/fd >&3; read x; echo $? >&3; echo x; exit $?";
    let hodo = if traced {
        env!("CARGO_BIN_EXE_hodo")
    } else {
        ""
    };
    let record = if traced { "record" } else { "" };
    let status = Command::new("/bin/sh")
        .args(["-c", around])
        .env("PROGRAM", format!("{hodo} {record}"))
        .env("TELL", TELL)
        .current_dir(place)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    let told = std::fs::read_to_string(place.join("told")).unwrap();
    (told, status.code())
}

#[test]
fn the_program_inherits_signals_and_descriptors() {
    let place = place();
    for around in [
        r#"$PROGRAM /bin/sh -c "$TELL" 3>told"#,
        r#"trap '' PIPE INT QUIT; $PROGRAM /bin/sh -c "$TELL" 3>told"#,
        r#"trap '' HUP TERM USR1; $PROGRAM /bin/sh -c "$TELL" 3>told"#,
        r#"$PROGRAM /bin/sh -c "$TELL" 3>told <&-"#,
        r#"$PROGRAM /bin/sh -c "$TELL" 3>told >&-"#,
        r#"$PROGRAM /bin/sh -c "$TELL" 3>told <&- >&- 2>&-"#,
    ] {
        let alone = circumstances(place.path(), around, false);
        let traced = circumstances(place.path(), around, true);
        assert_eq!(alone, traced, "{around}");
    }
}

#[test]
fn a_filter_that_matches_nothing_is_reported_before_the_program_runs() {
    let place = place();
    let output = run(
        place.path(),
        &[
            "record",
            "-F",
            "no_such_function",
            "/bin/sh",
            "-c",
            "echo it runs >&2",
        ],
    );
    assert!(output.status.success());
    let lines: Vec<&str> = text(&output.stderr).lines().collect();
    let [warning, program] = lines[..] else {
        panic!("{lines:?}")
    };
    assert!(warning.starts_with("hodo: ") && warning.contains("no_such_function"));
    assert_eq!(program, "it runs");
    let replay = run(place.path(), &["replay", "-F", "neither_this"]);
    assert_eq!(replay.status.code(), Some(1));
    assert!(text(&replay.stderr).contains("neither_this"));
    let wrong = run(place.path(), &["record", "-F", "(", "touch", "ran"]);
    assert_eq!(wrong.status.code(), Some(125));
    assert!(text(&wrong.stderr).starts_with("hodo: "));
    assert!(!place.path().join("ran").exists());
}

#[test]
fn the_program_can_keep_the_process_id() {
    let place = place();
    let child = hodo(
        place.path(),
        &["record", "--keep-pid", "/bin/sh", "-c", "echo $$; exit 6"],
    )
    .stdout(Stdio::piped())
    .spawn()
    .unwrap();
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    assert_eq!(text(&output.stdout), format!("{pid}\n"));
    assert_eq!(output.status.code(), Some(6));
}

#[test]
fn programs_run_without_address_randomization() {
    let place = place();
    let mut command = hodo(
        place.path(),
        &["record", "/bin/sh", "-c", "echo $((6 * 7))"],
    );
    // SAFETY: personality is one system call, and touches no memory.
    let output = unsafe {
        command.pre_exec(|| {
            libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong);
            Ok(())
        })
    }
    .output()
    .unwrap();
    assert_eq!(text(&output.stdout), "42\n", "{output:?}");
}

#[test]
fn readers_show_what_was_recorded() {
    let place = place();
    let output = run(place.path(), &["record", "/bin/ls", "/"]);
    assert!(output.status.success());
    let replay = run(place.path(), &["replay"]);
    assert!(text(&replay.stdout).starts_with("# DURATION     TID     FUNCTION\n"));
    assert!(text(&replay.stdout).lines().count() > 10);
    let report = run(place.path(), &["report", "--format=json"]);
    let rows: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
    let row = &rows[0];
    for key in ["name", "module"] {
        assert!(row[key].is_string(), "{row}");
    }
    for key in ["calls", "total_ns", "self_ns"] {
        assert!(row[key].is_u64(), "{row}");
    }
    let info = run(place.path(), &["info", "--json"]);
    let info: serde_json::Value = serde_json::from_slice(&info.stdout).unwrap();
    assert!(info["events"].as_u64().unwrap() > 10, "{info}");
    let svg = run(place.path(), &["dump", "--svg"]);
    assert!(text(&svg.stdout).contains("</svg>"));
    // Inside the trace directory, no name is needed.
    let inside = run(&place.path().join("hodo.data"), &["replay"]);
    assert_eq!(inside.stdout, replay.stdout);
}

#[test]
fn an_older_trace_is_kept() {
    let place = place();
    // With and without the slash that shells append.
    for (data, program) in [("trace", "true"), ("trace/", "false")] {
        run(place.path(), &["record", "-d", data, program]);
    }
    let program = |data| {
        let output = run(place.path(), &["info", "-d", data]);
        text(&output.stdout).to_owned()
    };
    assert!(program("trace.old").contains("/true"));
    assert!(program("trace").contains("/false"));
}

#[test]
fn a_failed_recording_keeps_older_traces() {
    let place = place();
    for program in ["true", "false"] {
        run(place.path(), &["record", program]);
    }
    // A wrong definition, twice; a place that does not exist; a process that does not exist.
    let refused: [&[&str]; 4] = [
        &["record", "-e", "nonsense(", "true"],
        &["record", "-e", "nonsense(", "true"],
        &["record", "-e", "p:x /bin/true:+0x1 count", "true"],
        &["record", "-p", "4194303"],
    ];
    for words in refused {
        let output = run(place.path(), words);
        assert_eq!(output.status.code(), Some(125), "{output:?}");
    }
    let names: BTreeSet<_> = (place.path().read_dir().unwrap())
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(
        names.into_iter().collect::<Vec<_>>(),
        ["hodo.data", "hodo.data.old"]
    );
    for (data, program) in [("hodo.data.old", "/true"), ("hodo.data", "/false")] {
        let output = run(place.path(), &["info", "-d", data]);
        assert!(text(&output.stdout).contains(program), "{data}");
    }
}

#[test]
fn output_that_cannot_be_written_breaks_nothing() {
    let place = place();
    let full = || std::fs::File::create("/dev/full").unwrap();
    let record = hodo(
        place.path(),
        &["record", "-v", "-F", "nothing", "/bin/sh", "-c", "exit 3"],
    )
    .stderr(full())
    .status()
    .unwrap();
    assert_eq!(record.code(), Some(3));
    let live = |program| {
        let output = hodo(place.path(), &["live", program])
            .stdout(full())
            .output()
            .unwrap();
        assert!(text(&output.stderr).starts_with("hodo: "), "{output:?}");
        output.status.code()
    };
    assert_eq!(live("true"), Some(125));
    assert_eq!(live("false"), Some(125));
    // These errors are found before the program runs.
    for words in [["-f", "nonsense"], ["-H", "("]] {
        let output = run(
            place.path(),
            &[&["live"][..], &words, &["/bin/echo", "ran"]].concat(),
        );
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
    }
    let nowhere = run(place.path(), &["syscalls", "-o", "/nowhere/x", "true"]);
    assert_eq!(nowhere.status.code(), Some(125), "{nowhere:?}");
}

#[test]
fn a_program_alone_is_live_and_leaves_nothing() {
    let place = place();
    let tmp = place.path().join("tmp");
    std::fs::create_dir(&tmp).unwrap();
    let output = hodo(
        place.path(),
        &["--no-libcall", "/bin/sh", "-c", "echo hi; exit 3"],
    )
    .env("TMPDIR", &tmp)
    .output()
    .unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stdout).starts_with("hi\n# DURATION     TID     FUNCTION\n"));
    assert_eq!(tmp.read_dir().unwrap().count(), 0);
    assert!(!place.path().join("hodo.data").exists());
}

#[test]
fn live_keeps_its_trace_in_the_named_directory() {
    let place = place();
    let words = ["live", "-d", "kept", "--c-runtime", "/bin/true"];
    let live = run(place.path(), &words);
    assert_eq!(live.status.code(), Some(0));
    let replay = run(place.path(), &["replay", "-d", "kept"]);
    assert_eq!(text(&live.stdout), text(&replay.stdout));
    assert!(text(&replay.stdout).contains("__cxa_finalize"));
}

#[test]
fn a_reader_that_goes_away_is_not_an_error() {
    let place = place();
    // More output than fits in a pipe.
    run(
        place.path(),
        &[
            "record",
            "/bin/sh",
            "-c",
            "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done",
        ],
    );
    for arguments in [
        &["replay"][..],
        &["dump"],
        &["completions", "bash"],
        &["--help"],
    ] {
        let mut child = hodo(place.path(), arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::with_capacity(16, child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let mut error = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut error)
            .unwrap();
        assert_eq!(error, "", "{arguments:?}");
        assert!(child.wait().unwrap().success(), "{arguments:?}");
    }
}

#[test]
fn a_plan_is_a_table_or_json() {
    let place = place();
    let table = run(place.path(), &["plan", env!("CARGO_BIN_EXE_hodo")]);
    assert!(table.status.success());
    assert!(text(&table.stdout).contains("traced"));
    let json = run(
        place.path(),
        &["plan", "--json", env!("CARGO_BIN_EXE_hodo")],
    );
    let plan: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let functions = &plan["functions"];
    let count = |value: &serde_json::Value| value.as_u64().unwrap();
    let refused = functions["refused"].as_array().unwrap();
    let tactics = functions["by_tactic"].as_object().unwrap();
    assert_eq!(tactics.len(), 6);
    assert!(count(&functions["traced"]) > 1000);
    assert_eq!(
        count(&functions["traced"]),
        tactics.values().map(count).sum::<u64>()
    );
    assert_eq!(
        count(&functions["total"]),
        count(&functions["traced"]) + refused.len() as u64
    );
    let lines = run(place.path(), &["plan", "-v", env!("CARGO_BIN_EXE_hodo")]);
    let lines = text(&lines.stdout).lines().count() as u64;
    assert!(lines > count(&functions["total"]));
}

#[test]
fn a_plan_names_what_compilers_have_prepared() {
    let place = place();
    std::fs::write(place.path().join("p.c"), "int main(void) { return 0; }\n").unwrap();
    let mcount = if cfg!(target_arch = "x86_64") {
        "mcount"
    } else {
        "_mcount"
    };
    let mut ways = vec![
        (vec!["-pg"], vec![mcount]),
        (vec!["-pg", "-static"], vec![mcount]),
        (
            vec!["-fpatchable-function-entry=8"],
            vec!["__patchable_function_entries"],
        ),
        (vec!["-O1"], vec![]),
    ];
    if cfg!(target_arch = "x86_64") {
        ways.push((vec!["-pg", "-mfentry"], vec!["__fentry__"]));
    }
    for (options, names) in ways {
        let built = std::process::Command::new("gcc")
            .args(&options)
            .args(["p.c", "-o", "p"])
            .current_dir(place.path())
            .status();
        assert!(built.unwrap().success());
        let table = run(place.path(), &["plan", "p"]);
        let said = text(&table.stdout);
        let json = run(place.path(), &["plan", "--json", "p"]);
        let plan: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
        let all = plan["prepared_by"].as_array().unwrap();
        assert_eq!(all.is_empty(), names.is_empty(), "{options:?}: {said}");
        assert_eq!(said.contains("prepared by"), !names.is_empty(), "{said}");
        for name in names {
            assert!(all.iter().any(|one| one == name), "{options:?}: {all:?}");
            assert!(said.contains(name), "{options:?}: {said}");
        }
    }
}

#[test]
fn a_plan_of_instructions_is_a_table_or_json() {
    let place = place();
    let source =
        "int main(int c, char **v) { while (--c) if (**++v == 'x') return 1; return 0; }\n";
    std::fs::write(place.path().join("small.c"), source).unwrap();
    let built = std::process::Command::new("gcc")
        .args(["-O1", "small.c", "-o", "small"])
        .current_dir(place.path())
        .status();
    assert!(built.unwrap().success());
    let arguments = ["plan", "--every-instruction", "--json", "small"];
    let json = run(place.path(), &arguments);
    assert!(json.status.success(), "{json:?}");
    let plan: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(plan.as_object().unwrap().len(), 1);
    let instructions = plan["instructions"].as_object().unwrap();
    let count = |value: &serde_json::Value| value.as_u64().unwrap();
    let tactics = instructions["by_tactic"].as_object().unwrap();
    let mut names: Vec<_> = tactics.keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["block", "hop", "jump", "pun", "trap"]);
    let probed = count(&instructions["probed"]);
    assert!(probed > 15, "{instructions:?}");
    assert_eq!(probed, tactics.values().map(count).sum::<u64>());
    let refused = instructions["refused"].as_array().unwrap();
    assert_eq!(count(&instructions["total"]), probed + refused.len() as u64);

    let table = run(place.path(), &["plan", "--every-instruction", "small"]);
    let table = text(&table.stdout);
    let lines: Vec<_> = table.lines().collect();
    assert_eq!(lines[0], "small");
    assert_eq!(
        lines[1],
        format!(
            "  instructions {:>9}",
            instructions["total"].as_u64().unwrap()
        )
    );
    assert!(
        lines[2].starts_with(&format!("  probed       {probed:>9}  ")),
        "{table}"
    );
    let starts = [
        "    jump ",
        "    block ",
        "    hop ",
        "    pun ",
        "    trap ",
        "  flags dead ",
        "  refused ",
    ];
    for (line, start) in lines[3..].iter().zip(starts) {
        assert!(line.starts_with(start), "{line}");
    }
    let verbose = run(
        place.path(),
        &["plan", "--every-instruction", "-v", "small"],
    );
    let verbose = text(&verbose.stdout);
    let sites = verbose.lines().skip(1).take_while(|line| !line.is_empty());
    let probes = sites.map(|line| {
        line.split_whitespace()
            .nth(3)
            .unwrap()
            .parse::<u64>()
            .unwrap()
    });
    assert_eq!(probes.sum::<u64>(), probed, "{verbose}");
}

#[test]
fn refused_instructions_are_listed_with_their_reasons() {
    let place = place();
    let source = "__asm__(\".text\\n.type far, @function\\nfar: lretl\\n.size far, 1\\n\"); int main() { return 0; }\n";
    std::fs::write(place.path().join("far.c"), source).unwrap();
    let built = std::process::Command::new("gcc")
        .args(["far.c", "-o", "far"])
        .current_dir(place.path())
        .status();
    assert!(built.unwrap().success());
    let json = run(
        place.path(),
        &["plan", "--every-instruction", "--json", "far"],
    );
    let plan: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let refused = plan["instructions"]["refused"].as_array().unwrap();
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert!(refused[0]["addr"].as_u64().unwrap() > 0);
    assert_eq!(refused[0]["insn"], "retf");
    assert_eq!(refused[0]["reason"], "it cannot be moved: a far return");
    let table = run(place.path(), &["plan", "--every-instruction", "far"]);
    let table = text(&table.stdout);
    assert!(
        table.contains("        1  it cannot be moved: a far return\n"),
        "{table}"
    );
}

#[test]
fn a_file_that_cannot_be_planned_is_an_error() {
    let place = place();
    std::fs::write(place.path().join("text"), "some text\n").unwrap();
    for file in ["text", "missing", "."] {
        let output = run(place.path(), &["plan", file]);
        assert_eq!(output.status.code(), Some(1), "{file}");
        let error = text(&output.stderr);
        assert!(error.starts_with("hodo: cannot "), "{error}");
        assert!(error.contains(file), "{error}");
    }
}

#[test]
fn manual_pages_and_completions_know_all_commands() {
    let place = place();
    let output = run(place.path(), &["manpages", "man"]);
    assert!(output.status.success(), "{output:?}");
    let commands = [
        "record", "live", "replay", "report", "graph", "dump", "info", "plan",
    ];
    for command in commands {
        let page = place.path().join(format!("man/hodo-{command}.1"));
        let page = std::fs::read_to_string(&page).unwrap();
        assert!(page.contains(".SH OPTIONS"), "{command}");
    }
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = run(place.path(), &["completions", shell]);
        assert!(output.status.success());
        let script = text(&output.stdout);
        assert!(commands.iter().all(|c| script.contains(c)), "{shell}");
        assert!(script.contains("no-libcall"), "{shell}");
    }
}

#[test]
fn every_command_has_help_and_a_version() {
    let place = place();
    for command in [
        "record", "live", "replay", "report", "graph", "dump", "info", "plan",
    ] {
        for option in ["-h", "--help"] {
            let output = run(place.path(), &[command, option]);
            assert!(output.status.success());
            assert!(text(&output.stdout).contains(&format!("Usage: hodo {command}")));
        }
        let output = run(place.path(), &[command, "-V"]);
        assert!(text(&output.stdout).contains(env!("CARGO_PKG_VERSION")));
    }
    let output = run(place.path(), &["-V"]);
    assert_eq!(
        text(&output.stdout),
        format!("hodo {}\n", env!("CARGO_PKG_VERSION"))
    );
}

/// Builds a program whose `main` calls `a` and `b`, and whose `a` calls `b`. It also calls `puts`.
fn calls(place: &Path) {
    let source = r#"
        #include <stdio.h>
        __attribute__((noinline)) int b(int x) { __asm__ volatile(""); return x + 1; }
        __attribute__((noinline)) int a(int x) { int r = b(x); __asm__ volatile(""); return r + 1; }
        int main(int n, char **v) { (void)v; int r = a(n) + b(n); puts("hi"); return r == 0; }
    "#;
    std::fs::write(place.join("calls.c"), source).unwrap();
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-o", "t-calls", "calls.c"]);
    assert!(gcc.current_dir(place).status().unwrap().success());
}

#[test]
fn command_lines_of_uftrace_work() {
    let place = place();
    let place = place.path();
    calls(place);
    // A program in the current directory, with options that choose how uftrace works internally.
    let words = [
        "--no-pager",
        "--no-event",
        "--libmcount-path=x",
        "-b",
        "4m",
        "record",
        "--max-stack=9",
        "t-calls",
    ];
    let output = run(place, &words);
    assert_eq!(
        (output.status.code(), text(&output.stdout)),
        (Some(0), "hi\n")
    );
    let expected = "main() {\n  a() {\n    b();\n  } /* a */\n  b();\n  puts();\n} /* main */\n";
    let output = run(place, &["replay", "-f", "none", "./t-calls", "--avg-self"]);
    assert_eq!((text(&output.stdout), text(&output.stderr)), (expected, ""));
    let output = run(place, &["report", "other"]);
    assert_eq!(
        text(&output.stderr),
        "hodo: hodo.data is a trace of ./t-calls, not of other\n"
    );
    for (format, beginning) in [("chrome", "{\"traceEvents\""), ("flame-graph", "main")] {
        let output = run(place, &["dump", "--format", format]);
        assert!(text(&output.stdout).starts_with(beginning), "{output:?}");
    }
    let tasks = std::fs::read_to_string(place.join("hodo.data/task.txt")).unwrap();
    let exe = place.canonicalize().unwrap().join("t-calls");
    let words: Vec<&str> = tasks.split_whitespace().collect();
    assert_eq!((words[0], words[5]), ("SESS", "TASK"), "{tasks}");
    assert_eq!(words[4], format!("exename=\"{}\"", exe.display()));
    // The C runtime's own functions, on request.
    let output = run(place, &["record", "--c-runtime", "t-calls"]);
    assert!(output.status.success());
    let output = run(place, &["replay", "-f", "none", "-D1"]);
    assert!(text(&output.stdout).contains("_init();\n"), "{output:?}");
    let output = run(
        place,
        &[
            "live",
            "--logfile=log",
            "-F",
            "nothing",
            "-f",
            "none",
            "-F",
            "_init",
            "t-calls",
        ],
    );
    assert_eq!(
        (text(&output.stdout), text(&output.stderr)),
        ("hi\n_init();\n", "")
    );
    let log = std::fs::read_to_string(place.join("log")).unwrap();
    assert!(
        log.starts_with("hodo: -F 'nothing' matches no function"),
        "{log}"
    );
}

#[test]
fn the_last_filter_that_matches_a_function_counts() {
    let place = place();
    let place = place.path();
    calls(place);
    let b = "b();\n";
    let all = "a() {\n  b();\n} /* a */\nb();\n";
    for (options, expected) in [
        (&["-F", "a", "-N", "b", "-F", "b"][..], all),
        (&["-F", "a", "-F", "b", "-N", "b"], "a();\n"),
        (&["-N", "b", "-F", "b"], &format!("{b}{b}")),
        (&["-N", ".", "-F", "main"], "main();\n"),
        (&["-F", "puts@plt"], "puts();\n"),
        (&["-F", "a", "-F", "b@plt"], "a() {\n  b();\n} /* a */\n"),
    ] {
        let words = [&["record"], options, &["t-calls"]].concat();
        assert!(run(place, &words).status.success());
        let output = run(place, &["replay", "-f", "none"]);
        assert_eq!(text(&output.stdout), expected, "{options:?}");
        assert!(run(place, &["record", "t-calls"]).status.success());
        let words = [&["replay", "-f", "none"], options].concat();
        assert_eq!(text(&run(place, &words).stdout), expected, "{options:?}");
    }
}

#[test]
fn options_that_only_uftrace_has_are_refused_with_a_tip() {
    let place = place();
    for (words, tip) in [
        (
            &["tui"][..],
            "a command of uftrace that hodo does not have yet",
        ),
        (&["-d", "x", "script", "-S", "y.py"], "a command of uftrace"),
        (
            &["record", "--kernel", "touch", "ran"],
            "hodo syscalls shows the system calls",
        ),
        (
            &["record", "-A", "main@arg1", "touch", "ran"],
            "tip: function tracing records no arguments",
        ),
        (
            &["record", "--zzz", "touch", "ran"],
            "tip: hodo has no such option",
        ),
        (
            &["replay", "--perfetto"],
            "tip: it is an option of hodo dump",
        ),
        (
            &["record", "-F", "main@depth=1", "touch", "ran"],
            "-D counts the depth",
        ),
        (&["replay", "-N", "main@backtrace"], "no action 'backtrace'"),
        (&["replay", "--format=html"], "possible values"),
    ] {
        let output = run(place.path(), words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(text(&output.stderr).contains(tip), "{output:?}");
        assert_eq!(text(&output.stdout), "");
    }
    assert_eq!(place.path().read_dir().unwrap().count(), 0);
}
