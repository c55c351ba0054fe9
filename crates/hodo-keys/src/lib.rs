//! Static keys: branches that cost one nop while they are off, and no memory access.
//!
//! Linux's jump labels (`Documentation/staging/static-keys.rst`) for Rust programs. A branch on a static key is a nop
//! or a jump in the code. Switching the key rewrites all branches on it, while threads execute them. So checks that
//! almost never matter (is anybody tracing? is this feature on?) can be placed in the hottest code.
//!
//! ```
//! use hodo_keys::{define_static_key_false, static_branch_unlikely};
//!
//! define_static_key_false! {
//!     /// Whether each request is logged.
//!     pub LOGGING;
//! }
//!
//! fn request(id: u64) -> u64 {
//!     if static_branch_unlikely!(LOGGING) {
//!         eprintln!("request {id}");
//!     }
//!     id * 2
//! }
//!
//! assert_eq!(request(1), 2);
//! LOGGING.enable()?;
//! assert_eq!(request(2), 4); // is logged
//! # Ok::<(), hodo_keys::Error>(())
//! ```
//!
//! | defined by | branch | instruction at first |
//! |---|---|---|
//! | [`define_static_key_false!`] | [`static_branch_unlikely!`] | nop; the code for "enabled" is out of the way |
//! | [`define_static_key_true!`] | [`static_branch_likely!`] | nop; the code for "disabled" is out of the way |
//! | [`define_static_key_true!`] | [`static_branch_unlikely!`] | jump |
//! | [`define_static_key_false!`] | [`static_branch_likely!`] | jump |
//!
//! [`Key::enable`] and [`Key::disable`] switch a key; [`Key::inc`] and [`Key::dec`] count its users; [`switch`] changes
//! many keys at once. Switching costs some microseconds, and a little more per branch; threads are not stopped, and the
//! code is never writable. Signal handlers must not switch keys. The page `docs/static-keys.md` says when to use them.
//!
//! The feature `c` adds the functions of `hodo-keys.h` (crate `hodo-keys-c`), for programs with Rust and C code.
#![no_std]

#[cfg(any(feature = "std", test))]
extern crate std;

mod annotated;
mod arch;
#[cfg(all(feature = "c", target_os = "linux"))]
pub mod c;
#[cfg(all(feature = "std", target_os = "linux"))]
mod control;
mod deferred;
mod doing;
mod error;
mod glob;
mod key;
mod loading;
mod lock;
mod macros;
mod modules;
mod registry;
mod text;
#[cfg(all(feature = "std", target_os = "linux"))]
mod thread;
pub mod tracepoint;

pub use annotated::AnnotatedKey;
#[cfg(all(feature = "std", target_os = "linux"))]
pub use control::{apply_environment, expose, try_expose};
pub use deferred::Deferred;
pub use error::Error;
pub use key::{Change, Key, StaticKey, StaticKeyArray, StaticKeyFalse, StaticKeyTrue};
pub use registry::{Found, for_each, switch};
pub use text::{Errno, Text, set as set_text};

/// What the macros use.
#[doc(hidden)]
pub mod __private {
    pub use crate::key::{Branchable, BranchableArray};
    pub use crate::loading::{load, unload};
    pub use crate::tracepoint::private::*;

    /// The value of a branch that does not jump. Only a function call tells lints that the value may change between
    /// evaluations, as in `while static_branch_likely!(KEY) {}`.
    #[inline(always)]
    #[must_use]
    pub const fn fallen_through(likely: bool) -> bool {
        likely
    }

    /// The initial state of a key.
    pub const fn initial<K: Branchable>(_: &'static K) -> bool {
        K::INITIAL
    }

    /// The initial state of an array's keys.
    pub const fn initial_of_array<K: BranchableArray>(_: &'static K) -> bool {
        K::INITIAL
    }

    /// The offset of a key in its array, in bytes.
    pub const fn offset<K: BranchableArray>(_: &'static K, index: usize) -> u32 {
        assert!(
            index < K::LENGTH,
            "the array of static keys has no element of this index"
        );
        (index * size_of::<crate::Key>()) as u32
    }
}

// For tests that switch keys under an emulator.
#[cfg(all(test, target_os = "linux"))]
#[path = "../tests/emulator/mod.rs"]
mod emulator;
#[cfg(all(test, target_os = "linux"))]
extern crate self as hodo_keys;

// The examples on that page are tested with those in the rustdoc.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/static-keys.md")]
struct StaticKeysPage;
