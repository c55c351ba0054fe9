//~ error[E0277]: `[u8; 3]` cannot be an argument of a tracepoint
//~ neither a number nor a string nor a pointer
//~ note: of anything else give a part or its address

fn main() {
    let list = [1_u8, 2, 3];
    hodo_keys::tracepoint!(group, name, length = list.len(), list); // here
}
