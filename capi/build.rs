//! Gives the shared library the name that programs ask for at run time, with the version of the interface.

/// As `SEALANE_ABI_VERSION`; a test compares them.
const ABI_VERSION: u32 = 1;

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libsealane_c.so.{ABI_VERSION}");
    println!("cargo:rerun-if-changed=build.rs");
}
