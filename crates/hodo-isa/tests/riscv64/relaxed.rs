//! Code from the RISC-V assembler whose branches become as long as necessary, and how a disassembler must read it.

use hodo_isa::riscv64::asm::ops::Insns as _;
use hodo_isa::riscv64::asm::relax::{Asm, Op};
use hodo_isa::riscv64::asm::{If, Label};
use hodo_isa::riscv64::regs::{NAMES, ZERO};

use crate::written::{BASE, Choose, Line, What, effect};

/// How a part of the code must be read.
enum Part {
    Is(What),
    /// A conditional branch, or the opposite branch over a jump: the names of both branches, operands, target.
    Branch(&'static str, &'static str, String, Label),
    /// A jump to a label, with a link register.
    Jump(Label, u8),
    /// The address of a label.
    Address(u8, Label),
    /// Breakpoints.
    Hole,
}

pub struct Relaxed {
    pub bytes: Vec<u8>,
    /// The parts, each with the offset of its end.
    parts: Vec<(u64, Part)>,
    /// The labels and their addresses.
    labels: Vec<(Label, u64)>,
}

fn name(register: u8) -> &'static str {
    NAMES[usize::from(register)]
}

struct Writer<'c> {
    asm: Asm,
    choose: &'c mut dyn Choose,
    /// The targets of branches.
    labels: Vec<Label>,
}

