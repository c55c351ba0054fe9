//! Static keys that are listed and switched from outside: `hodo keys`, and `HODO_KEYS`.

use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::OnceLock;

use hodo_tests::{Kind, build, example, hodo};
use serde_json::Value;

/// The example of `hodo-keys`.
fn exposed() -> &'static Path {
    static EXPOSED: OnceLock<PathBuf> = OnceLock::new();
    EXPOSED.get_or_init(|| example("hodo-keys", "exposed"))
}

/// The running example. It is killed when this is dropped.
struct Program {
    child: Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
}

impl Program {
    fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it can be run");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let mut program = Self {
            child,
            input,
            output,
        };
        assert_eq!(program.line(), "ready");
        program
    }

    fn new(argument: &str) -> Self {
        Self::start(Command::new(exposed()).arg(argument))
    }

    fn line(&mut self) -> String {
        let line = self.output.next().expect("there is a line");
        line.expect("it is text")
    }

    /// What the branches do, without the number of requests.
    fn ask(&mut self) -> String {
        let input = self.input.as_mut().expect("it has not ended");
        writeln!(input, "what").expect("it reads");
        let line = self.line();
        let (_, rest) = line.split_once(' ').expect("there is a number");
        rest.to_owned()
    }

    fn keys(&self, words: &[&str]) -> Output {
        let mut all = vec!["-p".to_owned(), self.child.id().to_string()];
        all.extend(words.iter().map(|word| (*word).to_owned()));
        keys(&all)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn keys(words: &[impl AsRef<std::ffi::OsStr>]) -> Output {
    Command::new("timeout")
        .args(["-s", "KILL", "300"])
        .arg(hodo())
        .arg("keys")
        .args(words)
        .env("LC_ALL", "C")
        .output()
        .expect("hodo can be run")
}

#[track_caller]
fn good(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The command is refused, with this message.
#[track_caller]
fn refused(output: &Output, message: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said, format!("hodo: {message}\n"));
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(output.stdout.is_empty());
}

const LISTED: &str = "\
# STATE   USERS  INITIAL  BRANCHES  KIND        NAME
  on          0  on              1  key         exposed::COUNTING
  off         0  off             1  key         exposed::LEVELS[0]
  off         0  off             1  key         exposed::LEVELS[1]
  on          1  off             1  key         exposed::LEVELS[2]
  off         0  off             2  key         exposed::VERBOSE
  on          0  on              1  key         exposed::checks::STRICT
  off         0  off             1  tracepoint  requests:begin
";

#[test]
fn keys_of_a_process_are_listed_and_switched() {
    let mut program = Program::new("users");
    let off = "verbose false, strict true, levels [false, false, true]";
    assert_eq!(program.ask(), off);
    assert_eq!(good(&program.keys(&["list"])), LISTED);
    let some: Vec<&str> = LISTED.lines().collect();
    assert_eq!(
        good(&program.keys(&["list", "LEVELS[?]", "*::checks::*"])),
        [some[0], some[2], some[3], some[4], some[6], ""].join("\n")
    );
    let switched = good(&program.keys(&["enable", "exposed::LEVELS", "COUNTING"]));
    assert_eq!(
        switched,
        "# BEFORE  NOW  BRANCHES  NAME\n\
         \u{20} on      on          1  exposed::COUNTING\n\
         \u{20} off     on          1  exposed::LEVELS[0]\n\
         \u{20} off     on          1  exposed::LEVELS[1]\n\
         \u{20} on      on          1  exposed::LEVELS[2]\n"
    );
    let on = "verbose false, strict true, levels [true, true, true]";
    assert_eq!(program.ask(), on);
    let switched = good(&program.keys(&["disable", "exposed::checks::STRICT", "--json"]));
    let switched: Value = serde_json::from_str(&switched).expect("it is JSON");
    assert_eq!(
        switched,
        serde_json::json!([{
            "name": "exposed::checks::STRICT", "kind": "key", "initial": true, "branches": 1,
            "enabled": false, "before": true, "users": 0,
        }])
    );
    let switched = good(&program.keys(&["enable", "--json", "requests:*"]));
    let switched: Value = serde_json::from_str(&switched).expect("it is JSON");
    assert_eq!(
        (&switched[0]["kind"], &switched[0]["enabled"]),
        (&"tracepoint".into(), &true.into())
    );
    let output = program.keys(&["disable", "*"]);
    assert!(output.status.success());
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "hodo: exposed::LEVELS[2] stays on while it has a user\n"
    );
    assert_eq!(
        program.ask(),
        "verbose false, strict false, levels [false, false, true]"
    );
    let listed = good(&program.keys(&["list", "LEVELS[2]", "--json"]));
    let listed: Value = serde_json::from_str(&listed).expect("it is JSON");
    assert_eq!(
        listed,
        serde_json::json!([{
            "name": "exposed::LEVELS", "index": 2, "kind": "key", "initial": false, "branches": 1,
            "enabled": true, "before": true, "users": 1,
        }])
    );
}

