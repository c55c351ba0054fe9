//! `hodo probe`.

mod actions;
mod after;
mod armed;
mod beside;
mod conditions;
mod counted;
mod debug_files;
mod reference;
mod returns;
mod sources;
mod tracepoints;
mod variables;
