//! Reads `sealane.toml` into named texts with their lines. Bounded by `FILE_BYTES_MAX`.

use std::fmt::Display;
use std::io;
use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::table::{self, TABLE};
use super::value::Kind;
use super::{Source, Sources};
use crate::files::read_text;
use crate::{Failure, nearest};

/// Name of the settings file in the working directory.
pub const FILE_NAME: &str = "sealane.toml";

/// Largest settings file, in bytes: many times one that sets everything.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// How many names to suggest for an unknown one.
const SUGGESTIONS_MAX: usize = 2;

/// One value in the file: its place in the table, its text, its line.
pub(super) struct FileValue {
    pub(super) index: usize,
    /// The name as the file has it.
    pub(super) name: String,
    pub(super) text: String,
    pub(super) source: Source,
}

/// Reads the file named by `sources` or, if they name none, the one in their directory if it exists.
pub(super) fn find(sources: &Sources<'_>) -> Result<Vec<FileValue>, Failure> {
    match sources.config {
        Some(path) => read(path, true),
        None => read(&sources.working_directory.join(FILE_NAME), false),
    }
}

/// Reads the file at `path`; a missing one gives nothing unless it must exist.
fn read(path: &Path, must_be_there: bool) -> Result<Vec<FileValue>, Failure> {
    match read_text(path, FILE_BYTES_MAX) {
        Ok(text) => parse(&text, path),
        Err(error) if error.kind() == io::ErrorKind::NotFound && !must_be_there => Ok(Vec::new()),
        Err(error) => {
            let remedy = "make it a readable text file, or name another with --config";
            Err(Failure::file(path, format!("cannot be read ({error}); {remedy}")))
        }
    }
}

pub(super) fn parse(text: &str, path: &Path) -> Result<Vec<FileValue>, Failure> {
    let document = Document { text, path };
    let root = DeTable::parse(text).map_err(|error| document.syntax(&error))?;
    let mut values = Vec::new();
    document.collect("", root.get_ref(), &mut values)?;
    Ok(values)
}

struct Document<'a> {
    text: &'a str,
    path: &'a Path,
}

impl Document<'_> {
    /// Collects the values of `table`, whose full name is `section`, and of the tables in it.
    fn collect(&self, section: &str, table: &DeTable<'_>, values: &mut Vec<FileValue>) -> Result<(), Failure> {
        // The parser sorts by name, but errors should come in the order of the lines.
        let mut entries: Vec<_> = table.iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        for (key, value) in entries {
            let name = match section {
                "" => key.get_ref().to_string(),
                section => format!("{section}.{}", key.get_ref()),
            };
            match (table::find(&name), value.get_ref()) {
                (Some((index, setting)), _) => {
                    let (text, source) = (self.scalar(&name, &setting.kind, value)?, self.source(&key.span()));
                    values.push(FileValue { index, name, text, source });
                }
                (None, DeValue::Table(inner)) if is_section(&name) => {
                    self.collect(&name, inner, values)?;
                }
                (None, other) if is_section(&name) => {
                    let accepted = format!("its settings below a line [{name}]");
                    return Err(self.misshapen(&key.span(), &name, other, &accepted));
                }
                (None, _) => return Err(unknown_name(self.source(&key.span()), &name)),
            }
        }
        Ok(())
    }

    /// The text of a value, as it would be written for the same setting in a variable.
    fn scalar(&self, name: &str, kind: &Kind, value: &Spanned<DeValue<'_>>) -> Result<String, Failure> {
        let words = matches!(kind, Kind::Text | Kind::Path);
        match value.get_ref() {
            DeValue::String(text) => Ok(text.to_string()),
            DeValue::Boolean(bool) if *kind == Kind::Bool => Ok(bool.to_string()),
            DeValue::Integer(integer) if !words => {
                let number = i64::from_str_radix(integer.as_str(), integer.radix());
                Ok(number.map_or_else(|_| integer.to_string(), |number| number.to_string()))
            }
            other => {
                let accepted = if words { format!("{kind} in quotes") } else { kind.to_string() };
                Err(self.misshapen(&value.span(), name, other, &accepted))
            }
        }
    }

    /// The error that a bare value stands where a section is needed, or the reverse.
    fn misshapen(&self, span: &Range<usize>, name: &str, found: &DeValue<'_>, accepted: &str) -> Failure {
        let (place, found) = (self.source(span), found.type_str());
        Failure::input(format!("{place}: {name} is a TOML {found}; write {accepted}"))
    }

    fn source(&self, span: &Range<usize>) -> Source {
        Source::File { path: self.path.to_owned(), line: self.line_and_column(span.start).0 }
    }

    fn syntax(&self, error: &toml::de::Error) -> Failure {
        let (line, column) = self.line_and_column(error.span().map_or(0, |span| span.start));
        // The parser's message may have several lines; errors are one sentence.
        let message = error.message().lines().collect::<Vec<_>>().join(", ");
        Failure::input(format!("{}:{line}:{column}: {message}; correct it as TOML", self.path.display()))
    }

    /// Both counted from 1; the column in characters.
    fn line_and_column(&self, offset: usize) -> (usize, usize) {
        let before = self.text.get(..offset).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = before.matches('\n').count() + 1;
        (line, before[line_start..].chars().count() + 1)
    }
}

