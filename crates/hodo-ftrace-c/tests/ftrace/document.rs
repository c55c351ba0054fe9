//! The example in `docs/ftrace.md`.

use std::fs;
use std::path::Path;

use crate::build::{Form, compile, home, libraries, run};

/// The first block of code after this text.
fn block<'t>(page: &'t str, after: &str) -> &'t str {
    let (_, rest) = page.split_once(after).expect("the page has this text");
    let (_, rest) = rest.split_once("```").expect("a block follows");
    let (_, rest) = rest
        .split_once('\n')
        .expect("its first line names a language");
    rest.split_once("```").expect("the block ends").0
}

#[test]
fn the_example_in_the_documentation_works() {
    let page = fs::read_to_string(home().join("../../docs/ftrace.md")).expect("the page is there");
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ftrace-document");
    fs::create_dir_all(&directory).expect("it can be made");
    let [tracer, program] = ["tracer.c", "program.c"].map(|name| {
        let file = directory.join(name);
        fs::write(&file, block(&page, &format!("`{name}`"))).expect("it can be written");
        file.to_str().expect("a text").to_owned()
    });
    let shared = ["-shared", "-fPIC"];
    let tracer = compile("tracer", "gcc", &[&tracer], &shared, Form::Shared).expect("gcc is there");
    let program =
        compile("program", "gcc", &[&program], &["-pg"], Form::None).expect("gcc is there");
    let preload = format!(
        "{}:{}",
        libraries("debug").join("libhodo_ftrace.so").display(),
        tracer.display()
    );
    let output = run(&program, &[("LD_PRELOAD", preload)]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(text, block(&page, "It prints"));
}
