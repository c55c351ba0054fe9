//! The engine in this process: the tests' own functions are probed.

#[macro_use]
mod code;
mod counts;
mod hard;
mod lifecycle;
mod refusals;
mod returns;
mod survive;
mod threads;
