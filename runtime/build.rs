//! Names what this build of the crate contains: `cfg(loom)` is a build for loom's model of the lock-free parts alone,
//! `cfg(shards)` one with shards, which need an executor; without it there is memory and no threads.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(loom)");
    println!("cargo::rustc-check-cfg=cfg(shards)");
    let set = |name: &str| std::env::var_os(name).is_some();
    if set("CARGO_FEATURE_EXECUTOR") && !set("CARGO_CFG_LOOM") {
        println!("cargo::rustc-cfg=shards");
    }
}
