//! What can be wrong with the settings: each error names what gave the value, the value, and what
//! is accepted.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::PathBuf;

use thiserror::Error;

use super::Source;
use super::value::Kind;

/// Why the settings cannot be used, in one sentence.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// A value is not what its setting accepts.
    #[error("{given} cannot be read; write {accepted}")]
    Unreadable {
        /// What gave the value, and the value.
        given: Given,
        /// What the setting accepts.
        accepted: Kind,
    },
    /// A variable's value is no text.
    #[error("{variable}={value:?} is not UTF-8; set it again in UTF-8, or unset it")]
    NotUtf8 {
        /// The variable.
        variable: String,
        /// What it holds.
        value: OsString,
    },
    /// A name that no setting has.
    #[error("{place}: there is no setting {name}; {}", advice(.near))]
    UnknownName {
        /// The file and line, or the flag.
        place: String,
        /// The name that was written.
        name: String,
        /// The known names that are like it.
        near: Vec<&'static str>,
    },
    /// A settings file has a bare value where it needs a section, or the reverse.
    #[error("{place}: {name} is {found}; write {accepted}")]
    Shape {
        /// The file and line.
        place: String,
        /// The name of the setting or section.
        name: String,
        /// What stands there.
        found: String,
        /// What should stand there.
        accepted: String,
    },
    /// A settings file is not TOML.
    #[error("{}:{line}:{column}: {message}; correct it as TOML", .path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Line, counted from 1.
        line: usize,
        /// Column in characters, counted from 1.
        column: usize,
        /// What the TOML parser says.
        message: String,
    },
    /// A settings file cannot be read.
    #[error("{}: cannot be read ({error}); make it a readable text file, or name another with --config", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// `TF_CONFIG` is not what TensorFlow writes there.
    #[error("TF_CONFIG cannot be read ({problem}); write TensorFlow's JSON there, or unset it")]
    TfConfig {
        /// What is wrong with it.
        problem: String,
    },
    /// Two values contradict each other.
    #[error("{first} conflicts with {second}; {fix}")]
    Contradiction {
        /// The one value.
        first: Box<Given>,
        /// The other.
        second: Box<Given>,
        /// What to write.
        fix: &'static str,
    },
    /// Verbs are required, and this build has none.
    #[error(
        "{given} asks for RDMA verbs, and this build has none; build it with `--features verbs`, or write auto or tcp"
    )]
    NoVerbs {
        /// What asks for it.
        given: Given,
    },
    /// One of TLS's three files is missing.
    #[error("{given} asks for TLS, which needs {missing} too; set it, or unset the others")]
    TlsIncomplete {
        /// A file that is there.
        given: Given,
        /// The setting that is not.
        missing: &'static str,
    },
    /// A port without its device.
    #[error("{given} names a port without a device; set RDMA_DEVICE too")]
    PortWithoutDevice {
        /// What names the port.
        given: Given,
    },
}

/// A value as it was given: enough to find it again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// The setting.
    pub name: &'static str,
    /// What gave the value.
    pub source: Source,
    /// The value as it was written.
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

fn advice(near: &[&str]) -> String {
    match near {
        [] => "`sealane check` lists them all".to_owned(),
        near => format!("did you mean {}?", near.join(" or ")),
    }
}
