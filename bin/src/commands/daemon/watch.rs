//! Reports when the endpoint map, a secret or a certificate may have changed. Watches their directories, since editors and
//! Kubernetes replace files by renaming others.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use crate::files::directory_of;

/// A file was written and closed, or renamed to its name: from then on it is complete. A removed file is no change: most likely the
/// next one is about to come.
const CHANGES: AddWatchFlags = AddWatchFlags::IN_CLOSE_WRITE.union(AddWatchFlags::IN_MOVED_TO);

/// Kubernetes swaps all files of a mounted map at once, by renaming a link whose name begins with this.
const KUBERNETES_LINK: &[u8] = b"..";

/// Watches the directories of some files.
#[derive(Debug)]
pub(super) struct Watch {
    inotify: Inotify,
    directories: BTreeSet<PathBuf>,
    /// Names without directories: a change of a file with the same name in another of these directories causes a needless reload.
    files: Vec<OsString>,
}

/// A directory that cannot be watched: changes of its files go unnoticed.
#[derive(Debug)]
pub(super) struct Unwatched {
    directory: PathBuf,
    error: Errno,
}

impl Unwatched {
    pub(super) fn warn(self) {
        let Unwatched { directory, error } = self;
        let directory = directory.display();
        tracing::warn!(%directory, %error, "changes of the files in this directory are not detected, send SIGHUP to reload them");
    }
}

impl Watch {
    /// Prepares to watch for changes of the files at these paths; [`renew`](Self::renew) begins.
    ///
    /// # Errors
    /// Those of the system: a limit of it is reached.
    pub(super) fn new(paths: &[&Path]) -> Result<Watch, Errno> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        let directories: BTreeSet<_> = paths.iter().map(|path| directory_of(path).to_owned()).collect();
        let files = paths.iter().map(|path| path.file_name().unwrap_or_default().to_owned()).collect();
        Ok(Watch { inotify, directories, files })
    }

    /// Watches the directories that have these names now; returns those that cannot be watched. Blocks while their file systems do
    /// not respond.
    pub(super) fn renew(&self) -> Vec<Unwatched> {
        let add = |directory: &PathBuf| {
            let added = self.inotify.add_watch(directory, CHANGES);
            added.err().map(|error| Unwatched { directory: directory.clone(), error })
        };
        self.directories.iter().filter_map(add).collect()
    }

    /// True if a file may have changed since the last call, however many changes there were.
    pub(super) fn changed(&self) -> bool {
        let mut changed = false;
        while let Ok(events) = self.inotify.read_events() {
            changed |= events.iter().any(|event| concerns(event.mask, event.name.as_deref(), &self.files));
        }
        changed
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

fn concerns(what: AddWatchFlags, name: Option<&OsStr>, files: &[OsString]) -> bool {
    // Lost events may have been about any file.
    if what.contains(AddWatchFlags::IN_Q_OVERFLOW) {
        return true;
    }
    let is_one = |name: &OsStr| files.iter().any(|file| file == name);
    name.is_some_and(|name| is_one(name) || name.as_encoded_bytes().starts_with(KUBERNETES_LINK))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_file_that_is_written_or_replaced_has_changed_and_its_neighbours_do_not_matter() {
        let _closed = crate::OPEN_FILES.read();
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::create_dir(path("keys")).unwrap();
        // A path that cannot be watched does not keep the others from being watched.
        let watch = Watch::new(&[&path("none/secret"), &path("map"), &path("keys/secret")]).unwrap();
        let unwatched = watch.renew();
        assert_eq!(unwatched.iter().map(|one| &*one.directory).collect::<Vec<_>>(), [path("none")]);
        assert!(!watch.changed());
        fs::write(path("neighbour"), "a").unwrap();
        assert!(!watch.changed());
        for file in ["map", "keys/secret"] {
            fs::write(path(file), "a").unwrap();
            assert!(watch.changed());
            assert!(!watch.changed());
        }
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
        assert!(concerns(AddWatchFlags::IN_Q_OVERFLOW, None, &["map".into()]));
        assert!(!concerns(AddWatchFlags::IN_IGNORED, None, &["map".into()]));
    }

    #[test]
    fn a_directory_that_was_replaced_can_be_watched_again() {
        let _closed = crate::OPEN_FILES.read();
        let directory = tempfile::tempdir().unwrap();
        let inner = directory.path().join("inner");
        fs::create_dir(&inner).unwrap();
        let watch = Watch::new(&[&inner.join("map")]).unwrap();
        assert!(watch.renew().is_empty());
        fs::rename(&inner, directory.path().join("old")).unwrap();
        assert_eq!(watch.renew().len(), 1);
        fs::create_dir(&inner).unwrap();
        assert!(watch.renew().is_empty());
        fs::write(inner.join("map"), "a").unwrap();
        assert!(watch.changed());
        assert!(Watch::new(&[Path::new("map")]).unwrap().renew().is_empty());
    }
}
