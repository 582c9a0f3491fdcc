//! One end of a stream: bytes received and not read, bytes written and not sent, and how many of each there may be. Bytes that bypass
//! the daemon are in `direct.rs`.

use std::{
    cmp,
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Waker,
};

use sealane_runtime::{Buffer, copy_bytes};
use sealane_transport::Error;

use super::{
    direct::{Direct, Left},
    end::End,
    frame::{Frame, Kind},
    hub::Refused,
    socket::{Came, Connected, SocketReader},
    switch::Switch,
};
use crate::limits::{STREAM_CHUNK_BYTES, STREAM_CHUNKS_AHEAD, STREAM_CHUNKS_LENT, STREAM_LENT_MIN};

/// Received bytes; those before `at` were read.
struct Chunk {
    bytes: Bytes,
    at: usize,
}

enum Bytes {
    /// As pushed, in memory that the daemon lends.
    Lent { buffer: Buffer, _share: LentShare },
    /// Copied out of that memory: of one push or several.
    Copied(Vec<u8>),
    /// So many are still in a socket that is not used any more.
    InSocket(SocketReader, u64),
}

impl Chunk {
    fn rest(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Lent { buffer, .. } => &buffer[self.at..],
            Bytes::Copied(bytes) => &bytes[self.at..],
            Bytes::InSocket(..) => &[],
        }
    }
}

/// Bytes of lent memory that a task's streams keep, and the most they may keep. Changed under the hub's lock.
#[derive(Clone, Default)]
pub(super) struct Lent {
    bytes: Arc<AtomicUsize>,
    most: usize,
}

/// A share of them, given back when dropped.
struct LentShare(Lent, usize);

impl Lent {
    pub(super) fn new(most: usize) -> Lent {
        Lent { bytes: Arc::default(), most }
    }

    fn take(&self, bytes: usize) -> Option<LentShare> {
        let lent = self.bytes.load(Ordering::Relaxed) + bytes;
        (lent <= self.most).then(|| {
            self.bytes.store(lent, Ordering::Relaxed);
            LentShare(self.clone(), bytes)
        })
    }
}

impl Drop for LentShare {
    fn drop(&mut self) {
        self.0.bytes.fetch_sub(self.1, Ordering::Relaxed);
    }
}

#[derive(Default)]
pub(super) struct Connection {
    /// What is known of the other end.
    pub(super) end: End,
    /// Counted among the streams for which the peer is watched.
    pub(super) is_counted: bool,
    /// The peer has dialed it, and has too many replies to take to be told that it was accepted.
    pub(super) is_unanswered: bool,
    /// It was waiting for the other end when the last request timeout passed.
    is_late: bool,
    /// Why the stream has ended.
    pub(super) error: Option<Error>,
    pub(super) reader: Option<Waker>,
    pub(super) writer: Option<Waker>,
    pub(super) incoming: Incoming,
    pub(super) outgoing: Outgoing,
    pub(super) refused: Refused,
    pub(super) direct: Arc<Direct>,
    /// Place of a ring that was announced behind refused pushes: it is announced again behind those, unless the stream ends before.
    pub(super) ring_ahead: Option<Box<[u8]>>,
    /// Bytes sent and received past the daemon that were counted.
    counted: (u64, u64),
    /// How much has gone through the daemon: a small write counts as much as some bytes.
    pub(super) by_daemon: u32,
    /// Which socket each direction uses.
    pub(super) switch: Switch,
    /// Connections from the daemon that may still be used.
    pub(super) connected: Vec<Arc<Connected>>,
    /// Length of the stream, if the other end has announced it while some bytes are on their way through a socket.
    pub(super) finish_at: Option<u64>,
}

impl Connection {
    pub(super) fn new(window: u64, lent: Lent) -> Connection {
        // The other end most likely has as much memory as this one.
        let outgoing = Outgoing { chunk_max: lent.most / STREAM_CHUNKS_LENT, ..Outgoing::default() };
        Connection {
            is_counted: true,
            incoming: Incoming { lent, window, allowed: window, ..Incoming::default() },
            outgoing,
            ..Connection::default()
        }
    }

