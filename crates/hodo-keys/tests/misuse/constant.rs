//~ error: invalid `sym` operand
//~ static

const KEY: hodo_keys::StaticKeyFalse = hodo_keys::StaticKey::new("KEY");
fn main() {
    if hodo_keys::static_branch_unlikely!(KEY) { // here
        println!("on");
    }
}
