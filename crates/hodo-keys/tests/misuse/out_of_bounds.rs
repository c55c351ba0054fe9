//~ the array of static keys has no element of this index

hodo_keys::define_static_key_array_false!(KEYS[3]);
fn main() {
    if hodo_keys::static_branch_unlikely!(KEYS[3]) { // here
        println!("on");
    }
}
