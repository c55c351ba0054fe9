//! Random programs of RV64IMAC, run by the model and by qemu: all registers and the memory must be the same.

#[path = "../../hodo-tests/src/skipped.rs"]
mod skipped;

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use hodo_isa::riscv64::asm::Code;
use hodo_isa::riscv64::asm::ops::Insns as _;
use hodo_isa::riscv64::decode::{Insn, Kind};
use hodo_isa::riscv64::encode::{AMO, AUIPC, JALR, LOAD, LUI, OP, OP_32, OP_IMM, OP_IMM_32, STORE};
use hodo_isa::riscv64::encode::{b, c_j, c_jr, i, j, r, s, u};
use hodo_isa::riscv64::text;
use hodo_rvmodel::encode::{EBREAK, ECALL};
use hodo_rvmodel::hart::{Cause, Hart, Step};
use hodo_rvmodel::memory::{Memory, Unmapped, mix};
use hodo_rvmodel::params::Proposals;

const EMULATOR: &str = "qemu-riscv64";
/// Where code is, and data.
const CODE: u64 = 0x10_0000;
const DATA: u64 = 0x40_0000;
/// Sequences in a program, and instructions in a sequence.
const SEQUENCES: u64 = 150;
const LENGTH: u64 = 80;
/// Memory of a sequence: its registers before and after, and an arena, in whose middle the bases point.
const ARENA: u64 = 0x2000;
const BEFORE: u64 = ARENA;
const AFTER: u64 = BEFORE + 256;
const SHARE: u64 = AFTER + 256;
/// Registers that hold addresses of the arena, and stay: sp, s0, a5. One of them is aligned to 8 always, all are.
const BASES: [u8; 3] = [2, 8, 15];
/// Written with the address of the registers after the sequence: gp.
const FRAME: u8 = 3;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// A register that may be written.
    fn target(&mut self) -> u8 {
        loop {
            let register = self.below(32) as u8;
            if !BASES.contains(&register) && register != FRAME {
                return register;
            }
        }
    }

    fn source(&mut self) -> u8 {
        self.below(32) as u8
    }

    fn base(&mut self) -> u8 {
        BASES[self.below(3) as usize]
    }

    fn imm(&mut self) -> i64 {
        self.below(4096) as i64 - 2048
    }

    /// Numbers at the edges are more frequent than by chance.
    fn value(&mut self) -> u64 {
        let edges = [
            0,
            1,
            u64::MAX,
            1 << 63,
            (1 << 63) - 1,
            0x8000_0000,
            0x7FFF_FFFF,
            0xFFFF_FFFF,
        ];
        match self.below(3) {
            0 => edges[self.below(8) as usize],
            1 => self.next() >> self.below(64),
            _ => self.next(),
        }
    }
}

/// Appends instructions that only compute, load, store; each at most 4 bytes.
fn simple(code: &mut Code<'_>, random: &mut Random) {
    let (rd, a, b) = (random.target(), random.source(), random.source());
    match random.below(11) {
        0 => {
            let f3 = random.below(8) as u32;
            let (f7, op) = match (f3, random.below(3)) {
                (0 | 5, 0) => (0x20, [OP, OP_32]),
                (_, 1) => (1, [OP, OP_32]),
                _ => (0, [OP, OP_32]),
            };
            code.word(r(op[0], f3, f7, rd, a, b));
        }
        1 => {
            let (f3, f7) = [
                (0, 0),
                (0, 0x20),
                (1, 0),
                (5, 0),
                (5, 0x20),
                (0, 1),
                (4, 1),
                (5, 1),
                (6, 1),
                (7, 1),
            ][random.below(10) as usize];
            code.word(r(OP_32, f3, f7, rd, a, b));
        }
        2 => {
            let f3 = [0, 2, 3, 4, 6, 7][random.below(6) as usize];
            code.word(i(OP_IMM, f3, rd, a, random.imm()));
        }
        3 => {
            let (f3, high) = [(1, 0), (5, 0), (5, 0x400)][random.below(3) as usize];
            let value = random.below(64) as i64 | high;
            code.word(i(OP_IMM, f3, rd, a, value));
        }
        4 => {
            let (f3, high) = [(1, 0), (5, 0), (5, 0x400), (0, 0)][random.below(4) as usize];
            let value = if f3 == 0 {
                random.imm()
            } else {
                random.below(32) as i64 | high
            };
            code.word(i(OP_IMM_32, f3, rd, a, value));
        }
        5 => code.word(u(LUI, rd, (random.next() as i32).into())),
        6 => code.word(u(AUIPC, rd, (random.next() as i32).into())),
        7 => code.word(i(
            LOAD,
            random.below(7) as u32,
            rd,
            random.base(),
            random.imm(),
        )),
        8 => {
            let from = random.source();
            let to = (random.base(), random.imm());
            code.word(s(STORE, random.below(4) as u32, from, to.0, to.1));
        }
        9 => {
            let f5 = [0, 1, 4, 8, 0xC, 0x10, 0x14, 0x18, 0x1C][random.below(9) as usize];
            let f7 = f5 << 2 | random.below(4) as u32;
            code.word(r(AMO, 2 + random.below(2) as u32, f7, rd, random.base(), b));
        }
        _ => compressed(code, random),
    }
}

