//! Names, variables and lines that are not in the program itself: its separate files, and how C++ names are written.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use hodo_tests::probing::{path, text};
use hodo_tests::{has_tool, hodo, needs, scratch};

const PROGRAM: &str = r#"
#include <stdio.h>
static __attribute__((noipa)) int inner(int depth, const char *tag) { return depth * 2 + !tag; }
static __attribute__((noipa)) int outer(int n) {
    int s = 0;
    for (int i = 0; i < n; i++) s += inner(i, "tag");
    return s;
}
int main(void) { printf("%d\n", outer(3)); return 0; }
"#;

fn done(place: &Path, words: &[&str]) -> Output {
    let output = Command::new(words[0])
        .args(&words[1..])
        .current_dir(place)
        .output();
    let output = output.expect("it can be run");
    assert!(output.status.success(), "{words:?}: {output:?}");
    output
}

/// A directory with the source of the program.
fn place(test: &str) -> PathBuf {
    let place = scratch(test);
    fs::write(place.join("prog.c"), PROGRAM).expect("a source");
    place
}

fn hodo_in(place: &Path, options: &[&str]) -> Output {
    Command::new("timeout")
        .args(["-s", "KILL", "300"])
        .arg(hodo())
        .args(options)
        .envs([("LC_ALL", "C")])
        .env("DEBUGINFOD_CACHE_PATH", place.join("cache"))
        .current_dir(place)
        .output()
        .expect("hodo can be run")
}

/// The probe on `inner` shows its parameters.
#[track_caller]
fn sees_parameters(place: &Path) {
    let output = hodo_in(
        place,
        &[
            "probe",
            "-e",
            "p prog:inner depth tag:string",
            "--",
            "./prog",
        ],
    );
    let said = text(&output.stdout);
    for depth in 0..3 {
        let hit = format!("inner: (inner+0x0) depth={depth} tag=\"tag\"");
        assert!(said.contains(&hit), "{output:?}");
    }
}

#[track_caller]
fn has_names(place: &Path, expected: bool) {
    let output = hodo_in(place, &["live", "-f", "none", "--no-libcall", "./prog"]);
    let said = text(&output.stdout);
    assert_eq!(said.matches("inner()").count() == 3, expected, "{output:?}");
    assert_eq!(said.contains("outer()"), expected, "{output:?}");
}

#[test]
fn symbols_of_stripped_programs_are_in_separate_files() {
    let place = place("symbols_of_stripped_programs_are_in_separate_files");
    let separate = |options: &[&str]| {
        let compile = ["gcc", "-O1", "-g", "-o", "prog", "prog.c"];
        done(&place, &[&compile, options].concat());
        done(
            &place,
            &["objcopy", "--only-keep-debug", "prog", "prog.debug"],
        );
        done(&place, &["strip", "--strip-all", "prog"]);
    };
    let link = || {
        done(
            &place,
            &["objcopy", "--add-gnu-debuglink=prog.debug", "prog"],
        )
    };
    separate(&["-Wl,--build-id"]);
    link();
    sees_parameters(&place);
    has_names(&place, true);
    // `hodo info` says where they are from.
    let output = hodo_in(&place, &["record", "./prog"]);
    assert!(output.status.success(), "{output:?}");
    let info = hodo_in(&place, &["info"]);
    let from = format!("prog from {}", path(&place.join("prog.debug")));
    assert!(text(&info.stdout).contains(&from), "{info:?}");
    let planned = hodo_in(&place, &["plan", "-v", "prog"]);
    assert!(text(&planned.stdout).contains("inner"), "{planned:?}");
    // In the subdirectory for them. The cached plan does not keep names that are gone.
    let (beside, below) = (place.join("prog.debug"), place.join(".debug"));
    fs::create_dir_all(&below).expect("a directory");
    fs::rename(&beside, below.join("prog.debug")).expect("the file is moved");
    has_names(&place, true);
    fs::remove_dir_all(&below).expect("the directory can be removed");
    has_names(&place, false);
    // By build id, where debuginfod's client stores what it has downloaded.
    separate(&["-Wl,--build-id=0xabcdef0123456789"]);
    let cached = place.join("cache/abcdef0123456789");
    fs::create_dir_all(&cached).expect("a directory");
    fs::rename(&beside, cached.join("debuginfo")).expect("the file is moved");
    sees_parameters(&place);
    has_names(&place, true);
    // Without build ids, the checksum decides.
    separate(&["-Wl,--build-id=none"]);
    link();
    sees_parameters(&place);
    has_names(&place, true);
    done(
        &place,
        &[
            "gcc",
            "-O1",
            "-g",
            "-Wl,--build-id=none",
            "-DOTHER",
            "-o",
            "prog.debug",
            "prog.c",
        ],
    );
    has_names(&place, false);
    fs::remove_dir_all(place).expect("the files can be removed");
}

