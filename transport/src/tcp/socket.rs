//! One connected socket as a link.
//!
//! Frames are read through a small staging buffer, one per thread. Once a payload's header was seen, its bytes are read by
//! `readv` straight into their destination, with the staging buffer behind it for whatever follows.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use sealane_runtime::VolatileSlice;
use socket2::{SockRef, Socket};

use super::info::TcpState;
use super::retransmission;
use super::staging::{self, BATCH_BYTES, STAGING_BYTES};
use super::stream::Stream;
use crate::error::LinkError;
use crate::link::{Landing, Link, LinkKind, Receiver};
use crate::outbox::Outbox;
use crate::spares;
use crate::wire::WireError;

/// The largest TCP_USER_TIMEOUT that the kernel accepts: three weeks.
const USER_TIMEOUT_MAX: Duration = Duration::from_millis(i32::MAX as u64);
/// Vectors in one write.
const VECTORS: usize = 32;

/// Options of every Sealane socket, besides TCP_NODELAY and the bound on retransmission timeouts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TcpSettings {
    /// Congestion control by its name in the kernel; empty (the default) leaves the kernel's.
    pub congestion: String,
    /// SO_SNDBUF in bytes; 0 (the default) leaves the kernel's autotuning.
    pub send_buffer_bytes: usize,
    /// SO_RCVBUF in bytes; 0 (the default) leaves the kernel's autotuning.
    pub receive_buffer_bytes: usize,
    /// TCP_USER_TIMEOUT: the kernel ends a connection on which what was sent has not been acknowledged for this long. Zero (the
    /// default) leaves the kernel's, some 15 minutes. The engine sets `transport.peer_timeout_ms`.
    pub user_timeout: Duration,
}

impl TcpSettings {
    /// Applies the settings to a socket, before it connects or once it is accepted.
    ///
    /// # Errors
    /// The option that the kernel refused, for example a congestion control that is not loaded.
    pub fn apply(&self, socket: &Socket) -> Result<(), LinkError> {
        socket.set_nonblocking(true).map_err(|error| LinkError::io("set O_NONBLOCK", &error))?;
        socket.set_tcp_nodelay(true).map_err(|error| LinkError::io("set TCP_NODELAY", &error))?;
        retransmission::bound(socket).map_err(|error| LinkError::io("set TCP_RTO_MAX_MS", &error))?;
        if !self.congestion.is_empty() {
            socket
                .set_tcp_congestion(self.congestion.as_bytes())
                .map_err(|error| LinkError::io("set TCP_CONGESTION (transport.tcp.congestion)", &error))?;
        }
        if self.send_buffer_bytes > 0 {
            socket
                .set_send_buffer_size(self.send_buffer_bytes)
                .map_err(|error| LinkError::io("set SO_SNDBUF (transport.tcp.send_buffer_bytes)", &error))?;
        }
        if self.receive_buffer_bytes > 0 {
            socket
                .set_recv_buffer_size(self.receive_buffer_bytes)
                .map_err(|error| LinkError::io("set SO_RCVBUF (transport.tcp.receive_buffer_bytes)", &error))?;
        }
        if !self.user_timeout.is_zero() {
            socket
                .set_tcp_user_timeout(Some(self.user_timeout.min(USER_TIMEOUT_MAX)))
                .map_err(|error| LinkError::io("set TCP_USER_TIMEOUT (transport.peer_timeout_ms)", &error))?;
        }
        Ok(())
    }
}

/// The name of the congestion control that a socket uses, as in the kernel.
pub fn congestion_of(socket: &impl AsFd) -> String {
    let name = SockRef::from(socket).tcp_congestion().unwrap_or_default();
    String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned()
}

/// A connected socket after its handshake.
pub struct TcpLink {
    stream: Stream,
    /// Bytes that were read and not consumed: part of a frame; usually empty and without an allocation.
    rest: Vec<u8>,
    landing: Option<Landing>,
    /// The last write announced more data: the kernel may hold its bytes back.
    held_back: bool,
}

impl TcpLink {
    /// Takes over a non-blocking connected socket; `read_ahead` holds bytes read beyond the handshake.
    ///
    /// # Panics
    /// If `read_ahead` is larger than the staging buffer; the handshake reads no further.
    pub fn new(socket: Socket, read_ahead: &[u8]) -> Self {
        Self::over(Stream::Plain(socket), read_ahead)
    }

    /// As [`new`](Self::new), for a connection that may be TLS.
    pub(super) fn over(stream: Stream, read_ahead: &[u8]) -> Self {
        assert!(read_ahead.len() < STAGING_BYTES, "the handshake has read {} bytes ahead", read_ahead.len());
        Self { stream, rest: read_ahead.to_vec(), landing: None, held_back: false }
    }

    pub fn is_encrypted(&self) -> bool {
        matches!(self.stream, Stream::Tls(_))
    }

    /// Returns the plain socket for another use, once nothing more will come on the link.
    ///
    /// # Errors
    /// Something has come that nobody consumed.
    pub fn into_socket(self) -> Result<Socket, LinkError> {
        if !self.rest.is_empty() || self.landing.is_some() {
            let found = self.rest.first().copied().unwrap_or_default().into();
            return Err(WireError::BadValue { what: "byte after the last message on TCP", found }.into());
        }
        self.stream.into_socket()
    }

