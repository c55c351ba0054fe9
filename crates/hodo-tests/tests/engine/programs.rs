//! Programs do in the code cache (`hodo mem none`) what they do alone.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use hodo_tests::{Kind, Run, build, build_with, has_tool, hodo, is_root, needs, scratch};

/// Runs a program of the tests in the cache, linked in several ways. Those that differ only in addresses run under all
/// tools in `all_programs_in_all_kinds_under_all_tools`.
fn runs(source: &str, options: &[&str]) {
    for kind in [Kind::Pie, Kind::Fixed, Kind::Static, Kind::StaticPie] {
        let run = Run::new(
            &format!("cache-{source}-{kind:?}"),
            build(source, kind, options),
        );
        match kind {
            Kind::Pie | Kind::Static => run.same_in_cache(),
            _ => run.same_in_cache_briefly(),
        }
    }
}

#[test]
fn another_c_library() {
    needs!(Kind::Musl.is_available(), "there is no musl");
    for kind in [Kind::Musl, Kind::MuslStatic] {
        let program = build("threads.c", kind, &["-DTHREADS=1000"]);
        Run::new(&format!("cache-musl-{kind:?}"), program).same_in_cache();
    }
}

macro_rules! programs {
    ($($name:ident $source:literal $($option:literal)?;)*) => {
        #[test]
        #[ignore = "takes minutes: the rest of what these tests leave out"]
        fn all_programs_in_all_kinds_under_all_tools() {
            let all: &[(&str, &[&str])] = &[$(($source, &[$($option)?])),*];
            for (source, options) in all {
                for kind in [Kind::Fixed, Kind::StaticPie] {
                    let program = build(source, kind, options);
                    Run::new(&format!("cache-all-{source}-{kind:?}"), program).same_in_cache();
                }
            }
        }

        $(
            #[test]
            fn $name() {
                runs($source, &[$($option)?]);
            }
        )*
    };
}

programs! {
    flags_that_functions_return "returned_flags.c";
    tail_calls "tail_calls.c";
    calls_of_no_address "wild_calls.c";
    deep_recursion "deep_recursion.c";
    jumps "jumps.c";
    coroutines "coroutines.c";
    threads "threads.c" "-DTHREADS=1000";
    signals "signals.c";
    blocked_faults "blocked_faults.c";
    flags_that_are_popped "popped_flags.c";
    addresses_that_signals_tell "signal_addresses.c";
    handlers_that_come_often "led_handlers.c";
    traps_that_are_sent "sent_traps.c";
    code_that_changes "rewritten.c";
    code_that_others_change "changing.c";
    calls_that_are_refused "refused.c";
    code_in_a_large_reservation "reservation.c";
    children "children.c";
    lists_of_mappings "own_maps.c";
    cancelled_threads "cancel.c";
    unwinding "unwinding.c";
    more_targets_than_the_table_has_room_for "many_targets.c";
}

#[test]
fn ten_thousand_threads() {
    let program = build("threads.c", Kind::Pie, &[]);
    Run::new("cache-ten-thousand-threads", program).same_in_cache_briefly();
}

/// They would not be restarted in the cache, so they cannot be registered, and threads take a lock.
#[test]
fn sequences_that_would_be_restarted() {
    let program = build("sequences.c", Kind::Pie, &["-pthread"]);
    Run::new("cache-sequences", program)
        .env("GLIBC_TUNABLES", "glibc.pthread.rseq=0")
        .same_in_cache();
}

#[test]
fn memory_is_bounded_while_a_library_comes_and_goes() {
    let options = ["-O1", "-shared", "-fPIC"];
    let plugin = build_with("gcc", &["unloaded_often_plugin.c"], &options);
    let program = build("unloaded_often.c", Kind::Pie, &["-ldl"]);
    Run::new("cache-unloaded", program)
        .args([plugin])
        .same_in_cache();
}

