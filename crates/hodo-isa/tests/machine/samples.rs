//! Instructions of real programs, and states in which the memory that they access exists.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register,
};
use object::{Object, ObjectSection, SectionKind};

use super::{ARENA, ARENA_SIZE, HOME, HOME_SIZE, State};

/// A pseudo-random generator, so that failures can be repeated.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// If this variable is set, samples come from the machine's files, not from the tree.
pub const FROM_MACHINE: &str = "HODO_TEST_MACHINE_FILES";

/// Where samples are kept, as lines of hexadecimal digits.
const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../hodo-isa/tests/samples");

/// The maximum number of windows that the tree keeps.
const KEPT_WINDOWS: usize = 6000;

/// The number of windows that are taken from random places of each text section.
const WINDOWS: usize = 2000;

/// Returns the machine's files with all kinds of code: compiled, hand-written, for many processors.
fn files() -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = [
        "/lib/x86_64-linux-gnu/libc.so.6",
        "/lib/x86_64-linux-gnu/libm.so.6",
        "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
        "/usr/lib/x86_64-linux-gnu/libcrypto.so.3",
    ]
    .map(PathBuf::from)
    .into();
    for version in 9..20 {
        files.push(format!("/usr/lib/gcc/x86_64-linux-gnu/{version}/cc1").into());
    }
    files.retain(|file| file.exists());
    assert!(!files.is_empty(), "there is no code to test with");
    files
}

fn kept(name: &str) -> Vec<Vec<u8>> {
    let path = format!("{KEPT}/{name}.txt");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let byte = |digits: &str| u8::from_str_radix(digits, 16).expect("a byte");
    let bytes = |line: &str| {
        (0..line.len())
            .step_by(2)
            .map(|at| byte(&line[at..at + 2]))
            .collect()
    };
    text.lines().map(bytes).collect()
}

