//! `hodo syscalls`, and events of system calls.

mod events;
mod live;
mod printed;
