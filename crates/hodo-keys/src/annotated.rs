//! Keys that carry data of their own.

use core::any::Any;
use core::fmt;
use core::ops::Deref;

use crate::key::{Branchable, Key};

/// A static key with data attached, for those who find the key in the list of all keys: see
/// [`for_each`](crate::for_each). It has the methods of [`Key`].
///
/// ```
/// use hodo_keys::AnnotatedKey;
///
/// struct Reason(&'static str);
///
/// static REASON: Reason = Reason("to see what is sent");
/// static SENT: AnnotatedKey<false> = AnnotatedKey::new("net::SENT", &REASON);
///
/// if hodo_keys::static_branch_unlikely!(SENT) {
///     println!("sent");
/// }
/// let mut reasons = Vec::new();
/// hodo_keys::for_each(|found| {
///     let note = found.key.note().and_then(|note| note.downcast_ref::<Reason>());
///     reasons.extend(note.map(|reason| reason.0));
/// })?;
/// assert_eq!(reasons, ["to see what is sent"]);
/// # Ok::<(), hodo_keys::Error>(())
/// ```
#[repr(C)]
pub struct AnnotatedKey<const INITIAL: bool> {
    /// The first field, so that a key with a note shows where the note is.
    key: Key,
    note: &'static (dyn Any + Send + Sync),
}

impl<const INITIAL: bool> AnnotatedKey<INITIAL> {
    /// Makes a key; it must become a `static`.
    #[must_use]
    pub const fn new(name: &'static str, note: &'static (dyn Any + Send + Sync)) -> Self {
        let key = Key::with_note(INITIAL, name);
        Self { key, note }
    }
}

impl<const INITIAL: bool> fmt::Debug for AnnotatedKey<INITIAL> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.key.fmt(f)
    }
}

impl<const INITIAL: bool> Deref for AnnotatedKey<INITIAL> {
    type Target = Key;

    fn deref(&self) -> &Key {
        &self.key
    }
}

impl<const INITIAL: bool> Branchable for AnnotatedKey<INITIAL> {
    const INITIAL: bool = INITIAL;
}

impl Key {
    /// The attached data, if the key is an [`AnnotatedKey`].
    #[must_use]
    pub fn note(&'static self) -> Option<&'static (dyn Any + Send + Sync)> {
        // SAFETY: only `AnnotatedKey::new` makes such keys, and the key is its first field; a const parameter does not
        // change the offsets of the others.
        self.has_note().then(|| unsafe {
            let key: &AnnotatedKey<false> = &*core::ptr::from_ref(self).cast();
            key.note
        })
    }
}
