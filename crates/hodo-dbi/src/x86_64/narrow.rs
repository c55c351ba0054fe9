//! Near branches with the prefix 66: on some processors they lead to addresses of two bytes.

use hodo_isa::x86_64::decode::{self, Insn, Kind};

use super::features::narrows_branches;

/// Decodes the instruction at the start of `code` as this processor does. [`Kind::Stop`]: among others, a near branch
/// that leads to an address of two bytes.
pub(super) fn decode(code: &[u8; 16]) -> Option<Insn> {
    let mut insn = decode::decode(code)?;
    if is_narrow(code, insn) && narrows_branches() {
        let is_long = matches!(insn.kind, Kind::Call | Kind::Jump | Kind::Branch)
            && insn.len > insn.opcode + 2;
        insn.len -= 2 * u8::from(is_long);
        insn.kind = Kind::Stop;
    }
    Some(insn)
}

/// Whether a near branch has a prefix for operands of two bytes.
fn is_narrow(code: &[u8; 16], insn: Insn) -> bool {
    const SHORT: u8 = 0x66;
    const WIDE: u8 = 8;
    let is_near = match insn.kind {
        Kind::Branch | Kind::Jump | Kind::Call | Kind::Return | Kind::ReturnPop | Kind::Loop => {
            true
        }
        Kind::Group5 => matches!(code[usize::from(insn.modrm)] >> 3 & 7, 2 | 4),
        _ => false,
    };
    is_near && insn.rex & WIDE == 0 && code[..usize::from(insn.opcode)].contains(&SHORT)
}

/// What a branch does that leads to an address of two bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Narrow {
    /// A conditional branch, with its condition, to the end of an address.
    Branch(u8, u16),
    /// `loop` or `jrcxz`
    Loop(u16),
    Jump(u16),
    Call(u16),
}

/// The branch to an address of two bytes at `pc`, if the instruction is one whose target is in its bytes.
pub(super) fn narrow(pc: u64, code: &[u8; 16], insn: Insn) -> Option<Narrow> {
    let (at, len) = (usize::from(insn.opcode), usize::from(insn.len));
    let original = decode::decode(code).filter(|found| is_narrow(code, *found))?;
    let distance = match len - at {
        2 => i16::from(code[len - 1].cast_signed()),
        3 => i16::from_le_bytes([code[len - 2], code[len - 1]]),
        _ => return None,
    };
    let to = (pc as u16)
        .wrapping_add(len as u16)
        .wrapping_add_signed(distance);
    Some(match original.kind {
        Kind::Branch => Narrow::Branch(code[at] & 15, to),
        Kind::Loop => Narrow::Loop(to),
        Kind::Jump => Narrow::Jump(to),
        Kind::Call => Narrow::Call(to),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn narrow_at(pc: u64, bytes: &[u8], len: u8) -> Option<Narrow> {
        let mut code = [0; 16];
        code[..bytes.len()].copy_from_slice(bytes);
        let insn = decode::decode(&code).expect("it is one");
        narrow(pc, &code, Insn { len, ..insn })
    }

    #[test]
    fn branches_with_a_prefix_lead_to_addresses_of_two_bytes() {
        assert_eq!(
            narrow_at(0x7FFF0, &[0x66, 0xEB, 0x10], 3),
            Some(Narrow::Jump(3))
        );
        let long = narrow_at(0x41000, &[0x66, 0xE9, 0xFC, 0xEF], 4);
        assert_eq!(long, Some(Narrow::Jump(0)));
        let call = narrow_at(0x41000, &[0x66, 0xE8, 0, 0], 4);
        assert_eq!(call, Some(Narrow::Call(0x1004)));
        let branch = narrow_at(0x41000, &[0x66, 0x0F, 0x85, 1, 0], 5);
        assert_eq!(branch, Some(Narrow::Branch(5, 0x1006)));
        assert_eq!(
            narrow_at(0x41000, &[0x66, 0xE2, 0xFE], 3),
            Some(Narrow::Loop(0x1001))
        );
        // With REX.W, they are as wide as others.
        assert_eq!(narrow_at(0x41000, &[0x66, 0x48, 0xE8, 0, 0, 0, 0], 7), None);
        assert_eq!(narrow_at(0x41000, &[0x66, 0x90], 2), None);
    }
}
