//! What can be an argument of a tracepoint.

use core::ffi::CStr;
use core::fmt;
use core::mem::MaybeUninit;
use core::ptr::NonNull;

/// The longest string that outside tools see, in bytes without the NUL; longer ones are cut.
pub const LONGEST: usize = 255;

/// What can be an argument of [`tracepoint!`](macro@crate::tracepoint): integers up to 64 bits, `bool`, `char`, `f32`,
/// `f64`; pointers and references, as addresses; `&str`, `String`, `&CStr` and `CString`, as strings.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an argument of a tracepoint",
    label = "neither a number nor a string nor a pointer",
    note = "arguments are integers up to 64 bits, `bool`, `char`, `f32`, `f64`, `&str`, `String`, `&CStr`, `CString`, pointers, and references to sized types as addresses",
    note = "of anything else give a part or its address: `tracepoint!(group, name, length = value.len(), at = &raw const value)`"
)]
pub trait Argument: Sealed {
    /// Its type.
    #[doc(hidden)]
    const KIND: Kind;
    /// Its representation in registers.
    #[doc(hidden)]
    type Raw: Raw;

    #[doc(hidden)]
    fn raw(&self) -> Self::Raw;
}

/// Only the types of this crate's list can be arguments.
#[doc(hidden)]
pub trait Sealed {}

/// The type of an argument, as tools see it.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    U8,
    U16,
    U32,
    U64,
    I8,
    I16,
    I32,
    I64,
    Bool,
    Char,
    F32,
    F64,
    Pointer,
    String,
}

impl Kind {
    /// The size in bytes.
    pub const fn size(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::Char | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::Pointer | Self::String => 8,
        }
    }

    pub const fn is_signed(self) -> bool {
        matches!(self, Self::I8 | Self::I16 | Self::I32 | Self::I64)
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::U16 => "u16",
            Self::U32 => "u32",
            Self::U64 => "u64",
            Self::I8 => "i8",
            Self::I16 => "i16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::Bool => "bool",
            Self::Char => "char",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::Pointer => "ptr",
            Self::String => "str",
        }
    }
}

/// The types of all arguments of a tracepoint.
pub trait Kinds {
    const KINDS: &'static [Kind];
}

/// An argument's value at a hit, as registered functions get it.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Value<'a> {
    /// An unsigned integer of any size.
    Unsigned(u64),
    /// A signed integer of any size.
    Signed(i64),
    /// `bool`.
    Bool(bool),
    /// `char`.
    Char(char),
    /// `f32` or `f64`.
    Float(f64),
    /// A pointer or a reference, as an address.
    Address(usize),
    /// `&str` or `String`, the whole string.
    Str(&'a str),
    /// `&CStr` or `CString`.
    CStr(&'a CStr),
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsigned(value) => value.fmt(f),
            Self::Signed(value) => value.fmt(f),
            Self::Bool(value) => value.fmt(f),
            Self::Char(value) => fmt::Debug::fmt(value, f),
            Self::Float(value) => value.fmt(f),
            Self::Address(value) => write!(f, "{value:#x}"),
            Self::Str(value) => fmt::Debug::fmt(value, f),
            Self::CStr(value) => fmt::Debug::fmt(value, f),
        }
    }
}

/// What an argument of a type is in registers.
#[doc(hidden)]
#[derive(Debug)]
#[repr(transparent)]
pub struct Passed<A: Argument>(pub A::Raw);

/// The form of an argument on its way to the probe.
#[doc(hidden)]
pub trait Raw: Copy {
    /// Room for the data that the probe's word points to.
    type Buffer;

    /// The word in the probe's register.
    ///
    /// # Safety
    /// The value that it was made from is still alive.
    unsafe fn word(self, buffer: &mut MaybeUninit<Self::Buffer>) -> u64;

    /// The value that registered functions get.
    ///
    /// # Safety
    /// The value that it was made from lives as long as the result is used.
    unsafe fn value<'a>(self, kind: Kind) -> Value<'a>;
}

impl Raw for u64 {
    type Buffer = ();

    #[inline(always)]
    unsafe fn word(self, _: &mut MaybeUninit<()>) -> u64 {
        self
    }

