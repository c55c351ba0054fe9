//! Functions with branches, some of which the linker drops: the entries of the others must stay.

use hodo_keys::{define_static_key_false, static_branch_likely, static_branch_unlikely};

define_static_key_false!(KEY);

// Nobody uses this data, so nobody calls the functions.
macro_rules! dropped {
    ($name:ident) => {
        #[inline(never)]
        extern "C" fn $name() -> bool {
            hodo_keys::tracepoint!(collected, dropped);
            static_branch_unlikely!(KEY)
        }

        std::arch::global_asm!(
            ".pushsection .data.nobody,\"aw\"",
            ".quad {unused}",
            ".popsection",
            unused = sym $name
        );
    };
}

macro_rules! kept {
    ($name:ident) => {
        #[inline(never)]
        fn $name() -> [bool; 3] {
            hodo_keys::tracepoint!(collected, kept);
            [
                static_branch_unlikely!(KEY),
                static_branch_likely!(KEY),
                static_branch_unlikely!(KEY),
            ]
        }
    };
}

// The compiler may or may not sort them by name.
dropped!(a);
kept!(b);
dropped!(c);
kept!(d);
dropped!(e);

fn main() {
    for _ in 0..2 {
        assert_eq!((b(), d()), ([false; 3], [false; 3]));
        KEY.enable().expect("switched");
        assert_eq!((b(), d()), ([true; 3], [true; 3]));
        KEY.disable().expect("switched");
    }
    let mut branches = 0;
    hodo_keys::for_each(|found| branches += found.branches).expect("the list can be read");
    // Six, and those of two tracepoints. GNU ld drops nothing.
    let expected = if std::env::args().nth(1).as_deref() == Some("bfd") { 14 } else { 8 };
    assert_eq!(branches, expected);
}
