//! When a stream gets a TCP connection of its own, and what becomes of it when that breaks.
//!
//! The end that has dialed the stream asks its daemon for a connection, and offers it to the other end ([`Kind::Offer`]), which asks its
//! own daemon for its side of it ([`Kind::Have`]). Nothing is sent over it before both have it, so that what is in a host's kernel has
//! arrived. Then each direction moves to it as soon as everything written before has been sent: its writer says behind which byte
//! ([`Kind::Socket`]). A direction is never given up by one end alone. A writer that finds the connection broken says so
//! ([`Kind::Broken`]), and writes nothing until the reader has said how far it came ([`Kind::Lost`]), as a reader also does that finds out
//! first; what is behind that is pushed, out of what was kept.
//!
//! What each end knows of that is in [`Switch`](super::super::switch::Switch). Daemons are asked on separate threads, since they
//! answer after a round trip or later. Bounded by [`SOCKETS_MAX`], [`SOCKET_OPENERS_MAX`], and one question for each stream.

use std::{
    collections::VecDeque,
    os::fd::OwnedFd,
    sync::{Arc, Weak},
    task::{Wake, Waker},
    time::{Duration, Instant},
};

use sealane_transport::{Code, Error};

use super::{
    super::{
        frame::{number_to_bytes, parse_number, parse_socket, socket_to_bytes},
        socket::{Connected, Poller},
        switch::Coming,
        untold::Word,
    },
    Connection, Hub, Key, Kind, State, connection_of, lock,
};
use crate::{
    attachment::Streamed,
    limits::{DIRECT_AFTER, SOCKET_OPENERS_MAX, SOCKET_RETRY, SOCKET_RETRY_MAX, SOCKETS_MAX, STREAM_RING_WINDOW_MIN},
};

/// Connections to ask daemons for.
#[derive(Default)]
pub(super) struct Openings {
    wanted: VecDeque<Opening>,
    openers: usize,
}

/// A connection for a stream: a new one, or that of a number, which the other end has.
struct Opening {
    key: Key,
    number: Option<u64>,
}

/// When to ask for connections with a peer.
#[derive(Default)]
pub(super) struct Supply {
    is_never: bool,
    /// Skips pauses, in tests.
    is_impatient: bool,
    not_before: Option<Instant>,
    pause: Duration,
}

impl Supply {
    fn may_ask(&self, now: Instant) -> bool {
        self.not_before.is_none_or(|at| at <= now)
    }

    /// Begins a pause: there is no connection for now, or the last one broke, which both directions of several streams may report.
    fn wait(&mut self, now: Instant) {
        if self.is_impatient || !self.may_ask(now) {
            return;
        }
        let is_late = self.not_before.is_some_and(|at| now.saturating_duration_since(at) > SOCKET_RETRY_MAX);
        self.pause = if is_late { SOCKET_RETRY } else { (2 * self.pause).clamp(SOCKET_RETRY, SOCKET_RETRY_MAX) };
        self.not_before = Some(now + self.pause);
    }

    fn refused(&mut self, code: Code, now: Instant) {
        // Streams with that peer always go through the daemon.
        let is_never = matches!(code, Code::PermissionDenied | Code::Unimplemented | Code::InvalidArgument);
        self.is_never |= is_never;
        self.wait(now);
    }
}

/// Makes a hub look at the connection of one stream.
struct SocketBell {
    hub: Weak<Hub>,
    key: Key,
}

impl Wake for SocketBell {
    fn wake(self: Arc<Self>) {
        if let Some(hub) = self.hub.upgrade() {
            lock(&hub.rung_sockets).push(self.key.clone());
            hub.look();
        }
    }
}

#[derive(Default)]
pub(super) struct Sockets {
    /// Waits for them; started with the first.
    poller: Option<Poller>,
    open: Vec<Weak<Connected>>,
    /// Sockets of streams that are gone, kept until the other host has what was sent: closing a socket may lose that.
    lingering: Vec<Arc<Connected>>,
}

impl Sockets {
    fn count(&mut self) -> usize {
        self.lingering.retain(|connected| connected.has_unsent());
        self.open.retain(|connected| connected.strong_count() > 0);
        self.open.len()
    }

