//! Checks that the program still has the messages that pages quote: each part between gaps (`…`) must occur in the source. A line of
//! quotes begins with a backquote; so does the first cell of a table's row.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::command::output;

/// The pages, from the workspace's root, each with the heading of the section whose quotes are checked; an empty one for the whole page.
const PAGES: [(&str, &str); 3] = [
    ("docs/troubleshooting.md", ""),
    ("docs/tensorflow.md", "## Troubleshooting\n"),
    ("docs/pytorch.md", "## When a rank dies\n"),
];

/// The folders of the code whose messages reach a user.
const FOLDERS: [&str; 8] = [
    "runtime/src",
    "transport/src",
    "fusion/src",
    "client/src",
    "bin/src",
    "bench/src",
    "python/tensorflow/plugin",
    "python/tensorflow/package",
];

/// Separates two messages on a line.
const BETWEEN: &str = " · ";

/// Shorter parts of a message occur everywhere, and prove nothing.
const PART_BYTES_MIN: usize = 4;

/// Quotes of the pages that the source does not have, each as a sentence.
pub(super) fn problems(root: &Path) -> Result<Vec<String>, String> {
    let mut find = Command::new("find");
    find.args(FOLDERS).args(["-regex", r".*\.\(rs\|cc\|py\)", "-exec", "cat", "{}", "+"]).current_dir(root);
    let source = printed(&output(&mut find)?);
    let mut problems = Vec::new();
    for (page, heading) in PAGES {
        let path = root.join(page);
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let quotes = quotes(section(&text, heading));
        if quotes.is_empty() {
            return Err(format!("{page} quotes no message"));
        }
        let old = quotes.into_iter().filter(|quote| !is_in(quote, &source));
        problems.extend(
            old.map(|quote| format!("{page} quotes `{quote}`, which is nowhere in the source: correct it there")),
        );
    }
    Ok(problems)
}

/// The part of a page from a heading to the next one of its level, or the whole page without a heading.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    if heading.is_empty() {
        return page;
    }
    let rest = page.split_once(heading).map_or("", |(_, rest)| rest);
    rest.split("\n## ").next().unwrap_or_default()
}

/// A source with its string continuations joined and its quotes unescaped.
fn printed(source: &str) -> String {
    let mut parts = source.split("\\\n");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |joined, part| joined + part.trim_start()).replace("\\\"", "\"").replace("{{", "{")
}

/// The first cell of a row of a table.
fn first_cell(line: &str) -> Option<&str> {
    Some(line.strip_prefix("| ")?.split_once(" |")?.0)
}

fn quotes(page: &str) -> Vec<&str> {
    let lines = page.lines().map(|line| first_cell(line).unwrap_or(line));
    let quoting = lines.filter(|line| line.starts_with('`') && !line.starts_with("```"));
    quoting.flat_map(|line| line.split(BETWEEN)).map(|quote| quote.trim_end().trim_matches('`').trim()).collect()
}

fn is_in(quote: &str, source: &str) -> bool {
    let mut parts = quote.split('…').map(str::trim).filter(|part| part.len() >= PART_BYTES_MIN).peekable();
    parts.peek().is_some() && parts.all(|part| source.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_are_looked_for_part_by_part() {
        let source = printed("fail(format!(\"the port {port} is \\\n            taken; name \\\"another\\\"\"))");
        let page = "# Page\n\n`the port … is taken; name \"another\"` · `` it is `gone` ``  \nThe `text` below.\n";
        assert_eq!(quotes(page), ["the port … is taken; name \"another\"", "it is `gone`"]);
        assert!(is_in(quotes(page)[0], &source) && !is_in(quotes(page)[1], &source));
        assert!(!is_in("the port … is free", &source) && !is_in("… a …", &source));
        let table = "## First\n| `other` | x |\n\n## Second\n\n| Message | What |\n|---|---|\n| `text` · `more` | y |\n| plain | z |\n\n## Third\n`no`\n";
        assert_eq!(quotes(section(table, "## Second\n")), ["text", "more"]);
    }
}
