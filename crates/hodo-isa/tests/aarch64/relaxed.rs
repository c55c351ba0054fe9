//! Code whose branches become as long as they must, and how GNU's disassembler must read it, without aliases.

use hodo_isa::aarch64::asm::Label;
use hodo_isa::aarch64::asm::operand::Cond;
use hodo_isa::aarch64::asm::ops::Insns as _;
use hodo_isa::aarch64::asm::relax::Asm;

use super::common::{Line, Random};
use super::full;
use super::written::{BASE, w, x};

/// How a part must be read.
enum Part {
    /// One instruction.
    Is(String),
    /// A branch: its name and operands, those of the opposite branch, and how far it reaches back and, but for one
    /// instruction, forward.
    Branch(String, String, i64, Label),
    /// A jump, with its link register.
    Jump(u8, Label),
    /// The address of a label in a register.
    Address(u8, Label),
    /// Breakpoints.
    Hole,
}

/// Finished code, and how it must be read.
pub struct Relaxed {
    pub bytes: Vec<u8>,
    parts: Vec<(u64, Part)>,
    labels: Vec<(Label, u64)>,
}

struct Writer<'r> {
    asm: Asm,
    random: &'r mut Random,
    labels: Vec<Label>,
    holes: Vec<usize>,
}

impl Writer<'_> {
    fn part(&mut self) -> Part {
        let register = self.random.below(31) as u8;
        let to = self.labels[self.random.below(self.labels.len() as u64) as usize];
        let (one, half) = (x(register), w(register));
        match self.random.below(12) {
            0 => {
                self.asm.cbz(register, to);
                Part::Branch(format!("cbz {one}, "), format!("cbnz {one}, "), 1 << 20, to)
            }
            1 => {
                self.asm.cbnz_w(register, to);
                Part::Branch(
                    format!("cbnz {half}, "),
                    format!("cbz {half}, "),
                    1 << 20,
                    to,
                )
            }
            2 => {
                self.asm.b_if(Cond::Hi, to);
                Part::Branch("b.hi ".into(), "b.ls ".into(), 1 << 20, to)
            }
            3..6 => {
                let bit = self.random.below(64) as u8;
                let tested = if bit < 32 { half } else { one };
                let text = |name: &str| format!("{name} {tested}, #{bit}, ");
                let (clear, set) = (text("tbz"), text("tbnz"));
                if bit.is_multiple_of(2) {
                    self.asm.tbz(register, bit, to);
                    Part::Branch(clear, set, 1 << 15, to)
                } else {
                    self.asm.tbnz(register, bit, to);
                    Part::Branch(set, clear, 1 << 15, to)
                }
            }
            6 => {
                self.asm.jump(to);
                Part::Jump(31, to)
            }
            7 => {
                let link = [30, register][self.random.below(2) as usize];
                self.asm.call(link, to);
                Part::Jump(link, to)
            }
            8 => {
                self.asm.address(register, to);
                Part::Address(register, to)
            }
            9 => {
                let len = 4 * self.random.below(2000) as usize;
                // It gets its length at the end.
                self.asm.hole(0);
                self.holes.push(len);
                Part::Hole
            }
            _ => {
                self.asm.mov(register, 0);
                Part::Is(format!("orr {one}, xzr, x0"))
            }
        }
    }
}

impl Relaxed {
    /// Writes this many parts, with labels between them.
    pub fn new(random: &mut Random, count: usize) -> Self {
        let mut writer = Writer {
            asm: Asm::default(),
            random,
            labels: Vec::new(),
            holes: Vec::new(),
        };
        let labels = 1 + count / 10;
        writer.labels = (0..labels).map(|_| writer.asm.label()).collect();
        let mut parts = Vec::new();
        for at in 0..=count {
            for which in 0..labels {
                if which * count / labels == at {
                    writer.asm.bind(writer.labels[which]);
                }
            }
            if at < count {
                let part = writer.part();
                parts.push((writer.asm.here(), part));
            }
        }
        let holes = writer.holes;
        writer.asm.set_holes(&holes);
        let laid = writer.asm.lay(BASE).expect("within reach");
        let at = |label: Label| BASE + laid.labels.at(label);
        Self {
            parts: parts
                .into_iter()
                .map(|(end, part)| (at(end), part))
                .collect(),
            labels: writer
                .labels
                .into_iter()
                .map(|label| (label, at(label)))
                .collect(),
            bytes: laid.bytes,
        }
    }

    fn address(&self, label: Label) -> u64 {
        let found = self.labels.iter().find(|known| known.0 == label);
        found.expect("a label that is bound").1
    }

    /// Checks that the lines are what was written. Returns the number of long branches.
    pub fn check(&self, lines: &[Line]) -> usize {
        let mut long = 0;
        let mut rest = lines;
        for (end, part) in &self.parts {
            let count = rest.partition_point(|line| line.addr < *end);
            let (these, others) = rest.split_at(count);
            rest = others;
            let texts: Vec<String> = these.iter().map(full).collect();
            match part {
                Part::Is(text) => assert_eq!(texts, [text.as_str()]),
                Part::Hole => assert!(texts.iter().all(|text| text == "brk #0x0")),
                Part::Jump(link, to) => {
                    let to = self.address(*to);
                    let expected = match link {
                        31 => vec![format!("b {to:#x}")],
                        30 => vec![format!("bl {to:#x}")],
                        _ => {
                            let back = format!("adr {}, {end:#x}", x(*link));
                            vec![back, format!("b {to:#x}")]
                        }
                    };
                    assert_eq!(texts, expected);
                }
                Part::Address(register, of) => {
                    let of = self.address(*of);
                    assert_eq!(super::value(these, *register), of);
                    let near = (-1 << 20..1 << 20).contains(&distance(these, of));
                    assert_eq!(texts.len(), if near { 1 } else { 2 });
                }
                Part::Branch(name, opposite, reach, to) => {
                    let to = self.address(*to);
                    if let [one] = &texts[..] {
                        assert_eq!(*one, format!("{name}{to:#x}"));
                        continue;
                    }
                    // A branch is long only if its target is out of reach of a short one.
                    let near = (-*reach..*reach - 4).contains(&distance(these, to));
                    assert!(!near, "{name}{to:#x}");
                    assert_eq!(texts, [format!("{opposite}{end:#x}"), format!("b {to:#x}")]);
                    long += 1;
                }
            }
        }
        assert!(rest.is_empty(), "{} instructions more", rest.len());
        long
    }
}

/// How far it is to an address.
fn distance(lines: &[Line], to: u64) -> i64 {
    to.wrapping_sub(lines[0].addr).cast_signed()
}
