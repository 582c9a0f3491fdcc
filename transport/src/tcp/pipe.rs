//! Connections on which two processes give each other bytes in a way of their own, without frames and sessions: those of groups. They
//! authenticate as links do; then the calling side says who it is, and the called side answers, in so many bytes. Non-blocking; whoever
//! owns them polls them.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use sealane_runtime::VolatileSlice;
use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};

use super::authenticator::{Authenticator, Turned};
use super::dial::{DialError, Progress};
use super::retransmission;
use super::socket::TcpSettings;
use super::stream::Stream;
use crate::authentication::{Authentication, Speaker};
use crate::error::LinkError;
use crate::wire::RejectCode;

/// Bytes of what each side says of itself.
pub const OPENING_BYTES: usize = 64;

/// An idle connection whose other host does not answer any more ends after some 25 seconds.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;

/// A connection whose two sides know who they are.
pub struct Pipe(Stream);

impl Pipe {
    /// Writes from the front of the parts, and says how many bytes; 0 if the connection takes none now. What it did not take must come
    /// first the next time.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn write(&mut self, parts: [&[u8]; 2]) -> Result<usize, LinkError> {
        let slices: [VolatileSlice<'_>; 2] = [parts[0].into(), parts[1].into()];
        let slices = if parts[0].is_empty() { &slices[1..] } else { &slices[..] };
        Ok(self.0.write(slices, false)?.unwrap_or(0))
    }

    /// True if bytes that [`write`](Self::write) did not take are under seal already: no others can come in their place.
    pub fn has_begun(&self) -> bool {
        match &self.0 {
            Stream::Plain(_) => false,
            Stream::Tls(stream) => stream.owes(),
        }
    }

    /// Nothing more is written: the other side sees the end of it, also where a forked child still has the connection.
    pub fn end(&mut self) {
        // What is on its way takes its time. Where either fails, the connection has ended.
        let _ = retransmission::release(self.0.socket());
        let _ = self.0.socket().shutdown(std::net::Shutdown::Write);
    }

    /// Reads what is there, and says how many bytes; 0 if there are none now.
    ///
    /// # Errors
    /// [`LinkError::Closed`] if none will come any more; the connection has ended otherwise.
    pub fn read(&mut self, into: &mut [u8]) -> Result<usize, LinkError> {
        Ok(self.0.read(&mut [into.into()])?.unwrap_or(0))
    }
}

impl AsFd for Pipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A connection to somebody who has not answered yet.
pub struct CallingPipe {
    authenticator: Authenticator,
    is_connected: bool,
    opening: Option<[u8; OPENING_BYTES]>,
    answer: Said,
}

/// A caller who has not said yet who it is.
pub struct CalledPipe {
    authenticator: Authenticator,
    opening: Said,
}

/// A caller who waits for an answer.
pub struct Caller(Stream);

impl CallingPipe {
    /// Begins to connect to `address`, to say `opening` there.
    ///
    /// # Errors
    /// The system refuses a socket, an option or the address at once.
    pub fn start(
        address: SocketAddr,
        opening: [u8; OPENING_BYTES],
        authentication: &Authentication,
    ) -> Result<Self, LinkError> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))
            .map_err(|error| LinkError::io("socket", &error))?;
        prepare(&socket)?;
        match socket.connect(&SockAddr::from(address)) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            Err(error) => return Err(LinkError::io("connect", &error)),
        }
        let authenticator = Authenticator::new(socket, (Speaker::Caller, ""), authentication)?;
        Ok(CallingPipe { authenticator, is_connected: false, opening: Some(opening), answer: Said::default() })
    }

    /// Goes on as far as it can. Done: the connection, and what the called side has answered.
    ///
    /// # Errors
    /// It is over; see [`DialError`].
    pub fn poll(mut self) -> Result<Progress<Self, (Pipe, [u8; OPENING_BYTES])>, DialError> {
        if !self.is_connected {
            let socket = self.authenticator.stream.socket();
            if let Some(error) = socket.take_error().map_err(|error| LinkError::io("connect", &error))? {
                return Err(LinkError::io("connect", &error).into());
            }
            if socket.peer_addr().is_err() {
                return Ok(Progress::Pending(self));
            }
            self.is_connected = true;
        }
        if !self.authenticator.authenticate()? {
            return Ok(Progress::Pending(self));
        }
        if let Some(opening) = self.opening.take() {
            self.authenticator.say(&opening);
        }
        if !self.authenticator.flush()? || !self.answer.hear(&mut self.authenticator)? {
            return Ok(Progress::Pending(self));
        }
        Ok(Progress::Done((Pipe(self.authenticator.stream), self.answer.bytes)))
    }

    /// True while the socket must become writable for the next step.
    pub fn wants_write(&self) -> bool {
        !self.is_connected || self.authenticator.wants_write()
    }
}

