//! Programs under `hodo record`: they do what they do alone, and the trace has their calls.

mod builds;
mod cache;
mod confinement;
mod contexts;
mod control_flow;
mod cores;
mod filters;
mod large;
mod left;
mod libraries;
mod limits;
mod locks;
mod names;
mod odd_programs;
mod processes;
mod real_programs;
mod registers;
mod runtimes;
mod sanitizers;
mod terminals;
