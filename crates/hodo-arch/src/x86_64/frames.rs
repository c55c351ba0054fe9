//! Frame information for an island: how unwinders get from a stub's return point to the traced function's caller.
//!
//! At the return point of a stub the stack pointer is S + 8, and the real return address is in the shadow of S. One
//! FDE covers all stubs: CFA = rsp − 8 (it must differ from the caller's, or libgcc takes the stub for the frame that
//! handles an exception), rsp = CFA + 8, return address in the word at CFA − distance. A second one covers the hooks.
//! In front of them there is room for others, of single instructions at which a signal arrived (see `interrupted`): they
//! are written while the program runs, so the table has no index, and unwinders go through it from its start.
//! Encodings: DWARF 5, section 6.4; LSB 5.0, section 10.6 (`.eh_frame`, `.eh_frame_hdr`).

use super::hooks::FRAME;
use super::interrupted::Found;

/// Bytes that [`build`] needs at most.
pub const SIZE: usize = 512 + SLOTS * SLOT + (SLOTS + 1) * PAIR;
/// How many instructions at which signals arrived can have their entry at once.
pub const SLOTS: usize = 128;
/// Bytes of such an entry.
const SLOT: usize = 48;
/// Bytes of an instruction's address and of the one it stands for.
const PAIR: usize = 16;

/// The tables of one island.
#[derive(Debug, Clone)]
pub struct Frames {
    /// The bytes; position independent except for their distance to the code.
    pub bytes: Vec<u8>,
    /// Offset in `bytes` of the `.eh_frame_hdr`.
    pub header: usize,
    /// Offset in `bytes` of two program headers: the island, and its `.eh_frame_hdr`.
    pub program_headers: usize,
    /// Offset in `bytes` of an empty string.
    pub name: usize,
    /// Offsets in `bytes` of the rules of stubs and of functions.
    pub rules: [usize; 2],
    /// Offset in `bytes` of the room for instructions at which signals arrived.
    pub slots: usize,
    /// Offset in `bytes` of a list of instructions at which signals arrived: address in the island and address in the
    /// program, or 1 and 0; a pair of zeros is its end.
    pub pairs: usize,
}

fn entry(body: &[u8]) -> Vec<u8> {
    let mut body = body.to_vec();
    while !(body.len() + 4).is_multiple_of(8) {
        body.push(0); // DW_CFA_nop
    }
    let mut out = (body.len() as u32).to_le_bytes().to_vec();
    out.extend(body);
    out
}

fn cie(rules: &[u8]) -> Vec<u8> {
    // id 0; version 1; "zR"; code alignment 1; data alignment -8; return address in column 16; pointers pc-relative.
    let mut body = vec![0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1B];
    body.extend(rules);
    entry(&body)
}

/// Offsets are from the island's start: `at` of the tables, `hooks` of the hooks' code, `size` of the island.
#[must_use]
pub fn build(at: u32, hooks: std::ops::Range<u32>, size: u32, shadow_distance: u64) -> Frames {
    let mut stub_rules = vec![
        0x12, 7, 1, // DW_CFA_def_cfa_sf: rsp + 1 * -8
        0x16, 7, 2, 0x23, 8, // DW_CFA_val_expression: rsp = CFA + 8
        0x16, 16, 15,
        0x0E, // DW_CFA_val_expression: return address = what is at CFA - distance
    ];
    stub_rules.extend(shadow_distance.to_le_bytes());
    // minus, deref; without the top bit, which marks open frames: shl 1, shr 1.
    stub_rules.extend([0x1C, 0x06, 0x31, 0x24, 0x31, 0x25]);
    let hook_rules = [
        0x0C,
        7,
        FRAME + 8, // DW_CFA_def_cfa: rsp + frame + 8
        0x90,
        1, // DW_CFA_offset: return address at CFA - 8
    ];
    let ranges = [
        (0..hooks.start, 0),
        (hooks.clone(), 1),
        (hooks.end..size, 0),
    ];
    let cies = [cie(&stub_rules), cie(&hook_rules)];
    let cie_at = [0, cies[0].len()];
    let mut frames = cies.concat();
    let slots = frames.len();
    // What unwinders have no use for and skip: rules that nothing refers to.
    frames.extend(unused(SLOTS));
    frames.resize(slots + SLOTS * SLOT, 0);
    // The header: version, encodings (no count, no index), pointer.
    let header_size = 8;
    let header = 0usize;
    let frames_at = header_size;
    let relative = |target: i64, from: i64| ((target - from) as i32).to_le_bytes();
    for (range, kind) in &ranges {
        let fde_at = frames.len();
        let mut body = ((fde_at + 4 - cie_at[*kind]) as u32).to_le_bytes().to_vec();
        let field = i64::from(at) + (frames_at + fde_at + 8) as i64;
        body.extend(relative(i64::from(range.start), field));
        body.extend((range.end - range.start).to_le_bytes());
        body.push(0);
        frames.extend(entry(&body));
    }
    frames.extend([0; 4]);
    let mut bytes = vec![1, 0x1B, 0xFF, 0xFF];
    bytes.extend(((frames_at - 4) as u32).to_le_bytes());
    bytes.extend(frames);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    let program_headers = bytes.len();
    for (kind, start, len) in [
        (1u32, 0u64, u64::from(size)),
        (0x6474_E550, u64::from(at), header_size as u64),
    ] {
        bytes.extend(kind.to_le_bytes());
        bytes.extend(5u32.to_le_bytes());
        for word in [start, start, start, len, len, 8] {
            bytes.extend(word.to_le_bytes());
        }
    }
    let name = bytes.len();
    bytes.extend([0; 8]);
    let pairs = bytes.len();
    bytes.resize(pairs + (SLOTS + 1) * PAIR, 0);
    assert!(bytes.len() <= SIZE, "frame tables of {} bytes", bytes.len());
    Frames {
        bytes,
        header,
        program_headers,
        name,
        rules: cie_at.map(|cie| frames_at + cie),
        slots: frames_at + slots,
        pairs,
    }
}

