//! Random instructions with the registers and the pages that they find, and the file in which `random_lanes.c` reads
//! them.

use std::io::Write;

use hodo_tests::interpreter::{Registers, VECTOR};

use super::forms::{Displacement, Form, Operands};

pub const PAGE: usize = 4096;
pub const PAGES: usize = 4;
/// Fixed addresses, which the program knows, too.
pub const AREA: u64 = 0x3000_0000;
const CODE: u64 = 0x1000_0000;
/// Where a register and the flags are taken from and left.
const REGISTER: u64 = 0x2000_0008;
const FLAGS: u64 = 0x2000_0010;
const BACK: u32 = 0x2000_0000;
const STACK: u64 = 0x2000_8000;
/// Bytes for the code of one instruction.
const SLOT: usize = 64;
const RSP: u8 = 4;
const RBP: u8 = 5;

/// Random numbers that are the same in each run.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 11) % end
    }

    fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            *byte = (self.next() >> 32) as u8;
        }
    }
}

/// What a page is when an instruction begins. The numbers are those of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Page {
    Free = 0,
    Closed = 1,
    ReadOnly = 2,
    Unmapped = 3,
    CutOff = 4,
}

#[derive(Debug, Clone)]
pub struct Case {
    pub form: Form,
    pub bytes: Vec<u8>,
    /// Of the instruction.
    pub pc: u64,
    /// Where the program enters.
    code: u64,
    /// `ah` and `al` by which the flags are set.
    flags: [u8; 2],
    pub is_narrow: bool,
    /// Addresses are in the segment of the stack, as those with these bases are.
    pub is_on_stack: bool,
    pub registers: Registers,
    pub pages: [Page; PAGES],
    /// The handler makes pages accessible and continues.
    pub repairs: bool,
}

impl Case {
    /// The flags that the instruction finds, as in the register of flags.
    pub fn flags(&self) -> u64 {
        let [low, overflow] = self.flags;
        u64::from(low & 0xD5) | u64::from(overflow == 0x7F) << 11
    }
}

/// Whether the processor is emulated, by `HODO_TEST_EMULATED`. An emulator shows faults of whole instructions in other
/// ways than processors do. So none is left that is not expanded.
fn is_emulated() -> bool {
    std::env::var_os("HODO_TEST_EMULATED").is_some()
}

/// Which lanes a case is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plan {
    /// All pages are accessible.
    Free,
    /// This lane is active, and in a page that is not accessible.
    FaultAt(usize),
    /// Any pages.
    Random,
}

#[derive(Debug)]
pub struct Cases {
    random: Random,
    pub all: Vec<Case>,
    code: Vec<u8>,
    pub memory: Vec<u8>,
    is_wide: bool,
}

/// Cases of these forms: of each, some instructions, and of each of these, a fault at each lane.
pub fn random(seed: u64, forms: &[Form], is_wide: bool) -> Cases {
    let mut random = Random::new(seed);
    let mut memory = vec![0; PAGE * PAGES];
    random.fill(&mut memory);
    let mut cases = Cases {
        random,
        all: Vec::new(),
        code: Vec::new(),
        memory,
        is_wide,
    };
    for form in forms {
        for _ in 0..3 {
            cases.instruction(form);
        }
    }
    cases
}

impl Cases {
    fn instruction(&mut self, form: &Form) {
        let operands = self.operands(form);
        let bytes = form.encode(&operands);
        let code = CODE + self.code.len() as u64;
        let flags = [
            self.random.next() as u8,
            [0x7F, 0x01][self.random.below(2) as usize],
        ];
        let pc = self.assemble(&bytes, flags);
        let plans = (0..form.lanes()).map(Plan::FaultAt).chain([
            Plan::Free,
            Plan::Random,
            Plan::Free,
            Plan::Random,
        ]);
        for plan in plans {
            let mut case = Case {
                form: *form,
                bytes: bytes.clone(),
                pc,
                code,
                flags,
                is_narrow: operands.is_narrow,
                is_on_stack: matches!(operands.base, Some(RSP | RBP)),
                registers: self.registers(),
                pages: self.pages(form, plan),
                repairs: self.random.below(3) > 0,
            };
            match form.index_size {
                Some(size) => self.indices(&mut case, (form, &operands), size, plan),
                None => self.start(&mut case, (form, &operands), plan),
            }
            self.all.push(case);
        }
    }

