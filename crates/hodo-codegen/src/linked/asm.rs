//! What detours ask of an assembler. Each method writes the instructions for one step.
//!
//! Where a number of a register stands for the stack pointer, the method says so: on AArch64 the zero register has the
//! same number.

use alloc::string::String;
use core::ops::DerefMut;

use crate::detour::{Arithmetic, Bits, Comparison, Place, Register};
use crate::reserve::scratch::Preference;
use crate::stub::Layout;
use hodo_isa::buffer::{Draft, Label, Laid, OutOfRange, Reference};
use hodo_isa::linked::{If, Relocated};
use hodo_isa::{Signing, Via};

/// An assembler that keeps code until all of it is known.
pub(crate) trait Assembler: Default + DerefMut<Target = Draft<Self::Refer>> {
    /// How instructions refer to places.
    type Refer: Reference;

    /// The stack pointer.
    const STACK: Register;
    /// The register that is always 0.
    const ZERO: Register;
    /// The link register of calls.
    const LINK: Register;
    /// The register with the result of a function.
    const RESULT: Register;
    /// The link register of calls of the runtime, which is saved for them.
    const RUNTIME_LINK: Register;
    /// Which registers probes prefer.
    const PREFERENCE: Preference;
    /// Registers that are never free, whatever the program does with them.
    const FIXED: u32;
    /// Whether there are flags, which comparisons of two registers change.
    const FLAGS: bool;
    /// The instruction that enters the kernel.
    const SYSTEM_CALL: [u8; 4];
    /// A nop of the same length.
    const SYSTEM_CALL_NOP: [u8; 4];
    /// Bytes of the code with which moved code leaves through a pad.
    const EXIT: u64;

    /// How many registers counting needs.
    fn counts(layout: &Layout) -> usize;

    /// The finished code, for an address.
    fn lay(self, start: u64) -> Result<Laid, OutOfRange>;

    /// Moves the code of a place to an address, with gaps between instructions.
    fn moved(
        place: &Place<'_>,
        code: &[u8],
        to: u64,
        gaps: &[(usize, usize)],
    ) -> Result<Relocated, String>;

    /// A jump to where execution continues, with the register that the place has for it.
    fn leave(&mut self, to: u64, back: Via) -> Result<(), String>;

    /// A branch that compares two registers.
    fn branch(&mut self, condition: If, left: Register, right: Register, to: Label);
    /// A jump to a label.
    fn jump(&mut self, to: Label);
    /// A jump to a label that puts the return address into the link register.
    fn call(&mut self, to: Label);
    /// A return.
    fn ret(&mut self);
    /// `rd` = the address of a label.
    fn address(&mut self, rd: Register, of: Label);
    /// A call of an address, by the link register.
    fn call_far(&mut self, to: u64);
    /// A call of the runtime, by its own link register.
    fn call_runtime(&mut self, to: u64);

    /// Authenticates the address in the link register. The stack pointer is the one at the function's entry.
    fn authenticate(&mut self, signing: Signing);
    /// Signs it.
    fn sign(&mut self, signing: Signing);
    /// The instruction to which functions return. The link register is free.
    fn return_point(&mut self, layout: &Layout);
    /// Jumps to a label if the link register holds the address of such an instruction. Returns the load that may fault.
    fn if_return_point(
        &mut self,
        layout: &Layout,
        scratch: (Register, Register),
        to: Label,
    ) -> Label;

    /// `rd` = a number.
    fn li(&mut self, rd: Register, number: u64);
    /// Copies a register, if it is another one.
    fn mv(&mut self, rd: Register, rs: Register);
    /// Adds a constant. If it is large, `rd` must differ from `left`, which may be the stack pointer.
    fn add(&mut self, rd: Register, left: Register, number: i64);
    /// Adds a constant to a register. Clobbers `scratch` if it is large.
    fn add_to(&mut self, rd: Register, number: i64, scratch: Register);
    /// `rd` = `rs` + the stack pointer.
    fn add_stack(&mut self, rd: Register, rs: Register);
    /// Adds a multiple of 16 to the stack pointer. Clobbers `scratch` if it is large.
    fn stack(&mut self, by: i64, scratch: Register);
    /// Whether a number fits an instruction that adds it.
    fn small(number: i64) -> bool;
    /// Whether a load of this many bytes can have this distance from its base.
    fn near(size: u8, distance: i64) -> bool;

