//! Sites that still need memory before they can be written.

use hodo_isa::Via;
use hodo_plan::model::{Extra, SitePlan};

/// What [`lead`](crate::site_writer::lead) leaves for later, because memory for it has yet to be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Later {
    /// A pun: its jump chooses this many bytes of its distance; the others are those of the following instructions.
    Pun(u8),
    /// A short jump to our memory.
    Near,
    /// A short jump to bytes that the function at `host` has left free, at the runtime address `slot`.
    Donor {
        /// Where the long jump goes.
        slot: u64,
        /// Link-time address of the function.
        host: u64,
    },
    /// A jump at the site that loads its stub's address from memory: from here, if the site has a place for it.
    Literal(Option<u64>),
    /// The site's own jump, to our memory that holds a jump to anywhere.
    Farther,
}

/// A site that is not written yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Open {
    /// Link-time address, and how many bytes of it are changed.
    pub patch: u64,
    pub patch_len: u8,
    pub extra: Extra,
    pub via: Via,
    /// What is still to be written.
    pub later: Later,
    /// Its stub.
    pub stub: u64,
}

impl Open {
    /// The remaining work for a site with this stub.
    pub fn new(site: &SitePlan, later: Later, stub: u64) -> Self {
        Self {
            patch: site.patch,
            patch_len: site.patch_len,
            extra: site.extra.clone(),
            via: site.via,
            later,
            stub,
        }
    }
}

impl Open {
    /// A punned site that chooses this many bytes of its jump's distance.
    pub fn pun(patch: u64, patch_len: u8, free: u8, stub: u64) -> Self {
        Self {
            patch,
            patch_len,
            extra: Extra::Pun { free },
            via: Via::Nothing,
            later: Later::Pun(free),
            stub,
        }
    }

    /// How many bytes of its jump's distance it chooses, if it is exactly what [`Self::pun`] makes.
    pub fn as_pun(&self) -> Option<u8> {
        match self.later {
            Later::Pun(free) if self.via == Via::Nothing => Some(free),
            _ => None,
        }
    }
}
