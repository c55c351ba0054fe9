//! Recognizes calls, jumps and short functions by their bytes.

use super::steps::Steps;
pub use crate::calls::Called;
use crate::code::Flow;

/// `call rel32` and `jmp rel32`
const CALL: u8 = 0xE8;
const JUMP: u8 = 0xE9;
/// `jmp rel8`
const SHORT_JUMP: u8 = 0xEB;
/// The opcode of `call` with an operand in a register or in memory (`/2`).
const INDIRECT: u8 = 0xFF;

fn by_distance(opcode: u8, at: u64, code: &[u8]) -> Option<u64> {
    let [first, distance @ ..] = *code.first_chunk::<5>()?;
    let distance = i64::from(i32::from_le_bytes(distance));
    (first == opcode).then(|| at.wrapping_add(5).wrapping_add_signed(distance))
}

/// Where the long jump with these bytes at `at` leads, if it is one.
#[must_use]
pub fn jump_target(at: u64, code: &[u8]) -> Option<u64> {
    by_distance(JUMP, at, code)
}

/// The same of a short jump.
#[must_use]
pub fn short_jump_target(at: u64, code: [u8; 2]) -> Option<u64> {
    let [first, distance] = code;
    let distance = i64::from(distance.cast_signed());
    (first == SHORT_JUMP).then(|| at.wrapping_add(2).wrapping_add_signed(distance))
}

/// What the direct call with these bytes at `at` calls, if it is one.
#[must_use]
pub fn call_target(at: u64, code: &[u8]) -> Option<u64> {
    by_distance(CALL, at, code)
}

/// What the call that ends at `at` with these bytes calls.
#[must_use]
pub fn called_by(before: [u8; 8], at: u64) -> Called {
    if let Some(target) = call_target(at.wrapping_sub(5), &before[3..]) {
        return Called::This(target);
    }
    // Two bytes, plus those of a memory operand.
    let mut pairs = before.windows(2);
    match pairs.any(|code| code[0] == INDIRECT && code[1] >> 3 & 7 == 2) {
        true => Called::Something,
        false => Called::Nothing,
    }
}

/// Whether these bytes end with a call of a hook: a direct call, or `call [rsp + disp8]`.
#[must_use]
pub fn is_call_of_hook(before: [u8; 5]) -> bool {
    before[0] == CALL || before[1..4] == [INDIRECT, 0x54, 0x24]
}

/// Whether [`leaving_jump`] finds jumps.
pub const FINDS_LEAVING_JUMPS: bool = true;

/// The first long jump to another function in the function at `at`: its address and its target.
#[must_use]
pub fn leaving_jump(at: u64, code: &[u8]) -> Option<(u64, u64)> {
    let function = at..at + code.len() as u64;
    Steps::new(code, at).find_map(|step| match step.flow {
        Flow::Jump(to) if u64::from(step.len) == super::JUMP && !function.contains(&to) => {
            Some((step.addr, to))
        }
        _ => None,
    })
}

/// Whether a function at `at` with these bytes does nothing but return, and is followed by enough padding for a long
/// jump.
#[must_use]
pub fn only_returns(at: u64, code: [u8; 5]) -> bool {
    /// The bytes that occur in longer nops, and single-byte padding.
    const PADDING: [u8; 11] = [
        0x66, 0x2E, 0x0F, 0x1F, 0x84, 0x80, 0x40, 0x44, 0x00, 0x90, 0xCC,
    ];
    const RETURN: u8 = 0xC3;
    /// `endbr64; ret`
    const MARKED: [u8; 5] = [0xF3, 0x0F, 0x1E, 0xFA, RETURN];
    let is_padding = || code[1..].iter().all(|byte| PADDING.contains(byte));
    code == MARKED || code[0] == RETURN && at.is_multiple_of(16) && is_padding()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::x86_64::asm::{self, Code, RSP, mem};
    use alloc::vec::Vec;

    #[test]
    fn what_the_assembler_writes_is_recognized() {
        const AT: u64 = 0x1000;
        let mut bytes = Vec::new();
        Code::new(&mut bytes, AT).call_to(0x1234);
        assert_eq!(call_target(AT, &bytes), Some(0x1234));
        assert_eq!(jump_target(AT, &bytes), None);
        assert!(is_call_of_hook(bytes[..].try_into().unwrap()));
        let before = [&[0x90; 3][..], &bytes].concat();
        let before = before.try_into().unwrap();
        assert_eq!(called_by(before, AT + 5), Called::This(0x1234));
        let jump = asm::jump(AT, 0xFFF).unwrap();
        assert_eq!(jump_target(AT, &jump), Some(0xFFF));
        assert_eq!(jump_target(AT, &jump[..4]), None);
        assert_eq!(call_target(AT, &jump), None);
        assert!(!is_call_of_hook(jump));
        assert_eq!(short_jump_target(AT, asm::WAIT), Some(AT));
        assert_eq!(short_jump_target(AT, [0x90; 2]), None);
    }

    #[test]
    fn indirect_calls_are_recognized() {
        let mut bytes = Vec::new();
        Code::new(&mut bytes, 0).call_m(mem(RSP, 0x48));
        let last: [u8; 4] = bytes[..].try_into().unwrap();
        let before = [[0x90; 4], last].concat().try_into().unwrap();
        assert_eq!(called_by(before, 0x1000), Called::Something);
        let last = [&[0x90][..], &last].concat();
        assert!(is_call_of_hook(last[..].try_into().unwrap()));
        assert_eq!(called_by([0x90; 8], 0x1000), Called::Nothing);
    }

    #[test]
    fn a_jump_to_another_function_is_found() {
        const AT: u64 = 0x1000;
        let mut bytes = Vec::new();
        let mut code = Code::new(&mut bytes, AT);
        let end = code.label();
        code.test_rr(RSP, RSP);
        code.jmp(end);
        code.bind(end);
        code.jmp_to(0x2000);
        let jump = AT + bytes.len() as u64 - 5;
        assert_eq!(leaving_jump(AT, &bytes), Some((jump, 0x2000)));
    }

    #[test]
    fn functions_that_only_return_have_padding() {
        let ret = |after: [u8; 4]| {
            let mut code = [0xC3; 5];
            code[1..].copy_from_slice(&after);
            code
        };
        assert!(only_returns(0x1000, ret([0x0F, 0x1F, 0x40, 0])));
        assert!(only_returns(0x1000, ret([0xCC; 4])));
        assert!(only_returns(0x1008, [0xF3, 0x0F, 0x1E, 0xFA, 0xC3]));
        assert!(!only_returns(0x1008, ret([0xCC; 4])));
        assert!(!only_returns(0x1000, ret([0x90, 0x90, 0x55, 0x48])));
    }
}
