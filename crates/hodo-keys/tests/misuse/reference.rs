//~ error: a branch is on a static key, given by its path, or on an element of an array of static keys, `ARRAY[INDEX]`

hodo_keys::define_static_key_false!(KEY);
fn main() {
    if hodo_keys::static_branch_unlikely!(&KEY) { // here
        println!("on");
    }
}
