//! Connections of groups, on which two processes exchange bytes in their own way, without frames and sessions. They
//! authenticate as links do; then the calling side says who it is, and the called side answers, each with a fixed number of
//! bytes. Non-blocking; their owner polls them.

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

/// Number of bytes in which each side says who it is.
pub const OPENING_BYTES: usize = 64;

/// An idle connection whose other host no longer answers ends after about 25 seconds.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;

/// A connection whose two sides know each other.
pub struct Pipe(Stream);

impl Pipe {
    /// Writes from the front of the parts, and returns the number of bytes; 0 if the connection accepts none now. The rest must
    /// come first in the next call.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn write(&mut self, parts: [&[u8]; 2]) -> Result<usize, LinkError> {
        let slices: [VolatileSlice<'_>; 2] = [parts[0].into(), parts[1].into()];
        let slices = if parts[0].is_empty() { &slices[1..] } else { &slices[..] };
        Ok(self.0.write(slices, false)?.unwrap_or(0))
    }

    /// True if bytes that [`write`](Self::write) did not accept are already sealed: no others may replace them.
    pub fn has_begun(&self) -> bool {
        match &self.0 {
            Stream::Plain(_) => false,
            Stream::Tls(stream) => stream.owes(),
        }
    }

    /// Ends writing: the other side sees the end of the stream, even if a forked child still has the connection.
    pub fn end(&mut self) {
        // What is on its way may take its time. If either call fails, the connection has ended.
        let _ = retransmission::release(self.0.socket());
        let _ = self.0.socket().shutdown(std::net::Shutdown::Write);
    }

    /// Reads what is there, and returns the number of bytes; 0 if there are none now.
    ///
    /// # Errors
    /// [`LinkError::Closed`] if no more will come; otherwise the connection has failed.
    pub fn read(&mut self, into: &mut [u8]) -> Result<usize, LinkError> {
        Ok(self.0.read(&mut [into.into()])?.unwrap_or(0))
    }
}

impl AsFd for Pipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A connection to a called side that has not answered yet.
pub struct CallingPipe {
    authenticator: Authenticator,
    is_connected: bool,
    opening: Option<[u8; OPENING_BYTES]>,
    answer: Said,
}

/// A caller that has not said yet who it is.
pub struct CalledPipe {
    authenticator: Authenticator,
    opening: Said,
}

/// A caller that waits for an answer.
pub struct Caller(Stream);

impl CallingPipe {
    /// Begins to connect to `address`, where it will send `opening`.
    ///
    /// # Errors
    /// The system immediately refuses a socket, an option or the address.
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

    /// Continues as far as it can. When done, returns the connection, and the called side's answer.
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

    /// True while the next step needs a writable socket.
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

    /// Continues as far as it can. When done, returns the caller and its opening. A caller that does not authenticate itself is
    /// told so.
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

    /// True once the caller's opening is complete.
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
    /// Answers the caller. A fresh connection has room for the answer.
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

/// The other side's opening, as far as it has come.
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
    /// True once it is complete. What follows is not read.
    fn hear(&mut self, authenticator: &mut Authenticator) -> Result<bool, Turned> {
        // Bytes that came together with the last proof.
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
