//! Probes after an instruction (`post`): they are at the next one, if that is executed only after this one.

use hodo_isa::code::Flow;
use hodo_module::Image;

use super::arch::reader;

/// Why a place after an instruction has no probe that the next instruction could have.
pub(super) const ENTERED: &str = "the code may branch to the next instruction, so a probe there would not only be hit after this one; \
     put it on the next instruction, without post";

/// More bytes than an instruction has.
const LONGEST: u64 = 16;

/// The address of the instruction that is executed after the one at `addr`.
///
/// # Errors
/// Why there is none.
pub(super) fn next(image: &Image, addr: u64) -> Result<u64, &'static str> {
    let code = (1..=LONGEST)
        .rev()
        .find_map(|len| image.at(addr..addr + len));
    let isa = reader(image);
    let insn = isa.sweep(code.unwrap_or_default(), addr).next();
    let insn = insn.ok_or("there is no instruction")?;
    Err(match insn.flow {
        Flow::Next => return Ok(addr + u64::from(insn.len)),
        Flow::Branch(_) => {
            "nothing is after a branch: it continues in two places; put probes there, without post"
        }
        Flow::Jump(_) | Flow::IndirectJump => {
            "nothing is after a jump: put a probe where it leads, without post"
        }
        Flow::Call(_) | Flow::IndirectCall => {
            "the instruction after a call is executed only when the function has returned: put a probe there, without post, \
             or on the function's return, with r"
        }
        Flow::Return { .. } => {
            "nothing is after a return: use r, which is hit when the function returns"
        }
        Flow::Fault => "nothing is after an instruction that only faults",
        Flow::Invalid => "this is not an instruction",
    })
}
