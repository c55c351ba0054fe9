//! What `hodo probe` reports about impossible definitions, and how it then ends.
#![cfg(target_arch = "x86_64")]

use std::path::Path;
use std::process::{Command, Output, Stdio};

const SOURCE: &str = r#"
    #include <stdio.h>
    #include <string.h>
    struct s { int a : 3; int b : 5; unsigned c : 7; };
    extern int untyped(void);
    __asm__(".text\n.globl untyped\nuntyped: mov $4, %eax\ninner: inc %eax\n ret\n");
    __attribute__((noinline)) double half(int x) { return x * 0.5; }
    __attribute__((noinline)) int bits(struct s *p) { return p->a + p->b + p->c; }
    __attribute__((noinline)) int barrier(void) { __asm__ volatile("lock orq $0, (%%rsp)" ::: "memory", "cc"); return 1; }
    static int chosen(void) { return 0; }
    static int (*choose(void))(void) { return chosen; }
    int selected(void) __attribute__((ifunc("choose")));
    int main(int n, char **v) {
        (void)v;
        struct s s = { 1, -2, 100 };
        size_t (*volatile length)(const char *, const char *) = strcspn;
        for (int i = 0; i < 7; i++) length("text", "x");
        printf("%d %.1f\n", bits(&s) + untyped() + untyped() + barrier() + selected(), half(n));
        return 0;
    }
"#;

/// Creates a directory with a program.
fn place() -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("p.c"), SOURCE).unwrap();
    std::fs::write(place.path().join("d.c"), "const int table[64] = {1};").unwrap();
    for words in [
        &["-g", "-O1", "-o", "prog", "p.c"][..],
        &["-shared", "-nostdlib", "-o", "libdata.so", "d.c"],
    ] {
        let mut gcc = Command::new("gcc");
        let done = gcc.args(words).current_dir(place.path()).status().unwrap();
        assert!(done.success());
    }
    place
}

fn hodo(place: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hodo"));
    let command = command.args(words).current_dir(place).stdin(Stdio::null());
    command.output().expect("hodo starts")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("the output is text")
}

#[test]
fn bits_have_the_sign_of_their_type() {
    let place = place();
    let probe = "prog:bits p->a p->b p->c if b < 0";
    let output = hodo(place.path(), &["probe", "-e", probe, "./prog"]);
    assert!(
        text(&output.stdout).contains(" a=1 b=-2 c=100\n"),
        "{output:?}"
    );
}

#[test]
fn a_symbol_without_a_type_can_be_probed() {
    let place = place();
    let words = [
        "probe",
        "-e",
        "prog:untyped count",
        "-e",
        "prog:untyped+* count",
        "./prog",
    ];
    let output = hodo(place.path(), &words);
    let counted = text(&output.stdout).lines().filter(|line| {
        let mut words = line.split_whitespace();
        words.next() == Some("2") && words.next().is_some_and(|name| name.starts_with("untyped"))
    });
    // The function has a probe, and so has each of its three instructions. A label inside it is not a function.
    assert_eq!(counted.count(), 4, "{output:?}");
    let words = ["probe", "-e", "prog:inner count", "./prog"];
    let output = hodo(place.path(), &words);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
}

#[test]
fn a_value_that_an_action_cannot_set_is_refused() {
    let place = place();
    let output = hodo(
        place.path(),
        &["probe", "-e", "prog:half return:7", "./prog"],
    );
    assert_eq!(
        (output.status.code(), text(&output.stdout)),
        (Some(125), "")
    );
    assert!(
        text(&output.stderr).contains("half returns a value of the type double"),
        "{output:?}"
    );
    let output = hodo(
        place.path(),
        &["probe", "-e", "prog:bits return:-11", "./prog"],
    );
    assert!(text(&output.stdout).starts_with("0 0.5\n"), "{output:?}");
}

#[test]
fn a_barrier_moves_no_return_address() {
    let place = place();
    let output = hodo(
        place.path(),
        &["probe", "-e", "r prog:barrier $retval", "./prog"],
    );
    assert!(output.status.success(), "{output:?}");
    assert!(text(&output.stdout).contains("arg1=0x1"), "{output:?}");
}

