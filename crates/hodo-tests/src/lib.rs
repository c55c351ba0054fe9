//! Whole-program tests: a small program is run alone and under `hodo record`, and nothing that it shows to the outside
//! may differ; then its trace is read, and the calls in it must be those that the source makes.
//!
//! The programs are in `programs/`, the tests in `tests/`. Environment: `HODO_BIN` is the `hodo` to test (without it,
//! one is built); `HODO_TEST_TIMEOUT` the seconds after which a run counts as hanging; with `HODO_TEST_BUILDS` the
//! programs are compiled and not run (all tests fail then), for tests that run later where compilers are slow.

mod build;
pub mod perfetto;
pub mod probing;
mod run;
mod skipped;
pub mod target;
mod tested;
mod trace;

pub use build::{Kind, Language, build, build_with, example, has_tool, links, scratch};
pub use run::{Ended, Outcome, Run, Traced};
pub use skipped::{skip, temporary};
pub use tested::hodo;
pub use trace::Trace;

/// Whether the tests run as root; those that need it say so and stop otherwise.
pub fn is_root() -> bool {
    // SAFETY: geteuid only returns a number.
    unsafe { libc::geteuid() == 0 }
}

/// Ends a test early, with the reason, if a condition does not hold.
#[macro_export]
macro_rules! needs {
    ($condition:expr, $reason:expr) => {
        if !$condition {
            $crate::skip($reason);
            return;
        }
    };
}
