//! Whole-program tests: a small program is run alone and under `hodo record`, and its visible behaviour must not
//! differ. Then its trace is read, and must contain the calls that the source makes.
//!
//! The programs are in `programs/`, the tests in `tests/`. Environment: `HODO_BIN` is the `hodo` to test (by default,
//! one is built). `HODO_TEST_TIMEOUT` is the number of seconds after which a run counts as hanging. With
//! `HODO_TEST_BUILDS` the programs are only compiled (all tests then fail), for tests that run later where compilers
//! are slow or missing. A line `built: PATH` then names each program that a test needs. `HODO_TEST_BUILT` says that the
//! examples and libraries of this workspace have been built, so that tests do not ask cargo for them: it would compile
//! some dependencies again, with the features that just these need. `HODO_TEST_EMULATED` leaves out cases in which an
//! emulator shows something else than a processor.

mod build;
pub mod interpreter;
pub mod perfetto;
pub mod probing;
mod run;
mod skipped;
pub mod target;
mod tested;
mod trace;

pub use build::{
    IS_SLOW, Kind, Language, SHORTER, build, build_with, example, has_tool, links, make_fifo,
    scratch,
};
pub use run::{Ended, Outcome, Run, Traced};
pub use skipped::{skip, temporary};
pub use tested::hodo;
pub use trace::Trace;

/// Returns whether the tests run as root; those that need it say so and stop otherwise.
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
