//! Checks that `docs/SUMMARY.md` lists all pages, and that their links lead to an existing file or to a heading of a page.

use std::fs;
use std::path::Path;

const SUMMARY: &str = "docs/SUMMARY.md";

/// Broken links, and pages that the index lacks.
pub(super) fn problems(root: &Path) -> Result<Vec<String>, String> {
    let pages = listed(root)?;
    let mut problems = Vec::new();
    let entries = fs::read_dir(root.join("docs")).map_err(|error| format!("docs: {error}"))?;
    let names = entries.flatten().map(|entry| format!("docs/{}", entry.file_name().to_string_lossy()));
    let is_forgotten = |name: &String| name.ends_with(".md") && name != SUMMARY && !pages.contains(name);
    problems.extend(names.filter(is_forgotten).map(|name| format!("{SUMMARY} does not list {name}")));
    for page in &pages {
        for (file, heading) in links(page, &read(root, page)?) {
            if !root.join(&file).is_file() {
                problems.push(format!("{page} links to {file}, which is no file"));
            } else if let Some(heading) = heading
                && file.ends_with(".md")
                && !has_heading(&read(root, &file)?, &heading)
            {
                problems.push(format!("{page} links to {file}#{heading}, which is no heading there"));
            }
        }
    }
    Ok(problems)
}

/// The target of a relative link: a file, from the repository's root, and a heading in it.
type Link = (String, Option<String>);

fn listed(root: &Path) -> Result<Vec<String>, String> {
    Ok(links(SUMMARY, &read(root, SUMMARY)?).into_iter().map(|(file, _)| file).collect())
}

/// The relative links of a page, outside its code blocks.
fn links(page: &str, text: &str) -> Vec<Link> {
    let targets =
        prose(text).flat_map(|line| line.split("](").skip(1)).filter_map(|rest| Some(rest.split_once(')')?.0));
    let link = |target: &str| {
        let (file, heading) = target.split_once('#').map_or((target, None), |(file, heading)| (file, Some(heading)));
        let file = if file.is_empty() { page.into() } else { Path::new(page).with_file_name(file) };
        (file.to_string_lossy().into_owned(), heading.map(str::to_owned))
    };
    targets.filter(|target| !target.contains("://")).map(link).collect()
}

/// Whether a page has a heading with that anchor.
fn has_heading(page: &str, wanted: &str) -> bool {
    prose(page).filter(|line| line.starts_with('#')).any(|line| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-'));
        kept.map(|letter| if letter == ' ' { '-' } else { letter }).eq(wanted.chars())
    })
}

/// Lines outside code blocks.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leads_nowhere_is_named() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join("docs")).unwrap();
        let write = |file: &str, text: &str| fs::write(place.path().join(file), text).unwrap();
        write("docs/SUMMARY.md", "[Start](../README.md)\n- [One](one.md)\n");
        write("README.md", "[gone](gone.rs) [a folder](docs) [one](docs/one.md#first) [not](docs/one.md#second)\n");
        write("docs/one.md", "# First\n\n[two](two.md)\n");
        write("docs/two.md", "");
        assert_eq!(
            problems(place.path()).unwrap(),
            [
                "docs/SUMMARY.md does not list docs/two.md",
                "docs/../README.md links to docs/../gone.rs, which is no file",
                "docs/../README.md links to docs/../docs, which is no file",
                "docs/../README.md links to docs/../docs/one.md#second, which is no heading there",
            ]
        );
    }
}
