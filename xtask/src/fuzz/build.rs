//! Builds the program with all fuzz targets, `tests/fuzz`, so that it notes which code each input reaches.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::build::workspace;
use crate::command::{cargo, output, run};

/// What makes LLVM count each edge of the code and tell what is compared with what. The stable compiler takes them, and
/// they are those of `cargo fuzz --sanitizer none`.
const RUSTFLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                         -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
                         -Cllvm-args=-sanitizer-coverage-pc-table \
                         -Cllvm-args=-sanitizer-coverage-trace-compares";

/// `target/fuzz`: a build of its own, since its flags are no other's.
pub(super) fn folder() -> PathBuf {
    workspace().join("target/fuzz")
}

/// Builds the program; where it is.
///
/// # Errors
/// There is no C++ compiler, or it does not build (cargo has said why).
pub(super) fn build() -> Result<PathBuf, String> {
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
    if run(Command::new(&compiler).arg("--version")).is_err() {
        let compiler = compiler.to_string_lossy();
        return Err(format!("libFuzzer is C++ and {compiler} cannot be run; as root: apt-get install g++"));
    }
    // With a target named, the flags are for the program alone, not for what runs while it is built.
    let machine = machine()?;
    let manifest = workspace().join("tests/fuzz/Cargo.toml");
    let mut cargo = cargo();
    cargo.args(["build", "--release", "--locked", "--target", &machine, "--manifest-path"]).arg(manifest);
    cargo.env("RUSTFLAGS", RUSTFLAGS).env("CARGO_TARGET_DIR", folder()).env_remove("CARGO_ENCODED_RUSTFLAGS");
    let status = cargo.stdin(Stdio::null()).status().map_err(|error| format!("cannot run cargo: {error}"))?;
    if !status.success() {
        return Err("the fuzz targets do not build".to_owned());
    }
    Ok(folder().join(machine).join("release/sealane-fuzz"))
}

/// The compiler's name of this machine.
fn machine() -> Result<String, String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let said = output(Command::new(rustc).arg("-vV"))?;
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| format!("rustc does not say which machine this is: {said}"))
}