    /// Handles a frame of the other end, `whole` as it came; except dials and resets.
    ///
    /// # Errors
    /// The frame is impossible: the stream ends.
    pub(super) fn take_in(&mut self, kind: Kind, whole: Buffer) -> Result<(), &'static str> {
        match kind {
            // Handled where streams bypass the daemon.
            Kind::Open(_) | Kind::Reset(_) | Kind::Ring(_) => {}
            Kind::Offer(_) | Kind::Have(_) | Kind::Socket(_) | Kind::Broken(_) | Kind::Lost(_) => {}
            Kind::Accept(window) => {
                self.end.open();
                self.outgoing.allow(window);
            }
            Kind::Window(bytes) => self.outgoing.allow(bytes),
            Kind::Data(from) => self.incoming.take_in(from, whole)?,
            Kind::Finish(bytes) => match self.incoming.finish(bytes, self.direct.came())? {
                true => self.end.came_whole(),
                false => {
                    self.end.came_in_part();
                    self.finish_at = self.switch.reads().map(|_| bytes);
                }
            },
            Kind::Taken(bytes) => self.end.taken(bytes, self.sent())?,
        }
        Ok(())
    }

    /// The other end has ended the stream, and has taken in so many bytes. False if that was known.
    pub(super) fn reset_there(&mut self, taken: u64, is_closed: bool) -> bool {
        // First, so that nothing is written once the bytes are compared.
        self.direct.stop();
        let has_taken_all = taken == self.sent() && self.outgoing.waiting.is_empty();
        self.end.reset_there(has_taken_all && is_closed)
    }

    /// The other end has written everything, and some of it is on its way through a socket.
    pub(super) fn is_arriving(&self) -> bool {
        self.finish_at.is_some() && self.switch.reads().is_some() && !self.direct.reader_is_over()
    }

    /// Everything written has been sent, and its length announced.
    pub(super) fn has_left(&self) -> bool {
        self.refused.is_over() && self.outgoing.waiting.is_empty() && !self.end.is_to_tell()
    }

    /// What is written now can be sent at once.
    pub(super) fn is_next(&self) -> bool {
        let Connection { outgoing, refused, end, .. } = self;
        outgoing.waiting.is_empty() && !outgoing.is_queued && !refused.holds() && end.is_open()
    }

    /// Bytes sent since the stream began.
    pub(super) fn sent(&self) -> u64 {
        self.outgoing.sent + self.direct.written()
    }

    /// Bytes received since the stream began.
    pub(super) fn came(&self) -> u64 {
        self.incoming.came + self.direct.came()
    }

    /// Bytes sent and received past the daemon since the last call of this.
    pub(super) fn count_direct(&mut self) -> (u64, u64) {
        let direct = (self.direct.written(), self.direct.came());
        let counted = std::mem::replace(&mut self.counted, direct);
        (direct.0.saturating_sub(counted.0), direct.1.saturating_sub(counted.1))
    }

    /// The connection of that number.
    pub(super) fn numbered(&self, number: u64) -> Option<Arc<Connected>> {
        self.connected.iter().find(|connected| connected.number() == number).cloned()
    }

    /// Drops connections that are not used any more.
    pub(super) fn keep_what_is_used(&mut self) {
        let Connection { connected, switch, .. } = self;
        connected.retain(|connected| switch.uses(connected.number()));
    }

    /// Leaves the socket that is read: at which byte of the stream it ends, its number, and how many of its bytes were not counted.
    pub(super) fn leave_socket(&mut self) -> Option<(u64, u64, u64)> {
        let number = self.switch.give_up()?;
        let Left { read, rest } = self.direct.take_reader()?;
        let came = read + rest.as_ref().map_or(0, |(_, unread)| *unread);
        let uncounted = came.saturating_sub(std::mem::take(&mut self.counted.1));
        self.incoming.leave_socket(read, rest);
        Some((self.incoming.came, number, uncounted))
    }

    /// The other end has so many of the stream's bytes, and reads no more from the socket of that number: what was written behind them is
    /// to be pushed. How many of the bytes written so far were counted; `None` if the socket was not given up.
    ///
    /// # Errors
    /// That is impossible, or the bytes are lost.
    pub(super) fn lost_socket(&mut self, number: u64, has: u64) -> Option<Result<u64, &'static str>> {
        if !self.switch.is_given_up(number) {
            return None;
        }
        let behind = match has.checked_sub(self.outgoing.sent) {
            Some(has) => self.direct.take_writer(has)?,
            None => Err("the other end has less than was pushed to it"),
        };
        Some(behind.map(|behind| {
            let counted = self.outgoing.sent + std::mem::take(&mut self.counted.0);
            (self.outgoing.sent, self.outgoing.waiting) = (has, behind);
            // The length is announced again behind them.
            self.end.untold();
            counted
        }))
    }

    /// Ends the stream with this error; returns whom to wake.
    pub(super) fn stop(&mut self, error: Error) -> impl Iterator<Item = Waker> {
        self.error.get_or_insert(error);
        self.refused.give_up();
        self.direct.stop();
        self.reader.take().into_iter().chain(self.writer.take())
    }

    /// A request timeout has passed. True if the stream was already waiting when the one before passed: for its dial to be answered, or,
    /// left by its owner, for the other end to take in what was written.
    pub(super) fn has_waited(&mut self) -> bool {
        let waits = !self.end.is_failed() && (!self.end.is_open() || self.end.is_left());
        std::mem::replace(&mut self.is_late, waits) && waits
    }

    /// Drops what came and what will come: nobody reads it any more.
    pub(super) fn discard(&mut self) {
        self.is_late = false;
        self.incoming.chunks.clear();
        self.incoming.is_discarded = true;
        self.direct.stop_reading();
    }
}

