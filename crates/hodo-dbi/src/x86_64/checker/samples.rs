//! Random code of programs, and passes that insert random code.

use iced_x86::{Decoder, DecoderOptions};

use hodo_isa::x86_64::decode::{Kind, decode};

use crate::fragment::Item;
use crate::inserted::{Bytes, Code, Compare, Compute, Scratch, Step, TooMany, Value, Word};
use crate::passes::{Inserting, Pass, Replacing, Revising, Words};

/// Instructions of real programs, one of each form, as lines of hexadecimal digits.
const FORMS: &str = include_str!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../hodo-isa/tests/samples/x86_64_forms.txt"
));

/// Numbers that look random (Marsaglia, "Xorshift RNGs", 2003).
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(super) fn below(&mut self, end: usize) -> usize {
        ((self.next() >> 16) % end as u64) as usize
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    fn is_one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

/// Opcodes with an operand that a ModRM byte names; the field's number, if it is no register; bytes of an immediate.
const WITH_OPERAND: &[(&[u8], Option<u8>, u8)] = &[
    (&[0x01], None, 0),
    (&[0x03], None, 0),
    (&[0x09], None, 0),
    (&[0x11], None, 0),
    (&[0x13], None, 0),
    (&[0x19], None, 0),
    (&[0x21], None, 0),
    (&[0x2B], None, 0),
    (&[0x31], None, 0),
    (&[0x32], None, 0),
    (&[0x39], None, 0),
    (&[0x3A], None, 0),
    (&[0x63], None, 0),
    (&[0x69], None, 4),
    (&[0x80], Some(0), 1),
    (&[0x83], Some(2), 1),
    (&[0x83], Some(3), 1),
    (&[0x83], Some(5), 1),
    (&[0x83], Some(7), 1),
    (&[0x85], None, 0),
    (&[0x86], None, 0),
    (&[0x87], None, 0),
    (&[0x88], None, 0),
    (&[0x89], None, 0),
    (&[0x89], None, 0),
    (&[0x8A], None, 0),
    (&[0x8B], None, 0),
    (&[0x8B], None, 0),
    (&[0x8D], None, 0),
    (&[0x8D], None, 0),
    (&[0x8F], Some(0), 0),
    (&[0xC1], Some(0), 1),
    (&[0xC1], Some(4), 1),
    (&[0xC1], Some(5), 1),
    (&[0xC7], Some(0), 4),
    (&[0xD1], Some(2), 0),
    (&[0xD1], Some(7), 0),
    (&[0xD3], Some(4), 0),
    (&[0xD3], Some(5), 0),
    (&[0xF7], Some(2), 0),
    (&[0xF7], Some(3), 0),
    (&[0xF7], Some(4), 0),
    (&[0xF7], Some(6), 0),
    (&[0xFE], Some(0), 0),
    (&[0xFE], Some(1), 0),
    (&[0x0F, 0x10], None, 0),
    (&[0x0F, 0x29], None, 0),
    (&[0x0F, 0x40], None, 0),
    (&[0x0F, 0x42], None, 0),
    (&[0x0F, 0x4C], None, 0),
    (&[0x0F, 0x90], Some(0), 0),
    (&[0x0F, 0x94], Some(0), 0),
    (&[0x0F, 0x97], Some(0), 0),
    (&[0x0F, 0xA3], None, 0),
    (&[0x0F, 0xA4], None, 1),
    (&[0x0F, 0xA5], None, 0),
    (&[0x0F, 0xAF], None, 0),
    (&[0x0F, 0xB1], None, 0),
    (&[0x0F, 0xB6], None, 0),
    (&[0x0F, 0xBC], None, 0),
    (&[0x0F, 0xBE], None, 0),
    (&[0x0F, 0xC1], None, 0),
    (&[0x0F, 0x38, 0xF0], None, 0),
];

/// Instructions as they are.
const WHOLE: &[&[u8]] = &[
    &[0x90],
    &[0x99],
    &[0x48, 0x99],
    &[0x48, 0x98],
    &[0x9C],
    &[0x9D],
    &[0x9E],
    &[0x9F],
    &[0xF5],
    &[0xF8],
    &[0xF9],
    &[0xFC],
    &[0xA4],
    &[0x48, 0xA5],
    &[0xAA],
    &[0x48, 0xAD],
    &[0xAE],
    &[0xA6],
    &[0xF3, 0xA4],
    &[0xF3, 0x48, 0xAB],
    &[0xF3, 0xA6],
    &[0xF2, 0xAE],
    &[0xD7],
    &[0xC9],
    &[0x0F, 0xA2],
    &[0x0F, 0x31],
    &[0x6A, 0x11],
    &[0x68, 0x11, 0x22, 0x33, 0x44],
    &[0x48, 0xA1, 1, 2, 3, 4, 5, 6, 7, 8],
    // adcx rbx, rcx and adox rbx, rcx
    &[0x66, 0x48, 0x0F, 0x38, 0xF6, 0xD9],
    &[0xF3, 0x48, 0x0F, 0x38, 0xF6, 0xD9],
    // xor ebx, ebx
    &[0x31, 0xDB],
    // mov rbx, fs:[0x28] and mov fs:[0x100], rbx
    &[0x64, 0x48, 0x8B, 0x1C, 0x25, 0x28, 0, 0, 0],
    &[0x64, 0x48, 0x89, 0x1C, 0x25, 0, 1, 0, 0],
    // mov rdx, fs:[rcx + 8]
    &[0x64, 0x48, 0x8B, 0x51, 8],
    // mov ah, bh and add bl, ch
    &[0x88, 0xFC],
    &[0x00, 0xEB],
];

/// Gathers and scatters, masked loads and stores.
const LANES: &[&[u8]] = &[
    // vpgatherdd xmm0, [rbx + xmm1 * 4 + 8], xmm2
    &[0xC4, 0xE2, 0x69, 0x90, 0x44, 0x8B, 8],
    // vpgatherqq ymm0, [rax + ymm1 * 8], ymm2
    &[0xC4, 0xE2, 0xED, 0x91, 0x04, 0xC8],
    // vpscatterdd [rbx + xmm1 * 4 + 8]{k1}, xmm0
    &[0x62, 0xF2, 0x7D, 0x09, 0xA0, 0x44, 0x8B, 2],
    // vmaskmovps xmm0, xmm2, [rbx + rcx * 4 + 8] and the store
    &[0xC4, 0xE2, 0x69, 0x2C, 0x44, 0x8B, 8],
    &[0xC4, 0xE2, 0x69, 0x2E, 0x44, 0x8B, 8],
];

/// A random instruction of a program that continues with the next one.
pub(super) fn instruction(random: &mut Random) -> Vec<u8> {
    loop {
        let bytes = match random.below(10) {
            0..5 => with_operand(random),
            5 => in_opcode(random),
            6 | 7 => random.one_of(WHOLE).to_vec(),
            8 if random.is_one_in(4) => random.one_of(LANES).to_vec(),
            _ => form(random),
        };
        if continues(&bytes) {
            return bytes;
        }
    }
}

/// Whether bytes are an instruction that simply continues with the next one.
fn continues(bytes: &[u8]) -> bool {
    let mut padded = [0; 16];
    if bytes.len() > 15 {
        return false;
    }
    padded[..bytes.len()].copy_from_slice(bytes);
    let insn = Decoder::new(64, bytes, DecoderOptions::NONE).decode();
    let decoded = decode(&padded);
    let is_plain = decoded.is_some_and(|decoded| {
        decoded.kind == Kind::Plain && usize::from(decoded.len) == bytes.len()
    });
    is_plain && !insn.is_invalid() && insn.len() == bytes.len()
}

/// An instruction of a real program.
fn form(random: &mut Random) -> Vec<u8> {
    let at = random.below(FORMS.len());
    let line = FORMS[at..].lines().nth(1).unwrap_or("90");
    let digits = line.as_bytes().chunks(2);
    let bytes = digits.map(|pair| {
        let pair = std::str::from_utf8(pair).expect("text");
        u8::from_str_radix(pair, 16).expect("hexadecimal digits")
    });
    bytes.collect()
}

fn with_operand(random: &mut Random) -> Vec<u8> {
    let (opcode, digit, immediate) = random.one_of(WITH_OPERAND);
    let mut bytes = Vec::new();
    if random.is_one_in(12) && immediate != 4 {
        bytes.push(0x66);
    }
    let rex = 0x40 | random.below(16) as u8;
    if !random.is_one_in(4) {
        bytes.push(rex);
    }
    bytes.extend(opcode);
    let field = digit.unwrap_or(random.below(8) as u8) << 3;
    let low = random.below(8) as u8;
    match random.below(6) {
        0..3 => bytes.push(0xC0 | field | low),
        // A base and one byte.
        3 if low != 4 => bytes.extend([0x40 | field | low, random.next() as u8]),
        // A base, an index and four bytes.
        4 => {
            bytes.extend([0x84 | field, random.next() as u8]);
            bytes.extend(0x1234_u32.to_le_bytes());
        }
        // Relative to the next instruction.
        _ => {
            bytes.push(0x05 | field);
            bytes.extend(0x1000_u32.to_le_bytes());
        }
    }
    bytes.extend((0..immediate).map(|_| random.next() as u8));
    bytes
}

fn in_opcode(random: &mut Random) -> Vec<u8> {
    let register = random.below(8) as u8;
    let rex = 0x48 | u8::from(random.is_one_in(2));
    match random.below(6) {
        0 | 1 => vec![rex, 0x50 | register],
        2 | 3 => vec![rex, 0x58 | register],
        4 => vec![rex, 0x0F, 0xC8 | register],
        _ => {
            let mut bytes = vec![rex, 0xB8 | register];
            bytes.extend(random.next().to_le_bytes());
            bytes
        }
    }
}

/// Random code of a program, which ends in some way.
pub(super) fn program(random: &mut Random) -> Vec<u8> {
    const ENDS: &[&[u8]] = &[
        &[0xEB, 0xFE],
        &[0xC3],
        // call, and jump and call through rbx and memory
        &[0xE8, 0, 1, 0, 0],
        &[0xFF, 0xE3],
        &[0xFF, 0x53, 8],
        // jb
        &[0x72, 0x20],
        &[0x0F, 0x05],
        // inc rbx and push [rcx + 8], which have an opcode of calls
        &[0x48, 0xFF, 0xC3, 0xEB, 0xFE],
        &[0xFF, 0x71, 8, 0xC3],
        &[0xE3, 0x20],
    ];
    let count = 1 + random.below(16);
    let mut code: Vec<u8> = (0..count).flat_map(|_| instruction(random)).collect();
    code.extend(random.one_of(ENDS));
    code.extend([0xEB, 0xFE]);
    code
}

/// Inserts random code, with registers that stay reserved over random numbers of instructions.
pub(super) struct Inserts {
    random: Random,
    /// In front of how many of a hundred instructions something is inserted.
    often: usize,
    /// How often registers are reserved, but not released.
    keeps: usize,
    live: Vec<Scratch>,
    words: Vec<Word>,
}

impl Inserts {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        Self {
            often: random.one_of(&[10, 40, 80, 100]),
            keeps: random.one_of(&[0, 0, 10]),
            random,
            live: Vec::new(),
            words: Vec::new(),
        }
    }

    /// Some steps. Operands are those of the next instruction that have an address.
    fn steps(&mut self, code: &mut Code<'_>, operands: &[u8], depth: usize) -> Result<(), TooMany> {
        for _ in 0..self.random.below(5) {
            self.step(code, operands, depth)?;
        }
        Ok(())
    }

    fn reserve(&mut self, code: &mut Code<'_>) -> Result<(), TooMany> {
        let scratch = code.reserve()?;
        code.set(scratch, self.number());
        self.live.push(scratch);
        Ok(())
    }

    fn number(&mut self) -> u64 {
        let number = self.random.next();
        number >> self.random.below(64)
    }

    fn value(&mut self) -> Value {
        match self.random.is_one_in(2) {
            true => Value::Number(self.random.next() as i32),
            false => Value::Scratch(self.random.one_of(&self.live)),
        }
    }

    fn step(&mut self, code: &mut Code<'_>, operands: &[u8], depth: usize) -> Result<(), TooMany> {
        if self.live.is_empty() {
            return match self.random.is_one_in(4) {
                true => {
                    code.count(self.word(), self.random.next() as i32);
                    Ok(())
                }
                false => self.reserve(code),
            };
        }
        let live = self.random.below(self.live.len());
        let one = self.live[live];
        let other = self.random.one_of(&self.live);
        let word = self.word();
        let bytes = self
            .random
            .one_of(&[Bytes::One, Bytes::Two, Bytes::Four, Bytes::Eight]);
        let displacement = self.random.next() as i32 >> self.random.below(32);
        match self.random.below(20 + self.keeps) {
            0 | 1 => self.reserve(code)?,
            2 | 3 => {
                self.live.swap_remove(live);
                code.write(word, one);
                code.release(one);
            }
            4 if self.random.is_one_in(4) => code.show_program(),
            4 => code.set(one, self.number()),
            5 => code.copy(one, other),
            6 | 7 => code.register(one, self.random.below(16) as u8),
            8 if !operands.is_empty() => code.address(one, self.random.one_of(operands)),
            8 | 9 => code.load(one, bytes, other, displacement),
            10 => code.store(bytes, one, displacement, other),
            11 => code.read(one, word),
            12 => code.write(word, one),
            13 => code.count(word, displacement),
            14 | 15 => {
                let all = [
                    Compute::Add,
                    Compute::Subtract,
                    Compute::And,
                    Compute::Or,
                    Compute::Xor,
                ];
                code.compute(self.random.one_of(&all), one, self.value());
            }
            16 => code.shift_left(one, self.random.below(64) as u8),
            17 => code.shift_right(one, self.random.below(64) as u8),
            18 => code.record(self.random.next() as u32 >> 1, one)?,
            19 if depth < 3 => self.when(code, operands, depth, one)?,
            19 => {}
            _ => self.reserve(code)?,
        }
        Ok(())
    }

    fn word(&mut self) -> Word {
        self.random.one_of(&self.words)
    }

    /// Code that may be skipped. What is reserved there has no value after it.
    fn when(
        &mut self,
        code: &mut Code<'_>,
        operands: &[u8],
        depth: usize,
        left: Scratch,
    ) -> Result<(), TooMany> {
        let all = [
            Compare::Equal,
            Compare::Different,
            Compare::Below,
            Compare::NotBelow,
            Compare::Less,
            Compare::NotLess,
        ];
        let (compare, right) = (self.random.one_of(&all), self.value());
        let before = self.live.clone();
        let written = code.when(compare, left, right, |code| {
            self.steps(code, operands, depth + 1)
        });
        for scratch in self.live.iter().filter(|one| !before.contains(one)) {
            code.set(*scratch, 7);
        }
        written
    }

    /// Inserts code, after which only those are reserved that were before.
    fn for_itself(&mut self, code: &mut Code<'_>, operands: &[u8]) -> Result<(), TooMany> {
        let before = self.live.clone();
        let written = self.steps(code, operands, 0);
        for scratch in self.live.extract_if(.., |one| !before.contains(one)) {
            code.release(scratch);
        }
        written
    }
}

