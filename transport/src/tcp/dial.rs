//! Dialing a peer: connect, send the hello, wait for the welcome. Never blocks; the shard polls it.

use std::io::ErrorKind;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::authenticator::{Authenticator, Turned};
use super::socket::{TcpLink, TcpSettings};
use crate::authentication::{Authentication, Certificate, Speaker};
use crate::endpoint_map::{Host, TransportAddress};
use crate::error::LinkError;
use crate::wire::{Greeting, Hello, Reject, WireError};

/// A connection attempt in progress.
pub struct Dial {
    authenticator: Authenticator,
    connected: bool,
    /// To be sent once the called side is authenticated.
    hello: Option<Vec<u8>>,
}

/// Progress of a handshake.
pub enum Progress<Pending, Done> {
    /// Poll again when the descriptor is ready.
    Pending(Pending),
    Done(Done),
}

/// An attempt that was welcomed.
pub struct Dialed {
    /// The link, ready for frames.
    pub link: TcpLink,
    pub welcome: Hello,
    /// The peer's certificate, if it presented one.
    pub certificate: Option<Certificate>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DialError {
    /// There is no connection, or the peer is not Sealane.
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("the peer refused: {}", .0.reason)]
    Rejected(Reject),
    #[error("not authenticated: {0}")]
    Unauthenticated(String),
}

impl From<Turned> for DialError {
    fn from(turned: Turned) -> Self {
        match turned {
            Turned::Link(error) => DialError::Link(error),
            Turned::Rejected(reject) => DialError::Rejected(reject),
            Turned::Unauthenticated(reason) => DialError::Unauthenticated(reason),
        }
    }
}

impl Dial {
    /// Begins to connect to `address`, one of the socket addresses of the transport address `peer`.
    ///
    /// # Errors
    /// The system immediately refuses a socket, an option or the address.
    pub fn start(
        address: SocketAddr,
        (peer, hello): (&TransportAddress, Hello),
        settings: &TcpSettings,
        authentication: &Authentication,
    ) -> Result<Dial, LinkError> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))
            .map_err(|error| LinkError::io("socket", &error))?;
        settings.apply(&socket)?;
        match socket.connect(&SockAddr::from(address)) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            Err(error) => return Err(LinkError::io("connect", &error)),
        }
        Self::over(socket, (peer, hello), authentication)
    }

    /// As [`start`](Self::start), on a non-blocking socket that has its options set and is connected or about to be.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn over(
        socket: Socket,
        (peer, hello): (&TransportAddress, Hello),
        authentication: &Authentication,
    ) -> Result<Dial, LinkError> {
        let authenticator = Authenticator::new(socket, (Speaker::Caller, &peer.to_string()), authentication)?;
        Ok(Dial { authenticator, connected: false, hello: Some(Greeting::Hello(hello).to_bytes()) })
    }

    /// What to wait for: first writable, then readable; it is fine to wait for both all the time.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.authenticator.stream.as_fd()
    }

    /// True once the system has established the connection.
    pub fn is_connected(&self) -> bool {
        self.connected
    }

    /// True while the next step needs a writable socket.
    pub fn wants_write(&self) -> bool {
        !self.connected || self.authenticator.wants_write()
    }

    /// **Blocks** until it can continue, at most for `left`.
    pub fn block(&self, left: Duration) {
        let writable = if self.wants_write() { PollFlags::POLLOUT } else { PollFlags::empty() };
        let mut polled = [PollFd::new(self.descriptor(), PollFlags::POLLIN | writable)];
        // Interrupted or not: the caller polls again.
        let _ = ppoll(&mut polled, Some(TimeSpec::from_duration(left)), None);
    }

    /// Blocks until it is over, at most until `until`.
    fn wait(mut self, until: Instant) -> Result<Dialed, DialError> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(LinkError::io("greet", &ErrorKind::TimedOut.into()).into());
            }
            self.block(left);
            match self.poll()? {
                Progress::Done(dialed) => return Ok(dialed),
                Progress::Pending(dial) => self = dial,
            }
        }
    }

    /// Continues as far as it can.
    ///
    /// # Errors
    /// See [`DialError`]; the dial is over.
    pub fn poll(mut self) -> Result<Progress<Dial, Dialed>, DialError> {
        if !self.connected {
            let socket = self.authenticator.stream.socket();
            if let Some(error) = socket.take_error().map_err(|error| LinkError::io("connect", &error))? {
                return Err(LinkError::io("connect", &error).into());
            }
            match socket.peer_addr() {
                Ok(_) => self.connected = true,
                Err(_) => return Ok(Progress::Pending(self)),
            }
        }
        if !self.authenticator.authenticate()? {
            return Ok(Progress::Pending(self));
        }
        if let Some(hello) = self.hello.take() {
            self.authenticator.say(&hello);
        }
        if !self.authenticator.flush()? {
            return Ok(Progress::Pending(self));
        }
        match self.authenticator.hear()? {
            None => Ok(Progress::Pending(self)),
            Some(Greeting::Welcome(welcome)) => {
                let Authenticator { stream, input, .. } = self.authenticator;
                let certificate = stream.certificate();
                Ok(Progress::Done(Dialed { link: TcpLink::over(stream, &input), welcome, certificate }))
            }
            Some(Greeting::Reject(reject)) => Err(DialError::Rejected(reject)),
            Some(other) => {
                let found = other.kind().into();
                Err(LinkError::from(WireError::BadValue { what: "handshake message kind", found }).into())
            }
        }
    }
}

/// Calls the addresses of `peer` in turn until one answers, each with a time limit. **Blocks**, also while a host name is
/// looked up.
///
/// # Errors
/// The error of the last address, or of the first that refused.
pub fn call(
    (peer, hello): (&TransportAddress, &Hello),
    settings: &TcpSettings,
    authentication: &Authentication,
    patience: Duration,
) -> Result<Dialed, DialError> {
    let mut failed = LinkError::Closed;
    for address in resolve(peer)? {
        let dial = Dial::start(address, (peer, hello.clone()), settings, authentication);
        match dial.map_err(DialError::from).and_then(|dial| dial.wait(Instant::now() + patience)) {
            // Another address of the same peer may be the right one.
            Err(DialError::Link(error @ (LinkError::Io { .. } | LinkError::Closed))) => failed = error,
            answer => return answer,
        }
    }
    Err(failed.into())
}

/// The socket addresses of a transport address. **Blocks** while a host name is looked up, not for a literal IP address.
///
/// # Errors
/// The resolver does not know the name.
pub fn resolve(address: &TransportAddress) -> Result<Vec<SocketAddr>, LinkError> {
    let name = match &address.host {
        Host::V4(ip) => return Ok(vec![(*ip, address.port).into()]),
        Host::V6(ip) => return Ok(vec![(*ip, address.port).into()]),
        Host::Name(name) => name,
    };
    let found: Vec<SocketAddr> = (&**name, address.port)
        .to_socket_addrs()
        .map_err(|error| LinkError::io("resolve the host name", &error))?
        .collect();
    if found.is_empty() {
        let error = std::io::Error::new(ErrorKind::NotFound, "the name has no addresses");
        return Err(LinkError::io("resolve the host name", &error));
    }
    Ok(found)
}
