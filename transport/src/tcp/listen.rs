//! Incoming connections: listen, accept, read the caller's hello. The shard that serves the pair answers.

use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::authenticator::{Authenticator, Turned};
use super::dial::Progress;
use super::socket::{TcpLink, TcpSettings};
use crate::authentication::{Authentication, Certificate, Speaker};
use crate::endpoint_map::TransportAddress;
use crate::error::LinkError;
use crate::wire::{Greeting, Hello, RejectCode, VERSION_MAX, VERSION_MIN, WireError};

/// Length of the kernel's accept queue: room for a thousand workers that start at once.
const BACKLOG: i32 = 4096;

/// A non-blocking listening socket on `address`. Without SO_REUSEPORT, so that a port in use is an error; with
/// SO_REUSEADDR, so that a restart need not wait for old connections.
///
/// # Errors
/// The port is in use, or the address is not of this host.
pub fn listen(address: SocketAddr, settings: &TcpSettings) -> Result<Socket, LinkError> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))
        .map_err(|error| LinkError::io("socket", &error))?;
    socket.set_reuse_address(true).map_err(|error| LinkError::io("set SO_REUSEADDR", &error))?;
    settings.apply(&socket)?;
    if address.ip() == Ipv6Addr::UNSPECIFIED {
        // Both address families, whatever net.ipv6.bindv6only says.
        socket.set_only_v6(false).map_err(|error| LinkError::io("unset IPV6_V6ONLY", &error))?;
    }
    socket.bind(&SockAddr::from(address)).map_err(|error| LinkError::io("bind", &error))?;
    socket.listen(BACKLOG).map_err(|error| LinkError::io("listen", &error))?;
    Ok(socket)
}

/// An accepted socket whose hello is incomplete.
pub struct Answering {
    authenticator: Authenticator,
}

/// A caller whose hello is complete. It goes to the shard that serves the pair, which accepts or rejects it.
pub struct Call {
    authenticator: Authenticator,
    pub hello: Hello,
    /// The caller's certificate, if it presented one.
    pub certificate: Option<Certificate>,
}

/// A caller that failed the handshake.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// It disconnected, or is not a Sealane peer.
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("not authenticated: {0}")]
    Unauthenticated(String),
}

impl Answering {
    /// Takes over an accepted socket; its caller has called the transport address `here`.
    ///
    /// # Errors
    /// The system refuses an option.
    pub fn new(
        socket: Socket,
        here: &TransportAddress,
        settings: &TcpSettings,
        authentication: &Authentication,
    ) -> Result<Self, LinkError> {
        settings.apply(&socket)?;
        Self::over(socket, here, authentication)
    }

    /// As [`new`](Self::new), on a non-blocking socket that has its options set.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn over(socket: Socket, here: &TransportAddress, authentication: &Authentication) -> Result<Self, LinkError> {
        Ok(Self { authenticator: Authenticator::new(socket, (Speaker::Called, &here.to_string()), authentication)? })
    }

    /// What to wait for: readable.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.authenticator.stream.as_fd()
    }

    /// True while the next step needs a writable socket.
    pub fn wants_write(&self) -> bool {
        self.authenticator.wants_write()
    }

    /// Buffered bytes of an incomplete handshake.
    pub fn held_bytes(&self) -> usize {
        self.authenticator.input.len()
    }

    /// Reads as far as it can. A caller with another version, or one that does not authenticate itself, is told so before it is
    /// dropped.
    ///
    /// # Errors
    /// The caller closed, is not a Sealane peer, or has not authenticated itself.
    pub fn poll(mut self) -> Result<Progress<Answering, Call>, CallError> {
        match self.hear() {
            Ok(None) => Ok(Progress::Pending(self)),
            Ok(Some(hello)) => {
                let certificate = self.authenticator.stream.certificate();
                Ok(Progress::Done(Call { authenticator: self.authenticator, hello, certificate }))
            }
            Err(Turned::Unauthenticated(reason)) => {
                self.authenticator.reject(RejectCode::Unauthenticated, reason.clone());
                Err(CallError::Unauthenticated(reason))
            }
            Err(Turned::Link(error)) => {
                if let LinkError::Protocol(WireError::Version { .. }) = error {
                    let reason = format!("this side speaks wire versions {VERSION_MIN} to {VERSION_MAX}");
                    self.authenticator.reject(RejectCode::Version, reason);
                }
                match error {
                    LinkError::Protocol(WireError::Version { .. }) => Err(error.into()),
                    // It sent something other than the required proof.
                    LinkError::Protocol(error) if !self.authenticator.is_authenticated() => {
                        Err(CallError::Unauthenticated(error.to_string()))
                    }
                    error => Err(error.into()),
                }
            }
            Err(Turned::Rejected(_)) => {
                Err(LinkError::from(WireError::BadValue { what: "handshake message kind", found: 3 }).into())
            }
        }
    }

    /// The caller's hello; `None` if it is incomplete.
    fn hear(&mut self) -> Result<Option<Hello>, Turned> {
        if !self.authenticator.authenticate()? || !self.authenticator.flush()? {
            return Ok(None);
        }
        match self.authenticator.hear()? {
            None => Ok(None),
            Some(Greeting::Hello(hello)) => Ok(Some(hello)),
            Some(Greeting::Challenge(_)) => {
                let reason = "the caller wants a shared secret (security.secret_file), and the called side has none";
                Err(Turned::Unauthenticated(reason.into()))
            }
            Some(Greeting::Reject(reject)) => Err(Turned::Rejected(reject)),
            Some(other) => {
                let found = other.kind().into();
                Err(WireError::BadValue { what: "handshake message kind", found }.into())
            }
        }
    }
}

impl Call {
    /// The caller's socket, while it is still watched for the handshake.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.authenticator.stream.as_fd()
    }

    /// The link; the welcome must be the first bytes put into its outbox.
    pub fn accept(self) -> TcpLink {
        let Authenticator { stream, input, .. } = self.authenticator;
        TcpLink::over(stream, &input)
    }

    /// Answers a probe, and closes.
    pub fn describe(mut self, introduction: Hello) {
        self.authenticator.say(&Greeting::Welcome(introduction).to_bytes());
        if self.authenticator.flush().is_err() {
            tracing::debug!("a probe disconnected before it was answered");
        }
    }

    /// Welcomes a caller that wants the connection for streams. Returns the socket, on which nothing else was sent.
    ///
    /// # Errors
    /// The caller is gone, has sent more than allowed, or the connection is encrypted.
    pub fn hand_over(mut self, introduction: Hello) -> Result<Socket, LinkError> {
        self.authenticator.say(&Greeting::Welcome(introduction).to_bytes());
        match self.authenticator.flush() {
            Ok(true) => self.accept().into_socket(),
            Ok(false) | Err(_) => Err(LinkError::Closed),
        }
    }

    /// Rejects the caller, and closes.
    pub fn reject(mut self, code: RejectCode, reason: impl Into<String>) {
        self.authenticator.reject(code, reason);
    }
}