#[test]
fn a_pattern_that_matches_nothing_changes_nothing() {
    let mut program = Program::new("users");
    let pid = program.child.id();
    let before = program.ask();
    for verb in ["enable", "disable", "list"] {
        refused(
            &program.keys(&[verb, "LEVELS", "NONE", "verbose", "LEVELS[3]"]),
            &format!(
                "no static key of process {pid} (exposed) is named NONE or verbose or LEVELS[3]"
            ),
        );
    }
    refused(
        &program.keys(&["enable", "LEVELS", ""]),
        "\"\" cannot be a pattern",
    );
    refused(
        &program.keys(&["enable", "LEVELS VERBOSE"]),
        "\"LEVELS VERBOSE\" cannot be a pattern",
    );
    assert_eq!(program.ask(), before);
}

#[test]
fn keys_of_a_file_are_listed() {
    let other = build("calls.c", Kind::Pie, &[]);
    let path = exposed().to_str().expect("the path is text");
    assert_eq!(
        good(&keys(&["list", path])),
        "# INITIAL  BRANCHES  KIND        NAME\n\
         \u{20} on              1  key         exposed::COUNTING\n\
         \u{20} off             1  key         exposed::LEVELS[0]\n\
         \u{20} off             1  key         exposed::LEVELS[1]\n\
         \u{20} off             1  key         exposed::LEVELS[2]\n\
         \u{20} off             2  key         exposed::VERBOSE\n\
         \u{20} on              1  key         exposed::checks::STRICT\n\
         \u{20} off             1  tracepoint  requests:begin\n"
    );
    let listed = good(&keys(&["list", "--json", path, "LEVELS[1]"]));
    let listed: Value = serde_json::from_str(&listed).expect("it is JSON");
    assert_eq!(
        listed,
        serde_json::json!([{
            "name": "exposed::LEVELS", "index": 1, "kind": "key", "initial": false, "branches": 1,
        }])
    );
    refused(
        &keys(&["list", path, "NONE"]),
        &format!("no static key of {path} is named NONE"),
    );
    refused(
        &keys(&["list", other.to_str().expect("the path is text")]),
        &format!("{} has no static keys", other.display()),
    );
    refused(&keys(&["list", "./nothing"]), "there is no file ./nothing");
}

#[test]
fn a_process_that_does_not_expose_its_keys_is_stopped_for_a_moment() {
    let mut program = Program::new("alone");
    let pid = program.child.id();
    let listed = LISTED.replace(
        "  on          1  off             1  key         exposed::LEVELS[2]",
        "  off         0  off             1  key         exposed::LEVELS[2]",
    );
    assert_eq!(good(&program.keys(&["list"])), listed);
    let whose = format!("process {pid} (exposed)");
    for verb in ["list", "enable"] {
        refused(
            &program.keys(&[verb, "LEVELS", "NONE"]),
            &format!("no static key of {whose} is named NONE"),
        );
    }
    for _ in 0..20 {
        assert_eq!(
            good(&program.keys(&["enable", "LEVELS[?]"])),
            "# BEFORE  NOW  BRANCHES  NAME\n\
             \u{20} off     on          1  exposed::LEVELS[0]\n\
             \u{20} off     on          1  exposed::LEVELS[1]\n\
             \u{20} off     on          1  exposed::LEVELS[2]\n"
        );
        assert_eq!(
            program.ask(),
            "verbose false, strict true, levels [true, true, true]"
        );
        good(&program.keys(&["disable", "LEVELS", "STRICT"]));
        assert_eq!(
            program.ask(),
            "verbose false, strict false, levels [false, false, false]"
        );
        good(&program.keys(&["enable", "STRICT"]));
    }
    assert_eq!(good(&program.keys(&["list"])), listed);
}