/// Each change of rights costs a few stops, however much code keeps its rights.
#[test]
fn rights_in_turns() {
    let program = build("rights_in_turns.c", Kind::Pie, &[]);
    Run::new("cache-rights", &program).same_in_cache();
    let output = Command::new(hodo())
        .args(["mem", "none", "--"])
        .args([program.as_os_str(), "waits".as_ref()])
        .env("HODO_CACHE", scratch("rights").join("cache"))
        .output()
        .expect("hodo can be run");
    let text = String::from_utf8_lossy(&output.stdout);
    let mut waits = text.lines().rev().map(|line| line.parse().ok());
    let later: Option<u32> = waits.next().flatten();
    let waits: Option<u32> = waits.next().flatten();
    // At each of two calls: before it, where it begins, and where it ends; and where the code is executed again.
    assert!(waits.is_some_and(|waits| waits < 12), "{output:?}");
    assert!(later.is_some_and(|waits| waits < 100), "{output:?}");
    needs!(is_root(), "mounting needs root");
    let script = "mount -t tmpfs -o noexec none /dev/shm; exec \"$@\"";
    Run::new("cache-rights-refused", &program)
        .inside(["unshare", "-m", "sh", "-ec", script, "sh"])
        .same_in_cache_briefly();
}

#[test]
fn code_in_several_mappings() {
    let far = ["-O1", "-Wl,--section-start=.far=0x10000000"];
    let program = build("far_text.c", Kind::Fixed, &far);
    Run::new("cache-far-text", program).same_in_cache();
}

#[test]
fn exceptions() {
    for kind in [Kind::Pie, Kind::Static] {
        let program = build("exceptions.cc", kind, &[]);
        Run::new(&format!("cache-exceptions-{kind:?}"), program).same_in_cache();
    }
}

#[test]
fn registers_that_signals_show() {
    let program = build("held_registers.c", Kind::Pie, &[]);
    Run::new("cache-held-registers", program).same_in_cache();
}

#[test]
fn signals_of_all_kinds() {
    let program = build("odd_signals.c", Kind::Pie, &[]);
    Run::new("cache-odd-signals", program).same_in_cache();
}

#[test]
fn handwritten_assembly() {
    let program = build_with("gcc", &["recursion.c", "recursion.S"], &["-O2", "-w"]);
    Run::new("cache-assembly", program).same_in_cache();
}

/// Runs an ordinary program in the cache.
fn program(test: &str, command: &[&str]) {
    needs!(has_tool(command[0]), "it is not installed");
    Run::new(test, command[0])
        .args(&command[1..])
        .same_in_cache();
}

