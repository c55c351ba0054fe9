//! Return probes. The detour calls the function's body, so the body's `ret` comes back to the detour, which then
//! returns itself. Both returns match a call, so the processor predicts them.
//!
//! Meanwhile the real return address is in the shadow, at a constant distance from its place on the stack. No pointer
//! has to be maintained, so recursion, `longjmp`, signal handlers, coroutines and `fork` need no special care. If a
//! function's return address already leads to a detour, a probed function has jumped to it, and its place in the shadow
//! is in use. Such a function, and one on a stack without a shadow, runs without its exit, which is counted.
//!
//! Unwinders find the caller through tables that [`register_frames`](super::Engine::register_frames) passes to them.

use alloc::vec::Vec;

use super::arch;
use super::shadow::window;

/// Unwind tables (DWARF 5, section 6.4) for the code from the point of return on: a CIE, an FDE and the terminator.
/// They are wrong for an unwinder that starts from a signal where the stack pointer has moved; one that starts from a
/// callee looks only at the first byte.
pub(super) fn unwind_tables([start, end]: [u64; 2]) -> Vec<u8> {
    fn entry(out: &mut Vec<u8>, mut body: Vec<u8>) {
        body.resize(body.len().next_multiple_of(8) + 4, 0);
        out.extend((body.len() as u32).to_le_bytes());
        out.extend(body);
    }
    let [back, stack] = arch::returns::COLUMNS;
    let mut cie = vec![0, 0, 0, 0, 1, 0, 1, 0x78, back];
    // The frame's address is 8 below the stack pointer, so that it differs from the caller's.
    cie.extend([0x12, stack, 1]); // def_cfa_sf sp, 1 (times -8)
    let mut address = vec![0x0E]; // const8u
    address.extend(window().distance.to_le_bytes());
    address.extend([0x1C]); // minus
    cie.extend([0x10, back, address.len() as u8]); // expression: the return address is there
    cie.extend(address);
    cie.extend([0x16, stack, 2, 0x38, 0x22]); // val_expression: sp is the address plus 8
    let mut out = Vec::new();
    entry(&mut out, cie);
    let mut fde = ((out.len() + 4) as u32).to_le_bytes().to_vec();
    // Unwinders look one byte before the point of return.
    fde.extend((start - 1).to_le_bytes());
    fde.extend((end - start + 1).to_le_bytes());
    entry(&mut out, fde);
    out.extend([0; 4]);
    out
}
