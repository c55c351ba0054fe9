//~ error[E0277]: `AtomicBool` is not a static key
//~ branches are on keys made by `define_static_key_false!` or `define_static_key_true!`

use std::sync::atomic::AtomicBool;
static FLAG: AtomicBool = AtomicBool::new(false);
fn main() {
    if hodo_keys::static_branch_unlikely!(FLAG) { // here
        println!("on");
    }
}
