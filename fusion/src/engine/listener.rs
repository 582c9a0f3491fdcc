//! One listening socket: accepts callers while there is room for them, and pauses when accepting fails.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use sealane_runtime::{Shard, WithRemedy};
use sealane_transport::tcp::TcpSettings;
use socket2::Socket;

use crate::limits::ACCEPT_PAUSE;

/// One listening socket. Its owner watches the socket as [`Listener::mind`] says.
pub(super) struct Listener {
    socket: Socket,
    /// The index of the transport address that it listens for.
    pub(super) via: u16,
    /// The socket is watched; it is not while there is no room for callers, or during a pause.
    watched: bool,
    pub(super) callers_wait: bool,
    /// The end of the pause after accepting failed.
    paused_until: Option<Instant>,
}

/// How to change a listener's watch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Watch {
    Begin,
    End,
}

impl Listener {
    pub(super) fn new(socket: TcpListener, via: u16, settings: &TcpSettings) -> Self {
        let socket = Socket::from(socket);
        if let Err(error) = settings.apply(&socket) {
            tracing::warn!(%error, "the listening socket keeps its own options");
        }
        Self { socket, via, watched: false, callers_wait: false, paused_until: None }
    }

    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.socket.local_addr().ok()?.as_socket()
    }

    /// The socket, with the index of its address; it is no longer watched.
    pub(super) fn into_socket(self, shard: &Shard) -> (u16, TcpListener) {
        if self.watched
            && let Err(error) = shard.unwatch(self.socket.as_fd())
        {
            tracing::error!(%error, "a listener cannot be unwatched");
        }
        (self.via, self.socket.into())
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether the watch of the socket must begin or end, given that there is room for callers or not.
    pub(super) fn mind(&mut self, now: Instant, has_room: bool) -> Option<Watch> {
        self.paused_until = self.paused_until.filter(|&until| until > now);
        let wanted = has_room && self.paused_until.is_none();
        if wanted == self.watched {
            return None;
        }
        self.watched = wanted;
        Some(if wanted { Watch::Begin } else { Watch::End })
    }

    /// The watch could not begin: it is retried after a pause.
    pub(super) fn watch_failed(&mut self, now: Instant) {
        self.watched = false;
        self.paused_until = Some(now + ACCEPT_PAUSE);
    }

    /// The next caller and its address, if one waits.
    pub(super) fn accept(&mut self, now: Instant) -> Option<(Socket, Option<SocketAddr>)> {
        if !self.callers_wait {
            return None;
        }
        match self.socket.accept() {
            Ok((socket, from)) => Some((socket, from.as_socket())),
            Err(error) => {
                self.callers_wait = false;
                // After these errors the listener itself reports whether more callers wait.
                let harmless = [ErrorKind::WouldBlock, ErrorKind::ConnectionAborted, ErrorKind::Interrupted];
                if !harmless.contains(&error.kind()) {
                    tracing::warn!(error = %WithRemedy(&error), retry_in = ?ACCEPT_PAUSE, "a caller cannot be accepted");
                    self.paused_until = Some(now + ACCEPT_PAUSE);
                }
                None
            }
        }
    }

    #[cfg(test)]
    pub(super) fn is_watched(&self) -> bool {
        self.watched
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.paused_until
    }
}
