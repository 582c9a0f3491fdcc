//! Checks that the program still has the messages that docs/troubleshooting.md quotes: each part between gaps (`…`) must occur in
//! the source. A line of quotes is one that begins with a backquote.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::command::output;

/// The page, from the workspace's root.
pub(super) const PAGE: &str = "docs/troubleshooting.md";

/// The crates whose messages reach a user.
const CRATES: [&str; 6] = ["runtime/src", "transport/src", "fusion/src", "client/src", "bin/src", "bench/src"];

/// Separates two messages on a line.
const BETWEEN: &str = " · ";

/// Shorter parts of a message occur everywhere, and prove nothing.
const PART_BYTES_MIN: usize = 4;

/// Quotes of the page that the source does not have, each as a sentence.
pub(super) fn problems(root: &Path) -> Result<Vec<String>, String> {
    let mut find = Command::new("find");
    find.args(CRATES).args(["-name", "*.rs", "-exec", "cat", "{}", "+"]).current_dir(root);
    let source = printed(&output(&mut find)?);
    let page = root.join(PAGE);
    let page = fs::read_to_string(&page).map_err(|error| format!("{}: {error}", page.display()))?;
    let quotes = quotes(&page);
    if quotes.is_empty() {
        return Err(format!("{PAGE} quotes no message"));
    }
    let old = quotes.into_iter().filter(|quote| !is_in(quote, &source));
    Ok(old.map(|quote| format!("{PAGE} quotes `{quote}`, which is nowhere in the source: correct it there")).collect())
}

/// A source with its string continuations joined and its quotes unescaped.
fn printed(source: &str) -> String {
    let mut parts = source.split("\\\n");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |joined, part| joined + part.trim_start()).replace("\\\"", "\"").replace("{{", "{")
}

fn quotes(page: &str) -> Vec<&str> {
    let lines = page.lines().filter(|line| line.starts_with('`'));
    lines.flat_map(|line| line.split(BETWEEN)).map(|quote| quote.trim_end().trim_matches('`').trim()).collect()
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
    }
}
