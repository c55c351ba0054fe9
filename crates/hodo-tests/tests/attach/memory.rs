//! hodo runs out of memory while it is attached: it detaches.

use std::fs;
use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

use hodo_tests::probing::{path, text};
use hodo_tests::target::{Target, command, is_let_go};
use hodo_tests::{Kind, build, scratch};

/// A number from the status file of a process.
fn number(pid: i32, key: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.unwrap_or_else(|| panic!("{key} {status}"))
}

#[test]
fn hodo_detaches_when_memory_runs_out() {
    let program = build("attached_loads.c", Kind::Pie, &[]);
    let place = scratch("without_memory");
    for (round, more) in [0, 64 << 10, 1 << 20, 4 << 20].into_iter().enumerate() {
        let libraries = ["libm.so.6", "libresolv.so.2", "libstdc++.so.6"];
        let mut target = Target::start_with(&program, &libraries);
        let data = place.join(round.to_string());
        let hodo = command(&target, &["record", "-l", "-d", path(&data)])
            .env("HODO_CACHE", "off")
            .stderr(Stdio::piped())
            .spawn()
            .expect("hodo can be run");
        target.is_changed(&program);
        let tracer = number(target.pid(), "TracerPid:") as i32;
        let size = number(tracer, "VmSize:") * 1024 + more;
        let limit = libc::rlimit {
            rlim_cur: size,
            rlim_max: libc::RLIM_INFINITY,
        };
        // SAFETY: prlimit only reads the limit.
        let set = unsafe {
            libc::prlimit(
                tracer,
                libc::RLIMIT_AS,
                &raw const limit,
                std::ptr::null_mut(),
            )
        };
        assert_eq!(set, 0, "the limit of hodo cannot be changed");
        let input = target.input.as_mut().expect("a pipe");
        input.write_all(b"x").expect("it reads");
        std::thread::sleep(Duration::from_millis(700));
        // It may have ended by itself.
        // SAFETY: kill takes only numbers; timeout passes the signal on.
        unsafe { libc::kill(hodo.id().cast_signed(), libc::SIGINT) };
        let output = hodo.wait_with_output().expect("its end");
        let said = text(&output.stderr);
        assert!(
            matches!(output.status.code(), Some(0 | 125)),
            "{more}: {:?} {said}",
            output.status
        );
        assert!(!said.contains("allocation"), "{more}: {said}");
        let input = target.input.as_mut().expect("a pipe");
        input.write_all(b"x").expect("it reads");
        while target.threads() > 3 {
            std::thread::sleep(Duration::from_millis(5));
        }
        is_let_go(target.pid());
        let maps = target.maps();
        assert!(!maps.contains("/events"), "{more}: {said} {maps}");
        target.ends("wrong: 0\n");
    }
    fs::remove_dir_all(place).expect("the traces can be removed");
}
