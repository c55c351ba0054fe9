//! The code of return probes.

use alloc::vec::Vec;

use super::distance;
use crate::returns::Window;

/// How far a return address is from its shadow. It is no multiple of a page, or a load of one would seem to depend on a
/// store to the other.
const DISTANCE: u64 = 0x2000_0000_0840;
/// The area below the library mappings that may hold stacks.
const BELOW: u64 = 1 << 40;
const TOP: u64 = 0x7FFF_FFFF_F000;
/// The bytes after the first instruction at the point of return, by which it is recognized.
const MAGIC: u32 = 0x4F44_4F48;

/// The columns of the return address and `rsp` in unwind tables.
pub(crate) const COLUMNS: [u8; 2] = [16, 7];

/// Where the shadow goes in a process that maps memory at `here`.
pub(crate) fn window(here: u64) -> Window {
    Window {
        low: (here - BELOW) & !0xFFFF,
        top: TOP,
        distance: DISTANCE,
    }
}

/// What the code refers to.
pub(super) struct Places {
    /// Address of the pointer to the head of the site's return handlers.
    pub head: u64,
    /// The code that all detours share.
    pub common: u64,
    /// The counter of calls whose exit is missed.
    pub missed: u64,
}

/// Offsets in the code.
pub(super) struct Emitted {
    pub code: Vec<u8>,
    /// From the call of the body to the end of the code that follows it.
    pub frames: [u64; 2],
}

/// The code between the entry's handlers and the body, which follows directly. It is placed at `at`.
pub(super) fn emit(at: u64, places: &Places) -> Option<Emitted> {
    let low = crate::returns::window().low;
    let mut code: Vec<u8> = Vec::new();
    let shadow = (0u64.wrapping_sub(DISTANCE)).to_le_bytes();
    let raw = |code: &mut Vec<u8>, bytes: &[u8]| code.extend_from_slice(bytes);
    let relative = |code: &mut Vec<u8>, to: u64| {
        let bytes = distance(at + code.len() as u64 + 4, to)?;
        code.extend(bytes);
        Some(())
    };
    raw(&mut code, &[0x50, 0x51]); // push rax; push rcx
    raw(&mut code, &[0x48, 0x8D, 0x44, 0x24, 0x10]); // lea rax, [rsp+16]
    raw(&mut code, &[0x48, 0xB9]); // mov rcx, low
    raw(&mut code, &low.to_le_bytes());
    raw(&mut code, &[0x48, 0x29, 0xC8]); // sub rax, rcx
    raw(&mut code, &[0x48, 0xB9]); // mov rcx, size
    raw(&mut code, &(TOP - low).to_le_bytes());
    raw(&mut code, &[0x48, 0x39, 0xC8, 0x0F, 0x83]); // cmp rax, rcx; jae without
    let outside = code.len();
    raw(&mut code, &[0; 4]);
    raw(&mut code, &[0x48, 0x8B, 0x44, 0x24, 0x10]); // mov rax, [rsp+16]
    raw(&mut code, &[0x81, 0x78, 0x08]); // cmp dword [rax+8], magic
    raw(&mut code, &MAGIC.to_le_bytes());
    raw(&mut code, &[0x0F, 0x84]); // je without
    let tail = code.len();
    raw(&mut code, &[0; 4]);
    raw(&mut code, &[0x48, 0xB9]); // mov rcx, -distance
    raw(&mut code, &shadow);
    raw(&mut code, &[0x48, 0x89, 0x44, 0x0C, 0x10]); // mov [rsp+rcx+16], rax
    raw(&mut code, &[0x59, 0x58]); // pop rcx; pop rax
    raw(&mut code, &[0x48, 0x8D, 0x64, 0x24, 0x08, 0xE8]); // lea rsp, [rsp+8]; call body
    let body = code.len();
    raw(&mut code, &[0; 4]);
    let back = code.len();
    raw(&mut code, &[0x48, 0x8D, 0x64, 0x24, 0xF8]); // lea rsp, [rsp-8]
    raw(&mut code, &[0x0F, 0x1F, 0x80]); // nop [rax+magic]
    raw(&mut code, &MAGIC.to_le_bytes());
    raw(&mut code, &[0x50, 0x51]); // push rax; push rcx
    raw(&mut code, &[0x48, 0xB9]); // mov rcx, -distance
    raw(&mut code, &shadow);
    raw(&mut code, &[0x48, 0x8B, 0x44, 0x0C, 0x10]); // mov rax, [rsp+rcx+16]
    raw(&mut code, &[0x48, 0x89, 0x44, 0x24, 0x10]); // mov [rsp+16], rax
    raw(&mut code, &[0x59, 0x58]); // pop rcx; pop rax
    raw(&mut code, &[0x48, 0x8D, 0x64, 0x24, 0x80]); // lea rsp, [rsp-128]
    raw(&mut code, &[0xFF, 0x35]); // push [head]
    relative(&mut code, places.head)?;
    raw(&mut code, &[0xE8]); // call common
    relative(&mut code, places.common)?;
    raw(&mut code, &[0x48, 0x8D, 0xA4, 0x24, 0x88, 0, 0, 0]); // lea rsp, [rsp+136]
    raw(&mut code, &[0xC3]); // ret
    let without = code.len();
    raw(&mut code, &[0x48, 0xB9]); // mov rcx, missed
    raw(&mut code, &places.missed.to_le_bytes());
    raw(&mut code, &[0xF0, 0x48, 0xFF, 0x01]); // lock inc qword [rcx]
    raw(&mut code, &[0x59, 0x58]); // pop rcx; pop rax
    let end = code.len();
    for (place, to) in [(outside, without), (tail, without), (body, end)] {
        let distance = (to - place - 4) as u32;
        code[place..place + 4].copy_from_slice(&distance.to_le_bytes());
    }
    Some(Emitted {
        code,
        frames: [at + back as u64, at + without as u64],
    })
}
