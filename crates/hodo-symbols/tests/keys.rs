//! Static keys of programs as compilers and linkers make them, and in damaged files.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use hodo_symbols::{Branch, Key, KeyPlace, Keys, KeysError, functions, keys};
use object::read::elf::ElfFile64;
use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol};

fn compile(name: &str, flags: &[&str]) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("keys");
    std::fs::create_dir_all(&directory).expect("a directory for programs");
    let file = directory.join(name);
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hodo-tests/programs");
    let output = Command::new("gcc")
        .stdin(Stdio::null())
        .args(["-O2", "-pthread"])
        .arg(programs.join("static_keys.c"))
        .args(flags)
        .arg("-o")
        .arg(&file)
        .output()
        .expect("gcc is needed");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{flags:?}: {text}");
    file
}

fn compiled(name: &str, flags: &[&str]) -> Vec<u8> {
    std::fs::read(compile(name, flags)).expect("a program")
}

/// Returns the branches of a function.
fn of<'k>(bytes: &[u8], keys: &'k Keys, name: &str) -> Vec<&'k Branch> {
    let functions = functions(bytes).expect("functions");
    let function = functions.iter().find(|f| f.name == name).expect(name);
    let range = function.addr..function.addr + function.size;
    let branches = keys.branches.iter();
    branches.filter(|b| range.contains(&b.code)).collect()
}

fn key_of<'k>(keys: &'k Keys, branch: &Branch) -> &'k Key {
    let KeyPlace::Here { addr, .. } = branch.key else {
        panic!("{branch:?}");
    };
    let key = keys.keys.iter().find(|key| key.addr == addr);
    key.expect("each key that is here is listed")
}

fn told(key: &Key) -> (&str, Option<u64>, bool, bool) {
    (&key.name, key.index, key.initial, key.tracepoint)
}

/// Checks what is the same in all programs that have their own keys.
fn check(bytes: &[u8], keys: &Keys) {
    let told: Vec<_> = keys.keys.iter().map(told).collect();
    for expected in [
        ("program::VERBOSE", None, false, false),
        ("program::FAST", None, true, false),
        ("program::LEVELS", Some(0), false, false),
        ("program::LEVELS", Some(2), false, true),
        ("program::LEVELS", Some(3), false, false),
    ] {
        assert!(told.contains(&expected), "{expected:?}: {told:?}");
    }
    assert_eq!(told.len(), 5);
    assert_eq!(keys.branches.len(), 9);
    let first = of(bytes, keys, "first")[0];
    assert_eq!((first.likely, first.size, first.jumps), (false, 2, false));
    assert_eq!(key_of(keys, first).name, "program::VERBOSE");
    let second = of(bytes, keys, "second")[0];
    assert_eq!((second.likely, second.size, second.jumps), (true, 2, false));
    assert_eq!(key_of(keys, second).name, "program::FAST");
    let distant = of(bytes, keys, "distant")[0];
    assert_eq!((distant.size, distant.jumps), (5, false));
    assert_eq!(key_of(keys, distant).index, Some(2));
    let jumps = of(bytes, keys, "jumps");
    let asked: Vec<_> = jumps.iter().map(|b| (b.likely, b.jumps)).collect();
    assert_eq!(asked, [(true, true), (false, true)]);
    for branch in &keys.branches {
        // The instruction in the file matches the initial state.
        let file = ElfFile64::<object::Endianness>::parse(bytes).expect("an ELF file");
        let size = u64::from(branch.size);
        let section = file
            .sections()
            .find_map(|section| section.data_range(branch.code, size).ok()?);
        let jumps = branch.bytes(!branch.likely);
        let stays = branch.bytes(branch.likely);
        let is = section.expect("its bytes");
        assert_eq!(is, if branch.jumps { jumps } else { stays }, "{branch:?}");
    }
}