impl Writer<'_> {
    fn register(&mut self) -> u8 {
        self.choose.below(32) as u8
    }

    fn other(&mut self) -> u8 {
        1 + self.choose.below(31) as u8
    }

    fn label(&mut self) -> Label {
        self.labels[self.choose.below(self.labels.len() as u64) as usize]
    }

    fn small(&mut self) -> i64 {
        match self.choose.below(3) {
            0 => self.choose.below(80) as i64 - 40,
            1 => self.choose.below(64) as i64 * 8,
            _ => self.choose.below(4096) as i64 - 2048,
        }
    }

    fn is(text: String) -> Part {
        Part::Is(What::Is(text))
    }

    fn part(&mut self) -> Part {
        match self.choose.below(16) {
            0..3 => self.branch(),
            3 => {
                let (label, link) = (self.label(), self.register());
                self.asm.call(link, label);
                Part::Jump(label, link)
            }
            4 => {
                let (label, rd) = (self.label(), self.other());
                self.asm.address(rd, label);
                Part::Address(rd, label)
            }
            5 => {
                let (register, link) = (self.other(), self.register());
                let to = BASE.wrapping_add(self.choose.below(1 << 31)) & !1;
                let to = to - (1 << 30);
                self.asm.far(to, register, link);
                Part::Is(What::Goes(to, link))
            }
            6 => {
                self.asm.hole(2 + 2 * self.choose.below(20) as usize);
                Part::Hole
            }
            7 => {
                let rd = self.other();
                let bits = self.choose.below(64);
                let value = self.choose.below(u64::MAX) >> bits;
                let value = value ^ self.choose.below(2).wrapping_neg();
                self.asm.li(rd, value);
                Part::Is(What::Puts(rd, value))
            }
            8 | 9 => self.operation(),
            10 | 11 => self.constant(),
            12 | 13 => self.memory(),
            _ => self.single(),
        }
    }

    fn branch(&mut self) -> Part {
        let names = ["beq", "bne", "blt", "bge", "bltu", "bgeu"];
        let conditions = [
            If::Equal,
            If::NotEqual,
            If::Less,
            If::NotLess,
            If::Below,
            If::NotBelow,
        ];
        let which = self.choose.below(6) as usize;
        let (left, right, label) = (self.register(), self.register(), self.label());
        self.asm.branch(conditions[which], left, right, label);
        let operands = format!("{},{},", name(left), name(right));
        Part::Branch(names[which], names[which ^ 1], operands, label)
    }

    fn operation(&mut self) -> Part {
        const ALL: [(&str, Op); 15] = [
            ("add", Op::ADD),
            ("sub", Op::SUB),
            ("sll", Op::SLL),
            ("slt", Op::SLT),
            ("sltu", Op::SLTU),
            ("xor", Op::XOR),
            ("srl", Op::SRL),
            ("sra", Op::SRA),
            ("or", Op::OR),
            ("and", Op::AND),
            ("mul", Op::MUL),
            ("div", Op::DIV),
            ("divu", Op::DIVU),
            ("rem", Op::REM),
            ("remu", Op::REMU),
        ];
        let (text, op) = ALL[self.choose.below(15) as usize];
        let (rd, left) = (self.other(), self.other());
        // A short form, if it exists, has two registers.
        let (left, right) = match self.choose.below(3) {
            0 => (rd, left),
            1 => (left, rd),
            _ => (left, self.other()),
        };
        self.asm.op(op, rd, left, right);
        // Addition is commutative, and is read in this order.
        let (left, right) = match text {
            "add" if right == rd => (right, left),
            _ => (left, right),
        };
        Self::is(format!(
            "{text} {},{},{}",
            name(rd),
            name(left),
            name(right)
        ))
    }

    fn constant(&mut self) -> Part {
        let rd = self.other();
        let left = [rd, self.register()][self.choose.below(2) as usize];
        let value = self.small();
        let bits = self.choose.below(64) as i64;
        let (text, op, value) = [
            ("addi", Op::ADD, value),
            ("andi", Op::AND, value),
            ("xori", Op::XOR, value),
            ("ori", Op::OR, value),
            ("slti", Op::SLT, value),
            ("slli", Op::SLL, bits),
            ("srli", Op::SRL, bits),
            ("srai", Op::SRA, bits),
        ][self.choose.below(8) as usize];
        self.asm.op_imm(op, rd, left, value);
        let value = match op {
            Op::SLL | Op::SRL | Op::SRA => format!("{value:#x}"),
            _ => value.to_string(),
        };
        Self::is(format!("{text} {},{},{value}", name(rd), name(left)))
    }

    fn memory(&mut self) -> Part {
        let (register, base, at) = (self.register(), self.register(), self.small());
        // Often the stack pointer, and registers that short forms can use.
        let base = [2, base, 8 + base % 8][self.choose.below(3) as usize];
        let which = self.choose.below(9) as usize;
        let text = ["lbu", "lhu", "lwu", "ld", "lh", "sb", "sh", "sw", "sd"][which];
        match which {
            0..4 => {
                self.asm.load(1 << which, register, base, at);
            }
            4 => {
                self.asm.load_signed_half(register, base, at);
            }
            _ => self.asm.store(1 << (which - 5), register, base, at, ZERO),
        }
        Self::is(format!("{text} {},{at}({})", name(register), name(base)))
    }

    fn single(&mut self) -> Part {
        let (rd, from, base) = (self.other(), self.register(), self.register());
        let text = match self.choose.below(9) {
            0 => {
                self.asm.amoadd_d(rd, from, base);
                format!("amoadd.d {},{},({})", name(rd), name(from), name(base))
            }
            1 => {
                self.asm.lr_d_aq(rd, base);
                format!("lr.d.aq {},({})", name(rd), name(base))
            }
            2 => {
                self.asm.sc_d(rd, from, base);
                format!("sc.d {},{},({})", name(rd), name(from), name(base))
            }
            3 => {
                self.asm.fence_stores();
                "fence w,w".into()
            }
            4 => {
                self.asm.fence_loads();
                "fence r,r".into()
            }
            5 => {
                self.asm.rdtime(rd);
                format!("csrrs {},time,zero", name(rd))
            }
            6 => {
                let by = 16 * (self.choose.below(100) as i64 - 50);
                self.asm.stack(by);
                format!("addi sp,sp,{by}")
            }
            7 => {
                self.asm.ret();
                return Part::Is(What::Goes(0, ZERO));
            }
            _ => {
                self.asm.sext_w(rd, rd);
                format!("addiw {},{},0", name(rd), name(rd))
            }
        };
        Self::is(text)
    }
}

