//! When a stream gets a TCP connection of its own, and what becomes of it when that breaks.
//!
//! The end that has dialed the stream asks its daemon for one, and offers it to the other ([`Kind::Offer`]), which asks its own daemon for
//! the other end of it ([`Kind::Have`]). Nothing goes by it before both have it: what is in the kernel of a host has come. Then each
//! direction goes by it as soon as all has left that was written before: its writer says behind which byte ([`Kind::Socket`]). A direction
//! is never given up by one end alone. The writer that finds the connection broken says so ([`Kind::Broken`]), and writes nothing until
//! the reader has said how far it came ([`Kind::Lost`]), which that does as well when it finds out first; what is behind that is pushed,
//! out of what was kept.
//!
//! What is known of that at each end is [`Switch`](super::super::switch::Switch). Daemons are asked on threads of their own, for they
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

/// Connections that daemons are asked for.
#[derive(Default)]
pub(super) struct Openings {
    wanted: VecDeque<Opening>,
    openers: usize,
}

/// A connection for a stream: a new one, or the one of that number, which the other end has.
struct Opening {
    key: Key,
    number: Option<u64>,
}

/// When connections with a peer are asked for.
#[derive(Default)]
pub(super) struct Supply {
    is_never: bool,
    /// Nobody waits for a pause, in tests.
    is_impatient: bool,
    not_before: Option<Instant>,
    pause: Duration,
}

impl Supply {
    fn may_ask(&self, now: Instant) -> bool {
        self.not_before.is_none_or(|at| at <= now)
    }

    /// There is none for now, or the last one broke, as both directions of several streams may say.
    fn wait(&mut self, now: Instant) {
        if self.is_impatient || !self.may_ask(now) {
            return;
        }
        let is_late = self.not_before.is_some_and(|at| now.saturating_duration_since(at) > SOCKET_RETRY_MAX);
        self.pause = if is_late { SOCKET_RETRY } else { (2 * self.pause).clamp(SOCKET_RETRY, SOCKET_RETRY_MAX) };
        self.not_before = Some(now + self.pause);
    }

    fn refused(&mut self, code: Code, now: Instant) {
        // Streams with that peer go by the daemon.
        let is_never = matches!(code, Code::PermissionDenied | Code::Unimplemented | Code::InvalidArgument);
        self.is_never |= is_never;
        self.wait(now);
    }
}

/// Has a hub look at the connection of one stream.
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

/// The sockets that there are.
#[derive(Default)]
pub(super) struct Sockets {
    /// Waits for them, with the first.
    poller: Option<Poller>,
    open: Vec<Weak<Connected>>,
    /// Of streams that are no more: until the other host has what was sent, which a socket that is closed may keep from it.
    lingering: Vec<Arc<Connected>>,
}

impl Sockets {
    fn count(&mut self) -> usize {
        self.lingering.retain(|connected| connected.has_unsent());
        self.open.retain(|connected| connected.strong_count() > 0);
        self.open.len()
    }

    /// Takes over the socket that a daemon has given.
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

    /// A stream is no more.
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

    /// So many bytes of a stream go or have come by the daemon: with enough of them, it is asked for a connection.
    pub(super) fn goes_by_daemon(&self, state: &mut State, key: &Key, bytes: usize) {
        /// As a push with them.
        const BYTES_PER_PUSH: usize = 4096;
        let Some(connection) = state.connections.get_mut(key) else { return };
        connection.by_daemon = connection.by_daemon.saturating_add(1 + (bytes / BYTES_PER_PUSH) as u32);
        let is_wanted = key.is_dialed && connection.by_daemon >= DIRECT_AFTER && connection.may_have_socket();
        // Most often there is nothing to ask for, or no use in it.
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
                // Another one is at work.
                Err(_) if state.openings.openers > 0 => {}
                Err(error) => {
                    let error = Error::full("the system's threads", error.to_string());
                    return self.opened_socket(state, &opening, Err(error));
                }
            }
        }
        state.openings.wanted.push_back(opening);
    }

    /// A daemon has given a connection, or not.
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

    /// The other end has a connection for the stream.
    pub(super) fn offered_socket(&self, state: &mut State, key: &Key, number: u64) {
        let count = state.sockets.count();
        let Some(connection) = state.connections.get_mut(key) else { return };
        if key.is_dialed || connection.end.is_left() || count >= SOCKETS_MAX {
            return self.push(state, key, Kind::Broken(number), &[]);
        }
        // It offers another when it has heard of this one.
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

    /// Has what is written from now on go by a connection, where there is one and all that was written before has left.
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

    /// What the other end writes from now on comes by a connection.
    pub(super) fn goes_on_by_socket(&self, state: &mut State, key: &Key, from: u64, rest: &[u8]) {
        let Some(connection) = state.connections.get_mut(key) else { return };
        let Some((number, serial)) = parse_socket(rest) else { return };
        let is_read = !connection.incoming.is_discarded();
        // Something before it was refused, and all behind that are pushed again.
        if is_read && from > connection.incoming.came() {
            return;
        }
        let begun = match connection.switch.comes_by(number, serial, is_read) {
            Coming::Again => return,
            // It stays where it is.
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

    /// The other end can write no more to a connection.
    pub(super) fn broke_there(&self, state: &mut State, key: &Key, number: u64) {
        let Some(connection) = state.connections.get_mut(key) else { return };
        let is_read = connection.switch.is_broken_there(number);
        self.meet(state, &key.peer).supply.wait(Instant::now());
        if is_read {
            self.lose_socket(state, key);
        }
    }

    /// The connection by which a stream comes is of no more use: the other end is told what has come.
    /// False if it does not matter, or none is read.
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

    /// The other end has come so far, and reads no more from a connection: what is behind that is pushed.
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

    /// Something has happened to the connection of a stream: it is over, or all has come.
    pub(super) fn look_at_socket(&self, state: &mut State, key: &Key) {
        let Some(connection) = state.connections.get_mut(key) else { return };
        if let Some(number) = connection.direct.writer_broke()
            && !connection.end.is_failed()
        {
            self.push(state, key, Kind::Broken(number), &[]);
        }
        self.look_for_finish(state, key);
    }

    /// Looks whether all has come that the other end has written, where it has said how much that is and some came by a connection.
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
            // It says so again behind what it pushes.
            Ok(false) if is_over => {
                self.lose_socket(state, key);
            }
            Ok(false) => connection.direct.wait_for_end(&self.socket_bell(key)),
            Err(reason) => self.fail(state, key, &Error::unavailable(&key.peer, reason)),
        }
    }
}

impl State {
    /// Connections may be asked for at once, though the last one broke.
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

/// Asks the daemon for one connection after the other, as long as there are any to ask for.
fn open_all(hub: &Weak<Hub>) {
    loop {
        let Some(at) = hub.upgrade() else { return };
        let next = at.with(|state| {
            let next = state.openings.wanted.pop_front();
            state.openings.openers -= usize::from(next.is_none());
            next
        });
        let Some(opening) = next else { return };
        // Neither the hub nor the task is kept meanwhile: who drops them does not wait.
        let ask = at.task.opener();
        drop(at);
        let given = ask(&opening.key.peer, opening.number);
        let Some(at) = hub.upgrade() else { return };
        at.with(|state| at.opened_socket(state, &opening, given));
    }
}
