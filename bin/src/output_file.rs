//! A file that is written when the work is done, such as a report. Whether it can be written is checked before: minutes of
//! measuring must not end with a missing directory.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::files::{directory_of, may_create_in, replace};
use crate::{Context, Failure};

/// What stands for standard output where a file is expected.
const STANDARD_OUTPUT: &str = "-";

/// Where a report goes: as text to standard output, and as JSON into a file if wanted; or only the JSON to standard output.
#[derive(Debug)]
pub struct ReportOutput {
    is_json: bool,
    file: Option<OutputFile>,
}

impl ReportOutput {
    /// The output that `--json` asks for.
    ///
    /// # Errors
    /// The file could not be written.
    pub fn to(json: Option<&PathBuf>) -> Result<ReportOutput, Failure> {
        let is_json = json.is_some_and(|file| file == Path::new(STANDARD_OUTPUT));
        Ok(ReportOutput { is_json, file: OutputFile::named("--json", json.filter(|_| !is_json))? })
    }

    /// Prints the report and writes its JSON: whatever happens to the file, the measurements are shown.
    ///
    /// # Errors
    /// The file or standard output cannot be written.
    pub fn write(&self, context: &Context, as_json: &str, as_text: &str) -> Result<(), Failure> {
        context.print(if self.is_json { as_json } else { as_text })?;
        self.file.as_ref().map_or(Ok(()), |file| file.write(as_json))
    }
}

/// A destination for output that does not exist yet.
#[derive(Debug)]
pub struct OutputFile {
    flag: &'static str,
    path: PathBuf,
    /// Anything but a regular file is opened at once, and not replaced.
    opened: Option<File>,
}

impl OutputFile {
    /// The file that a flag names, if it names one.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn named(flag: &'static str, path: Option<&PathBuf>) -> Result<Option<OutputFile>, Failure> {
        path.map(|path| OutputFile::new(flag, path)).transpose()
    }

    fn new(flag: &'static str, path: &Path) -> Result<OutputFile, Failure> {
        if path.file_name().is_none() || path.is_dir() {
            return Err(Failure::input(format!("{flag} {} is not a file; name the file to write", path.display())));
        }
        let mut file = OutputFile { flag, path: path.to_owned(), opened: None };
        if path.exists() && !path.is_file() {
            file.opened = Some(OpenOptions::new().write(true).open(path).map_err(|error| file.refused(&error))?);
        } else {
            may_create_in(directory_of(path)).map_err(|error| file.refused(&error))?;
        }
        Ok(file)
    }

    /// Writes all of `text`, or leaves the old contents.
    ///
    /// # Errors
    /// It cannot be written any more.
    pub fn write(&self, text: &str) -> Result<(), Failure> {
        let written = match &self.opened {
            Some(file) => (&*file).write_all(text.as_bytes()),
            None => replace(&self.path, std::iter::once(text.as_bytes())),
        };
        written.map_err(|error| self.refused(&error))
    }

    fn refused(&self, error: &io::Error) -> Failure {
        let (flag, path) = (self.flag, self.path.display());
        let remedy = match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                "free space there, or name a file where there is free space"
            }
            _ => "name a file in a directory that exists and can be written to",
        };
        Failure::input(format!("{flag} {path} cannot be written ({error}); {remedy}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(path: &Path) -> String {
        OutputFile::new("--report", path).unwrap_err().to_string()
    }

    #[test]
    fn what_cannot_be_written_is_found_out_before() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        assert!(error(&path("none/report.html")).contains("none/report.html cannot be written (No such file"));
        assert!(error(directory.path()).ends_with("is not a file; name the file to write"));
        assert!(error(Path::new("..")).contains("--report .. is not a file"));
        OutputFile::new("--report", &path("report.html")).unwrap();
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0, "nothing is left of the trial");
    }
}