    fn operands(&mut self, form: &Form) -> Operands {
        let random = &mut self.random;
        let count = if form.is_evex { 32 } else { 16 };
        let masks = if form.is_evex { 8 } else { 16 };
        let is_gather = form.index_size.is_some();
        // Addresses of masked moves have a register in any case.
        let base = match random.one_in(4) {
            true => None,
            false => Some(random.below(16) as u8),
        };
        let mut operands = Operands {
            data: random.below(count) as u8,
            index: None,
            mask: random.below(masks) as u8,
            base,
            power: random.below(4) as u8,
            displacement: Displacement::None,
            is_narrow: random.one_in(12) && !is_emulated(),
            zeroes: form.is_evex && !is_gather && !form.stores && random.one_in(2),
        };
        operands.displacement = match (base, random.below(3)) {
            (None, _) | (_, 0) => Displacement::Four(random.next() as i32 >> 1),
            (_, 1) => Displacement::Byte(random.next() as i8),
            _ => Displacement::None,
        };
        if is_gather {
            operands.index = Some(random.below(count) as u8);
        } else if base.is_none() || random.one_in(2) {
            // `rsp` is no index, and each register has one value.
            operands.index = (0..)
                .map(|_| random.below(16) as u8)
                .find(|&index| index != RSP && Some(index) != base);
        }
        let vectors = [Some(operands.data), operands.index];
        let collides = match (form.is_evex, is_gather) {
            (true, true) => operands.mask == 0 || operands.index == Some(operands.data),
            (true, false) => operands.mask == 0,
            (false, true) => {
                vectors.contains(&Some(operands.mask)) || operands.index == Some(operands.data)
            }
            (false, false) => false,
        };
        // The processor refuses some of these: a few are enough. Without a mask, a move is another one.
        match collides && (!is_gather || !self.random.one_in(8)) {
            true => self.operands(form),
            false => operands,
        }
    }

    /// Adds the code that sets flags, executes an instruction and leaves the flags. Returns the instruction's address.
    fn assemble(&mut self, instruction: &[u8], [ah, al]: [u8; 2]) -> u64 {
        let code = &mut self.code;
        let end = code.len() + SLOT;
        // mov eax, …; inc al; sahf; mov rax, [REGISTER]
        code.extend([0xB8, al, ah, 0, 0, 0xFE, 0xC0, 0x9E, 0x48, 0xA1]);
        code.extend(REGISTER.to_le_bytes());
        let pc = CODE + code.len() as u64;
        code.extend(instruction);
        // mov [REGISTER], rax; lahf; seto al; mov [FLAGS], rax; jmp [BACK]
        code.extend([0x48, 0xA3]);
        code.extend(REGISTER.to_le_bytes());
        code.extend([0x9F, 0x0F, 0x90, 0xC0, 0x48, 0xA3]);
        code.extend(FLAGS.to_le_bytes());
        code.extend([0xFF, 0x24, 0x25]);
        code.extend(BACK.to_le_bytes());
        assert!(code.len() <= end, "{instruction:x?} is too long");
        code.resize(end, 0xCC);
        pc
    }

    /// As far as the processor has them.
    fn registers(&mut self) -> Registers {
        let mut registers = Registers {
            general: [0; 16],
            masks: [0; 8],
            vectors: [[0; VECTOR]; 32],
        };
        for register in &mut registers.general {
            *register = self.random.next();
        }
        registers.general[usize::from(RSP)] = STACK;
        let (count, len) = if self.is_wide {
            (32, VECTOR)
        } else {
            (16, VECTOR / 2)
        };
        for vector in &mut registers.vectors[..count] {
            self.random.fill(&mut vector[..len]);
        }
        if self.is_wide {
            for mask in &mut registers.masks {
                *mask = self.random.next();
            }
        }
        registers
    }

    fn pages(&mut self, form: &Form, plan: Plan) -> [Page; PAGES] {
        const BAD: [Page; 4] = [Page::Closed, Page::Unmapped, Page::CutOff, Page::ReadOnly];
        let mut pages = [Page::Free; PAGES];
        let bad = match plan {
            Plan::Free => 0,
            Plan::FaultAt(_) => 1 + self.random.below(2),
            Plan::Random => 1 + self.random.below(PAGES as u64),
        };
        for _ in 0..bad {
            // Loads do not fault in the last kind.
            let kinds = match plan {
                Plan::FaultAt(_) if !form.stores => 3,
                _ => 4,
            };
            let kind = BAD[self.random.below(kinds) as usize];
            pages[self.random.below(PAGES as u64) as usize] = kind;
        }
        pages
    }

