//! Attaching and detaching while threads start, end, wait for each other or switch stacks.

use std::fs;
use std::io::{BufRead, Read, Write};
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use hodo_tests::probing::path;
use hodo_tests::target::{Target, command, run};
use hodo_tests::{Kind, Trace, build, needs, scratch};

/// Checks that nothing of hodo is left in a process, whose own memory may have changed.
fn is_left(target: &Target) {
    let maps = target.maps();
    assert!(!maps.contains("/events"), "{maps}");
    let status = fs::read_to_string(format!("/proc/{}/status", target.pid())).expect("status");
    assert!(status.contains("TracerPid:\t0\n"), "{status}");
}

/// Slow machines may stop making rounds after this many seconds.
const LONG_ENOUGH: u64 = 20;

/// Records a program repeatedly, each time for `time`. It must find nothing wrong.
fn rounds(program: &str, count: u32, time: &str, options: &[&str]) {
    recorded(program, count, time, options).ends("wrong: 0\n");
}

/// Records a program repeatedly, each time for `time`, and returns it.
fn recorded(program: &str, count: u32, time: &str, options: &[&str]) -> Target {
    let target = Target::start(&build(program, Kind::Pie, &[]));
    let place = scratch(&format!("attach_moments-{program}"));
    let data = place.join("data");
    let mut all = vec!["record", "--for", time, "-d", path(&data)];
    all.extend(options);
    let begun = Instant::now();
    for round in 0..count {
        if round > 1 && begun.elapsed().as_secs() > LONG_ENOUGH {
            break;
        }
        let output = command(&target, &all).output().expect("hodo can be run");
        assert!(output.status.success(), "{output:?}");
        let report = String::from_utf8_lossy(&output.stderr);
        // An emulated machine is so slow that hodo may not find a moment at which nothing of it is needed. It says so,
        // and the program must go on.
        if cfg!(not(target_arch = "x86_64"))
            && report.contains("; its code is restored, and it runs on\n")
        {
            println!("{program}, round {round}: {report}");
            break;
        }
        assert!(output.stderr.is_empty(), "{output:?}");
        is_left(&target);
    }
    fs::remove_dir_all(place).expect("the trace can be removed");
    target
}

/// Records a program, which gets a byte of input once its code has changed.
fn gets_a_byte(target: &mut Target, program: &Path, options: &[&str]) {
    let mut hodo = command(target, &[&["record"], options].concat())
        .spawn()
        .expect("hodo can be run");
    target.is_changed(program);
    let input = target.input.as_mut().expect("a pipe");
    input.write_all(b"x").expect("a byte");
    assert!(hodo.wait().expect("its end").success());
    is_left(target);
}

/// Has hodo detach, and returns what it says.
fn ended(hodo: &mut Child) -> String {
    let children = format!("/proc/{0}/task/{0}/children", hodo.id());
    let pid = fs::read_to_string(children).expect("timeout has a child");
    // SAFETY: kill touches no memory.
    unsafe { libc::kill(pid.trim().parse().expect("a number"), libc::SIGINT) };
    let mut said = String::new();
    let messages = hodo.stderr.as_mut().expect("a pipe");
    messages.read_to_string(&mut said).expect("its messages");
    hodo.wait().expect("its end");
    said
}

#[test]
fn threads_that_wait_for_children_of_vfork() {
    rounds("attached_spawns.c", 6, "0.1", &["-D", "1"]);
}

#[test]
fn a_program_that_executes_itself_during_attach() {
    let program = build("attached_executes.c", Kind::Pie, &[]);
    let place = scratch("attach_moments-executes");
    for round in 0..6 {
        let target = Target::start(&program);
        // What hodo examines first may be gone when it continues, or when it stops the process.
        let data = place.join(round.to_string());
        run(&target, &["record", "--for", "0.1", "-d", path(&data)]);
        is_left(&target);
        target.ends("wrong: 0\n");
    }
    fs::remove_dir_all(place).expect("the traces can be removed");
}

