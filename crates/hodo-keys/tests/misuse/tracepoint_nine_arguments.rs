//~ error: a tracepoint has at most eight arguments

fn main() {
    let a = 1;
    hodo_keys::tracepoint!(group, name, a, b = a, c = a, d = a, e = a, f = a, g = a, h = a, i = a); // here
}
