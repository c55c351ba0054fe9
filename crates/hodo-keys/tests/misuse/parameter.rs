//~ error[E0435]

hodo_keys::define_static_key_false!(KEY);
fn see(key: &'static hodo_keys::Key) -> bool {
    hodo_keys::static_branch_likely!(key) // here
}
fn main() {
    see(&KEY);
}
