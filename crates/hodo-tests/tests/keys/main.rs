//! Static keys and tracepoints of programs, seen from outside.

mod control;
mod programs;
mod tracepoints;
