//! The accesses of a program are those that another tool sees.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::process::Command;

use hodo_tests::{has_tool, hodo, needs};
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{Endianness, Object};

const PROGRAM: &str = "/usr/bin/gzip";

/// An access: the instruction in the file, whether it stores, the kind of place and the address there, and bytes.
type Access = (u64, bool, (u8, i64), u64);

/// Where a program is that was moved: its code, and all of it, both without the distance.
struct Moved {
    distance: u64,
    code: Range<u64>,
    all: Range<u64>,
    /// The first address of each kind of place outside of the program.
    first: [Option<u64>; 3],
}

impl Moved {
    /// `first`: the address of the first instruction.
    fn new(first: u64) -> Self {
        let bytes = fs::read(PROGRAM).expect("the program");
        let file = ElfFile64::<Endianness>::parse(&*bytes).expect("an ELF file");
        let header = file.elf_header();
        let endian = header.endian().expect("it has one");
        let segments = header.program_headers(endian, &*bytes).expect("segments");
        let loaded = segments
            .iter()
            .filter(|one| one.p_type(endian) == object::elf::PT_LOAD);
        let range = |one: &object::elf::ProgramHeader64<Endianness>| {
            one.p_vaddr(endian)..one.p_vaddr(endian) + one.p_memsz(endian)
        };
        let ends = loaded.clone().map(|one| range(one).end);
        let all = 0..ends.max().expect("a segment");
        let mut code = loaded.filter(|one| one.p_flags(endian) & object::elf::PF_X != 0);
        let code = range(code.next().expect("code"));
        Self {
            distance: first - file.entry(),
            code,
            all,
            first: [None; 3],
        }
    }

    /// An access, if the program's own code makes it.
    fn access(&mut self, pc: u64, stores: bool, address: u64, size: u64) -> Option<Access> {
        let pc = pc.checked_sub(self.distance)?;
        if !self.code.contains(&pc) {
            return None;
        }
        let own = address.wrapping_sub(self.distance);
        if self.all.contains(&own) {
            return Some((pc, stores, (0, own.cast_signed()), size));
        }
        // The stack comes first. Arguments and the environment are above it, at another distance, because valgrind adds
        // variables. The heap is elsewhere.
        let stack = *self.first[0].get_or_insert(address);
        let kind = match address.wrapping_sub(stack).cast_signed() {
            -0x10_0000..0x100 => 0,
            0x100..0x10_0000 => 1,
            _ => 2,
        };
        let first = *self.first[kind].get_or_insert(address);
        let place = (kind as u8 + 1, address.wrapping_sub(first).cast_signed());
        Some((pc, stores, place, size))
    }
}

fn hex(text: &str) -> u64 {
    u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("a number")
}

/// The accesses that lackey sees.
fn of_lackey(text: &str) -> Vec<Access> {
    let mut pc = 0;
    let mut moved = None;
    let mut accesses = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with("==")) {
        let (kind, rest) = line.split_at(3);
        let (address, size) = rest.split_once(',').expect("a size");
        let (address, size) = (hex(address), size.parse().expect("a number"));
        if kind.trim() == "I" {
            pc = address;
            // Programs that may be anywhere are at the bottom; the dynamic linker is not.
            let is_entry = moved.is_none() && pc < 0x40_0000 && pc & 0xFFF == entry() & 0xFFF;
            if is_entry {
                moved = Some(Moved::new(pc));
            }
            continue;
        }
        let Some(moved) = &mut moved else {
            continue;
        };
        let kinds: &[bool] = match kind.trim() {
            "L" => &[false],
            "S" => &[true],
            // It loads and stores.
            _ => &[false, true],
        };
        for &stores in kinds {
            accesses.extend(moved.access(pc, stores, address, size));
        }
    }
    accesses
}

/// Where the program begins, if it is not moved.
fn entry() -> u64 {
    let bytes = fs::read(PROGRAM).expect("the program");
    let head: [u8; 8] = bytes[24..32].try_into().expect("eight bytes");
    u64::from_le_bytes(head)
}

/// The accesses that hodo sees.
fn of_hodo(text: &str) -> Vec<Access> {
    let rows = || {
        text.lines().skip(1).map(|line| {
            let fields: Vec<&str> = line.split(',').collect();
            let [_, _, pc, kind, address, size] = fields[..] else {
                panic!("six fields: {line}");
            };
            let size: u64 = size.parse().expect("a number");
            (hex(pc), kind == "store", hex(address), size)
        })
    };
    // The first instructions make no access. The dynamic linker is at 0x7F…
    let near = |pc: u64| (pc & 0xFFF).wrapping_sub(entry() & 0xFFF) < 32;
    let is_first = |pc: &u64| near(*pc) && (0x55..0x57).contains(&(pc >> 40));
    let pc = rows().map(|(pc, ..)| pc).find(is_first);
    let pc = pc.expect("the program begins");
    let mut moved = Moved::new((pc & !0xFFF) | entry() & 0xFFF);
    let accesses =
        rows().filter_map(|(pc, stores, address, size)| moved.access(pc, stores, address, size));
    accesses.collect()
}

#[test]
fn accesses_are_those_that_lackey_sees() {
    needs!(has_tool("valgrind"), "there is no valgrind");
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("lackey");
    fs::create_dir_all(&place).expect("a directory");
    let (input, lackey, own) = (
        place.join("in"),
        place.join("lackey"),
        place.join("own.csv"),
    );
    let text: String = (0..700)
        .map(|number| format!("line {} of {number}\n", number * 7 % 13))
        .collect();
    fs::write(&input, text).expect("the input");
    let command = || {
        [
            Path::new(PROGRAM).as_os_str(),
            "-nc".as_ref(),
            input.as_os_str(),
        ]
    };
    let log = format!("--log-file={}", lackey.display());
    let options = [
        "--tool=lackey",
        "--trace-mem=yes",
        "--basic-counts=no",
        &log,
    ];
    let there = Command::new("valgrind")
        .args(options)
        .args(command())
        .output()
        .expect("valgrind");
    let view = ["mem", "view", "--format", "csv", "-o"];
    let here = Command::new(hodo())
        .args(view)
        .arg(&own)
        .arg("--")
        .args(command())
        .output()
        .expect("hodo");
    assert!(there.status.success() && here.status.success(), "{here:?}");
    assert_eq!(there.stdout, here.stdout);
    let theirs = of_lackey(&fs::read_to_string(&lackey).expect("what lackey saw"));
    let ours = of_hodo(&fs::read_to_string(&own).expect("what hodo saw"));
    assert!(ours.len() > 100_000, "{}", ours.len());
    let differs = theirs
        .iter()
        .zip(&ours)
        .position(|(one, other)| one != other);
    if let Some(at) = differs {
        panic!(
            "access {at}: lackey sees {:x?}, hodo sees {:x?}",
            theirs[at], ours[at]
        );
    }
    assert_eq!(theirs.len(), ours.len());
}
