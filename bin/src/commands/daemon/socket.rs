//! The socket that clients attach to: inspected without changing it, taken by one daemon at a time, and removed by the daemon that
//! made it.
//!
//! A lock file beside the socket tells whose it is, since the kernel releases a lock however its holder ends. Without one, two
//! daemons that start at once could both find a dead daemon's socket and both replace it: making the new one under another name and
//! renaming it makes the change atomic, but does not tell the first of the two that it has lost.

use std::fmt;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions, TryLockError};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use sealane_transport::shm::attach;

use crate::Failure;
use crate::files::{directory_of, may_create_in};

/// Added to the socket's name for its lock file.
const LOCK_SUFFIX: &str = ".lock";

/// A lock file may be removed between its opening and its locking, by a daemon that is just ending; a daemon that starts opens it
/// again at most this often.
const LOCK_ATTEMPTS: usize = 100;

/// Longest process id in a lock file, in digits.
const PID_DIGITS_MAX: u64 = 20;

/// Mode of a socket that other users may connect to; the daemon then asks the kernel who they are.
const MODE_OPEN: u32 = 0o666;

/// Mode of a socket that only this user and root may connect to.
const MODE_OWN: u32 = 0o600;

pub(crate) fn lock_path(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(LOCK_SUFFIX);
    name.into()
}

/// The process that listens for clients at `path`: connects, and hangs up without sending anything. EAGAIN if too many others wait
/// there.
pub(crate) fn listener(path: &Path) -> Result<i32, Errno> {
    let address = UnixAddr::new(path)?;
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket: OwnedFd = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
    connect(socket.as_raw_fd(), &address)?;
    attach::credentials(&socket).map(|listener| listener.pid).map_err(|_| Errno::ENOTCONN)
}

/// The daemon that serves at a path, if any. Changes nothing there.
///
/// # Errors
/// No daemon serves and none could; or another user's daemon may serve, which the kernel does not let us ask.
pub(super) fn look(path: &Path) -> Result<Option<Holder>, Failure> {
    match listener(path) {
        Ok(process) => return Ok(Some(Holder(format!(" (process {process})")))),
        Err(Errno::EAGAIN) => return Ok(Some(Holder(String::new()))),
        Err(Errno::EACCES) if is_socket(path) => {
            return Err(Failure::work(format!(
                "{} is another user's, whose daemon may serve there; name another path with --socket",
                path.display()
            )));
        }
        Err(error @ Errno::ENAMETOOLONG) => return Err(unusable(path, &error.into())),
        // What lies there is examined below.
        Err(_) => {}
    }
    let directory = directory_of(path);
    if directory.symlink_metadata().is_ok() {
        check_directory(path)?;
    }
    // If only this directory is missing, it will be made.
    let made_in = if directory.exists() { directory } else { directory_of(directory) };
    may_create_in(made_in).map_err(|error| unusable(directory, &error))?;
    is_stale(path).map(|_| None)
}

fn is_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

/// Whether there is a socket whose program is gone.
///
/// # Errors
/// There is something else.
fn is_stale(path: &Path) -> Result<bool, Failure> {
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        found => found.map_err(|error| unusable(path, &error))?,
    };
    if !found.file_type().is_socket() {
        return Err(Failure::work(format!("{} is not a socket; name another path with --socket", path.display())));
    }
    // Only a socket without its program refuses; a program that listens for another kind of connection gives another error.
    match UnixStream::connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(true),
        _ => Err(Failure::work(format!(
            "another program listens on {}; stop it, or name another path with --socket",
            path.display()
        ))),
    }
}

/// The right to serve at a path: no other daemon has it until this is dropped.
#[derive(Debug)]
pub(super) struct Claim {
    path: PathBuf,
    lock: File,
    /// True if another daemon has it from now on.
    is_given_away: bool,
}

impl Claim {
    /// Takes the path and removes what a dead daemon left there. Makes the directory if its parent exists.
    ///
    /// # Errors
    /// A daemon or another program serves at the path, or it cannot be used.
    pub(super) fn take(path: &Path) -> Result<Claim, Failure> {
        match Claim::take_if_free(path)? {
            Ok(claim) => Ok(claim),
            Err(holder) => Err(holder.serves(path)),
        }
    }

    /// Like [`Claim::take`], but a daemon that serves at the path is no error.
    ///
    /// # Errors
    /// Another program serves at the path, or it cannot be used.
    pub(super) fn take_if_free(path: &Path) -> Result<Result<Claim, Holder>, Failure> {
        if let Some(holder) = look(path)? {
            return Ok(Err(holder));
        }
        make_directory(path)?;
        let lock = match lock(path)? {
            Ok(lock) => lock,
            Err(holder) => return Ok(Err(holder)),
        };
        let claim = Claim { lock, path: path.to_owned(), is_given_away: false };
        // Checked again, now that no other daemon can change it.
        if is_stale(path)? {
            fs::remove_file(path).map_err(|error| unusable(path, &error))?;
        }
        Ok(Ok(claim))
    }

