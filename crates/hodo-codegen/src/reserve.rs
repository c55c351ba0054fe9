//! Which registers our code works with, and where what was in them is meanwhile.
//!
//! * `scratch`: stubs and detours choose once, before they are written: registers that are free, and others that they
//!   save. So does the engine's code for clients, which takes registers that a block does not use ([`unused`]).
//! * [`bank`]: the engine's code goes on between instructions of the program. It gets registers when it uses them, and
//!   gives them back when the program needs them. There is a bank for each kind: general registers, vectors, masks.
//!
//! Neither knows a register by its name.

pub mod bank;
pub(crate) mod scratch;

pub use bank::{Ahead, Bank, REGISTERS, Shares};
pub use scratch::unused;
