//! Tracepoints: places in a program that cost one nop until somebody listens.
//!
//! [`tracepoint!`](macro@crate::tracepoint) declares one in place. While it is disabled, it is the nop of a static
//! branch, and no argument is evaluated. While it is enabled, two things happen at each hit:
//!
//! * An instruction is executed that the file lists as a USDT probe (`.note.stapsdt`), with the arguments in registers.
//!   So `hodo`, bpftrace and perf can attach to it by name. `.note.hodo.tracepoint` adds the names and types of the
//!   arguments.
//! * The functions that were registered for it are called; see [`register`].
//!
//! ```
//! use hodo_keys::tracepoint::{self, Value};
//! use std::sync::atomic::{AtomicU64, Ordering};
//!
//! static BYTES: AtomicU64 = AtomicU64::new(0);
//!
//! fn send(packet: &[u8], to: &str) {
//!     hodo_keys::tracepoint!(net, send, to, length = packet.len());
//! }
//!
//! send(b"nobody", "sees this");
//! let registration = tracepoint::register("net:*", |event| {
//!     if let Some(Value::Unsigned(length)) = event.get("length") {
//!         BYTES.fetch_add(length, Ordering::Relaxed);
//!     }
//! })?;
//! send(b"hello", "there");
//! registration.remove()?;
//! send(b"nor", "this");
//! assert_eq!(BYTES.load(Ordering::Relaxed), 5);
//! # Ok::<(), hodo_keys::Error>(())
//! ```
//!
//! # What tools see
//!
//! | type | in a USDT probe | in `.note.hodo.tracepoint` |
//! |---|---|---|
//! | integers, `bool`, `char` | a register of that size, with its sign | `u8` … `i64`, `bool`, `char` |
//! | `f32`, `f64` | its bits, as an unsigned number: neither bpftrace nor the kernel reads vector registers | `f32`, `f64` |
//! | pointers, references | the address | `ptr` |
//! | `&str`, `String` | the address of a copy with a NUL after it, of at most 255 bytes | `str` |
//! | `&CStr`, `CString` | its address | `str` |
//!
//! An outside tool's probe is hit only while the tracepoint is enabled: by a registered function, by [`enable`], or by
//! `hodo record --event`, which enables it itself.
//!
//! # Functions
//!
//! A hit takes no lock and allocates nothing, so tracepoints may be in signal handlers; whether the functions may run
//! there is up to them. With the feature `std`, a function is not called for its own hits, direct or in a signal
//! handler that interrupts it. Without `std`, it recurses. A function that panics unwinds through the tracepoint.

mod arch;
mod argument;
mod functions;
mod hit;
mod inside;
mod macros;
mod notes;
mod pattern;
mod readers;

use core::fmt;
use core::sync::atomic::AtomicU64;

use crate::key::{Branchable, Key};

pub use argument::{Argument, Value};
#[cfg(feature = "std")]
pub use functions::register;
pub use functions::{Function, Registration, enable, register_static};
pub(crate) use functions::{any as any_registered, loaded, unloaded};

/// What the macro uses.
pub(crate) mod private {
    pub use super::argument::{Argument, Given, Other, Passed};
    pub use super::hit::*;
    pub use super::notes::{Place, plain};

    /// What an argument is in registers.
    #[inline(always)]
    pub fn raw<A: Argument>(argument: &A) -> Passed<A> {
        Passed(argument.raw())
    }
}

/// A tracepoint: what [`tracepoint!`](macro@crate::tracepoint) declares.
#[derive(Debug)]
#[repr(C)]
pub struct Tracepoint {
    /// The first field, so that a key that belongs to a tracepoint shows where the tracepoint is.
    key: Key,
    arguments: &'static [&'static str],
    /// Which [`functions`] are registered for it: a bit for each.
    registered: AtomicU64,
}

impl Tracepoint {
    /// Makes a tracepoint; it must become a `static`. `name` is `group:name`.
    #[doc(hidden)]
    #[must_use]
    pub const fn new(name: &'static str, arguments: &'static [&'static str]) -> Self {
        notes::check(name, arguments);
        Self {
            key: Key::of_tracepoint(name),
            arguments,
            registered: AtomicU64::new(0),
        }
    }

    /// Its key, whose name is `group:name`. Enabling it by hand makes outside tools see its hits.
    #[must_use]
    pub fn key(&'static self) -> &'static Key {
        &self.key
    }

    /// `group:name`.
    #[must_use]
    pub fn full_name(&self) -> &'static str {
        self.key.name()
    }

    /// The group.
    #[must_use]
    pub fn group(&self) -> &'static str {
        self.parts().0
    }

    /// The name within the group.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.parts().1
    }

    fn parts(&self) -> (&'static str, &'static str) {
        let name = self.full_name();
        name.split_once(':').unwrap_or(("", name))
    }

    /// The names of its arguments. Their types are known only at hits.
    #[must_use]
    pub fn arguments(&self) -> &'static [&'static str] {
        self.arguments
    }

    /// The tracepoint that a key belongs to, if any.
    #[must_use]
    pub fn of(key: &'static Key) -> Option<&'static Self> {
        // SAFETY: only `Tracepoint::new` makes such keys, and the key is its first field.
        key.is_tracepoint()
            .then(|| unsafe { &*core::ptr::from_ref(key).cast() })
    }
}

impl Branchable for Tracepoint {
    const INITIAL: bool = false;
}

/// Calls a function for each tracepoint of the program and its libraries; this may be more than once for a tracepoint
/// that libraries share. Tracepoints that the linker dropped together with their code are not included. The function
/// must not switch keys.
///
/// # Errors
/// [`Error::Busy`](crate::Error::Busy).
pub fn for_each(mut found: impl FnMut(&'static Tracepoint)) -> Result<(), crate::Error> {
    crate::for_each(|key| {
        if let Some(tracepoint) = Tracepoint::of(key.key) {
            found(tracepoint);
        }
    })
}

/// A hit of a tracepoint, as registered functions see it.
#[derive(Debug, Clone, Copy)]
pub struct Event<'a> {
    tracepoint: &'static Tracepoint,
    fields: &'a [Field<'a>],
}

/// An argument at a hit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Field<'a> {
    /// The argument's name.
    pub name: &'static str,
    /// Its value at this hit.
    pub value: Value<'a>,
}

impl<'a> Event<'a> {
    /// The tracepoint that was hit.
    #[must_use]
    pub fn tracepoint(&self) -> &'static Tracepoint {
        self.tracepoint
    }

    /// The tracepoint's group.
    #[must_use]
    pub fn group(&self) -> &'static str {
        self.tracepoint.group()
    }

    /// The tracepoint's name within the group.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.tracepoint.name()
    }

    /// The arguments, in order.
    #[must_use]
    pub fn fields(&self) -> &'a [Field<'a>] {
        self.fields
    }

    /// An argument by its name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Value<'a>> {
        let mut fields = self.fields.iter();
        fields
            .find(|field| field.name == name)
            .map(|field| field.value)
    }
}

/// `net:send to="there" length=5`
impl fmt::Display for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.tracepoint.full_name())?;
        for Field { name, value } in self.fields {
            write!(f, " {name}={value}")?;
        }
        Ok(())
    }
}
