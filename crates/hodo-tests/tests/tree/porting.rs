//! The encodings in `docs/porting.md`: each line is assembled, and compared.

use std::fs;
use std::path::Path;
use std::process::Command;

use hodo_tests::{skip, temporary};
use object::{Object, ObjectSection};

/// What LLVM's assembler needs around itself where there is no `core`.
const NO_CORE: &str = r#"#![feature(no_core, lang_items, rustc_attrs, asm_experimental_arch)]
#![allow(internal_features)]
#![no_core]
#![crate_type = "lib"]
#[lang = "pointee_sized"]
pub trait PointeeSized {}
#[lang = "meta_sized"]
pub trait MetaSized: PointeeSized {}
#[lang = "sized"]
pub trait Sized: MetaSized {}
#[rustc_builtin_macro]
macro_rules! global_asm {
    () => {};
}
global_asm!("#;

/// A line: its bytes, and the instructions.
struct Line<'t> {
    bytes: Vec<u8>,
    text: &'t str,
}

impl<'t> Line<'t> {
    /// Groups of hexadecimal digits, each a little-endian unit, two spaces, and instructions with `;` between them.
    fn parse(line: &'t str) -> Self {
        let (groups, text) = line.split_once("  ").expect("two spaces");
        let mut bytes = Vec::new();
        for group in groups.split(' ') {
            let unit = u32::from_str_radix(group, 16).expect("hexadecimal digits");
            bytes.extend(&unit.to_le_bytes()[..group.len() / 2]);
        }
        Self { bytes, text }
    }
}

/// The code that an assembler makes; `None` if it cannot be run.
fn assemble(command: &str, name: &str, lines: &[&str]) -> Option<Vec<u8>> {
    let directory = temporary().join("porting");
    fs::create_dir_all(&directory).expect("it can be made");
    let mut words = command.split(' ');
    let program = words.next().expect("a command");
    let (source, output) = (directory.join(name), directory.join(format!("{name}.o")));
    let mut command = if program == "rustc" {
        let text: Vec<_> = lines.iter().map(|line| format!("{line:?}")).collect();
        fs::write(&source, format!("{NO_CORE}{});\n", text.join(", "))).expect("a file");
        let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
        // It refuses such programs otherwise.
        rustc.env("RUSTC_BOOTSTRAP", "1").args(["--emit", "obj"]);
        rustc
    } else {
        fs::write(&source, format!("{}\n", lines.join("\n"))).expect("a file");
        Command::new(program)
    };
    let output_of = command
        .args(words)
        .arg("-o")
        .arg(&output)
        .arg(&source)
        .output();
    let output_of = match output_of {
        Ok(output) => output,
        Err(error) => {
            skip(&format!("{program} cannot be run: {error}"));
            return None;
        }
    };
    assert!(
        output_of.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output_of.stderr)
    );
    let bytes = fs::read(&output).expect("the object");
    let file = object::File::parse(&*bytes).expect("an object file");
    let section = file.section_by_name(".text").expect("code");
    Some(section.data().expect("its bytes").to_vec())
}

#[test]
fn encodings_are_what_assemblers_make() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/porting.md");
    let page = fs::read_to_string(page).expect("the page is there");
    let blocks: Vec<_> = page.split("```text\n$ ").skip(1).collect();
    assert_eq!(blocks.len(), 5);
    for block in blocks {
        let block = block.split("```").next().expect("the block ends");
        let (command, lines) = block.split_once('\n').expect("a command");
        // Options such as `.thumb` hold for all later lines.
        let mut before = Vec::new();
        for (number, line) in lines.lines().map(Line::parse).enumerate() {
            let mut parts: Vec<&str> = line.text.split("; ").collect();
            let options = parts.iter().take_while(|part| {
                part.starts_with('.') && !part.starts_with(".inst") && !part.starts_with(".skip")
            });
            let options = options.count();
            before.extend(parts.drain(..options));
            let all = [&before[..], &parts[..]].concat();
            let tool = command.split(' ').next().expect("a command");
            let Some(code) = assemble(command, &format!("{tool}-{number}"), &all) else {
                break;
            };
            assert!(
                code.starts_with(&line.bytes),
                "{command}: {}: {:x?}, not {:x?}",
                line.text,
                &code[..code.len().min(line.bytes.len())],
                line.bytes
            );
        }
    }
}
