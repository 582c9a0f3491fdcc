//! `cargo xtask docs`: generates what the documentation takes from the code: the settings page and the header of the C interface.
//! With `--check` it writes nothing and fails where a page is old, quotes a message that the program does not have, or has a link
//! that leads nowhere; with `--site` it renders the documentation as a site.

mod quoted;
mod site;

use std::fs;
use std::path::{Path, PathBuf};

use cbindgen::{Builder, Config};
use sealane_cli::settings::markdown::reference;

use crate::Outcome;
use crate::build::workspace;

/// Where the C interface is, from the workspace's root.
const INTERFACE: &str = "capi";

/// Its files in the order in which a reader wants to meet what they declare; others come last.
const ORDER: [&str; 19] = [
    "version", "error", "input", "meta", "tensor", "lent", "call", "attach", "embedded", "task", "memory", "send",
    "recv", "publish", "plan", "queue", "table", "sharded", "rows",
];

/// A file, and what should be in it.
type Page = (PathBuf, String);

#[derive(clap::Args)]
pub(crate) struct Docs {
    /// Write nothing; fail if a page is out of date or a link is broken
    #[arg(long)]
    check: bool,
    /// Render the documentation as a site in target/site; needs mdbook (`cargo install --locked mdbook`)
    #[arg(long, conflicts_with = "check")]
    site: bool,
}

impl Docs {
    pub(crate) fn run(&self) -> Outcome {
        let root = workspace();
        let pages = pages(&root)?;
        if self.check {
            let problems = problems(&root, &pages)?;
            problems.iter().for_each(|problem| eprintln!("error: {problem}"));
            return Ok(problems.is_empty());
        }
        for (path, text) in pages {
            fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        if self.site {
            println!("the site begins at {}", site::build(&root)?.display());
        }
        Ok(true)
    }
}

/// Every page as it should be.
fn pages(root: &Path) -> Result<Vec<Page>, String> {
    Ok(vec![header(root)?, (root.join("docs/settings.md"), reference())])
}

/// What is wrong with the documentation.
fn problems(root: &Path, pages: &[Page]) -> Result<Vec<String>, String> {
    let is_old = |(path, text): &&Page| fs::read_to_string(path).ok().as_ref() != Some(text);
    let mut problems = site::problems(root)?;
    problems.extend(quoted::problems(root)?);
    problems.extend(
        pages
            .iter()
            .filter(is_old)
            .map(|(path, _)| format!("{} is not what the code says; run `cargo xtask docs`", path.display())),
    );
    Ok(problems)
}

/// The header of the C interface, made of its source by cbindgen.
fn header(root: &Path) -> Result<Page, String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails when a page is old, quotes a message that is no more, or a link leads nowhere.
    #[test]
    fn the_pages_are_what_the_code_says() {
        let root = workspace();
        assert_eq!(problems(&root, &pages(&root).unwrap()).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn an_old_page_is_named() {
        let old = (workspace().join("README.md"), "new".to_owned());
        let none = (workspace().join("none/page.md"), String::new());
        let problems = problems(&workspace(), &[old, none]).unwrap();
        assert!(problems[0].ends_with("README.md is not what the code says; run `cargo xtask docs`"), "{problems:?}");
        assert!(problems[1].contains("none/page.md is not") && problems.len() == 2, "{problems:?}");
    }
}
