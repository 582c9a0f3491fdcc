//! Files that are made from something else: written, or compared with what they should be.

use std::fs;
use std::path::PathBuf;

/// A file and what should be in it.
pub(crate) type Page = (PathBuf, String);

/// Writes every page.
///
/// # Errors
/// What could not be written.
pub(crate) fn write(pages: &[Page]) -> Result<(), Vec<String>> {
    let written =
        pages.iter().map(|(path, text)| fs::write(path, text).map_err(|error| format!("{}: {error}", path.display())));
    let problems: Vec<String> = written.filter_map(Result::err).collect();
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// Compares every page with its file; `source` is what the pages are made from, `command` what makes them.
///
/// # Errors
/// Those that are old, or not there.
pub(crate) fn check(pages: &[Page], source: &str, command: &str) -> Result<(), Vec<String>> {
    let is_old = |(path, text): &&Page| fs::read_to_string(path).ok().as_ref() != Some(text);
    let old: Vec<String> = pages
        .iter()
        .filter(is_old)
        .map(|(path, _)| format!("{} is not what {source}; run `{command}`", path.display()))
        .collect();
    if old.is_empty() { Ok(()) } else { Err(old) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_page_is_named_and_a_new_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let page = (directory.path().join("page.md"), "new".to_owned());
        let checked = |page: &Page| check(std::slice::from_ref(page), "the code says", "cargo xtask docs");
        let error = &checked(&page).unwrap_err()[0];
        assert!(error.ends_with("page.md is not what the code says; run `cargo xtask docs`"), "{error}");
        write(std::slice::from_ref(&page)).unwrap();
        assert_eq!(checked(&page), Ok(()));
        let nowhere = (directory.path().join("none/page.md"), String::new());
        assert!(write(&[nowhere]).unwrap_err()[0].contains("none/page.md: "));
    }
}
