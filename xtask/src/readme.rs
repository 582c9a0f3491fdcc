//! `cargo xtask readme`: writes the table of settings into the README.

use std::path::Path;
use std::process::ExitCode;

use sealane_cli::settings::markdown::in_readme;

pub(crate) fn run() -> ExitCode {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let written = std::fs::read_to_string(&path).and_then(|text| match in_readme(&text) {
        Some(made) => std::fs::write(&path, made),
        None => Err(std::io::Error::other("it has no place marked for the settings")),
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}: {error}", path.display());
            ExitCode::FAILURE
        }
    }
}
