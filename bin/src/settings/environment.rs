//! The environment variables of a process, or those that a test gives.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use crate::Failure;

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