#[test]
fn programs_of_each_kind_list_their_branches_and_keys() {
    for (name, flags) in [
        ("pie", &["-fPIE", "-pie"][..]),
        ("fixed", &["-fno-pie", "-no-pie"]),
        ("static", &["-static"]),
        ("static-pie", &["-static-pie"]),
        ("packed", &["-Wl,-z,pack-relative-relocs"]),
    ] {
        let bytes = compiled(name, flags);
        let keys = keys(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        check(&bytes, &keys);
        let symbols = keys.branches.iter().filter(|branch| {
            let KeyPlace::Here { symbol, .. } = &branch.key else {
                panic!("{name}: {branch:?}");
            };
            symbol.is_some()
        });
        assert_eq!(symbols.count(), 0, "{name}");
    }
}

#[test]
fn keys_of_a_library_can_be_preempted() {
    let bytes = compiled("libkeys.so", &["-shared", "-fPIC", "-DLIBRARY"]);
    let keys = keys(&bytes).expect("its keys");
    check(&bytes, &keys);
    let first = of(&bytes, &keys, "first")[0];
    let KeyPlace::Here { symbol, offset, .. } = &first.key else {
        panic!("{first:?}");
    };
    assert_eq!((symbol.as_deref(), *offset), (Some("verbose"), 0));
    let hidden = compiled(
        "libhidden.so",
        &["-shared", "-fPIC", "-DLIBRARY", "-fvisibility=hidden"],
    );
    // Hidden functions have no dynamic symbols, but the symbol table has their names.
    check(&hidden, &hodo_symbols::keys(&hidden).expect("its keys"));
}

#[test]
fn keys_of_another_file_are_identified_by_their_symbol() {
    let library = compile("libother.so", &["-shared", "-fPIC", "-DLIBRARY"]);
    let library = library.to_str().expect("a path");
    let copies = keys(&compiled("copies", &["-DUSER", library])).expect("its branches");
    // The dynamic linker copies them into this file's memory.
    assert_eq!((copies.keys.len(), &*copies.keys[0].name), (5, ""));
    let bytes = compiled("user", &["-fPIC", "-DUSER", library]);
    let keys = keys(&bytes).expect("its branches");
    assert!(keys.keys.is_empty(), "{keys:?}");
    assert_eq!(keys.branches.len(), 9);
    let distant = of(&bytes, &keys, "distant")[0];
    let elsewhere = KeyPlace::Elsewhere {
        symbol: "levels".to_owned(),
        offset: 64,
    };
    assert_eq!(distant.key, elsewhere);
    assert_eq!((distant.size, distant.jumps), (5, false));
}

/// Returns the offset of an address in the file.
fn offset(bytes: &[u8], addr: u64) -> usize {
    let file = ElfFile64::<object::Endianness>::parse(bytes).expect("an ELF file");
    let mut segments = file.segments();
    let segment = segments
        .find(|segment| addr.wrapping_sub(segment.address()) < segment.size())
        .expect("a segment");
    (segment.file_range().0 + (addr - segment.address())) as usize
}

fn section(bytes: &[u8]) -> u64 {
    let file = ElfFile64::<object::Endianness>::parse(bytes).expect("an ELF file");
    let section = file.section_by_name("hodo_keys").expect("the section");
    section.address()
}

#[test]
fn a_damaged_table_is_reported_and_nothing_panics() {
    let good = compiled("damaged", &[]);
    let whole = keys(&good).expect("its keys");
    let at = section(&good);
    let table = offset(&good, at);
    let damaged = |place: usize, with: &[u8]| {
        let mut bytes = good.clone();
        bytes[place..place + with.len()].copy_from_slice(with);
        keys(&bytes).expect_err("it is damaged")
    };
    let far = 0x4000_0000u32.to_le_bytes();
    assert_eq!(
        damaged(table, &far).to_string(),
        format!(
            "entry 0 refers to {:#x}, which is not code",
            at + 0x4000_0000
        )
    );
    assert_eq!(
        damaged(table + 4, &far).to_string(),
        format!(
            "entry 0 refers to {:#x}, which is not code",
            at + 4 + 0x4000_0000
        )
    );
    assert_eq!(
        damaged(table + 8, &far).to_string(),
        format!(
            "entry 0 takes the address of its key from {:#x}, where there is none",
            at + 8 + 0x4000_0000
        )
    );
    assert!(matches!(
        damaged(table + 12, &0x7FFF_FFF0u32.to_le_bytes()),
        KeysError::NoKey(0, _)
    ));
    let jump = whole.branches.iter().find(|b| b.jumps).expect("a jump");
    let code = offset(&good, jump.code);
    let error = damaged(code + 1, &[0x7E]).to_string();
    let (code_at, end, target) = (jump.code, jump.end() + 0x7E, jump.target);
    let begin = format!("the jump at {code_at:#x} leads to {end:#x}, but entry ");
    assert!(error.starts_with(&begin), "{error}");
    assert!(error.ends_with(&format!(" says {target:#x}")), "{error}");
    let error = damaged(code, &[0xCC]).to_string();
    assert!(
        error.ends_with("there is neither a nop nor a jump"),
        "{error}"
    );
    // Adds a second entry for other bytes of the same instruction.
    let twice: Vec<u8> = {
        let first = &good[table..table + 16];
        let mut entry = first.to_vec();
        for field in [0, 4, 8] {
            let distance = i32::from_le_bytes(first[field..field + 4].try_into().expect("four"));
            entry[field..field + 4].copy_from_slice(&(distance - 16).to_le_bytes());
        }
        entry[12] ^= 1;
        entry
    };
    assert!(matches!(
        damaged(table + 16, &twice),
        KeysError::Overlap(..)
    ));
    let name = whole.keys[0].addr + 16;
    let error = damaged(offset(&good, name), &[0xFF; 8]).to_string();
    assert!(error.ends_with("is not in the file"), "{error}");
}

#[test]
fn any_damage_is_an_error_or_harmless() {
    let good = compiled("noise", &[]);
    let table = offset(&good, section(&good));
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut errors = 0;
    for _ in 0..2000 {
        let mut bytes = good.clone();
        for _ in 0..1 + random() % 4 {
            let place = match random() % 3 {
                0 => table + (random() % 160) as usize,
                1 => (random() % 1024) as usize,
                _ => (random() % good.len() as u64) as usize,
            };
            bytes[place] = random() as u8;
        }
        bytes.truncate(good.len() - (random() % 3 * (random() % 4096)) as usize);
        errors += usize::from(keys(&bytes).is_err());
    }
    assert!(errors > 100, "{errors}");
}

#[test]
fn files_without_static_keys_have_none() {
    let shell = std::fs::read("/bin/sh").expect("a shell");
    assert_eq!(keys(&shell), Ok(Keys::default()));
    assert_eq!(keys(b"\x7fELF"), Ok(Keys::default()));
    let bytes = compiled("symbols", &[]);
    let file = ElfFile64::<object::Endianness>::parse(&*bytes).expect("an ELF file");
    let start = file.symbols().find(|s| s.name() == Ok("__start_hodo_keys"));
    assert_eq!(start.map(|s| s.address()), Some(section(&bytes)));
}

/// A library with one branch on its own key. Relocations contain the addresses of the key and its name.
const ONE_BRANCH: &str = r#"
    .text
    .globl asked
    .type asked, @function
asked:
2:  nop
    nop
    .size asked, . - asked
3:  nop
    .section hodo_keys, "a"
    .balign 4
    .long 2b - ., 3b - ., slot - ., 1
    .section .data.rel.ro, "aw"
    .balign 8
slot: .quad key
    .section .rodata
name: .ascii "program::ONE"
    .data
    .balign 8
key: .long 1, 1
    .quad name, 12, 0
"#;

#[test]
fn other_instruction_sets_have_keys_too() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("keys");
    std::fs::create_dir_all(&directory).unwrap();
    let jumps: [&[u8]; 3] = [&[0x11, 0xA0], &[0x6F, 0, 0x80, 0], &[2, 0, 0, 0x14]];
    let kinds = [
        ("riscv64", "-march=rv64gc"),
        ("riscv64", "-march=rv64g"),
        ("aarch64", "-march=armv8-a"),
    ];
    for ((machine, march), jump) in kinds.into_iter().zip(jumps) {
        let gcc = format!("{machine}-linux-gnu-gcc");
        let (source, file) = (directory.join("one.s"), directory.join("one.so"));
        std::fs::write(&source, ONE_BRANCH).unwrap();
        let flags = [march, "-nostdlib", "-shared", "-mabi=lp64d", "-o"];
        let flags = flags
            .iter()
            .filter(|flag| machine == "riscv64" || **flag != "-mabi=lp64d");
        let output = match Command::new(&gcc)
            .args(flags)
            .arg(&file)
            .arg(&source)
            .output()
        {
            Ok(output) => output,
            Err(error) => {
                eprintln!("not done for {machine}: {gcc}: {error}");
                continue;
            }
        };
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{gcc}: {text}");
        let keys = keys(&std::fs::read(&file).unwrap()).unwrap();
        let [branch] = &keys.branches[..] else {
            panic!("{machine}: {keys:?}");
        };
        assert_eq!(usize::from(branch.size), jump.len(), "{march}");
        assert_eq!((branch.likely, branch.jumps), (true, false));
        assert_eq!(branch.target - branch.code, 2 * u64::from(branch.size));
        assert_eq!(branch.bytes(false), jump, "{march}");
        assert_eq!(
            told(key_of(&keys, branch)),
            ("program::ONE", None, true, false)
        );
    }
}
