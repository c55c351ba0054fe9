//! Resource limits: the program runs as it does alone, and hodo says what a limit removes from the trace.

use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use hodo_tests::{Kind, Run, Trace, build, hodo, scratch};

/// Runs a program alone and traced under limits that a shell sets. Returns hodo's messages, and the calls of `leaf`.
fn limited(limit: &str, options: &[&str]) -> (String, u64) {
    let program = build("busy_threads.c", Kind::Pie, &[]);
    let script = format!("ulimit {limit} && exec \"$@\"");
    let run = Run::new(&format!("limited{}", limit.replace(' ', "")), program);
    let run = run.inside(["bash", "-c", &script, "bash"]);
    let (alone, traced) = (run.alone(), run.traced(options));
    assert_eq!(alone, traced.outcome, "{limit}: {}", traced.remarks);
    let calls = traced.trace.calls().get("leaf").copied();
    (traced.remarks, calls.unwrap_or(0))
}

#[test]
fn a_soft_file_size_limit_applies_to_the_program_only() {
    let (remarks, calls) = limited("-Sf 0", &[]);
    assert_eq!(remarks, "");
    assert!(calls > 100_000, "{calls}");
}

#[test]
fn a_hard_file_size_limit_ends_the_trace_and_not_the_program() {
    let (remarks, calls) = limited("-f 17000", &[]);
    assert!(calls > 1000, "{calls}");
    // A hodo that may raise the limit does so.
    if !remarks.is_empty() {
        assert!(remarks.contains(" records were lost"), "{remarks}");
        assert!(remarks.contains("ulimit -f"), "{remarks}");
    }
}

#[test]
fn a_small_address_space_has_a_small_trace() {
    for limit in ["-v 300000", "-v 200000"] {
        let (remarks, calls) = limited(limit, &[]);
        assert!(calls > 100_000, "{limit}: {calls}");
        if !remarks.is_empty() {
            assert!(remarks.contains("ulimit -v"), "{limit}: {remarks}");
        }
    }
}

#[test]
fn a_small_stack_applies_to_the_program_only() {
    let (remarks, calls) = limited("-s 64", &[]);
    assert_eq!(remarks, "");
    assert!(calls > 100_000, "{calls}");
}

/// If no trace is possible at all, the program still runs, and the limit is named.
#[test]
fn limits_that_leave_no_room_for_a_trace() {
    let program = build("busy_threads.c", Kind::Pie, &[]);
    for (limit, named) in [("-f 0", "ulimit -f"), ("-n 7", "ulimit -n")] {
        let script = format!("ulimit {limit} && exec \"$@\"");
        let run = Run::new(&format!("no_room{}", limit.replace(' ', "")), &program);
        // The output goes into a pipe, which no file size limit affects.
        let script = format!("({script}) 2>&1 | cat");
        let run = run.inside(["bash", "-c", &script, "bash"]);
        let (alone, traced) = (run.alone(), run.traced(&[]));
        let text = String::from_utf8_lossy(&traced.outcome.stdout).into_owned();
        let (ours, programs): (Vec<&str>, Vec<&str>) =
            text.lines().partition(|line| line.starts_with("hodo: "));
        assert_eq!(
            String::from_utf8_lossy(&alone.stdout)
                .lines()
                .collect::<Vec<_>>(),
            programs,
            "{limit}"
        );
        // A hodo that may raise the limit does so.
        if !ours.is_empty() {
            assert!(
                ours[0].contains(named) && ours[0].contains("untraced"),
                "{ours:?}"
            );
        }
    }
}

