//~ error: arrays of static keys are defined by name and length, each with its attributes and visibility: `pub NAME[4]; OTHER[2];`

hodo_keys::define_static_key_array_false!(KEYS); // here
fn main() {}