/// The program, whose build id is `ab01`, and beside it `prog.debug`.
fn stripped(place: &Path) {
    let build = [
        "gcc",
        "-O1",
        "-g",
        "-Wl,--build-id=0xab01",
        "-o",
        "prog",
        "prog.c",
    ];
    done(place, &build);
    done(
        place,
        &["objcopy", "--only-keep-debug", "prog", "prog.debug"],
    );
    done(place, &["strip", "--strip-all", "prog"]);
    // The name leads nowhere.
    fs::rename(place.join("prog.debug"), place.join("kept")).expect("the file is moved");
}

/// What `debuginfod-find` is asked for is used, but nothing is asked if no server is named.
#[test]
fn missing_files_are_asked_for() {
    let place = place("missing_files_are_asked_for");
    stripped(&place);
    let client = place.join("debuginfod-find");
    let script = format!(
        "#!/bin/sh\necho \"$*\" >> {0}/asked\n[ \"$1 $2\" = 'debuginfo ab01' ] && echo {0}/kept\n",
        path(&place)
    );
    fs::write(&client, script).expect("a script");
    fs::set_permissions(&client, fs::Permissions::from_mode(0o755)).expect("it can be run");
    let search = format!(
        "{}:{}",
        path(&place),
        std::env::var("PATH").unwrap_or_default()
    );
    let seen = |servers: Option<&str>, search: &str| {
        let mut command = Command::new(hodo());
        command.args(["live", "-f", "none", "--no-libcall", "./prog"]);
        command.env("DEBUGINFOD_CACHE_PATH", place.join("cache"));
        command.env("PATH", search).current_dir(&place);
        match servers {
            Some(servers) => command.env("DEBUGINFOD_URLS", servers),
            None => command.env_remove("DEBUGINFOD_URLS"),
        };
        let output = command.output().expect("hodo can be run");
        assert!(output.status.success(), "{output:?}");
        (
            text(&output.stdout).contains("inner()"),
            text(&output.stderr).to_string(),
        )
    };
    for no_server in [None, Some(" ")] {
        assert!(!seen(no_server, &search).0);
    }
    assert!(!place.join("asked").exists());
    assert!(seen(Some("http://127.0.0.1:9/"), &search).0);
    let asked = fs::read_to_string(place.join("asked")).expect("it was asked");
    assert_eq!(asked.matches("debuginfo ab01\n").count(), 1, "{asked}");
    // Without the client, the user gets to know that.
    let (has_names, said) = seen(Some("http://127.0.0.1:9/"), "/nonexistent");
    assert!(
        !has_names
            && said
                .matches("debuginfod-find (elfutils) cannot be started")
                .count()
                == 1,
        "{said}"
    );
    fs::remove_dir_all(place).expect("the files can be removed");
}

/// A server on this machine has the file.
#[test]
fn missing_files_are_fetched_from_a_server() {
    needs!(has_tool("debuginfod-find"), "there is no debuginfod-find");
    let place = place("missing_files_are_fetched_from_a_server");
    stripped(&place);
    let content = fs::read(place.join("kept")).expect("the file");
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a client");
            let mut request = [0; 4096];
            let length = stream.read(&mut request).expect("a request");
            let request = String::from_utf8_lossy(&request[..length]);
            let (status, body) = match request.contains(" /buildid/ab01/debuginfo ") {
                true => ("200 OK", &content[..]),
                false => ("404 Not Found", &[][..]),
            };
            let head = format!(
                "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            // The client may have gone away.
            let _ = stream
                .write_all(head.as_bytes())
                .and_then(|()| stream.write_all(body));
        }
    });
    let seen = |servers: &str| {
        let output = Command::new(hodo())
            .args(["probe", "-e", "p prog:inner depth", "--", "./prog"])
            .env("DEBUGINFOD_CACHE_PATH", place.join("cache"))
            .env("DEBUGINFOD_URLS", servers)
            .current_dir(&place)
            .output();
        let output = output.expect("hodo can be run");
        text(&output.stdout).contains("(inner+0x0) depth=2")
    };
    assert!(seen(&format!("http://127.0.0.1:{port}/")));
    // It is in the cache now.
    assert!(seen(""));
    fs::remove_dir_all(place).expect("the files can be removed");
}

