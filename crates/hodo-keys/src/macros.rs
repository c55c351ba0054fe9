//! The macros that define keys and branches.

/// Defines a static key that is initially disabled.
///
/// ```
/// hodo_keys::define_static_key_false! {
///     /// Whether requests are logged.
///     pub LOGGING;
/// }
/// assert!(!LOGGING.is_enabled());
/// assert!(LOGGING.name().ends_with("::LOGGING"));
/// ```
#[macro_export]
macro_rules! define_static_key_false {
    ($($keys:tt)*) => { $crate::__define_keys!($crate::StaticKeyFalse; $($keys)*); };
}

/// Defines a static key that is initially enabled. Otherwise like [`define_static_key_false!`].
#[macro_export]
macro_rules! define_static_key_true {
    ($($keys:tt)*) => { $crate::__define_keys!($crate::StaticKeyTrue; $($keys)*); };
}

/// Defines an array of static keys that are initially disabled.
///
/// ```
/// hodo_keys::define_static_key_array_false!(LEVELS[4]);
/// LEVELS[2].enable()?;
/// assert!(hodo_keys::static_branch_unlikely!(LEVELS[2]));
/// assert!(!hodo_keys::static_branch_unlikely!(LEVELS[3]));
/// # Ok::<(), hodo_keys::Error>(())
/// ```
#[macro_export]
macro_rules! define_static_key_array_false {
    ($($arrays:tt)*) => { $crate::__define_key_arrays!(false; $($arrays)*); };
}

/// Defines an array of static keys that are initially enabled. Otherwise like [`define_static_key_array_false!`].
#[macro_export]
macro_rules! define_static_key_array_true {
    ($($arrays:tt)*) => { $crate::__define_key_arrays!(true; $($arrays)*); };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __define_keys {
    ($type:ty; $($(#[$attribute:meta])* $visibility:vis $name:ident);+ $(;)?) => {$(
        $(#[$attribute])*
        $visibility static $name: $type =
            $crate::StaticKey::new(::core::concat!(::core::module_path!(), "::", ::core::stringify!($name)));
    )+};
    ($($other:tt)*) => {
        ::core::compile_error!(
            "static keys are defined by their names, each with its attributes and visibility: `pub NAME; OTHER;`"
        );
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __define_key_arrays {
    ($initial:literal; $($(#[$attribute:meta])* $visibility:vis $name:ident [$length:expr]);+ $(;)?) => {$(
        $(#[$attribute])*
        $visibility static $name: $crate::StaticKeyArray<$initial, { $length }> =
            $crate::StaticKeyArray::new(::core::concat!(::core::module_path!(), "::", ::core::stringify!($name)));
    )+};
    ($($other:tt)*) => {
        ::core::compile_error!(
            "arrays of static keys are defined by name and length, each with its attributes and visibility: `pub NAME[4]; OTHER[2];`"
        );
    };
}

/// Returns whether a key is enabled, in one instruction: a nop or a jump. The code for the enabled case is placed out
/// of line.
///
/// The key is the path of a `static`, or `ARRAY[INDEX]` with a constant index.
///
/// ```
/// hodo_keys::define_static_key_false!(VERBOSE);
///
/// fn work(x: u32) -> u32 {
///     if hodo_keys::static_branch_unlikely!(VERBOSE) {
///         println!("work({x})");
///     }
///     x + 1
/// }
///
/// work(1);
/// VERBOSE.enable()?;
/// work(2); // prints
/// # Ok::<(), hodo_keys::Error>(())
/// ```
#[macro_export]
macro_rules! static_branch_unlikely {
    ($($key:tt)*) => { $crate::__branch!(false, $($key)*) };
}

/// Returns whether a key is enabled, in one instruction: a nop or a jump. The nop falls through to the code for the
/// enabled case.
///
/// Otherwise like [`static_branch_unlikely!`], which is for keys that are seldom enabled.
#[macro_export]
macro_rules! static_branch_likely {
    ($($key:tt)*) => { $crate::__branch!(true, $($key)*) };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __branch {
    ($likely:literal, $key:path) => {
        $crate::__branch!(
            @ $likely, $key, 0,
            $crate::__private::initial(&$key)
        )
    };
    ($likely:literal, $key:path [$index:expr]) => {
        $crate::__branch!(
            @ $likely, $key,
            $crate::__private::offset(&$key, $index),
            $crate::__private::initial_of_array(&$key)
        )
    };
    ($likely:literal, $($other:tt)*) => {
        ::core::compile_error!(
            "a branch is on a static key, given by its path, or on an element of an array of static keys, `ARRAY[INDEX]`"
        )
    };
    (@ $likely:literal, $key:path, $offset:expr, $initial:expr) => {
        'branch: {
            if const { $initial != $likely } {
                $crate::__branch_asm!(jump, $key, $offset, $likely, { break 'branch !$likely })
            } else {
                $crate::__branch_asm!(nop, $key, $offset, $likely, { break 'branch !$likely })
            }
            $crate::__private::fallen_through($likely)
        }
    };
}
