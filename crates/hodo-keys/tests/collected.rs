//! What the linker drops: entries and notes are dropped together with the code they describe, and only then.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod building;

use building::elf::Elf;
use building::{Build, has_tool, run, skip};

#[test]
fn entries_go_with_their_function_and_only_with_that() {
    let mut linkers = vec![("lld", "")];
    match has_tool("ld.bfd") {
        true => linkers.push(("bfd", "-C linker-features=-lld -C link-arg=-fuse-ld=bfd")),
        false => skip("there is no ld.bfd"),
    }
    for level in ["0", "3"] {
        for (linker, options) in &linkers {
            let program = Build::new("collected.rs", &format!("collected-{level}-{linker}"))
                .with(&format!(
                    "-C opt-level={level} -C codegen-units=1 {options}"
                ))
                .build();
            run(&program, &[*linker]);
            // It keeps all code that has branches, because the start of the table is used.
            if *linker == "bfd" {
                continue;
            }
            let elf = Elf::read(&program);
            assert_eq!(elf.entries().len(), 8, "{linker}");
            for section in [".note.stapsdt", ".note.hodo.tracepoint"] {
                let names: Vec<String> = elf
                    .notes(section)
                    .into_iter()
                    .map(|note| note.name)
                    .collect();
                assert_eq!(names, ["kept", "kept"], "{linker}: {section}");
            }
        }
    }
}