    /// Passes earlier bytes to the receiver: a handshake, or the previous receiver, may have left whole frames. Returns the
    /// number of bytes consumed.
    #[inline]
    fn parse_rest(&mut self, receiver: &mut dyn Receiver) -> Result<usize, LinkError> {
        if self.rest.is_empty() {
            return Ok(0);
        }
        let frames = receiver.frames(&self.rest)?;
        self.landing = frames.landing;
        self.rest.drain(..frames.consumed);
        if self.rest.is_empty() {
            spares::give_back(&mut self.rest);
        }
        Ok(frames.consumed)
    }

    /// Passes these bytes to the receiver, and keeps those that it does not consume.
    #[inline]
    fn parse(&mut self, bytes: &[u8], receiver: &mut dyn Receiver) -> Result<(), LinkError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let frames = receiver.frames(bytes)?;
        self.landing = frames.landing;
        let rest = &bytes[frames.consumed..];
        if !rest.is_empty() {
            if self.rest.capacity() == 0 {
                self.rest = spares::take();
            }
            self.rest.clear();
            self.rest.extend_from_slice(rest);
        } else if self.rest.capacity() > 0 {
            spares::give_back(&mut self.rest);
        }
        Ok(())
    }

    /// Reads one batch of frames; returns the number of bytes read.
    #[inline]
    fn read_frames(&mut self, staging: &mut [u8], receiver: &mut dyn Receiver) -> Result<usize, LinkError> {
        let kept = self.rest.len();
        let room = (staging.len() - kept).min(BATCH_BYTES);
        let Some(count) = self.stream.read(&mut [(&mut staging[kept..kept + room]).into()])? else { return Ok(0) };
        staging[..kept].copy_from_slice(&self.rest);
        self.parse(&staging[..kept + count], receiver)?;
        Ok(count)
    }

    /// Reads once into the landing; returns the number of bytes read, and whether the socket may hold more.
    fn read_landing(
        &mut self,
        mut landing: Landing,
        staging: &mut [u8],
        receiver: &mut dyn Receiver,
    ) -> Result<(usize, bool), LinkError> {
        debug_assert!(self.rest.is_empty(), "a landing has taken all that was there");
        let missing = landing.missing();
        let result = match landing.target() {
            Some(target) => self.stream.read(&mut [target, (&mut *staging).into()]),
            None => {
                let room = missing.min(staging.len());
                self.stream.read(&mut [(&mut staging[..room]).into()])
            }
        };
        let count = match result {
            Ok(count) => count,
            Err(error) => {
                self.landing = Some(landing);
                return Err(error);
            }
        };
        let Some(count) = count else {
            self.landing = Some(landing);
            return Ok((0, false));
        };
        landing.advance(count.min(missing));
        if !landing.is_complete() {
            self.landing = Some(landing);
            return Ok((count, true));
        }
        receiver.landed(landing);
        self.parse(&staging[..count.saturating_sub(missing)], receiver)?;
        Ok((count, true))
    }

    /// [`Link::receive`], through the buffer of this thread.
    #[inline]
    fn receive_through(
        &mut self,
        staging: &mut [u8],
        receiver: &mut dyn Receiver,
        budget: usize,
    ) -> Result<usize, LinkError> {
        let mut total = 0;
        // Payloads up to the budget, but only one batch of frames.
        if self.landing.is_none() {
            total += self.parse_rest(receiver)?;
        }
        if self.landing.is_none() {
            total += self.read_frames(staging, receiver)?;
        }
        while total < budget
            && let Some(landing) = self.landing.take()
        {
            let (count, more) = self.read_landing(landing, staging, receiver)?;
            total += count;
            if !more {
                break;
            }
        }
        Ok(total)
    }
}

impl Link for TcpLink {
    fn kind(&self) -> LinkKind {
        LinkKind::TCP
    }

    fn tcp_state(&self) -> Option<TcpState> {
        TcpState::of(self.stream.socket()).ok()
    }

    fn transmit(&mut self, outbox: &mut Outbox, budget: usize, more_follows: bool) -> Result<usize, LinkError> {
        if outbox.is_empty() && self.held_back && !more_follows {
            // Nothing followed after all.
            self.stream.push_out()?;
            self.held_back = false;
        }
        let mut total = 0;
        while !outbox.is_empty() && total < budget {
            let mut slices = [VolatileSlice::empty(); VECTORS];
            let count = outbox.gather_within(&mut slices, budget - total);
            let Some(written) = self.stream.write(&slices[..count], more_follows)? else { break };
            outbox.advance(written);
            total += written;
            self.held_back = more_follows;
        }
        Ok(total)
    }

    fn receive(&mut self, receiver: &mut dyn Receiver, budget: usize) -> Result<usize, LinkError> {
        staging::with(|staging| self.receive_through(staging, receiver, budget))
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.stream.as_fd())
    }

    fn abandon(&mut self, _outbox: &mut Outbox) -> Vec<Landing> {
        self.landing.take().into_iter().collect()
    }
}
