//! What only RISC-V has.
