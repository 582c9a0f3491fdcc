//! One program for all fuzz targets: the variable `SEALANE_FUZZ_TARGET` says which one this process runs, and libFuzzer
//! has the arguments. A panic ends the process, and leaves the input behind that led to it.
#![no_main]

use std::sync::OnceLock;

use sealane_tests::fuzz::{TARGET_VARIABLE, Target, target};

static TARGET: OnceLock<&'static Target> = OnceLock::new();

/// The target that the environment names.
fn chosen() -> &'static Target {
    let name = std::env::var(TARGET_VARIABLE).unwrap_or_default();
    target(&name).unwrap_or_else(|| panic!("{TARGET_VARIABLE} names no fuzz target: '{name}'"))
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| (TARGET.get_or_init(chosen).run)(input));