    /// Listens for clients: of this user only, or of all users.
    ///
    /// # Errors
    /// The socket cannot be made.
    pub(super) fn listen(self, open_to_others: bool) -> Result<ClientSocket, Failure> {
        let path = &self.path;
        let listener =
            attach::listen(path).map_err(|error| Failure::work(format!("{error}; name another path with --socket")))?;
        let made = fs::symlink_metadata(path).map_err(|error| unusable(path, &error))?;
        let socket = ClientSocket { listener, made: identity(&made), claim: self };
        if open_to_others {
            set_mode(socket.path(), MODE_OPEN)?;
        }
        Ok(socket)
    }
}

/// The daemon that serves at a path, as far as its socket or its lock file tells.
#[derive(Debug)]
pub(super) struct Holder(String);

impl fmt::Display for Holder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "a daemon{}", self.0)
    }
}

impl Holder {
    fn of(lock: &mut File) -> Holder {
        let mut pid = String::new();
        // The daemon may not have written its process id yet.
        let _ = lock.take(PID_DIGITS_MAX).read_to_string(&mut pid);
        Holder(match pid.trim() {
            "" => String::new(),
            pid => format!(" (process {pid})"),
        })
    }

    /// The error that another daemon serves at the path.
    fn serves(&self, path: &Path) -> Failure {
        let socket = path.display();
        Failure::work(format!(
            "{self} already serves {socket}; stop it with `sealane drain --socket {socket}`, take its place with \
             --take-over, or name another path with --socket"
        ))
    }
}

impl Drop for Claim {
    /// Removes the lock file while the lock is held, so that only our own file is removed.
    fn drop(&mut self) {
        let path = lock_path(&self.path);
        if !self.is_given_away && is_at(&self.lock, &path) {
            let _ = fs::remove_file(path);
        }
    }
}

/// The socket that clients attach to. Removed when dropped.
#[derive(Debug)]
pub(super) struct ClientSocket {
    listener: OwnedFd,
    /// Identifies the socket's file: device and inode.
    made: (u64, u64),
    claim: Claim,
}

impl ClientSocket {
    /// Another daemon continues with the socket: nothing is removed when this is dropped.
    pub(super) fn give_away(&mut self) {
        self.claim.is_given_away = true;
    }

    /// The lock, to be handed over with the socket.
    pub(super) fn lock(&self) -> BorrowedFd<'_> {
        self.claim.lock.as_fd()
    }

    pub(super) fn path(&self) -> &Path {
        &self.claim.path
    }

    pub(super) fn listener(&self) -> &OwnedFd {
        &self.listener
    }
}

impl AsFd for ClientSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for ClientSocket {
    fn drop(&mut self) {
        let path = self.path();
        if !self.claim.is_given_away && fs::symlink_metadata(path).is_ok_and(|found| identity(&found) == self.made) {
            let _ = fs::remove_file(path);
        }
    }
}

/// A socket that another daemon has handed over, and may take back.
#[derive(Debug)]
pub(super) struct Inherited {
    path: PathBuf,
    listener: OwnedFd,
    lock: File,
    made: (u64, u64),
}

impl Inherited {
    /// Checks that these are the socket and the lock of the daemon that serves at this path.
    ///
    /// # Errors
    /// They do not belong to the path.
    pub(super) fn check(path: &Path, listener: OwnedFd, lock: OwnedFd) -> Result<Inherited, Failure> {
        let lock = File::from(lock);
        // It is the same open file that the other daemon has locked.
        if lock.try_lock().is_err() || !is_at(&lock, &lock_path(path)) {
            let path = path.display();
            return Err(Failure::work(format!("what was handed over is not {path}; name another path with --socket")));
        }
        let made = fs::symlink_metadata(path).map_err(|error| unusable(path, &error))?;
        Ok(Inherited { path: path.to_owned(), listener, lock, made: identity(&made) })
    }

    /// Continues with it, and lets this user connect, or all: from now on it belongs to this daemon.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(super) fn own(self, open_to_others: bool) -> Result<ClientSocket, Failure> {
        let Inherited { path, listener, mut lock, made } = self;
        name_holder(&mut lock).map_err(|error| unusable(&path, &error))?;
        let socket = ClientSocket { listener, made, claim: Claim { path, lock, is_given_away: false } };
        // Clients are shown the process that listens.
        attach::listen_again(&socket.listener).map_err(Failure::work)?;
        set_mode(socket.path(), if open_to_others { MODE_OPEN } else { MODE_OWN })?;
        Ok(socket)
    }
}

