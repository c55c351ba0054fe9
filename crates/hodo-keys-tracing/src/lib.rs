//! The macros of [`tracing`](https://docs.rs/tracing) with static keys in front: an event or span that no subscriber is
//! interested in is one nop, instead of loads and comparisons.
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
//! The macros have the names and arguments of those in `tracing`: [`event!`], [`trace!`], [`debug!`], [`info!`],
//! [`warn!`], [`error!`], and [`span!`], [`trace_span!`], … [`error_span!`]. Both may be used side by side.
//!
//! Until [`install`] is called, all of them behave like those of `tracing`, because their keys are enabled: a program
//! that never calls it loses nothing. From then on each key follows the interest of the subscribers, as `tracing`
//! itself does: it asks them when they are created, and when one says that its interest has changed (as
//! `tracing_subscriber::reload` does). While nobody is interested, `tracing` does not know the place. While somebody
//! is, the macro does what `tracing`'s does.
//!
//! # What is different
//!
//! * Subscribers are asked twice for their interest in each place once it is enabled: by this crate and by `tracing`.
//! * When a subscriber is dropped, `tracing` asks the others again only at the next opportunity
//!   (`tracing::callsite::rebuild_interest_cache`); keys may stay enabled until then.
//! * A span that is off is `Span::none()`, which does not know its metadata.
//! * What `tracing` sends to the crate `log` (with its features `log` and `log-always`) is sent only from places that a
//!   subscriber is interested in.
//! * As with `tracing`, a variable in an event is in memory, because events hold references to their values. In a hot
//!   loop, write `value = { x }` to copy `x` where the event is.
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

    /// The name of a field without a raw identifier's prefix. (In a name of several parts, only the first is ever
    /// likely to be raw.)
    #[must_use]
    pub const fn plain(name: &'static str) -> &'static str {
        match name.as_bytes() {
            [b'r', b'#', ..] => name.split_at(2).1,
            _ => name,
        }
    }
}
