//! What happens when the library starts.

use crate::change::{after_fork, before_fork, change};
use crate::{livepatch, probing, record};

/// After a fork, in the child.
extern "C" fn in_child() {
    after_fork();
    livepatch::in_child();
    record::forked();
}

/// Switches all call sites off that are there when the library starts.
extern "C" fn start() {
    // SAFETY: the functions are such as are expected, and stay.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_child)) };
    livepatch::start();
    // If this does not work, functions that compilers call work without.
    let _ = change(None, |_| Ok(()));
    record::start();
    // A linker takes it from the archive.
    std::hint::black_box(&probing::hodo_ftrace_probing);
}

/// It comes before other constructors of the same file.
#[used]
#[unsafe(link_section = ".init_array.00101")]
static START: extern "C" fn() = start;