impl Pass for Inserts {
    fn begin(&mut self, words: &mut Words<'_>) {
        self.words = (0..3).map(|_| words.word()).collect();
    }

    fn insert(&mut self, at: &mut Inserting<'_>) {
        if at.is_first() {
            self.live.clear();
        }
        let instruction = at.instruction();
        let is_lane = instruction.lane().is_some();
        let operands = instruction.operands().iter().zip(0..);
        let operands =
            operands.filter_map(|(operand, number)| operand.has_address.then_some(number));
        let operands: Vec<u8> = operands.collect();
        if self.random.below(100) < self.often {
            let mut code = at.before();
            // If there are too many scratch registers, the rest is not inserted.
            let _ = match is_lane {
                true => self.for_itself(&mut code, &operands),
                false => self.steps(&mut code, &operands, 0),
            };
        }
        if self.random.below(100) < self.often / 2
            && let Some(mut code) = at.after()
        {
            let _ = match is_lane {
                true => self.for_itself(&mut code, &[]),
                false => self.steps(&mut code, &[], 0),
            };
        }
    }

    fn revise(&mut self, code: &mut Revising<'_>) {
        if self.random.is_one_in(2) {
            return;
        }
        for _ in 0..self.random.below(4) {
            let place = self.random.below(code.fragment().items().len());
            let is_needless = matches!(
                code.fragment().items()[place],
                Item::Inserted(
                    Step::Write(..)
                        | Step::Count(..)
                        | Step::Compute(..)
                        | Step::ShiftLeft(..)
                        | Step::Load(..)
                        | Step::Store(..)
                        | Step::Record(..)
                        | Step::Register(..)
                )
            );
            if is_needless {
                assert!(code.remove(place));
            }
        }
        for _ in 0..self.random.below(4) {
            self.live.clear();
            let place = self.random.below(code.fragment().items().len());
            let _ = code.insert(place, |code| self.steps(code, &[], 0));
        }
        self.live.clear();
    }
}

/// Replaces instructions by random others, and expands gathers, scatters and masked moves.
pub(super) struct Replaces(pub(super) Random);

impl Pass for Replaces {
    fn replace(&mut self, code: &mut Replacing<'_>) {
        for number in (0..code.instructions().len()).rev() {
            if code.expand_scatter_gather(number) || code.expand_masked_move(number) {
                continue;
            }
            if self.0.is_one_in(8) {
                let count = 1 + self.0.below(3);
                let others: Vec<Vec<u8>> = (0..count).map(|_| instruction(&mut self.0)).collect();
                let others: Vec<&[u8]> = others.iter().map(Vec::as_slice).collect();
                code.replace(number, &others);
            }
        }
    }
}

/// Random passes.
pub(super) fn passes(random: &mut Random) -> Vec<Box<dyn Pass>> {
    let count = 1 + random.below(4);
    let mut passes: Vec<Box<dyn Pass>> = Vec::new();
    for _ in 0..count {
        passes.push(Box::new(Inserts::new(random.next())));
    }
    if random.is_one_in(3) {
        passes.push(Box::new(Replaces(Random::new(random.next()))));
    }
    passes
}
