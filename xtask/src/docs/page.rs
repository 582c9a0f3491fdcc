//! The pages as Markdown. Pure.

use std::fmt::Write;

use super::catalogue::{Catalogue, Sorted};

/// Messages of an entry that are all shown; a longer list is folded.
const SHOWN_MAX: usize = 6;

/// The page of everything that can go wrong.
pub(super) fn troubleshooting(catalogue: &Catalogue, sorted: &Sorted<'_>) -> String {
    let mut page = String::from(
        "<!-- Made by `cargo xtask docs` from docs/troubleshooting.toml and the messages in the code: change those. -->\n\
         # Troubleshooting\n\n\
         Every message that `sealane`, its daemon's log and its clients can print, with its cause and its remedy. Look for a few words of the\n\
         message on this page; `…` stands where a name, a number or another message is. Begin with `sealane check`, which looks at this host and\n\
         names the command that mends what it finds, and `sealane check --probe`, which calls every peer.\n\n",
    );
    for section in &catalogue.section {
        writeln!(page, "- [{}](#{})", section.title, anchor(&section.title)).expect("a String takes all");
    }
    for (section, sorted) in catalogue.section.iter().zip(sorted) {
        writeln!(page, "\n## {}", section.title).expect("a String takes all");
        for (entry, messages) in section.entry.iter().zip(sorted) {
            write!(page, "\n### {}\n\n", entry.title).expect("a String takes all");
            let mut list = String::new();
            for message in messages {
                writeln!(list, "- {}", code(&message.text)).expect("a String takes all");
            }
            match messages.len() > SHOWN_MAX {
                true => {
                    let count = messages.len();
                    write!(page, "<details><summary>{count} messages</summary>\n\n{list}\n</details>\n\n")
                }
                false => writeln!(page, "{list}"),
            }
            .expect("a String takes all");
            let (cause, remedy) = (entry.cause.trim(), entry.remedy.trim());
            write!(page, "**Cause.** {cause}\n\n**Remedy.** {remedy}\n").expect("a String takes all");
        }
    }
    page
}

/// A text as code, whatever backquotes it has.
fn code(text: &str) -> String {
    match text.contains('`') {
        true => format!("`` {text} ``"),
        false => format!("`{text}`"),
    }
}

/// The anchor that a heading gets.
pub(super) fn anchor(title: &str) -> String {
    let kept = title.to_lowercase();
    let kept = kept.chars().filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-'));
    kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_and_code_are_markdowns() {
        assert_eq!(anchor("Who may talk, and why"), "who-may-talk-and-why");
        assert_eq!(code("a"), "`a`");
        assert_eq!(code("write `a`"), "`` write `a` ``");
    }
}