#[test]
fn a_process_that_switches_keys_itself_is_not_disturbed() {
    let mut command = Command::new(exposed());
    let mut program = Program::start(command.arg("busy").stderr(Stdio::null()));
    for round in 0..30 {
        let (verb, is) = match round % 2 {
            0 => ("enable", "strict true, levels [true, true, true]"),
            _ => ("disable", "strict false, levels [false, false, false]"),
        };
        let output = program.keys(&[verb, "LEVELS", "STRICT", "COUNTING", "VERBOSE"]);
        assert!(output.status.success(), "{output:?}");
        assert!(program.ask().ends_with(is));
    }
    let listed = good(&program.keys(&["list", "VERBOSE", "--json"]));
    let listed: Value = serde_json::from_str(&listed).expect("it is JSON");
    assert!(listed[0]["users"].as_u64() <= Some(1), "{listed}");
}

#[test]
fn processes_without_keys() {
    let mut sleeper = Command::new("sleep")
        .arg("100")
        .spawn()
        .expect("it can be run");
    let pid = sleeper.id().to_string();
    for words in [&["list"][..], &["list", "X"], &["enable", "X"]] {
        let words = [&["-p", pid.as_str()][..], words].concat();
        refused(
            &keys(&words),
            &format!("process {pid} (sleep) has no static keys"),
        );
    }
    sleeper.kill().expect("it runs");
    sleeper.wait().expect("it is ours");
}

#[test]
fn missing_arguments_are_reported() {
    for (words, missing) in [
        (&["list"][..], "<FILE|PATTERN>..."),
        (&["enable", "X"], "--pid <PID>"),
        (&["-p", "1", "disable"], "<FILE|PATTERN>..."),
        (&["-p", "1"], "<ACTION>"),
        (&["-p", "0", "list"], "\"0\" is not a process ID"),
        (&["-p", "1", "toggle", "X"], "'toggle'"),
    ] {
        let output = keys(words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(
            said.starts_with("hodo: ") && said.contains(missing),
            "{said}"
        );
    }
}

#[test]
fn processes_that_cannot_be_asked() {
    let program = Program::new("users");
    let pid = program.child.id();
    // Its second thread, which answers for the keys.
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    let thread = tasks
        .map(|task| task.expect("it is there").file_name())
        .find(|task| *task != *pid.to_string())
        .expect("there is a thread");
    let thread = thread.to_str().expect("a number");
    refused(
        &keys(&["-p", thread, "list"]),
        &format!(
            "{thread} is a thread of process {pid} (exposed): its keys are those of the process"
        ),
    );
    // SAFETY: it is our child.
    let stopped = unsafe { libc::kill(pid.cast_signed(), libc::SIGSTOP) };
    assert_eq!(stopped, 0);
    refused(
        &program.keys(&["enable", "VERBOSE"]),
        &format!(
            "process {pid} (exposed) exposes its static keys, but does not answer: its state is T (stopped)"
        ),
    );
    drop(program);
    refused(
        &keys(&["-p", &pid.to_string(), "list"]),
        &format!("there is no process {pid}"),
    );
}

#[test]
fn a_process_that_is_recorded_cannot_be_stopped() {
    let directory = hodo_tests::scratch("static_keys_recorded");
    let mut command = Command::new(hodo());
    command.args(["record", "-d"]).arg(directory.join("data"));
    let mut program = Program::start(command.arg(exposed()).arg("alone"));
    let hodo_pid = program.child.id();
    let children = format!("/proc/{hodo_pid}/task/{hodo_pid}/children");
    let pid = std::fs::read_to_string(children).expect("it runs");
    let pid = pid.trim();
    refused(
        &keys(&["-p", pid, "enable", "VERBOSE"]),
        &format!(
            "process {pid} (exposed) does not expose its static keys (by hodo_keys::expose()), so it would have to be \
             stopped: it is controlled by another tracer: {hodo_pid} (hodo)"
        ),
    );
    let listed = good(&keys(&["-p", pid, "list", "VERBOSE"]));
    assert!(listed.contains("exposed::VERBOSE"), "{listed}");
    assert!(program.ask().starts_with("verbose false"));
    // It ends when its input does.
    program.input = None;
    assert!(program.child.wait().expect("it is ours").success());
}

#[test]
fn only_the_same_user_and_root_switch_keys() {
    // SAFETY: it only asks who we are.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("not run: only root can become another user");
        return;
    }
    let copy = std::env::temp_dir().join(format!("hodo-{}", std::process::id()));
    std::fs::copy(hodo(), &copy).expect("it can be copied");
    let other = |pid: u32, words: &[&str]| {
        let mut command = Command::new(&copy);
        command.args(["keys", "-p", &pid.to_string()]).args(words);
        command.current_dir("/").uid(12345).gid(12345);
        command.output().expect("hodo can be run")
    };
    let program = Program::new("users");
    let pid = program.child.id();
    let enabling = other(pid, &["enable", "VERBOSE"]);
    let alone = Program::new("alone");
    let other_pid = alone.child.id();
    let listing = other(other_pid, &["list"]);
    let stopping = other(other_pid, &["enable", "VERBOSE"]);
    std::fs::remove_file(&copy).expect("it is ours");
    refused(
        &enabling,
        &format!(
            "process {pid} (exposed) belongs to user root: only that user and root may see and switch its static keys"
        ),
    );
    let whose = format!("process {other_pid} (exposed)");
    let why = format!("{whose} belongs to user root: only that user and root may attach to it");
    refused(
        &listing,
        &format!("{whose} does not expose its static keys, so its memory is read: {why}"),
    );
    refused(
        &stopping,
        &format!(
            "{whose} does not expose its static keys (by hodo_keys::expose()), so it would have to be stopped: {why}"
        ),
    );
}