#[test]
fn libraries_that_are_unloaded_while_hodo_reads_them() {
    let program = build("attached_loads.c", Kind::Pie, &[]);
    let place = scratch("attach_moments-loads");
    for round in 0..4 {
        let mut target = Target::start_with(&program, &["libm.so.6", "libresolv.so.2"]);
        let input = target.input.as_mut().expect("a pipe");
        input.write_all(b"x").expect("a byte");
        let data = place.join(round.to_string());
        let options = ["record", "-l", "--for", "0.1", "-d", path(&data)];
        let mut hodo = command(&target, &options);
        // Planning without a cache takes long enough for libraries to be unloaded.
        let output = hodo.env("HODO_CACHE", "off").output();
        let output = output.expect("hodo can be run");
        assert!(output.status.success(), "{output:?}");
        is_left(&target);
        let input = target.input.as_mut().expect("a pipe");
        input.write_all(b"x").expect("a byte");
        target.ends("wrong: 0\n");
    }
    fs::remove_dir_all(place).expect("the traces can be removed");
}

#[test]
fn threads_that_are_cancelled() {
    rounds("attached_cancelled.cc", 20, "0.01", &[]);
}

#[test]
fn threads_that_throw_all_the_time() {
    rounds("attached_throws.cc", 12, "0.02", &[]);
}

#[test]
fn a_child_of_vfork_waits_for_another_thread_of_its_parent() {
    let program = build("attached_opens.c", Kind::Pie, &[]);
    let mut target = Target::start_with(&program, &["600"]);
    let place = scratch("a_child_of_vfork_waits_for_another_thread_of_its_parent");
    let data = place.join("data");
    let options = ["--for", "0.5", "-d", path(&data)];
    gets_a_byte(&mut target, &program, &options);
    target.ends("wrong: 0\n");
    fs::remove_dir_all(place).expect("the trace can be removed");
}

/// Attaches to the program, which makes a child after hodo has checked for such children, while it is planning. The
/// child waits for this many milliseconds.
fn beside_a_child(name: &str, pauses: &str) -> (Target, Output) {
    let program = build("attached_opens.c", Kind::Pie, &[]);
    let mut target = Target::start_with(&program, &[pauses]);
    let place = scratch(name);
    let data = place.join("data");
    let options = ["record", "--for", "0.1", "-d", path(&data)];
    let hodo = command(&target, &options)
        .stderr(Stdio::piped())
        .spawn()
        .expect("hodo can be run");
    let begun = Instant::now();
    // It has checked for such children by the time it writes that file.
    while !data.join("info.json").exists() {
        assert!(begun.elapsed().as_secs() < 60, "hodo has not begun");
    }
    let input = target.input.as_mut().expect("a pipe");
    input.write_all(b"x").expect("a byte");
    let output = hodo.wait_with_output().expect("its end");
    is_left(&target);
    fs::remove_dir_all(place).expect("the trace can be removed");
    (target, output)
}

#[test]
fn a_child_of_vfork_waits_when_hodo_comes() {
    let (target, output) = beside_a_child("a_child_of_vfork_waits_when_hodo_comes", "1500");
    assert!(output.status.success(), "{output:?}");
    target.ends("wrong: 0\n");
}

/// The program's threads do not notice that hodo has given up. (If hodo is slow, the child comes first, and attaching
/// succeeds.)
#[test]
fn a_child_of_vfork_waits_for_longer_than_hodo() {
    let (target, output) = beside_a_child("a_child_of_vfork_waits_for_longer_than_hodo", "12000");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() || said.contains("does not stop: it is in state D"),
        "{said}"
    );
    target.ends("wrong: 0\n");
}

#[test]
fn ignored_signals_interrupt_nothing() {
    recorded("attached_ignored.c", 3, "0.2", &[]).ends_perhaps_interrupted();
}

#[test]
fn queued_signals_arrive_as_sent() {
    rounds("attached_queued.c", 20, "0.02", &[]);
}

#[test]
fn memory_that_leaves_no_room_below_the_libraries() {
    rounds("attached_large.c", 3, "0.1", &["-D", "1"]);
}

#[test]
fn contexts_saved_through_a_jump() {
    rounds("attached_contexts.c", 10, "0.02", &[]);
}

