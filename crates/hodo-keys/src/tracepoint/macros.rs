//! The macro.

/// A tracepoint: a place that costs one nop until somebody wants to observe it.
///
/// `tracepoint!(group, name, argument, name = expression, …)`: an argument is a variable, or a name with an expression.
/// Its type must be an [`Argument`](crate::tracepoint::Argument); at most eight are allowed. Arguments are taken by
/// reference, and evaluated only while the tracepoint is enabled. The same group and name may be used in several
/// places.
///
/// [The module](mod@crate::tracepoint) describes what an enabled tracepoint does.
///
/// ```
/// use hodo_keys::tracepoint;
///
/// fn send(packet: &[u8], to: &str) {
///     tracepoint!(net, send, to, length = packet.len());
///     // …
/// }
///
/// send(b"hello", "there");
/// ```
#[macro_export]
macro_rules! tracepoint {
    ($group:ident, $name:ident $(,)?) => {
        $crate::__tracepoint!($group $name)
    };
    ($group:ident, $name:ident, $($arguments:tt)+) => {
        $crate::__tracepoint_arguments!([$group $name] $($arguments)+)
    };
    ($($other:tt)*) => {
        $crate::__tracepoint_misused!()
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __tracepoint_misused {
    () => {
        ::core::compile_error!(
            "a tracepoint is written `tracepoint!(group, name, argument, name = expression, …)`"
        )
    };
}

/// Gives every argument a name and an expression.
#[doc(hidden)]
#[macro_export]
macro_rules! __tracepoint_arguments {
    ([$($done:tt)*]) => { $crate::__tracepoint!($($done)*) };
    ([$($done:tt)*] $argument:ident = $value:expr $(, $($rest:tt)*)?) => {
        $crate::__tracepoint_arguments!([$($done)* ($argument, $value)] $($($rest)*)?)
    };
    ([$($done:tt)*] $argument:ident $(, $($rest:tt)*)?) => {
        $crate::__tracepoint_arguments!([$($done)* ($argument, $argument)] $($($rest)*)?)
    };
    ($($other:tt)*) => {
        $crate::__tracepoint_misused!()
    };
}

/// Binds every argument to a variable, and picks the function for their number.
#[doc(hidden)]
#[macro_export]
macro_rules! __tracepoint {
    ($g:ident $n:ident) => {
        $crate::__tracepoint!(@ $g $n hit0)
    };
    ($g:ident $n:ident $a:tt) => {
        $crate::__tracepoint!(@ $g $n hit1 a $a)
    };
    ($g:ident $n:ident $a:tt $b:tt) => {
        $crate::__tracepoint!(@ $g $n hit2 a $a b $b)
    };
    ($g:ident $n:ident $a:tt $b:tt $c:tt) => {
        $crate::__tracepoint!(@ $g $n hit3 a $a b $b c $c)
    };
    ($g:ident $n:ident $a:tt $b:tt $c:tt $d:tt) => {
        $crate::__tracepoint!(@ $g $n hit4 a $a b $b c $c d $d)
    };
    ($g:ident $n:ident $a:tt $b:tt $c:tt $d:tt $e:tt) => {
        $crate::__tracepoint!(@ $g $n hit5 a $a b $b c $c d $d e $e)
    };
    ($g:ident $n:ident $a:tt $b:tt $c:tt $d:tt $e:tt $f:tt) => {
        $crate::__tracepoint!(@ $g $n hit6 a $a b $b c $c d $d e $e f $f)
    };
    ($g:ident $n:ident $a:tt $b:tt $c:tt $d:tt $e:tt $f:tt $h:tt) => {
        $crate::__tracepoint!(@ $g $n hit7 a $a b $b c $c d $d e $e f $f h $h)
    };
    ($g:ident $n:ident $a:tt $b:tt $c:tt $d:tt $e:tt $f:tt $h:tt $i:tt) => {
        $crate::__tracepoint!(@ $g $n hit8 a $a b $b c $c d $d e $e f $f h $h i $i)
    };
    (@ $group:ident $name:ident $hit:ident $($variable:ident ($argument:ident, $value:expr))*) => {{
        static __HODO_TRACEPOINT: $crate::tracepoint::Tracepoint = $crate::tracepoint::Tracepoint::new(
            ::core::concat!(::core::stringify!($group), ":", ::core::stringify!($name)),
            &[$($crate::__private::plain(::core::stringify!($argument))),*],
        );
        struct __HodoPlace;
        impl $crate::__private::Place for __HodoPlace {
            const GROUP: &'static str = ::core::stringify!($group);
            const NAME: &'static str = ::core::stringify!($name);
            const ARGUMENTS: &'static [&'static str] =
                &[$($crate::__private::plain(::core::stringify!($argument))),*];

            fn tracepoint() -> &'static $crate::tracepoint::Tracepoint {
                &__HODO_TRACEPOINT
            }
        }
        if $crate::static_branch_unlikely!(__HODO_TRACEPOINT) {
            #[allow(unused_imports)]
            use $crate::__private::Other as _;
            match ($(&$value,)*) {
                ($($variable,)*) => {
                    $(let $variable = $crate::__private::Given($variable).given();)*
                    // SAFETY: what the arguments refer to lives until the end of this `match`.
                    unsafe {
                        $crate::__private::$hit(__HodoPlace, $($crate::__private::raw($variable)),*)
                    }
                }
            }
        }
    }};
    ($($other:tt)*) => {
        ::core::compile_error!("a tracepoint has at most eight arguments")
    };
}