#[test]
fn the_environment_switches_keys_at_the_start() {
    let clauses = "VERBOSE, LEVELS[1],exposed::LEVELS[2]=off,,STRICT=off,*::STRICT=on,LEVELS[0]=on,COUNTING=off";
    let mut command = Command::new(exposed());
    let mut program = Program::start(command.env("HODO_KEYS", clauses).stderr(Stdio::piped()));
    assert_eq!(
        program.ask(),
        "verbose true, strict true, levels [true, true, false]"
    );
    assert!(good(&program.keys(&["list", "COUNTING"])).contains("  off "));
    let mut said = BufReader::new(program.child.stderr.take().expect("it is piped")).lines();
    drop(program);
    let said: Vec<String> = said.by_ref().map_while(Result::ok).collect();
    assert_eq!(said, ["request \"what\""]);
}

#[test]
fn errors_in_the_environment_are_reported_and_the_program_continues() {
    let mut command = Command::new(exposed());
    let clauses = "NONE,LEVELS[7]=off,VERBOSE=perhaps,=on,LEVELS[1]";
    let mut program = Program::start(command.env("HODO_KEYS", clauses).stderr(Stdio::piped()));
    assert_eq!(
        program.ask(),
        "verbose false, strict true, levels [false, true, false]"
    );
    let said = BufReader::new(program.child.stderr.take().expect("it is piped")).lines();
    drop(program);
    let said: Vec<String> = said.map_while(Result::ok).collect();
    assert_eq!(
        said,
        [
            "hodo-keys: HODO_KEYS: no static key matches `NONE`",
            "hodo-keys: HODO_KEYS: no static key matches `LEVELS[7]`",
            "hodo-keys: HODO_KEYS: `VERBOSE=perhaps`: after `=` comes on or off, not `perhaps`",
            "hodo-keys: HODO_KEYS: `=on` has no pattern",
        ]
    );
}

#[test]
fn a_program_without_standard_error_is_not_harmed() {
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$0\" 2>&-"]).arg(exposed());
    let mut program = Program::start(command.env("HODO_KEYS", "NONE,STRICT=off"));
    assert!(program.ask().contains("strict false"));
}
