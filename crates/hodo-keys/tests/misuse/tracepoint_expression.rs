//~ error: a tracepoint is written `tracepoint!(group, name, argument, name = expression, …)`

fn main() {
    let list = [1, 2, 3];
    hodo_keys::tracepoint!(group, name, list.len()); // here
}