#[test]
fn the_exit_status_shows_that_a_probe_was_never_placed() {
    let place = place();
    let place = place.path();
    for command in ["probe", "record"] {
        let words = [
            command,
            "-e",
            "libnever.so:f count",
            "-e",
            "prog:main count",
            "./prog",
        ];
        let output = hodo(place, &words);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let told = "hodo: the probe 'libnever.so:f count' was never placed: no file libnever.so was loaded\n";
        assert!(text(&output.stderr).contains(told), "{output:?}");
    }
    // A library that contains only data is no reason to end.
    let words = [
        "probe",
        "-e",
        "./libdata.so:*+* count",
        "-e",
        "prog:main count",
        "./prog",
    ];
    let output = hodo(place, &words);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("libdata.so"), "{output:?}");
    assert!(text(&output.stdout).contains("1  main:"), "{output:?}");
    // If the output cannot be written, the exit status says so, too, however the program ends.
    let words = ["probe", "-o", "/dev/full", "-e", "prog:bits p->b", "./prog"];
    assert_eq!(hodo(place, &words).status.code(), Some(125));
}

#[test]
fn a_probe_on_a_chosen_function_is_on_its_implementations() {
    let place = place();
    for (probe, told, line) in [
        (
            "prog:selected count",
            "is on the implementation that ",
            "           1  selected: (selected+0x0)\n",
        ),
        // A library without symbols for its own functions. The processor decides which of them is called.
        (
            "libc.so.6:strcspn count",
            "",
            "           7  strcspn: (strcspn+0x0)\n",
        ),
        // A definition that names an offset is placed in the function that chooses.
        (
            "prog:selected+* count",
            "is on what chooses an implementation",
            "  selected: (selected+0x0)\n",
        ),
    ] {
        let output = hodo(place.path(), &["probe", "-e", probe, "./prog"]);
        let said = format!("hodo: the probe '{probe}' {told}");
        let says = text(&output.stderr).contains(&said);
        assert!(says || told.is_empty(), "{output:?}");
        let lines = text(&output.stdout);
        assert_eq!(lines.matches(line).count(), 1, "{output:?}");
    }
    // The implementation's own name counts the same calls.
    let probe = ["probe", "-e", "prog:chosen count", "./prog"];
    let output = hodo(place.path(), &probe);
    assert!(!text(&output.stderr).contains("IFUNC"), "{output:?}");
    assert!(text(&output.stdout).contains("1  chosen:"), "{output:?}");
}

/// The compiler moves rarely executed code out of its function. Without symbols, only the unwind table shows that part.
#[test]
fn every_instruction_includes_code_moved_out_of_its_function() {
    let place = tempfile::tempdir().unwrap();
    let source = r#"
        #include <stdio.h>
        #include <stdlib.h>
        __attribute__((noinline, cold)) void report(int n) { printf("%d\n", n); }
        __attribute__((noinline)) int work(int n) {
            int s = 0;
            for (int i = 0; i < n; i++) {
                if (__builtin_expect(i == 5, 0)) { report(i); s += 3; report(s * 7); exit(0); }
                s += i;
            }
            return s;
        }
        int main(int n, char **v) { (void)v; return work(n + 8); }
    "#;
    std::fs::write(place.path().join("cold.c"), source).unwrap();
    let mut gcc = Command::new("gcc");
    let gcc = gcc.args(["-O2", "-s", "-o", "cold", "cold.c"]);
    assert!(gcc.current_dir(place.path()).status().unwrap().success());
    let number = |output: &Output, after: &str| -> u64 {
        let words = text(&output.stdout).split_whitespace();
        let mut words = words.skip_while(|word| *word != after);
        words.nth(1).expect(after).parse().expect("a number")
    };
    let words = ["plan", "--every-instruction", "cold"];
    let all = number(&hodo(place.path(), &words), "instructions");
    let words = ["probe", "--dry-run", "-e", "cold:*+* count", "./cold"];
    let output = hodo(place.path(), &words);
    assert_eq!(number(&output, "places"), all, "{output:?}");
    let said = "instructions of the linkage tables (.plt) of ";
    assert!(text(&output.stderr).contains(said), "{output:?}");
    let output = hodo(place.path(), &["probe", "-e", "cold:*+* count", "./cold"]);
    assert!(text(&output.stdout).starts_with("5\n91\n"), "{output:?}");
}
