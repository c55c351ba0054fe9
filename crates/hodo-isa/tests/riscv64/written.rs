//! Code from the RISC-V assembler, and how a disassembler must read it. The fuzz target uses this, too.

use hodo_isa::riscv64::asm::ops::Insns as _;
use hodo_isa::riscv64::asm::{Code, If, Reach, condition_bits};
use hodo_isa::riscv64::encode::{
    AUIPC, FENCE_LOADS, FENCE_STORES, JALR, LOAD, LOAD_FP, LUI, OP, OP_32, OP_IMM, OP_IMM_32,
    STORE, STORE_FP, b, c_j, i, j, r, s, u,
};
use hodo_isa::riscv64::regs::{FLOAT_NAMES, NAMES, ZERO};

/// One line of a disassembler, without aliases.
pub struct Line {
    pub addr: u64,
    #[allow(dead_code, reason = "the fuzz target does not count short ones")]
    pub len: usize,
    pub name: String,
    pub operands: String,
}

/// The address of the code.
pub const BASE: u64 = 0x1_0000_0000;

/// The number of groups of instructions.
pub const GROUPS: usize = 9;

/// How a piece of code must be read.
#[derive(Debug, PartialEq, Eq)]
pub enum What {
    /// One instruction: name and operands.
    Is(String),
    /// A number in a register.
    Puts(u8, u64),
    /// The eight bytes at an address, in a register.
    Loads(u8, u64),
    /// A jump to an address, with its link register.
    Goes(u64, u8),
}

/// What was written, and how it must be read.
pub struct Written<'c> {
    pub bytes: Vec<u8>,
    /// The pieces, each with the offset of its end.
    pub pieces: Vec<(usize, What)>,
    choose: &'c mut dyn Choose,
}

fn name(register: u8) -> &'static str {
    NAMES[usize::from(register)]
}

/// Chooses the operands of instructions.
pub trait Choose {
    /// Returns a number below `end`.
    fn below(&mut self, end: u64) -> u64;
}

impl<'c> Written<'c> {
    /// Creates it without any code.
    pub fn new(choose: &'c mut dyn Choose) -> Self {
        Self {
            bytes: Vec::new(),
            pieces: Vec::new(),
            choose,
        }
    }

    /// Writes one group of instructions.
    pub fn group(&mut self, which: usize, round: usize) {
        match which % GROUPS {
            0 => self.memory(round),
            1 => self.atomics(),
            2 => self.two_registers(),
            3 => self.constants(round),
            4 => self.branches(round),
            5 => self.addresses(round),
            6 => self.stack(),
            7 => self.short(round),
            _ => self.padding(),
        }
    }

    fn here(&self) -> u64 {
        BASE + self.bytes.len() as u64
    }

