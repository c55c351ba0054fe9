//! Functions with the same code but branches on different keys: linkers that fold functions must not fold these.

use hodo_keys::{define_static_key_array_false, define_static_key_false, static_branch_unlikely};

define_static_key_false!(FIRST; SECOND);
define_static_key_array_false!(SOME[2]);

macro_rules! functions {
    ($($name:ident: [$($key:tt)+])+) => {$(
        #[inline(never)]
        fn $name() -> u32 {
            u32::from(static_branch_unlikely!($($key)+))
        }
    )+};
}

functions! {
    first: [FIRST]
    second: [SECOND]
    second_again: [SECOND]
    element: [SOME[0]]
    other_element: [SOME[1]]
}

fn see() -> [u32; 5] {
    [
        first(),
        second(),
        second_again(),
        element(),
        other_element(),
    ]
}

fn main() {
    assert_eq!(see(), [0, 0, 0, 0, 0]);
    FIRST.enable().expect("switched");
    assert_eq!(see(), [1, 0, 0, 0, 0]);
    SOME[1].enable().expect("switched");
    assert_eq!(see(), [1, 0, 0, 0, 1]);
    SECOND.enable().expect("switched");
    assert_eq!(see(), [1, 1, 1, 0, 1]);
    FIRST.disable().expect("switched");
    SOME[1].disable().expect("switched");
    assert_eq!(see(), [0, 1, 1, 0, 0]);
    SOME[0].enable().expect("switched");
    SECOND.disable().expect("switched");
    assert_eq!(see(), [0, 0, 0, 1, 0]);
}
