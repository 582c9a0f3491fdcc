//! Where connections are accepted: a TCP address, or a socket in the file system, to which only processes with write permission can
//! connect.

use std::fmt;
use std::fs::{self, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use nix::sys::stat::{Mode, fchmod};
use tokio::net::{TcpListener, UnixListener, UnixSocket};

use crate::Failure;

/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// Prefix of the path of a socket.
const UNIX: &str = "unix:";

const MODE_BITS: u32 = 0o777;

/// As given on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix(UNIX) {
            Some("") => Err("the path of the socket is missing".to_owned()),
            Some(path) => Ok(Address::Unix(path.into())),
            None => text.parse().map(Address::Tcp).map_err(|_| "use IP:PORT or unix:PATH".to_owned()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(f),
            Address::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

/// Who may connect to a socket in the file system: 0600 means its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileMode(u32);

impl FileMode {
    pub(super) const OWNER: FileMode = FileMode(0o600);
}

impl FromStr for FileMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= MODE_BITS);
        mode.map(FileMode).ok_or_else(|| "use an octal number such as 0600 or 0660".to_owned())
    }
}

pub(super) enum Entrance {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Entrance {
    /// Listens at the address; also returns the actual address, since any port may have been asked for.
    ///
    /// # Errors
    /// The address is in use, or may not be used.
    pub(super) async fn open(address: Address, mode: FileMode, to: &str) -> Result<(Entrance, Address), Failure> {
        let what = format!("no connections to {to} can be taken");
        match address {
            Address::Tcp(address) => {
                let (listener, address) = listen(address, &what, "--listen").await?;
                Ok((Entrance::Tcp(listener), Address::Tcp(address)))
            }
            Address::Unix(path) => match bind(&path, mode) {
                Ok(listener) => Ok((Entrance::Unix(listener), Address::Unix(path))),
                Err(error) => {
                    let path = path.display();
                    Err(Failure::work(format!("{what} at {UNIX}{path} ({error}); choose another --listen")))
                }
            },
        }
    }
}

/// Until the mode is set, nobody else can connect.
fn bind(path: &Path, mode: FileMode) -> io::Result<UnixListener> {
    remove_left_over(path)?;
    let socket = UnixSocket::new_stream()?;
    // The file that bind creates gets the socket's mode.
    fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
    socket.bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(mode.0))?;
    socket.listen(BACKLOG)
}

/// Removes the socket of a forwarder that was killed, if nobody listens at it.
fn remove_left_over(path: &Path) -> io::Result<()> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    let is_refused = || UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
    if is_socket && is_refused() { fs::remove_file(path) } else { Ok(()) }
}

/// Listens at a TCP address; also returns the actual address, since any port may have been asked for.
pub(super) async fn listen(address: SocketAddr, what: &str, flag: &str) -> Result<(TcpListener, SocketAddr), Failure> {
    let bound = TcpListener::bind(address).await.and_then(|listener| {
        let address = listener.local_addr()?;
        Ok((listener, address))
    });
    let what_to_do = match address.port() {
        0 => "free some ports of this host, or name fewer tasks with --listen and --to".to_owned(),
        _ => format!("choose another {flag}"),
    };
    bound.map_err(|error| Failure::work(format!("{what} at {address} ({error}); {what_to_do}")))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener as Left;

    use super::*;

    fn mode_of(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & MODE_BITS
    }

    #[test]
    fn addresses_and_modes_are_read_as_they_are_written() {
        for text in ["127.0.0.1:80", "[::1]:0", "unix:/run/a.sock", "unix:a"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in ["", "unix:", "127.0.0.1", "/run/a.sock"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
        assert_eq!(["0660", "600"].map(|text| text.parse::<FileMode>().unwrap()), [FileMode(0o660), FileMode::OWNER]);
        for text in ["", "9", "rw", "1000", "-1"] {
            assert!(text.parse::<FileMode>().is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn a_socket_has_its_mode_and_takes_the_place_of_one_that_nobody_listens_at() {
        let _closed = crate::OPEN_FILES.read();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        drop(Left::bind(&path).unwrap());
        for mode in [FileMode::OWNER, FileMode(0o666)] {
            let listener = bind(&path, mode).unwrap();
            assert_eq!(mode_of(&path), mode.0);
            assert_eq!(bind(&path, mode).unwrap_err().kind(), io::ErrorKind::AddrInUse, "it is in use");
            drop(listener);
        }
        let file = directory.path().join("file");
        fs::write(&file, "kept").unwrap();
        assert!(bind(&file, FileMode::OWNER).is_err());
        assert_eq!(fs::read(&file).unwrap(), b"kept");
    }
}
