//~ error[E0277]: `StaticKeyArray<false, 3>` is not a static key
//~ branches are on keys made by `define_static_key_false!` or `define_static_key_true!`
//~ note: the branch on an element of an array of keys is written `static_branch_unlikely!(ARRAY[INDEX])`

hodo_keys::define_static_key_array_false!(KEYS[3]);
fn main() {
    if hodo_keys::static_branch_unlikely!(KEYS) { // here
        println!("on");
    }
}
