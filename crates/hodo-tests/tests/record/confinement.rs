//! Programs that give up rights, or that run where there is little room.

use std::os::unix::fs::FileExt;

use hodo_tests::{
    Ended, Kind, Outcome, Run, Trace, Traced, build, build_with, has_tool, is_root, needs, scratch,
};

fn available(kinds: &[Kind]) -> impl Iterator<Item = Kind> {
    kinds.iter().copied().filter(|kind| kind.is_available())
}

#[test]
fn a_system_call_filter_installed_after_the_start() {
    for kind in available(&Kind::ALL) {
        let program = build("sandbox.c", kind, &[]);
        for (how, ended, calls) in [
            ("kill", Ended::Code(7), 200_000),
            ("errno", Ended::Code(7), 200_000),
            ("strict", Ended::Code(7), 200_000),
            ("threads", Ended::Code(7), 400_000),
            ("forbidden", Ended::Signal(libc::SIGSYS), 200_000),
        ] {
            let run = Run::new(&format!("seccomp-{how}-{kind:?}"), &program).args([how]);
            let trace = run.same(&[]);
            assert_eq!(run.alone().ended, ended, "{how}");
            if kind.has_names() {
                trace.has_calls(&[
                    ("main", 1),
                    ("next", calls),
                    ("descend", calls / 200_000 * 2001),
                ]);
            }
        }
    }
}

#[test]
fn libraries_are_announced_under_a_filter_without_signal_calls() {
    let program = build("filtered_loading.c", Kind::Pie, &["-ldl"]);
    let run = Run::new("filtered_loading", program);
    for options in [&["--no-libcall"][..], &["-l"]] {
        run.same(options);
    }
    assert_eq!(run.alone().stdout, b"begun\n1\n");
}

#[test]
fn another_root_directory_and_another_user() {
    needs!(is_root(), "chroot and setuid need root");
    for kind in available(&[Kind::Pie, Kind::Static, Kind::Musl]) {
        let program = build("confined.c", kind, &[]);
        for how in ["chroot", "setuid", "both"] {
            for options in [&[][..], &["-l"]] {
                let run = Run::new(&format!("confined-{how}-{kind:?}"), &program).args([how]);
                let trace = run.same(options);
                if kind.has_names() {
                    trace.has_calls(&[("main", 1), ("many", 4), ("next", 800_000), ("thread", 1)]);
                }
            }
        }
    }
}

/// Runs in a mount namespace where `disk`, in the test's directory, is a disk of this many KiB. Afterwards the trace is
/// in `kept`.
fn on_a_small_disk(run: Run, size: u32) -> Run {
    on_a_disk(run, &format!("mount -t tmpfs -o size={size}k none"))
}

/// Runs it with a disk that a command mounts.
fn on_a_disk(run: Run, mount: &str) -> Run {
    let place = run.place().to_owned();
    std::fs::create_dir_all(place.join("disk")).expect("a directory can be made");
    let disk = place.join("disk").display().to_string();
    let kept = place.join("kept").display().to_string();
    run.data("disk/data").inside([
        "unshare".to_owned(),
        "-m".to_owned(),
        "sh".to_owned(),
        "-c".to_owned(),
        format!(
            "{mount} {disk} && {{ \"$@\"; status=$?; cp -r --sparse=always {disk}/data {kept}; \
             rm -rf {disk}/data; exit $status; }}"
        ),
        "sh".to_owned(),
    ])
}

fn can_mount() -> bool {
    is_root()
        && std::process::Command::new("unshare")
            .args(["-m", "mount", "-t", "tmpfs", "none", "/mnt"])
            .output()
            .is_ok_and(|output| output.status.success())
}

/// Runs alone and on the small disk; returns how many of a function's calls were seen, and how many records were lost.
fn fill_the_disk(
    test: &str,
    run: impl Fn(&str) -> Run,
    options: &[&str],
    function: &str,
) -> (u64, u64) {
    let alone = run(&format!("{test}-alone")).alone();
    fill(alone, on_a_small_disk(run(test), 1024), options, function)
}

