//! What a signal that asks for the end does before a recording has begun. Planning large files takes seconds.

use hodo_ptrace::signals::{Abandonable, end_by};

/// Work before a program is started. If it is abandoned, `removal` removes the trace directory, and hodo ends as it
/// would by default.
pub fn before_starting(removal: impl FnOnce() + Send + 'static) -> Abandonable {
    Abandonable::begin(move |signal| {
        removal();
        end_by(signal);
    })
}

/// Work before a process is attached to. No process may have been changed yet.
pub fn before_attaching(removal: impl FnOnce() + Send + 'static) -> Abandonable {
    Abandonable::begin(move |_| {
        removal();
        warn_user!("hodo: interrupted before anything was recorded");
        std::process::exit(125);
    })
}