fn keep<'a>(name: &str, samples: impl IntoIterator<Item = &'a Vec<u8>>) {
    let line = |bytes: &Vec<u8>| {
        bytes
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    let lines: Vec<String> = samples
        .into_iter()
        .map(|bytes| line(bytes) + "\n")
        .collect();
    std::fs::create_dir_all(KEPT).expect("a folder");
    std::fs::write(format!("{KEPT}/{name}.txt"), lines.concat()).expect("a file of samples");
}

/// Rewrites the samples that the tree keeps, from the machine's files.
pub fn collect(samples_of_each: usize) {
    keep(
        "x86_64_forms",
        forms_of_machine(samples_of_each)
            .iter()
            .flat_map(|(_, samples)| samples),
    );
    // They come evenly from all files, without duplicates.
    let all: BTreeSet<Vec<u8>> = windows_of_machine().into_iter().collect();
    keep(
        "x86_64_windows",
        all.iter().step_by(all.len().div_ceil(KEPT_WINDOWS)),
    );
}

/// Returns consecutive instructions, as patches displace them, from anywhere in the code: at least five bytes each.
pub fn windows() -> Vec<Vec<u8>> {
    match std::env::var_os(FROM_MACHINE) {
        Some(_) => windows_of_machine(),
        None => kept("x86_64_windows"),
    }
}

fn windows_of_machine() -> Vec<Vec<u8>> {
    let mut random = Random(2);
    let mut windows = Vec::new();
    for path in files() {
        text_of(&path, |bytes, addr| {
            for _ in 0..WINDOWS {
                let mut decoder = Decoder::with_ip(64, bytes, addr, DecoderOptions::NONE);
                let start = random.below(bytes.len() as u64) as usize;
                let _ = decoder.set_position(start);
                while decoder.can_decode() && decoder.position() < start + 5 {
                    let _ = decoder.decode();
                }
                windows.push(bytes[start..decoder.position()].to_vec());
            }
        });
    }
    windows
}

fn text_of(path: &Path, mut each: impl FnMut(&[u8], u64)) {
    let bytes = std::fs::read(path).expect("a readable file");
    let file = object::File::parse(&*bytes).expect("an ELF file");
    for section in file.sections().filter(|s| s.kind() == SectionKind::Text) {
        each(
            section.data().expect("a section's content"),
            section.address(),
        );
    }
}

/// The properties by which two instructions count as the same form.
pub type Form = (Code, u8, u8, u64);

pub fn form(instruction: &Instruction, bytes: &[u8]) -> Form {
    let memory = match instruction.memory_base() {
        _ if (0..instruction.op_count()).all(|op| instruction.op_kind(op) != OpKind::Memory) => 0,
        Register::RIP => 1,
        Register::RSP => 2,
        Register::None => 3,
        _ => 4,
    };
    let index = u8::from(instruction.memory_index() != Register::None);
    let shape = memory << 4 | index << 3 | instruction.memory_displ_size().min(7) as u8;
    let prefixes = u8::from(instruction.has_lock_prefix())
        | u8::from(instruction.has_rep_prefix()) << 1
        | u8::from(instruction.has_repne_prefix()) << 2
        | u8::from(instruction.has_segment_prefix()) << 3;
    // The length reveals prefixes without an effect.
    let length = bytes.len() as u64;
    (instruction.code(), shape, prefixes, length)
}

/// Returns whether an instruction cannot run in a test, or has a result that depends on where or when it runs.
fn is_out_of_question(instruction: &Instruction) -> bool {
    let mnemonic = format!("{:?}", instruction.mnemonic());
    let system = [
        "Xsave", "Xrstor", "Fxsave", "Fxrstor", "Wr", "Rdfs", "Rdgs", "Rdtsc", "Rdrand", "Rdseed",
        "Rdpmc", "Rdpid", "Sys", "Popf", "Iret", "Fnstenv", "Fnsave", "Fldenv", "Frstor", "Umwait",
        "Int", "Retf", "Cpuid", "Swapgs", "Tpause", "Umonitor", "Ptwrite", "Enqcmd", "Xgetbv",
        "Lfs", "Lgs", "Lss", "Senduipi", "Stui", "Clui", "Testui", "Uiret",
    ];
    system.iter().any(|name| mnemonic.starts_with(name))
        || instruction.flow_control() == FlowControl::Interrupt
        // Segment registers, thread-local memory, and jumps to another kind of code.
        || instruction.segment_prefix() == Register::FS
        || instruction.segment_prefix() == Register::GS
        || (0..instruction.op_count()).any(|op| {
            let kind = instruction.op_kind(op);
            let segment = kind == OpKind::Register && instruction.op_register(op).is_segment_register();
            segment || matches!(kind, OpKind::FarBranch16 | OpKind::FarBranch32)
        })
        || matches!(
            instruction.code(),
            Code::Jmp_m1616 | Code::Jmp_m1632 | Code::Jmp_m1664 | Code::Call_m1616 | Code::Call_m1632 | Code::Call_m1664
        )
}

/// Changes all PC-relative operands and all branch targets to addresses near the place where the instructions run.
/// Returns `None` if that is not possible.
pub fn adapt(code: &mut [u8], home: u64, random: &mut Random) -> Option<Vec<Instruction>> {
    let len = code.len() as u64;
    let mut at = 0;
    let mut instructions = Vec::new();
    while at < code.len() {
        let mut decoder = Decoder::with_ip(64, &code[at..], home + at as u64, DecoderOptions::NONE);
        let instruction = decoder.decode();
        if instruction.is_invalid() || is_out_of_question(&instruction) {
            return None;
        }
        let offsets = decoder.get_constant_offsets(&instruction);
        let end = at + instruction.len();
        if instruction.is_ip_rel_memory_operand() {
            if instruction.memory_base() != Register::RIP {
                return None;
            }
            let to = ARENA + ARENA_SIZE / 4 * 3 + random.below(64) * 64;
            let distance = (to as i64 - (home + end as u64) as i64) as i32;
            code[at + offsets.displacement_offset()..][..4]
                .copy_from_slice(&distance.to_le_bytes());
        }
        if matches!(instruction.op0_kind(), OpKind::NearBranch64) {
            let next = home + end as u64;
            let target = instruction.near_branch64();
            let inside = target >= home && target < home + len;
            let long = matches!(
                instruction.code(),
                Code::Jmp_rel32_64 | Code::Call_rel32_64 | Code::Xbegin_rel32
            ) || instruction.is_jcc_near();
            if long {
                let to = HOME + HOME_SIZE / 4 + random.below(256);
                let distance = (to as i64 - next as i64) as i32;
                code[end - 4..end].copy_from_slice(&distance.to_le_bytes());
            } else if inside {
                // A loop might not end.
                return None;
            }
        }
        let mut decoder = Decoder::with_ip(64, &code[at..], home + at as u64, DecoderOptions::NONE);
        instructions.push(decoder.decode());
        at = end;
    }
    Some(instructions)
}

/// Returns a random state in which the memory that the instructions access exists.
pub fn state(instructions: &[Instruction], random: &mut Random) -> State {
    let mut state = State::new();
    let pointers = instructions.iter().any(|i| {
        matches!(
            i.flow_control(),
            FlowControl::IndirectBranch | FlowControl::IndirectCall | FlowControl::Return
        )
    });
    for word in &mut state.memory {
        *word = match pointers {
            true => HOME + HOME_SIZE / 2 + random.below(512),
            false => match random.below(4) {
                0 => random.below(256),
                1 => f64::to_bits(random.below(1 << 20) as f64 / 16.0),
                _ => random.next(),
            },
        };
    }
    for register in &mut state.registers {
        *register = match random.below(4) {
            0 => random.below(16),
            1 => ARENA + ARENA_SIZE / 2 + random.below(512) * 8,
            _ => random.next(),
        };
    }
    for word in &mut state.vectors {
        *word = match random.below(3) {
            0 => random.below(1 << 16),
            1 => u64::from(f32::to_bits(random.below(4096) as f32 / 8.0)) * 0x1_0000_0001,
            _ => random.next(),
        };
    }
    let flags = [0x001, 0x004, 0x010, 0x040, 0x080, 0x400, 0x800];
    state.flags = flags.iter().filter(|_| random.below(2) == 0).sum();
    let middle = ARENA + ARENA_SIZE / 2;
    state.set(Register::RSP, middle + random.below(64) * 8);
    let (mut bases, mut indexes) = (HashMap::new(), Vec::new());
    for instruction in instructions {
        let string = instruction.is_string_instruction();
        if string || instruction.mnemonic() == Mnemonic::Maskmovdqu {
            state.set(Register::RSI, middle + random.below(256) * 8);
            state.set(Register::RDI, middle + 4096 + random.below(256) * 8);
            state.set(Register::RCX, random.below(32));
        }
        if string && random.below(4) != 0 {
            state.flags &= !0x400;
        }
        if instruction.op0_kind() == OpKind::Register
            && matches!(
                instruction.flow_control(),
                FlowControl::IndirectBranch | FlowControl::IndirectCall
            )
        {
            let to = HOME + HOME_SIZE / 2 + random.below(512);
            state.set(instruction.op0_register(), to);
        }
        let base = instruction.memory_base().full_register();
        if base.is_gpr64() && base != Register::RSP {
            bases
                .entry(base)
                .or_insert(instruction.memory_displacement64());
        }
        indexes.push(instruction.memory_index());
    }
    for index in indexes {
        if index.is_gpr() {
            state.set(index.full_register(), random.below(64) * 8);
        } else if index.is_vector_register() {
            state.set_lanes(index.number(), || random.below(64) * 8 * 0x1_0000_0001);
        }
    }
    for (base, displacement) in bases {
        let place = middle + random.below(128) * 64;
        let value = place.wrapping_sub(displacement);
        state.set(base, value);
    }
    state
}

/// Returns samples of each form, in order.
pub fn forms(samples_of_each: usize) -> Vec<(Form, Vec<Vec<u8>>)> {
    let forms = match std::env::var_os(FROM_MACHINE) {
        Some(_) => forms_of_machine(samples_of_each),
        None => grouped(
            |each| kept("x86_64_forms").iter().for_each(|bytes| each(bytes)),
            samples_of_each,
        ),
    };
    assert!(forms.len() > 2000, "only {} forms", forms.len());
    forms
}

fn forms_of_machine(samples_of_each: usize) -> Vec<(Form, Vec<Vec<u8>>)> {
    grouped(
        |each| {
            files()
                .iter()
                .for_each(|path| text_of(path, |bytes, _| each(bytes)))
        },
        samples_of_each,
    )
}

/// Returns the first samples of each form in pieces of code.
fn grouped(
    pieces: impl FnOnce(&mut dyn FnMut(&[u8])),
    samples_of_each: usize,
) -> Vec<(Form, Vec<Vec<u8>>)> {
    let mut samples: HashMap<Form, Vec<Vec<u8>>> = HashMap::new();
    pieces(&mut |code| {
        let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        while decoder.can_decode() {
            let at = decoder.position();
            decoder.decode_out(&mut instruction);
            if instruction.is_invalid() {
                continue;
            }
            let bytes = &code[at..at + instruction.len()];
            let found = samples.entry(form(&instruction, bytes)).or_default();
            if found.len() < samples_of_each && !found.iter().any(|other| other == bytes) {
                found.push(bytes.to_vec());
            }
        }
    });
    let mut forms: Vec<_> = samples.into_iter().collect();
    forms.sort_by_key(|(form, _)| *form);
    forms
}
