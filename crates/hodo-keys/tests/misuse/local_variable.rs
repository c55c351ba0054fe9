//~ error[E0435]

hodo_keys::define_static_key_false!(KEY);
fn main() {
    let key = &KEY;
    if hodo_keys::static_branch_unlikely!(key) { // here
        println!("on");
    }
}
