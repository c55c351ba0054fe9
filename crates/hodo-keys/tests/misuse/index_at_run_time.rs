//~ error[E0435]

hodo_keys::define_static_key_array_false!(KEYS[3]);
fn main() {
    let index = std::env::args().count();
    if hodo_keys::static_branch_unlikely!(KEYS[index]) { // here
        println!("on");
    }
}