    /// Loads 1, 2, 4 or 8 bytes, zero-extended, from a base plus an offset; see the assembler. The base may be the
    /// stack pointer. Returns the instruction that may fault.
    fn load(&mut self, size: u8, rd: Register, base: Register, offset: i64) -> Label;
    /// Stores the lower 1, 2, 4 or 8 bytes. `scratch` is overwritten if the offset is large. The base may be the stack
    /// pointer.
    fn store(&mut self, size: u8, from: Register, base: Register, offset: i64, scratch: Register);
    /// Stores before this become visible before stores after it.
    fn fence_stores(&mut self);
    /// Loads before this are performed before loads after it.
    fn fence_loads(&mut self);
    /// `old` = the 8 bytes at `base`, to which a small number is added by one access. `status` is overwritten if the
    /// processor has no instruction for that.
    fn fetch_add(
        &mut self,
        layout: &Layout,
        number: i64,
        old_status: (Register, Register),
        base: Register,
    );
    /// The same without the old value; `scratch` is overwritten.
    fn add_at(
        &mut self,
        layout: &Layout,
        number: i64,
        scratch_status: (Register, Register),
        base: Register,
    );
    /// Adds 8 bytes of the stack to those at `base` by one access. `scratch` and `status` are as above.
    fn add_word_at(
        &mut self,
        layout: &Layout,
        word: i64,
        scratch_status: (Register, Register),
        base: Register,
    );
    /// Reserves this many bytes at the cursor: `at` = where they begin, `end` = where they end. `spare` is overwritten,
    /// and perhaps `block`, which is the address of the control block before and after.
    fn take(
        &mut self,
        layout: &Layout,
        size: u32,
        at_end: (Register, Register),
        block_spare: (Register, Register),
    );
    /// Stores `new` at `base` if 0 is there, and otherwise jumps to a label. `found` is overwritten.
    fn claim(&mut self, base: Register, new: Register, found: Register, to: Label);

    /// `rd` = the address of the control block.
    fn block(&mut self, rd: Register, layout: &Layout);
    /// The same, if the register had to serve as a `status`.
    fn block_again(&mut self, rd: Register, layout: &Layout);
    /// `rd` = the thread pointer.
    fn thread_pointer(&mut self, rd: Register);
    /// `rd` = the time.
    fn rdtime(&mut self, rd: Register);
    /// Puts a number into the upper half of a register, whose lower half stays. `scratch` is overwritten.
    fn upper_half(&mut self, rd: Register, number: u32, scratch: Register);
    /// Stores the flags on the stack.
    fn keep_flags(&mut self, scratch: Register, at: i64);
    /// Restores them.
    fn restore_flags(&mut self, scratch: Register, at: i64);
    /// Jumps to a label unless the program's register holds this number of a system call. The flags stay.
    fn unless_call(&mut self, number: u32, scratch: Register, to: Label);

    /// The number that [`op_number`](Self::op_number) takes in place of this one, if there is one.
    fn in_instruction(how: Arithmetic, number: i64) -> Option<i64>;
    /// `rd` = `rs` combined with a number that [`in_instruction`](Self::in_instruction) has returned. What is
    /// subtracted is added: its number is the negated one.
    fn op_number(&mut self, how: (Arithmetic, bool), rd: Register, rs: Register, number: i64);
    /// `rd` = `left` combined with `right`, without a sign, by one instruction: no division.
    fn op(&mut self, how: Arithmetic, rd: Register, left: Register, right: Register);
    /// `rd` = a combination of two registers, which may be `rd`, signed or not. `scratch` is overwritten.
    fn combine(
        &mut self,
        how: (Arithmetic, bool),
        rd: Register,
        operands: (Register, Register),
        scratch: Register,
    );
    /// `rd` = 1 if a comparison holds, otherwise 0.
    fn compare(&mut self, how: (Comparison, bool), rd: Register, operands: (Register, Register));
    /// `rd` = some of its bits.
    fn cut(&mut self, rd: Register, bits: Bits);
    /// `rd` = its complement.
    fn complement(&mut self, rd: Register);
    /// `rd` = the number of bits up to its highest one that is set. `scratch` is overwritten.
    fn count_bits(&mut self, rd: Register, scratch: (Register, Register));
}
