//! The engine in this process: the tests' own functions are probed.

#[macro_use]
mod code;
mod lifecycle;
mod survive;
