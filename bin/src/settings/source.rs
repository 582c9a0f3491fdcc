//! Where a setting's value came from: a flag, an environment variable, a line of a file, or its default.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::PathBuf;

use crate::Failure;

/// A value as it was given: enough to find it again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    pub name: &'static str,
    pub source: Source,
    pub text: String,
}

impl fmt::Display for Given {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Given { name, source, text } = self;
        match source {
            Source::Default => write!(out, "{name} = {text} (the default)"),
            Source::File { .. } => write!(out, "{source}: {name} = {text}"),
            Source::Variable(variable) => write!(out, "{variable}={text:?} (which sets {name})"),
            Source::Flag(flag) => write!(out, "{flag} {name}={text}"),
        }
    }
}

/// A value and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sourced<T> {
    pub value: T,
    pub source: Source,
}

impl<T> Sourced<T> {
    pub fn map<U>(self, make: impl FnOnce(T) -> U) -> Sourced<U> {
        Sourced { value: make(self.value), source: self.source }
    }
}

/// Where a value came from. Later variants win over earlier ones.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    Default,
    File {
        /// The file, as it was named.
        path: PathBuf,
        /// Line, counted from 1.
        line: usize,
    },
    /// An environment variable.
    Variable(&'static str),
    Flag(&'static str),
}

impl Source {
    /// The source with the higher rank wins.
    pub(super) fn rank(&self) -> u8 {
        match self {
            Source::Default => 0,
            Source::File { .. } => 1,
            Source::Variable(_) => 2,
            Source::Flag(_) => 3,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Default => out.write_str("default"),
            Source::File { path, line } => write!(out, "{}:{line}", path.display()),
            Source::Variable(name) | Source::Flag(name) => out.write_str(name),
        }
    }
}

/// Environment variables by name.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    variables: BTreeMap<OsString, OsString>,
}

impl Environment {
    /// The variables of this process, as they are now.
    pub fn of_process() -> Environment {
        Environment { variables: std::env::vars_os().collect() }
    }

    /// The value of a variable.
    ///
    /// # Errors
    ///
    /// The value is not UTF-8.
    pub fn get(&self, name: &str) -> Result<Option<&str>, Failure> {
        let Some(value) = self.variables.get(OsStr::new(name)) else { return Ok(None) };
        value
            .to_str()
            .map(Some)
            .ok_or_else(|| Failure::input(format!("{name}={value:?} is not UTF-8; set it again in UTF-8, or unset it")))
    }
}

impl<N: Into<OsString>, V: Into<OsString>> FromIterator<(N, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(variables: I) -> Environment {
        let variables = variables.into_iter();
        Environment { variables: variables.map(|(name, value)| (name.into(), value.into())).collect() }
    }
}
