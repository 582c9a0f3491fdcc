//! Tells the program with which profile it is built. Cargo names it nowhere but in the path of the folder for what this makes:
//! `target/[TRIPLE/]PROFILE/build/PACKAGE-HASH/out`.

use std::{env, path::Path};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let out = env::var("OUT_DIR").expect("Cargo sets it");
    let profile = Path::new(&out).ancestors().nth(3).and_then(Path::file_name);
    let profile = profile.and_then(|name| name.to_str()).unwrap_or_default();
    println!("cargo::rustc-env=SEALANE_PROFILE={profile}");
}