/// Where the cache has room that it does not use, accesses of the program fault as if nothing were there.
#[test]
fn wild_accesses_fault() {
    let program = build("wild.c", Kind::Pie, &["-O1"]);
    for tool in ["none", "stat"] {
        let output = Command::new(hodo())
            .args(["mem", tool, "--"])
            .arg(&program)
            .env("HODO_CACHE", scratch("wild").join("cache"))
            .output()
            .expect("hodo can be run");
        let [stdout, stderr] =
            [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        assert_eq!(
            stdout, "wrong addresses: 0, wrong codes: 0\n",
            "{tool}: {stderr}"
        );
        let readable = stderr
            .lines()
            .find_map(|line| line.strip_prefix("readable: "));
        // Steps of 64 KiB; a region of the cache has 1024.
        let readable: Option<u32> = readable.and_then(|number| number.parse().ok());
        assert!(
            readable.is_some_and(|number| number < 64),
            "{tool}: {stderr}"
        );
    }
}

#[test]
fn a_shell_with_pipes() {
    let script = "for i in $(seq 20); do echo $i; done | sort -n | md5sum; (exit 3); echo $?; \
                  trap 'echo caught' USR1; kill -USR1 $$; ls / | wc -l";
    program("cache-bash", &["bash", "-c", script]);
}

#[test]
fn a_shell_that_is_killed() {
    program(
        "cache-killed",
        &["bash", "-c", "echo before; kill -9 $$; echo after"],
    );
}

#[test]
fn perl_with_children() {
    let script =
        "for (1..5) { my $p = fork; exit $_ if !$p; waitpid $p, 0; print $? >> 8, \"\\n\" }";
    program("cache-perl", &["perl", "-e", script]);
}

#[test]
fn python_with_threads_and_timers() {
    needs!(
        std::path::Path::new("/usr/bin/python3").exists(),
        "it is not installed"
    );
    let script = "
import signal, threading, time
seen = 0
def handler(*_):
    global seen
    seen += 1
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
sums = []
threads = [threading.Thread(target=lambda n=n: sums.append(sum(range(n)))) for n in range(0, 20000, 1000)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
until = time.time() + 0.5
while time.time() < until:
    pass
signal.setitimer(signal.ITIMER_REAL, 0)
print(len(sums), sum(sums), seen > 20)
";
    Run::new("cache-python", "/usr/bin/python3")
        .args(["-c", script])
        .same_in_cache();
}

#[test]
fn a_fault_of_the_program() {
    needs!(
        std::path::Path::new("/usr/bin/python3").exists(),
        "it is not installed"
    );
    let script = "import ctypes; print(1, flush=True); ctypes.string_at(0)";
    Run::new("cache-fault", "/usr/bin/python3")
        .args(["-c", script])
        .same_in_cache();
}

#[test]
fn a_compiler() {
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/values.c");
    Run::new("cache-gcc", "gcc")
        .args(["-O1", "-S", "-o", "-"])
        .args([source])
        .same_in_cache();
}

#[test]
fn a_database() {
    let query = "with recursive t(i) as (select 1 union all select i + 1 from t where i < 50000) \
                 select count(*), sum(i), max(i * i) from t";
    program("cache-sqlite", &["sqlite3", ":memory:", query]);
}

#[test]
fn hodo_itself() {
    Run::new("cache-hodo", hodo_tests::hodo())
        .args(["plan", "/bin/true"])
        .same_in_cache();
}

/// It looks up in `/proc/self/maps` what it may execute, and decides itself where its memory is.
#[test]
fn a_virtual_processor() {
    needs!(has_tool("valgrind"), "it is not installed");
    Run::new("cache-valgrind", "valgrind")
        .args(["-q", "--error-exitcode=9", "/bin/echo", "x"])
        .same_in_cache();
    Run::new("cache-cachegrind", "valgrind")
        .args(["-q", "--tool=cachegrind", "--cachegrind-out-file=/dev/null"])
        .args(["--log-file=/dev/null", "/bin/echo", "x"])
        .same_in_cache_briefly();
}

/// The runtimes of sanitizers map much memory at places of their own, and look up whether these are free.
#[test]
fn sanitizers() {
    for (name, short, source, kind) in [
        ("address", "a", "exceptions.cc", Kind::Pie),
        ("address", "a", "jumps.c", Kind::Fixed),
        ("thread", "t", "conditions.c", Kind::Pie),
        ("undefined", "ub", "jumps.c", Kind::Pie),
    ] {
        let library = format!("-print-file-name=lib{short}san.so");
        let found = Command::new("gcc").arg(library).output();
        let found = String::from_utf8(found.expect("gcc").stdout).expect("a path");
        needs!(found.contains('/'), "gcc has no sanitizers");
        let sanitize = format!("-fsanitize={name}");
        let program = build(source, kind, &[&sanitize, "-O1"]);
        Run::new(&format!("cache-sanitize-{name}-{kind:?}"), program)
            // A process whose leaks are looked for is left.
            .env("ASAN_OPTIONS", "detect_leaks=0")
            .same_in_cache();
    }
}

#[test]
fn a_script_that_is_compiled_while_it_runs() {
    let script = "const fib = n => n < 2 ? n : fib(n - 1) + fib(n - 2); const m = new Map(); \
                  for (let i = 0; i < 1e5; i++) m.set(i, {a: i}); console.log(fib(22), m.size)";
    program("cache-node", &["node", "-e", script]);
}

#[test]
fn a_virtual_machine() {
    program("cache-java", &["java", "-Xshare:auto", "-version"]);
}

/// What earlier runs have entered is translated ahead: neither that nor a damaged cache changes anything.
#[test]
fn places_of_earlier_runs() {
    let place = scratch("places_of_earlier_runs");
    let cache = place.join("cache");
    let script = "x=$(echo 1 2 3 | tr ' ' '\\n' | sort -r | head -1); printf '%s\\n' $x; exit 4";
    let run = |tool: &[&str]| {
        let output = Command::new("timeout")
            .args(["-s", "KILL", "300"])
            .arg(hodo())
            .arg("mem")
            .args(tool)
            .args(["--", "bash", "-c", script])
            .env("HODO_CACHE", &cache)
            .output()
            .expect("hodo can be run");
        assert_eq!(output.status.code(), Some(4), "{output:?}");
        assert_eq!(output.stdout, b"3\n", "{output:?}");
        output.stderr
    };
    let files = || {
        let all = fs::read_dir(&cache).expect("the cache");
        let paths = all.map(|entry| entry.expect("an entry").path());
        let mut paths: Vec<PathBuf> = paths.collect();
        paths.sort();
        paths
    };
    assert_eq!(run(&["none"]), b"");
    let first = files();
    for program in ["bash", "sort", "libc.so.6"] {
        let is_kept = |path: &PathBuf| path.to_string_lossy().contains(&format!("/{program}-"));
        assert!(first.iter().any(is_kept), "{program}: {first:?}");
    }
    assert_eq!(run(&["none"]), b"");
    run(&["stat"]);
    let second = files();
    assert_eq!(second.len(), 3 * first.len(), "translations are kept");
    for _ in 0..2 {
        assert_eq!(run(&["none"]), b"");
    }
    run(&["stat"]);
    run(&["cache", "--like", "zen3"]);
    assert_eq!(files(), second, "the same files are used again");
    for (damage, path) in second.iter().enumerate() {
        let mut bytes = fs::read(path).expect("a file");
        match damage % 3 {
            0 => bytes.truncate(bytes.len() / 2),
            1 => bytes.iter_mut().for_each(|byte| *byte ^= 0x5A),
            _ => bytes.clear(),
        }
        fs::write(path, bytes).expect("a file");
    }
    assert_eq!(run(&["none"]), b"");
    run(&["stat"]);
    fs::remove_dir_all(place).expect("the cache can be removed");
}

/// What is counted does not depend on whether translations of earlier runs are used, which are kept by the second one.
#[test]
fn counts_with_translations_of_earlier_runs() {
    needs!(has_tool("setarch"), "setarch is not installed");
    let place = scratch("counts_of_earlier_runs");
    let cache = place.join("cache");
    let script = "my %n; $n{length $_}++ for split /[^a-z]+/, lc 'The quick brown fox; ' x 200; \
                  eval { kill 'USR1', $$; die 'so' }; print join(',', map {\"$_=$n{$_}\"} sort keys %n), $@;";
    for tool in ["stat", "bbcount", "opcodes"] {
        let run = || {
            let output = Command::new("setarch")
                .args(["-R", "timeout", "-s", "KILL", "300"])
                .arg(hodo())
                .args(["mem", tool, "--format", "json", "--", "perl", "-e"])
                .arg(format!(
                    "$SIG{{USR1}} = sub {{ print 'signal,' }}; {script}"
                ))
                .env("HODO_CACHE", &cache)
                .env("PERL_HASH_SEED", "0")
                // With AVX-512, strcmp loads what garbage after a string selects. Below the stack pointer, returns
                // leave addresses of the cache, which differ.
                .env("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-AVX512VL")
                .output()
                .expect("hodo can be run");
            assert!(output.status.success(), "{output:?}");
            let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(stdout.contains("signal,3=400,5=400so at"), "{stdout}");
            String::from_utf8_lossy(&output.stderr).into_owned() + &stdout
        };
        let first = run();
        for _ in 0..3 {
            assert_eq!(run(), first, "{tool}");
        }
    }
    let kept = fs::read_dir(&cache).expect("the cache");
    let sizes = kept.map(|entry| entry.expect("an entry").metadata().expect("a file").len());
    assert!(sizes.max() > Some(1 << 19), "translations are kept");
    fs::remove_dir_all(place).expect("the cache can be removed");
}

/// Children that are not followed run as alone, also those that share memory until they execute a program.
#[test]
fn children_that_are_not_followed() {
    let program = build("children.c", Kind::Pie, &[]);
    let run = |tool: &[&str], command: &[&str]| {
        let output = Command::new("timeout")
            .args(["-s", "KILL", "300"])
            .args(tool)
            .args(command)
            .output()
            .expect("hodo can be run");
        (output.status.code(), output.stdout, output.stderr)
    };
    let hodo = hodo().display().to_string();
    let stat = |options: &[&str], command: &[&str]| {
        let (alone, output, _) = run(&[], command);
        let tool = [
            &[&hodo, "mem", "stat", "--format", "json"],
            options,
            &["--"],
        ]
        .concat();
        let (status, own, result) = run(&tool, command);
        let error = String::from_utf8_lossy(&result);
        assert_eq!((status, own), (alone, output), "{error}");
        let value: serde_json::Value = serde_json::from_slice(&result).expect(&error);
        let number = |key: &str| value[key].as_u64().expect("a number");
        (number("instructions"), number("threads"))
    };
    let script = "for i in 1 2 3 4 5; do x=$(echo $i | tr 1 2); (exit $i); echo $x $?; done; \
                  (sleep 0.1; kill -USR1 $$) & trap 'echo caught; exit 6' USR1; wait; wait";
    let shell = ["bash", "-c", script];
    let (all, own) = (stat(&[], &shell), stat(&["--no-follow"], &shell));
    assert_eq!(own.1, 1);
    assert!(all.1 > 10 && all.0 > 2 * own.0, "{all:?} {own:?}");
    let children = [program.to_str().expect("text"), "1"];
    let (all, own) = (stat(&[], &children), stat(&["--no-follow"], &children));
    assert!(own.1 < all.1 && own.0 * 2 < all.0, "{all:?} {own:?}");
}

/// The state in front of each instruction is what it is alone: a program steps itself through random code.
#[test]
fn random_code_step_by_step() {
    let program = build("random_steps.c", Kind::Pie, &[]);
    let place = scratch("random_code_step_by_step");
    for (seed, from_file) in [("1", "0"), ("2", "1"), ("3", "1"), ("4", "0")] {
        let steps = |flags: &'static str| {
            let arguments = [seed, "6", from_file, flags];
            let run = Run::new(&format!("cache-steps-{seed}-{flags}"), &program);
            (run.args(arguments).alone().stdout, arguments)
        };
        // Counters change flags that the program does not need.
        let [with_flags, without] = ["1", "0"].map(steps);
        assert_ne!(with_flags.0, without.0);
        let recording = place.join("mem");
        let recording = recording.to_str().expect("text");
        let tools: [(&[&str], _); 5] = [
            (&["none"], &with_flags),
            (&["record", "-d", recording], &with_flags),
            (&["cache", "--html", "/dev/null"], &with_flags),
            (&["stat"], &without),
            (&["cache"], &without),
        ];
        for (tool, (alone, arguments)) in tools {
            let _ = fs::remove_dir_all(recording);
            let output = Command::new("timeout")
                .args(["-s", "KILL", "120"])
                .arg(hodo())
                .arg("mem")
                .args(tool)
                .arg("--")
                .arg(&program)
                .args(arguments)
                .output()
                .expect("hodo can be run");
            let seen = String::from_utf8_lossy(&output.stdout);
            assert_eq!(
                seen,
                String::from_utf8_lossy(alone),
                "{tool:?} {arguments:?}"
            );
        }
    }
}

/// Runs a command under a tool, and returns its result as JSON. The command does what it does alone.
fn observed(options: &[&str], command: &[&str]) -> serde_json::Value {
    observed_if_begun(options, command).expect("it does not end before `--from`")
}

/// The same, or nothing if the command ends before the observation begins. hodo says so, and fails.
fn observed_if_begun(options: &[&str], command: &[&str]) -> Option<serde_json::Value> {
    let run = |words: &[&str]| {
        let mut run = Command::new("timeout");
        run.args(["-s", "KILL", "120"]).args(words);
        let output = run.output().expect("it can be run");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), text, output.stderr)
    };
    let (status, alone, _) = run(command);
    let hodo = hodo().display().to_string();
    let tool = [
        &[&hodo, "mem"],
        options,
        &["--format", "json", "--"],
        command,
    ];
    let (own_status, own, result) = run(&tool.concat());
    let error = String::from_utf8_lossy(&result);
    assert_eq!(own, alone, "{options:?}: {error}");
    if own_status == Some(125) && error.contains("nothing was observed") {
        assert!(options.contains(&"--from"), "{options:?}: {error}");
        return None;
    }
    assert_eq!(own_status, status, "{options:?}: {error}");
    Some(serde_json::from_slice(&result).expect(&error))
}

