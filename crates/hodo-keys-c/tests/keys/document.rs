//! The example in `docs/static-keys.md`.

use std::fs;

use crate::build::{Compiled, Form, Isa, checked, home, place};

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
    let page = home().join("../../docs/static-keys.md");
    let page = fs::read_to_string(page).expect("the page is there");
    let file = place().join("requests.c");
    fs::write(&file, block(&page, "`requests.c`")).expect("it can be written");
    let program = Compiled {
        isa: Isa::X86,
        with: "gcc",
        files: &[file.to_str().expect("a text")],
        flags: "-O2",
        form: Form::Shared,
    };
    let program = program.build("requests").expect("gcc is there");
    let output = checked(&mut Isa::X86.command(&program));
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text, block(&page, "It prints"));
}
