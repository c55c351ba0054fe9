//! Return addresses that functions sign (`-mbranch-protection=pac-ret`, Arm ARM, "Pointer authentication").
//!
//! A function signs its return address with a key and the stack pointer that it has at that moment, and authenticates
//! it before it returns through it. The address that takes its place is signed in the same way. What the function has
//! signed shows whether key and stack pointer are the right ones.

use core::arch::asm;

/// A key for the addresses of instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    /// `paciasp`.
    A,
    /// `pacibsp`.
    B,
}

impl Key {
    /// The key with which an instruction signs the link register and the stack pointer.
    pub(crate) fn of(word: u32) -> Option<Self> {
        const PACIASP: u32 = 0xD503_233F;
        const PACIBSP: u32 = 0xD503_237F;
        // clang's words for the same (`pacia x30, sp`), for processors that have the instruction.
        const PACIA: u32 = 0xDAC1_03FE;
        const PACIB: u32 = 0xDAC1_07FE;
        match word {
            PACIASP | PACIA => Some(Self::A),
            PACIBSP | PACIB => Some(Self::B),
            _ => None,
        }
    }
}

/// How a function's return address is signed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Signer {
    /// It is not.
    Plain,
    /// By this key and this stack pointer.
    By(Key, usize),
}

impl Signer {
    /// The signer of what a function has signed by this key, or not at all, and by this stack pointer. `None` if it is
    /// another one.
    pub(crate) fn of(signed: usize, key: Option<Key>, stack: Option<usize>) -> Option<Self> {
        let plain = without_signature(signed);
        let signer = match key {
            Some(key) => Self::By(key, stack?),
            None => Self::Plain,
        };
        (signer.sign(plain) == signed).then_some(signer)
    }

    /// Signs an address.
    pub(crate) fn sign(self, mut address: usize) -> usize {
        // SAFETY: these change one register. (They are `pacia1716` and `pacib1716`, which do nothing on processors
        // without signatures.)
        unsafe {
            match self {
                Self::Plain => {}
                Self::By(Key::A, stack) => asm!("hint 8", inout("x17") address, in("x16") stack,
                    options(nomem, nostack, preserves_flags)),
                Self::By(Key::B, stack) => asm!("hint 10", inout("x17") address, in("x16") stack,
                    options(nomem, nostack, preserves_flags)),
            }
        }
        address
    }
}

/// A return address without a signature. Processors without signatures ignore the instruction.
pub(crate) fn without_signature(mut address: usize) -> usize {
    // SAFETY: this changes one register. (`xpaclri` is this hint.)
    unsafe { asm!("hint 7", inout("x30") address, options(pure, nomem, nostack, preserves_flags)) };
    address
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_right_signer_is_taken() {
        let stack = 0x7F_FFFF_1230;
        let mut others = 0;
        for address in (0x40_0000..).step_by(4096).take(64) {
            for key in [Key::A, Key::B] {
                let signed = Signer::By(key, stack).sign(address);
                assert_eq!(without_signature(signed), address);
                let signer = Signer::of(signed, Some(key), Some(stack)).expect("it is this one");
                assert_eq!(signer.sign(address), signed);
                assert!(Signer::of(signed, Some(key), None).is_none());
                others += usize::from(Signer::of(signed, Some(key), Some(stack + 16)).is_some());
            }
            let plain = Signer::of(address, None, None).expect("there is no signature");
            assert_eq!(plain.sign(0x1234), 0x1234);
        }
        // Signatures have seven bits or more, and do nothing on some processors.
        let signs = Signer::By(Key::A, stack).sign(0x40_0000) != 0x40_0000;
        assert!(!signs || others < 32, "{others}");
    }
}