/// hodo counts instructions, and observes threads in another way as soon as there are enough.
#[test]
fn parts_by_instructions() {
    const SOME: u64 = 1_000_000;
    /// Addresses differ from run to run.
    const CHANCE: u64 = 1000;
    let number = |value: &serde_json::Value| value["instructions"].as_u64().expect("a number");
    let hot = build("hot.c", Kind::Static, &[]);
    let hot = [hot.to_str().expect("text")];
    let all = number(&observed(&["stat"], &hot));
    for from in [1, 1000, all / 3, all / 2] {
        let from_here = format!("{from}-insns");
        let rest = number(&observed(&["stat", "--from", &from_here], &hot));
        assert!(rest <= all - from + CHANCE, "{rest} of {all} from {from}");
        for tool in ["stat", "opcodes", "cache"] {
            observed(&[tool, "--from", &from_here, "--for", "100k-insns"], &hot);
        }
    }
    // It is over before.
    let late = observed_if_begun(&["stat", "--from", "1000G-insns"], &hot);
    assert_eq!(late, None);
    let whole = number(&observed(&["stat", "--for", "1000G-insns"], &hot));
    assert!(whole.abs_diff(all) < CHANCE, "{whole} instead of {all}");
    let python = "print(sum(i * i for i in range(300000)))";
    let busy = ["/usr/bin/python3", "-S", "-c", python];
    if std::path::Path::new(busy[0]).exists() {
        let all = number(&observed(&["stat"], &busy));
        for tool in ["stat", "cache"] {
            let some = observed(&[tool, "--from", "10M-insns", "--for", "1M-insns"], &busy);
            let some = match tool {
                "stat" => number(&some),
                _ => some["levels"][0]["refs"].as_u64().expect("a number"),
            };
            assert!(some >= SOME && some < all, "{tool}: {some} of {all}");
        }
    }
}

/// The change comes at any moment: with signals, threads, children and exceptions.
#[test]
fn parts_of_programs_of_all_kinds() {
    for (source, arguments) in [
        ("odd_signals.c", &[][..]),
        ("held_registers.c", &[]),
        ("threads.c", &[]),
        ("children.c", &["1"]),
        ("exceptions.cc", &[]),
        ("rewritten.c", &[]),
    ] {
        let program = build(source, Kind::Pie, &[]);
        let command = [&[program.to_str().expect("text")], arguments].concat();
        for from in ["40k-insns", "1M-insns"] {
            observed_if_begun(&["stat", "--from", from], &command);
            for tool in ["stat", "reuse"] {
                observed_if_begun(&[tool, "--from", from, "--for", "500k-insns"], &command);
            }
        }
    }
}
