//! Writing code.

use core::sync::atomic::{AtomicPtr, Ordering};

pub(crate) use hodo_sys::ENOSYS;
/// The `errno` of a failed system call, or of whatever else writes code.
pub use hodo_sys::Errno;
/// Writes code. Linux's way is built in; a kernel, or a program without one, supplies its own: see
/// [`set_text`](crate::set_text).
pub use hodo_sys::Text;

/// What was set by [`set`], if anything.
static TEXT: AtomicPtr<&'static dyn Text> = AtomicPtr::new(core::ptr::null_mut());

/// Replaces the built-in way of writing code. Programs that do not run on Linux call this before they switch a key; on
/// Linux it is for those that cannot open `/proc`.
///
/// ```
/// use hodo_keys::{Errno, Text};
///
/// struct Kernel;
///
/// // SAFETY: …
/// unsafe impl Text for Kernel {
///     unsafe fn write(&self, at: usize, bytes: &[u8]) -> Result<(), Errno> {
///         // through a mapping that can be written
/// #       let _ = (at, bytes);
///         Ok(())
///     }
///     fn sync(&self) {
///         // an interrupt of all other processors
///     }
/// }
///
/// static KERNEL: &dyn Text = &Kernel;
/// hodo_keys::set_text(&KERNEL);
/// ```
pub fn set(text: &'static &'static dyn Text) {
    TEXT.store(core::ptr::from_ref(text).cast_mut(), Ordering::Release);
}

/// How code is written now.
pub(crate) fn current() -> Option<&'static dyn Text> {
    // SAFETY: `set` has stored a reference that is never freed.
    if let Some(text) = unsafe { TEXT.load(Ordering::Acquire).as_ref() } {
        return Some(*text);
    }
    #[cfg(target_os = "linux")]
    {
        static LINUX: hodo_sys::Process = hodo_sys::Process::new();
        Some(&LINUX)
    }
    #[cfg(not(target_os = "linux"))]
    None
}