fn set_mode(path: &Path, mode: u32) -> Result<(), Failure> {
    fs::set_permissions(path, Permissions::from_mode(mode)).map_err(|error| unusable(path, &error))
}

/// Writes the process id, for people and for the message of a daemon that finds the lock taken.
fn name_holder(lock: &mut File) -> io::Result<()> {
    lock.set_len(0)?;
    lock.seek(SeekFrom::Start(0))?;
    writeln!(lock, "{}", std::process::id())
}

/// Makes the last directory of the path, as a service manager would (`RuntimeDirectory=`); the user's own in `/tmp` is closed to others.
fn make_directory(path: &Path) -> Result<(), Failure> {
    let directory = directory_of(path);
    let mode = if sealane::is_in_user_directory(path) { sealane::USER_DIRECTORY_MODE } else { 0o755 };
    match DirBuilder::new().mode(mode).create(directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(unusable(directory, &error)),
        _ => check_directory(path),
    }
}

/// Checks the user's own directory in `/tmp`, which another user may have made.
fn check_directory(path: &Path) -> Result<(), Failure> {
    sealane::check_directory(path)
        .map_err(|problem| Failure::work(format!("{problem}, or name another path with --socket")))
}

fn lock(socket: &Path) -> Result<Result<File, Holder>, Failure> {
    let path = lock_path(socket);
    for _ in 0..LOCK_ATTEMPTS {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).mode(0o600).custom_flags(nix::libc::O_NOFOLLOW);
        let mut file = options.open(&path).map_err(|error| unusable(&path, &error))?;
        match file.try_lock() {
            Ok(()) if is_at(&file, &path) => {
                return name_holder(&mut file).map(|()| Ok(file)).map_err(|error| unusable(&path, &error));
            }
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(Err(Holder::of(&mut file))),
            Err(TryLockError::Error(error)) => return Err(unusable(&path, &error)),
        }
    }
    Err(Failure::work(format!("{} keeps being removed; name another path with --socket", path.display())))
}

fn unusable(path: &Path, error: &io::Error) -> Failure {
    Failure::work(format!("{} cannot be used ({error}); name another path with --socket", path.display()))
}

fn is_at(file: &File, path: &Path) -> bool {
    let found = fs::symlink_metadata(path).map(|found| identity(&found));
    file.metadata().is_ok_and(|ours| found.is_ok_and(|found| found == identity(&ours)))
}

fn identity(of: &Metadata) -> (u64, u64) {
    (of.dev(), of.ino())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    fn left(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn one_daemon_serves_at_a_path_and_leaves_nothing() {
        let _closed = crate::OPEN_FILES.read();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("made").join("s");
        let socket = Claim::take(&path).unwrap().listen(false).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let second = Claim::take(&path).unwrap_err().to_string();
        let process = format!("a daemon (process {}) already serves {}; ", std::process::id(), path.display());
        assert!(second.starts_with(&process), "{second}");
        drop(socket);
        assert!(left(path.parent().unwrap()).is_empty());
        let socket = Claim::take(&path).unwrap().listen(true).unwrap();
        assert_eq!(fs::metadata(socket.path()).unwrap().mode() & 0o777, MODE_OPEN);
    }

    #[test]
    fn what_a_dead_daemon_left_is_replaced() {
        let _closed = crate::OPEN_FILES.read();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        fs::write(lock_path(&path), "1\n").unwrap();
        let before = fs::symlink_metadata(&path).unwrap();
        let socket = Claim::take(&path).unwrap().listen(false).unwrap();
        assert!(before.file_type().is_socket() && path.exists());
        drop(socket);
        assert!(left(directory.path()).is_empty());
    }

    #[test]
    fn what_is_not_a_dead_daemons_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let alive = Claim::take(&path).unwrap_err().to_string();
        assert!(alive.starts_with("another program listens on "), "{alive}");
        drop(listener);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "text").unwrap();
        let file = Claim::take(&path).unwrap_err().to_string();
        assert!(file.contains(" is not a socket; "), "{file}");
        assert_eq!(left(directory.path()), ["s"]);
        let nowhere = Claim::take(&directory.path().join("a/b/s")).unwrap_err().to_string();
        assert!(nowhere.contains(" cannot be used ("), "{nowhere}");
    }

    #[test]
    fn a_socket_that_is_another_ones_by_now_is_not_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let socket = Claim::take(&path).unwrap().listen(false).unwrap();
        // Renamed, not removed: the file system must not reuse the inode number.
        fs::rename(&path, directory.path().join("away")).unwrap();
        let _other = UnixListener::bind(&path).unwrap();
        drop(socket);
        assert!(path.exists());
    }
}