/// Appends a random 16-bit instruction that neither jumps nor destroys a base.
fn compressed(code: &mut Code<'_>, random: &mut Random) {
    loop {
        let half = random.next() as u16;
        let insn = Insn::new(&half.to_le_bytes(), 0);
        let accesses = insn.memory().is_some();
        let allowed = match insn.kind {
            Kind::Plain => true,
            Kind::Load(_) | Kind::Store(_) => BASES.contains(&insn.rs1()),
            _ => false,
        };
        let writes = insn.writes().x;
        let destroys = BASES
            .iter()
            .chain(&[FRAME])
            .any(|base| writes >> base & 1 == 1);
        let floats = matches!(insn.word & 0x7F, 0x07 | 0x27);
        if insn.len == 2 && allowed && !destroys && !(floats && accesses) {
            return code.half(half);
        }
    }
}

/// Appends what reserves memory, and perhaps stores there.
fn reserve(code: &mut Code<'_>, random: &mut Random) {
    let base = random.base();
    let f3 = 2 + random.below(2) as u32;
    code.word(r(AMO, f3, 0x02 << 2, random.target(), base, 0));
    code.word(i(OP_IMM, 0, random.target(), random.source(), random.imm()));
    // To another place it fails, and the second time.
    let to = if random.below(4) == 0 {
        random.base()
    } else {
        base
    };
    for _ in 0..1 + random.below(2) {
        let (rd, from) = (random.target(), random.source());
        code.word(r(AMO, f3, 0x03 << 2, rd, to, from));
    }
}

/// Appends something that goes on a little farther down, over an instruction or not.
fn forward(code: &mut Code<'_>, random: &mut Random) {
    let (a, other) = (random.source(), random.source());
    let over = 4;
    match random.below(7) {
        0 => code.half(c_j(2 + over)),
        5 => {
            // c.addi16sp, down and up again
            code.half(0x713D);
            code.half(0x6105);
        }
        6 => {
            let rd = random.target();
            if rd == 0 {
                return;
            }
            code.word(u(AUIPC, rd, 0));
            code.addi(rd, rd, 10 + over);
            // c.jr, c.jalr
            code.half(c_jr(rd) | (random.below(2) as u16) << 12);
        }
        1 => code.word(j(random.target(), 4 + over)),
        2 => {
            let rd = random.target();
            if rd == 0 {
                return;
            }
            // The lowest bit is ignored.
            let odd = random.below(2) as i64;
            code.word(u(AUIPC, rd, 0));
            code.word(i(JALR, 0, random.target(), rd, 8 + over + odd));
        }
        3 => {
            // c.beqz and c.bnez over the next
            let half = 0xC001 | (random.below(2) as u16) << 13 | (random.below(8) as u16) << 7;
            code.half(half | 3 << 3);
        }
        _ => {
            let f3 = [0, 1, 4, 5, 6, 7][random.below(6) as usize];
            code.word(b(f3, a, other, 4 + over));
        }
    }
    let rd = random.target();
    code.word(i(OP_IMM, 0, rd, a, random.imm()));
}

/// The code of all sequences.
fn program(random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut code = Code::new(&mut bytes, CODE);
    for sequence in 0..SEQUENCES {
        let at = DATA + sequence * SHARE;
        code.li(FRAME, (at + BEFORE) as i32);
        for register in (1..32).filter(|&register| register != FRAME) {
            code.ld(register, 8 * i64::from(register), FRAME);
        }
        code.li(FRAME, (at + AFTER) as i32);
        for _ in 0..LENGTH {
            match random.below(12) {
                0 => forward(&mut code, random),
                1 => reserve(&mut code, random),
                _ => simple(&mut code, random),
            }
        }
        for register in 1..32 {
            code.sd(register, 8 * i64::from(register), FRAME);
        }
    }
    // write(1, DATA, …); exit(0)
    code.li(10, 1);
    code.li(11, DATA as i32);
    code.li(12, (SEQUENCES * SHARE) as i32);
    code.li(17, 64);
    code.word(ECALL);
    code.li(10, 0);
    code.li(17, 93);
    code.word(ECALL);
    code.word(EBREAK);
    bytes
}

/// Registers and memory of all sequences.
fn data(random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    for sequence in 0..SEQUENCES {
        let at = DATA + sequence * SHARE;
        for _ in 0..ARENA / 8 {
            bytes.extend(random.value().to_le_bytes());
        }
        for register in 0..32u8 {
            let value = match BASES.contains(&register) {
                true => at + ARENA / 2 - 64 + 8 * random.below(16),
                false => random.value(),
            };
            bytes.extend(value.to_le_bytes());
        }
        bytes.extend([0; 256]);
    }
    bytes
}

