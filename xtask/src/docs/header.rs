//! The header of the C interface, made of its source by cbindgen.

use std::fs;
use std::path::{Path, PathBuf};

use cbindgen::{Builder, Config};

/// Where the C interface is, from the workspace's root.
const INTERFACE: &str = "capi";

/// Its files in the order in which a reader wants to meet what they declare; others come last.
const ORDER: [&str; 16] = [
    "version", "error", "input", "meta", "tensor", "lent", "call", "attach", "embedded", "task", "memory", "send",
    "recv", "publish", "plan", "queue",
];

/// The header's place, and what should be in it.
///
/// # Errors
/// A file cannot be read, or is not what cbindgen takes.
pub(super) fn page(root: &Path) -> Result<(PathBuf, String), String> {
    let interface = root.join(INTERFACE);
    let at = |path: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let config = interface.join("cbindgen.toml");
    let config = Config::from_file(&config).map_err(|error| at(&config, &error))?;
    let source = interface.join("src");
    let entries = fs::read_dir(&source).map_err(|error| at(&source, &error))?;
    let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
    // It has nothing but the modules, which would be read twice.
    let mut files: Vec<PathBuf> = files.filter(|file| file.file_name().is_some_and(|name| name != "lib.rs")).collect();
    let place = |file: &PathBuf| ORDER.iter().position(|name| file.file_stem().is_some_and(|stem| stem == *name));
    files.sort_by_key(|file| (place(file).unwrap_or(ORDER.len()), file.clone()));
    let builder = files.into_iter().fold(Builder::new().with_config(config), Builder::with_src);
    let bindings = builder.generate().map_err(|error| at(&source, &error))?;
    let mut text = Vec::new();
    bindings.write(&mut text);
    let text = String::from_utf8(text).map_err(|error| at(&source, &error))?;
    Ok((interface.join("include/sealane.h"), text))
}
