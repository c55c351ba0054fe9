//! Shared libraries: found at the start, loaded later, traced inside.

use hodo_tests::probing::LINKER;
use hodo_tests::{Kind, Run, build, build_with, scratch, skip};

fn plugin() -> std::path::PathBuf {
    build_with("gcc", &["plugin.c"], &["-O2", "-shared", "-fPIC"])
}

#[test]
fn libraries_loaded_and_unloaded_while_it_runs() {
    for kind in [
        Kind::Pie,
        Kind::Fixed,
        Kind::Stripped,
        Kind::Cet,
        Kind::Musl,
    ] {
        if !kind.is_available() {
            continue;
        }
        // musl's libm is part of its libc, and is not found under glibc's name.
        let program = build("libraries.c", kind, &["-ldl"]);
        let run = Run::new(&format!("loaded_libraries-{kind:?}"), program).args([plugin()]);
        let trace = run.same(&[]);
        if kind.has_names() {
            trace.has_calls(&[("main", 1), ("use", 100), ("inner", 0)]);
        }
        let trace = run.same(&["-l"]);
        if kind.has_names() {
            trace.has_calls(&[("main", 1), ("use", 100), ("plugin", 100), ("inner", 100)]);
        }
    }
}

/// The program's handler is told when a child ends, even while hodo examines the libraries.
#[test]
fn signals_come_while_libraries_are_loaded() {
    let program = build("told_while_loading.c", Kind::Pie, &["-ldl"]);
    let run = Run::new("told_while_loading", &program).args([plugin()]);
    for options in [&[][..], &["-l"]] {
        run.same(options).has_calls(&[("main", 1)]);
    }
}

/// On x86-64, what they displace could not continue there, so they are left alone.
#[test]
fn libraries_that_are_mapped_far_away() {
    let program = build("far.c", Kind::Pie, &["-ldl"]);
    for room in ["0", "2", "8", "16"] {
        let room = format!("-fpatchable-function-entry={room}");
        let plugin = build_with("gcc", &["plugin.c"], &["-O2", "-shared", "-fPIC", &room]);
        let run = Run::new("far_libraries", &program).args([plugin]);
        let trace = run.same(&["-l"]);
        let reaches = cfg!(not(target_arch = "x86_64"));
        let calls = if reaches { 10 } else { 0 };
        trace.has_calls(&[
            ("main", 1),
            ("use", 10),
            ("plugin", calls),
            ("inner", calls),
        ]);
        let remarks = trace.log("remark");
        let told = (remarks.iter()).any(|remark| remark.to_string().contains("no island within"));
        assert_eq!(told, !reaches, "{remarks:?}");
    }
}

/// A copy of an ELF file whose section headers are nowhere: it can be loaded, but tools that look for symbols cannot
/// read it.
fn without_sections(from: &str, to: &std::path::Path) {
    let mut bytes = std::fs::read(from).expect("the file can be read");
    // e_shoff
    bytes[40..48].copy_from_slice(&(1u64 << 47).to_le_bytes());
    std::fs::write(to, bytes).expect("the copy can be written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(to, mode).expect("the copy can be made executable");
}

#[test]
fn a_dynamic_linker_that_cannot_be_read() {
    let of_machine =
        ["/lib64", "/lib"].map(|directory| std::path::Path::new(directory).join(LINKER));
    let of_machine = of_machine.iter().find(|path| path.exists());
    let Some(of_machine) = of_machine.and_then(|path| path.to_str()) else {
        return skip("no glibc");
    };
    let linker = scratch("unreadable_linker_files").join("ld.so");
    without_sections(of_machine, &linker);
    let flag = format!("-Wl,--dynamic-linker={}", linker.display());
    let program = build("ends.c", Kind::Pie, &[&flag]);
    let run = Run::new("unreadable_linker", program).args(["exit"]);
    let (alone, traced) = (run.alone(), run.traced(&[]));
    assert_eq!(alone, traced.outcome, "{}", traced.remarks);
    assert!(traced.remarks.contains("untraced"), "{}", traced.remarks);
}

#[test]
fn a_library_that_cannot_be_read() {
    let plugin = plugin();
    let broken = scratch("unreadable_library_files").join("broken.so");
    without_sections(&plugin.display().to_string(), &broken);
    let program = build("libraries.c", Kind::Pie, &["-ldl"]);
    let run = Run::new("unreadable_library", program).args([&broken]);
    let traced = run.traced(&["-l"]);
    assert_eq!(run.alone(), traced.outcome, "{}", traced.remarks);
    let remarks = traced.trace.log("remark");
    let said = remarks.iter().any(|r| r.to_string().contains("broken.so"));
    assert!(said, "{remarks:?}");
}
