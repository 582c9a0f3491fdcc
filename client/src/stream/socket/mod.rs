//! A stream over a TCP socket of its own: what two tasks of two hosts have once the daemons have made the connection and given each task
//! its end (`hub/sockets.rs`). The kernel's buffers are the window, and its acknowledgements say what a broken connection may have lost;
//! until then sent bytes are kept ([`kept`]), to be sent another way. Each direction has a writer at one end and a reader at the other;
//! each under its own lock, without the hub's.

mod kept;
mod poller;

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    task::Waker,
};

pub(super) use self::poller::Poller;
use self::{
    kept::Kept,
    poller::{For, Watched},
};
use crate::{
    attachment::Streamed,
    limits::{SOCKET_ASK_BYTES, SOCKET_BUFFER_BYTES_MAX, SOCKET_BYTES_AT_ONCE, SOCKET_PIECE_BYTES, SOCKET_SLACK_BYTES},
};

/// A connection of one stream.
pub(super) struct Connected {
    number: u64,
    watched: Arc<Watched>,
    /// Counts what goes over it, for the daemon.
    streamed: Arc<Streamed>,
}

impl Connected {
    /// Takes over the socket that the daemon has given for a number; `at_break` is woken when the connection is gone. Bytes over it are
    /// counted in `streamed`.
    ///
    /// # Errors
    /// It is not a connected socket, or the system has no room for it.
    pub(super) fn new(
        number: u64,
        socket: OwnedFd,
        at_break: Waker,
        poller: &Poller,
        streamed: Arc<Streamed>,
    ) -> io::Result<Arc<Connected>> {
        let watched = Watched::add(socket, at_break, poller)?;
        watched.socket().limit_send_buffer(SOCKET_BUFFER_BYTES_MAX)?;
        Ok(Arc::new(Connected { number, watched, streamed }))
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// True if the other host's kernel does not have everything that was sent, but may still get it.
    pub(super) fn has_unsent(&self) -> bool {
        let socket = self.watched.socket();
        socket.unacknowledged().is_ok_and(|count| count > 0) && !socket.is_closed()
    }

    /// True if the connection is gone, and the other host's kernel may not have everything that was sent or was to be.
    fn is_cut(&self, is_finished: bool) -> bool {
        let socket = self.watched.socket();
        socket.is_closed() && !(is_finished && socket.unacknowledged().is_ok_and(|count| count == 0))
    }

    /// Breaks the connection, to test the recovery.
    #[cfg(feature = "fuzzing")]
    pub(super) fn break_off(&self) {
        self.watched.socket().break_off();
    }
}

impl AsFd for Connected {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watched.socket().as_fd()
    }
}

/// The writing end.
pub(super) struct SocketWriter {
    connected: Arc<Connected>,
    written: u64,
    kept: Kept,
    is_broken: bool,
    /// It is broken, and the other end was asked what it has.
    is_told: bool,
}

impl SocketWriter {
    pub(super) fn new(connected: Arc<Connected>) -> SocketWriter {
        let buffer = connected.watched.socket().send_buffer_bytes().unwrap_or(SOCKET_BUFFER_BYTES_MAX);
        SocketWriter {
            connected,
            written: 0,
            kept: Kept::new(buffer + SOCKET_SLACK_BYTES),
            is_broken: false,
            is_told: false,
        }
    }

    pub(super) fn connected(&self) -> &Arc<Connected> {
        &self.connected
    }

    /// Bytes that were written.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// It takes nothing any more: what it took and the other end does not have is to be sent another way.
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Stops writing to a connection that is gone, unless everything was sent and has arrived.
    pub(super) fn give_up_if_cut(&mut self, is_finished: bool) {
        self.is_broken |= self.connected.is_cut(is_finished);
    }

    /// Its number, once, when it is broken and the other end is to be asked what it has.
    pub(super) fn take_break(&mut self) -> Option<u64> {
        let is_news = self.is_broken && !std::mem::replace(&mut self.is_told, self.is_broken);
        is_news.then(|| self.connected.number())
    }