#[derive(Default)]
pub(super) struct Incoming {
    chunks: VecDeque<Chunk>,
    lent: Lent,
    /// Bytes that may wait to be read.
    window: u64,
    /// Bytes since the stream began: received, read, and allowed to the other end.
    came: u64,
    read: u64,
    allowed: u64,
    /// The other end sends nothing more.
    is_finished: bool,
    /// Nobody reads: what comes is not taken in.
    is_discarded: bool,
}

impl Incoming {
    /// Takes in bytes that follow the first `from`.
    ///
    /// # Errors
    /// They were not expected.
    pub(super) fn take_in(&mut self, from: u64, buffer: Buffer) -> Result<(), &'static str> {
        let bytes = buffer.len() - Frame::BYTES;
        let end = from.checked_add(bytes as u64).filter(|end| *end <= self.allowed);
        let end = end.ok_or("more bytes came than were allowed")?;
        if bytes == 0 || end <= self.came || from > self.came || self.is_discarded {
            // It came before; or a push was refused for want of memory, and all behind it are repeated.
            return Ok(());
        }
        if self.is_finished || from < self.came {
            return Err("bytes came that are not those which were expected");
        }
        self.came += bytes as u64;
        // A stream that nobody reads must not hold the memory that all share for receiving; nor may every few bytes hold a block of it.
        if bytes >= STREAM_LENT_MIN
            && let Some(share) = self.lent.take(buffer.len())
        {
            self.chunks.push_back(Chunk { bytes: Bytes::Lent { buffer, _share: share }, at: Frame::BYTES });
            return Ok(());
        }
        match self.chunks.back_mut() {
            Some(Chunk { bytes: Bytes::Copied(copied), .. }) if copied.len() < *STREAM_CHUNK_BYTES.start() => {
                copied.extend_from_slice(&buffer[Frame::BYTES..]);
            }
            _ => {
                let copied = Bytes::Copied(buffer[Frame::BYTES..].to_vec());
                self.chunks.push_back(Chunk { bytes: copied, at: 0 });
            }
        }
        Ok(())
    }

    /// Bytes received since the stream began, except through a ring.
    pub(super) fn came(&self) -> u64 {
        self.came
    }

    /// Continues behind a socket, of which so much was read and the `rest` is still to be read.
    fn leave_socket(&mut self, read: u64, rest: Option<(SocketReader, u64)>) {
        (self.came, self.read) = (self.came + read, self.read + read);
        if let Some((socket, unread)) = rest {
            self.came += unread;
            if !self.is_discarded {
                self.chunks.push_back(Chunk { bytes: Bytes::InSocket(socket, unread), at: 0 });
            }
        }
    }

    /// The other end's bytes behind the first `from` bypass the daemon; false if it will announce that again.
    ///
    /// # Errors
    /// They were not expected there.
    pub(super) fn goes_on_directly(&self, from: u64) -> Result<bool, &'static str> {
        match from.cmp(&self.came) {
            _ if self.is_discarded => Ok(false),
            // A push was refused for want of memory, and all behind it are repeated.
            cmp::Ordering::Greater => Ok(false),
            cmp::Ordering::Equal if !self.is_finished => Ok(true),
            _ => Err("a ring or a socket came in the middle of bytes that have come"),
        }
    }

    /// Bytes that the other end may send, since the stream began.
    pub(super) fn allowed(&self) -> u64 {
        self.allowed
    }

    /// Bytes that may wait to be read.
    pub(super) fn window(&self) -> u64 {
        self.window
    }

    /// Nobody reads what comes.
    pub(super) fn is_discarded(&self) -> bool {
        self.is_discarded
    }

    /// Bytes received and not read.
    #[cfg(feature = "fuzzing")]
    pub(super) fn unread(&self) -> u64 {
        self.came - self.read
    }

    /// The other end has sent everything, so many bytes: true if they have come, some of them by a ring. If more are to come, this is
    /// repeated.
    ///
    /// # Errors
    /// More have come.
    pub(super) fn finish(&mut self, bytes: u64, by_ring: u64) -> Result<bool, &'static str> {
        let came = self.came.saturating_add(by_ring);
        if bytes < came {
            return Err("more bytes came than there are");
        }
        self.is_finished |= bytes == came;
        Ok(self.is_finished)
    }

    /// Moves available bytes into `into`; returns how many.
    ///
    /// # Errors
    /// A socket has lost what it had received.
    pub(super) fn read(&mut self, mut into: &mut [u8]) -> Result<usize, &'static str> {
        let room = into.len();
        while let Some(chunk) = self.chunks.front_mut() {
            if let Bytes::InSocket(socket, unread) = &mut chunk.bytes {
                let most = into.len().min(usize::try_from(*unread).unwrap_or(usize::MAX));
                let count = match socket.read(&mut into[..most]) {
                    Came::Bytes(count) => count,
                    _ if most == 0 => break,
                    _ => return Err("the system has lost what had come by a connection"),
                };
                into = &mut into[count..];
                *unread -= count as u64;
                if *unread == 0 {
                    self.chunks.pop_front();
                }
                continue;
            }
            let rest = chunk.rest();
            let count = rest.len().min(into.len());
            let (now, later) = into.split_at_mut(count);
            copy_bytes(now, &rest[..count]);
            into = later;
            if count < rest.len() {
                chunk.at += count;
                break;
            }
            self.chunks.pop_front();
        }
        self.read += (room - into.len()) as u64;
        Ok(room - into.len())
    }

    /// Sets how many bytes may wait to be read; returns what the other end may send, if that is more than it was told.
    pub(super) fn widen(&mut self, window: u64) -> Option<u64> {
        self.window = window;
        let allowed = self.read.saturating_add(window);
        let is_more = !self.is_finished && allowed > self.allowed;
        is_more.then(|| {
            self.allowed = allowed;
            allowed
        })
    }

    /// What the other end may send, where it cannot know because bytes bypassed the daemon.
    pub(super) fn allow_anew(&mut self) -> u64 {
        self.allowed = self.allowed.max(self.read.saturating_add(self.window));
        self.allowed
    }

    /// How many bytes the other end may send, if it is to be told now: not for every byte that is read.
    pub(super) fn news(&mut self) -> Option<u64> {
        let allowed = self.read.saturating_add(self.window);
        let is_due = !self.is_finished && allowed.saturating_sub(self.allowed) >= self.window.div_ceil(2);
        is_due.then(|| {
            self.allowed = allowed;
            allowed
        })
    }
}

