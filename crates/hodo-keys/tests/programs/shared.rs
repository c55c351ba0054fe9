//! A Rust library that the program and the library that it loads share, with the one copy of hodo-keys that both use.

pub use hodo_keys;
use hodo_keys::{define_static_key_array_false, define_static_key_false, define_static_key_true};

define_static_key_false!(pub COMMON);
define_static_key_true!(pub USUAL);
define_static_key_array_false!(pub SEVERAL[3]);
