//~ error: static keys are defined by their names, each with its attributes and visibility: `pub NAME; OTHER;`

hodo_keys::define_static_key_false!(); // here
fn main() {}