/// A program for Linux: two segments.
fn elf(code: &[u8], data: &[u8]) -> Vec<u8> {
    let mut file = vec![0x7F, b'E', b'L', b'F', 2, 1, 1, 0];
    file.resize(16, 0);
    for half in [2u16, 243] {
        file.extend(half.to_le_bytes());
    }
    file.extend(1u32.to_le_bytes());
    for word in [CODE, 64, 0] {
        file.extend(word.to_le_bytes());
    }
    // Compressed instructions are used.
    file.extend(1u32.to_le_bytes());
    for half in [64u16, 56, 2, 0, 0, 0] {
        file.extend(half.to_le_bytes());
    }
    let first = 0x1000u64;
    let second = (first + code.len() as u64).next_multiple_of(0x1000);
    for (flags, offset, at, len) in [
        (5u32, first, CODE, code.len()),
        (6, second, DATA, data.len()),
    ] {
        file.extend(1u32.to_le_bytes());
        file.extend(flags.to_le_bytes());
        for word in [offset, at, at, len as u64, len as u64, 0x1000] {
            file.extend(word.to_le_bytes());
        }
    }
    file.resize(first as usize, 0);
    file.extend(code);
    file.resize(second as usize, 0);
    file.extend(data);
    file
}

/// The instructions of RV64IMAC that random programs must have executed.
const NAMES: &str = "add addi addiw addw and andi auipc beq bge bgeu blt bltu bne div divu divuw divw jal jalr lb lbu ld \
    lh lhu lui lw lwu mul mulh mulhsu mulhu mulw or ori rem remu remuw remw sb sd sh sll slli slliw sllw slt slti sltiu \
    sltu sra srai sraiw sraw srl srli srliw srlw sub subw sw xor xori lr.d lr.w sc.d sc.w c.add c.addi c.addi16sp \
    c.addi4spn c.addiw c.addw c.and c.andi c.beqz c.bnez c.j c.jalr c.jr c.ld c.ldsp c.li c.lui c.lw c.lwsp c.mv c.nop c.or c.sd \
    c.sdsp c.slli c.srai c.srli c.sub c.subw c.sw c.swsp c.xor";
const ATOMIC: [&str; 9] = [
    "add", "and", "max", "maxu", "min", "minu", "or", "swap", "xor",
];

/// What the model writes, and the names of what it executes.
fn modelled(code: &[u8], data: &[u8], names: &mut BTreeSet<String>) -> Vec<u8> {
    let mut memory = Memory::new(Unmapped::Faults);
    memory.put(CODE, code);
    memory.put(DATA, data);
    let mut hart = Hart::new(memory, Proposals::default());
    hart.pc = CODE;
    loop {
        let mut bytes = [0; 4];
        hart.memory.read(hart.pc, &mut bytes).expect("code");
        let text = text(&bytes, hart.pc);
        let name = text.split(' ').next().unwrap_or_default();
        names.insert(
            name.trim_end_matches(".aqrl")
                .trim_end_matches(".aq")
                .trim_end_matches(".rl")
                .to_owned(),
        );
        match hart.step() {
            Step::Executed => {}
            Step::Trapped(trap) if trap.cause == Cause::Call => break,
            Step::Trapped(trap) => panic!("{trap:?} at {:#x}", hart.pc),
        }
    }
    assert_eq!((hart.x[17], hart.x[11]), (64, DATA));
    let mut written = vec![0; hart.x[12] as usize];
    hart.memory.read(DATA, &mut written).expect("it is mapped");
    written
}

#[test]
fn random_programs_do_what_they_do_in_the_emulator() {
    if Command::new(EMULATOR).arg("--version").output().is_err() {
        skipped::skip("qemu-riscv64 is not installed");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let mut names = BTreeSet::new();
    for seed in 0..8 {
        let mut random = Random(seed << 32);
        let (code, data) = (program(&mut random), data(&mut random));
        let path = directory.path().join(format!("program{seed}"));
        std::fs::write(&path, elf(&code, &data)).expect("a file");
        let output = output(&path);
        let model = modelled(&code, &data, &mut names);
        assert_eq!(output.len(), data.len(), "seed {seed}");
        assert_ne!(model, data);
        for (at, (theirs, ours)) in output.chunks(8).zip(model.chunks(8)).enumerate() {
            let at = at as u64 * 8;
            assert_eq!(
                theirs,
                ours,
                "seed {seed}, sequence {}, offset {:#x} (registers are at {AFTER:#x})",
                at / SHARE,
                at % SHARE
            );
        }
    }
    let atomic = ATOMIC
        .iter()
        .flat_map(|name| ["w", "d"].map(|size| format!("amo{name}.{size}")));
    let wanted = NAMES.split_whitespace().map(str::to_owned).chain(atomic);
    let missing: Vec<String> = wanted.filter(|name| !names.contains(name)).collect();
    assert_eq!(missing, [""; 0], "executed: {names:?}");
}

fn output(path: &Path) -> Vec<u8> {
    let mode = Permissions::from_mode(0o755);
    std::fs::set_permissions(path, mode).expect("it is ours");
    let output = Command::new(EMULATOR).arg(path).output();
    let output = output.expect("the emulator");
    assert!(output.status.success(), "{output:?}");
    output.stdout
}