/// The same with what the program does alone, and a run on some disk.
fn fill(alone: Outcome, run: Run, options: &[&str], function: &str) -> (u64, u64) {
    let Traced {
        outcome, remarks, ..
    } = run.traced(options);
    assert_eq!(alone, outcome, "{remarks}");
    assert!(remarks.contains("disk is full"), "{remarks}");
    let trace = Trace::new(run.place().join("kept"));
    let lost = trace.info()["lost"].as_u64().expect("the loss is counted");
    let told = format!("hodo: {lost} records were lost\n");
    assert!(remarks.contains(&told), "{remarks}");
    (trace.calls()[function], lost)
}

#[test]
fn a_full_disk_stops_the_recording_and_not_the_program() {
    needs!(
        can_mount(),
        "mounting a small disk needs root and the right to mount"
    );
    for kind in available(&Kind::ALL).filter(|kind| kind.has_names()) {
        let program = build("deep_recursion.c", kind, &[]);
        for options in [&[][..], &["-l"], &["--no-time"]] {
            let run = |name: &str| Run::new(name, &program).args(["1000000"]).stack(256 << 20);
            let (seen, lost) =
                fill_the_disk(&format!("full_disk-{kind:?}"), run, options, "descend");
            // A call makes two records; the disk is full before the first return.
            assert!(
                seen > 1000 && seen + lost >= 2_000_002,
                "{seen} seen, {lost} lost"
            );
        }
    }
}

/// If a page that is reused for records has no place on the disk, each record causes a fault: the program would take
/// many minutes.
#[test]
fn a_full_disk_with_small_blocks_does_not_slow_the_program() {
    const MOUNTS: &str = "mke2fs -q -t ext4 -b 1024 /tmp/disk && mount -o loop /tmp/disk /mnt";
    let tried = std::process::Command::new("unshare")
        .args(["-m", "sh", "-c"])
        .arg(format!(
            "mount -t tmpfs none /tmp && truncate -s 24M /tmp/disk && PATH=$PATH:/usr/sbin && {MOUNTS}"
        ))
        .output();
    needs!(
        can_mount() && tried.is_ok_and(|tried| tried.status.success()),
        "mounting a disk with small blocks needs root, mke2fs, and loop devices"
    );
    let program = build("many_calls.c", Kind::Pie, &[]);
    let run = |name: &str| Run::new(name, &program).args(["40000000"]);
    let alone = run("full_disk-small_blocks-alone").alone();
    let run = run("full_disk-small_blocks");
    let image = run.place().join("image").display().to_string();
    let mount = format!(
        "truncate -s 24M {image} && PATH=$PATH:/usr/sbin mke2fs -q -t ext4 -b 1024 {image} && mount -o loop {image}"
    );
    let (seen, lost) = fill(alone, on_a_disk(run, &mount), &[], "leaf");
    assert!(
        seen > 100_000 && seen + lost >= 40_000_000,
        "{seen} seen, {lost} lost"
    );
}

#[test]
fn a_full_disk_stops_the_recording_of_all_threads() {
    needs!(
        can_mount(),
        "mounting a small disk needs root and the right to mount"
    );
    let program = build("busy_threads.c", Kind::Pie, &[]);
    for options in [&[][..], &["-l"], &["--no-time"]] {
        let run = |name: &str| Run::new(name, &program);
        let (seen, lost) = fill_the_disk("full_disk-threads", run, options, "leaf");
        // Each of the threads makes 300,000 records; at least three of them get a control block.
        assert!(seen > 1000 && lost > 500_000, "{seen} seen, {lost} lost");
    }
}

