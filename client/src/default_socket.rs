//! The socket at which a daemon and its clients meet if no setting names one. Daemons and clients of all languages use this module.
//!
//! Limits: at most four places are checked.

use std::{
    fmt, fs, io,
    os::unix::{
        fs::{MetadataExt, PermissionsExt},
        net::UnixStream,
    },
    path::{Path, PathBuf},
};

use nix::{
    fcntl::{AT_FDCWD, AtFlags},
    unistd::{AccessFlags, faccessat, geteuid},
};

const FILE_NAME: &str = "sealane.sock";

/// The directory of a daemon that serves all users of a host.
const HOST_DIRECTORY: &str = "/run/sealane";

/// The only mode of the directory of a user in `/tmp`.
pub const USER_DIRECTORY_MODE: u32 = 0o700;

/// The user that may use the host's directory in any case.
const ROOT: u32 = 0;

/// Where a daemon of this user listens by default: `sealane.sock` in `runtime_directory`, the value of `XDG_RUNTIME_DIR`; if that is
/// unset or relative, in `/run/sealane` if this user is root or may write there; otherwise in `/tmp/sealane-UID`, which only the
/// user may enter.
pub fn daemon_socket(runtime_directory: Option<&Path>) -> PathBuf {
    Place::here(runtime_directory).sockets().swap_remove(0)
}

/// Where a client attaches by default: at the [default socket of a daemon](daemon_socket) that is started with the same environment. If
/// no program listens there, at that of a daemon of this user that was started with `XDG_RUNTIME_DIR` unset, or set as in a login
/// session, or at that of the host's daemon in `/run/sealane`.
///
/// The crate reads nothing else from the environment but `SEALANE_JOB`: see [`Attach::job`](crate::Attach::job).
///
/// # Errors
/// No program listens at any of these.
pub fn default_socket() -> Result<PathBuf, Vec<PathBuf>> {
    first_served(default_sockets())
}

/// The places of [`default_socket`], in the order of the search.
pub(crate) fn default_sockets() -> Vec<PathBuf> {
    let session = std::env::var_os("XDG_RUNTIME_DIR");
    Place::here(session.as_deref().map(Path::new)).sockets()
}

/// The first socket at which a program listens.
pub(crate) fn first_served(sockets: Vec<PathBuf>) -> Result<PathBuf, Vec<PathBuf>> {
    // A daemon refuses a stream socket, since it listens for another kind, and does not notice this.
    let is_served = |path: &PathBuf| {
        let refused = UnixStream::connect(path).map_err(|error| error.kind());
        let is_absent = matches!(refused, Err(io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused));
        !is_absent && check_directory(path).is_ok()
    };
    match sockets.iter().position(is_served) {
        Some(found) => Ok(sockets.into_iter().nth(found).expect("just found")),
        None => Err(sockets),
    }
}

/// True if the socket lies in the directory that this user has in `/tmp`.
pub fn is_in_user_directory(socket: &Path) -> bool {
    socket.parent() == Some(&*user_directory(geteuid().as_raw()))
}

/// Checks that the directory of a socket belongs to this user alone, if it is the one in `/tmp`, where any user could have made it.
///
/// # Errors
/// The owner and mode of the directory, if another user may use it, or the reason why it cannot be checked.
pub fn check_directory(socket: &Path) -> Result<(), String> {
    let Some(directory) = socket.parent().filter(|_| is_in_user_directory(socket)) else { return Ok(()) };
    check_owner(directory, geteuid().as_raw())
}

fn check_owner(directory: &Path, uid: u32) -> Result<(), String> {
    let shown = directory.display();
    let found = fs::symlink_metadata(directory).map_err(|error| format!("{shown} cannot be checked ({error})"))?;
    let (owner, mode) = (found.uid(), found.permissions().mode() & 0o7777);
    if found.is_dir() && owner == uid && mode == USER_DIRECTORY_MODE {
        return Ok(());
    }
    let kind = if found.is_dir() { "a directory" } else { "no directory" };
    Err(format!(
        "{shown} is {kind}, of user id {owner} and mode {mode:o}, but must be a directory of user id {uid} and mode \
         {USER_DIRECTORY_MODE:o}: remove it, or set XDG_RUNTIME_DIR"
    ))
}

/// The error of a process that may not connect to a socket.
pub fn foreign_socket(socket: impl fmt::Display) -> String {
    let uid = geteuid();
    format!(
        "the socket {socket} belongs to another user: run as the daemon's user, or add user id {uid} to daemon.allowed_uids there"
    )
}

/// What the default depends on.
struct Place {
    runtime_directory: Option<PathBuf>,
    uid: u32,
    has_host_directory: bool,
}

