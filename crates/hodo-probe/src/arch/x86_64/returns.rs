//! The code of return probes.

use alloc::vec::Vec;

use super::{call_handlers, near};
use crate::environment::Window;
use hodo_isa::x86_64::asm::{Code, Cond, DWORD, QWORD, RAX, RCX, RSP, mem, mem32};

/// How far a return address of a Linux program is from its shadow. It is no multiple of a page, or a load of one would
/// seem to depend on a store to the other.
#[cfg(target_os = "linux")]
pub(super) const DISTANCE: u64 = 0x2000_0000_0840;
/// The end of its addresses.
#[cfg(target_os = "linux")]
pub(super) const TOP: u64 = 0x7FFF_FFFF_F000;
/// The bytes after the first instruction at the point of return, by which it is recognized.
const MAGIC: u32 = 0x4F44_4F48;

/// The columns of the return address and `rsp` in unwind tables.
pub(crate) const COLUMNS: [u8; 2] = [16, 7];

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
    let Window { low, top, distance } = crate::shadow::window();
    near(at, &[places.head, places.common])?;
    let mut bytes = Vec::new();
    let mut code = Code::new(&mut bytes, at);
    let (without, body) = (code.label(), code.label());
    let shadow = mem(RSP, 16).plus(RCX);
    code.push_r(RAX);
    code.push_r(RCX);
    code.lea(RAX, mem(RSP, 16));
    code.movabs_ri(RCX, low);
    code.sub_rr(RAX, RCX);
    code.movabs_ri(RCX, top - low);
    code.cmp_rr(RAX, RCX);
    code.jcc(Cond::AE, without);
    code.mov_rm(RAX, mem(RSP, 16));
    code.cmp_mi(DWORD, mem(RAX, 8), MAGIC);
    code.jcc(Cond::E, without);
    code.movabs_ri(RCX, distance.wrapping_neg());
    code.mov_mr(shadow, RAX);
    code.pop_r(RCX);
    code.pop_r(RAX);
    code.lea(RSP, mem(RSP, 8));
    code.call(body);
    let back = code.here();
    code.lea(RSP, mem(RSP, -8));
    code.nop_m(mem32(RAX, MAGIC));
    code.push_r(RAX);
    code.push_r(RCX);
    code.movabs_ri(RCX, distance.wrapping_neg());
    code.mov_rm(RAX, shadow);
    code.mov_mr(mem(RSP, 16), RAX);
    code.pop_r(RCX);
    code.pop_r(RAX);
    call_handlers(&mut code, places.head, places.common);
    code.ret();
    let frames = [back, code.here()];
    code.bind(without);
    code.movabs_ri(RCX, places.missed);
    code.lock().inc_m(QWORD, mem(RCX, 0));
    code.pop_r(RCX);
    code.pop_r(RAX);
    code.bind(body);
    Some(Emitted {
        code: bytes,
        frames,
    })
}
