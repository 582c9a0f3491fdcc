//! What `sealane check` makes of each thing that it looks at: a verdict, what was found, and the command that mends it.

use std::fmt;

use serde::Serialize;

/// What a thing means for a daemon on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    /// As it should be.
    Ok,
    /// It works, and slower or less safely than it could.
    CouldBeBetter,
    /// A daemon would not start, or would not reach its peers.
    WillNotWork,
}

impl fmt::Display for Verdict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            Verdict::Ok => "ok",
            Verdict::CouldBeBetter => "better",
            Verdict::WillNotWork => "fails",
        })
    }
}

/// One thing that was looked at.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// What it is about: a few words, the same on every host.
    pub(super) name: &'static str,
    pub(super) verdict: Verdict,
    /// What was found, and for a verdict other than ok what is wrong with it.
    pub(super) says: String,
    /// What to do; `null` where nothing is to be done.
    pub(super) remedy: Option<Remedy>,
}

/// What mends a thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Remedy {
    /// For a shell, as it stands.
    Command(String),
    /// What no command of this host does.
    Advice(String),
}

/// Advice, where a command would be expected.
pub(super) fn advice(text: impl Into<String>) -> Remedy {
    Remedy::Advice(text.into())
}

impl From<&str> for Remedy {
    fn from(command: &str) -> Remedy {
        Remedy::Command(command.to_owned())
    }
}

impl From<String> for Remedy {
    fn from(command: String) -> Remedy {
        Remedy::Command(command)
    }
}

impl Remedy {
    /// The command or the advice.
    pub(super) fn text(&self) -> &str {
        match self {
            Remedy::Command(text) | Remedy::Advice(text) => text,
        }
    }
}

impl Finding {
    /// Nothing is to be done.
    pub(super) fn ok(name: &'static str, says: impl Into<String>) -> Finding {
        Finding { name, verdict: Verdict::Ok, says: says.into(), remedy: None }
    }

    /// It could be better.
    pub(super) fn better(name: &'static str, says: impl Into<String>, remedy: impl Into<Remedy>) -> Finding {
        Finding { name, verdict: Verdict::CouldBeBetter, says: says.into(), remedy: Some(remedy.into()) }
    }

    /// It will not work.
    pub(super) fn fails(name: &'static str, says: impl Into<String>, remedy: impl Into<Remedy>) -> Finding {
        Finding { name, verdict: Verdict::WillNotWork, says: says.into(), remedy: Some(remedy.into()) }
    }
}