#[test]
fn debugging_information_may_be_compressed() {
    let place = place("debugging_information_may_be_compressed");
    done(&place, &["gcc", "-O1", "-g", "-o", "whole", "prog.c"]);
    for form in ["zlib", "zlib-gnu", "zstd"] {
        let option = format!("--compress-debug-sections={form}");
        let known = Command::new("objcopy")
            .args([&option, "whole", "prog"])
            .current_dir(&place)
            .output()
            .expect("objcopy");
        // Older versions have no zstd.
        if known.status.success() || form != "zstd" {
            assert!(known.status.success(), "{known:?}");
            sees_parameters(&place);
        }
    }
    fs::remove_dir_all(place).expect("the files can be removed");
}

#[test]
fn programs_may_share_debugging_information() {
    needs!(has_tool("dwz"), "dwz is not installed");
    let place = place("programs_may_share_debugging_information");
    for (name, option) in [("prog", "-DONE"), ("other", "-DTWO")] {
        done(&place, &["gcc", "-O1", "-g", option, "-o", name, "prog.c"]);
    }
    done(&place, &["dwz", "-m", "common.debug", "prog", "other"]);
    sees_parameters(&place);
    fs::remove_file(place.join("common.debug")).expect("there is one");
    let output = hodo_in(
        &place,
        &["probe", "-e", "p prog:inner depth", "--", "./prog"],
    );
    let said = "a part of it is in common.debug, which does not exist";
    assert!(text(&output.stderr).contains(said), "{output:?}");
    fs::remove_dir_all(place).expect("the files can be removed");
}

#[test]
fn debugging_information_may_be_split_off() {
    let place = place("debugging_information_may_be_split_off");
    for version in ["-gdwarf-4", "-gdwarf-5"] {
        let split = ["-O1", "-g", version, "-gsplit-dwarf", "prog.c"];
        done(
            &place,
            &[&["gcc", "-c", "-o", "prog.o"][..], &split].concat(),
        );
        done(&place, &["gcc", "-o", "prog", "prog.o"]);
        sees_parameters(&place);
        let output = hodo_in(&place, &["probe", "-e", "p prog:prog.c:3", "--", "./prog"]);
        assert_eq!(
            text(&output.stdout).matches("inner+0x").count(),
            3,
            "{output:?}"
        );
        // All in one file. Some versions of the tools that make it fail.
        let pack = ["10", "llvm-dwp", "-e", "prog", "-o", "prog.dwp"];
        let packed = Command::new("timeout")
            .args(pack)
            .current_dir(&place)
            .output();
        if packed.is_ok_and(|output| output.status.success()) {
            fs::remove_file(place.join("prog.dwo")).expect("there is one");
            sees_parameters(&place);
            fs::remove_file(place.join("prog.dwp")).expect("there is one");
        } else {
            fs::remove_file(place.join("prog.dwo")).expect("there is one");
        }
        // What is missing is named.
        let output = hodo_in(
            &place,
            &["probe", "-e", "p prog:inner depth", "--", "./prog"],
        );
        let said = "there is no variable depth here; a part of the debugging information is in prog.dwo, which is not";
        assert!(text(&output.stderr).contains(said), "{output:?}");
    }
    fs::remove_dir_all(place).expect("the files can be removed");
}

