//~ error: a branch is on a static key, given by its path, or on an element of an array of static keys, `ARRAY[INDEX]`

fn main() {
    if hodo_keys::static_branch_unlikely!(1 + 2) { // here
        println!("on");
    }
}
