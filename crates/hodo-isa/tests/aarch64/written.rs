//! Code from the AArch64 assembler, and how GNU's disassembler must read it, without aliases.

use std::fmt::Write as _;

use hodo_isa::aarch64::asm::operand::{
    self, Access, BYTE, CNTFRQ_EL0, CNTVCT_EL0, Cond, DOUBLE, Extend, FPCR, FPSR, HALF, Mem, NZCV,
    Rm, Rmw, Shift, Size, TPIDR_EL0, WORD, after, before, extended, indexed, mem, shifted,
};
use hodo_isa::aarch64::asm::ops::Insns as _;
use hodo_isa::aarch64::asm::{Code, Reach, is_mask};

use super::common::Random;

/// The address of the code.
pub const BASE: u64 = 0x1_0000_0000;

/// How a piece of code must be read.
#[derive(Debug)]
pub enum What {
    /// Each of its instructions.
    Is(Vec<String>),
    /// One instruction, by its alias.
    Alias(&'static str),
    /// A number in a register, by at most this many instructions.
    Puts(u8, u64, usize),
}

/// What was written, and how it must be read.
pub struct Written<'r> {
    pub bytes: Vec<u8>,
    /// The pieces, each with the offset of its end.
    pub pieces: Vec<(usize, What)>,
    random: &'r mut Random,
}

/// The name of a register, where number 31 is the zero register.
pub fn x(number: u8) -> String {
    named('x', number, "xzr")
}

/// The same of its lower half.
pub fn w(number: u8) -> String {
    named('w', number, "wzr")
}

/// The name of a register, where number 31 is the stack pointer.
fn xs(number: u8) -> String {
    named('x', number, "sp")
}

fn ws(number: u8) -> String {
    named('w', number, "wsp")
}

fn named(width: char, number: u8, last: &str) -> String {
    match number {
        31 => last.to_owned(),
        _ => format!("{width}{number}"),
    }
}

/// A register with the name that fits the size of an access.
fn sized(size: Size, number: u8) -> String {
    if size == DOUBLE { x(number) } else { w(number) }
}

const CONDITIONS: [(Cond, &str, &str); 14] = [
    (Cond::Eq, "eq", "ne"),
    (Cond::Ne, "ne", "eq"),
    (Cond::Hs, "cs", "cc"),
    (Cond::Lo, "cc", "cs"),
    (Cond::Mi, "mi", "pl"),
    (Cond::Pl, "pl", "mi"),
    (Cond::Vs, "vs", "vc"),
    (Cond::Vc, "vc", "vs"),
    (Cond::Hi, "hi", "ls"),
    (Cond::Ls, "ls", "hi"),
    (Cond::Ge, "ge", "lt"),
    (Cond::Lt, "lt", "ge"),
    (Cond::Gt, "gt", "le"),
    (Cond::Le, "le", "gt"),
];

