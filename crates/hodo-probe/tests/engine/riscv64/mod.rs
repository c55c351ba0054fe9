//! What only RISC-V has.

mod everything;
mod places;
mod refused;
mod survive;
mod vectors;
