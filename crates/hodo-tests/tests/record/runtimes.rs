//! Programs whose runtimes find frames by return addresses do under hodo what they do alone.

use std::path::{Path, PathBuf};
use std::process::Command;

use hodo_tests::{Run, Trace, has_tool, hodo, needs, scratch};

/// Runs a command in the directory.
fn make(place: &Path, command: &[&str]) {
    let output = Command::new(command[0])
        .args(&command[1..])
        .current_dir(place)
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
}

/// Copies a program's source there, because OCaml's compiler puts files next to its source.
fn source(place: &Path, file: &str) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("programs")
        .join(file);
    std::fs::copy(from, place.join(file)).expect("a source can be copied");
}

/// An OCaml program, compiled with these options.
fn ocaml(name: &str, options: &[&str]) -> PathBuf {
    let place = scratch(&format!("build-{name}"));
    source(&place, "collected.ml");
    let command = ["ocamlopt", "collected.ml", "-o", name];
    make(&place, &[&command[..], options].concat());
    place.join(name)
}

/// Checks that the trace says the program is an OCaml one.
fn is_told(trace: &Trace) {
    let remarks = trace.log("remark");
    let told = |remark: &serde_json::Value| remark.to_string().contains("the OCaml runtime");
    assert!(remarks.iter().any(told), "{remarks:?}");
}

#[test]
fn the_ocaml_collector_finds_its_frames() {
    needs!(has_tool("ocamlopt"), "there is no OCaml compiler");
    let program = ocaml("collected", &[]);
    for options in [&[][..], &["-l"]] {
        let trace = Run::new("collected", &program).same(options);
        is_told(&trace);
        let calls = trace.calls();
        let seen = |part: &str| calls.keys().any(|name| name.contains(part));
        assert!(seen("make_"), "no function of the program: {calls:?}");
        assert!(seen("caml_empty_minor_heap"), "no collection: {calls:?}");
    }
}

#[test]
fn the_collector_of_a_stripped_ocaml_program_finds_its_frames() {
    needs!(has_tool("ocamlopt"), "there is no OCaml compiler");
    for (name, options) in [("shared", &[][..]), ("static", &["-ccopt", "-static"])] {
        let program = ocaml(name, options);
        make(Path::new("/"), &["strip", program.to_str().expect("text")]);
        is_told(&Run::new(&format!("collected-{name}"), &program).same(&["-l"]));
    }
}

#[test]
fn the_collector_finds_the_frames_of_an_ocaml_plugin() {
    needs!(has_tool("ocamlopt"), "there is no OCaml compiler");
    let place = scratch("build-plugin-ocaml");
    source(&place, "collected.ml");
    let program = "let () = Dynlink.loadfile_private Sys.argv.(1)";
    std::fs::write(place.join("loads.ml"), program).expect("a source can be written");
    make(
        &place,
        &[
            "ocamlopt",
            "-shared",
            "collected.ml",
            "-o",
            "collected.cmxs",
        ],
    );
    let loads = "ocamlopt -I +dynlink -linkall dynlink.cmxa loads.ml -o loads";
    make(&place, &loads.split(' ').collect::<Vec<_>>());
    make(&place, &["strip", "collected.cmxs"]);
    let run = Run::new("plugin-ocaml", place.join("loads"));
    is_told(&run.args([place.join("collected.cmxs")]).same(&["-l"]));
}

#[test]
fn memcheck_finds_the_code_it_puts_into_the_program() {
    needs!(has_tool("valgrind"), "there is no valgrind");
    let run = Run::new("memcheck", "valgrind").args(["-q", "--error-exitcode=9", "/bin/echo", "x"]);
    let (alone, traced) = (run.alone(), run.traced(&[]));
    assert_eq!(alone, traced.outcome, "{}", traced.remarks);
}

#[test]
fn a_program_of_haskell_collects() {
    needs!(has_tool("ghc"), "there is no Haskell compiler");
    let place = scratch("build-haskell");
    source(&place, "collected.hs");
    make(&place, &["ghc", "-O", "collected.hs", "-o", "collected"]);
    let trace = Run::new("haskell", place.join("collected")).same(&["-l"]);
    let remarks = trace.log("remark");
    let told = |remark: &serde_json::Value| remark.to_string().contains("GHC");
    assert!(remarks.iter().any(told), "{remarks:?}");
}

/// The output of `hodo plan` for a C program with these lines, stripped or with all its symbols.
fn planned(name: &str, lines: &str, strip: bool) -> String {
    let place = scratch(&format!("plan-{name}"));
    let rest = "#include <stdio.h>\n#include <stdlib.h>\n__attribute__((noinline)) int f(int x) { return puts(\"x\") + x; }\n";
    let main = "int main(int c, char **v) { return f(c) != 0 && getenv(WORD) == 0; }\n";
    std::fs::write(place.join("program.c"), format!("{rest}{lines}{main}")).expect("a source");
    make(&place, &["gcc", "-O1", "program.c", "-o", name]);
    if strip {
        make(&place, &["strip", name]);
    }
    let mut command = Command::new(hodo());
    command.arg("plan").arg(place.join(name));
    let output = command.output().expect("hodo can be run");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn runtimes_are_recognized_by_symbols_or_by_texts_if_stripped() {
    for (name, lines, strip, remark) in [
        (
            "symbol",
            "#define WORD \"X\"\nvoid caml_call_gc(void) { puts(\"x\"); }\n",
            false,
            "the OCaml runtime",
        ),
        (
            "word",
            "#define WORD \"OCAMLRUNPARAM\"\n",
            true,
            "the OCaml runtime",
        ),
        ("haskell", "#define WORD \"GHCRTS\"\n", true, "GHC"),
        (
            "valgrind",
            "#define WORD \"vgpreload_core\"\n",
            true,
            "none of its functions is traced",
        ),
    ] {
        let plan = planned(name, lines, strip);
        assert!(plan.contains(remark), "{name}: {plan}");
        let all = ["entry only", "refused"].iter().any(|kind| {
            let mut lines = plan.lines().filter(|line| line.trim().starts_with(kind));
            lines.any(|line| line.ends_with("100.00 %"))
        });
        assert!(all, "{name}: {plan}");
    }
    // Other programs may contain the word.
    let plan = planned(
        "knows",
        "#define WORD \"X\"\nconst char text[] = \"OCAMLRUNPARAM=v\";\n",
        true,
    );
    assert!(!plan.contains("OCaml"), "{plan}");
}