/// Methods with two registers, of which the last may be shifted, and those of 32 bits.
type WithRm = fn(&mut Code<'_>, u8, u8, Rm);

#[rustfmt::skip]
const SHIFTED: [(&str, WithRm, WithRm); 12] = [
    ("add", |c, d, n, m| c.add(d, n, m), |c, d, n, m| c.add_w(d, n, m)),
    ("adds", |c, d, n, m| c.adds(d, n, m), |c, d, n, m| c.adds_w(d, n, m)),
    ("sub", |c, d, n, m| c.sub(d, n, m), |c, d, n, m| c.sub_w(d, n, m)),
    ("subs", |c, d, n, m| c.subs(d, n, m), |c, d, n, m| c.subs_w(d, n, m)),
    ("and", |c, d, n, m| c.and(d, n, m), |c, d, n, m| c.and_w(d, n, m)),
    ("ands", |c, d, n, m| c.ands(d, n, m), |c, d, n, m| c.ands_w(d, n, m)),
    ("bic", |c, d, n, m| c.bic(d, n, m), |c, d, n, m| c.bic_w(d, n, m)),
    ("bics", |c, d, n, m| c.bics(d, n, m), |c, d, n, m| c.bics_w(d, n, m)),
    ("orr", |c, d, n, m| c.orr(d, n, m), |c, d, n, m| c.orr_w(d, n, m)),
    ("orn", |c, d, n, m| c.orn(d, n, m), |c, d, n, m| c.orn_w(d, n, m)),
    ("eor", |c, d, n, m| c.eor(d, n, m), |c, d, n, m| c.eor_w(d, n, m)),
    ("eon", |c, d, n, m| c.eon(d, n, m), |c, d, n, m| c.eon_w(d, n, m)),
];

const SHIFTS: [(Shift, &str); 4] = [
    (Shift::Left, "lsl"),
    (Shift::Right, "lsr"),
    (Shift::Signed, "asr"),
    (Shift::Rotated, "ror"),
];

/// Methods with two registers, and those of 32 bits.
type Plain = fn(&mut Code<'_>, u8, u8, u8);

#[rustfmt::skip]
const PLAIN: [(&str, Plain, Plain); 8] = [
    ("adc", |c, d, n, m| c.adc(d, n, m), |c, d, n, m| c.adc_w(d, n, m)),
    ("sbc", |c, d, n, m| c.sbc(d, n, m), |c, d, n, m| c.sbc_w(d, n, m)),
    ("udiv", |c, d, n, m| c.udiv(d, n, m), |c, d, n, m| c.udiv_w(d, n, m)),
    ("sdiv", |c, d, n, m| c.sdiv(d, n, m), |c, d, n, m| c.sdiv_w(d, n, m)),
    ("lslv", |c, d, n, m| c.lsl(d, n, m), |c, d, n, m| c.lsl_w(d, n, m)),
    ("lsrv", |c, d, n, m| c.lsr(d, n, m), |c, d, n, m| c.lsr_w(d, n, m)),
    ("asrv", |c, d, n, m| c.asr(d, n, m), |c, d, n, m| c.asr_w(d, n, m)),
    ("rorv", |c, d, n, m| c.ror(d, n, m), |c, d, n, m| c.ror_w(d, n, m)),
];

impl<'r> Written<'r> {
    /// Creates it without any code.
    pub fn new(random: &'r mut Random) -> Self {
        Self {
            bytes: Vec::new(),
            pieces: Vec::new(),
            random,
        }
    }

    /// Writes all groups of instructions.
    pub fn all(&mut self, round: usize) {
        self.shifted();
        self.two_registers();
        self.extended();
        self.immediates(round);
        self.masks();
        self.bits();
        self.selects();
        self.loads(round);
        self.pairs(round);
        self.vectors(round);
        self.shared();
        self.exclusive();
        self.system();
        self.fixed();
        self.branches();
        self.constants();
        self.addresses(round);
    }

    fn here(&self) -> u64 {
        BASE + self.bytes.len() as u64
    }

    fn piece(&mut self, what: What, write: impl FnOnce(&mut Code<'_>)) {
        write(&mut Code::new(&mut self.bytes, BASE));
        self.pieces.push((self.bytes.len(), what));
    }

    /// One instruction.
    fn is(&mut self, text: &str, write: impl FnOnce(&mut Code<'_>)) {
        self.piece(What::Is(vec![text.to_owned()]), write);
    }

    fn below(&mut self, end: u64) -> u64 {
        self.random.below(end)
    }

    /// Any register, the last ones more often than others.
    fn register(&mut self) -> u8 {
        match self.below(8) {
            0 => 31,
            1 => 30,
            _ => self.below(32) as u8,
        }
    }

    /// A register other than some.
    fn other(&mut self, than: &[u8]) -> u8 {
        loop {
            let register = self.register();
            if !than.contains(&register) {
                return register;
            }
        }
    }

    fn condition(&mut self) -> (Cond, &'static str, &'static str) {
        CONDITIONS[self.below(14) as usize]
    }

    /// A number from `least` to `most`. The first rounds get the ends.
    fn number(&mut self, round: usize, least: i64, most: i64) -> i64 {
        match round {
            0 => least,
            1 => most,
            2 if least < 0 => 0,
            _ => least + self.below((most - least + 1) as u64) as i64,
        }
    }

    fn shifted(&mut self) {
        for (name, wide, half) in SHIFTED {
            let (d, n, m) = (self.register(), self.register(), self.register());
            let plain = format!("{name} {}, {}, {}", x(d), x(n), x(m));
            self.is(&plain, |code| wide(code, d, n, m.into()));
            let kinds = if name.starts_with(['a', 's']) && !name.starts_with("and") {
                3
            } else {
                4
            };
            let (shift, word) = SHIFTS[self.below(kinds) as usize];
            let by = 1 + self.below(63) as u8;
            let text = format!("{plain}, {word} #{by}");
            self.is(&text, |code| wide(code, d, n, shifted(m, shift, by)));
            let by = 1 + self.below(31) as u8;
            let text = format!("{name} {}, {}, {}, {word} #{by}", w(d), w(n), w(m));
            self.is(&text, |code| half(code, d, n, shifted(m, shift, by)));
        }
        let (d, n, m) = (self.register(), self.register(), self.register());
        let by = 1 + self.below(63) as u8;
        let text = format!("subs xzr, {}, {}, lsl #{by}", x(n), x(m));
        self.is(&text, |code| code.cmp(n, operand::lsl(m, by)));
        let text = format!("ands xzr, {}, {}, lsr #{by}", x(n), x(m));
        self.is(&text, |code| code.tst(n, operand::lsr(m, by)));
        self.is(&format!("subs wzr, {}, {}", w(n), w(m)), |code| {
            code.cmp_w(n, m)
        });
        self.is(&format!("orr {}, xzr, {}", x(d), x(m)), |code| {
            code.mov(d, m)
        });
        self.is(&format!("orr {}, wzr, {}", w(d), w(m)), |code| {
            code.mov_w(d, m)
        });
        self.is(&format!("orn {}, xzr, {}", x(d), x(m)), |code| {
            code.mvn(d, m)
        });
        self.is(&format!("sub {}, xzr, {}", x(d), x(m)), |code| {
            code.neg(d, m)
        });
    }

    fn two_registers(&mut self) {
        for (name, wide, half) in PLAIN {
            let (d, n, m) = (self.register(), self.register(), self.register());
            let text = format!("{name} {}, {}, {}", x(d), x(n), x(m));
            self.is(&text, |code| wide(code, d, n, m));
            let text = format!("{name} {}, {}, {}", w(d), w(n), w(m));
            self.is(&text, |code| half(code, d, n, m));
        }
        let (d, n) = (self.register(), self.register());
        let (m, a) = (self.register(), self.register());
        let three = format!("{}, {}, {}", x(d), x(n), x(m));
        self.is(&format!("madd {three}, xzr"), |code| code.mul(d, n, m));
        let text = format!("madd {}, {}, {}, wzr", w(d), w(n), w(m));
        self.is(&text, |code| code.mul_w(d, n, m));
        self.is(&format!("madd {three}, {}", x(a)), |code| {
            code.madd(d, n, m, a)
        });
        self.is(&format!("msub {three}, {}", x(a)), |code| {
            code.msub(d, n, m, a)
        });
        self.is(&format!("umulh {three}"), |code| code.umulh(d, n, m));
        self.is(&format!("smulh {three}"), |code| code.smulh(d, n, m));
        let two = format!("{}, {}", x(d), x(n));
        self.is(&format!("clz {two}"), |code| code.clz(d, n));
        self.is(&format!("rbit {two}"), |code| code.rbit(d, n));
        self.is(&format!("rev {two}"), |code| code.rev(d, n));
    }

    fn extended(&mut self) {
        let (d, n, m) = (self.register(), self.register(), self.register());
        const EXTENDS: [(Extend, &str); 8] = [
            (Extend::Uxtb, "uxtb"),
            (Extend::Uxth, "uxth"),
            (Extend::Uxtw, "uxtw"),
            (Extend::Uxtx, "uxtx"),
            (Extend::Sxtb, "sxtb"),
            (Extend::Sxth, "sxth"),
            (Extend::Sxtw, "sxtw"),
            (Extend::Sxtx, "sxtx"),
        ];
        let (extend, word) = EXTENDS[self.below(8) as usize];
        let power = self.below(5) as u8;
        let last = if extend as u32 & 3 == 3 { x(m) } else { w(m) };
        let how = |by_stack: bool| match (extend, power) {
            // With the stack pointer, this is the preferred way to write a shift.
            (Extend::Uxtx, 0) if by_stack => last.clone(),
            (Extend::Uxtx, _) if by_stack => format!("{last}, lsl #{power}"),
            (_, 0) => format!("{last}, {word}"),
            _ => format!("{last}, {word} #{power}"),
        };
        let stack = d == 31 || n == 31;
        let text = format!("add {}, {}, {}", xs(d), xs(n), how(stack));
        self.is(&text, |code| code.add_extended(d, n, m, (extend, power)));
        let text = format!("sub {}, {}, {}", xs(d), xs(n), how(stack));
        self.is(&text, |code| code.sub_extended(d, n, m, (extend, power)));
        let text = format!("subs xzr, {}, {}", xs(n), how(n == 31));
        self.is(&text, |code| code.cmp_extended(n, m, (extend, power)));
    }

    fn immediates(&mut self, round: usize) {
        let (d, n) = (self.register(), self.register());
        let small = self.number(round, -0xFFF, 0xFFF);
        let shift = self.below(2) * 12;
        let value = small << shift;
        let magnitude = small.unsigned_abs();
        let number = match (shift, magnitude) {
            (12, 1..) => format!("#{magnitude:#x}, lsl #12"),
            _ => format!("#{magnitude:#x}"),
        };
        let (add, sub) = if value < 0 {
            ("sub", "add")
        } else {
            ("add", "sub")
        };
        let text = format!("{add} {}, {}, {number}", xs(d), xs(n));
        self.is(&text, |code| code.addi(d, n, value));
        let text = format!("{add} {}, {}, {number}", ws(d), ws(n));
        self.is(&text, |code| code.addi_w(d, n, value));
        let text = format!("{add}s {}, {}, {number}", x(d), xs(n));
        self.is(&text, |code| code.addsi(d, n, value));
        let text = format!("{sub}s {}, {}, {number}", x(d), xs(n));
        self.is(&text, |code| code.subsi(d, n, value));
        let text = format!("{sub}s xzr, {}, {number}", xs(n));
        self.is(&text, |code| code.cmpi(n, value));
        let text = format!("{sub}s wzr, {}, {number}", ws(n));
        self.is(&text, |code| code.cmpi_w(n, value));
        let text = format!("add {}, {}, #0x0", xs(d), xs(n));
        self.is(&text, |code| code.mov_sp(d, n));

        let bits = self.number(round, 0, 0xFFFF) as u16;
        let part = self.below(4) as u32;
        let number = match part {
            0 => format!("{}, #{bits:#x}", x(d)),
            _ => format!("{}, #{bits:#x}, lsl #{}", x(d), 16 * part),
        };
        self.is(&format!("movz {number}"), |code| code.movz(d, bits, part));
        self.is(&format!("movn {number}"), |code| code.movn(d, bits, part));
        self.is(&format!("movk {number}"), |code| code.movk(d, bits, part));
        self.is(&format!("svc #{bits:#x}"), |code| code.svc(bits));
        self.is(&format!("brk #{bits:#x}"), |code| code.brk(bits));
    }

    /// A number that is a bitmask.
    fn mask(&mut self) -> u64 {
        let size = 2u32 << self.below(6);
        let ones = 1 + self.below(u64::from(size) - 1) as u32;
        let element = (1u64 << ones) - 1;
        let all = (0..64 / size).fold(0, |all, index| all | element << (index * size));
        all.rotate_right(self.below(size.into()) as u32)
    }

    fn masks(&mut self) {
        type Wide = fn(&mut Code<'_>, u8, u8, u64);
        type Half = fn(&mut Code<'_>, u8, u8, u32);
        const METHODS: [(&str, Wide, Half); 4] = [
            (
                "and",
                |c, d, n, m| c.andi(d, n, m),
                |c, d, n, m| c.andi_w(d, n, m),
            ),
            (
                "orr",
                |c, d, n, m| c.orri(d, n, m),
                |c, d, n, m| c.orri_w(d, n, m),
            ),
            (
                "eor",
                |c, d, n, m| c.eori(d, n, m),
                |c, d, n, m| c.eori_w(d, n, m),
            ),
            (
                "ands",
                |c, d, n, m| c.andsi(d, n, m),
                |c, d, n, m| c.andsi_w(d, n, m),
            ),
        ];
        for (name, wide, half) in METHODS {
            let (d, n, mask) = (self.register(), self.register(), self.mask());
            assert!(is_mask(mask), "{mask:#x}");
            let sets = name == "ands";
            let to = if sets { x(d) } else { xs(d) };
            let text = format!("{name} {to}, {}, #{mask:#x}", x(n));
            self.is(&text, |code| wide(code, d, n, mask));
            let both = mask as u32;
            if mask >> 32 == u64::from(both) {
                let to = if sets { w(d) } else { ws(d) };
                let text = format!("{name} {to}, {}, #{both:#x}", w(n));
                self.is(&text, |code| half(code, d, n, both));
            }
        }
        let (n, mask) = (self.register(), self.mask());
        let text = format!("ands xzr, {}, #{mask:#x}", x(n));
        self.is(&text, |code| code.tsti(n, mask));
    }

    fn bits(&mut self) {
        let (d, n, m) = (self.register(), self.register(), self.register());
        let two = format!("{}, {}", x(d), x(n));
        let halves = format!("{}, {}", w(d), w(n));
        let by = self.below(64) as u8;
        let (right, last) = ((64 - by) % 64, 63 - by);
        self.is(&format!("ubfm {two}, #{right}, #{last}"), |code| {
            code.lsli(d, n, by)
        });
        self.is(&format!("ubfm {two}, #{by}, #63"), |code| {
            code.lsri(d, n, by)
        });
        self.is(&format!("sbfm {two}, #{by}, #63"), |code| {
            code.asri(d, n, by)
        });
        let same = format!("extr {}, {}, {}, #{by}", x(d), x(n), x(n));
        self.is(&same, |code| code.rori(d, n, by));
        let pair = format!("extr {}, {}, {}, #{by}", x(d), x(n), x(m));
        self.is(&pair, |code| code.extr(d, n, m, by));
        let few = by % 32;
        let (right, last) = ((32 - few) % 32, 31 - few);
        self.is(&format!("ubfm {halves}, #{right}, #{last}"), |code| {
            code.lsli_w(d, n, few)
        });
        self.is(&format!("ubfm {halves}, #{few}, #31"), |code| {
            code.lsri_w(d, n, few)
        });

        let count = 1 + self.below(64 - u64::from(by)) as u8;
        let down = format!("{two}, #{by}, #{}", by + count - 1);
        let up = format!("{two}, #{}, #{}", (64 - by) % 64, count - 1);
        self.is(&format!("ubfm {down}"), |code| code.ubfx(d, n, by, count));
        self.is(&format!("sbfm {down}"), |code| code.sbfx(d, n, by, count));
        self.is(&format!("bfm {down}"), |code| code.bfxil(d, n, by, count));
        self.is(&format!("ubfm {up}"), |code| code.ubfiz(d, n, by, count));
        self.is(&format!("sbfm {up}"), |code| code.sbfiz(d, n, by, count));
        self.is(&format!("bfm {up}"), |code| code.bfi(d, n, by, count));
        self.is(&format!("sbfm {two}, #0, #7"), |code| code.sxtb(d, n));
        self.is(&format!("sbfm {two}, #0, #15"), |code| code.sxth(d, n));
        self.is(&format!("sbfm {two}, #0, #31"), |code| code.sxtw(d, n));
    }

    fn selects(&mut self) {
        let (d, n, m) = (self.register(), self.register(), self.register());
        let (condition, name, opposite) = self.condition();
        let three = format!("{}, {}, {}, {name}", x(d), x(n), x(m));
        self.is(&format!("csel {three}"), |code| {
            code.csel(d, n, m, condition)
        });
        self.is(&format!("csinc {three}"), |code| {
            code.csinc(d, n, m, condition)
        });
        self.is(&format!("csinv {three}"), |code| {
            code.csinv(d, n, m, condition)
        });
        self.is(&format!("csneg {three}"), |code| {
            code.csneg(d, n, m, condition)
        });
        let text = format!("csinc {}, xzr, xzr, {opposite}", x(d));
        self.is(&text, |code| code.cset(d, condition));
        let text = format!("csinv {}, xzr, xzr, {opposite}", x(d));
        self.is(&text, |code| code.csetm(d, condition));
        let text = format!("csinc {}, {}, {}, {opposite}", x(d), x(n), x(n));
        self.is(&text, |code| code.cinc(d, n, condition));
        let flags = self.below(16) as u8;
        let text = format!("ccmp {}, {}, #{flags:#x}, {name}", x(n), x(m));
        self.is(&text, |code| code.ccmp(n, m, flags, condition));
        let text = format!("ccmp {}, #{m:#x}, #{flags:#x}, {name}", x(n));
        self.is(&text, |code| code.ccmpi(n, m, flags, condition));
    }

    fn loads(&mut self, round: usize) {
        type Method = fn(&mut Code<'_>, u8, Mem);
        type Load = (&'static str, u32, fn(u8) -> String, Method);
        const METHODS: [Load; 15] = [
            ("ldr", 3, x, |c, r, at| c.ldr(r, at)),
            ("ldr", 2, w, |c, r, at| c.ldr_w(r, at)),
            ("ldrh", 1, w, |c, r, at| c.ldrh(r, at)),
            ("ldrb", 0, w, |c, r, at| c.ldrb(r, at)),
            ("ldrsw", 2, x, |c, r, at| c.ldrsw(r, at)),
            ("ldrsh", 1, x, |c, r, at| c.ldrsh(r, at)),
            ("ldrsb", 0, x, |c, r, at| c.ldrsb(r, at)),
            ("str", 3, x, |c, r, at| c.str(r, at)),
            ("str", 2, w, |c, r, at| c.str_w(r, at)),
            ("strh", 1, w, |c, r, at| c.strh(r, at)),
            ("strb", 0, w, |c, r, at| c.strb(r, at)),
            ("ldr", 4, q, |c, r, at| c.ldr_q(r, at)),
            ("str", 4, q, |c, r, at| c.str_q(r, at)),
            ("ldr", 3, d, |c, r, at| c.ldr_d(r, at)),
            ("str", 3, d, |c, r, at| c.str_d(r, at)),
        ];
        for (name, power, register, method) in METHODS {
            let base = self.register();
            let one = self.other(&[base]);
            let (first, place) = (register(one), xs(base));
            let units = self.number(round, 0, 4095);
            let distance = units << power;
            assert!(operand::near(1 << power, distance));
            let text = format!("{name} {first}, {}", at(&place, distance));
            self.is(&text, |code| method(code, one, mem(base, distance)));
            let nine = self.number(round, -256, 255);
            if nine < 0 || nine % (1 << power) != 0 {
                let unscaled = name.replacen('r', "ur", 1);
                let text = format!("{unscaled} {first}, {}", at(&place, nine));
                self.is(&text, |code| method(code, one, mem(base, nine)));
            }
            let text = format!("{name} {first}, [{place}], #{nine}");
            self.is(&text, |code| method(code, one, after(base, nine)));
            let text = format!("{name} {first}, [{place}, #{nine}]!");
            self.is(&text, |code| method(code, one, before(base, nine)));
            let index = self.register();
            let text = format!("{name} {first}, [{place}, {}]", x(index));
            self.is(&text, |code| method(code, one, indexed(base, index)));
            let text = format!("{name} {first}, [{place}, {}, lsl #{power}]", x(index));
            self.is(&text, |code| {
                method(code, one, indexed(base, index).scaled())
            });
            for (extend, how, last) in [
                (Extend::Uxtw, "uxtw", w(index)),
                (Extend::Sxtw, "sxtw", w(index)),
                (Extend::Sxtx, "sxtx", x(index)),
            ] {
                let place = extended(base, index, extend);
                let text = format!("{name} {first}, [{}, {last}, {how}]", xs(base));
                self.is(&text, |code| method(code, one, place));
                let text = format!("{name} {first}, [{}, {last}, {how} #{power}]", xs(base));
                self.is(&text, |code| method(code, one, place.scaled()));
            }
        }
    }

    fn pairs(&mut self, round: usize) {
        type Method = fn(&mut Code<'_>, u8, u8, Mem);
        type Pair = (&'static str, u32, fn(u8) -> String, Method);
        const METHODS: [Pair; 8] = [
            ("ldp", 3, x, |c, a, b, at| c.ldp(a, b, at)),
            ("stp", 3, x, |c, a, b, at| c.stp(a, b, at)),
            ("ldp", 2, w, |c, a, b, at| c.ldp_w(a, b, at)),
            ("stp", 2, w, |c, a, b, at| c.stp_w(a, b, at)),
            ("ldp", 4, q, |c, a, b, at| c.ldp_q(a, b, at)),
            ("stp", 4, q, |c, a, b, at| c.stp_q(a, b, at)),
            ("ldp", 3, d, |c, a, b, at| c.ldp_d(a, b, at)),
            ("stp", 3, d, |c, a, b, at| c.stp_d(a, b, at)),
        ];
        for (name, power, register, method) in METHODS {
            let base = self.register();
            let first = self.other(&[base]);
            let second = self.other(&[base, first]);
            let two = format!("{}, {}", register(first), register(second));
            let distance = self.number(round, -64, 63) << power;
            let text = format!("{name} {two}, {}", at(&xs(base), distance));
            self.is(&text, |code| {
                method(code, first, second, mem(base, distance))
            });
            let text = format!("{name} {two}, [{}], #{distance}", xs(base));
            self.is(&text, |code| {
                method(code, first, second, after(base, distance))
            });
            let text = format!("{name} {two}, [{}, #{distance}]!", xs(base));
            self.is(&text, |code| {
                method(code, first, second, before(base, distance))
            });
        }
        let one = self.other(&[31]);
        self.is(&format!("str {}, [sp, #-16]!", x(one)), |code| {
            code.keep(one)
        });
        self.is(&format!("ldr {}, [sp], #16", x(one)), |code| {
            code.take_back(one)
        });
        self.is("add sp, sp, #0x10", |code| code.move_stack(true));
        self.is("sub sp, sp, #0x10", |code| code.move_stack(false));
    }

    fn vectors(&mut self, round: usize) {
        type Method = fn(&mut Code<'_>, u8, Mem);
        const METHODS: [(&str, char, u8, Method); 4] = [
            ("ldr", 'z', 31, |c, r, at| c.ldr_z(r, at)),
            ("str", 'z', 31, |c, r, at| c.str_z(r, at)),
            ("ldr", 'p', 15, |c, r, at| c.ldr_p(r, at)),
            ("str", 'p', 15, |c, r, at| c.str_p(r, at)),
        ];
        for (name, kind, last, method) in METHODS {
            let (register, base) = (self.register() & last, self.register());
            let units = self.number(round, -256, 255);
            let place = match units {
                0 => format!("[{}]", xs(base)),
                _ => format!("[{}, #{units}, mul vl]", xs(base)),
            };
            let text = format!("{name} {kind}{register}, {place}");
            self.is(&text, |code| method(code, register, mem(base, units)));
        }
        let (d, n) = (self.register(), self.register());
        let count = self.number(round, -32, 31) as i8;
        self.is(&format!("rdvl {}, #{count}", x(d)), |code| {
            code.rdvl(d, count)
        });
        let text = format!("addvl {}, {}, #{count}", xs(d), xs(n));
        self.is(&text, |code| code.addvl(d, n, count));
        let text = format!("addpl {}, {}, #{count}", xs(d), xs(n));
        self.is(&text, |code| code.addpl(d, n, count));
        let predicate = d & 15;
        self.is(&format!("rdffr p{predicate}.b"), |code| {
            code.rdffr(predicate)
        });
        self.is(&format!("wrffr p{predicate}.b"), |code| {
            code.wrffr(predicate)
        });
    }

    fn size(&mut self) -> (Size, &'static str) {
        [(BYTE, "b"), (HALF, "h"), (WORD, ""), (DOUBLE, "")][self.below(4) as usize]
    }

    fn access(&mut self, size: Size) -> (Access, &'static str) {
        match self.below(4) {
            0 => (size.relaxed(), ""),
            1 => (size.acquire(), "a"),
            2 => (size.release(), "l"),
            _ => (size.acquire_release(), "al"),
        }
    }

    fn shared(&mut self) {
        const OPERATIONS: [(Rmw, &str); 9] = [
            (Rmw::Add, "ldadd"),
            (Rmw::Clear, "ldclr"),
            (Rmw::Flip, "ldeor"),
            (Rmw::Set, "ldset"),
            (Rmw::SignedMax, "ldsmax"),
            (Rmw::SignedMin, "ldsmin"),
            (Rmw::UnsignedMax, "ldumax"),
            (Rmw::UnsignedMin, "ldumin"),
            (Rmw::Swap, "swp"),
        ];
        let (from, d, base) = (self.register(), self.register(), self.register());
        for (what, name) in OPERATIONS {
            let (size, short) = self.size();
            let (access, order) = self.access(size);
            let operands = format!("{}, {}, [{}]", sized(size, from), sized(size, d), xs(base));
            let text = format!("{name}{order}{short} {operands}");
            self.is(&text, |code| code.rmw(what, access, from, d, base));
        }
        let two = format!("{}, {}, [{}]", x(from), x(d), xs(base));
        self.is(&format!("ldadd {two}"), |code| {
            code.ldadd(DOUBLE, from, d, base)
        });
        self.is(&format!("ldset {two}"), |code| {
            code.ldset(DOUBLE, from, d, base)
        });
        self.is(&format!("ldclr {two}"), |code| {
            code.ldclr(DOUBLE, from, d, base)
        });
        self.is(&format!("swp {two}"), |code| {
            code.swp(DOUBLE, from, d, base)
        });
        let (size, short) = self.size();
        let (access, order) = self.access(size);
        let operands = format!("{}, {}, [{}]", sized(size, from), sized(size, d), xs(base));
        let text = format!("cas{order}{short} {operands}");
        self.is(&text, |code| code.cas(access, from, d, base));
        let (expected, new) = (2 * self.below(15) as u8, 2 * self.below(15) as u8);
        let (access, order) = self.access(DOUBLE);
        let [a, b, c, e] = [expected, expected + 1, new, new + 1].map(x);
        let text = format!("casp{order} {a}, {b}, {c}, {e}, [{}]", xs(base));
        self.is(&text, |code| code.casp(access, expected, new, base));
        let one = format!("{}, [{}]", sized(size, d), xs(base));
        self.is(&format!("ldar{short} {one}"), |code| {
            code.ldar(size, d, base)
        });
        self.is(&format!("stlr{short} {one}"), |code| {
            code.stlr(size, d, base)
        });
    }

    fn exclusive(&mut self) {
        let base = self.register();
        let first = self.other(&[base]);
        let second = self.other(&[base, first]);
        let status = self.other(&[base, first, second]);
        let (size, short) = self.size();
        let one = format!("{}, [{}]", sized(size, first), xs(base));
        let two = format!("{}, {}, [{}]", x(first), x(second), xs(base));
        let state = w(status);
        self.is(&format!("ldxr{short} {one}"), |code| {
            code.ldxr(size, first, base)
        });
        let acquires = size.acquire();
        self.is(&format!("ldaxr{short} {one}"), |code| {
            code.ldxr(acquires, first, base)
        });
        let text = format!("stxr{short} {state}, {one}");
        self.is(&text, |code| code.stxr(size, status, first, base));
        let text = format!("stlxr{short} {state}, {one}");
        self.is(&text, |code| code.stxr(size.release(), status, first, base));
        let pair = (first, second);
        self.is(&format!("ldxp {two}"), |code| code.ldxp(DOUBLE, pair, base));
        self.is(&format!("ldaxp {two}"), |code| {
            code.ldxp(DOUBLE.acquire(), pair, base)
        });
        let text = format!("stxp {state}, {two}");
        self.is(&text, |code| code.stxp(DOUBLE, status, pair, base));
        let text = format!("stlxp {state}, {two}");
        self.is(&text, |code| {
            code.stxp(DOUBLE.release(), status, pair, base)
        });
    }

    fn system(&mut self) {
        let register = self.register();
        for (which, name) in [
            (TPIDR_EL0, "tpidr_el0"),
            (NZCV, "nzcv"),
            (FPCR, "fpcr"),
            (FPSR, "fpsr"),
        ] {
            let text = format!("mrs {}, {name}", x(register));
            self.is(&text, |code| code.mrs(register, which));
            let text = format!("msr {name}, {}", x(register));
            self.is(&text, |code| code.msr(which, register));
        }
        let text = format!("mrs {}, cntfrq_el0", x(register));
        self.is(&text, |code| code.mrs(register, CNTFRQ_EL0));
        let text = format!("mrs {}, cntvct_el0", x(register));
        self.is(&text, |code| code.mrs(register, CNTVCT_EL0));
        self.is(&text, |code| code.rdtime(register));
    }

    fn fixed(&mut self) {
        type Method = fn(&mut Code<'_>);
        const METHODS: [(&str, Method); 21] = [
            ("nop", |code| code.nop()),
            ("yield", |code| code.yield_()),
            ("xpaclri", |code| code.xpaclri()),
            ("paciasp", |code| code.paciasp()),
            ("autiasp", |code| code.autiasp()),
            ("pacibsp", |code| code.pacibsp()),
            ("autibsp", |code| code.autibsp()),
            ("bti c", |code| code.bti_c()),
            ("bti j", |code| code.bti_j()),
            ("bti jc", |code| code.bti_jc()),
            ("retaa", |code| code.retaa()),
            ("retab", |code| code.retab()),
            ("clrex", |code| code.clrex()),
            ("dmb ish", |code| code.dmb_ish()),
            ("dmb ishld", |code| code.dmb_ishld()),
            ("dmb ishst", |code| code.dmb_ishst()),
            ("dsb ish", |code| code.dsb_ish()),
            ("isb", |code| code.isb()),
            ("dmb ishst", |code| code.fence_stores()),
            ("dmb ishld", |code| code.fence_loads()),
            ("ret", |code| code.ret()),
        ];
        for (text, write) in METHODS {
            self.piece(What::Alias(text), write);
        }
        let register = self.other(&[30]);
        self.is(&format!("br {}", x(register)), |code| code.br(register));
        self.is(&format!("blr {}", x(register)), |code| code.blr(register));
        self.is(&format!("blr {}", x(register)), |code| code.call(register));
        self.is(&format!("ret {}", x(register)), |code| {
            code.ret_by(register)
        });
    }

    /// Branches to places that are written already.
    fn branches(&mut self) {
        let (one, bit) = (self.register(), self.below(64) as u8);
        let (condition, name, _) = self.condition();
        type Write<'w> = &'w dyn Fn(&mut Code<'_>, hodo_isa::aarch64::asm::Label);
        let tested = if bit < 32 { w(one) } else { x(one) };
        let all: [(String, Write<'_>); 10] = [
            ("b ".into(), &|code, to| code.b(to)),
            ("bl ".into(), &|code, to| code.bl(to)),
            (format!("b.{name} "), &|code, to| code.b_if(condition, to)),
            (format!("cbz {}, ", x(one)), &|code, to| code.cbz(one, to)),
            (format!("cbnz {}, ", x(one)), &|code, to| code.cbnz(one, to)),
            (format!("cbz {}, ", w(one)), &|code, to| code.cbz_w(one, to)),
            (format!("cbnz {}, ", w(one)), &|code, to| {
                code.cbnz_w(one, to)
            }),
            (format!("tbz {tested}, #{bit}, "), &|code, to| {
                code.tbz(one, bit, to)
            }),
            (format!("tbnz {tested}, #{bit}, "), &|code, to| {
                code.tbnz(one, bit, to)
            }),
            (format!("ldr {}, ", x(one)), &|code, to| {
                code.ldr_label(one, to)
            }),
        ];
        for (text, write) in all {
            let here = self.here();
            // The label is at the first instruction, the reference at the second.
            let texts = vec!["hint #0x0".to_owned(), format!("{text}{here:#x}")];
            self.piece(What::Is(texts), |code| {
                let label = code.label_here();
                code.nop();
                write(code, label);
            });
        }
        let mut text = String::new();
        write!(text, "adr {}, {:#x}", x(one), self.here()).expect("text");
        self.is(&text, |code| {
            let label = code.label_here();
            code.address_of_label(one, label);
        });
    }

    fn constants(&mut self) {
        let d = self.below(31) as u8;
        let one = self.below(0x1_0000) << (16 * self.below(4));
        let half = self.below(4);
        let two = one & !(0xFFFF << (16 * half)) | self.below(0x1_0000) << (16 * half);
        let mask = self.mask();
        let changed = mask & !(0xFFFF << (16 * half)) | self.below(0x1_0000) << (16 * half);
        let any = self.random.next();
        for (value, most) in [
            (one, 1),
            (!one, 1),
            (0xFFFF_FFFF & !(one & 0xFFFF_FFFF), 2),
            (0xFFFF_FFFF ^ (one & 0xFFFF), 1),
            (two, 2),
            (!two, 2),
            (mask, 1),
            (mask & 0xFFFF_FFFF, 2),
            (changed, 2),
            (any >> 16, 3),
            (any | 0xFFFF << 32, 3),
            (any, 4),
        ] {
            self.piece(What::Puts(d, value, most), |code| code.li(d, value));
        }
    }

    fn addresses(&mut self, round: usize) {
        let d = self.below(31) as u8;
        let page = self.here() & !0xFFF;
        let distance = self.number(round, -1 << 32, (1 << 32) - 1);
        let value = page.wrapping_add_signed(distance);
        self.piece(What::Puts(d, value, 2), |code| {
            code.address(d, value, Reach::Page).expect("within reach");
        });
        self.piece(What::Puts(d, value, 4), |code| {
            code.address(d, value, Reach::Any).expect("anywhere");
        });
        let page = self.here() & !0xFFF;
        let from = page.wrapping_add_signed(distance) & !7;
        let (high, low) = (from & !0xFFF, from & 0xFFF);
        let load = format!("ldr {}, {}", x(d), at(&x(d), low.cast_signed()));
        let texts = vec![format!("adrp {}, {high:#x}", x(d)), load];
        self.piece(What::Is(texts), |code| {
            code.load_from(d, from).expect("within reach");
        });
        let near = self.number(round, -1 << 18, (1 << 18) - 1) * 4;
        let from = self.here().wrapping_add_signed(near);
        self.is(&format!("ldr {}, {from:#x}", x(d)), |code| {
            code.load_literal(d, from).expect("within reach");
        });
        let near = self.number(round, -1 << 25, (1 << 25) - 1) * 4;
        let to = self.here().wrapping_add_signed(near);
        self.is(&format!("b {to:#x}"), |code| {
            code.jump(to, Reach::Jump, d).expect("within reach");
        });
        let to = self.here().wrapping_add_signed(near);
        self.is(&format!("bl {to:#x}"), |code| {
            code.jump_and_link(to, Reach::Jump, d, 30)
                .expect("within reach");
        });
    }
}

fn q(number: u8) -> String {
    format!("q{number}")
}

fn d(number: u8) -> String {
    format!("d{number}")
}

fn at(base: &str, distance: i64) -> String {
    match distance {
        0 => format!("[{base}]"),
        _ => format!("[{base}, #{distance}]"),
    }
}
