//! Tells when the endpoint map's file may have changed. Watches its directory, since editors and Kubernetes replace files
//! by renaming others.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

/// A file that was written and closed, or renamed to its name: from then on it is whole. A file that is gone is no
/// change: most likely the next one is on its way.
const CHANGES: AddWatchFlags = AddWatchFlags::IN_CLOSE_WRITE.union(AddWatchFlags::IN_MOVED_TO);

/// Kubernetes swaps all files of a mounted map at once, by renaming a link that has this beginning.
const KUBERNETES_LINK: &[u8] = b"..";

/// Watches the directory of one file.
#[derive(Debug)]
pub(super) struct Watch {
    inotify: Inotify,
    directory: PathBuf,
    file: OsString,
}

impl Watch {
    /// Watches for changes of the file at `path`.
    ///
    /// # Errors
    /// The system's: no directory, or a limit of watches.
    pub(super) fn new(path: &Path) -> Result<Watch, Errno> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        let directory = match path.parent() {
            Some(directory) if !directory.as_os_str().is_empty() => directory,
            _ => Path::new("."),
        };
        let file = path.file_name().unwrap_or_default().to_owned();
        let watch = Watch { inotify, directory: directory.to_owned(), file };
        watch.renew()?;
        Ok(watch)
    }

    /// Watches the directory that has the name now, should it be another one.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn renew(&self) -> Result<(), Errno> {
        self.inotify.add_watch(&self.directory, CHANGES).map(drop)
    }

    /// True if the file may have changed since the last look. However many changes there were, one look tells of all.
    pub(super) fn changed(&self) -> bool {
        let mut changed = false;
        while let Ok(events) = self.inotify.read_events() {
            changed |= events.iter().any(|event| concerns(event.mask, event.name.as_deref(), &self.file));
        }
        changed
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

fn concerns(what: AddWatchFlags, name: Option<&OsStr>, file: &OsStr) -> bool {
    // Events that were lost may have been of any file.
    if what.contains(AddWatchFlags::IN_Q_OVERFLOW) {
        return true;
    }
    name.is_some_and(|name| name == file || name.as_encoded_bytes().starts_with(KUBERNETES_LINK))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_file_that_is_written_or_replaced_has_changed_and_its_neighbours_do_not_matter() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let watch = Watch::new(&path("map")).unwrap();
        assert!(!watch.changed());
        fs::write(path("neighbour"), "a").unwrap();
        assert!(!watch.changed());
        fs::write(path("map"), "a").unwrap();
        assert!(watch.changed());
        assert!(!watch.changed());
        fs::rename(path("neighbour"), path("map")).unwrap();
        assert!(watch.changed());
        fs::remove_file(path("map")).unwrap();
        assert!(!watch.changed());
        std::os::unix::fs::symlink("elsewhere", path("..new")).unwrap();
        fs::rename(path("..new"), path("..data")).unwrap();
        assert!(watch.changed());
    }

    #[test]
    fn lost_events_may_be_of_any_file() {
        assert!(concerns(AddWatchFlags::IN_Q_OVERFLOW, None, OsStr::new("map")));
        assert!(!concerns(AddWatchFlags::IN_IGNORED, None, OsStr::new("map")));
    }

    #[test]
    fn a_directory_that_was_replaced_can_be_watched_again() {
        let directory = tempfile::tempdir().unwrap();
        let inner = directory.path().join("inner");
        fs::create_dir(&inner).unwrap();
        let watch = Watch::new(&inner.join("map")).unwrap();
        fs::rename(&inner, directory.path().join("old")).unwrap();
        assert!(watch.renew().is_err());
        fs::create_dir(&inner).unwrap();
        watch.renew().unwrap();
        fs::write(inner.join("map"), "a").unwrap();
        assert!(watch.changed());
        assert!(Watch::new(Path::new("map")).is_ok());
        assert!(Watch::new(&directory.path().join("none/map")).is_err());
    }
}
