//! Frame information for an island: the part that is the same for all instruction sets, which is the layout and how
//! each part begins.
//!
//! Encodings: DWARF 5, section 6.4; LSB 5.0, section 10.6 (`.eh_frame`, `.eh_frame_hdr`).

use alloc::vec::Vec;
use core::ops::Range;
use gimli::constants as dw;

/// After this many bytes of stubs, an FDE for them is appended. Unwinders read half of it on average for each frame.
pub const GROUP: u32 = 2048;

/// What is at the start of an island for unwinders. Offsets are from the island's start.
#[derive(Debug, Clone)]
pub struct Frames {
    /// The bytes; position independent.
    pub bytes: Vec<u8>,
    /// Offset of the CIE of stubs.
    pub cie: u32,
    /// Offset of the agent's CIE, which may be the same.
    pub agent: u32,
    /// Offset of the `.eh_frame_hdr`.
    pub header: u32,
    /// Offset of two program headers: the island, and its `.eh_frame_hdr`.
    pub program_headers: u32,
    /// Offset of an empty string.
    pub name: u32,
}

impl Frames {
    /// The data at offset `at` of an island of `size` bytes: the CIEs of stubs and of the agent. `cies` come without
    /// their lengths.
    pub(crate) fn new(at: u32, size: u32, cies: &[&[u8]]) -> Self {
        let header = size - table_room(size);
        let mut bytes = Vec::new();
        let mut agent = at;
        for cie in cies {
            agent = at + bytes.len() as u32;
            entry(&mut bytes, cie);
        }
        bytes.extend([0; 4]); // for unwinders that read FDEs one by one: there are none
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let program_headers = at + bytes.len() as u32;
        for (kind, start, len) in [(1u32, 0, size), (0x6474_E550, header, size - header)] {
            bytes.extend(kind.to_le_bytes());
            bytes.extend(5u32.to_le_bytes());
            for word in [start, start, start, len, len, 8] {
                bytes.extend(u64::from(word).to_le_bytes());
            }
        }
        let name = at + bytes.len() as u32;
        bytes.extend([0; 8]);
        Self {
            bytes,
            cie: at,
            agent,
            header,
            program_headers,
            name,
        }
    }

    /// Makes offsets relative to this many bytes further on. Offsets of earlier parts become negative, modulo 2^32.
    pub fn shift(&mut self, bytes: u32) {
        for offset in [&mut self.cie, &mut self.agent, &mut self.header] {
            *offset = offset.wrapping_sub(bytes);
        }
    }

    /// The search table entry of the FDE at `at`, which describes code that begins at `start`.
    #[must_use]
    pub fn table_entry(&self, start: u32, at: u32) -> [u8; 8] {
        let mut table = [0; 8];
        table[..4].copy_from_slice(&start.wrapping_sub(self.header).to_le_bytes());
        table[4..].copy_from_slice(&at.wrapping_sub(self.header).to_le_bytes());
        table
    }
}

/// How many bytes at the end of an island of `size` bytes its search table may need.
#[must_use]
pub fn table_room(size: u32) -> u32 {
    // Groups are not much smaller than GROUP, except for the last one of each module, and hooks.
    (size / GROUP * 8).next_multiple_of(4096) + 4096
}

/// The `.eh_frame_hdr` of `count` FDEs, without its table.
#[must_use]
pub fn header(frames: &Frames, count: u32) -> [u8; 12] {
    // version; how the pointer, the count and the table are encoded
    let mut bytes = [1, 0x1B, 0x03, 0x3B, 0, 0, 0, 0, 0, 0, 0, 0];
    let to_cie = frames.cie.wrapping_sub(frames.header.wrapping_add(4));
    bytes[4..8].copy_from_slice(&to_cie.to_le_bytes());
    bytes[8..].copy_from_slice(&count.to_le_bytes());
    bytes
}

/// Appends an unsigned number of any length.
pub(crate) fn uleb(out: &mut Vec<u8>, mut value: u32) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a CIE or FDE with its length.
pub(crate) fn entry(out: &mut Vec<u8>, body: &[u8]) {
    let len = (body.len() + 4).next_multiple_of(4);
    out.extend(((len - 4) as u32).to_le_bytes());
    out.extend(body);
    out.resize(out.len() + len - 4 - body.len(), dw::DW_CFA_nop.0);
}

/// The beginning of the FDE at offset `at` for code at these offsets.
pub(crate) fn fde(at: u32, cie: u32, code: Range<u32>) -> Vec<u8> {
    let mut body = (at + 4).wrapping_sub(cie).to_le_bytes().to_vec();
    body.extend(code.start.wrapping_sub(at + 8).to_le_bytes());
    body.extend((code.end - code.start).to_le_bytes());
    body.push(0);
    body
}

/// Advances by this many units of code.
pub(crate) fn advance(out: &mut Vec<u8>, distance: u32) {
    match distance {
        0 => {}
        1..=0x3F => out.push(dw::DW_CFA_advance_loc.0 | distance as u8),
        0x40..=0xFF => out.extend([dw::DW_CFA_advance_loc1.0, distance as u8]),
        0x100..=0xFFFF => {
            out.push(dw::DW_CFA_advance_loc2.0);
            out.extend((distance as u16).to_le_bytes());
        }
        _ => {
            out.push(dw::DW_CFA_advance_loc4.0);
            out.extend(distance.to_le_bytes());
        }
    }
}
