//! Recognizes calls, jumps and short functions by their bytes.

use super::decode::{Insn, Kind};
use super::encode::RET;
use super::regs::BETWEEN;
use super::scan::{Flow, Reference, Sweep};
pub use crate::calls::Called;

/// Where the long jump with these bytes at `at` leads, if it is one: `b`, or `adrp`, `add` and `br`.
#[must_use]
pub fn jump_target(at: u64, bytes: &[u8]) -> Option<u64> {
    let mut code = Sweep::new(bytes, at);
    let first = code.next()?;
    if first.insn.kind == Kind::Branch {
        return first.insn.target();
    }
    let (second, last) = (code.next()?, code.next()?);
    let register = first.insn.rd();
    let forms = first.insn.kind == Kind::Adrp
        && second.insn.kind == Kind::AddImmediate
        && (second.insn.rd(), second.insn.rn()) == (register, register)
        && last.insn.kind == Kind::JumpRegister
        && last.insn.rn() == register;
    // The jump's target is known if the two have formed it.
    match last.flow {
        Flow::Jump(to) if forms => Some(to),
        _ => None,
    }
}

/// What the `bl` with these bytes at `at` calls, if it is one.
#[must_use]
pub fn call_target(at: u64, code: [u8; 4]) -> Option<u64> {
    let insn = Insn::new(&code, at);
    insn.target().filter(|_| insn.kind == Kind::BranchLink)
}

/// Whether these bytes are a call of a hook.
#[must_use]
pub fn is_call_of_hook(before: [u8; 4]) -> bool {
    let kind = Insn::new(&before, 0).kind;
    matches!(kind, Kind::BranchLink | Kind::CallRegister)
}

/// What the call that ends at `at` with these 8 bytes calls.
#[must_use]
pub fn called_by(before: [u8; 8], at: u64) -> Called {
    let last = Insn::new(&before[4..], at.wrapping_sub(4));
    match (last.kind, last.target()) {
        (Kind::BranchLink, Some(to)) => Called::This(to),
        (Kind::CallRegister, _) => Called::Something,
        _ => Called::Nothing,
    }
}

/// Whether [`leaving_jump`] finds jumps.
pub const FINDS_LEAVING_JUMPS: bool = true;

/// The first jump to another function in the function at `at`: its address and its target.
#[must_use]
pub fn leaving_jump(at: u64, code: &[u8]) -> Option<(u64, u64)> {
    let function = at..at + code.len() as u64;
    Sweep::new(code, at).find_map(|scanned| {
        let to = scanned.insn.target()?;
        (scanned.insn.kind == Kind::Branch && !function.contains(&to))
            .then_some((scanned.insn.addr, to))
    })
}

/// Whether a function with these bytes does nothing but return. The long jump takes no more room than that.
#[must_use]
pub fn only_returns(_at: u64, code: [u8; 5]) -> bool {
    code.starts_with(&RET.to_le_bytes())
}