    /// Writes as many bytes as the kernel has room for; returns how many. Bytes that the other host's kernel already has are not copied.
    pub(super) fn write(&mut self, bytes: &[u8]) -> usize {
        let mut taken = 0;
        while taken < bytes.len().min(SOCKET_BYTES_AT_ONCE) && !self.is_broken {
            let piece = &bytes[taken..bytes.len().min(taken + SOCKET_PIECE_BYTES)];
            if self.kept.room() < piece.len() {
                self.let_go_of_acknowledged();
            }
            let piece = &piece[..piece.len().min(self.kept.room())];
            let sent = match self.connected.watched.socket().send(piece) {
                Ok(sent) => sent.unwrap_or(0),
                Err(_) => {
                    self.is_broken = true;
                    0
                }
            };
            self.kept.note(sent);
            taken += sent;
            if sent < piece.len() || sent == 0 {
                break;
            }
        }
        if taken >= SOCKET_ASK_BYTES {
            self.let_go_of_acknowledged();
        }
        self.kept.keep(&bytes[..taken]);
        self.written += taken as u64;
        self.connected.streamed.add_sent(taken as u64);
        taken
    }

    fn let_go_of_acknowledged(&mut self) {
        match self.connected.watched.socket().unacknowledged() {
            Ok(count) => self.kept.keep_last(count),
            Err(_) => self.is_broken = true,
        }
    }

    /// Has the waker woken when there may be room.
    pub(super) fn wait(&self, waker: &Waker) {
        self.connected.watched.wait(For::Room, waker);
    }

    /// Ends writing: the other end hears it once everything has come.
    pub(super) fn finish(&self) {
        self.connected.watched.socket().finish();
    }

    /// The bytes written behind the first so many; `None` if they are not kept any more, or were not written.
    pub(super) fn behind(&self, first: u64) -> Option<Vec<u8>> {
        self.kept.behind(first)
    }
}

/// The reading end.
pub(super) struct SocketReader {
    connected: Arc<Connected>,
    read: u64,
    /// The other end sends nothing more over it; `is_broken` if that is because it broke.
    is_at_end: bool,
    is_broken: bool,
}

/// The outcome of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Came {
    Bytes(usize),
    Nothing,
    /// Nothing more comes: the other end has finished, or the connection is broken.
    End,
    Broken,
}

impl Came {
    pub(super) fn bytes(self) -> usize {
        match self {
            Came::Bytes(count) => count,
            Came::Nothing | Came::End | Came::Broken => 0,
        }
    }
}

impl SocketReader {
    pub(super) fn new(connected: Arc<Connected>) -> SocketReader {
        SocketReader { connected, read: 0, is_at_end: false, is_broken: false }
    }

    pub(super) fn connected(&self) -> &Arc<Connected> {
        &self.connected
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.is_at_end
    }

    /// Nothing more arrives: the other end has finished, or the connection is broken.
    pub(super) fn is_over(&self) -> bool {
        self.is_at_end || self.connected.watched.has_end()
    }

    /// Bytes that were read.
    pub(super) fn read_bytes(&self) -> u64 {
        self.read
    }

    /// Bytes received and not read: they can be read whatever becomes of the connection.
    pub(super) fn unread(&self) -> u64 {
        self.connected.watched.socket().unread().unwrap_or(0)
    }

    /// Moves what has come into `into`.
    pub(super) fn read(&mut self, into: &mut [u8]) -> Came {
        match (self.is_broken, self.is_at_end) {
            (true, _) => return Came::Broken,
            (false, true) => return Came::End,
            _ if into.is_empty() => return Came::Nothing,
            _ => {}
        }
        match self.connected.watched.socket().receive(into) {
            Ok(Some(0)) => {
                self.is_at_end = true;
                Came::End
            }
            Ok(Some(count)) => {
                self.read += count as u64;
                self.connected.streamed.add_received(count as u64);
                Came::Bytes(count)
            }
            Ok(None) => Came::Nothing,
            Err(_) => {
                // Later reads report it too: not every caller can handle it.
                (self.is_at_end, self.is_broken) = (true, true);
                Came::Broken
            }
        }
    }

    /// Has the waker woken when something may have come.
    pub(super) fn wait(&self, waker: &Waker) {
        self.connected.watched.wait(For::Bytes, waker);
    }

    /// Has the waker woken when everything has come, or the connection is broken.
    pub(super) fn wait_for_end(&self, waker: &Waker) {
        self.connected.watched.wait(For::End, waker);
    }
}