    /// An address in a page of these, which is not at its start.
    fn within(&mut self, pages: &[Page; PAGES], is_wanted: impl Fn(Page) -> bool) -> Option<u64> {
        let wanted: Vec<usize> = (0..PAGES).filter(|&page| is_wanted(pages[page])).collect();
        let page = *wanted.get(self.random.below(wanted.len().max(1) as u64) as usize)?;
        let offset = 8 + self.random.below(PAGE as u64 - 16);
        Some(AREA + (PAGE * page) as u64 + offset)
    }

    /// Which lanes are active.
    fn active(&mut self, lanes: usize, plan: Plan) -> Vec<bool> {
        let density = self.random.below(5);
        let mut active: Vec<bool> = (0..lanes)
            .map(|_| match density {
                0 => false,
                1 => true,
                2 => self.random.one_in(4),
                _ => self.random.one_in(2),
            })
            .collect();
        match plan {
            Plan::FaultAt(lane) => active[lane] = true,
            _ if density == 0 => {
                let lane = self.random.below(lanes as u64 + 1) as usize;
                if let Some(active) = active.get_mut(lane) {
                    *active = true;
                }
            }
            _ => {}
        }
        active
    }

    /// Sets the bits by which lanes are active. What does not matter is random.
    fn set_mask(&mut self, case: &mut Case, mask: u8, active: &[bool]) {
        let number = usize::from(mask);
        let size = case.form.size;
        for (lane, &is_active) in active.iter().enumerate() {
            if case.form.is_evex {
                let bits = &mut case.registers.masks[number];
                *bits = *bits & !(1 << lane) | u64::from(is_active) << lane;
            } else {
                let byte = &mut case.registers.vectors[number][size * (lane + 1) - 1];
                *byte = *byte & 0x7F | u8::from(is_active) << 7;
            }
        }
    }

    /// Where lanes are to be accessed.
    fn targets(&mut self, case: &Case, plan: Plan) -> Vec<u64> {
        let lanes = case.form.lanes();
        let is_good = |page| page == Page::Free || page == Page::ReadOnly && !case.form.stores;
        let spot = self.within(&case.pages, is_good);
        let manner = self.random.below(4);
        (0..lanes)
            .map(|lane| {
                let near = self.random.below(24);
                match plan {
                    Plan::FaultAt(bad) if bad == lane => {
                        self.within(&case.pages, |page| !is_good(page))
                    }
                    // Any, also across the bounds of pages and before and after them.
                    Plan::Random if self.random.one_in(4) => {
                        let bound = self.random.below(PAGES as u64 + 1) * PAGE as u64;
                        return AREA + bound + self.random.below(8) - 7;
                    }
                    Plan::Random => self.within(&case.pages, |_| true),
                    // They overlap.
                    _ if manner == 0 => spot
                        .map(|spot| AREA + (spot - AREA).min(4 * 4096 - 40) / 32 * 32 + near)
                        .filter(|_| matches!(plan, Plan::Free)),
                    _ if manner == 1 => spot,
                    _ => None,
                }
                .or_else(|| self.within(&case.pages, is_good))
                .unwrap_or(AREA + 100)
            })
            .collect()
    }

