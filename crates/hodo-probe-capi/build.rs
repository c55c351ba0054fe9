//! Marks the shared library: all its code is the engine's. Files that the static library is linked into have no mark.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--defsym=hodo_probe_has_no_other_code=1");
}
