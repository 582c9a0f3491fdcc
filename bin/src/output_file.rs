//! A file that is written when the work is done, as a report is. That it can be is found out before: minutes of measuring must
//! not end with a directory that is not there.

use std::io;
use std::path::{Path, PathBuf};

use crate::files::{directory_of, replace};
use crate::{Context, Failure};

/// What stands for standard output where a file is expected.
pub(crate) const STANDARD_OUTPUT: &str = "-";

/// Prints a report as people read it, and writes its JSON to a file if that is wanted; or the JSON alone to standard output.
///
/// # Errors
/// The file or standard output cannot be written.
pub(crate) fn report(context: &Context, json: Option<&Path>, as_json: &str, as_text: &str) -> Result<(), Failure> {
    match json {
        Some(file) if file == Path::new(STANDARD_OUTPUT) => return context.print(as_json),
        Some(file) => write(file, as_json)?,
        None => {}
    }
    context.print(as_text)
}

/// Writes a file that need not be a regular one.
///
/// # Errors
/// It cannot be written.
pub(crate) fn write(file: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(file, text).map_err(|error| {
        let file = file.display();
        Failure::input(format!("{file} cannot be written ({error}); name a file in a directory that exists"))
    })
}

/// Where something goes that is not there yet.
#[derive(Debug)]
pub(crate) struct OutputFile {
    flag: &'static str,
    path: PathBuf,
}

impl OutputFile {
    /// The file that a flag names, if it does.
    ///
    /// # Errors
    /// It could not be written.
    pub(crate) fn named(flag: &'static str, path: Option<&PathBuf>) -> Result<Option<OutputFile>, Failure> {
        path.map(|path| OutputFile::new(flag, path)).transpose()
    }

    fn new(flag: &'static str, path: &Path) -> Result<OutputFile, Failure> {
        if path.file_name().is_none() || path.exists() && !path.is_file() {
            return Err(Failure::input(format!("{flag} {} is not a file; name the file to write", path.display())));
        }
        let file = OutputFile { flag, path: path.to_owned() };
        // Unnamed, so that nothing is left of it whatever happens next.
        tempfile::tempfile_in(directory_of(path)).map_err(|error| file.refused(&error))?;
        Ok(file)
    }

    /// Writes all of it, or leaves what was there.
    ///
    /// # Errors
    /// It cannot be written any more.
    pub(crate) fn write(&self, text: &str) -> Result<(), Failure> {
        replace(&self.path, std::iter::once(text.as_bytes())).map_err(|error| self.refused(&error))
    }

    fn refused(&self, error: &io::Error) -> Failure {
        let (flag, path) = (self.flag, self.path.display());
        Failure::input(format!(
            "{flag} {path} cannot be written ({error}); name a file in a directory that exists and can be written to"
        ))
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
        assert!(error(Path::new("/dev/null")).contains("--report /dev/null is not a file"));
        assert!(error(Path::new("..")).contains("--report .. is not a file"));
        OutputFile::new("--report", &path("report.html")).unwrap();
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0, "nothing is left of the trial");
    }
}
