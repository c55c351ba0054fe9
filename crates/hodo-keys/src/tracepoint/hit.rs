//! What a tracepoint does while it is enabled.

use core::mem::MaybeUninit;

use super::argument::{Argument, Kind, Kinds, Passed, Raw};
use super::notes::{Of, Place};
use super::{Field, arch, functions};

/// For each number of arguments, a function that has them in registers, and that contains the probe's instruction.
/// There is one per tracepoint, out of line.
macro_rules! hits {
    ($($hit:ident($($argument:ident $raw:ident $buffer:ident $index:literal)*);)*) => {$(
        impl<$($argument: Argument),*> Kinds for ($($argument,)*) {
            const KINDS: &'static [Kind] = &[$($argument::KIND),*];
        }

        /// The values that the arguments were made from live until it returns.
        /// What the arguments were made of stays until it returns.
        #[doc(hidden)]
        #[cold]
        #[inline(never)]
        #[allow(clippy::too_many_arguments, reason = "they are in registers")]
        pub unsafe fn $hit<P: Place, $($argument: Argument),*>(_: P, $($raw: Passed<$argument>),*) {
            #[allow(unused_mut, reason = "there may be no arguments")]
            let mut words = [0; 8];
            $(
                let mut $buffer = MaybeUninit::uninit();
                // SAFETY: as the caller promises.
                words[$index] = unsafe { $raw.0.word(&mut $buffer) };
            )*
            arch::probe::<Of<P, ($($argument,)*)>>(words);
            let tracepoint = P::tracepoint();
            if functions::wanted(tracepoint) {
                let fields = [$(
                    Field {
                        name: P::ARGUMENTS[$index],
                        // SAFETY: as the caller promises.
                        value: unsafe { $raw.0.value($argument::KIND) },
                    }
                ),*];
                functions::call(tracepoint, &fields);
            }
        }
    )*};
}

hits! {
    hit0();
    hit1(A a p 0);
    hit2(A a p 0 B b q 1);
    hit3(A a p 0 B b q 1 C c r 2);
    hit4(A a p 0 B b q 1 C c r 2 D d s 3);
    hit5(A a p 0 B b q 1 C c r 2 D d s 3 E e t 4);
    hit6(A a p 0 B b q 1 C c r 2 D d s 3 E e t 4 F f u 5);
    hit7(A a p 0 B b q 1 C c r 2 D d s 3 E e t 4 F f u 5 G g v 6);
    hit8(A a p 0 B b q 1 C c r 2 D d s 3 E e t 4 F f u 5 G g v 6 H h w 7);
}
