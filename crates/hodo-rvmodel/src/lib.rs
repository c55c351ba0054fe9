//! A model of RV64IMAC with two instructions that the founding slides propose: `lrw2spc`, which starts the mode of the
//! *shadow pc*, and `c.jall`, a call in six bytes. It executes code and counts; it does not know time.
//!
//! [`params`] has everything that the slides leave open, each with a default and its reason. [`hart`] executes,
//! [`memory`] is what it works on, [`front`] counts fetches and wrong guesses. [`encode`] has the encodings.
//!
//! On the model run the ways to make a function's entry patchable ([`entries`]) and to probe an instruction
//! ([`probes`]): of [`samples`], or of all code that a run executes ([`coverage`]). [`tables`] prints what they cost;
//! `docs/riscv-proposals.md` holds these tables.
//!
//! The hart's base is compared with an emulator on random programs (`tests/base.rs`).
#![forbid(unsafe_code)]

pub mod alu;
pub mod coverage;
pub mod encode;
pub mod entries;
pub mod front;
pub mod hart;
pub mod memory;
pub mod params;
pub mod probes;
pub mod samples;
pub mod tables;
