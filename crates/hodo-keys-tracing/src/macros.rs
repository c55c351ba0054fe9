//! The macros.

macro_rules! events {
    ($dollar:tt $($name:ident $level:ident;)*) => {$(
        #[doc = concat!("`tracing::", stringify!($name), "!` with a static key in front; takes the same arguments.")]
        #[macro_export]
        macro_rules! $name {
            ($dollar($arguments:tt)*) => {
                if $crate::__branch!([EVENT ($crate::__private::Level::$level)] $dollar($arguments)*) {
                    $crate::__private::tracing::$name!($dollar($arguments)*)
                }
            };
        }
    )*};
}

macro_rules! spans {
    ($dollar:tt $($name:ident $level:ident;)*) => {$(
        #[doc = concat!("`tracing::", stringify!($name), "!` with a static key in front; takes the same arguments.")]
        #[macro_export]
        macro_rules! $name {
            ($dollar($arguments:tt)*) => {
                if $crate::__branch!([SPAN ($crate::__private::Level::$level)] $dollar($arguments)*) {
                    $crate::__private::tracing::$name!($dollar($arguments)*)
                } else {
                    $crate::__private::tracing::Span::none()
                }
            };
        }
    )*};
}

events! {
    $
    trace TRACE;
    debug DEBUG;
    info INFO;
    warn WARN;
    error ERROR;
}

spans! {
    $
    trace_span TRACE;
    debug_span DEBUG;
    info_span INFO;
    warn_span WARN;
    error_span ERROR;
}

/// `tracing::event!` with a static key in front; takes the same arguments.
#[macro_export]
macro_rules! event {
    ($($arguments:tt)*) => {
        if $crate::__branch!([EVENT] $($arguments)*) {
            $crate::__private::tracing::event!($($arguments)*)
        }
    };
}

/// `tracing::span!` with a static key in front; takes the same arguments.
#[macro_export]
macro_rules! span {
    ($($arguments:tt)*) => {
        if $crate::__branch!([SPAN] $($arguments)*) {
            $crate::__private::tracing::span!($($arguments)*)
        } else {
            $crate::__private::tracing::Span::none()
        }
    };
}

/// The branch on a place's key, and everything that describes the place.
///
/// First this collects what precedes the fields: `[kind (level)] {name} {target}`. Arguments that are no valid event
/// here are reported by `tracing`'s own macro, which gets the same ones.
#[doc(hidden)]
#[macro_export]
macro_rules! __branch {
    ([$($kind:tt)*] $($arguments:tt)*) => {
        $crate::__branch!(@ [$($kind)*] {} {::core::module_path!()} $($arguments)*)
    };
    (@ $kind:tt $name:tt $target:tt name: $value:expr, $($rest:tt)*) => {
        $crate::__branch!(@ $kind {$value} $target $($rest)*)
    };
    (@ $kind:tt $name:tt $target:tt target: $value:expr, $($rest:tt)*) => {
        $crate::__branch!(@ $kind $name {$value} $($rest)*)
    };
    (@ $kind:tt $name:tt $target:tt parent: $value:expr, $($rest:tt)*) => {
        $crate::__branch!(@ $kind $name $target $($rest)*)
    };
    (@ [$kind:ident] $name:tt $target:tt $level:expr $(, $($rest:tt)*)?) => {
        $crate::__branch!(@ [$kind ($level)] $name $target $($($rest)*)?)
    };
    (@ [EVENT $level:tt] {} $target:tt $($fields:tt)*) => {
        $crate::__branch!(@ [EVENT $level] {::core::concat!("event ", ::core::file!(), ":", ::core::line!())} $target $($fields)*)
    };
    (@ [SPAN $level:tt] {} $target:tt $name:expr $(, $($fields:tt)*)?) => {
        $crate::__branch!(@ [SPAN $level] {$name} $target $($($fields)*)?)
    };
    (@ [$kind:ident ($level:expr)] {$name:expr} {$target:expr} $($fields:tt)*) => {{
        static __HODO_KEY: $crate::__private::AnnotatedKey<true> = $crate::__private::AnnotatedKey::new(
            ::core::concat!("tracing:", ::core::module_path!(), ":", ::core::file!(), ":", ::core::line!()),
            &__HODO_CALLSITE,
        );
        static __HODO_CALLSITE: $crate::Callsite = $crate::Callsite::new(&__HODO_KEY, &__HODO_METADATA);
        static __HODO_METADATA: $crate::__private::Metadata<'static> = $crate::__private::Metadata::new(
            $name,
            $target,
            $level,
            ::core::option::Option::Some(::core::file!()),
            ::core::option::Option::Some(::core::line!()),
            ::core::option::Option::Some(::core::module_path!()),
            $crate::__private::FieldSet::new(
                $crate::__fields!($($fields)*),
                $crate::__private::Identifier(&__HODO_CALLSITE),
            ),
            $crate::__private::Kind::$kind,
        );
        $level <= $crate::__private::STATIC_MAX_LEVEL
            && $crate::__private::static_branch_unlikely!(__HODO_KEY)
    }};
    // The place is wrong; `tracing`'s macro reports it.
    ($($other:tt)*) => { true };
}

/// The names of fields, as a slice. A text, or anything else that is no field, begins the message.
#[doc(hidden)]
#[macro_export]
macro_rules! __fields {
    ({ $($fields:tt)* } $(,)?) => { $crate::__fields!(@ [] $($fields)*,) };
    ({ $($fields:tt)* }, $($message:tt)+) => { $crate::__fields!(@ ["message",] $($fields)*,) };
    (@ [$($name:expr,)*] $(,)*) => { &[$($name),*] };
    (@ [$($name:expr,)*] $($field:ident).+ = $($rest:tt)+) => {
        $crate::__fields!(@@ [$($name,)* $crate::__private::plain(::core::stringify!($($field).+)),] $($rest)+)
    };
    (@ [$($name:expr,)*] $field:literal = $($rest:tt)+) => {
        $crate::__fields!(@@ [$($name,)* $field,] $($rest)+)
    };
    (@ [$($name:expr,)*] { $field:expr } = $($rest:tt)+) => {
        $crate::__fields!(@@ [$($name,)* $field,] $($rest)+)
    };
    (@ [$($name:expr,)*] $(?)? $(%)? $($field:ident).+, $($rest:tt)*) => {
        $crate::__fields!(@ [$($name,)* $crate::__private::plain(::core::stringify!($($field).+)),] $($rest)*)
    };
    (@ [$($name:expr,)*] $($message:tt)+) => { &["message", $($name),*] };
    // The value of a field.
    (@@ $names:tt ? $value:expr, $($rest:tt)*) => { $crate::__fields!(@ $names $($rest)*) };
    (@@ $names:tt % $value:expr, $($rest:tt)*) => { $crate::__fields!(@ $names $($rest)*) };
    (@@ $names:tt $value:expr, $($rest:tt)*) => { $crate::__fields!(@ $names $($rest)*) };
    ($($fields:tt)*) => { $crate::__fields!(@ [] $($fields)*,) };
}
