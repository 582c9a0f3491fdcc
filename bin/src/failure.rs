//! How a command fails: one sentence on standard error, and the exit code that goes with it.

use std::fmt;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use sealane_transport::endpoint_map::EndpointMapError;

/// Why a command failed: one sentence that says what was wrong, where, and what to do.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    message: String,
}

/// The work failed.
const WORK: u8 = 1;
/// The arguments or files were wrong.
const INPUT: u8 = 2;

impl Failure {
    /// The work failed: exit code 1.
    pub fn work(message: impl fmt::Display) -> Failure {
        Failure { code: WORK, message: message.to_string() }
    }

    /// The arguments, settings or files were wrong: exit code 2.
    pub fn input(message: impl fmt::Display) -> Failure {
        Failure { code: INPUT, message: message.to_string() }
    }

    /// A file or its contents are wrong: exit code 2.
    pub fn file(path: &Path, problem: impl fmt::Display) -> Failure {
        Failure::input(format!("{}: {problem}", path.display()))
    }

    /// Writes the sentence to standard error and returns the exit code.
    pub fn report(&self) -> ExitCode {
        // Without standard error, only the exit code can report the failure.
        let _ = writeln!(std::io::stderr(), "error: {self}");
        self.code()
    }

    pub fn code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl From<EndpointMapError> for Failure {
    fn from(error: EndpointMapError) -> Failure {
        Failure::input(error)
    }
}
