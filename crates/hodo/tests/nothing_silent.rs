//! Nothing is silent: what is not obeyed is an error, a status has a sentence, and what is asked for is done.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn run(place: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hodo"));
    command.args(arguments).current_dir(place);
    command.stdin(Stdio::null()).env_remove("PAGER");
    command.output().expect("hodo starts")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("the output is text")
}

fn place() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

/// Each of these was once run, or written, or left out without a word.
#[test]
fn what_is_not_obeyed_is_an_error() {
    let place = place();
    let at = place.path();
    for (arguments, expected) in [
        (&["recrod", "ls"][..], "hodo record may be meant"),
        (&["diff", "a", "b"], "hodo -- diff runs a program"),
        (&["top"], "hodo report shows"),
        (
            &["mem", "cache", "--L3", "1K,2,64", "touch", "ran"],
            "unexpected argument '--L3'",
        ),
        (
            &["mem", "none", "--frobnicate", "touch", "ran"],
            "unexpected argument '--frobnicate'",
        ),
        (&["record", "-p", "1,x"], "\"x\" is not a process ID"),
        (&["probe", "-p", "", "-e", "f"], "is not a process ID"),
        (
            &["mem", "stat", "-p", "1", "-p", "2"],
            "--pid is there 2 times",
        ),
        (
            &["keys", "list", "-p", "1", "-p", "2"],
            "--pid is there 2 times",
        ),
        (
            &["syscalls", "-ff", "-c", "-o", "x", "touch", "ran"],
            "-ff ",
        ),
        (&["syscalls", "-ff", "-o", "|cat", "touch", "ran"], "-ff "),
        (&["syscalls", "-c", "-yy", "touch", "ran"], "-y"),
    ] {
        let output = run(at, arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        assert!(
            text(&output.stderr).contains(expected),
            "{arguments:?}: {output:?}"
        );
    }
    assert_eq!(at.read_dir().unwrap().count(), 0);
    // These are what they seem to be.
    let output = run(
        at,
        &[
            "mem",
            "cache",
            "--I1=1024,2,64",
            "--D1",
            "1024,2,64",
            "--LL",
            "64K,4,64",
            "true",
        ],
    );
    assert!(output.status.success(), "{output:?}");
    let output = run(at, &["syscalls", "-o", "-", "true"]);
    assert!(text(&output.stdout).contains("exit_group(0)"), "{output:?}");
    let output = run(at, &["--", "diff", "--version"]);
    assert!(text(&output.stdout).contains("diffutils"), "{output:?}");
    assert!(run(at, &["record", "-d", "a", "true"]).status.success());
    assert!(run(at, &["record", "-d", "b", "true"]).status.success());
    for (arguments, expected) in [
        (&["report", "a"][..], "-d a reads it"),
        (&["report", "-d", "a", "b"], "-d b reads it"),
        (
            &["report", "-d", "a", "true", "ls"],
            "ls: this is one word too many",
        ),
        (
            &["report", "-d", "a", "-F", "nosuch"],
            "-F nosuch: no function of this trace",
        ),
        (&["replay", "-d", "a", "--tid", "1"], "there is no task 1"),
    ] {
        let output = run(at, arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
        assert!(
            text(&output.stderr).contains(expected),
            "{arguments:?}: {output:?}"
        );
        assert_eq!(text(&output.stdout), "", "{arguments:?}");
    }
}

/// Options of strace, in whose words `hodo syscalls` speaks, and the same letters with the other commands.
#[test]
fn tips_speak_of_the_command_that_was_given() {
    let place = place();
    for (arguments, tip, not) in [
        (&["syscalls", "-k", "true"][..], "stacktrace", "kernel"),
        (
            &["syscalls", "-P", "/etc/passwd", "true"],
            "filename ~",
            "option of",
        ),
        (
            &["syscalls", "-Z", "-e", "file", "true"],
            "if ret < 0",
            "option of",
        ),
        (
            &["syscalls", "-S", "calls", "-c", "true"],
            "sorted by time",
            "script",
        ),
        (
            &["record", "-k", "true"],
            "functions of the kernel",
            "stacktrace",
        ),
        (
            &["probe", "-k", "true"],
            "hodo has no such option",
            "kernel",
        ),
    ] {
        let output = run(place.path(), arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        let told = text(&output.stderr);
        assert!(
            told.contains(tip) && !told.contains(not),
            "{arguments:?}: {told}"
        );
    }
    for filter in ["%stat", "%%stat", "/^stat"] {
        let output = run(
            place.path(),
            &["syscalls", "-e", filter, "-o", "out", "true"],
        );
        assert!(output.status.success(), "{output:?}");
    }
}

/// A probe that cannot be placed is an error with a sentence, whether hodo starts the program or attaches to it.
#[test]
fn a_probe_that_was_never_placed_is_told() {
    let place = place();
    let mut sleeper = Command::new("sleep").arg("100").spawn().unwrap();
    let pid = sleeper.id().to_string();
    for (definition, told) in [
        (
            "p libnosuch.so.6:f count",
            "was never placed: no file libnosuch.so.6 was loaded",
        ),
        (
            "p libnosuch.so.6:f",
            "was never placed: no file libnosuch.so.6 was loaded",
        ),
        ("p libc.so.6:no_such_function_* count", "no_such_function_*"),
        (
            "p libc.so.6:no_such_function",
            "names no function of the file",
        ),
        ("r libc.so.6:malloc+1", "offset"),
        ("p libc.so.6:malloc+1", "libc.so.6"),
        ("p /nonexistent:f", "/nonexistent"),
        ("p libc.so.6:malloc x=%nosuch", "nosuch"),
    ] {
        for attached in [false, true] {
            for command in ["probe", "record"] {
                let around: &[&str] = match attached {
                    true => &["-p", &pid, "--for", "0.1"],
                    false => &["sleep", "0"],
                };
                let words = [&[command, "-e", definition][..], around].concat();
                let output = run(place.path(), &words);
                assert!(!output.status.success(), "{words:?}: {output:?}");
                assert!(text(&output.stderr).contains(told), "{words:?}: {output:?}");
            }
        }
    }
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
}

/// A probe on a library that a process loads only after hodo has attached.
#[test]
fn a_probe_waits_for_its_library() {
    let place = place();
    let at = place.path();
    let source = "#include <dlfcn.h>\n#include <unistd.h>\n\
        int main(void) {\n\
            for (int i = 0; access(\"go\", F_OK) && i < 1000; i++) usleep(10000);\n\
            double (*root)(double) = (double (*)(double))dlsym(dlopen(\"libm.so.6\", RTLD_NOW), \"cbrt\");\n\
            for (int i = 0; i < 500; i++) { root(i); usleep(10000); }\n\
            return 0;\n\
        }\n";
    std::fs::write(at.join("loads.c"), source).unwrap();
    let mut gcc = Command::new("gcc");
    gcc.args(["-o", "loads", "loads.c"]).current_dir(at);
    assert!(gcc.status().unwrap().success());
    let loads = Command::new("./loads").current_dir(at).spawn().unwrap();
    let mut loads = Caller(loads);
    let pid = loads.pid();
    let observed = std::thread::scope(|scope| {
        let definition = "p libm.so.6:cbrt count";
        let words = ["probe", "-p", &pid, "--for", "2", "-e", definition];
        let observed = scope.spawn(move || run(at, &words));
        let status = || std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        while status().contains("TracerPid:\t0\n") && !observed.is_finished() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        std::thread::sleep(std::time::Duration::from_millis(300));
        std::fs::write(at.join("go"), "").unwrap();
        observed.join().unwrap()
    });
    assert!(observed.status.success(), "{observed:?}");
    assert!(
        text(&observed.stdout).contains("cbrt: (cbrt+0x0)"),
        "{observed:?}"
    );
    assert!(
        !text(&observed.stderr).contains("never placed"),
        "{observed:?}"
    );
    assert!(loads.runs_alone());
}

/// A process that makes system calls until it is dropped.
struct Caller(std::process::Child);

impl Caller {
    fn start() -> Self {
        let script = "while :; do read -t 0.02 x <> /dev/zero; sleep 0.02; done";
        let mut bash = Command::new("bash");
        bash.args(["-c", script]);
        bash.stdin(Stdio::null()).stdout(Stdio::null());
        Self(bash.stderr(Stdio::null()).spawn().expect("bash starts"))
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    /// Whether it runs, and nobody traces it.
    fn runs_alone(&mut self) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        self.0.try_wait().unwrap().is_none() && status.contains("TracerPid:\t0\n")
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn several_processes_are_observed_together() {
    let place = place();
    let mut callers = [Caller::start(), Caller::start(), Caller::start()];
    let [a, b, c] = [0, 1, 2].map(|index: usize| callers[index].pid());
    let (list, words) = (format!("{a},{b}"), format!("{a} {b} {c} {a}"));
    for processes in [&["-p", &list, "-p", &c][..], &["-p", &words]] {
        let options = ["syscalls", "--for", "0.7", "--format", "json"];
        let output = run(place.path(), &[&options[..], processes].concat());
        assert!(output.status.success(), "{output:?}");
        let calls = text(&output.stderr).lines();
        let calls = calls.filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let pids: BTreeSet<String> = calls.map(|call| call["pid"].to_string()).collect();
        for pid in [&a, &b, &c] {
            assert!(pids.contains(pid), "{pid}: {pids:?}");
        }
        // Their children are followed.
        assert!(pids.len() > 3, "{pids:?}");
    }
    let output = run(place.path(), &["record", "-p", &list, "--for", "0.7"]);
    assert!(output.status.success(), "{output:?}");
    let replay = run(place.path(), &["replay", "-f", "tid"]);
    let probes = [
        "probe",
        "-p",
        &list,
        "--for",
        "0.7",
        "-e",
        "syscalls:sys_enter_openat",
    ];
    let output = run(place.path(), &probes);
    for pid in [&a, &b] {
        assert!(text(&replay.stdout).contains(&format!("{pid}] |")), "{pid}");
        let event = format!("bash-{pid} ");
        assert!(text(&output.stdout).contains(&event), "{output:?}");
    }
    // If one of them cannot be observed, none is.
    let words = ["syscalls", "-p", &a, "-p", "4194303", "--for", "0.2"];
    let output = run(place.path(), &words);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(
        text(&output.stderr).contains("no process 4194303"),
        "{output:?}"
    );
    assert!(callers.iter_mut().all(Caller::runs_alone));
}

#[test]
fn threads_have_files_of_their_own_and_commands_read_output() {
    let place = place();
    let script = "/bin/true; /bin/echo hi >/dev/null & wait";
    let words = ["syscalls", "-ff", "-o", "calls", "sh", "-c", script];
    let output = run(place.path(), &words);
    assert!(output.status.success(), "{output:?}");
    let files: Vec<_> = (place.path().read_dir().unwrap())
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(files.len(), 3, "{files:?}");
    let mut programs = 0;
    for name in &files {
        let tid = name.strip_prefix("calls.").expect("a number");
        assert!(tid.parse::<u32>().is_ok(), "{name}");
        let lines = std::fs::read_to_string(place.path().join(name)).unwrap();
        // Nothing of another thread is there.
        assert!(!lines.contains("[pid"), "{lines}");
        assert_eq!(lines.matches("+++ exited with 0 +++").count(), 1, "{lines}");
        programs += lines.matches("execve(").count();
    }
    assert_eq!(programs, 3);
    let command = "| sed s/exit/EXIT/ >piped";
    let words = ["syscalls", "-e", "exit_group", "-o", command, "true"];
    let output = run(place.path(), &words);
    assert!(output.status.success(), "{output:?}");
    let piped = std::fs::read_to_string(place.path().join("piped")).unwrap();
    assert!(piped.contains("EXIT_group(0)"), "{piped}");
    let output = run(place.path(), &["syscalls", "-c", "-o", "!cat >&2", "true"]);
    assert!(text(&output.stderr).contains(" total"), "{output:?}");
    let output = run(place.path(), &["syscalls", "-o", "|exit 3", "true"]);
    let told = "exit 3, has failed: exit status: 3";
    assert!(text(&output.stderr).contains(told), "{output:?}");
    let words = ["syscalls", "-ff", "-o", "none/x", "touch", "ran"];
    let output = run(place.path(), &words);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(!place.path().join("ran").exists());
}

/// What the objects of one probe must have if its actions were done.
fn has_acted(objects: &[serde_json::Value], action: &str) -> bool {
    objects.iter().any(|object| match action {
        "print" => object["args"]["x"] == 4 && object["args"]["stacktrace"].is_null(),
        "count" => object["hits"] == 1 && object["hist"].is_null(),
        "hist:keys=x" => object["hist"][0]["key"]["x"] == 4,
        "snapshot:32" => !object["args"]["stack"].is_null(),
        "stacktrace" => !object["args"]["stacktrace"].is_null(),
        _ => true,
    })
}

/// Each action with each other one, in both orders: what each is to do is done.
#[test]
fn each_pair_of_actions_does_both() {
    let place = place();
    let at = place.path();
    let source = "__attribute__((noipa)) int first(int x) { return x + 1; }\n\
                  __attribute__((noipa)) int other(int x) { return x + 2; }\n\
                  int main(void) { int r = other(1); r = first(4); return r + other(r) != 12; }\n";
    std::fs::write(at.join("pairs.c"), source).unwrap();
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-g", "-o", "pairs", "pairs.c"]);
    assert!(gcc.current_dir(at).status().unwrap().success());
    let check = |shown: &str, name: &str, pair: [&str; 2]| {
        let objects = shown
            .lines()
            .map(|line| serde_json::from_str(line).unwrap());
        let objects: Vec<serde_json::Value> = objects
            .filter(|object: &serde_json::Value| object["name"] == name)
            .collect();
        for action in pair {
            assert!(
                has_acted(&objects, action),
                "{name} {pair:?}: {action}\n{shown}"
            );
        }
    };
    let actions = ["print", "count", "hist:keys=x", "snapshot:32", "stacktrace"];
    let mut pairs = Vec::new();
    for one in actions {
        pairs.extend(
            actions
                .iter()
                .filter(|two| **two != one)
                .map(|two| [one, two]),
        );
    }
    let definition = |(number, [one, two]): (usize, &[&str; 2])| {
        [
            "-e".to_owned(),
            format!("p:p{number} pairs:first x {one} {two}"),
        ]
    };
    let definitions: Vec<String> = pairs.iter().enumerate().flat_map(definition).collect();
    let mut words = vec!["probe", "--format", "json"];
    words.extend(definitions.iter().map(String::as_str));
    words.push("./pairs");
    let output = run(at, &words);
    assert!(output.status.success(), "{output:?}");
    for (number, pair) in pairs.iter().enumerate() {
        check(text(&output.stdout), &format!("p{number}"), *pair);
    }
    // A probe is hit once before the switch, and once after it.
    let run_with = |switch: &str, pairs: &[[&str; 2]]| {
        let definition = |(number, [one, two]): (usize, &[&str; 2])| {
            format!("p:p{number} pairs:first x {one} {two}")
        };
        let texts: Vec<String> = pairs.iter().enumerate().map(definition).collect();
        let mut words = vec!["probe", "--format", "json", "-e", "p:after pairs:other"];
        words.extend(texts.iter().flat_map(|text| ["-e", text]));
        words.push("./pairs");
        let output = run(at, &words);
        let shown = text(&output.stdout);
        for (number, pair) in pairs.iter().enumerate() {
            check(shown, &format!("p{number}"), *pair);
        }
        let after = shown.matches("\"name\":\"after\"").count();
        let is_off = ["disable:after", "traceoff"].contains(&switch);
        assert_eq!(after, if is_off { 1 } else { 2 }, "{pairs:?}: {shown}");
    };
    for switch in ["enable:after", "disable:after", "traceon"] {
        let pairs = actions.map(|action| [[action, switch], [switch, action]]);
        run_with(switch, &pairs.concat());
    }
    for action in actions {
        // Events after `traceoff` are what it is to prevent.
        run_with("traceoff", &[[action, "traceoff"]]);
        run_with("return:5", &[[action, "return:5"]]);
        run_with("return:5", &[["return:5", action]]);
    }
}
