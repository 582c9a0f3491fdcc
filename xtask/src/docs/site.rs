//! The documentation as a site: the pages that `docs/SUMMARY.md` lists, staged under their own paths, so that links that work in
//! the repository work in the site too, and rendered by mdbook.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

/// The index, which mdbook reads as the site's table of contents.
const SUMMARY: &str = "docs/SUMMARY.md";
/// mdbook's settings.
const BOOK: &str = "docs/book.toml";
/// Where the site is made; everything in it is replaced.
const PLACE: &str = "target/site";

/// Renders the site, and gives its first page.
///
/// # Errors
/// Links that lead nowhere; mdbook is missing or failed.
pub(super) fn build(root: &Path) -> Result<PathBuf, String> {
    let problems = problems(root)?;
    if !problems.is_empty() {
        return Err(problems.join("\nerror: "));
    }
    let (stage, site) = (root.join(PLACE).join("pages"), root.join(PLACE).join("html"));
    if let Err(error) = fs::remove_dir_all(root.join(PLACE))
        && error.kind() != ErrorKind::NotFound
    {
        return Err(format!("{PLACE}: {error}"));
    }
    let pages = listed(root)?;
    let mut files: BTreeSet<String> = pages.iter().cloned().collect();
    for page in &pages {
        files.extend(links(page, &read(root, page)?).into_iter().map(|(file, _)| file));
    }
    for file in &files {
        put(&stage.join(file), &fs::read(root.join(file)).map_err(|error| format!("{file}: {error}"))?)?;
    }
    put(&stage.join("SUMMARY.md"), summary_at_the_root(&read(root, SUMMARY)?).as_bytes())?;
    put(&stage.join("book.toml"), read(root, BOOK)?.as_bytes())?;
    let built = Command::new("mdbook").arg("build").arg(&stage).arg("--dest-dir").arg(&site).status();
    match built {
        Ok(status) if status.success() => Ok(site.join("index.html")),
        Ok(status) => Err(format!("mdbook build {}: {status}", stage.display())),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err("mdbook is not installed; run `cargo install --locked mdbook`".to_owned())
        }
        Err(error) => Err(format!("mdbook cannot be run: {error}")),
    }
}

/// Links that would lead nowhere in the repository or in the site, and pages that the index lacks.
pub(super) fn problems(root: &Path) -> Result<Vec<String>, String> {
    let pages = listed(root)?;
    let mut problems = Vec::new();
    let entries = fs::read_dir(root.join("docs")).map_err(|error| format!("docs: {error}"))?;
    let names = entries.flatten().map(|entry| format!("docs/{}", entry.file_name().to_string_lossy()));
    let is_forgotten = |name: &String| name.ends_with(".md") && name != SUMMARY && !pages.contains(name);
    problems.extend(names.filter(is_forgotten).map(|name| format!("{SUMMARY} does not list {name}")));
    for page in &pages {
        for (file, heading) in links(page, &read(root, page)?) {
            let is_page = pages.contains(&file);
            let has_heading = |heading: &String| Ok::<_, String>(headings(&read(root, &file)?).contains(heading));
            if !root.join(&file).is_file() {
                problems.push(format!("{page} links to {file}, which is no file"));
            } else if file.ends_with(".md") && !is_page {
                problems.push(format!("{page} links to {file}, which {SUMMARY} does not list"));
            } else if let Some(heading) = heading
                && is_page
                && !has_heading(&heading)?
            {
                problems.push(format!("{page} links to {file}#{heading}, which is no heading there"));
            }
        }
    }
    Ok(problems)
}

/// Where a relative link leads: a file, from the repository's root, and a heading in it.
type Link = (String, Option<String>);

/// The pages of the site.
fn listed(root: &Path) -> Result<Vec<String>, String> {
    Ok(links(SUMMARY, &read(root, SUMMARY)?).into_iter().map(|(file, _)| file).collect())
}

