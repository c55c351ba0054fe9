//! Recordings of running processes: attaching, changing what is recorded, detaching, and what a killed hodo leaves.

mod adopted;
mod errors;
mod files;
mod killed;
mod live_control;
mod memory;
mod moments;
mod running;
mod storms;