#[test]
fn instances_overloads_and_labels_have_names() {
    needs!(has_tool("g++"), "a compiler for C++ is needed");
    let place = scratch("instances_overloads_and_labels_have_names");
    let source = r#"
        #include <string>
        namespace shop {
        template <typename T> __attribute__((noipa)) T twice(T x) { return x + x; }
        __attribute__((noipa)) int add(int a) { return a + 1; }
        __attribute__((noipa)) int add(int a, int b) { return a + b; }
        }
        #if defined __x86_64__
        #define FIRST "mov $1, %eax"
        #define SECOND "add $2, %eax"
        #elif defined __aarch64__
        #define FIRST "mov w0, #1"
        #define SECOND "add w0, w0, #2"
        #else
        #define FIRST "li a0, 1"
        #define SECOND "addi a0, a0, 2"
        #endif
        asm(".text\n.globl outside\n.type outside, @function\noutside: " FIRST "\n.globl o_mid\n"
            "o_mid: " SECOND "\n nop\n ret\n.size outside, . - outside\n");
        extern "C" int outside();
        int main() { return shop::twice(4) + (int)shop::twice(2.5) + shop::add(1) + shop::add(2, 3) + outside() - 23; }
    "#;
    fs::write(place.join("cpp.cc"), source).expect("a source");
    done(&place, &["g++", "-O1", "-g", "-o", "cpp", "cpp.cc"]);
    for (probe, expected) in [
        ("p cpp:shop::twice<int> x", "x=4"),
        ("p cpp:shop::twice<int>(int) x", "x=4"),
        ("p cpp:'int shop::twice<int>(int)' x", "x=4"),
        ("p cpp:'shop::add(int, int)' a b", "a=2 b=3"),
        ("p cpp:shop::add(int,int) a b", "a=2 b=3"),
        ("p cpp:shop::add(int) a", "a=1"),
        ("p:at cpp:o_mid", "at: (o_mid+0x0)"),
    ] {
        let output = hodo_in(&place, &["probe", "-e", probe, "--", "./cpp"]);
        let hits: Vec<&str> = text(&output.stdout).lines().collect();
        assert_eq!(hits.len(), 1, "{probe}: {output:?}");
        assert!(hits[0].contains(expected), "{probe}: {output:?}");
    }
    // A name without arguments means all.
    let output = hodo_in(&place, &["probe", "-e", "p cpp:shop::twice", "--", "./cpp"]);
    assert_eq!(text(&output.stdout).lines().count(), 2, "{output:?}");
    let listed = hodo_in(&place, &["probe", "--list", "cpp", "shop::*"]);
    for name in [
        "shop::twice<int>(int)",
        "shop::twice<double>(double)",
        "shop::add(int, int)",
    ] {
        assert!(text(&listed.stdout).contains(name), "{listed:?}");
    }
    fs::remove_dir_all(place).expect("the files can be removed");
}

/// Readers take no names from a file that has taken the place of the one that was mapped, also if nothing was recorded
/// in that.
#[test]
fn callers_in_a_library_that_was_replaced_have_no_names() {
    const LIBRARY: &str = r#"void NAME(void (*leaf)(void)) { leaf(); __asm__ volatile(""); }"#;
    const USER: &str = r#"
void through(void (*leaf)(void));
__attribute__((noipa)) void leaf(void) { __asm__ volatile(""); }
int main(void) { through(leaf); return 0; }
"#;
    let place = scratch("callers_in_a_library_that_was_replaced_have_no_names");
    fs::write(place.join("library.c"), LIBRARY).expect("a source");
    fs::write(place.join("user.c"), USER).expect("a source");
    let build = |name: &str| {
        let library = "gcc -O1 -shared -fPIC -Wl,--build-id -o libpassing.so library.c";
        let mut words: Vec<&str> = library.split(' ').collect();
        let name = format!("-DNAME={name}");
        words.push(&name);
        done(&place, &words);
    };
    build("through");
    let user = "gcc -O1 -Wl,--build-id -o user user.c -L. -lpassing -Wl,-rpath,$ORIGIN";
    done(&place, &user.split(' ').collect::<Vec<_>>());
    let probe = "p:hit user:leaf stacktrace";
    let output = hodo_in(&place, &["record", "-d", "data", "-e", probe, "./user"]);
    assert!(output.status.success(), "{output:?}");
    let events = || {
        let output = hodo_in(&place, &["dump", "-d", "data"]);
        let hit = text(&output.stdout)
            .lines()
            .find(|line| line.contains("[event] hit"));
        let hit = hit.expect("the event").to_owned();
        (hit, text(&output.stderr).to_owned())
    };
    let (hit, complaint) = events();
    assert!(hit.contains("leaf <- through <- main"), "{hit}");
    assert_eq!(complaint, "");
    build("somebody_else");
    let (hit, complaint) = events();
    // Not even the frame of the caller's caller can be found.
    assert!(hit.contains("leaf <- <"), "{hit}");
    assert!(
        complaint.contains("libpassing.so is not the file that was recorded"),
        "{complaint}"
    );
    fs::remove_dir_all(place).expect("it can be removed");
}