/// The index with its links as they are from the repository's root.
fn summary_at_the_root(summary: &str) -> String {
    let line = |line: &str| match (line.rsplit_once('('), links(SUMMARY, line).pop()) {
        (Some((before, _)), Some((file, _))) => format!("{before}({file})\n"),
        _ => format!("{line}\n"),
    };
    summary.lines().map(line).collect()
}

/// The relative links of a page, outside its blocks of code.
fn links(page: &str, text: &str) -> Vec<Link> {
    let mut links = Vec::new();
    for line in prose(text) {
        for (at, opening) in line.match_indices("](") {
            let Some((target, _)) = line[at + opening.len()..].split_once(')') else { continue };
            if target.contains("://") {
                continue;
            }
            let (file, heading) = match target.split_once('#') {
                Some((file, heading)) => (file, Some(heading.to_owned())),
                None => (target, None),
            };
            let file = if file.is_empty() { page.to_owned() } else { beside(page, file) };
            links.push((file, heading));
        }
    }
    links
}

/// A path that is relative to `page`, from the root.
fn beside(page: &str, target: &str) -> String {
    let mut path = PathBuf::from(page);
    path.pop();
    for part in Path::new(target).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            part => path.push(part),
        }
    }
    path.to_string_lossy().into_owned()
}

fn headings(text: &str) -> BTreeSet<String> {
    let title = |line: &str| line.starts_with('#').then(|| anchor(line.trim_start_matches('#').trim()));
    prose(text).filter_map(title).collect()
}

/// Lines that are not in a block of code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

fn read(root: &Path, file: &str) -> Result<String, String> {
    fs::read_to_string(root.join(file)).map_err(|error| format!("{file}: {error}"))
}

fn put(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let folder = path.parent().unwrap_or(path);
    let written = fs::create_dir_all(folder).and_then(|()| fs::write(path, bytes));
    written.map_err(|error| format!("{}: {error}", path.display()))
}

/// The anchor that a heading gets.
fn anchor(title: &str) -> String {
    let kept = title.to_lowercase();
    let kept = kept.chars().filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-'));
    kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_where_they_lead() {
        let text =
            "[a](b.md) and [c](../d.rs), [web](https://x.org/) [here](#top)\n```\n[no](code.md)\n```\n[e](../x/y.md#z)";
        let heading = |text: &str| Some(text.to_owned());
        let expected =
            [("docs/b.md", None), ("d.rs", None), ("docs/page.md", heading("top")), ("x/y.md", heading("z"))];
        assert_eq!(links("docs/page.md", text), expected.map(|(file, heading)| (file.to_owned(), heading)));
    }

    #[test]
    fn the_index_is_the_sites_from_its_root() {
        let summary = "# Title\n\n[Start](../README.md)\n- [One](one.md)\n    - [Two](../a/two.md)\n";
        let expected = "# Title\n\n[Start](README.md)\n- [One](docs/one.md)\n    - [Two](a/two.md)\n";
        assert_eq!(summary_at_the_root(summary), expected);
    }

    #[test]
    fn what_leads_nowhere_is_named() {
        let place = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| put(&place.path().join(file), text.as_bytes()).unwrap();
        write("docs/SUMMARY.md", "[Start](../README.md)\n- [One](one.md)\n");
        write("README.md", "[gone](gone.rs) [a folder](docs) [one](docs/one.md#first) [not](docs/one.md#second)\n");
        write("docs/one.md", "# First\n\n[two](two.md)\n");
        write("docs/two.md", "");
        assert_eq!(
            problems(place.path()).unwrap(),
            [
                "docs/SUMMARY.md does not list docs/two.md",
                "README.md links to gone.rs, which is no file",
                "README.md links to docs, which is no file",
                "README.md links to docs/one.md#second, which is no heading there",
                "docs/one.md links to docs/two.md, which docs/SUMMARY.md does not list",
            ]
        );
    }
}