/// The slot from which code at `at` loads the address that it jumps to: an entry of a PLT, or a stub's copy of one.
#[must_use]
pub fn slot_of(code: &[u8], at: u64) -> Option<u64> {
    let [page, target] = BETWEEN;
    let mut forms = true;
    Sweep::new(code, at).find_map(|scanned| {
        let insn = &scanned.insn;
        let loads = insn.kind == Kind::Single && insn.is_whole() && insn.is_load();
        if loads && forms && (insn.rd(), insn.rn()) == (target, page) {
            forms = false;
            return match scanned.reference {
                Reference::Memory(slot) => Some(slot),
                _ => None,
            };
        }
        // A landing instruction, or what forms the address.
        forms &= matches!(
            insn.kind,
            Kind::Hint | Kind::Adrp | Kind::AddImmediate | Kind::MoveWide
        );
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aarch64::asm::operand::{after, mem};
    use crate::aarch64::asm::ops::Insns as _;
    use crate::aarch64::asm::{self, Code, Reach};
    use crate::aarch64::regs::{SP, ZERO};
    use alloc::vec::Vec;

    const AT: u64 = 0x12_3454;

    fn code(write: impl FnOnce(&mut Code<'_>)) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(&mut Code::new(&mut bytes, AT));
        bytes
    }

    #[test]
    fn what_the_assembler_writes_is_recognized() {
        let jump = asm::jump(AT, 0x10_0000).expect("within reach");
        assert_eq!(jump_target(AT, &jump), Some(0x10_0000));
        assert_eq!(jump_target(AT, &jump[..3]), None);
        assert_eq!(call_target(AT, jump), None);
        assert!(!is_call_of_hook(jump));
        let far = code(|code| {
            code.jump(0x8012_3458, Reach::Page, 9)
                .expect("within reach");
        });
        assert_eq!(jump_target(AT, &far), Some(0x8012_3458));
        assert_eq!(jump_target(AT, &far[..8]), None);
        let other = code(|code| {
            code.address(9, 0x8012_3458, Reach::Page)
                .expect("within reach");
            code.br(10);
        });
        assert_eq!(jump_target(AT, &other), None);
        let call = code(|code| {
            code.nop();
            code.jump_and_link(0x20_0000, Reach::Jump, ZERO, 30)
                .expect("within reach");
        });
        let call: [u8; 8] = call.try_into().expect("two instructions");
        assert_eq!(called_by(call, AT + 8), Called::This(0x20_0000));
        let last: [u8; 4] = call[4..].try_into().expect("one instruction");
        assert_eq!(call_target(AT + 4, last), Some(0x20_0000));
        assert!(is_call_of_hook(last));
        assert_eq!(jump_target(AT + 4, &last), None);
        assert_eq!(jump_target(AT, &asm::WAIT), Some(AT));
    }

    #[test]
    fn calls_through_registers_are_recognized() {
        let by = |last: u32| {
            let mut before = [0; 8];
            before[4..].copy_from_slice(&last.to_le_bytes());
            called_by(before, AT)
        };
        // blr x3; blraaz x3
        assert_eq!(by(0xD63F_0060), Called::Something);
        assert_eq!(by(0xD63F_087F), Called::Something);
        // br x3; ret; cbz x0, .
        for other in [0xD61F_0060, RET, 0xB400_0000] {
            assert_eq!(by(other), Called::Nothing);
        }
        assert!(is_call_of_hook(0xD63F_0060u32.to_le_bytes()));
        assert!(!is_call_of_hook(RET.to_le_bytes()));
    }

    #[test]
    fn a_jump_to_another_function_is_found() {
        let bytes = code(|code| {
            let end = code.label();
            code.cbz(0, end);
            code.b(end);
            code.bind(end);
            code.jump(0x10_0000, Reach::Jump, ZERO)
                .expect("within reach");
            code.jump(0x11_0000, Reach::Jump, ZERO)
                .expect("within reach");
        });
        assert_eq!(leaving_jump(AT, &bytes), Some((AT + 8, 0x10_0000)));
        assert_eq!(leaving_jump(AT, &bytes[..4]), None);
    }

    #[test]
    fn a_function_that_only_returns_is_found() {
        let five = |word: u32| {
            let [a, b, c, d] = word.to_le_bytes();
            [a, b, c, d, 0]
        };
        assert!(only_returns(AT, five(RET)));
        // ret x1; nop
        assert!(!only_returns(AT, five(0xD65F_0020)));
        assert!(!only_returns(AT, five(0xD503_201F)));
    }

    #[test]
    fn entries_of_a_plt_tell_their_slot() {
        let entry = |landing: bool, reach: Reach| {
            code(|code| {
                if landing {
                    code.bti_c();
                }
                code.address(16, 0x55_6000, reach).expect("within reach");
                code.ldr(17, mem(16, 0x7F8));
                code.addi(16, 16, 0x7F8);
                code.br(17);
            })
        };
        assert_eq!(slot_of(&entry(false, Reach::Page), AT), Some(0x55_67F8));
        assert_eq!(slot_of(&entry(true, Reach::Page), AT), Some(0x55_67F8));
        assert_eq!(slot_of(&entry(true, Reach::Any), AT), Some(0x55_67F8));
        // adrp x16; ldr x17, [x16, #0x7f8], as linkers write it
        let plain = [0xB000_2190u32, 0xF943_FE11].map(u32::to_le_bytes).concat();
        assert_eq!(slot_of(&plain, AT), Some(0x55_47F8));
        assert_eq!(slot_of(&plain[4..], AT), None);
        let others = code(|code| {
            code.address(16, 0x55_6000, Reach::Page)
                .expect("within reach");
            code.ldr(16, after(SP, 16));
            code.ldr(17, mem(16, 0));
        });
        assert_eq!(slot_of(&others, AT), None);
    }
}
