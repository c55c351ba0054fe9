//! What only x86-64 has.

mod control;
mod flags;
mod survive;
