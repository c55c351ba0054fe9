//! Call sites that are patched: the kernel's `HAVE_DYNAMIC_FTRACE`.
//!
//! A *site* is a place at the entry of a function where a call can be. While nobody wants to see the function, what is
//! there does nothing. Each site has a *mask*: the tracers that want to see it. [`register`] gives a tracer its bit;
//! [`ENTRY`] and [`GRAPH`] are those of the hooks of [`crate::set_entry`] and [`crate::set_graph`]. [`select`] changes
//! what is wanted, and [`apply`] writes all sites for which that has changed, with one barrier for each step.
//!
//! A program or a kernel adds the sites of each of its [`Module`]s, and provides [`Text`] and [`Pages`]. It makes sure
//! that no two threads change anything of this at once: what runs in traced functions takes no lock.

mod apply;
mod call;
mod modules;
mod prepared;
mod reserved;
mod site;
mod tracers;
#[cfg(test)]
mod unit;

pub use apply::{Failure, apply};
pub(crate) use call::{call_tracers, entered, mask_of_static};
pub use hodo_sys::poke::{Batch, Bytes};
pub use hodo_sys::{Errno, Mapping, Page, Pages, Text, Use};
pub(crate) use modules::trampolines_of;
pub use modules::{Module, add, each_module, first, fix, remove, select, site_at};
pub use prepared::Prepared;
pub use reserved::{Reserved, reserved};
pub use site::{Entry, Site};
pub(crate) use tracers::set_redirecting;
pub use tracers::{
    ENTRY, EVERY_CALL, Func, GRAPH, IP_MODIFY, MASKS, Ops, PER_THREAD, SAVE_REGISTERS, number,
    register, register_keeping, set_thread, thread_tracers, unregister,
};

pub use crate::arch::{Form, LONGEST, Registers, TRAMPOLINE, TRAMPOLINE_PUSH, prepare};
