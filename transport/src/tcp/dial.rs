//! Calling a peer: connect, say hello, wait for the welcome. Never blocks; the shard polls it.

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::socket::{TcpLink, TcpSettings};
use crate::endpoint_map::{Host, TransportAddress};
use crate::error::LinkError;
use crate::wire::{Greeting, Hello, Reject, WireError};

/// Bytes read at once while greeting; what comes behind the welcome is handed to the link.
const READ_BYTES: usize = 16 * 1024;

/// A call under way.
pub struct Dial {
    socket: Socket,
    connected: bool,
    hello: Vec<u8>,
    written: usize,
    input: Vec<u8>,
}

/// How far a greeting is.
pub enum Progress<Pending, Done> {
    /// Poll again when the descriptor is ready.
    Pending(Pending),
    /// It is over.
    Done(Done),
}

/// A call that was answered with a welcome.
pub struct Dialed {
    /// The link, ready for frames.
    pub link: TcpLink,
    /// What the peer says of itself.
    pub welcome: Hello,
}

/// A call that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DialError {
    /// No connection, or not with a Sealane peer.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The peer said no.
    #[error("the peer refused: {}", .0.reason)]
    Rejected(Reject),
}

impl Dial {
    /// Begins to connect to `address`.
    ///
    /// # Errors
    /// The system refuses a socket, an option or the address at once.
    pub fn start(address: SocketAddr, hello: Hello, settings: &TcpSettings) -> Result<Dial, LinkError> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))
            .map_err(|error| LinkError::io("socket", &error))?;
        settings.apply(&socket)?;
        match socket.connect(&SockAddr::from(address)) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            Err(error) => return Err(LinkError::io("connect", &error)),
        }
        let hello = Greeting::Hello(hello).to_bytes();
        Ok(Dial { socket, connected: false, hello, written: 0, input: Vec::new() })
    }

    /// What to wait for: writable first, readable then; both may be waited for all the time.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// True while the socket must become writable for the next step.
    pub fn wants_write(&self) -> bool {
        self.written < self.hello.len()
    }

    /// Goes on as far as it can.
    ///
    /// # Errors
    /// See [`DialError`]; the dial is over.
    pub fn poll(mut self) -> Result<Progress<Dial, Dialed>, DialError> {
        if !self.connected {
            if let Some(error) = self.socket.take_error().map_err(|error| LinkError::io("connect", &error))? {
                return Err(LinkError::io("connect", &error).into());
            }
            match self.socket.peer_addr() {
                Ok(_) => self.connected = true,
                Err(_) => return Ok(Progress::Pending(self)),
            }
        }
        while self.written < self.hello.len() {
            match self.socket.send_with_flags(&self.hello[self.written..], libc::MSG_NOSIGNAL) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Progress::Pending(self)),
                Err(error) => return Err(LinkError::io("write", &error).into()),
            }
        }
        match read_greeting(&self.socket, &mut self.input)? {
            None => Ok(Progress::Pending(self)),
            Some((Greeting::Welcome(welcome), length)) => {
                let link = TcpLink::new(self.socket, &self.input[length..]);
                Ok(Progress::Done(Dialed { link, welcome }))
            }
            Some((Greeting::Reject(reject), _)) => Err(DialError::Rejected(reject)),
            Some((Greeting::Hello(_), _)) => {
                Err(LinkError::from(WireError::BadValue { what: "greeting kind", found: 1 }).into())
            }
        }
    }
}

/// Reads until a greeting is whole, the socket is empty, or the bytes are wrong.
pub(super) fn read_greeting(mut socket: &Socket, input: &mut Vec<u8>) -> Result<Option<(Greeting, usize)>, LinkError> {
    let mut bytes = [0; READ_BYTES];
    loop {
        match socket.read(&mut bytes) {
            Ok(0) => return Err(LinkError::Closed),
            Ok(count) => input.extend_from_slice(&bytes[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(LinkError::io("read", &error)),
        }
        if let Some(greeting) = Greeting::parse(input)? {
            return Ok(Some(greeting));
        }
    }
}

/// The socket addresses of a transport address. **Blocks** while a host name is looked up; a literal IP address does
/// not.
///
/// # Errors
/// The name is not known to the resolver.
pub fn resolve(address: &TransportAddress) -> Result<Vec<SocketAddr>, LinkError> {
    let name = match &address.host {
        Host::V4(ip) => return Ok(vec![(*ip, address.port).into()]),
        Host::V6(ip) => return Ok(vec![(*ip, address.port).into()]),
        Host::Name(name) => name,
    };
    let found: Vec<SocketAddr> = (&**name, address.port)
        .to_socket_addrs()
        .map_err(|error| LinkError::io("look up the host name", &error))?
        .collect();
    if found.is_empty() {
        let error = std::io::Error::new(ErrorKind::NotFound, "the name has no addresses");
        return Err(LinkError::io("look up the host name", &error));
    }
    Ok(found)
}
