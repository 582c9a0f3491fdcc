//! The settings: read once from flags, environment, `sealane.toml` and defaults into typed values
//! that remember where they came from. Plain data for any thread.
//!
//! A flag wins over a variable, a variable over the file, the file over the default. A value that
//! cannot be read is an error, never a silent default.

mod effective;
mod file;
mod limits;
pub mod markdown;
mod role;
mod sections;
mod source;
mod table;
mod value;

pub use effective::{Entry, Override, Sources};
pub use file::FILE_NAME;
pub use limits::{SHARDS_DEFAULT_MAX, SHARDS_MAX};
pub use role::{Role, TF_CONFIG, TfConfig};
pub use sections::{ClientsSocket, Peers, Require};
pub use source::{Environment, Given, Source, Sourced};
pub use table::{Daemon, Fusion, Runtime, Security, Setting, TABLE, Tcp, Transport, Variables, Verbs};
pub(crate) use value::read_number;
pub use value::{Kind, MetricsAddress, Unit, Value, show_bytes};

use std::path::Path;

#[cfg(test)]
pub(crate) use table::PASSED_ON;

use crate::Failure;
use crate::wording::first_of;
use effective::{Effective, Notes};
use file::FileValue;

/// Every setting, typed, with its source.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Whose variables were read.
    pub role: Sourced<Role>,
    /// What `TF_CONFIG` says of this process.
    pub tf_config: TfConfig,
    pub runtime: Runtime,
    pub transport: Transport,
    pub tcp: Tcp,
    pub fusion: Fusion,
    pub daemon: Daemon,
    pub security: Security,
    pub verbs: Verbs,
    entries: Vec<Entry>,
    notes: Notes,
}

/// Most variables named in one sentence.
const NAMED_MAX: usize = 4;

impl Settings {
    /// Reads all settings.
    ///
    /// # Errors
    ///
    /// The first value that cannot be read, name that is not a setting, or pair of values that contradict each other.
    pub fn load(sources: &Sources<'_>) -> Result<Settings, Failure> {
        Settings::read(sources, || file::find(sources))
    }

    /// Like [`Settings::load`], with `text` as the contents of the settings file; no file is searched for.
    ///
    /// # Errors
    ///
    /// As [`Settings::load`].
    pub fn load_text(text: &str, sources: &Sources<'_>) -> Result<Settings, Failure> {
        Settings::read(sources, || file::parse(text, &sources.working_directory.join(FILE_NAME)))
    }

    /// Settings with these names and values; no other source is used.
    ///
    /// # Errors
    ///
    /// As [`Settings::load`].
    pub fn of<N: Into<String>, V: Into<String>>(given: impl IntoIterator<Item = (N, V)>) -> Result<Settings, Failure> {
        let overrides: Vec<_> = given.into_iter().map(|(name, value)| Override::new("--set", name, value)).collect();
        let sources = Sources {
            environment: &Environment::default(),
            working_directory: Path::new("."),
            config: None,
            role: None,
            overrides: &overrides,
        };
        Settings::load_text("", &sources)
    }

    fn read(
        sources: &Sources<'_>,
        file: impl FnOnce() -> Result<Vec<FileValue>, Failure>,
    ) -> Result<Settings, Failure> {
        let tf_config = TfConfig::read(sources.environment)?;
        let role = role(sources.role, &tf_config);
        let effective = Effective::of(sources, role.value, file()?)?;
        let (runtime, tcp, fusion) = (Runtime::of(&effective), Tcp::of(&effective), Fusion::of(&effective));
        let transport = Transport::checked(&effective)?;
        let daemon = Daemon::placed(&effective, sources.environment)?;
        let (security, verbs) = (Security::checked(&effective)?, Verbs::checked(&effective)?);
        let (entries, notes) = effective.into_parts();
        Ok(Settings { runtime, transport, tcp, fusion, daemon, security, verbs, entries, notes, role, tf_config })
    }

    /// Things that are wrong but no error, with their place and the remedy: variables of another role that are set, and former
    /// names.
    pub fn warnings(&self) -> impl Iterator<Item = (&'static str, String, &'static str)> {
        let renamed = format!("renamed: {}", first_of(&self.notes.renamed, NAMED_MAX));
        let remedy = "use the new name: the next release does not read the former one";
        let renamed = (!self.notes.renamed.is_empty()).then_some(("settings", renamed, remedy));
        self.unread_variables().into_iter().chain(renamed)
    }

    fn unread_variables(&self) -> Option<(&'static str, String, &'static str)> {
        let unread = &self.notes.unread;
        let (names, Sourced { value: role, source }) = (first_of(unread, NAMED_MAX), &self.role);
        let are = if unread.len() == 1 { "is" } else { "are" };
        let says = format!("{names} {are} set and not read: the role is {role} ({source})");
        let remedy = "name the role that they are meant for with --role, or unset them";
        (!unread.is_empty()).then_some(("variables", says, remedy))
    }

    /// The variables that are set to nothing, in one sentence; `None` if there are none.
    pub fn empty_variables(&self) -> Option<String> {
        let empty = &self.notes.empty;
        let names = first_of(empty, NAMED_MAX);
        let are = if empty.len() == 1 { "is empty and counts" } else { "are empty and count" };
        (!empty.is_empty()).then(|| format!("{names} {are} as unset"))
    }

    /// Every setting with its effective value, in the order of [`TABLE`].
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }
}

fn role(flag: Option<Role>, tf_config: &TfConfig) -> Sourced<Role> {
    match (flag, &tf_config.job) {
        (Some(value), _) => Sourced { value, source: Source::Flag("--role") },
        (None, Some(job)) => Sourced { value: Role::of_job(job), source: Source::Variable(TF_CONFIG) },
        (None, None) => Sourced { value: Role::Other, source: Source::Default },
    }
}

#[cfg(test)]
mod tests;
