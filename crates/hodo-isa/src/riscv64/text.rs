//! Instructions as text, in the assembler's syntax without aliases.

use alloc::string::String;
use core::fmt::Write;

use super::decode::Insn;
use super::decode::Kind;
use super::decode::Pattern;
use super::decode::operand::Operand::{self, *};
use super::decode::operand::{field, funct3, imm_b, imm_i, imm_j, imm_s, imm_u, rd, rs1, rs2, rs3};
use super::regs::{FLOAT_NAMES, NAMES};

/// The instruction at the start of `code` as text.
#[must_use]
pub fn text(code: &[u8], addr: u64) -> String {
    let (insn, written) = Insn::read(code, addr);
    let mut text = String::new();
    match insn.kind {
        Kind::Invalid => {
            let bytes = code.iter().take(insn.len.into());
            text.push_str(".byte ");
            for (index, byte) in bytes.enumerate() {
                let separator = if index == 0 { "" } else { ", " };
                let _ = write!(text, "{separator}0x{byte:02x}");
            }
            return text;
        }
        Kind::VectorMemory => push_access_name(&mut text, &insn),
        _ => {
            text.push_str(written.name);
            text.push_str(written.suffix);
        }
    }
    if matches!(
        insn.kind,
        Kind::LoadReserved(_) | Kind::StoreConditional(_) | Kind::Atomic(_)
    ) {
        text.push_str(["", ".rl", ".aq", ".aqrl"][field(insn.word, 25, 2) as usize]);
    }
    let mut first = true;
    for operand in written.operands {
        let before = text.len();
        let separator = if first { " " } else { ", " };
        text.push_str(separator);
        if !push_operand(&mut text, &insn, *operand) {
            text.truncate(before);
            continue;
        }
        first = false;
    }
    text
}

fn push_access_name(text: &mut String, insn: &Insn) {
    let Some(access) = insn.access() else {
        return;
    };
    let bits = u32::from(access.size) * 8;
    let fields = access.fields;
    let segments = fields > 1;
    text.push_str(if insn.word & 0x7F == 0x27 { "vs" } else { "vl" });
    // Formatting into memory does not fail.
    let _ = match access.pattern {
        Pattern::Mask => write!(text, "m.v"),
        Pattern::Whole if insn.word & 0x7F == 0x27 => write!(text, "{fields}r.v"),
        Pattern::Whole => write!(text, "{fields}re{bits}.v"),
        pattern => {
            text.push_str(match (pattern, field(insn.word, 26, 2)) {
                (Pattern::Strided, _) => "s",
                (Pattern::Indexed, 1) => "ux",
                (Pattern::Indexed, _) => "ox",
                _ => "",
            });
            if segments {
                let _ = write!(text, "seg{fields}");
            }
            text.push_str(if pattern == Pattern::Indexed {
                "ei"
            } else {
                "e"
            });
            let _ = write!(text, "{bits}");
            text.push_str(if pattern == Pattern::FaultFirst {
                "ff.v"
            } else {
                ".v"
            });
            Ok(())
        }
    };
}

