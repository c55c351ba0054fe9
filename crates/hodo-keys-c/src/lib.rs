//! Static keys for C programs: the interface of [`hodo_keys::c`] as a library. `include/hodo-keys.h` describes it.
#![forbid(unsafe_code)]

pub use hodo_keys::c::*;