    fn piece(&mut self, what: What, write: impl FnOnce(&mut Code<'_>)) {
        write(&mut Code::new(&mut self.bytes, BASE));
        self.pieces.push((self.bytes.len(), what));
    }

    fn is(&mut self, name: &str, operands: &str, write: impl FnOnce(&mut Code<'_>)) {
        self.piece(What::Is(format!("{name} {operands}")), write);
    }

    fn word(&mut self, name: &str, operands: &str, word: u32) {
        self.is(name, operands, |code| code.word(word));
    }

    fn register(&mut self) -> u8 {
        self.choose.below(32) as u8
    }

    /// Returns a register other than the zero register.
    fn other(&mut self) -> u8 {
        1 + self.choose.below(31) as u8
    }

    /// Returns a signed number of this many bits. The first rounds get the edge cases.
    fn signed(&mut self, round: usize, bits: u32) -> i64 {
        let end = 1i64 << (bits - 1);
        let any = self.choose.below(2 * end as u64) as i64 - end;
        let edges = [-end, end - 1, -end + 1, -33, -1, 0, 1, 2, 31, 32];
        edges.get(round).copied().unwrap_or(any)
    }

    /// Returns an even, signed distance of this many bits, and the target.
    fn distance(&mut self, round: usize, bits: u32) -> (i64, u64) {
        let distance = self.signed(round, bits) & !1;
        (distance, self.here().wrapping_add_signed(distance))
    }

    fn memory(&mut self, round: usize) {
        type Method = fn(&mut Code<'_>, u8, i64, u8);
        const METHODS: [(&str, Method); 6] = [
            ("ld", |code, to, at, base| code.ld(to, at, base)),
            ("lw", |code, to, at, base| code.lw(to, at, base)),
            ("lh", |code, to, at, base| code.lh(to, at, base)),
            ("lbu", |code, to, at, base| code.lbu(to, at, base)),
            ("sd", |code, from, at, base| code.sd(from, at, base)),
            ("sw", |code, from, at, base| code.sw(from, at, base)),
        ];
        for (method, write) in METHODS {
            let (register, base) = (self.register(), self.register());
            let at = self.signed(round, 12);
            let operands = format!("{},{at}({})", name(register), name(base));
            self.is(method, &operands, |code| write(code, register, at, base));
        }
        let loads = ["lb", "lh", "lw", "ld", "lbu", "lhu", "lwu"];
        for (f3, load) in (0..).zip(loads) {
            let (register, base, at) = (self.register(), self.register(), self.signed(round, 12));
            let operands = format!("{},{at}({})", name(register), name(base));
            self.word(load, &operands, i(LOAD, f3, register, base, at));
        }
        for (f3, store) in (0..).zip(["sb", "sh", "sw", "sd"]) {
            let (register, base, at) = (self.register(), self.register(), self.signed(round, 12));
            let operands = format!("{},{at}({})", name(register), name(base));
            self.word(store, &operands, s(STORE, f3, register, base, at));
        }
        let (register, base, at) = (self.register(), self.register(), self.signed(round, 12));
        let float = FLOAT_NAMES[usize::from(register)];
        let operands = format!("{float},{at}({})", name(base));
        self.word("fld", &operands, i(LOAD_FP, 3, register, base, at));
        self.word("fsd", &operands, s(STORE_FP, 3, register, base, at));
    }

    fn atomics(&mut self) {
        let (rd, from, base) = (self.register(), self.register(), self.register());
        let operands = format!("{},{},({})", name(rd), name(from), name(base));
        self.is("amoadd.d", &operands, |code| {
            code.amoadd_d(rd, from, base);
        });
        self.is("sc.d", &operands, |code| code.sc_d(rd, from, base));
        let operands = format!("{},({})", name(rd), name(base));
        self.is("lr.d", &operands, |code| code.lr_d(rd, base));
        let operands = format!("{},time,zero", name(rd));
        self.is("csrrs", &operands, |code| code.rdtime(rd));
    }

    fn two_registers(&mut self) {
        type Method = fn(&mut Code<'_>, u8, u8, u8);
        const METHODS: [(&str, Method); 4] = [
            ("add", |code, rd, a, b| code.add(rd, a, b)),
            ("sub", |code, rd, a, b| code.sub(rd, a, b)),
            ("subw", |code, rd, a, b| code.subw(rd, a, b)),
            ("or", |code, rd, a, b| code.or(rd, a, b)),
        ];
        const FORMATS: [(&str, u32, u32, u32); 20] = [
            ("add", OP, 0, 0),
            ("sub", OP, 0, 0x20),
            ("sll", OP, 1, 0),
            ("slt", OP, 2, 0),
            ("sltu", OP, 3, 0),
            ("xor", OP, 4, 0),
            ("srl", OP, 5, 0),
            ("sra", OP, 5, 0x20),
            ("or", OP, 6, 0),
            ("and", OP, 7, 0),
            ("mul", OP, 0, 1),
            ("mulhu", OP, 3, 1),
            ("div", OP, 4, 1),
            ("divu", OP, 5, 1),
            ("rem", OP, 6, 1),
            ("remu", OP, 7, 1),
            ("addw", OP_32, 0, 0),
            ("subw", OP_32, 0, 0x20),
            ("sraw", OP_32, 5, 0x20),
            ("mulw", OP_32, 0, 1),
        ];
        for (method, write) in METHODS {
            let (rd, a, b) = (self.register(), self.register(), self.register());
            let operands = format!("{},{},{}", name(rd), name(a), name(b));
            self.is(method, &operands, |code| write(code, rd, a, b));
        }
        for (operation, opcode, f3, f7) in FORMATS {
            let (rd, a, b) = (self.register(), self.register(), self.register());
            let operands = format!("{},{},{}", name(rd), name(a), name(b));
            self.word(operation, &operands, r(opcode, f3, f7, rd, a, b));
        }
    }

    fn constants(&mut self, round: usize) {
        // With the zero register as destination, `ori` is a hint with another name.
        let (rd, a, value) = (self.other(), self.register(), self.signed(round, 12));
        let operands = format!("{},{},{value}", name(rd), name(a));
        self.is("addi", &operands, |code| code.addi(rd, a, value));
        self.is("andi", &operands, |code| code.andi(rd, a, value));
        for (f3, operation) in [
            (0, "addi"),
            (2, "slti"),
            (3, "sltiu"),
            (4, "xori"),
            (6, "ori"),
            (7, "andi"),
        ] {
            self.word(operation, &operands, i(OP_IMM, f3, rd, a, value));
        }
        self.word("addiw", &operands, i(OP_IMM_32, 0, rd, a, value));
        let operands = format!("{},{},0", name(rd), name(a));
        self.is("addiw", &operands, |code| code.sext_w(rd, a));

        let by = self.choose.below(64) as u8;
        let operands = format!("{},{},{by:#x}", name(rd), name(a));
        self.is("slli", &operands, |code| code.slli(rd, a, by));
        self.is("srli", &operands, |code| code.srli(rd, a, by));
        self.word(
            "srai",
            &operands,
            i(OP_IMM, 5, rd, a, 0x400 | i64::from(by)),
        );

        let upper = self.signed(round, 20);
        let operands = format!("{},{:#x}", name(rd), upper & 0xF_FFFF);
        self.word("lui", &operands, u(LUI, rd, upper << 12));
        self.word("auipc", &operands, u(AUIPC, rd, upper << 12));

        let value = self.signed(round, 32) as i32;
        let put = i64::from(value).cast_unsigned();
        self.piece(What::Puts(rd, put), |code| code.li(rd, value));
    }

    fn branches(&mut self, round: usize) {
        let conditions = [
            ("beq", If::Equal),
            ("bne", If::NotEqual),
            ("blt", If::Less),
            ("bge", If::NotLess),
            ("bltu", If::Below),
            ("bgeu", If::NotBelow),
        ];
        for (branch, condition) in conditions {
            let (left, right) = (self.register(), self.register());
            let (distance, to) = self.distance(round, 13);
            let operands = format!("{},{},{to:x}", name(left), name(right));
            let word = b(condition_bits(condition), left, right, distance);
            self.word(branch, &operands, word);
        }
        let link = self.register();
        let (distance, to) = self.distance(round, 21);
        self.word("jal", &format!("{},{to:x}", name(link)), j(link, distance));
        let (base, distance) = (self.register(), self.signed(round, 12));
        let operands = format!("{},{distance}({})", name(link), name(base));
        self.word("jalr", &operands, i(JALR, 0, link, base, distance));
        self.is("jalr", &format!("zero,0({})", name(base)), |code| {
            code.jr(base);
        });
        self.is("jalr", &format!("ra,0({})", name(base)), |code| {
            code.call(base);
        });
    }

    /// Writes a branch and a jump over a gap of breakpoints, and a branch back.
    pub fn forward(&mut self, gap: usize) {
        let (left, right, link) = (self.register(), self.register(), self.register());
        let from = self.here();
        let to = from + 8 + gap as u64;
        let mut code = Code::new(&mut self.bytes, BASE);
        let (start, end) = (code.label_here(), code.label());
        code.branch(If::Below, left, right, end);
        let after_branch = code.offset() as usize;
        code.jal(link, end);
        let after_jump = code.offset() as usize;
        code.breakpoints(gap);
        code.bind(end);
        code.branch(If::NotEqual, left, right, start);
        let operands = format!("{},{}", name(left), name(right));
        let branch = format!("bltu {operands},{to:x}");
        self.pieces.push((after_branch, What::Is(branch)));
        let jump = format!("jal {},{to:x}", name(link));
        self.pieces.push((after_jump, What::Is(jump)));
        for end in (after_jump..self.bytes.len() - 4).step_by(2) {
            let breakpoint = What::Is("c.ebreak ".into());
            self.pieces.push((end + 2, breakpoint));
        }
        let back = format!("bne {operands},{from:x}");
        self.pieces.push((self.bytes.len(), What::Is(back)));
    }

    fn stack(&mut self) {
        self.is("c.addi", "sp,16", |code| code.move_stack(true));
        self.is("c.addi", "sp,-16", |code| code.move_stack(false));
        let register = self.register();
        let at = self.bytes.len();
        let operands = format!("{},0(sp)", name(register));
        self.is("c.sdsp", &operands, |code| code.keep(register));
        let lowering = What::Is("c.addi sp,-16".into());
        self.pieces
            .insert(self.pieces.len() - 1, (at + 2, lowering));
    }

    /// Writes padding: raw bytes, and breakpoints up to a boundary.
    fn padding(&mut self) {
        let (rd, value) = (self.other(), self.signed(100, 12));
        let operands = format!("{},zero,{value}", name(rd));
        let bytes = i(OP_IMM, 0, rd, ZERO, value).to_le_bytes();
        self.is("addi", &operands, |code| code.raw(&bytes));
        let alignment = 2 << self.choose.below(5);
        let at = self.bytes.len();
        let mut code = Code::new(&mut self.bytes, BASE);
        code.align(alignment);
        assert!(code.here().is_multiple_of(alignment), "{alignment}");
        assert!(code.from(at as u32).len() < alignment as usize);
        for end in (at..self.bytes.len()).step_by(2) {
            let breakpoint = What::Is("c.ebreak ".into());
            self.pieces.push((end + 2, breakpoint));
        }
    }

    fn short(&mut self, round: usize) {
        // This is `c.nop` without aliases.
        self.is("c.addi", "zero,0", |code| code.nop());
        let register = self.other();
        self.is("c.jr", name(register), |code| code.c_jr(register));
        let (distance, to) = self.distance(round, 12);
        self.is("c.j", &format!("{to:x}"), |code| code.half(c_j(distance)));
        let at = self.bytes.len();
        let loading = What::Is(format!("c.ldsp {},0(sp)", name(register)));
        self.pieces.push((at + 2, loading));
        self.is("c.addi", "sp,16", |code| code.take_back(register));
        self.word("fence", "w,w", FENCE_STORES);
        self.word("fence", "r,r", FENCE_LOADS);
    }

    /// Writes addresses, and jumps to them.
    fn addresses(&mut self, round: usize) {
        let (rd, link) = (self.other(), self.register());
        // The upper part of a distance just below 2 GiB would not fit.
        let near = self.signed(round, 32).min(0x7FFF_F7FF);
        let to = self.here().wrapping_add_signed(near);
        self.piece(What::Puts(rd, to), |code| {
            code.address(rd, to, Reach::Pair).expect("in reach");
        });
        let to = self.here().wrapping_add_signed(near);
        self.piece(What::Loads(rd, to), |code| {
            code.load_from(rd, to).expect("in reach");
        });
        // The highest numbers of 56 bits would carry into one more bit.
        let far = self.signed(round, 56).min((1 << 55) - (1 << 24));
        let far = far.cast_unsigned();
        self.piece(What::Puts(rd, far), |code| {
            code.address(rd, far, Reach::Any).expect("in reach");
        });
        let even = far & !1;
        self.piece(What::Goes(even, link), |code| {
            code.jump_and_link(even, Reach::Any, rd, link)
                .expect("in reach");
        });
        let to = self.here().wrapping_add_signed(near & !1);
        self.piece(What::Goes(to, link), |code| {
            code.jump_and_link(to, Reach::Pair, rd, link)
                .expect("in reach");
        });
        let (_, to) = self.distance(round, 21);
        self.piece(What::Goes(to, link), |code| {
            code.jump_and_link(to, Reach::Jump, rd, link)
                .expect("in reach");
        });
        let (_, to) = self.distance(round, 21);
        self.piece(What::Goes(to, ZERO), |code| {
            code.jump(to, Reach::Jump, rd).expect("in reach");
        });
    }
}

/// Returns the effect of instructions that form an address or a constant.
pub fn effect(lines: &[Line]) -> What {
    let register = |name: &str| NAMES.iter().position(|known| *known == name).expect(name);
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => i64::from_str_radix(digits, 16).expect(text),
        None => text.parse().expect(text),
    };
    let place = |text: &str| {
        let (distance, base) = text.split_once('(').expect(text);
        (number(distance), register(base.trim_end_matches(')')))
    };
    let mut values = [0i64; 32];
    for line in lines {
        let operands: Vec<&str> = line.operands.split(',').collect();
        let rd = register(operands[0]);
        values[rd] = match line.name.as_str() {
            "lui" => i64::from((number(operands[1]) << 12) as i32),
            "auipc" => {
                let upper = i64::from((number(operands[1]) << 12) as i32);
                line.addr.wrapping_add_signed(upper).cast_signed()
            }
            "addi" => values[register(operands[1])].wrapping_add(number(operands[2])),
            "addiw" => {
                let sum = values[register(operands[1])].wrapping_add(number(operands[2]));
                i64::from(sum as i32)
            }
            "c.slli" | "slli" => values[rd] << number(operands[operands.len() - 1]),
            "ld" => {
                let (distance, base) = place(operands[1]);
                let at = values[base].wrapping_add(distance);
                return What::Loads(rd as u8, at.cast_unsigned());
            }
            "jalr" => {
                let (distance, base) = place(operands[1]);
                let to = values[base].wrapping_add(distance) & !1;
                return What::Goes(to.cast_unsigned(), rd as u8);
            }
            "jal" => {
                let digits = operands[1].trim_start_matches("0x");
                let to = u64::from_str_radix(digits, 16).expect("an address");
                return What::Goes(to, rd as u8);
            }
            other => panic!("{other} makes no address"),
        };
        if line.addr == lines[lines.len() - 1].addr {
            return What::Puts(rd as u8, values[rd].cast_unsigned());
        }
    }
    panic!("no lines");
}

/// Checks that the lines are what was written.
pub fn check(written: &Written<'_>, lines: &[Line]) {
    // Targets outside the code have this prefix.
    let plain = |text: &str| text.replace("0x", "");
    let mut rest = lines;
    for (end, what) in &written.pieces {
        let count = rest.partition_point(|line| line.addr < BASE + *end as u64);
        let (these, others) = rest.split_at(count);
        match (what, these) {
            (What::Is(what), [line]) => {
                let read = format!("{} {}", line.name, line.operands);
                assert_eq!(plain(&read), plain(what), "at {:#x}", line.addr);
            }
            (What::Is(_), _) => panic!("{what:?} is {count} instructions"),
            _ => assert_eq!(effect(these), *what, "at {:#x}", these[0].addr),
        }
        rest = others;
    }
    assert!(rest.is_empty(), "{} instructions more", rest.len());
}
