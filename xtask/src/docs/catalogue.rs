//! What is to be done about each message: `docs/troubleshooting.toml`, in which one entry stands for a family. Every message
//! must have an entry, and every pattern of an entry a message, so that neither can be forgotten. Pure.

use serde::Deserialize;

use super::messages::Message;

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Catalogue {
    /// Texts that are parts of other messages, as patterns.
    pub(super) parts: Vec<String>,
    pub(super) section: Vec<Section>,
}

/// Entries about one thing.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Section {
    pub(super) title: String,
    pub(super) entry: Vec<Entry>,
}

/// A family of messages with one cause and one remedy.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    pub(super) title: String,
    /// Texts with `*` for anything, gaps included.
    #[serde(default)]
    pub(super) messages: Vec<String>,
    /// Files (or directories) all of whose messages belong here that no pattern of another entry names: the innermost
    /// place wins.
    #[serde(default)]
    pub(super) from: Vec<String>,
    pub(super) cause: String,
    pub(super) remedy: String,
}

/// The messages of each entry, in the order of the catalogue.
pub(super) type Sorted<'a> = Vec<Vec<Vec<&'a Message>>>;

impl Catalogue {
    /// Gives every message to its entry.
    ///
    /// # Errors
    /// The messages without an entry, and the patterns and places without a message.
    pub(super) fn sort<'a>(&self, messages: &'a [Message]) -> Result<Sorted<'a>, Vec<String>> {
        let mut sorted: Sorted<'a> = self.section.iter().map(|section| vec![Vec::new(); section.entry.len()]).collect();
        let mut problems = Vec::new();
        let is_part = |message: &&Message| !self.parts.iter().any(|part| matches(part, &message.text));
        for message in messages.iter().filter(is_part) {
            match self.place_of(message) {
                Some((section, entry)) => sorted[section][entry].push(message),
                None => {
                    let file = message.files.first().map_or("", String::as_str);
                    problems.push(format!("no entry for the message {:?} of {file}", message.text));
                }
            }
        }
        let has = |pattern: &String| messages.iter().any(|message| matches(pattern, &message.text));
        problems.extend(self.parts.iter().filter(|part| !has(part)).map(|part| format!("no message is like {part:?}")));
        for (at, entry) in self.entries() {
            for pattern in entry.messages.iter().filter(|pattern| !has(pattern)) {
                problems.push(format!("no message is like {pattern:?} of the entry {:?}", entry.title));
            }
            let (section, place) = at;
            for from in &entry.from {
                if !sorted[section][place].iter().any(|message| message.files.iter().any(|file| file.starts_with(from)))
                {
                    problems.push(format!("no message comes from {from} for the entry {:?}", entry.title));
                }
            }
        }
        if problems.is_empty() { Ok(sorted) } else { Err(problems) }
    }

    fn entries(&self) -> impl Iterator<Item = ((usize, usize), &Entry)> {
        let sections = self.section.iter().enumerate();
        sections.flat_map(|(section, of)| of.entry.iter().enumerate().map(move |(at, entry)| ((section, at), entry)))
    }

    /// A pattern wins over a place, the longest of each over the others.
    fn place_of(&self, message: &Message) -> Option<(usize, usize)> {
        let by_pattern = self.entries().filter_map(|(at, entry)| {
            let fits = entry.messages.iter().filter(|pattern| matches(pattern, &message.text));
            Some((fits.map(String::len).max()?, at))
        });
        let by_place = self.entries().filter_map(|(at, entry)| {
            let is_of = |from: &&String| message.files.iter().any(|file| file.starts_with(*from));
            Some((entry.from.iter().filter(is_of).map(String::len).max()?, at))
        });
        let longest = |best: Option<(usize, (usize, usize))>| best.map(|(_, at)| at);
        // Of equals the first.
        let first = |one: (usize, _), other: (usize, _)| if other.0 > one.0 { other } else { one };
        longest(by_pattern.reduce(first)).or_else(|| longest(by_place.reduce(first)))
    }
}

/// True if `text` is what `pattern` says, where `*` is anything.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str, file: &str) -> Message {
        Message { text: text.to_owned(), files: [file.to_owned()].into() }
    }

    fn catalogue(entries: &str) -> Catalogue {
        toml::from_str(&format!("parts = [\"and *\"]\n[[section]]\ntitle = \"all\"\n{entries}")).unwrap()
    }

    fn entry(title: &str, more: &str) -> String {
        format!("[[section.entry]]\ntitle = \"{title}\"\ncause = \"c\"\nremedy = \"r\"\n{more}\n")
    }

    #[test]
    fn patterns_win_over_places_and_longer_ones_over_shorter() {
        let text = [
            entry("short", "messages = [\"no *\"]"),
            entry("long", "messages = [\"no port*\"]"),
            entry("crate", "from = [\"a/src\"]"),
            entry("file", "from = [\"a/src/one.rs\"]"),
        ];
        let catalogue = catalogue(&text.concat());
        let messages = [
            message("and … more", "c.rs"),
            message("no … here", "a/src/one.rs"),
            message("no port is free", "b/src/x.rs"),
            message("it fails", "a/src/one.rs"),
            message("it stops", "a/src/two.rs"),
        ];
        let sorted = catalogue.sort(&messages).unwrap();
        let texts: Vec<_> = sorted[0].iter().map(|of| of[0].text.as_str()).collect();
        assert_eq!(texts, ["no … here", "no port is free", "it stops", "it fails"]);
    }

    #[test]
    fn what_is_forgotten_is_named() {
        let catalogue = catalogue(&entry("all", "messages = [\"no *\", \"gone *\"]\nfrom = [\"none.rs\"]"));
        let messages = [message("no …", "a.rs"), message("other text", "a.rs")];
        // Nor is there a part.
        let problems = catalogue.sort(&messages).unwrap_err();
        assert_eq!(
            problems,
            [
                "no entry for the message \"other text\" of a.rs",
                "no message is like \"and *\"",
                "no message is like \"gone *\" of the entry \"all\"",
                "no message comes from none.rs for the entry \"all\"",
            ]
        );
    }

    #[test]
    fn stars_are_anything() {
        for (pattern, text, fits) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("a*", "ab", true),
            ("*b", "ab", true),
            ("*a*", "bab", true),
            ("a*c*e", "abcde", true),
            ("a*c*e", "abde", false),
            ("*", "", true),
        ] {
            assert_eq!(matches(pattern, text), fits, "{pattern} {text}");
        }
    }
}