#[test]
fn the_first_thread_ends_before_the_others() {
    let program = build("attached_ends.c", Kind::Pie, &[]);
    let mut target = Target::start(&program);
    let place = scratch("the_first_thread_ends_before_the_others");
    let data = place.join("data");
    let options = ["--for", "1", "-D", "1", "-d", path(&data)];
    gets_a_byte(&mut target, &program, &options);
    let again = command(&target, &["record", "-d", path(&data)]).output();
    let again = again.expect("hodo can be run");
    let said = String::from_utf8_lossy(&again.stderr);
    assert_eq!(again.status.code(), Some(125), "{said}");
    assert!(said.contains("its first thread has ended"), "{said}");
    target.ends("wrong: 0\n");
    fs::remove_dir_all(place).expect("the trace can be removed");
}

/// What hooks of the unwinder have left on stacks is not taken for calls that will return.
#[test]
fn leftovers_of_unwinders_hold_nothing_up() {
    let program = build("attached_leftovers.c", Kind::Pie, &["-lgcc_s"]);
    let mut target = Target::start(&program);
    let (maps, threads) = (target.maps(), target.threads());
    let places: [&[&str]; 3] = [
        &["record", "-l"],
        &["syscalls", "-o", "/dev/null"],
        &["record"],
    ];
    for round in 0..6 {
        let place = scratch("leftovers");
        let options = places[round % 3];
        let mut hodo = command(&target, options);
        if options[0] == "record" {
            hodo.arg("-d").arg(&place);
        }
        let mut hodo = hodo
            .stderr(Stdio::piped())
            .spawn()
            .expect("hodo can be run");
        // Until something of its memory is there.
        while target.maps() == maps {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(150));
        for _ in 0..3 {
            target
                .input
                .as_mut()
                .expect("its input")
                .write_all(b"x")
                .expect("a pipe");
            let mut line = String::new();
            target.output.read_line(&mut line).expect("a line");
            assert_eq!(line, "walked\n");
        }
        let said = ended(&mut hodo);
        assert!(!said.contains("stays mapped"), "{said}");
        target.is_untouched(&maps, threads);
        let _ = fs::remove_dir_all(place);
    }
    target.ends("wrong: 0\n");
}

/// Returns whether the processor signs return addresses for programs.
fn signs_addresses() -> bool {
    // HWCAP_PACA.
    // SAFETY: getauxval only reads what the kernel has given to this process.
    cfg!(target_arch = "aarch64") && unsafe { libc::getauxval(libc::AT_HWCAP) } & 1 << 30 != 0
}

/// The return addresses of frames that are open at detach are signed again, each for its own stack pointer.
#[test]
fn frames_with_signed_return_addresses_are_left_open() {
    needs!(
        signs_addresses(),
        "only AArch64 processors with PAC sign return addresses"
    );
    let ways = [
        ("standard", &["record"][..]),
        ("standard", &["record", "-l"]),
        ("pac-ret+leaf+b-key", &["record", "--no-time"]),
    ];
    let flags = ways.map(|(way, _)| format!("-mbranch-protection={way}"));
    let programs = flags.map(|flag| build("attached_signed.c", Kind::Pie, &[&flag]));
    for (n, program) in programs.iter().enumerate() {
        let mut target = Target::start(program);
        let (maps, threads) = (target.maps(), target.threads());
        let place = scratch(&format!("frames_with_signed_return_addresses-{n}"));
        let data = place.join("data");
        let mut hodo = command(&target, ways[n].1);
        let hodo = hodo.arg("-d").arg(&data).stderr(Stdio::piped()).spawn();
        let mut hodo = hodo.expect("hodo can be run");
        target.is_changed(program);
        let input = target.input.as_mut().expect("a pipe");
        input.write_all(b"x").expect("a byte");
        let mut line = String::new();
        target.output.read_line(&mut line).expect("a line");
        assert_eq!(line, "deep\n");
        let said = ended(&mut hodo);
        assert_eq!(said, "", "{:?}", ways[n]);
        target.is_untouched(&maps, threads);
        target.ends("1281035\n");
        let calls = Trace::new(data).calls();
        assert_eq!((calls["even"], calls["odd"]), (11, 10), "{:?}", ways[n]);
        fs::remove_dir_all(place).expect("the trace can be removed");
    }
}
