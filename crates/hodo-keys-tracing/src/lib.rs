//! The macros of [`tracing`](https://docs.rs/tracing) behind static keys: an event or span that no subscriber is interested in is
//! one nop, instead of loads and comparisons.
//!
//! ```
//! use hodo_keys_tracing::{debug, info_span};
//!
//! fn request(id: u64, path: &str) {
//!     let _entered = info_span!("request", id).entered();
//!     debug!(path, "begins"); // one nop, unless somebody wants it
//! }
//!
//! // At the beginning of the program, before it has a subscriber.
//! hodo_keys_tracing::install()?;
//! // tracing_subscriber::fmt::init();
//! request(1, "/");
//! # Ok::<(), hodo_keys_tracing::Error>(())
//! ```
//!
//! The macros have the names and the arguments of those of `tracing`: [`event!`], [`trace!`], [`debug!`], [`info!`],
//! [`warn!`], [`error!`], and [`span!`], [`trace_span!`], … [`error_span!`]. Both may be used side by side.
//!
//! Until [`install`] is called all of them behave as those of `tracing`, for their keys are enabled: nothing gets lost
//! in programs that never do. From then on the key of each follows the interest of the subscribers, as `tracing` itself
//! does: it asks them when they are created, and when one says that its interest has changed
//! (`tracing_subscriber::reload` does so). While nobody is interested, `tracing` does not know of the place. While
//! somebody is, what happens is what the macro of `tracing` does.
//!
//! # What is different
//!
//! * Subscribers are asked for their interest in each place twice once it is enabled: by this crate, and by `tracing`.
//! * When a subscriber is dropped, `tracing` asks the others again only at the next occasion
//!   (`tracing::callsite::rebuild_interest_cache`); so keys may stay enabled until then.
//! * A span that is off is `Span::none()`, which does not know its metadata.
//! * What `tracing` sends to the crate `log` (by its features `log` and `log-always`) is sent only from places that a
//!   subscriber is interested in.
//! * A variable in an event is in memory, as with `tracing`, since events have references to their values: in a hot
//!   loop write `value = { x }` to have a copy of `x` made where the event is.
#![forbid(unsafe_code)]

mod callsite;
mod macros;

pub use callsite::{Callsite, install, last_error};
pub use hodo_keys::Error;

/// What the macros use.
#[doc(hidden)]
pub mod __private {
    pub use hodo_keys::{AnnotatedKey, static_branch_unlikely};
    pub use tracing;
    pub use tracing::level_filters::STATIC_MAX_LEVEL;
    pub use tracing_core::callsite::Identifier;
    pub use tracing_core::field::FieldSet;
    pub use tracing_core::{Kind, Level, Metadata};

    /// The name of a field without what makes it a raw identifier. (Names of several parts are rarely raw after the
    /// first.)
    #[must_use]
    pub const fn plain(name: &'static str) -> &'static str {
        match name.as_bytes() {
            [b'r', b'#', ..] => name.split_at(2).1,
            _ => name,
        }
    }
}