/// Events are larger than a page: when the disk is full, some are partly on it. The rest must not overwrite others.
#[test]
fn a_full_disk_in_the_middle_of_an_event() {
    needs!(
        can_mount(),
        "mounting a small disk needs root and the right to mount"
    );
    let program = build("deep_recursion.c", Kind::Pie, &[]);
    let definition = format!(
        "p:shot {}:descend n=$arg1 snapshot:20000",
        program.display()
    );
    for size in (1000..1040).step_by(4) {
        let run = |name: &str| Run::new(name, &program).args(["3000"]).stack(256 << 20);
        let alone = run("full_disk-alone").alone();
        let run = on_a_small_disk(run(&format!("full_disk-{size}")), size);
        let traced = run.traced(&["-e", &definition]);
        assert_eq!(alone, traced.outcome, "{}", traced.remarks);
        assert!(
            traced.remarks.contains("disk is full"),
            "{}",
            traced.remarks
        );
        // Events differ in size.
        let told = "hodo: about ";
        assert!(traced.remarks.contains(told), "{}", traced.remarks);
        let kept = run.place().join("kept");
        let seen = Trace::new(kept.clone()).calls()["descend"];
        assert!(seen > 3, "{size}: {seen}");
        // The header of the first chunk, after the control area.
        let events = std::fs::File::open(kept.join("events")).expect("the events");
        let mut magic = [0; 4];
        events
            .read_exact_at(&mut magic, 16 << 20)
            .expect("the first chunk");
        assert_eq!(&magic, b"HCHK", "{size}");
    }
}

#[test]
fn a_full_disk_has_no_room_for_threads() {
    needs!(
        can_mount(),
        "mounting a small disk needs root and the right to mount"
    );
    // Their control blocks and their lines in the log need more room than the disk has.
    let program = build("threads.c", Kind::Pie, &[]);
    let run = |name: &str| Run::new(name, &program);
    let (seen, lost) = fill_the_disk("full_disk-many", run, &[], "count");
    assert!(seen > 0 && lost > 0, "{seen} seen, {lost} lost");
}

/// Where libraries are aligned to larger pages, the hole of crowded.c would be too small for one.
const SMALL_LIBRARY: [&str; 4] = ["-O2", "-shared", "-fPIC", "-Wl,-z,max-page-size=4096"];

#[test]
fn no_room_near_a_library() {
    let program = build("crowded.c", Kind::Pie, &["-ldl"]);
    let plugin = build_with("gcc", &["plugin.c"], &SMALL_LIBRARY);
    let run = Run::new("no_room_near_a_library", program).args([plugin]);
    let alone = run.alone();
    assert_eq!(
        String::from_utf8_lossy(&alone.stdout),
        "998000 in the hole\n"
    );
    for options in [&[][..], &["-l"]] {
        let Traced { outcome, trace, .. } = run.traced(options);
        assert_eq!(alone, outcome);
        trace.has_calls(&[("main", 1), ("around", 1000)]);
    }
}

#[test]
fn missing_room_near_a_library_is_reported() {
    let program = build("crowded.c", Kind::Pie, &["-ldl"]);
    let plugin = build_with("gcc", &["plugin.c"], &SMALL_LIBRARY);
    let traced = Run::new("no_room_is_said", program)
        .args([plugin])
        .traced(&["-l"]);
    let calls = traced.trace.calls().get("inner").copied();
    let said = traced
        .trace
        .log("remark")
        .iter()
        .any(|remark| remark.to_string().contains("plugin"));
    assert!(calls == Some(1000) || said, "{calls:?}");
}

#[test]
fn no_room_near_the_program() {
    let mut flags = vec!["-O2", "-w", "-no-pie", "-fno-pie"];
    // RISC-V still reaches the start of the data.
    if cfg!(target_arch = "x86_64") {
        flags.push("-mcmodel=large");
    }
    let program = build_with("gcc", &["huge.c"], &flags);
    let run = Run::new("no_room_near_the_program", program);
    let alone = run.alone();
    needs!(
        alone.ended == Ended::Code(0),
        "this machine has no room for 5 GiB of a program's data"
    );
    let traced = run.traced(&[]);
    assert_eq!(alone, traced.outcome);
    let calls = traced.trace.calls().get("touch").copied();
    assert!(
        calls == Some(5000) || traced.remarks.contains("no room"),
        "{calls:?} {}",
        traced.remarks
    );
}

