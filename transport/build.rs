//! Names what this build of the crate contains: `cfg(loom)` is a build for loom's model of the rings alone.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(loom)");
}
