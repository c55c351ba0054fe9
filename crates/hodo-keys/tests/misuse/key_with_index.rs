//~ error[E0277]: `StaticKey<false>` is not an array of static keys
//~ arrays are made by `define_static_key_array_false!` or `define_static_key_array_true!`

hodo_keys::define_static_key_false!(KEY);
fn main() {
    if hodo_keys::static_branch_unlikely!(KEY[0]) { // here
        println!("on");
    }
}
