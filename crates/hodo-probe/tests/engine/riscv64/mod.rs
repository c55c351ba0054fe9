//! What only RISC-V has.

mod places;
mod refused;
mod survive;
mod vectors;
