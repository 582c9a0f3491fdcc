//! Being called: listen, accept, read the caller's hello. The answer is given by the shard that owns the pair.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::dial::{Progress, read_greeting};
use super::socket::{TcpLink, TcpSettings};
use crate::error::LinkError;
use crate::wire::{Greeting, Hello, Reject, RejectCode, VERSION_MAX, VERSION_MIN, WireError};

/// Calls that the kernel keeps for us until we accept them: room for a thousand workers that start at once.
const BACKLOG: i32 = 4096;

/// A non-blocking listening socket on `address`. Without SO_REUSEPORT, so that a port in use is an error; with
/// SO_REUSEADDR, so that a restart need not wait for old connections.
///
/// # Errors
/// The port is in use, or the address is not this host's.
pub fn listen(address: SocketAddr, settings: &TcpSettings) -> Result<Socket, LinkError> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))
        .map_err(|error| LinkError::io("socket", &error))?;
    socket.set_reuse_address(true).map_err(|error| LinkError::io("set SO_REUSEADDR", &error))?;
    settings.apply(&socket)?;
    socket.bind(&SockAddr::from(address)).map_err(|error| LinkError::io("bind", &error))?;
    socket.listen(BACKLOG).map_err(|error| LinkError::io("listen", &error))?;
    Ok(socket)
}

/// An accepted socket whose caller has not said all of its hello.
pub struct Answering {
    socket: Socket,
    input: Vec<u8>,
}

/// A caller that has introduced itself. Goes to the shard that owns the pair, which accepts or rejects.
pub struct Call {
    socket: Socket,
    read_ahead: Vec<u8>,
    /// What the caller says of itself.
    pub hello: Hello,
}

/// A caller that could not introduce itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct CallError(#[from] pub LinkError);

impl Answering {
    /// Takes over an accepted socket.
    ///
    /// # Errors
    /// The system refuses an option.
    pub fn new(socket: Socket, settings: &TcpSettings) -> Result<Self, LinkError> {
        settings.apply(&socket)?;
        Ok(Self { socket, input: Vec::new() })
    }

    /// What to wait for: readable.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Reads on as far as it can. A caller of another version is told so before it is dropped.
    ///
    /// # Errors
    /// The caller closed, or is not a Sealane peer.
    pub fn poll(mut self) -> Result<Progress<Answering, Call>, CallError> {
        match read_greeting(&self.socket, &mut self.input) {
            Ok(None) => Ok(Progress::Pending(self)),
            Ok(Some((Greeting::Hello(hello), length))) => {
                Ok(Progress::Done(Call { socket: self.socket, read_ahead: self.input.split_off(length), hello }))
            }
            Ok(Some(_)) => Err(LinkError::from(WireError::BadValue { what: "greeting kind", found: 2 }).into()),
            Err(error) => {
                if let LinkError::Protocol(WireError::Version { .. }) = error {
                    let reason = format!("this side speaks wire versions {VERSION_MIN} to {VERSION_MAX}");
                    reject(&self.socket, Reject { code: RejectCode::Version, reason });
                }
                Err(error.into())
            }
        }
    }
}

impl Call {
    /// The caller's socket, while it is still watched for the greeting.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The link; the welcome must be the first bytes put into its outbox.
    pub fn accept(self) -> TcpLink {
        TcpLink::new(self.socket, &self.read_ahead)
    }

    /// Says no, and closes.
    pub fn reject(self, code: RejectCode, reason: impl Into<String>) {
        reject(&self.socket, Reject { code, reason: reason.into() });
    }
}

/// Writes a no, as far as the socket takes it at once: a fresh socket takes all of it.
pub fn reject(socket: &Socket, reject: Reject) {
    let bytes = Greeting::Reject(reject).to_bytes();
    if let Err(error) = socket.send_with_flags(&bytes, libc::MSG_NOSIGNAL) {
        tracing::debug!(%error, "a caller was gone before it was told no");
    }
}
