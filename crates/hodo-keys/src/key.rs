//! Keys.

use core::fmt;
use core::ops::{Deref, Index};
use core::sync::atomic::{AtomicU32, Ordering};

/// Bit of [`Key::state`]: switched on.
pub(crate) const ON: u32 = 1 << 31;
const INITIAL: u32 = 1;
const TRACEPOINT: u32 = 2;
const ELEMENT: u32 = 4;
const NOTE: u32 = 8;
/// Defined by `hodo-keys.h`.
const FROM_C: u32 = 16;

/// A key, whatever its initial state: what [`StaticKey`] and the elements of [`StaticKeyArray`] are.
///
/// It is enabled if it is switched on, or has users, or both. The two are independent: whoever holds it through
/// [`Key::inc`] keeps it enabled, even if somebody switches it off.
#[derive(Debug)]
#[repr(C, align(8))]
pub struct Key {
    /// [`ON`], and the number of users. If any of this is nonzero, the key is enabled.
    state: AtomicU32,
    flags: u32,
    name: *const u8,
    length: usize,
    /// Its index in the array, if [`ELEMENT`] is set.
    index: usize,
}

// SAFETY: the name is a constant; the rest is atomic or a constant.
unsafe impl Sync for Key {}
// SAFETY: as above.
unsafe impl Send for Key {}

impl Key {
    const fn new(initial: bool, flags: u32, name: &'static str) -> Self {
        Self {
            state: AtomicU32::new(if initial { ON } else { 0 }),
            flags: flags | if initial { INITIAL } else { 0 },
            name: name.as_ptr(),
            length: name.len(),
            index: 0,
        }
    }

    /// The key of a tracepoint, whose first field it is.
    pub(crate) const fn of_tracepoint(name: &'static str) -> Self {
        Self::new(false, TRACEPOINT, name)
    }

    /// The key of an annotated key, whose first field it is.
    pub(crate) const fn with_note(initial: bool, name: &'static str) -> Self {
        Self::new(initial, NOTE, name)
    }

    pub(crate) fn has_note(&self) -> bool {
        self.flags & NOTE != 0
    }

    /// Returns whether it is enabled. This reads memory: in code that must cost nothing, use the branches.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.state.load(Ordering::Acquire) != 0
    }

    /// The number of users that hold it through [`Key::inc`].
    #[must_use]
    pub fn users(&self) -> u32 {
        self.state.load(Ordering::Acquire) & !ON
    }

    /// The module that defined it and its name, such as `crate::module::NAME`; elements of an array all have the
    /// array's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        // SAFETY: pointer and length are those of a constant string.
        let bytes = unsafe { core::slice::from_raw_parts(self.name, self.length) };
        if self.is_from_c() {
            return core::str::from_utf8(bytes).unwrap_or("(a name that is not UTF-8)");
        }
        // SAFETY: Rust has no other strings.
        unsafe { core::str::from_utf8_unchecked(bytes) }
    }

    /// The index, if it is an element of an array.
    #[must_use]
    pub fn index(&self) -> Option<usize> {
        (self.flags & ELEMENT != 0).then_some(self.index)
    }

    /// Returns whether C code has defined it.
    pub(crate) fn is_from_c(&self) -> bool {
        self.flags & FROM_C != 0
    }

    /// Returns whether it was defined as enabled.
    #[must_use]
    pub fn initially_enabled(&self) -> bool {
        self.flags & INITIAL != 0
    }

    /// Returns whether it belongs to a tracepoint.
    #[must_use]
    pub fn is_tracepoint(&self) -> bool {
        self.flags & TRACEPOINT != 0
    }

    /// What [`Key::enable`] does, for [`switch`](crate::switch).
    #[must_use]
    pub fn enabling(&'static self) -> Change {
        Change::new(self, Operation::Enable)
    }

    /// What [`Key::disable`] does, for [`switch`](crate::switch).
    #[must_use]
    pub fn disabling(&'static self) -> Change {
        Change::new(self, Operation::Disable)
    }

    /// What [`Key::inc`] does, for [`switch`](crate::switch).
    #[must_use]
    pub fn incrementing(&'static self) -> Change {
        Change::new(self, Operation::Increment)
    }

    /// What [`Key::dec`] does, for [`switch`](crate::switch).
    #[must_use]
    pub fn decrementing(&'static self) -> Change {
        Change::new(self, Operation::Decrement)
    }

    pub(crate) fn state(&self) -> &AtomicU32 {
        &self.state
    }
}

/// The name, for an element of an array with its index, such as `crate::module::NAME[3]`.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self.index() {
            Some(index) => write!(f, "[{index}]"),
            None => Ok(()),
        }
    }
}

