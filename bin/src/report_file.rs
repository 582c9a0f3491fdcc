//! The file of a report, which is written when the work is done. That it can be is found out before: minutes of measuring must
//! not end with a directory that is not there.

use std::io;
use std::path::{Path, PathBuf};

use sealane_bench::Page;

use crate::Failure;
use crate::files::{directory_of, replace};

/// Where a report goes.
#[derive(Debug)]
pub(crate) struct ReportFile {
    path: PathBuf,
}

impl ReportFile {
    /// The file that a flag names, if it does.
    ///
    /// # Errors
    /// It could not be written.
    pub(crate) fn named(path: Option<&PathBuf>) -> Result<Option<ReportFile>, Failure> {
        path.map(|path| ReportFile::new(path)).transpose()
    }

    fn new(path: &Path) -> Result<ReportFile, Failure> {
        if path.file_name().is_none() || path.exists() && !path.is_file() {
            return Err(Failure::input(format!(
                "--report {} is no file; name one that is to be written, as in report.html",
                path.display()
            )));
        }
        let file = ReportFile { path: path.to_owned() };
        // Unnamed, so that nothing is left of it whatever happens next.
        tempfile::tempfile_in(directory_of(path)).map_err(|error| file.refused(&error))?;
        Ok(file)
    }

    /// Writes the whole report, or leaves what was there.
    ///
    /// # Errors
    /// It cannot be written any more.
    pub(crate) fn write(&self, page: &Page) -> Result<(), Failure> {
        replace(&self.path, std::iter::once(page.to_html().as_bytes())).map_err(|error| self.refused(&error))
    }

    fn refused(&self, error: &io::Error) -> Failure {
        let path = self.path.display();
        Failure::input(format!(
            "--report {path} cannot be written ({error}); name a file in a directory that exists and can be written to"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(path: &Path) -> String {
        ReportFile::new(path).unwrap_err().to_string()
    }

    #[test]
    fn what_cannot_be_written_is_found_out_before() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        assert!(error(&path("none/report.html")).contains("none/report.html cannot be written (No such file"));
        assert!(error(directory.path()).ends_with("is no file; name one that is to be written, as in report.html"));
        assert!(error(Path::new("/dev/null")).contains("--report /dev/null is no file"));
        assert!(error(Path::new("..")).contains("--report .. is no file"));
        ReportFile::new(&path("report.html")).unwrap();
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0, "nothing is left of the trial");
    }
}
