//! `cargo xtask docs`: generates the parts of the documentation that come from the code: the settings page and the header of the C
//! interface. With `--check` it writes nothing, and fails if a page is outdated, quotes a message that the program does not have,
//! or has a broken link.

mod links;
mod quoted;

use std::fs;
use std::path::{Path, PathBuf};

use cbindgen::{Builder, Config};
use sealane_cli::settings::markdown::reference;

use crate::Outcome;
use crate::build::workspace;

/// Where the C interface is, from the workspace's root.
const INTERFACE: &str = "capi";

/// Its files in the order in which a reader should meet their declarations; others come last.
const ORDER: [&str; 20] = [
    "version", "error", "input", "meta", "tensor", "lent", "call", "attach", "embedded", "task", "memory", "send",
    "recv", "publish", "plan", "queue", "table", "sharded", "rows", "pushed",
];

/// A file, and its wanted contents.
type Page = (PathBuf, String);

#[derive(clap::Args)]
pub(crate) struct Docs {
    /// Write nothing; fail if a page is out of date or a link is broken
    #[arg(long)]
    check: bool,
}

impl Docs {
    pub(crate) fn run(&self) -> Outcome {
        let root = workspace();
        if self.check {
            let problems = problems(&root)?;
            problems.iter().for_each(|problem| eprintln!("error: {problem}"));
            return Ok(problems.is_empty());
        }
        for (path, text) in pages(&root)? {
            fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        Ok(true)
    }
}

/// Every page with its wanted contents.
fn pages(root: &Path) -> Result<[Page; 2], String> {
    Ok([header(root)?, (root.join("docs/settings.md"), reference())])
}

fn problems(root: &Path) -> Result<Vec<String>, String> {
    let mut problems = links::problems(root)?;
    problems.extend(quoted::problems(root)?);
    for (path, text) in pages(root)? {
        if fs::read_to_string(&path).ok() != Some(text) {
            problems.push(format!("{} is not what the code says; run `cargo xtask docs`", path.display()));
        }
    }
    Ok(problems)
}

/// The header of the C interface, made from its source by cbindgen.
fn header(root: &Path) -> Result<Page, String> {
    let interface = root.join(INTERFACE);
    let at = |path: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let config = interface.join("cbindgen.toml");
    let config = Config::from_file(&config).map_err(|error| at(&config, &error))?;
    let source = interface.join("src");
    let entries = fs::read_dir(&source).map_err(|error| at(&source, &error))?;
    let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
    // It contains only the modules, which would be read twice.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails when a page is old, quotes a message that is no more, or a link leads nowhere.
    #[test]
    fn the_pages_are_what_the_code_says() {
        assert_eq!(problems(&workspace()).unwrap(), Vec::<String>::new());
    }
}
