//! Where return addresses are kept while their functions run (see `returns.rs`).

use core::sync::atomic::{AtomicU64, Ordering};

use super::environment::{self, Errno, Window};

/// The lowest place of a return address that has a shadow, or 0 before there is one; and the end of the highest.
static LOW: AtomicU64 = AtomicU64::new(0);
static TOP: AtomicU64 = AtomicU64::new(0);
static DISTANCE: AtomicU64 = AtomicU64::new(0);

/// Reserves the shadow, which takes memory only where it is used.
pub(super) fn start() -> Result<(), Errno> {
    if LOW.load(Ordering::Acquire) != 0 {
        return Ok(());
    }
    let window = environment::current().shadow()?;
    TOP.store(window.top, Ordering::Release);
    DISTANCE.store(window.distance, Ordering::Release);
    LOW.store(window.low, Ordering::Release);
    Ok(())
}

/// What was reserved.
pub(super) fn window() -> Window {
    Window {
        low: LOW.load(Ordering::Acquire),
        top: TOP.load(Ordering::Acquire),
        distance: DISTANCE.load(Ordering::Acquire),
    }
}