/// True for the section of a setting, and for a prefix of such a section.
fn is_section(name: &str) -> bool {
    TABLE.iter().any(|setting| {
        let rest = setting.section().strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    })
}

/// The error that no setting has the name written there.
pub(super) fn unknown_name(place: impl Display, name: &str) -> Failure {
    let advice = match &near(name)[..] {
        [] => "`sealane check --settings` lists them all".to_owned(),
        near => format!("did you mean {}?", near.join(" or ")),
    };
    Failure::input(format!("{place}: there is no setting {name}; {advice}"))
}

/// Settings that an unknown name may have meant: the same key in another section, else a similar key in its own section.
fn near(name: &str) -> Vec<&'static str> {
    let (section, key) = name.rsplit_once('.').unwrap_or(("", name));
    let split = |name: &'static str| name.rsplit_once('.').unwrap_or(("", name));
    let names = || TABLE.iter().map(|setting| setting.name);
    let elsewhere: Vec<_> = names().filter(|name| split(name).1 == key).collect();
    if !elsewhere.is_empty() {
        return elsewhere.into_iter().take(SUGGESTIONS_MAX).collect();
    }
    if section.is_empty() || !is_section(section) {
        return nearest(name, names(), SUGGESTIONS_MAX);
    }
    // The section is right, and its letters must not make up for differences in the key.
    let siblings = || names().filter(|name| split(name).0 == section);
    let keys = nearest(key, siblings().map(|name| split(name).1), SUGGESTIONS_MAX);
    let full = |key: &&str| siblings().find(|name| split(name).1 == *key);
    keys.iter().filter_map(full).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(text: &str) -> Vec<(&'static str, String, usize)> {
        let values = parse(text, Path::new("sealane.toml")).unwrap();
        let describe = |value: FileValue| match value.source {
            Source::File { line, .. } => (TABLE[value.index].name, value.text, line),
            other => panic!("{other}"),
        };
        values.into_iter().map(describe).collect()
    }

    fn error(text: &str) -> String {
        match parse(text, Path::new("sealane.toml")) {
            Ok(_) => panic!("{text:?} is accepted"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn reads_values_with_their_lines() {
        let text = "# ours\n[runtime]\nshards = 0x10\npolling = true\n\n\
                    [transport.tcp]\ncongestion = \"reno\"\n[transport]\nrequire = 'tcp'\n\
                    [verbs]\nmtu = 1024\n";
        assert_eq!(
            values(text),
            [
                ("runtime.shards", "16".to_owned(), 3),
                ("runtime.polling", "true".to_owned(), 4),
                ("transport.tcp.congestion", "reno".to_owned(), 7),
                ("transport.require", "tcp".to_owned(), 9),
                ("verbs.mtu", "1024".to_owned(), 11),
            ]
        );
        assert_eq!(values("runtime.slab_send_bytes = '64MiB'").len(), 1);
        assert_eq!(values(""), []);
    }

    #[test]
    fn an_unknown_name_is_an_error_with_the_nearest_known() {
        for (text, expected) in [
            (
                "\n[runtime]\nshard = 1",
                "sealane.toml:3: there is no setting runtime.shard; did you mean runtime.shards?",
            ),
            (
                "[fusion]\nwindow = 1",
                "sealane.toml:2: there is no setting fusion.window; \
                 did you mean transport.window?",
            ),
            (
                "[nonsense]\nx = 1",
                "sealane.toml:1: there is no setting nonsense; `sealane check --settings` lists them all",
            ),
            (
                "[runtime]\nshards = 1\nzzz = 1\naaa = 1",
                "sealane.toml:3: there is no setting runtime.zzz; \
                 `sealane check --settings` lists them all",
            ),
        ] {
            assert_eq!(error(text), expected);
        }
    }

    #[test]
    fn a_value_of_another_shape_is_an_error() {
        for (text, expected) in [
            ("runtime = 3", "sealane.toml:1: runtime is a TOML integer; write its settings below a line [runtime]"),
            (
                "[runtime]\nshards = [1]",
                "sealane.toml:2: runtime.shards is a TOML array; \
                 write a whole number from 1 to 1024",
            ),
            (
                "[transport.tcp]\ncongestion = 5",
                "sealane.toml:2: transport.tcp.congestion is a TOML integer; \
                 write a text in quotes",
            ),
            (
                "[runtime]\nshards = true",
                "sealane.toml:2: runtime.shards is a TOML boolean; \
                 write a whole number from 1 to 1024",
            ),
            (
                "[[runtime]]\nshards = 1",
                "sealane.toml:1: runtime is a TOML array; write its settings below a line [runtime]",
            ),
        ] {
            assert_eq!(error(text), expected);
        }
    }

    #[test]
    fn text_that_is_not_toml_is_placed() {
        let error = error("[runtime]\nshards = = 1\n");
        assert!(error.starts_with("sealane.toml:2:10: "), "{error}");
        assert!(error.ends_with("; correct it as TOML"), "{error}");
    }

    #[test]
    fn a_file_that_cannot_be_read_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        assert!(read(&directory.path().join("none"), false).unwrap().is_empty());
        let error = |path: &Path| read(path, false).err().unwrap().to_string();
        assert!(error(directory.path()).contains("cannot be read ("));
        let path = directory.path().join(FILE_NAME);
        std::fs::File::create(&path).unwrap().set_len(FILE_BYTES_MAX + 1).unwrap();
        assert!(error(&path).contains("larger than"));
    }
}
