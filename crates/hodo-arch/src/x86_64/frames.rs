//! Frame information for an island: how unwinders get from a stub's return point to the traced function's caller.
//!
//! At the return point of a stub the stack pointer is S + 8, and the real return address is in the shadow of S. One
//! FDE covers all stubs: CFA = rsp − 8 (it must differ from the caller's, or libgcc takes the stub for the frame that
//! handles an exception), rsp = CFA + 8, return address in the word at CFA − distance. A second one covers the hooks.
//! Encodings: DWARF 5, section 6.4; LSB 5.0, section 10.6 (`.eh_frame`, `.eh_frame_hdr`).

use super::hooks::FRAME;

/// Bytes that [`build`] needs at most.
pub const SIZE: usize = 512;

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
    // The header: version, encodings, pointer, count, table.
    let header_size = 4 + 4 + 4 + ranges.len() * 8;
    let header = 0usize;
    let frames_at = header_size.next_multiple_of(8);
    let relative = |target: i64, from: i64| ((target - from) as i32).to_le_bytes();
    let mut table = Vec::new();
    for (range, kind) in &ranges {
        let fde_at = frames.len();
        let mut body = ((fde_at + 4 - cie_at[*kind]) as u32).to_le_bytes().to_vec();
        let field = i64::from(at) + (frames_at + fde_at + 8) as i64;
        body.extend(relative(i64::from(range.start), field));
        body.extend((range.end - range.start).to_le_bytes());
        body.push(0);
        frames.extend(entry(&body));
        let base = i64::from(at) + header as i64;
        table.extend(relative(i64::from(range.start), base));
        table.extend(((frames_at + fde_at - header) as u32).to_le_bytes());
    }
    frames.extend([0; 4]);
    let mut bytes = vec![1, 0x1B, 0x03, 0x3B];
    bytes.extend(((frames_at - 4) as u32).to_le_bytes());
    bytes.extend((ranges.len() as u32).to_le_bytes());
    bytes.extend(table);
    bytes.resize(frames_at, 0);
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
    assert!(bytes.len() <= SIZE, "frame tables of {} bytes", bytes.len());
    Frames {
        bytes,
        header,
        program_headers,
        name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_sorted_and_point_to_their_entries() {
        let frames = build(256, 1024..2048, 1 << 20, 0x1000_0000_0840);
        let word = |at: usize| i32::from_le_bytes(frames.bytes[at..at + 4].try_into().unwrap());
        assert_eq!(word(8), 3);
        let mut last = i32::MIN;
        for index in 0..3 {
            let start = word(12 + index * 8);
            assert!(start > last);
            last = start;
            let fde = word(16 + index * 8) as usize;
            // The FDE's own start is relative to its field, the table's to the header.
            assert_eq!(word(fde + 8) + fde as i32 + 8, start);
        }
    }
}
