//~ error: a tracepoint is written `tracepoint!(group, name, argument, name = expression, …)`

fn main() {
    hodo_keys::tracepoint!("group", "name", length = 1); // here
}