    /// Takes over a socket from the daemon.
    fn add(
        &mut self,
        (number, socket): (u64, OwnedFd),
        at_break: Waker,
        streamed: Arc<Streamed>,
    ) -> Result<Arc<Connected>, Error> {
        let failed = |error: std::io::Error| Error::full("the system's descriptors", error.to_string());
        if self.count() >= SOCKETS_MAX {
            return Err(Error::full("connections of streams", format!("a task has {SOCKETS_MAX}")));
        }
        if self.poller.is_none() {
            self.poller = Some(Poller::start().map_err(failed)?);
        }
        let poller = self.poller.as_ref().expect("just made");
        let connected = Connected::new(number, socket, at_break, poller, streamed).map_err(failed)?;
        self.open.push(Arc::downgrade(&connected));
        Ok(connected)
    }

    /// Handles the end of a stream.
    pub(super) fn let_go(&mut self, connection: &Connection) {
        self.lingering.retain(|connected| connected.has_unsent());
        if self.lingering.len() < SOCKETS_MAX && !connection.end.is_failed() {
            self.lingering.extend(connection.direct.unacknowledged());
        }
    }
}

impl Hub {
    fn socket_bell(&self, key: &Key) -> Waker {
        Waker::from(Arc::new(SocketBell { hub: self.itself.clone(), key: key.clone() }))
    }

    /// Counts bytes of a stream that go through the daemon, either way; after enough of them, asks for a connection.
    pub(super) fn goes_by_daemon(&self, state: &mut State, key: &Key, bytes: usize) {
        /// Bytes that count as much as one push.
        const BYTES_PER_PUSH: usize = 4096;
        let Some(connection) = state.connections.get_mut(key) else { return };
        connection.by_daemon = connection.by_daemon.saturating_add(1 + (bytes / BYTES_PER_PUSH) as u32);
        let is_wanted = key.is_dialed && connection.by_daemon >= DIRECT_AFTER && connection.may_have_socket();
        // Usually there is nothing to ask for, or no use in asking.
        let supply = if is_wanted { &mut self.meet(state, &key.peer).supply } else { return };
        if supply.is_never || !supply.may_ask(Instant::now()) {
            return;
        }
        if self.task.is_neighbour(&key.peer) {
            supply.is_never = true;
        } else if state.sockets.count() < SOCKETS_MAX {
            connection_of(state, key).switch.ask();
            self.open(state, Opening { key: key.clone(), number: None });
        }
    }

    fn open(&self, state: &mut State, opening: Opening) {
        if state.openings.openers < SOCKET_OPENERS_MAX {
            let hub = self.itself.clone();
            match std::thread::Builder::new().name("sealane-open".into()).spawn(move || open_all(&hub)) {
                Ok(_) => state.openings.openers += 1,
                // Another opener will take it.
                Err(_) if state.openings.openers > 0 => {}
                Err(error) => {
                    let error = Error::full("the system's threads", error.to_string());
                    return self.opened_socket(state, &opening, Err(error));
                }
            }
        }
        state.openings.wanted.push_back(opening);
    }

    /// Handles the daemon's answer: a connection, or none.
    fn opened_socket(
        &self,
        state: &mut State,
        Opening { key, number }: &Opening,
        given: Result<(u64, OwnedFd), Error>,
    ) {
        let bell = self.socket_bell(key);
        let Some(connection) = state.connections.get_mut(key) else { return };
        if connection.end.is_failed() {
            return;
        }
        let given = given.and_then(|given| state.sockets.add(given, bell, self.task.streamed(&key.peer)));
        let given = given.map(|connected| {
            connection.connected.push(connected.clone());
            connected.number()
        });
        match (given, *number) {
            (Ok(number), None) => {
                connection.switch.offers(number);
                connection.keep_what_is_used();
                self.push(state, key, Kind::Offer(number), &[]);
            }
            (Ok(number), Some(_)) => {
                let is_of_use = connection.switch.has(number);
                connection.keep_what_is_used();
                self.push(state, key, if is_of_use { Kind::Have(number) } else { Kind::Broken(number) }, &[]);
                self.write_by_socket(state, key);
            }
            (Err(error), None) => {
                connection.switch.is_refused();
                self.meet(state, &key.peer).supply.refused(error.code(), Instant::now());
            }
            (Err(_), Some(number)) => {
                connection.switch.is_refused();
                self.push(state, key, Kind::Broken(number), &[]);
            }
        }
    }

