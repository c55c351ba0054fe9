//! Builds nothing: `links` in the manifest requires a build script.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
}
