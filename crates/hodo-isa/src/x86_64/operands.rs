//! Finds operands that lead to code or address data, without decoding the instructions around them.

use core::ops::Range;

use crate::code::Operand;

/// Calls `found` for each four bytes among `places` (indices in `code`, whose first byte is at `addr`) that may be a
/// relative or absolute operand of an instruction: one that leads to or addresses something in `text`, or forms an
/// address in `span`, which includes `text`. No such operand is left out, but most of the bytes that look like one
/// are parts of others. `fixed`: constants may be addresses.
pub fn operands(
    (code, addr): (&[u8], u64),
    places: Range<usize>,
    (text, span): (&Range<u64>, &Range<u64>),
    fixed: bool,
    found: &mut dyn FnMut(Operand),
) {
    let size = span.end - span.start;
    // Each operand comes after a byte of its instruction.
    let first = places.start.saturating_sub(1);
    let bytes = code
        .get(first..code.len().min(places.end + 3))
        .unwrap_or_default();
    for (index, window) in bytes.array_windows::<5>().enumerate() {
        let [before, a, b, c, d] = *window;
        let word = i64::from(i32::from_le_bytes([a, b, c, d]));
        let at = first + index + 1;
        let place = addr + at as u64;
        let to = place.wrapping_add(4).wrapping_add_signed(word);
        if to.wrapping_sub(span.start) < size {
            let forms = is_relative(before) && is_lea(&code[..at]);
            if forms || text.contains(&to) && before_distance(before) {
                found(Operand {
                    at: place,
                    to,
                    forms,
                    constant: false,
                });
            }
        }
        let to = word.cast_unsigned();
        let is_address = || fixed || text.contains(&to) && before_address(before);
        if to.wrapping_sub(span.start) < size && is_address() {
            found(Operand {
                at: place,
                to,
                forms: fixed,
                constant: true,
            });
        }
    }
}

/// Whether these bytes end with the beginning of `lea reg, [rip + …]`.
fn is_lea(before: &[u8]) -> bool {
    matches!(before, [.., rex, 0x8D, modrm] if rex & 0xF8 == 0x48 && is_relative(*modrm))
}

/// Whether this is the byte after which the operand `[rip + …]` has its distance.
const fn is_relative(modrm: u8) -> bool {
    modrm & 0xC7 == 5
}

/// Whether a distance of 32 bits may come after this byte: that of a call, jump, conditional jump or `xbegin`, or of
/// data.
const fn before_distance(byte: u8) -> bool {
    matches!(byte, 0xE8 | 0xE9 | 0xF8 | 0x80..=0x8F) || is_relative(byte)
}

/// Whether the address of data may come after this byte: one with a base, which is none, or one of an operand without
/// registers.
const fn before_address(byte: u8) -> bool {
    byte & 7 == 5 || matches!(byte, 0xA0..=0xA3)
}
