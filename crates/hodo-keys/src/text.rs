//! Writing code.

use core::sync::atomic::{AtomicPtr, Ordering};

/// The `errno` of a failed system call, or of whatever else writes code.
pub type Errno = i32;

/// Writes code. Linux's way is built in; a kernel, or a program without one, supplies its own: see
/// [`set_text`](crate::set_text).
///
/// # Safety
/// When [`Text::sync`] returns, all processors must see what was written, and none may execute what it fetched before.
pub unsafe trait Text: Sync {
    /// Called before the first write of a change.
    ///
    /// # Errors
    /// If code cannot be written now. Nothing is changed then.
    fn begin(&self) -> Result<(), Errno> {
        Ok(())
    }

    /// Writes code that other processors may be executing.
    ///
    /// # Errors
    /// If nothing was written.
    ///
    /// # Safety
    /// `at` is code of the program, and `bytes` is allowed there.
    unsafe fn write(&self, at: usize, bytes: &[u8]) -> Result<(), Errno>;

    /// Returns whether an aligned four-byte word is written by one store. Only AArch64 asks: there a branch is then
    /// changed at once, otherwise byte by byte, in three steps. Elsewhere, and on other processors, bytes may be
    /// written in any order.
    fn writes_words(&self) -> bool {
        false
    }

    /// Makes every processor execute a serializing instruction (x86-64), `fence.i` (RISC-V), or `isb` (AArch64).
    fn sync(&self);

    /// Called after the last write, even if one has failed.
    fn end(&self) {}
}

pub(crate) const ENOSYS: Errno = 38;

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
        static LINUX: linux::Linux = linux::Linux::new();
        Some(&LINUX)
    }
    #[cfg(not(target_os = "linux"))]
    None
}

#[cfg(target_os = "linux")]
mod linux {
    use core::sync::atomic::{AtomicI32, Ordering};

    use hodo_sys::sys;

    use super::{Errno, Text};

    const EIO: Errno = 5;

    /// Writes through `/proc/self/mem`. It is opened for each change: in a child of fork, a kept descriptor would be
    /// the parent's memory, and programs that close all descriptors they do not know might close it.
    pub struct Linux(AtomicI32);

    impl Linux {
        pub const fn new() -> Self {
            Self(AtomicI32::new(-1))
        }
    }

    // SAFETY: the kernel writes; the barrier is `membarrier`, or on RISC-V the kernel's `fence.i` on all harts.
    unsafe impl Text for Linux {
        fn begin(&self) -> Result<(), Errno> {
            sys::register_sync_core()?;
            let file = sys::open(c"/proc/self/mem", sys::O_RDWR)?;
            self.0.store(file, Ordering::Relaxed);
            Ok(())
        }

        unsafe fn write(&self, at: usize, bytes: &[u8]) -> Result<(), Errno> {
            let file = self.0.load(Ordering::Relaxed);
            // SAFETY: the caller answers for what is written.
            match unsafe { hodo_sys::write_memory(file, bytes, at as u64) }? {
                count if count == bytes.len() => Ok(()),
                _ => Err(EIO),
            }
        }

        fn writes_words(&self) -> bool {
            sys::writes_words()
        }

        fn sync(&self) {
            sys::sync_core();
        }

        fn end(&self) {
            // SAFETY: `begin` opened it, and only one change is made at a time.
            unsafe { sys::close(self.0.swap(-1, Ordering::Relaxed)) };
        }
    }
}
