//! `cargo xtask docs`: generates what the documentation takes from the code: the settings page and the header of the C interface.
//! With `--check` it writes nothing and fails where a page is old, quotes a message that the program does not have, or has a link
//! that leads nowhere; with `--site` it renders the documentation as a site.

mod header;
mod quoted;
mod site;

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use sealane_cli::settings::markdown::reference;

use crate::generated::{self, Page};

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
    pub(crate) fn run(&self) -> ExitCode {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let root = fs::canonicalize(&root).unwrap_or(root);
        let done = pages(&root).and_then(|pages| match self.check {
            true => check(&root, &pages),
            false => generated::write(&pages),
        });
        let done = done.and_then(|()| match self.site {
            true => site::build(&root).map(|first| println!("the site begins at {}", first.display())),
            false => Ok(()),
        });
        match done {
            Ok(()) => ExitCode::SUCCESS,
            Err(problems) => {
                problems.iter().for_each(|problem| eprintln!("error: {problem}"));
                ExitCode::FAILURE
            }
        }
    }
}

/// Every page as it should be.
fn pages(root: &Path) -> Result<Vec<Page>, Vec<String>> {
    let one = |problem: String| vec![problem];
    Ok(vec![header::page(root).map_err(one)?, (root.join("docs/settings.md"), reference())])
}

fn check(root: &Path, pages: &[Page]) -> Result<(), Vec<String>> {
    let mut problems = site::problems(root)?;
    problems.extend(quoted::problems(root).map_err(|problem| vec![problem])?);
    problems.extend(generated::check(pages, "the code says", "cargo xtask docs").err().into_iter().flatten());
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails when a page is old, quotes a message that is no more, or a link leads nowhere.
    #[test]
    fn the_pages_are_what_the_code_says() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let pages = pages(&root).unwrap_or_else(|problems| panic!("{}", problems.join("\n")));
        check(&root, &pages).unwrap_or_else(|old| panic!("{}", old.join("\n")));
    }
}