impl AsFd for CallingPipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.authenticator.stream.as_fd()
    }
}

impl CalledPipe {
    /// Takes over an accepted socket.
    ///
    /// # Errors
    /// The system refuses an option, or has no random numbers.
    pub fn new(socket: Socket, authentication: &Authentication) -> Result<Self, LinkError> {
        prepare(&socket)?;
        let authenticator = Authenticator::new(socket, (Speaker::Called, ""), authentication)?;
        Ok(CalledPipe { authenticator, opening: Said::default() })
    }

    /// Goes on as far as it can. Done: the caller, and what it has said. One that does not show what it must is told so.
    ///
    /// # Errors
    /// It is over; see [`DialError`].
    pub fn poll(mut self) -> Result<Progress<Self, (Caller, [u8; OPENING_BYTES])>, DialError> {
        match self.hear() {
            Ok(false) => Ok(Progress::Pending(self)),
            Ok(true) => Ok(Progress::Done((Caller(self.authenticator.stream), self.opening.bytes))),
            Err(Turned::Unauthenticated(reason)) => {
                self.authenticator.reject(RejectCode::Unauthenticated, reason.clone());
                Err(DialError::Unauthenticated(reason))
            }
            Err(turned) => Err(turned.into()),
        }
    }

    /// True once all is said.
    fn hear(&mut self) -> Result<bool, Turned> {
        Ok(self.authenticator.authenticate()?
            && self.authenticator.flush()?
            && self.opening.hear(&mut self.authenticator)?)
    }
}

impl AsFd for CalledPipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.authenticator.stream.as_fd()
    }
}

impl Caller {
    /// Answers it. A fresh connection has room for that.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn answer(self, answer: &[u8; OPENING_BYTES]) -> Result<Pipe, LinkError> {
        let mut pipe = Pipe(self.0);
        match pipe.write([answer, &[]])? {
            OPENING_BYTES => Ok(pipe),
            _ => Err(LinkError::io("write", &std::io::ErrorKind::WouldBlock.into())),
        }
    }
}

/// What the other side says, as far as it has come.
struct Said {
    bytes: [u8; OPENING_BYTES],
    len: usize,
}

impl Default for Said {
    fn default() -> Self {
        Said { bytes: [0; OPENING_BYTES], len: 0 }
    }
}

impl Said {
    /// True once all is there. What follows is not read.
    fn hear(&mut self, authenticator: &mut Authenticator) -> Result<bool, Turned> {
        // What came together with the last proof.
        let early = authenticator.input.len().min(OPENING_BYTES - self.len);
        self.bytes[self.len..][..early].copy_from_slice(&authenticator.input[..early]);
        authenticator.input.drain(..early);
        self.len += early;
        while self.len < OPENING_BYTES {
            let rest = &mut self.bytes[self.len..];
            let Some(count) = authenticator.stream.read(&mut [rest.into()])? else { return Ok(false) };
            self.len += count;
        }
        Ok(true)
    }
}

fn prepare(socket: &Socket) -> Result<(), LinkError> {
    TcpSettings::default().apply(socket)?;
    let keepalive =
        TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL).with_retries(KEEPALIVE_PROBES);
    socket.set_tcp_keepalive(&keepalive).map_err(|error| LinkError::io("set SO_KEEPALIVE", &error))
}