    /// Handles the other end's offer of a connection.
    pub(super) fn offered_socket(&self, state: &mut State, key: &Key, number: u64) {
        let count = state.sockets.count();
        let Some(connection) = state.connections.get_mut(key) else { return };
        if key.is_dialed || connection.end.is_left() || count >= SOCKETS_MAX {
            return self.push(state, key, Kind::Broken(number), &[]);
        }
        // Another offer comes only when the other end has heard of this one.
        if connection.switch.ask() {
            self.open(state, Opening { key: key.clone(), number: Some(number) });
        }
    }

    /// The other end has the connection of that number.
    pub(super) fn had_there(&self, state: &mut State, key: &Key, number: u64) {
        let Some(connection) = state.connections.get_mut(key) else { return };
        connection.switch.is_taken(number);
        self.write_by_socket(state, key);
    }

    /// Moves writes to a connection, if there is one and everything written before has been sent.
    pub(super) fn write_by_socket(&self, state: &mut State, key: &Key) {
        let Some(connection) = state.connections.get_mut(key) else { return };
        let is_open = !connection.end.is_finished() && !connection.end.is_failed() && connection.is_next();
        if is_open
            && !connection.direct.are_written()
            && let Some((number, serial)) = connection.switch.take_up()
            && let Some(connected) = connection.numbered(number)
        {
            let (from, place) = (connection.outgoing.sent, socket_to_bytes(number, serial));
            connection.direct.write_by_socket(connected);
            state.wakers.extend(connection.writer.take());
            self.push(state, key, Kind::Socket(from), &place);
        }
    }

    /// Moves reads to a connection: what the other end writes from now on comes by it.
    pub(super) fn goes_on_by_socket(&self, state: &mut State, key: &Key, from: u64, rest: &[u8]) {
        let Some(connection) = state.connections.get_mut(key) else { return };
        let Some((number, serial)) = parse_socket(rest) else { return };
        let is_read = !connection.incoming.is_discarded();
        // Something before it was refused, and everything behind that is pushed again.
        if is_read && from > connection.incoming.came() {
            return;
        }
        let begun = match connection.switch.comes_by(number, serial, is_read) {
            Coming::Again => return,
            // Nobody reads: the bytes stay in the socket.
            Coming::Begins if !is_read => return,
            Coming::Begins => connection.incoming.goes_on_directly(from).and_then(|_| {
                let connected = connection.numbered(number).ok_or("its bytes come by a connection that has gone")?;
                let is_first = connection.direct.read_from_socket(connected);
                is_first.then_some(()).ok_or("it writes to a ring, too")
            }),
            Coming::Wrong => Err("its bytes come by a connection that this process does not have, or by two"),
        };
        state.wakers.extend(connection.reader.take());
        if let Err(reason) = begun {
            self.fail(state, key, &Error::unavailable(&key.peer, reason));
        }
    }

    /// The other end cannot write to a connection any more.
    pub(super) fn broke_there(&self, state: &mut State, key: &Key, number: u64) {
        let Some(connection) = state.connections.get_mut(key) else { return };
        let is_read = connection.switch.is_broken_there(number);
        self.meet(state, &key.peer).supply.wait(Instant::now());
        if is_read {
            self.lose_socket(state, key);
        }
    }