#[derive(Default)]
pub(super) struct Outgoing {
    /// Bytes not yet sent, behind the first `sent`.
    pub(super) waiting: Vec<u8>,
    /// Bytes since the stream began: sent, and allowed to be sent.
    pub(super) sent: u64,
    pub(super) allowed: u64,
    /// Most bytes that were allowed at once: the other end's window.
    pub(super) window: u64,
    /// Most bytes of one push, if the window is larger than several of them.
    chunk_max: usize,
    /// It waits for its turn to push.
    pub(super) is_queued: bool,
}

impl Outgoing {
    /// Bytes that may be written now.
    pub(super) fn room(&self) -> usize {
        self.chunk_bytes().min(self.allowed_now()).saturating_sub(self.waiting.len())
    }

    /// Bytes that may be sent now; none if more bypassed the daemon than pushes were allowed.
    pub(super) fn allowed_now(&self) -> usize {
        usize::try_from(self.allowed.saturating_sub(self.sent)).unwrap_or(usize::MAX)
    }

    /// Takes the next waiting bytes that may be sent.
    pub(super) fn next_waiting(&mut self) -> Vec<u8> {
        let most = self.chunk_bytes().min(self.allowed_now());
        if self.waiting.len() <= most {
            return std::mem::take(&mut self.waiting);
        }
        let later = self.waiting.split_off(most);
        std::mem::replace(&mut self.waiting, later)
    }

    /// Most bytes of one push: some are on their way while the other end reads.
    fn chunk_bytes(&self) -> usize {
        let part = usize::try_from(self.window / STREAM_CHUNKS_AHEAD).unwrap_or(usize::MAX);
        part.min(self.chunk_max).clamp(*STREAM_CHUNK_BYTES.start(), *STREAM_CHUNK_BYTES.end())
    }

    /// The other end allows so many bytes in total.
    pub(super) fn allow(&mut self, bytes: u64) {
        self.allowed = self.allowed.max(bytes);
        self.window = self.window.max(self.allowed.saturating_sub(self.sent));
    }
}

#[cfg(test)]
mod tests;
