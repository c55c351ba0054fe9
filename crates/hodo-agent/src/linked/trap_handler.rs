//! The handler of SIGTRAP, as the assembly of each instruction set names its parts.

use crate::TrapHandler;

unsafe extern "C" {
    static hodo_trap_start: u8;
    static hodo_trap_action: u8;
    static hodo_trap_default: u8;
    static hodo_trap_head: u8;
    static hodo_trap_end: u8;
}

/// That code.
#[must_use]
pub fn trap_handler() -> TrapHandler {
    let start = &raw const hodo_trap_start;
    let offset = |symbol: *const u8| symbol.addr() - start.addr();
    // SAFETY: start and end bound one object in read-only data, laid out by the assembly above.
    let code = unsafe { core::slice::from_raw_parts(start, offset(&raw const hodo_trap_end)) };
    TrapHandler {
        code,
        restorer: None,
        action: offset(&raw const hodo_trap_action),
        default: offset(&raw const hodo_trap_default),
        head: offset(&raw const hodo_trap_head),
    }
}
