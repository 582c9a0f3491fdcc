//! Decides for every setting which of its sources wins, and reads that source's text.

use std::path::Path;

use super::file::{self, FileValue};
use super::table::{self, Setting, TABLE, Variables};
use super::value::{Typed, Value};
use super::{Environment, Given, Role, Source, Sourced};
use crate::Failure;

#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    pub environment: &'a Environment,
    /// Where `sealane.toml` is searched for; it may be missing.
    pub working_directory: &'a Path,
    /// The settings file that a flag names instead; it must exist.
    pub config: Option<&'a Path>,
    /// The role that a flag names; if none does, `TF_CONFIG` tells it.
    pub role: Option<Role>,
    /// Settings given by flags; of two for one setting the later wins.
    pub overrides: &'a [Override],
}

/// A setting given by a flag.
#[derive(Clone, Debug)]
pub struct Override {
    flag: &'static str,
    name: String,
    text: String,
}

impl Override {
    /// `flag` gives the setting called `name` the value in `text`.
    pub fn new(flag: &'static str, name: impl Into<String>, text: impl Into<String>) -> Override {
        Override { flag, name: name.into(), text: text.into() }
    }
}

/// The effective value of one setting.
#[derive(Clone, Debug)]
pub struct Entry {
    pub setting: &'static Setting,
    pub value: Value,
    pub source: Source,
}

impl Entry {
    /// The value with its unit; if nothing sets it, what happens instead.
    pub fn shown(&self) -> String {
        self.setting.kind.show(&self.value)
    }
}

/// One entry for every row of the table, in its order.
pub(super) struct Effective {
    entries: Vec<Entry>,
    notes: Notes,
}

/// What a user may want to know of where the settings come from.
#[derive(Clone, Debug, Default)]
pub(super) struct Notes {
    /// Variables that are set but belong to another role.
    pub(super) unread: Vec<&'static str>,
    /// Variables that are set to nothing, which counts as unset.
    pub(super) empty: Vec<&'static str>,
    /// Settings given by a former name, with the current one.
    pub(super) renamed: Vec<String>,
}

impl Effective {
    /// `file` has the values from the settings file.
    pub(super) fn of(sources: &Sources<'_>, role: Role, file: Vec<FileValue>) -> Result<Effective, Failure> {
        let mut entries: Vec<Entry> = TABLE
            .iter()
            .map(|setting| Entry { setting, value: setting.default.clone(), source: Source::Default })
            .collect();
        // From the weakest source to the strongest, so that the last one to write wins; an unreadable value is an error even if a
        // stronger source would hide it.
        let mut notes = Notes::default();
        let note = |notes: &mut Notes, given: &str, today: &str| {
            if given != today {
                notes.renamed.push(format!("{given} is {today}"));
            }
        };
        for given in file {
            note(&mut notes, &given.name, entries[given.index].setting.name);
            set(&mut entries[given.index], given.source, &given.text)?;
        }
        for entry in &mut entries {
            variables(entry, sources.environment, role, &mut notes)?;
        }
        for given in sources.overrides {
            let (index, setting) =
                table::find(&given.name).ok_or_else(|| file::unknown_name(given.flag, &given.name))?;
            note(&mut notes, &given.name, setting.name);
            set(&mut entries[index], Source::Flag(given.flag), &given.text)?;
        }
        Ok(Effective { entries, notes })
    }

    pub(super) fn into_parts(self) -> (Vec<Entry>, Notes) {
        (self.entries, self.notes)
    }

    /// The entry called `name`.
    ///
    /// # Panics
    ///
    /// The table has no such row: a bug that shows whenever settings are loaded.
    pub(super) fn entry(&self, name: &str) -> &Entry {
        let found = table::find(name).map(|(index, _)| &self.entries[index]);
        found.unwrap_or_else(|| panic!("the table has no setting {name}"))
    }

    /// How a value was given, for an error message about it.
    pub(super) fn given(&self, name: &str) -> Given {
        let Entry { setting, value, source } = self.entry(name);
        Given { name: setting.name, source: source.clone(), text: value.to_string() }
    }

    pub(super) fn contradiction(&self, one: &str, other: &str, fix: &str) -> Failure {
        Failure::input(format!("{} conflicts with {}; {fix}", self.given(one), self.given(other)))
    }

    /// A value as a typed one.
    ///
    /// # Panics
    ///
    /// The type does not fit the row: a bug that shows whenever settings are loaded.
    pub(super) fn get<T: Typed>(&self, name: &str) -> Sourced<T> {
        let Entry { setting, value, source } = self.entry(name);
        let typed = T::read(value, &setting.kind);
        let value = typed.unwrap_or_else(|| panic!("{name} has a value of another type: {value:?}"));
        Sourced { value, source: source.clone() }
    }
}

/// Takes the value of the role's variable. A variable of another role must be readable too.
fn variables(entry: &mut Entry, environment: &Environment, role: Role, notes: &mut Notes) -> Result<(), Failure> {
    let variables = entry.setting.variables;
    for name in variables.names() {
        let text = match environment.get(name)? {
            None => continue,
            // Container images and templates set variables to nothing where they have no value.
            Some("") => {
                notes.empty.push(name);
                continue;
            }
            Some(text) => text,
        };
        if variables.for_role(role) != Some(name) {
            set(&mut entry.clone(), Source::Variable(name), text)?;
            notes.unread.push(name);
            continue;
        }
        set(entry, Source::Variable(name), text)?;
        if let (Variables::InvertedByRole { .. }, Value::Bool(bool)) = (variables, &mut entry.value) {
            *bool = !*bool;
        }
    }
    Ok(())
}

fn set(entry: &mut Entry, source: Source, text: &str) -> Result<(), Failure> {
    let setting = entry.setting;
    match setting.kind.read(text) {
        Some(value) => {
            entry.value = value;
            entry.source = source;
            Ok(())
        }
        None => {
            let given = Given { name: setting.name, source, text: text.to_owned() };
            Err(Failure::input(format!("{given} cannot be read; write {}", setting.kind)))
        }
    }
}