/// Appends an operand. Returns whether there was anything to append.
fn push_operand(text: &mut String, insn: &Insn, operand: Operand) -> bool {
    let word = insn.word;
    let x = |number: u8| NAMES[usize::from(number)];
    let f = |number: u8| FLOAT_NAMES[usize::from(number)];
    let to = |distance: i64| insn.addr.wrapping_add_signed(distance);
    // Formatting into memory does not fail.
    let _ = match operand {
        Rd | RdRead | PairRd => write!(text, "{}", x(rd(word))),
        Rs1 => write!(text, "{}", x(rs1(word))),
        Rs2 | PairRs2 => write!(text, "{}", x(rs2(word))),
        Fd => write!(text, "{}", f(rd(word))),
        Fs1 => write!(text, "{}", f(rs1(word))),
        Fs2 => write!(text, "{}", f(rs2(word))),
        Fs3 => write!(text, "{}", f(rs3(word))),
        Vd | VdRead | Vs3 => write!(text, "v{}", rd(word)),
        Vs1 => write!(text, "v{}", rs1(word)),
        Vs2 => write!(text, "v{}", rs2(word)),
        ImmI => write!(text, "{}", imm_i(word)),
        ImmU => write!(text, "{:#x}", imm_u(word) >> 12 & 0xF_FFFF),
        Shamt6 => write!(text, "{:#x}", field(word, 20, 6)),
        Shamt5 => write!(text, "{:#x}", field(word, 20, 5)),
        Simm5 => write!(
            text,
            "{}",
            super::decode::operand::signed(rs1(word).into(), 5)
        ),
        Uimm5 | Zimm => write!(text, "{}", rs1(word)),
        Branch => write!(text, "{:#x}", to(imm_b(word))),
        Jump => write!(text, "{:#x}", to(imm_j(word))),
        MemI => write!(text, "{}({})", imm_i(word), x(rs1(word))),
        MemS => write!(text, "{}({})", imm_s(word), x(rs1(word))),
        MemPrefetch => write!(text, "{}({})", imm_s(word) & !31, x(rs1(word))),
        Mem => write!(text, "({})", x(rs1(word))),
        Csr => match csr_name(field(word, 20, 12)) {
            Some(name) => write!(text, "{name}"),
            None => write!(text, "{:#x}", field(word, 20, 12)),
        },
        Pred => return push_order(text, field(word, 24, 4)),
        Succ => return push_order(text, field(word, 20, 4)),
        Rm if funct3(word) == 7 => return false,
        Rm => {
            const MODES: [&str; 8] = ["rne", "rtz", "rdn", "rup", "rmm", "", "", ""];
            write!(text, "{}", MODES[funct3(word) as usize])
        }
        Vtype => return push_type(text, field(word, 20, 11)),
        VtypeImm => return push_type(text, field(word, 20, 10)),
        Mask if field(word, 25, 1) != 0 => return false,
        Mask => write!(text, "v0.t"),
        V0 => write!(text, "v0"),
    };
    true
}

fn push_order(text: &mut String, bits: u32) -> bool {
    for (index, letter) in ['i', 'o', 'r', 'w'].into_iter().enumerate() {
        if bits & 8 >> index != 0 {
            text.push(letter);
        }
    }
    if bits == 0 {
        text.push('0');
    }
    true
}

/// Appends a vector type: width of elements, registers in a group, and what happens to the other elements.
fn push_type(text: &mut String, bits: u32) -> bool {
    let (group, width) = (bits & 7, bits >> 3 & 7);
    let _ = if bits >> 8 != 0 || width > 3 || group == 4 {
        write!(text, "{bits}")
    } else {
        const GROUPS: [&str; 8] = ["m1", "m2", "m4", "m8", "", "mf8", "mf4", "mf2"];
        let tail = if bits & 0x40 != 0 { "ta" } else { "tu" };
        let mask = if bits & 0x80 != 0 { "ma" } else { "mu" };
        let group = GROUPS[group as usize];
        write!(text, "e{}, {group}, {tail}, {mask}", 8 << width)
    };
    true
}

/// Names of the control and status registers that programs use.
fn csr_name(number: u32) -> Option<&'static str> {
    Some(match number {
        0x001 => "fflags",
        0x002 => "frm",
        0x003 => "fcsr",
        0x008 => "vstart",
        0x009 => "vxsat",
        0x00A => "vxrm",
        0x00F => "vcsr",
        0x015 => "seed",
        0xC00 => "cycle",
        0xC01 => "time",
        0xC02 => "instret",
        0xC20 => "vl",
        0xC21 => "vtype",
        0xC22 => "vlenb",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_as_text() {
        let cases: [(&[u8], &str); 12] = [
            (&[0x41, 0x11], "c.addi sp, -16"),
            (&[0x06, 0xE4], "c.sdsp ra, 8(sp)"),
            (&[0x01, 0x00], "c.nop"),
            (&[0x82, 0x80], "c.jr ra"),
            (&[0x97, 0x20, 0, 0], "auipc ra, 0x2"),
            (&[0xE7, 0x80, 0xC0, 0xED], "jalr ra, -292(ra)"),
            (&[0xEF, 0x00, 0x00, 0x01], "jal ra, 0x1010"),
            (&[0x2F, 0xA5, 0x05, 0x14], "lr.w.aq a0, (a1)"),
            (&[0x73, 0x25, 0x10, 0xC0], "csrrs a0, time, zero"),
            (&[0x57, 0xF5, 0x85, 0x0D], "vsetvli a0, a1, e64, m1, ta, ma"),
            (&[0x57, 0x04, 0x88, 0x00], "vadd.vv v8, v8, v16, v0.t"),
            (&[0xFF, 0xFF], ".byte 0xff, 0xff"),
        ];
        for (code, expected) in cases {
            assert_eq!(text(code, 0x1000), expected, "{code:02x?}");
        }
    }
}
