//! Where things of a daemon lie when no setting says so. Looks at the environment and at directories; makes nothing.

use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};

use super::{Environment, SettingsError};

/// The daemon's socket in its directory.
const SOCKET_NAME: &str = "sealane.sock";

/// Where the socket is for processes without a session of a user; the daemon makes it.
const HOST_SOCKET_DIRECTORY: &str = "/run/sealane";

/// A directory that this user's daemons share and that a reboot empties.
pub(super) fn claim_directory(environment: &Environment, lock_directory: &Path) -> Result<PathBuf, SettingsError> {
    const NAME: &str = "sealane";
    if let Some(directory) = runtime_directory(environment)? {
        return Ok(directory.join(NAME));
    }
    let of_host = lock_directory.join(NAME);
    let writable = |path: &Path| access(path, AccessFlags::W_OK).is_ok();
    if writable(&of_host) || (!of_host.exists() && writable(lock_directory)) {
        return Ok(of_host);
    }
    let temporary = environment.get("TMPDIR")?.filter(|text| !text.is_empty());
    Ok(Path::new(temporary.unwrap_or("/tmp")).join(NAME))
}

/// In the directory of this user's session, else where a daemon of the whole host keeps it.
pub(super) fn socket(environment: &Environment) -> Result<PathBuf, SettingsError> {
    let directory = runtime_directory(environment)?.unwrap_or(Path::new(HOST_SOCKET_DIRECTORY));
    Ok(directory.join(SOCKET_NAME))
}

/// The directory of this user's session, if there is one.
fn runtime_directory(environment: &Environment) -> Result<Option<&Path>, SettingsError> {
    // A relative XDG_RUNTIME_DIR is to be ignored (XDG Base Directory Specification).
    let directory = environment.get("XDG_RUNTIME_DIR")?.map(Path::new);
    Ok(directory.filter(|directory| directory.is_absolute()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_lie_where_daemons_of_the_host_look() {
        let directory = tempfile::tempdir().unwrap();
        let lock = directory.path();
        let of = |variables: &[(&str, &str)], lock: &Path| {
            let environment = variables.iter().copied().collect();
            claim_directory(&environment, lock).unwrap()
        };
        assert_eq!(of(&[("XDG_RUNTIME_DIR", "/run/user/7")], lock), Path::new("/run/user/7/sealane"));
        for ignored in ["", "run/user/7"] {
            assert_eq!(of(&[("XDG_RUNTIME_DIR", ignored)], lock), lock.join("sealane"));
        }
        std::fs::create_dir(lock.join("sealane")).unwrap();
        assert_eq!(of(&[], lock), lock.join("sealane"));
        let none = lock.join("none");
        assert_eq!(of(&[("TMPDIR", "/var/tmp")], &none), Path::new("/var/tmp/sealane"));
        assert_eq!(of(&[("TMPDIR", "")], &none), Path::new("/tmp/sealane"));
    }

    #[test]
    fn the_socket_lies_in_the_users_session_or_in_the_hosts_directory() {
        let of = |variables: &[(&str, &str)]| socket(&variables.iter().copied().collect()).unwrap();
        assert_eq!(of(&[("XDG_RUNTIME_DIR", "/run/user/7")]), Path::new("/run/user/7/sealane.sock"));
        for ignored in ["", "run/user/7"] {
            assert_eq!(of(&[("XDG_RUNTIME_DIR", ignored)]), Path::new("/run/sealane/sealane.sock"));
        }
        assert_eq!(of(&[]), Path::new("/run/sealane/sealane.sock"));
    }
}
