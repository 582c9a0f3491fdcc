//! Tells the compiler that `cfg(loom)` is a build of this crate and not a spelling mistake.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(loom)");
}