    /// Gives up the connection that a stream is read from, and tells the other end what has come. False if it does not matter, or none
    /// is read.
    pub(super) fn lose_socket(&self, state: &mut State, key: &Key) -> bool {
        let Some(connection) = state.connections.get_mut(key) else { return false };
        if connection.end.is_failed() || connection.end.has_all() {
            state.wakers.extend(connection.reader.take());
            return false;
        }
        let Some((came, number, uncounted)) = connection.leave_socket() else { return false };
        connection.finish_at = None;
        let allowed = connection.incoming.allow_anew();
        state.wakers.extend(connection.reader.take());
        state.figures.of(&key.peer).bytes_received += uncounted;
        self.push(state, key, Kind::Lost(came), &number_to_bytes(number));
        self.push(state, key, Kind::Window(allowed), &[]);
        self.meet(state, &key.peer).supply.wait(Instant::now());
        true
    }

    /// The other end has come so far, and reads no more from a connection: pushes what is behind that.
    pub(super) fn lost_there(&self, state: &mut State, key: &Key, has: u64, rest: &[u8]) {
        let Some(connection) = state.connections.get_mut(key) else { return };
        let Some(number) = parse_number(rest) else { return };
        match connection.lost_socket(number, has) {
            None => {}
            Some(Ok(counted)) => {
                state.wakers.extend(connection.writer.take());
                let sent = &mut state.figures.of(&key.peer).bytes_sent;
                *sent = (*sent + has).saturating_sub(counted);
                self.meet(state, &key.peer).supply.wait(Instant::now());
                self.send_waiting(state, key);
            }
            Some(Err(reason)) => self.fail(state, key, &Error::unavailable(&key.peer, reason)),
        }
    }

    /// Something has happened to a stream's connection: it is over, or everything has come.
    pub(super) fn look_at_socket(&self, state: &mut State, key: &Key) {
        let Some(connection) = state.connections.get_mut(key) else { return };
        if let Some(number) = connection.direct.writer_broke()
            && !connection.end.is_failed()
        {
            self.push(state, key, Kind::Broken(number), &[]);
        }
        self.look_for_finish(state, key);
    }

    /// Checks whether everything has come, if the other end has said how much it has written and some of it comes by a connection.
    pub(super) fn look_for_finish(&self, state: &mut State, key: &Key) {
        let Some(connection) = state.connections.get_mut(key) else { return };
        let Some(finish_at) = connection.finish_at else { return };
        let is_over = connection.direct.reader_is_over();
        let came = connection.direct.came();
        match connection.incoming.finish(finish_at, came) {
            Ok(true) => {
                connection.finish_at = None;
                connection.end.came_whole();
                state.wakers.extend(connection.reader.take());
                self.tell(state, key, Word::Taken(finish_at));
                self.settle_rest(state, key, "");
            }
            // The other end says it again behind what it pushes.
            Ok(false) if is_over => {
                self.lose_socket(state, key);
            }
            Ok(false) => connection.direct.wait_for_end(&self.socket_bell(key)),
            Err(reason) => self.fail(state, key, &Error::unavailable(&key.peer, reason)),
        }
    }
}

impl State {
    /// Lets connections be asked for at once, even after the last one broke.
    #[cfg(feature = "fuzzing")]
    pub(in crate::stream) fn asks_at_once(&mut self, key: &Key) {
        if let Some(peer) = self.peers.get_mut(&key.peer) {
            peer.supply = Supply { is_impatient: true, ..Supply::default() };
        }
    }
}

impl Connection {
    fn may_have_socket(&self) -> bool {
        let has_window = self.incoming.window().min(self.outgoing.window) >= STREAM_RING_WINDOW_MIN;
        let is_alive = self.end.is_open() && !self.end.is_failed() && !self.end.is_left();
        has_window && is_alive && self.switch.wants() && self.direct.is_unused()
    }
}

/// Asks the daemon for one connection after the other, as long as any are wanted.
fn open_all(hub: &Weak<Hub>) {
    loop {
        let Some(at) = hub.upgrade() else { return };
        let next = at.with(|state| {
            let next = state.openings.wanted.pop_front();
            state.openings.openers -= usize::from(next.is_none());
            next
        });
        let Some(opening) = next else { return };
        // Neither the hub nor the task is held meanwhile, so that whoever drops them does not wait.
        let ask = at.task.opener();
        drop(at);
        let given = ask(&opening.key.peer, opening.number);
        let Some(at) = hub.upgrade() else { return };
        at.with(|state| at.opened_socket(state, &opening, given));
    }
}