/// Runs `hodo` with these arguments in a directory, and returns its standard error.
fn said(place: &std::path::Path, words: &[&str]) -> String {
    let output = Command::new(hodo())
        .args(words)
        .current_dir(place)
        .env("TMPDIR", place)
        .stdin(Stdio::null())
        .output()
        .expect("hodo can be run");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn two_recordings_in_one_directory() {
    let place = scratch("two_recordings");
    let inner = format!("{} record true", hodo().display());
    for _ in 0..2 {
        let told = said(&place, &["record", "sh", "-c", &inner]);
        assert!(told.contains("this recording is in hodo.data.1"), "{told}");
    }
    for name in [
        "hodo.data",
        "hodo.data.1",
        "hodo.data.old",
        "hodo.data.1.old",
    ] {
        said(&place, &["info", "-d", name]);
    }
    std::fs::remove_dir_all(place).expect("nobody is in it");
}

#[test]
fn a_failed_start_replaces_no_trace() {
    let place = scratch("not_executed");
    said(&place, &["record", "true"]);
    let broken = place.join("broken");
    std::fs::write(&broken, b"\x7fELFbroken").expect("a file can be written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&broken, mode).expect("it is ours");
    let failed = Command::new(hodo())
        .args(["record", "./broken"])
        .current_dir(&place)
        .output()
        .expect("hodo can be run");
    assert!(!failed.status.success(), "{failed:?}");
    let told = said(&place, &["info"]);
    assert_eq!(told, "");
    assert!(!place.join("hodo.data.old").exists());
    std::fs::remove_dir_all(place).expect("nobody is in it");
}

/// A program with many functions, which takes a while to plan.
#[cfg(target_arch = "x86_64")]
fn many_functions(place: &std::path::Path) -> std::path::PathBuf {
    let (source, program) = (place.join("many.s"), place.join("many"));
    let text = ".text\n.globl main\nmain: ret\n.altmacro\n.macro one\n.type f\\@,@function\nf\\@: mov $1, %eax\nret\n\
                .balign 16\n.size f\\@, .-f\\@\n.endm\n.rept 400000\none\n.endr\n.section .note.GNU-stack,\"\",@progbits\n";
    std::fs::write(&source, text).expect("a file can be written");
    let mut gcc = Command::new("gcc");
    let made = gcc.arg("-o").arg(&program).arg(&source).status();
    assert!(made.expect("gcc can be run").success());
    program
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_recording_can_be_interrupted_before_it_begins() {
    use std::os::unix::process::ExitStatusExt;
    let place = scratch("interrupted_planning");
    said(&place, &["record", "true"]);
    let before = std::fs::read(place.join("hodo.data/info.json")).expect("a trace");
    let program = many_functions(&place);
    // Shells have what they start in the background ignore the signal.
    let mut child = Command::new("env")
        .arg("--default-signal=INT")
        .arg(hodo())
        .arg("record")
        .arg(&program)
        .current_dir(&place)
        .env("HODO_CACHE", "off")
        .spawn()
        .expect("hodo can be run");
    while !place.join("hodo.data.kept").exists() || !place.join("hodo.data/events").exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let begun = Instant::now();
    let pid = child.id().to_string();
    let sent = Command::new("kill").args(["-INT", &pid]).status();
    assert!(sent.expect("kill can be run").success());
    let ended = child.wait().expect("its end");
    assert_eq!(ended.signal(), Some(2), "{ended:?}");
    let took = begun.elapsed();
    assert!(took < Duration::from_millis(200), "{took:?}");
    // The older trace is there again.
    let after = std::fs::read(place.join("hodo.data/info.json")).expect("a trace");
    assert_eq!(after, before);
    assert!(!place.join("hodo.data.kept").exists());
    std::fs::remove_dir_all(place).expect("nobody is in it");
}

/// The directory of a recording that is not kept is removed by the next hodo if its own hodo was killed; not while it
/// lives.
#[test]
fn directories_of_killed_recordings() {
    let place = scratch("killed_live");
    let program = build("controlled.c", Kind::Pie, &[]);
    let start = || {
        Command::new(hodo())
            .arg("live")
            .arg(&program)
            .env("TMPDIR", &place)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("hodo can be run")
    };
    let here = || {
        let entries = std::fs::read_dir(&place).expect("it is there");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        let mut all: Vec<_> = paths
            .filter(|path| path.join("hodo.data/log.jsonl").exists())
            .collect();
        all.sort();
        all
    };
    let begun = Instant::now();
    let wait_for = |count: usize| {
        while here().len() < count {
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "nothing is recorded"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let mut killed = start();
    wait_for(1);
    let stale = here();
    killed.kill().expect("it runs");
    let input = killed.stdin.take();
    killed.wait().expect("it was killed");
    drop(input);
    let mut living = start();
    while here() == stale || here().is_empty() {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "nothing is recorded"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    let kept = here();
    said(&place, &["live", "true"]);
    assert_eq!(here(), kept);
    assert_eq!(kept.len(), 1);
    drop(living.stdin.take());
    living.wait().expect("it ends with its input");
    assert_eq!(here(), [] as [std::path::PathBuf; 0]);
    std::fs::remove_dir_all(place).expect("nobody is in it");
}

/// The file of a killed recorder is not much larger than its contents, and it can be read.
#[test]
fn a_killed_recorder_leaves_a_readable_trace() {
    const MOST: u64 = 4 << 30;
    let place = scratch("killed_recorder");
    let data = place.join("data");
    // It runs until its input ends.
    let program = build("controlled.c", Kind::Pie, &[]);
    let mut recorder = Command::new(hodo())
        .args(["record".as_ref(), "-d".as_ref(), data.as_os_str()])
        .args(["--".as_ref(), program.as_os_str()])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("hodo can be run");
    let begun = Instant::now();
    let events = data.join("events");
    let is_filled = || {
        let bytes = std::fs::metadata(&events).map_or(0, |events| events.blocks() * 512);
        bytes > 2 << 20
    };
    while !is_filled() {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "nothing is recorded"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    recorder.kill().expect("it runs");
    let input = recorder.stdin.take();
    recorder.wait().expect("it was killed");
    drop(input);
    let size = std::fs::metadata(&events).expect("the events").len();
    assert!(size < MOST, "{size}");
    let calls = Trace::new(data).calls();
    assert!(calls["leaf"] > 1000, "{calls:?}");
    std::fs::remove_dir_all(place).expect("nobody is in it");
}

/// hodo maps nothing where a program may want to.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_program_has_large_gaps_and_round_addresses_for_itself() {
    let program = build("large_gaps.c", Kind::Pie, &[]);
    let run = Run::new("large_gaps", program);
    run.same(&[]).has_calls(&[("main", 1)]);
}

/// A thread's records take no more room than they need once it has ended.
#[test]
fn short_threads_take_little_of_the_trace() {
    let program = build("short_threads.c", Kind::Pie, &["-pthread"]);
    let run = Run::new("short_threads", program);
    let trace = run.same(&[]);
    trace.has_calls(&[("main", 1), ("thread", 2000), ("leaf", 10000)]);
    let events = trace.directory().join("events");
    let size = std::fs::metadata(events).expect("the events").len();
    // The control area is 16 MiB. A chunk for each thread would be 125 MiB more. Threads that begin before hodo knows
    // of the end of others have their own.
    assert!(size < 64 << 20, "{size}");
    // Each task has its own calls.
    let threads = trace.view("report", &["--format", "json", "-F", "thread"]);
    assert!(threads.contains("leaf"), "{threads}");
}

/// Where addresses are not random, the heap of a program that is loaded low begins right behind it.
#[test]
fn the_heap_has_room_to_grow() {
    if std::process::Command::new("setarch")
        .args(["-R", "true"])
        .status()
        .is_err()
    {
        hodo_tests::skip("there is no setarch");
        return;
    }
    for kind in [Kind::Static, Kind::Fixed, Kind::Pie]
        .into_iter()
        .filter(|kind| kind.is_available())
    {
        let program = build("heap_grows.c", kind, &[]);
        for options in [&[][..], &["-l"]] {
            let run = Run::new(&format!("heap_grows-{kind:?}"), &program);
            let run = run.inside(["setarch", "-R"]);
            run.same(options).has_calls(&[("more", 6)]);
        }
    }
}
