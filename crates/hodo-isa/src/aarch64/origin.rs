//! Finds where jumps through registers lead.

use super::decode::{Insn, Kind};
use super::regs::{STACK, ZERO, general};
use crate::code::Origin;

/// What is known about the register that is jumped through, following the code backward.
enum Seen {
    /// It is the value of this one; nothing else is known.
    Register(u8),
    /// It is the sum of these; the second may be scaled.
    Sum(u8, u8),
}

/// Where a jump through a register gets its target, as far as the instructions before it show. `path` gives code and
/// address of each, the jump first, then backward.
#[must_use]
pub fn origin<'c>(path: impl IntoIterator<Item = (&'c [u8], u64)>) -> Origin {
    let mut path = path.into_iter().map(|(code, addr)| Insn::new(code, addr));
    let Some(jump) = path.next() else {
        return Origin::Computed;
    };
    let mut seen = Seen::Register(jump.rn());
    let mut leaves = false;
    let mut formed = false;
    for insn in path {
        if matches!(insn.kind, Kind::BranchLink | Kind::CallRegister) {
            // A value that the call returned, or that it preserved.
            leaves = true;
            break;
        }
        let changes = insn.effects().changes;
        let raises = insn
            .memory()
            .and_then(|memory| memory.moves)
            .or(insn.added());
        leaves |= changes & STACK != 0 && raises.is_some_and(|by| by > 0);
        match seen {
            Seen::Register(register) if changes & general(register) != 0 => {
                seen = match of_register(&insn, register) {
                    Ok(seen) => seen,
                    Err(origin) => return origin,
                };
            }
            Seen::Sum(a, b) if changes & (general(a) | general(b)) != 0 => {
                let (written, other) = if insn.rd() == a { (a, b) } else { (b, a) };
                match insn.kind {
                    Kind::Single if loads_distance(&insn) && insn.rd() == written => {
                        // A table of words may hold distances from its own start.
                        let own = insn.rn() == other && insn.field(30, 2) == 2 && !formed;
                        return if own {
                            Origin::Table
                        } else {
                            Origin::Distances
                        };
                    }
                    // This forms the base of the distances: a load before it uses another address.
                    Kind::Adr | Kind::Adrp | Kind::AddImmediate => formed = true,
                    _ => return Origin::Computed,
                }
            }
            _ => {}
        }
    }
    match seen {
        // The frame is gone: this is a tail call.
        Seen::Register(_) if leaves => Origin::Loaded,
        Seen::Register(_) => Origin::Open,
        Seen::Sum(..) => Origin::Computed,
    }
}

/// What an instruction that writes the register shows.
fn of_register(insn: &Insn, register: u8) -> Result<Seen, Origin> {
    if insn.rd() != register {
        // The base register of an access with writeback, or one of several registers that are written.
        return Err(match insn.kind {
            Kind::Pair if insn.ra() == register && insn.is_load() => Origin::Loaded,
            _ => Origin::Computed,
        });
    }
    match insn.kind {
        Kind::Single | Kind::Pair | Kind::LoadAcquire | Kind::LoadAuthenticated | Kind::Literal
            if insn.is_load() =>
        {
            Err(Origin::Loaded)
        }
        Kind::Ordered | Kind::OrderedUnscaled => Err(Origin::Loaded),
        Kind::Adr | Kind::Adrp => Err(Origin::Loaded),
        // Signed or authenticated: the address stays the same.
        Kind::Sign | Kind::SignZero | Kind::Hint => Ok(Seen::Register(register)),
        Kind::AddExtended | Kind::AddRegister if !insn.bit(30) => {
            Ok(Seen::Sum(insn.rn(), insn.rm()))
        }
        _ => match (insn.copied(), insn.added()) {
            (Some(ZERO), _) => Err(Origin::Computed),
            (Some(from), _) => Ok(Seen::Register(from)),
            (_, Some(_)) => Ok(Seen::Register(insn.rn())),
            _ => Err(Origin::Computed),
        },
    }
}

/// Whether an instruction loads a distance of 8, 16 or 32 bits from a table.
fn loads_distance(insn: &Insn) -> bool {
    insn.kind == Kind::Single && insn.is_load() && insn.field(30, 2) < 3
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn of(words: &[u32]) -> Origin {
        let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let at = |index: usize| (&code[index * 4..index * 4 + 4], index as u64 * 4);
        origin((0..words.len()).rev().map(at))
    }

    const BR_X1: u32 = 0xD61F_0020;

    #[test]
    fn origins_of_jumps() {
        // br x1, alone; ldr x1, [x0] before it; mov x1, x2 and a call
        assert_eq!(of(&[BR_X1]), Origin::Open);
        assert_eq!(of(&[0xF940_0001, BR_X1]), Origin::Loaded);
        assert_eq!(of(&[0x9400_0000, 0xAA02_03E1, BR_X1]), Origin::Loaded);
        // ldrb w0, [x0, w1, uxtw]; adr x1, .+8; add x1, x1, w0, sxtb #2
        let bytes = [0x3861_4800, 0x1000_0041, 0x8B20_8821, BR_X1];
        assert_eq!(of(&bytes), Origin::Distances);
        // ldrsw x10, [x1, x8, lsl #2]; add x1, x1, x10
        let words = [0xB8A8_782A, 0x8B0A_0021, BR_X1];
        assert_eq!(of(&words), Origin::Table);
        // The same from a register other than the table's: add x1, x2, x10
        assert_eq!(of(&[0xB8A8_782A, 0x8B0A_0041, BR_X1]), Origin::Distances);
        // eor x1, x1, x2
        assert_eq!(of(&[0xCA02_0021, BR_X1]), Origin::Computed);
    }
}