impl Relaxed {
    /// Writes this many parts, with labels between them.
    pub fn new(choose: &mut dyn Choose, count: usize) -> Self {
        let mut writer = Writer {
            asm: Asm::default(),
            choose,
            labels: Vec::new(),
        };
        let labels = 1 + count / 10;
        writer.labels = (0..labels).map(|_| writer.asm.label()).collect();
        let mut places = Vec::new();
        let mut parts = Vec::new();
        for at in 0..=count {
            for which in 0..labels {
                if which * count / labels == at {
                    writer.asm.bind(writer.labels[which]);
                    places.push(writer.labels[which]);
                }
            }
            if at < count {
                let part = writer.part();
                parts.push((writer.asm.here(), part));
            }
        }
        let laid = writer.asm.lay(BASE).expect("in reach");
        let at = |label: Label| laid.labels.at(label);
        Self {
            parts: parts
                .into_iter()
                .map(|(end, part)| (at(end), part))
                .collect(),
            labels: places
                .into_iter()
                .map(|label| (label, BASE + at(label)))
                .collect(),
            bytes: laid.bytes,
        }
    }

    fn address(&self, label: Label) -> u64 {
        let mut found = self.labels.iter().filter(|known| known.0 == label);
        found.next().expect("a label that is bound").1
    }

    /// Checks that the lines are what was written. Returns the number of long branches.
    pub fn check(&self, lines: &[Line]) -> usize {
        let mut wide = 0;
        let mut rest = lines;
        for (end, part) in &self.parts {
            let count = rest.partition_point(|line| line.addr < BASE + end);
            let (these, others) = rest.split_at(count);
            rest = others;
            let full: Vec<Line> = these.iter().map(full).collect();
            let texts: Vec<String> = full.iter().map(text).collect();
            match part {
                Part::Is(What::Is(what)) => assert_eq!(texts, [what.replace("0x", "")]),
                Part::Is(What::Goes(0, ZERO)) => assert_eq!(texts, ["jalr zero,0(ra)"]),
                Part::Is(what) => assert_eq!(effect(&full), *what),
                Part::Jump(to, link) => {
                    assert_eq!(effect(&full), What::Goes(self.address(*to), *link));
                }
                Part::Address(rd, of) => {
                    assert_eq!(effect(&full), What::Puts(*rd, self.address(*of)));
                }
                Part::Hole => assert!(texts.iter().all(|text| text == "c.ebreak ")),
                Part::Branch(name, opposite, operands, to) => {
                    let to = self.address(*to);
                    let distance = to.wrapping_sub(these[0].addr).cast_signed();
                    let near = format!("{name} {operands}{to:x}");
                    if let [one] = &texts[..] {
                        assert_eq!(*one, near);
                        continue;
                    }
                    // A branch is long only if its target is out of reach of a short one.
                    assert!(!(-4096..4094).contains(&distance), "{near}");
                    let over = these[0].addr + 8;
                    let far = [
                        format!("{opposite} {operands}{over:x}"),
                        format!("jal zero,{to:x}"),
                    ];
                    assert_eq!(texts, far);
                    wide += 1;
                }
            }
        }
        assert!(rest.is_empty(), "{} instructions more", rest.len());
        wide
    }
}

fn text(line: &Line) -> String {
    format!("{} {}", line.name, line.operands.replace("0x", ""))
}

/// Rewrites the line of a 16-bit instruction as that of the same 32-bit instruction, except for breakpoints.
fn full(line: &Line) -> Line {
    let operands: Vec<&str> = line.operands.split(',').collect();
    let (name, operands) = match (line.name.as_str(), &operands[..]) {
        ("c.li", [rd, value]) => ("addi", format!("{rd},zero,{value}")),
        ("c.mv", [rd, from]) => ("addi", format!("{rd},{from},0")),
        ("c.jr", [to]) => ("jalr", format!("zero,0({to})")),
        ("c.addi4spn", [rd, _, value]) => ("addi", format!("{rd},sp,{value}")),
        ("c.addi16sp", [_, value]) => ("addi", format!("sp,sp,{value}")),
        ("c.lui", [rd, value]) => ("lui", format!("{rd},{value}")),
        ("c.ld" | "c.ldsp", _) => ("ld", line.operands.clone()),
        ("c.sd" | "c.sdsp", _) => ("sd", line.operands.clone()),
        ("c.ebreak", _) => ("c.ebreak", String::new()),
        (short, [rd, last]) => match short.strip_prefix("c.") {
            Some(name) => (name, format!("{rd},{rd},{last}")),
            None => (short, line.operands.clone()),
        },
        (name, _) => (name, line.operands.clone()),
    };
    Line {
        name: name.to_owned(),
        operands,
        ..*line
    }
}