#[test]
fn low_limits_of_resources() {
    let program = build("busy_threads.c", Kind::Pie, &[]);
    for limit in [
        "--data=100000000",
        "--nofile=12",
        "--nproc=4000",
        "--memlock=0",
    ] {
        let run = Run::new(&format!("limits{limit}"), &program).inside(["prlimit", limit, "--"]);
        let (alone, traced) = (run.alone(), run.traced(&[]));
        assert_eq!(alone, traced.outcome, "{limit} {}", traced.remarks);
    }
}

#[test]
fn limits_on_memory_that_a_program_sets_itself() {
    for kind in available(&[Kind::Pie, Kind::Static, Kind::Musl, Kind::MuslStatic]) {
        let program = build("limits.c", kind, &[]);
        for options in [&[][..], &["-l"]] {
            let run = Run::new(&format!("own_limits-{kind:?}"), &program);
            run.same(options).has_calls(&[("main", 2), ("leaf", 5000)]);
        }
        for limit in ["--as=1500000000:", "--as=6000000000", "--data=1500000000:"] {
            let run = Run::new(&format!("given_limits-{kind:?}{limit}"), &program)
                .args(["again"])
                .inside(["prlimit", limit, "--"]);
            let (alone, traced) = (run.alone(), run.traced(&[]));
            assert_eq!(alone, traced.outcome, "{limit} {}", traced.remarks);
            traced.trace.has_calls(&[("main", 1), ("leaf", 1000)]);
        }
    }
}

#[test]
fn limits_that_a_shell_sets_for_its_children() {
    let program = build("limits.c", Kind::Pie, &[]);
    let script = "ulimit -v 2000000; ulimit -v; for i in 1 2; do \"$0\" again; bash -c 'ulimit -Hv; exec \"$0\" again' \"$0\"; done";
    let run = Run::new("limits_by_a_shell", "bash").args([
        "-c".as_ref(),
        script.as_ref(),
        program.as_os_str(),
    ]);
    run.same(&[]).has_calls(&[("leaf", 4000)]);
}

/// V8 maps its own functions a second time, from the file that `/proc/self/maps` names. In an overlay file system,
/// which containers use, it does not recognize that as the same file, and copies the code that is in memory.
#[test]
fn node_in_an_overlay_file_system() {
    needs!(has_tool("node"), "there is no node");
    needs!(
        can_mount(),
        "mounting a file system needs root and the right to mount"
    );
    let place = scratch("overlay-files");
    let path = |name: &str| {
        let path = place.join(name);
        std::fs::create_dir(&path).expect("a directory of the test's own can be made");
        path.display().to_string()
    };
    let (lower, other, merged) = (path("lower"), path("other"), path("merged"));
    let script = format!(
        "cp -L \"$(command -v node)\" {lower}/node && mount -t overlay -o lowerdir={lower}:{other} none {merged} && exec \"$@\""
    );
    let code =
        "let s = 0; for (let i = 0; i < 1e6; i++) s += i; console.log(s, [3, 1, 2].sort().join())";
    let run = Run::new("overlay", format!("{merged}/node"))
        .args(["-e", code])
        .inside(["unshare", "-m", "sh", "-ec", &script, "sh"]);
    let (alone, traced) = (run.alone(), run.traced(&[]));
    assert_eq!(alone.ended, Ended::Code(0), "{alone:?}");
    assert_eq!(alone, traced.outcome, "{}", traced.remarks);
    assert!(traced.trace.calls().len() > 1000, "{}", traced.remarks);
}
