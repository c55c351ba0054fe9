//! Records programs: launches or attaches to them, follows their threads and children, and writes the trace.
//!
//! [`record`] does all of this.

#[macro_use(warn_user)]
extern crate hodo_ptrace;

mod abandon;
mod arch;
mod attach;
mod check;
mod control;
mod costs;
mod events;
mod keys;
mod modules;
mod monitor;
mod options;
mod owner;
mod reach;
mod recording;
mod reserve;
mod select;
mod session;
mod setup;
mod tasks;
mod trace_dir;
mod tracer;
mod work;

pub use attach::{attach, detach, left_behind, may_stop, own_memory};
pub use control::{Changes, armed, change};
pub use hodo_follow::Exit;
pub use hodo_ptrace::inherited::messages_to;
pub use hodo_ptrace::launch::execute;
pub use hodo_ptrace::limits::has_small_stack;
pub use hodo_ptrace::sockets;
pub use hodo_ptrace::warn_user;
pub use keys::{KeyState, ListedKey, list_keys, list_keys_of, switch_keys};
pub use monitor::{Front, front};
pub use options::{Clock, Match, RecordOptions};
pub use recording::{Ended, record};
pub use reserve::WithReserve;
pub use session::{Moment, moment};
pub use trace_dir::TraceDir;