    #[inline]
    unsafe fn value<'a>(self, kind: Kind) -> Value<'a> {
        match kind {
            Kind::I8 | Kind::I16 | Kind::I32 | Kind::I64 => Value::Signed(self.cast_signed()),
            Kind::Bool => Value::Bool(self != 0),
            Kind::Char => {
                Value::Char(char::from_u32(self as u32).unwrap_or(char::REPLACEMENT_CHARACTER))
            }
            Kind::F32 => Value::Float(f32::from_bits(self as u32).into()),
            Kind::F64 => Value::Float(f64::from_bits(self)),
            Kind::Pointer => Value::Address(self as usize),
            _ => Value::Unsigned(self),
        }
    }
}

/// A borrowed `str`.
#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub struct RawStr(*const u8, usize);

impl RawStr {
    /// # Safety
    /// The `str` that it was made from lives as long as the result is used.
    #[inline]
    unsafe fn text<'a>(self) -> &'a str {
        // SAFETY: as the caller promises.
        let bytes = unsafe { core::slice::from_raw_parts(self.0, self.1) };
        // SAFETY: it was a `str`.
        unsafe { core::str::from_utf8_unchecked(bytes) }
    }
}

impl Raw for RawStr {
    type Buffer = [u8; LONGEST + 1];

    #[inline(always)]
    unsafe fn word(self, buffer: &mut MaybeUninit<Self::Buffer>) -> u64 {
        // SAFETY: as the caller promises.
        copy(unsafe { self.text() }, buffer).addr() as u64
    }

    #[inline]
    unsafe fn value<'a>(self, _: Kind) -> Value<'a> {
        // SAFETY: as the caller promises.
        Value::Str(unsafe { self.text() })
    }
}

/// Copies a text, as much of it as fits, and appends a NUL.
#[inline(never)]
fn copy(text: &str, buffer: &mut MaybeUninit<[u8; LONGEST + 1]>) -> *const u8 {
    let length = text.floor_char_boundary(LONGEST);
    let buffer = buffer.as_mut_ptr().cast::<u8>();
    // SAFETY: that many bytes are in the text and in the buffer.
    unsafe { core::ptr::copy_nonoverlapping(text.as_ptr(), buffer, length) };
    // SAFETY: the buffer is one byte longer than the longest text.
    unsafe { buffer.add(length).write(0) };
    buffer
}

/// A borrowed `CStr`.
#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub struct RawCStr(*const core::ffi::c_char);

impl Raw for RawCStr {
    type Buffer = ();

    #[inline(always)]
    unsafe fn word(self, _: &mut MaybeUninit<()>) -> u64 {
        self.0.addr() as u64
    }

    #[inline]
    unsafe fn value<'a>(self, _: Kind) -> Value<'a> {
        // SAFETY: it was made from a `CStr`, which lives on by the caller's promise.
        Value::CStr(unsafe { CStr::from_ptr(self.0) })
    }
}

macro_rules! words {
    ($($kind:ident: $($type:ty)*, |$value:ident| $word:expr;)*) => {$($(
        impl Sealed for $type {}
        impl Argument for $type {
            const KIND: Kind = Kind::$kind;
            type Raw = u64;

            #[inline(always)]
            fn raw(&self) -> u64 {
                let $value = *self;
                $word
            }
        }
    )*)*};
}

words! {
    U8: u8, |value| value.into();
    U16: u16, |value| value.into();
    U32: u32, |value| value.into();
    U64: u64 usize, |value| value as u64;
    I8: i8, |value| i64::from(value).cast_unsigned();
    I16: i16, |value| i64::from(value).cast_unsigned();
    I32: i32, |value| i64::from(value).cast_unsigned();
    I64: i64 isize, |value| (value as i64).cast_unsigned();
    Bool: bool, |value| value.into();
    Char: char, |value| u32::from(value).into();
    F32: f32, |value| value.to_bits().into();
    F64: f64, |value| value.to_bits();
}

macro_rules! pointers {
    ($(<$($life:lifetime,)? $t:ident $(: ?$sized:ident)?> $type:ty, |$value:ident| $pointer:expr;)*) => {$(
        impl<$($life,)? $t $(: ?$sized)?> Sealed for $type {}
        impl<$($life,)? $t $(: ?$sized)?> Argument for $type {
            const KIND: Kind = Kind::Pointer;
            type Raw = u64;

            #[inline(always)]
            fn raw(&self) -> u64 {
                let $value = self;
                $pointer.cast::<u8>().addr() as u64
            }
        }
    )*};
}