impl Place {
    fn here(runtime_directory: Option<&Path>) -> Place {
        let uid = geteuid().as_raw();
        let may_write = || {
            let access = AccessFlags::W_OK | AccessFlags::X_OK;
            faccessat(AT_FDCWD, HOST_DIRECTORY, access, AtFlags::AT_EACCESS).is_ok()
        };
        // The XDG Base Directory Specification has relative ones ignored.
        let runtime_directory = runtime_directory.filter(|directory| directory.is_absolute()).map(Path::to_owned);
        Place { runtime_directory, uid, has_host_directory: uid == ROOT || may_write() }
    }

    /// Where a daemon may listen: first by the environment of this process.
    fn sockets(self) -> Vec<PathBuf> {
        let Place { runtime_directory, uid, has_host_directory } = self;
        let (host, user) = (PathBuf::from(HOST_DIRECTORY), user_directory(uid));
        let outside = if has_host_directory { host.clone() } else { user.clone() };
        let mut directories = match runtime_directory {
            Some(session) => vec![session, outside],
            None => vec![outside, Path::new("/run/user").join(uid.to_string())],
        };
        // Root has no use for one of its own in /tmp.
        directories.extend([host].into_iter().chain((uid != ROOT).then_some(user)));
        let mut sockets: Vec<PathBuf> = Vec::new();
        for socket in directories.into_iter().map(|directory| directory.join(FILE_NAME)) {
            if !sockets.contains(&socket) {
                sockets.push(socket);
            }
        }
        sockets
    }
}

fn user_directory(uid: u32) -> PathBuf {
    format!("/tmp/sealane-{uid}").into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use sealane_transport::shm::attach::listen;

    use super::*;

    fn sockets(runtime_directory: Option<&str>, uid: u32, has_host_directory: bool) -> Vec<PathBuf> {
        Place { runtime_directory: runtime_directory.map(PathBuf::from), uid, has_host_directory }.sockets()
    }

    #[test]
    fn daemon_and_client_have_the_same_default() {
        let [session, login, host, user] = ["/s", "/run/user/7", "/run/sealane", "/tmp/sealane-7"]
            .map(|directory| Path::new(directory).join(FILE_NAME));
        assert_eq!(sockets(Some("/s"), 7, false), [&session, &user, &host].map(PathBuf::clone));
        assert_eq!(sockets(None, 7, false), [&user, &login, &host].map(PathBuf::clone));
        assert_eq!(sockets(Some("/s"), 7, true), [&session, &host, &user].map(PathBuf::clone));
        assert_eq!(sockets(None, 7, true), [&host, &login, &user].map(PathBuf::clone));
        assert_eq!(sockets(Some("/s"), ROOT, true), [&session, &host].map(PathBuf::clone));
        assert_eq!(sockets(None, ROOT, true), [host.clone(), "/run/user/0/sealane.sock".into()]);
        assert_eq!(daemon_socket(Some(Path::new("/s"))), session);
        for ignored in [Some(""), Some("run/user/7"), None] {
            assert_eq!(daemon_socket(ignored.map(Path::new)), Place::here(None).sockets()[0]);
        }
    }

    #[test]
    fn first_socket_with_a_daemon_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let all: Vec<PathBuf> = ["one", "other", "third"].map(|name| directory.path().join(name)).into();
        let found = || first_served(all.clone());
        assert_eq!(found(), Err(all.clone()));
        // The socket of a daemon that was killed.
        drop(listen(&all[0]).unwrap());
        assert!(all[0].exists());
        assert_eq!(found(), Err(all.clone()));
        let _third = listen(&all[2]).unwrap();
        assert_eq!(found(), Ok(all[2].clone()));
        let other = listen(&all[1]).unwrap();
        assert_eq!(found(), Ok(all[1].clone()));
        drop(other);
        std::fs::remove_file(&all[0]).unwrap();
        let _one = listen(&all[0]).unwrap();
        assert_eq!(found(), Ok(all[0].clone()));
    }

    #[test]
    fn user_directory_is_the_users_alone() {
        let parent = tempfile::tempdir().unwrap();
        let uid = geteuid().as_raw();
        let path = parent.path().join("d");
        let refused = |uid| check_owner(&path, uid).unwrap_err();
        assert!(refused(uid).contains("cannot be checked"), "{}", refused(uid));
        fs::create_dir(&path).unwrap();
        let set_mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        for mode in [0o755, 0o770, 0o1700] {
            set_mode(mode);
            assert!(refused(uid).contains(&format!("of user id {uid} and mode {mode:o}, but must be")), "{mode:o}");
        }
        set_mode(USER_DIRECTORY_MODE);
        check_owner(&path, uid).unwrap();
        assert!(
            refused(uid + 1).contains(&format!("must be a directory of user id {}", uid + 1)),
            "{}",
            refused(uid + 1)
        );
        let link = parent.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(check_owner(&link, uid).unwrap_err().contains("is no directory"));
    }
}
