//! Which files are read: those that the process has mapped, whatever has taken their places, and wherever it sees them.

use std::fs;
use std::path::Path;
use std::process::Command;

use hodo_tests::probing::{path, text};
use hodo_tests::target::{Target, command, run, seen_in_time};
use hodo_tests::{Trace, has_tool, is_root, needs, scratch};

const OLD: &str = "
    int step(int i) { __asm__ volatile(\"\"); return i + 1; }
    int other(int i) { __asm__ volatile(\"\"); return i * 3; }
";
/// All functions are elsewhere.
const NEW: &str = "
    int added(int i) { __asm__ volatile(\".rept 333\\nnop\\n.endr\"); return i - 1; }
    int other(int i) { __asm__ volatile(\"\"); return i * 3; }
    int step(int i) { __asm__ volatile(\"\"); return i + 1; }
";
const PROGRAM: &str = "
    #include <poll.h>
    #include <stdio.h>
    int step(int), other(int);
    #ifdef NEW
    __attribute__((noipa)) int added(int i) { __asm__ volatile(\".rept 333\\nnop\\n.endr\"); return i; }
    #endif
    __attribute__((noipa)) int tick(int i) { return other(step(i)); }
    int main(void) {
        struct pollfd input = { 0, POLLIN, 0 };
        puts(\"begun\");
        fflush(stdout);
        int sum = 0;
        do sum += tick(sum & 15); while (poll(&input, 1, 1) == 0);
        puts(sum == 0 ? \"none\" : \"done\");
        return 0;
    }
";

/// Compiles a text to `file` in `place`, which is replaced if it is there.
fn compile(place: &Path, file: &str, text: &str, options: &[&str]) {
    let source = place.join("source.c");
    fs::write(&source, text).expect("a source");
    let new = place.join("new");
    let output = Command::new("gcc")
        .args(["-O1", "-g", "-Wl,--build-id"])
        .args(["-o", path(&new), path(&source)])
        .args(options)
        .current_dir(place)
        .output()
        .expect("a compiler");
    assert!(output.status.success(), "{output:?}");
    fs::rename(new, place.join(file)).expect("the file is replaced");
}

fn library(place: &Path, text: &str) {
    compile(
        place,
        "libx.so",
        text,
        &["-shared", "-fPIC", "-Wl,-soname,libx.so"],
    );
}

fn program(place: &Path, options: &[&str]) -> std::path::PathBuf {
    let linked = [options, &["./libx.so", "-Wl,-rpath,$ORIGIN:/app"]].concat();
    compile(place, "prog", PROGRAM, &linked);
    place.join("prog")
}

/// The probes hit, and show what their functions get.
fn hit(target: &Target, definitions: &[String]) {
    for definition in definitions {
        let (_, place) = definition.rsplit_once(':').expect("a place");
        let name = place.split(' ').next().expect("a name");
        seen_in_time("0.1", |time| {
            let output = run(target, &["probe", "--for", time, "-e", definition]);
            text(&output.stdout).contains(&format!(": {name}: ({name}+0x0) i="))
        });
    }
}

#[test]
fn what_is_mapped_counts_after_an_upgrade() {
    needs!(is_root(), "only root can read files that were replaced");
    let place = scratch("what_is_mapped_counts_after_an_upgrade");
    library(&place, OLD);
    let program_path = program(&place, &[]);
    let target = Target::start(&program_path);
    let (maps, threads) = (target.maps(), target.threads());
    library(&place, NEW);
    program(&place, &["-DNEW"]);
    let deleted = target.maps();
    assert!(deleted.contains("prog (deleted)") && deleted.contains("libx.so (deleted)"));
    let at = |name: &str| path(&place.join(name)).to_owned();
    let definitions = [
        "p prog:tick i".to_owned(),
        format!("p {}:tick i", at("prog")),
        "p libx.so:step i".to_owned(),
        format!("p {}:step i", at("libx.so")),
    ];
    hit(&target, &definitions);
    for file in ["prog", "libx.so"] {
        let definition = format!("p {file}:added");
        let output = command(&target, &["probe", "--for", "0.1", "-e", &definition]).output();
        let output = output.expect("hodo can be run");
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        let said = text(&output.stderr);
        assert!(said.contains("names no function of the file"), "{said}");
    }
    let data = place.join("data");
    seen_in_time("0.1", |time| {
        run(&target, &["record", "-l", "--for", time, "-d", path(&data)]);
        let calls = Trace::new(data.clone()).calls();
        ["tick", "step", "other"]
            .iter()
            .all(|&name| calls.contains_key(name))
    });
    target.is_untouched(&deleted, threads);
    assert_ne!(maps, deleted);
    target.ends("done\n");
    fs::remove_dir_all(place).expect("the files can be removed");
}

#[test]
fn files_that_cannot_be_read_any_more_are_left_alone() {
    needs!(is_root() && has_tool("setpriv"), "another user is needed");
    let place = scratch("files_that_cannot_be_read_any_more_are_left_alone");
    library(&place, OLD);
    let program_path = program(&place, &[]);
    let user = ["--reuid", "65534", "--regid", "65534", "--clear-groups"];
    let words = [&user[..], &[path(&program_path)]].concat();
    let target = Target::start_with(Path::new("setpriv"), &words);
    let threads = target.threads();
    library(&place, NEW);
    program(&place, &[]);
    let maps = target.maps();
    let as_user = |options: &[&str]| {
        let mut hodo = Command::new("timeout");
        hodo.args(["-s", "KILL", "300", "setpriv"])
            .args(user)
            .arg(hodo_tests::hodo())
            .args(options)
            .args(["-p", &target.pid().to_string()])
            .envs([("LC_ALL", "C"), ("HOME", "/nonexistent")])
            .current_dir("/")
            .output()
            .expect("hodo can be run")
    };
    // The program itself can always be read.
    seen_in_time("0.1", |time| {
        let output = as_user(&["probe", "--for", time, "-e", "p prog:tick i"]);
        assert!(output.stderr.is_empty(), "{output:?}");
        text(&output.stdout).contains(": tick: (tick+0x0) i=")
    });
    let library = path(&place.join("libx.so")).to_owned();
    for file in ["libx.so", &library] {
        let definition = format!("p {file}:step i");
        let output = as_user(&["probe", "--for", "0.1", "-e", &definition]);
        let said = text(&output.stderr);
        let expected = format!(
            "{library} was replaced after process {} had mapped it",
            target.pid()
        );
        assert!(said.contains(&expected), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
    }
    target.is_untouched(&maps, threads);
    target.ends("done\n");
    fs::remove_dir_all(place).expect("the files can be removed");
}

fn can_mount() -> bool {
    let mount = ["-m", "mount", "-t", "tmpfs", "none", "/mnt"];
    is_root()
        && (Command::new("unshare").args(mount).output())
            .is_ok_and(|output| output.status.success())
}

/// Makes a root directory with the program, its libraries, and a link to the directory of the program.
fn root(place: &Path) -> std::path::PathBuf {
    library(place, OLD);
    let program = program(place, &[]);
    let root = place.join("root");
    fs::create_dir_all(root.join("app-1")).expect("a directory");
    std::os::unix::fs::symlink("/app-1", root.join("app")).expect("a link");
    for file in ["prog", "libx.so"] {
        fs::copy(place.join(file), root.join("app-1").join(file)).expect("a copy");
    }
    let list = Command::new("ldd").arg(program).output().expect("ldd");
    let libraries = text(&list.stdout)
        .split_whitespace()
        .filter(|word| word.starts_with("/lib"));
    for library in libraries {
        let to = root.join(&library[1..]);
        fs::create_dir_all(to.parent().expect("a directory")).expect("a directory");
        fs::copy(library, to).expect("a copy");
    }
    root
}

/// Mounts a file system where nobody else sees it, with a copy of the root, and executes the program there.
fn contained(root: &Path, inner: &Path) -> Vec<String> {
    fs::create_dir_all(inner).expect("a directory");
    let (root, inner) = (root.display(), inner.display());
    let script = format!(
        "mount -t tmpfs none {inner} && cp -a {root}/. {inner} && exec chroot {inner} /app/prog"
    );
    ["-m", "sh", "-ec", &script].map(str::to_owned).to_vec()
}

#[test]
fn processes_with_their_own_root_and_mounts() {
    needs!(can_mount(), "mounting needs root");
    let place = scratch("processes_with_their_own_root_and_mounts");
    let (root, inner) = (root(&place), place.join("inner"));
    let definitions = [
        "p prog:tick i",
        "p /app/prog:tick i",
        "p /app-1/prog:tick i",
        "p libx.so:step i",
        "p /app/libx.so:step i",
    ];
    let definitions = definitions.map(str::to_owned);
    let mounted = contained(&root, &inner);
    let mounted: Vec<&str> = mounted.iter().map(String::as_str).collect();
    let plain = [path(&root), "/app/prog"];
    for (tool, words) in [("unshare", &mounted[..]), ("chroot", &plain)] {
        let target = Target::start_with(Path::new(tool), words);
        let (maps, threads) = (target.maps(), target.threads());
        hit(&target, &definitions);
        let data = place.join("data");
        seen_in_time("0.1", |time| {
            run(&target, &["record", "-l", "--for", time, "-d", path(&data)]);
            let calls = Trace::new(data.clone()).calls();
            ["tick", "step"]
                .iter()
                .all(|&name| calls.contains_key(name))
        });
        seen_in_time("0.1", |time| {
            let output = command(&target, &["syscalls", "--for", time]).output();
            text(&output.expect("hodo can be run").stderr).contains("poll(")
        });
        target.is_untouched(&maps, threads);
        target.ends("done\n");
    }
    fs::remove_dir_all(place).expect("the files can be removed");
}

/// Separate files are in the root of the process, by build id or by the name in `.gnu_debuglink`.
#[test]
fn debugging_information_in_a_root_of_its_own() {
    needs!(can_mount(), "mounting needs root");
    for linked in [false, true] {
        let place = scratch(&format!("debugging_information_in_a_root-{linked}"));
        let (root, inner) = (root(&place), place.join("inner"));
        let program = root.join("app-1/prog");
        let notes = Command::new("readelf").arg("-n").arg(&program).output();
        let notes = notes.expect("readelf").stdout;
        let id = text(&notes).split("Build ID: ").nth(1).expect("a build id");
        let id = id.split_whitespace().next().expect("digits");
        let directory = match linked {
            true => "usr/lib/debug/app-1".to_owned(),
            false => format!("usr/lib/debug/.build-id/{}", &id[..2]),
        };
        let separate = match linked {
            true => "prog.debug".to_owned(),
            false => format!("{}.debug", &id[2..]),
        };
        let directory = root.join(directory);
        fs::create_dir_all(&directory).expect("a directory");
        let separate = directory.join(separate);
        let link = format!("--add-gnu-debuglink={}", path(&separate));
        let words = [
            &["--only-keep-debug", path(&program), path(&separate)][..],
            &["--strip-all", path(&program)],
            &[&link, path(&program)],
        ];
        for words in words {
            let done = Command::new("objcopy").args(words).status();
            assert!(done.expect("objcopy").success(), "{words:?}");
        }
        let mounted = contained(&root, &inner);
        let mounted: Vec<&str> = mounted.iter().map(String::as_str).collect();
        let target = Target::start_with(Path::new("unshare"), &mounted);
        hit(&target, &["p /app/prog:tick i".to_owned()]);
        target.ends("done\n");
        fs::remove_dir_all(place).expect("the files can be removed");
    }
}

#[test]
fn programs_that_move_to_another_root() {
    needs!(can_mount(), "mounting needs root");
    let place = scratch("programs_that_move_to_another_root");
    let (root, inner) = (root(&place), place.join("inner"));
    for definition in [
        "p prog:tick i",
        "p /app/prog:tick i",
        "p /app/libx.so:step i",
    ] {
        let output = Command::new("timeout")
            .args(["-s", "KILL", "300"])
            .arg(hodo_tests::hodo())
            .args(["probe", "-e", definition, "--", "unshare"])
            .args(contained(&root, &inner))
            .stdin(std::process::Stdio::null())
            .env("LC_ALL", "C")
            .output()
            .expect("hodo can be run");
        let (_, place) = definition.rsplit_once(':').expect("a place");
        let name = place.split(' ').next().expect("a name");
        assert!(
            text(&output.stdout).contains(&format!(": {name}: ({name}+0x0) i=")),
            "{output:?}"
        );
    }
    fs::remove_dir_all(place).expect("the files can be removed");
}

/// Whether `hodo mem` runs programs here.
const MEM: bool = cfg!(target_arch = "x86_64");
const NO_MEM: &str = "hodo mem runs programs only on x86-64";

/// Names come from the file that the process has mapped, not from the one that is at its path now.
#[test]
fn replaced_files_and_their_names() {
    needs!(is_root(), "only root can read a replaced file");
    needs!(MEM, NO_MEM);
    let place = scratch("mem_replaced_files");
    library(&place, OLD);
    let program = program(&place, &[]);
    let target = Target::start(&program);
    fs::copy("/bin/true", place.join("new")).expect("a copy");
    fs::rename(place.join("new"), &program).expect("the program is replaced");
    seen_in_time("0.2", |time| {
        let output = run(&target, &["mem", "cache", "--top", "1000", "--for", time]);
        text(&output.stdout).contains("tick")
    });
    target.ends("done\n");
    fs::remove_dir_all(place).expect("the files can be removed");
}

/// Another file is at the same path for hodo.
#[test]
fn names_of_processes_with_their_own_root() {
    needs!(can_mount(), "mounting needs root");
    needs!(MEM, NO_MEM);
    let place = scratch("mem_own_root");
    let (root, inner) = (root(&place), place.join("inner"));
    let mounted = contained(&root, &inner);
    let mounted: Vec<&str> = mounted.iter().map(String::as_str).collect();
    let target = Target::start_with(Path::new("unshare"), &mounted);
    seen_in_time("0.2", |time| {
        let output = run(&target, &["mem", "cache", "--top", "1000", "--for", time]);
        text(&output.stdout).contains("tick")
    });
    target.ends("done\n");
    fs::remove_dir_all(place).expect("the files can be removed");
}
