//~ error[E0425]

fn main() {
    if hodo_keys::static_branch_unlikely!(MISSING) { // here
        println!("on");
    }
}