    /// Sets the base and the indices of a gather or scatter.
    fn indices(
        &mut self,
        case: &mut Case,
        (form, operands): (&Form, &Operands),
        index_size: usize,
        plan: Plan,
    ) {
        let displacement = i64::from(form.displacement(operands));
        let is_any = index_size == 8 || operands.is_narrow;
        let base = match operands.base {
            None => 0,
            Some(number) => {
                let base = match self.random.below(3) {
                    0 if is_any => self.random.next(),
                    0 | 1 => {
                        let far = i64::from(self.random.next() as i32 >> 2);
                        AREA.wrapping_add_signed(far - displacement)
                    }
                    _ => AREA.wrapping_add_signed(0x1800 - displacement),
                };
                case.registers.general[usize::from(number)] = base;
                base
            }
        };
        let index = usize::from(operands.index.expect("it has one"));
        let targets = self.targets(case, plan);
        for (lane, mut target) in targets.into_iter().enumerate() {
            if plan == Plan::Random && is_any && !operands.is_narrow && self.random.one_in(40) {
                // No address that there can be.
                target = 0x4000_0000_0000_0000 | self.random.next() >> 2;
                case.repairs = false;
            }
            let from = target.wrapping_sub(base.wrapping_add_signed(displacement));
            let number = match operands.is_narrow {
                true => i64::from(from as i32) >> operands.power,
                false => from.cast_signed() >> operands.power,
            };
            let vector = &mut case.registers.vectors[index];
            if index_size == 4 {
                let number = number as i32;
                vector[4 * lane..][..4].copy_from_slice(&number.to_le_bytes());
            } else {
                // The highest bits are lost.
                let lost = match operands.power {
                    0 => 0,
                    power => self.random.next() << (64 - power),
                };
                let number = number.cast_unsigned() ^ lost;
                vector[8 * lane..][..8].copy_from_slice(&number.to_le_bytes());
            }
        }
        let active = self.active(form.lanes(), plan);
        self.set_mask(case, operands.mask, &active);
    }

    /// Where a masked load or store begins.
    fn start_of_row(&mut self, case: &Case, plan: Plan) -> u64 {
        let len = case.form.data_len() as u64;
        let page = |page: u64| AREA + PAGE as u64 * page;
        if let Plan::FaultAt(lane) = plan {
            let is_first = |&at: &u64| {
                let at = at as usize;
                case.pages[at] != Page::Free && (at == 0 || case.pages[at - 1] == Page::Free)
            };
            let bad = (0..PAGES as u64).rev().find(is_first);
            // The lane begins in the bad page, or reaches into it.
            let before = self.random.below(2) * self.random.below(case.form.size as u64);
            return page(bad.unwrap_or(1)) - (lane * case.form.size) as u64 - before;
        }
        page(self.random.below(PAGES as u64)) + self.random.below(PAGE as u64)
            - self.random.below(len)
    }

    /// Sets the base and the index of a masked load or store.
    fn start(&mut self, case: &mut Case, (form, operands): (&Form, &Operands), plan: Plan) {
        let displacement = i64::from(form.displacement(operands));
        let target = self.start_of_row(case, plan);
        let from = target.wrapping_add_signed(-displacement);
        let general = &mut case.registers.general;
        match (operands.base, operands.index) {
            (Some(base), index) => {
                let index = index.map_or(0, |index| general[usize::from(index)]);
                general[usize::from(base)] = from.wrapping_sub(index << operands.power);
            }
            (None, Some(index)) => {
                general[usize::from(index)] =
                    (from.cast_signed() >> operands.power).cast_unsigned();
            }
            (None, None) => unreachable!("it has a register"),
        }
        let active = self.active(form.lanes(), plan);
        self.set_mask(case, operands.mask, &active);
    }

    /// Writes the file for the program.
    pub fn write(&self, mut to: impl Write) -> std::io::Result<()> {
        let code_len = self.code.len().next_multiple_of(PAGE);
        let mut head = Vec::new();
        head.extend(u32::from(self.is_wide).to_le_bytes());
        head.extend((self.all.len() as u32).to_le_bytes());
        head.extend(((PAGE + PAGE * PAGES + code_len) as u64).to_le_bytes());
        head.resize(PAGE, 0);
        let mut code = self.code.clone();
        code.resize(code_len, 0xCC);
        for part in [&head, &self.memory, &code] {
            to.write_all(part)?;
        }
        for case in &self.all {
            let mut bytes = Vec::new();
            bytes.extend(case.code.to_le_bytes());
            bytes.extend(case.pages.map(|page| page as u8));
            bytes.extend(u16::from(case.repairs).to_le_bytes());
            bytes.extend(u16::from(case.form.stores).to_le_bytes());
            bytes.extend(state(&case.registers));
            to.write_all(&bytes)?;
        }
        to.flush()
    }
}

/// Registers as the program has them in memory.
pub fn state(registers: &Registers) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(STATE);
    let words = registers.general.iter().chain(&registers.masks);
    bytes.extend(words.flat_map(|word| word.to_le_bytes()));
    bytes.extend(registers.vectors.iter().flatten());
    bytes
}

/// Bytes of that.
pub const STATE: usize = 8 * (16 + 8) + VECTOR * 32;
