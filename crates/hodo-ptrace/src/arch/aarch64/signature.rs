//! Return addresses with signatures (pointer authentication): their highest bits say which key and which stack pointer
//! they were signed with. Only the processor knows the keys, so a thread of the process signs for hodo.

use anyhow::Result;

use super::step::step_alone;
use crate::arch::linked::WORDS;
use crate::signing::Signing;
use crate::stopped::Stopped;
use crate::target::TargetAddr;

/// The bits of an address that a signature leaves alone. No address of code in a program has others: a program must ask
/// for memory in a larger address space, and no loader does.
const UNSIGNED: u64 = (1 << 48) - 1;

/// `pacia1716` and `pacib1716`: the value in `x17` is signed with one of the two keys for return addresses, for the
/// modifier in `x16`. Processors that cannot sign do nothing.
const SIGN: u32 = 0xD503_211F;
const SIGN_BY_SECOND: u32 = 0xD503_215F;
const VALUE: u8 = 17;
const MODIFIER: u8 = 16;

/// A return address without its signature.
pub fn unsigned(address: u64) -> u64 {
    address & UNSIGNED
}

impl Stopped {
    /// What has to take the place of a return address so that a function returns `to` instead. `how`: how the function
    /// signs, if it does. `None`: that is not known, or the function has signed in another way. (This is not always
    /// noticed, for signatures may have as few as three bits.) `scratch_page`: hodo's page in the thread's process.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn sign_again(
        self,
        scratch_page: u64,
        word: u64,
        to: u64,
        how: Option<Signing>,
    ) -> Result<Option<u64>> {
        let plain = unsigned(word);
        let Some(how) = how else {
            return Ok(Some(to).filter(|_| plain == word));
        };
        if scratch_page == 0 {
            return Ok(None);
        }
        let expected = self.sign(scratch_page, plain, how)?;
        let signed = self.sign(scratch_page, to, how)?;
        Ok(match (plain == word, expected == word) {
            // The bits of a signature may be those that the address has without one.
            (true, true) => Some(signed).filter(|_| how.stored || signed == to),
            (true, false) => Some(to).filter(|_| !how.stored),
            (false, true) => Some(signed),
            (false, false) => None,
        })
    }

    /// Has it sign a value by an instruction.
    fn sign(self, scratch_page: u64, value: u64, how: Signing) -> Result<u64> {
        let at = scratch_page + WORDS;
        let instruction = match how.second {
            true => SIGN_BY_SECOND,
            false => SIGN,
        };
        self.memory()?
            .write(TargetAddr(at), &instruction.to_le_bytes())?;
        let before = self.regs()?;
        let mut regs = before;
        regs.go_to(at);
        regs.set(VALUE, value);
        regs.set(MODIFIER, how.modifier);
        self.set_regs(&regs)?;
        let stepped = step_alone(self);
        let signed = self.regs()?.get(VALUE);
        self.set_regs(&before)?;
        stepped.map(|()| signed)
    }
}