/// A change to a key. [`Key::enabling`] and its siblings make one; [`switch`](crate::switch) carries it out.
#[derive(Debug, Clone, Copy)]
pub struct Change {
    pub(crate) key: &'static Key,
    pub(crate) operation: Operation,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Operation {
    Enable,
    Disable,
    Increment,
    Decrement,
}

impl Change {
    pub(crate) fn new(key: &'static Key, operation: Operation) -> Self {
        Self { key, operation }
    }

    /// Returns whether this enables or disables the key.
    pub(crate) fn toggles(&self) -> bool {
        let state = self.key.state().load(Ordering::Relaxed);
        match self.operation {
            Operation::Enable | Operation::Increment => state == 0,
            Operation::Disable => state == ON,
            Operation::Decrement => state == 1,
        }
    }

    /// Applies the change, which has been checked, to the key's state.
    pub(crate) fn count(&self) {
        let state = self.key.state();
        match self.operation {
            Operation::Enable => state.fetch_or(ON, Ordering::AcqRel),
            Operation::Disable => state.fetch_and(!ON, Ordering::AcqRel),
            Operation::Increment => state.fetch_add(1, Ordering::AcqRel),
            Operation::Decrement => state.fetch_sub(1, Ordering::AcqRel),
        };
    }
}

/// A static key: [`define_static_key_false!`](crate::define_static_key_false) and
/// [`define_static_key_true!`](crate::define_static_key_true) make them. Its methods are those of [`Key`].
#[derive(Debug)]
#[repr(transparent)]
pub struct StaticKey<const INITIAL: bool>(Key);

/// A key that is initially enabled.
pub type StaticKeyTrue = StaticKey<true>;
/// A key that is initially disabled.
pub type StaticKeyFalse = StaticKey<false>;

impl<const INITIAL: bool> StaticKey<INITIAL> {
    /// Makes a key; it must become a `static`.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self(Key::new(INITIAL, 0, name))
    }

    /// The key itself; it can be used in constants, where the methods of [`Key`] cannot be called.
    #[must_use]
    pub const fn key(&self) -> &Key {
        &self.0
    }
}

impl<const INITIAL: bool> Deref for StaticKey<INITIAL> {
    type Target = Key;

    fn deref(&self) -> &Key {
        &self.0
    }
}

/// An array of independent keys: [`define_static_key_array_false!`](crate::define_static_key_array_false) makes them.
/// Branches name an element by a constant index, `ARRAY[3]`; switching takes any index.
#[derive(Debug)]
#[repr(transparent)]
pub struct StaticKeyArray<const INITIAL: bool, const N: usize>([Key; N]);

impl<const INITIAL: bool, const N: usize> StaticKeyArray<INITIAL, N> {
    /// Makes the keys; they must become a `static`.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        let mut keys = [const { Key::new(INITIAL, 0, "") }; N];
        let mut index = 0;
        while index < N {
            keys[index].name = name.as_ptr();
            keys[index].length = name.len();
            keys[index].flags |= ELEMENT;
            keys[index].index = index;
            index += 1;
        }
        Self(keys)
    }

    /// An element; can be used in constants.
    ///
    /// # Panics
    /// If the index is out of bounds.
    #[must_use]
    pub const fn key(&self, index: usize) -> &Key {
        &self.0[index]
    }

    /// The number of elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        N
    }

    /// Returns whether there are no elements.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        N == 0
    }

    /// All of them.
    pub fn iter(&self) -> core::slice::Iter<'_, Key> {
        self.0.iter()
    }
}

impl<const INITIAL: bool, const N: usize> Index<usize> for StaticKeyArray<INITIAL, N> {
    type Output = Key;

    fn index(&self, index: usize) -> &Key {
        &self.0[index]
    }
}

/// What the branch macros take: [`StaticKey`].
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a static key",
    label = "branches are on keys made by `define_static_key_false!` or `define_static_key_true!`",
    note = "the branch on an element of an array of keys is written `static_branch_unlikely!(ARRAY[INDEX])`"
)]
pub trait Branchable {
    const INITIAL: bool;
}

impl<const INITIAL: bool> Branchable for StaticKey<INITIAL> {
    const INITIAL: bool = INITIAL;
}

/// What the branch macros take with an index: [`StaticKeyArray`].
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an array of static keys",
    label = "arrays are made by `define_static_key_array_false!` or `define_static_key_array_true!`"
)]
pub trait BranchableArray {
    const INITIAL: bool;
    const LENGTH: usize;
}

impl<const INITIAL: bool, const N: usize> BranchableArray for StaticKeyArray<INITIAL, N> {
    const INITIAL: bool = INITIAL;
    const LENGTH: usize = N;
}