/// The start of an entry that covers so many slots and says nothing.
fn unused(slots: usize) -> [u8; 8] {
    let mut start = [0; 8];
    start[..4].copy_from_slice(&((slots * SLOT) as u32 - 4).to_le_bytes());
    start
}

impl Frames {
    /// What to write, in this order, so that an instruction has its own entry: offsets as in `self` and bytes. `slot` is the
    /// number of entries there are; the instruction's addresses are relative to what the offsets are relative to. `pair` has
    /// the instruction's runtime address and that of the program's instruction for which it stands, if there is one.
    #[must_use]
    pub fn interrupted(
        &self,
        slot: usize,
        found: &Found,
        pair: Option<(u64, u64)>,
    ) -> Vec<(usize, Vec<u8>)> {
        let at = self.slots + slot * SLOT;
        let rules = self.rules[usize::from(!found.rule.shadow)];
        let mut body = ((at + 4 - rules) as u32).to_le_bytes().to_vec();
        body.extend((found.at.start as i64 - (at + 8) as i64).to_le_bytes()[..4].iter());
        body.extend(((found.at.end - found.at.start) as u32).to_le_bytes());
        body.push(0);
        body.extend(found.rule.instructions());
        body.resize(SLOT - 4, 0);
        let mut whole = (SLOT as u32 - 4).to_le_bytes().to_vec();
        whole.extend(body);
        let (start, rest) = whole.split_at(8);
        let mut writes = vec![(at + 8, rest.to_vec())];
        if slot + 1 < SLOTS {
            writes.push((at + SLOT, unused(SLOTS - slot - 1).to_vec()));
        }
        // Until now whoever reads the table sees unused room here.
        writes.push((at, start.to_vec()));
        let (from, to) = pair.unwrap_or((1, 0));
        let pair = self.pairs + slot * PAIR;
        writes.push((pair + 8, to.to_le_bytes().to_vec()));
        writes.push((pair, from.to_le_bytes().to_vec()));
        writes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(bytes: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    /// Goes through the entries as unwinders do: start and length of the first that has this address.
    fn find(frames: &Frames, tables: usize, pc: i64) -> Option<(i64, u32)> {
        let bytes = &frames.bytes;
        let mut at = 4 + word(bytes, 4) as usize;
        loop {
            let len = word(bytes, at) as usize;
            if len == 0 {
                return None;
            }
            if word(bytes, at + 4) != 0 {
                let rules = at + 4 - word(bytes, at + 4) as usize;
                assert!(frames.rules.contains(&rules));
                let start = i64::from(word(bytes, at + 8).cast_signed()) + (tables + at + 8) as i64;
                let size = word(bytes, at + 12);
                if (start..start + i64::from(size)).contains(&pc) {
                    return Some((start, size));
                }
            }
            at += 4 + len;
        }
    }

    #[test]
    fn every_address_has_an_entry_and_interrupted_ones_their_own() {
        let tables = 256;
        let hooks = (tables + SIZE) as u32..(tables + SIZE + 2048) as u32;
        let mut frames = build(tables as u32, hooks.clone(), 1 << 20, 0x1000_0000_0840);
        let end = i64::from(hooks.end);
        let rest = (end, (1 << 20) - hooks.end);
        assert_eq!(find(&frames, tables, 5), Some((0, hooks.start)));
        assert_eq!(
            find(&frames, tables, i64::from(hooks.start)).unwrap().1,
            2048
        );
        assert_eq!(find(&frames, tables, 0xF_FFFF), Some(rest));
        for slot in 0..SLOTS {
            let start = 0x1_0000 + slot as u64 * 8;
            let rule = super::super::interrupted::Rule {
                depth: 24,
                shadow: slot % 2 == 1,
                pushed: [Some(8); 6],
            };
            let found = Found {
                at: start..start + 3,
                rule,
                before_return: true,
            };
            let mut moved = frames.clone();
            moved.slots += tables;
            moved.pairs += tables;
            moved.rules = moved.rules.map(|rules| rules + tables);
            for (at, bytes) in moved.interrupted(slot, &found, Some((start, 7))) {
                frames.bytes[at - tables..][..bytes.len()].copy_from_slice(&bytes);
            }
            assert_eq!(
                find(&frames, tables, start as i64 + 2),
                Some((start as i64, 3))
            );
            assert_eq!(find(&frames, tables, start as i64 + 3), Some(rest));
        }
        assert_eq!(find(&frames, tables, 0x1_0000), Some((0x1_0000, 3)));
    }
}