pointers! {
    <T: ?Sized> *const T, |pointer| pointer;
    <T: ?Sized> *mut T, |pointer| pointer;
    <T: ?Sized> NonNull<T>, |pointer| pointer.as_ptr();
    <'a, T> &'a T, |reference| core::ptr::from_ref::<T>(reference);
    <'a, T> &'a mut T, |reference| core::ptr::from_ref::<T>(reference);
}

macro_rules! strings {
    ($($(#[$attribute:meta])* $type:ty: $raw:ident, |$value:ident| $made:expr;)*) => {$(
        $(#[$attribute])*
        impl Sealed for $type {}
        $(#[$attribute])*
        impl Argument for $type {
            const KIND: Kind = Kind::String;
            type Raw = $raw;

            #[inline(always)]
            fn raw(&self) -> $raw {
                let $value = self;
                $made
            }
        }
    )*};
}

strings! {
    &str: RawStr, |text| RawStr(text.as_ptr(), text.len());
    &mut str: RawStr, |text| RawStr(text.as_ptr(), text.len());
    &CStr: RawCStr, |text| RawCStr(text.as_ptr());
    #[cfg(feature = "std")]
    std::string::String: RawStr, |text| RawStr(text.as_ptr(), text.len());
    #[cfg(feature = "std")]
    std::ffi::CString: RawCStr, |text| RawCStr(text.as_ptr());
}

/// The macro's view of an argument: a reference to it.
///
/// References are addresses, except that references to strings are strings. Method lookup prefers a type's own method
/// to a trait's, so the macro's `Given(&argument).given()` picks the one for strings where it applies.
#[doc(hidden)]
#[derive(Debug)]
pub struct Given<'a, T: ?Sized>(pub &'a T);

/// Everything that is not a reference to a string.
#[doc(hidden)]
pub trait Other<'a> {
    type Target: ?Sized;

    fn given(self) -> &'a Self::Target;
}

impl<'a, T: ?Sized> Other<'a> for Given<'a, T> {
    type Target = T;

    #[inline(always)]
    fn given(self) -> &'a T {
        self.0
    }
}

#[cfg(feature = "std")]
impl<'a> Given<'a, &std::string::String> {
    /// The string.
    #[inline(always)]
    #[must_use]
    pub fn given(self) -> &'a std::string::String {
        self.0
    }
}

impl<'a> Given<'a, &&str> {
    /// The string.
    #[inline(always)]
    #[must_use]
    pub fn given(self) -> &'a &'a str {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::string::String;

    use super::*;

    #[test]
    fn strings_are_cut_between_characters_and_end_with_nul() {
        let copied = |text: &str| -> String {
            let mut buffer = MaybeUninit::new([0xFF; LONGEST + 1]);
            // SAFETY: the text is there.
            let word = unsafe { text.raw().word(&mut buffer) };
            assert_eq!(word, buffer.as_ptr().addr() as u64);
            // SAFETY: it was initialized.
            let bytes = unsafe { buffer.assume_init() };
            let copy = CStr::from_bytes_until_nul(&bytes).expect("there is a NUL");
            copy.to_str().expect("whole characters").into()
        };
        assert_eq!(copied(""), "");
        assert_eq!(copied("text"), "text");
        for length in [254, 255, 256, 1000] {
            let text = "x".repeat(length);
            assert_eq!(copied(&text), text[..length.min(255)]);
        }
        // A character would be cut in half.
        assert_eq!(copied(&"ä".repeat(200)), "ä".repeat(127));
        assert_eq!(copied(&"𝄞".repeat(200)), "𝄞".repeat(63));
        // For readers of C strings it ends where the C string does.
        assert_eq!(copied("one\0two"), "one");
    }

    #[test]
    fn words_are_extended_as_their_type_says() {
        assert_eq!((-1_i8).raw(), u64::MAX);
        assert_eq!((-2_i32).raw(), u64::MAX - 1);
        assert_eq!((u32::MAX.raw(), u8::MAX.raw()), (0xFFFF_FFFF, 0xFF));
        assert_eq!((true.raw(), 'ü'.raw()), (1, 0xFC));
        assert_eq!(((-0.0_f32).raw(), 1.0_f64.raw()), (1 << 31, 0x3FF << 52));
    }
}
