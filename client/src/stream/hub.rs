//! Carries a task's streams: by pushes into one queue of each task, which that task's hub empties; the bytes of some bypass the daemon
//! ([`super::direct`]). A hub runs on whichever thread calls or wakes it, one at a time, and never waits: while a daemon is being
//! restarted, its calls fail and its accepts go on with the next daemon; while a daemon does not read its ring, calls wait in this
//! process, including those that time a pause.
//!
//! Reliability, order and the handling of lost links are those of pushes. Added here are: the bytes that one end has allowed the
//! other (as in HTTP/2, RFC 9113, section 5.2), so that a stream that nobody reads holds up itself alone; a recv that is never
//! answered, by which a hub learns that a peer's process has ended; and what the other end is told, or asked, since it
//! may not have learned the same ([`super::end`]).

mod life;
mod polls;
mod pushes;
mod rings;
mod sockets;

use std::{
    collections::{HashMap, VecDeque},
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use sealane_transport::{Code, Error};

use pushes::Peer;
pub(super) use pushes::Refused;
use sockets::{Openings, Sockets};

use super::{
    StreamOptions,
    connection::{Connection, Lent},
    direct::Direct,
    end::{Rest, is_answered},
    figures::{Figures, StreamFigures},
    frame::{CLOSED, Frame, Kind, UNKNOWN, parse_reset, text},
    memory::Source,
    untold::Word,
};
use crate::{
    AcceptOptions, Accepted, Acceptor, Task, Waiter,
    acceptor::Watch,
    attachment::at_once,
    limits::{
        STREAM_ACCEPTORS_MAX, STREAM_ACCEPTS_IN_A_ROW, STREAM_ACCEPTS_PER_LOOK, STREAM_AREA_SHARE, STREAM_BACKLOG_MAX,
        STREAM_QUEUE_BYTES, STREAM_REASON_MAX, STREAM_UNACCEPTED_BYTES, STREAMS_MAX,
    },
};

/// The queue of a task into which its streams' frames are pushed.
const QUEUE: &str = "sealane.streams";

/// The step of a recv that is never answered.
const NEVER: i64 = i64::MIN;

/// A stream, as this side knows it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) peer: Arc<str>,
    /// This side has dialed it.
    pub(super) is_dialed: bool,
    pub(super) stream: u64,
}

#[derive(Default)]
pub(super) struct Listener {
    pub(super) waiting: VecDeque<Key>,
    /// Wakers of those who accept, or did: all are woken for each stream.
    wakers: Vec<Waker>,
    options: StreamOptions,
    pub(super) error: Option<Error>,
}

impl Listener {
    /// All peers share one backlog. When it is full, the peer with most streams in it gives up its newest for a peer with fewer.
    fn gives_way(&mut self, to: &Arc<str>) -> Option<Key> {
        let mut of_peers: HashMap<&str, (usize, usize)> = HashMap::new();
        for (place, key) in self.waiting.iter().enumerate() {
            let (count, newest) = of_peers.entry(&key.peer).or_default();
            (*count, *newest) = (*count + 1, place);
        }
        let own = of_peers.get(&**to).map_or(0, |(count, _)| *count);
        let (most, newest) = of_peers.into_values().max()?;
        if most > own + 1 { self.waiting.remove(newest) } else { None }
    }

    /// Registers a waker of one who waits for a stream. `others` are to be woken when the state is free again.
    pub(super) fn wake_too(&mut self, waker: &Waker, others: &mut Vec<Waker>) {
        if self.wakers.iter().any(|known| known.will_wake(waker)) {
            return;
        }
        if self.wakers.len() >= STREAM_ACCEPTORS_MAX {
            // Most of them wait no more; the others register again.
            others.append(&mut self.wakers);
        }
        self.wakers.push(waker.clone());
    }
}

#[derive(Default)]
pub(super) struct State {
    pub(super) connections: HashMap<Key, Connection>,
    pub(super) listeners: HashMap<Box<str>, Listener>,
    peers: HashMap<Arc<str>, Peer>,
    last: u64,
    lent: Lent,
    figures: Figures,
    openings: Openings,
    sockets: Sockets,
    /// The daemon is gone, and no next one is attached.
    is_down: bool,
    watch: Watch,
    /// To be woken when the state is free again.
    wakers: Vec<Waker>,
}

pub(super) struct Hub {
    task: Task,
    acceptor: Acceptor,
    waiter: Waiter,
    /// Memory that bytes are sent from.
    source: Source,
    state: Mutex<State>,
    /// Something has happened since the last look.
    has_news: AtomicBool,
    /// Peers to which something has happened.
    rung: Mutex<Vec<Arc<str>>>,
    /// Streams whose connections have news.
    rung_sockets: Mutex<Vec<Key>>,
    /// Wakes the hub when something was pushed.
    bell: Waker,
    itself: Weak<Hub>,
}

/// Wakes a hub for one peer.
struct Bell {
    hub: Weak<Hub>,
    peer: Arc<str>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(hub) = self.hub.upgrade() {
            lock(&hub.rung).push(self.peer.clone());
            hub.look();
        }
    }
}

/// Wakes a hub for its queue; holds it weakly, since a hub ends with its last stream.
struct QueueBell(Weak<Hub>);

impl Wake for QueueBell {
    fn wake(self: Arc<Self>) {
        if let Some(hub) = self.0.upgrade() {
            hub.look();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hub {
    pub(super) fn new(task: &Task) -> Arc<Hub> {
        let share = (task.area_bytes() / STREAM_AREA_SHARE)
            .clamp(*STREAM_QUEUE_BYTES.start(), *STREAM_QUEUE_BYTES.end()) as usize;
        // Most likely no number that an earlier process of this task has used.
        let last = RandomState::new().hash_one(());
        let state = State { last, lent: Lent::new(2 * share), ..State::default() };
        let hub = Arc::new_cyclic(|itself| Hub {
            task: task.clone(),
            waiter: task.waiter(),
            source: Source::of(task, 2 * share as u64),
            acceptor: task.acceptor(QUEUE, AcceptOptions { bytes_max: share, ..AcceptOptions::default() }),
            state: Mutex::new(state),
            has_news: AtomicBool::new(true),
            rung: Mutex::default(),
            rung_sockets: Mutex::default(),
            bell: Waker::from(Arc::new(QueueBell(itself.clone()))),
            itself: itself.clone(),
        });
        hub.look();
        hub
    }

    /// # Errors
    /// InvalidArgument in a forked child.
    pub(super) fn check_fork(&self) -> Result<(), Error> {
        self.task.check_fork()
    }

    /// A thread's waiter for its streams.
    pub(super) fn waiter(&self) -> &Waiter {
        &self.waiter
    }

    /// Makes the current runtime drive this task's futures.
    #[cfg(feature = "tonic")]
    pub(super) fn drive_here(&self) {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            self.task.drive_on(&runtime);
        }
    }

    /// Ready unless its daemon is being restarted.
    pub(super) fn poll_daemon(&self, context: &Context<'_>) -> Poll<()> {
        self.task.poll_daemon(context)
    }

    /// [`with`](Self::with), for what is polled.
    ///
    /// # Errors
    /// InvalidArgument in a forked child, where another thread of the parent may have left the state in use for ever.
    fn poll_with<T>(&self, f: impl FnOnce(&mut State) -> Poll<Result<T, Error>>) -> Poll<Result<T, Error>> {
        self.task.check_fork()?;
        self.with(f)
    }

    /// [`with`](Self::with), but nothing in a forked child.
    pub(super) fn unless_forked<T>(&self, f: impl FnOnce(&mut State) -> T) -> Option<T> {
        self.task.check_fork().ok().map(|()| self.with(f))
    }

    /// Lets `f` use the state, then handles what came meanwhile, and wakes those concerned.
    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        let result = self.run(lock(&self.state), f);
        self.look_at_news();
        result
    }

    fn run<T>(&self, mut state: MutexGuard<'_, State>, f: impl FnOnce(&mut State) -> T) -> T {
        // Everyone else with streams waits for the state.
        let result = at_once(|| f(&mut state));
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        result
    }

    /// Notes that something has happened, and handles it unless whoever holds the state will; that may be this very thread.
    fn look(&self) {
        self.has_news.store(true, Ordering::SeqCst);
        self.look_at_news();
    }

    fn look_at_news(&self) {
        while self.has_news.load(Ordering::SeqCst) {
            let Ok(state) = self.state.try_lock() else { return };
            self.has_news.store(false, Ordering::SeqCst);
            self.run(state, |state| {
                self.accept(state);
                // Not locked meanwhile: looking after a peer may ring for it again.
                let rung = std::mem::take(&mut *lock(&self.rung));
                rung.iter().for_each(|peer| self.look_after(state, peer));
                let rung = std::mem::take(&mut *lock(&self.rung_sockets));
                rung.iter().for_each(|key| self.look_at_socket(state, key));
            });
        }
    }

    /// Accepts what was pushed.
    fn accept(&self, state: &mut State) {
        let mut context = Context::from_waker(&self.bell);
        for _ in 0..STREAM_ACCEPTS_IN_A_ROW {
            let accepted = self.acceptor.poll_accept(STREAM_ACCEPTS_PER_LOOK, &mut state.watch, &mut context);
            if let Poll::Ready(Err(error)) = &accepted {
                return self.fail_all(state, error);
            }
            if std::mem::take(&mut state.is_down) {
                // What could not be told before is told through this daemon.
                state.peers.values().for_each(|peer| peer.bell.wake_by_ref());
            }
            let Poll::Ready(Ok(accepted)) = accepted else { return };
            accepted.into_iter().for_each(|accepted| self.take_in(state, accepted));
        }
        // Those concerned are woken before more is accepted.
        self.has_news.store(true, Ordering::SeqCst);
    }

    /// Handles whatever a peer has pushed.
    fn take_in(&self, state: &mut State, accepted: Accepted) {
        let Accepted { from, tensor } = accepted;
        let Some((frame, rest)) = Frame::parse(tensor.bytes()) else { return };
        let key = Key { peer: from, is_dialed: !frame.is_from_dialer, stream: frame.stream };
        if let Kind::Open(window) = frame.kind {
            // The numbers of streams that are dialed here are chosen by this side.
            if frame.is_from_dialer {
                self.opened(state, key, &text(rest), window);
            }
            return;
        }
        let Some(connection) = state.connections.get_mut(&key).filter(|connection| !connection.end.is_failed()) else {
            if let Kind::Ring(_) = frame.kind {
                // Gives the ring back to its writer.
                drop(self.ring_of(&key.peer, rest));
            }
            if is_answered(frame.kind) {
                let reason = "the stream has ended there".into();
                self.answer(state, &key, Word::Reset { code: Code::Unavailable as u64, taken: UNKNOWN, reason });
            }
            return;
        };
        if let Kind::Reset(code) = frame.kind {
            let (taken, reason) = parse_reset(rest);
            if connection.reset_there(taken, code == CLOSED) {
                state.figures.of(&key.peer).reset += u64::from(code != CLOSED);
                state.wakers.extend(connection.stop(reset_by(&key.peer, code, &reason)));
                self.settle_rest(state, &key, "");
            }
            return;
        }
        match frame.kind {
            Kind::Ring(from) => return self.goes_on_by_ring(state, &key, from, rest),
            Kind::Socket(from) => return self.goes_on_by_socket(state, &key, from, rest),
            Kind::Offer(number) => return self.offered_socket(state, &key, number),
            Kind::Have(number) => return self.had_there(state, &key, number),
            Kind::Broken(number) => return self.broke_there(state, &key, number),
            Kind::Lost(has) => return self.lost_there(state, &key, has, rest),
            Kind::Data(_) => self.task.came_by_daemon(&key.peer, rest.len()),
            _ => {}
        }
        let data_bytes = matches!(frame.kind, Kind::Data(_)).then_some(rest.len());
        let came = connection.incoming.came();
        let taken = connection.take_in(frame.kind, tensor.into_buffer());
        state.figures.of(&key.peer).bytes_received += connection.incoming.came() - came;
        let concerned = match frame.kind {
            Kind::Accept(_) | Kind::Window(_) | Kind::Taken(_) => connection.writer.take(),
            _ => connection.reader.take(),
        };
        state.wakers.extend(concerned);
        match (taken, frame.kind) {
            (Err(reason), _) => return self.fail(state, &key, &Error::unavailable(&key.peer, reason)),
            (Ok(()), Kind::Finish(bytes)) if connection.end.has_all() => self.tell(state, &key, Word::Taken(bytes)),
            (Ok(()), _) => self.send_waiting(state, &key),
        }
        self.look_for_finish(state, &key);
        if let Some(bytes) = data_bytes {
            self.goes_by_daemon(state, &key, bytes);
        }
        self.settle_rest(state, &key, "");
    }

    /// Handles a peer's dial.
    fn opened(&self, state: &mut State, key: Key, name: &str, window: u64) {
        if let Some(connection) = state.connections.get(&key) {
            if connection.end.is_failed() {
                return;
            }
            return self.fail(state, &key, &Error::unavailable(&key.peer, "it has opened the stream twice"));
        }
        let count = state.connections.len();
        let Some(listener) = state.listeners.get_mut(name) else {
            return self.refuse(state, &key, Code::NotFound, &format!("nobody listens for '{name}'"));
        };
        let allowed = listener.options.window_bytes.min(STREAM_UNACCEPTED_BYTES);
        if listener.waiting.len() >= STREAM_BACKLOG_MAX || count >= STREAMS_MAX {
            let reason = format!("{STREAM_BACKLOG_MAX} streams wait to be accepted, or {STREAMS_MAX} are open");
            let Some(other) = listener.gives_way(&key.peer) else {
                return self.refuse(state, &key, Code::ResourceExhausted, &reason);
            };
            self.fail(state, &other, &Error::full("streams", reason));
            self.forget(state, &other, "");
        }
        let mut connection = Connection::new(allowed, state.lent.clone());
        connection.end.open();
        connection.outgoing.allow(window);
        let listener = state.listeners.get_mut(name).expect("just looked at");
        listener.waiting.push_back(key.clone());
        state.wakers.append(&mut listener.wakers);
        state.connections.insert(key.clone(), connection);
        state.figures.of(&key.peer).opened += 1;
        self.meet(state, &key.peer).streams += 1;
        self.watch(state, &key.peer);
        self.push(state, &key, Kind::Accept(allowed), &[]);
    }

    /// The peer's entry, made if there is none.
    fn meet<'a>(&self, state: &'a mut State, peer: &Arc<str>) -> &'a mut Peer {
        state.peers.entry(peer.clone()).or_insert_with(|| {
            // Looked at now for the first time, and later by its waker.
            let bell = Waker::from(Arc::new(Bell { hub: self.itself.clone(), peer: peer.clone() }));
            bell.wake_by_ref();
            Peer::new(bell)
        })
    }

    /// Ends the streams of a peer that have waited for it since the last request timeout.
    fn give_up_late(&self, state: &mut State, name: &Arc<str>) {
        let of_peer = state.connections.iter_mut().filter(|(key, _)| key.peer == *name);
        let late: Vec<_> = of_peer
            .filter_map(|(key, connection)| connection.has_waited().then(|| (key.clone(), connection.end.is_open())))
            .collect();
        for (key, is_open) in late {
            let what = if is_open { "take in what was written in a stream" } else { "answer the dial of a stream" };
            let reason = format!("{name} did not {what} within a request timeout");
            self.fail(state, &key, &Error::TimedOut { reason: reason.into() });
        }
    }

    /// The direct connections of a stream that its caller has.
    pub(super) fn direct_of(&self, key: &Key) -> Arc<Direct> {
        self.unless_forked(|state| connection_of(state, key).direct.clone()).unwrap_or_default()
    }

    /// Ends a stream for its owner.
    pub(super) fn end(&self, state: &mut State, key: &Key, reason: &str) {
        if connection_of(state, key).error.is_none() {
            self.fail(state, key, &Error::unavailable(&key.peer, format!("the stream was reset here: {reason}")));
        }
    }

    /// Ends a stream here, and tells the other end.
    pub(super) fn fail(&self, state: &mut State, key: &Key, error: &Error) {
        let Some(connection) = state.connections.get_mut(key) else { return };
        if connection.end.fail() {
            let (code, taken) = (error.code() as u64, connection.came());
            state.wakers.extend(connection.stop(error.clone()));
            state.figures.of(&key.peer).reset += 1;
            self.tell(state, key, Word::Reset { code, taken, reason: error.to_string().into() });
            self.settle_rest(state, key, "");
        }
    }

    /// Tells a peer that its stream is refused.
    fn refuse(&self, state: &mut State, key: &Key, code: Code, reason: &str) {
        self.answer(state, key, Word::Reset { code: code as u64, taken: 0, reason: reason.into() });
    }

    /// Ends the streams of a peer that is gone or unreachable. It may not know, and may come back, so it is told of each stream.
    fn lose(&self, state: &mut State, name: &Arc<str>, error: &Error) {
        if let Some(peer) = state.peers.get_mut(name) {
            peer.lose();
        }
        self.fail_those(state, error, |key| key.peer == *name);
    }

    /// Ends everything: nobody can reach this task.
    fn fail_all(&self, state: &mut State, error: &Error) {
        state.is_down = true;
        state.peers.values_mut().for_each(Peer::lose);
        self.fail_those(state, error, |_| true);
        for listener in state.listeners.values_mut() {
            listener.error = Some(error.clone());
            state.wakers.append(&mut listener.wakers);
        }
    }

    fn fail_those(&self, state: &mut State, error: &Error, is_one: impl Fn(&Key) -> bool) {
        let those: Vec<Key> = state.connections.keys().filter(|key| is_one(key)).cloned().collect();
        for key in those {
            connection_of(state, &key).is_counted = false;
            self.fail(state, &key, error);
        }
    }

    /// Begins a stream to a listener of `peer`; returns its key.
    ///
    /// # Errors
    /// ResourceExhausted if there are too many streams, InvalidArgument for a name that is too long.
    pub(super) fn dial(&self, peer: &str, name: &str, options: StreamOptions) -> Result<Key, Error> {
        if name.len() > STREAM_REASON_MAX {
            return Err(Error::invalid(format!("a listener's name has at most {STREAM_REASON_MAX} bytes")));
        }
        self.task.check_fork()?;
        self.with(|state| {
            if state.connections.len() >= STREAMS_MAX {
                return Err(Error::full("streams", format!("{STREAMS_MAX} are open")));
            }
            state.last = state.last.wrapping_add(1);
            let key = Key { peer: peer.into(), is_dialed: true, stream: state.last };
            let connection = Connection::new(options.window_bytes, state.lent.clone());
            state.connections.insert(key.clone(), connection);
            state.figures.of(&key.peer).opened += 1;
            self.meet(state, &key.peer).streams += 1;
            self.watch(state, &key.peer);
            self.push(state, &key, Kind::Open(options.window_bytes), name.as_bytes());
            Ok(key)
        })
    }

    /// Makes streams to `name` wait to be accepted from now on.
    ///
    /// # Errors
    /// Someone listens there already.
    pub(super) fn listen(&self, name: &str, options: StreamOptions) -> Result<(), Error> {
        self.task.check_fork()?;
        self.with(|state| {
            if state.listeners.contains_key(name) {
                return Err(Error::invalid(format!("'{name}' already has a listener")));
            }
            state.listeners.insert(name.into(), Listener { options, ..Listener::default() });
            Ok(())
        })
    }

    /// Removes a listener, and resets the streams that wait for it.
    pub(super) fn stop_listening(&self, name: &str) {
        self.unless_forked(|state| {
            let Listener { waiting, wakers, .. } = state.listeners.remove(name).unwrap_or_default();
            state.wakers.extend(wakers);
            for key in waiting {
                self.forget(state, &key, "the listener was closed");
            }
        });
    }

    /// Releases a stream that has no owner any more: it is reset, unless both ends know that it has ended, or will.
    pub(super) fn forget(&self, state: &mut State, key: &Key, reason: &str) {
        let Some(connection) = state.connections.get_mut(key) else { return };
        connection.end.leave();
        connection.discard();
        self.settle_rest(state, key, reason);
    }

    /// Does what is left to do for a stream that its owner has left for that reason.
    fn settle_rest(&self, state: &mut State, key: &Key, reason: &str) {
        let Some(connection) = state.connections.get(key).filter(|connection| connection.end.is_left()) else { return };
        let (taken, rest) = (connection.came(), connection.end.rest());
        let (code, reason) = match rest {
            Rest::Delivery => return,
            // What it wrote has to arrive first, and a push of it may have been refused.
            Rest::Close if !connection.end.is_delivered() && !connection.has_left() => {
                return self.meet(state, &key.peer).await_all();
            }
            Rest::Nothing => (None, ""),
            // What it wrote is complete, and read as such; nobody reads what the other end writes.
            Rest::Close => (Some(CLOSED), "it has closed the stream"),
            Rest::Reset => (Some(Code::Unavailable as u64), reason),
        };
        let is_counted = connection.is_counted;
        state.count_direct(key);
        let removed = state.connections.remove(key);
        if let Some(connection) = &removed {
            state.sockets.let_go(connection);
            self.give_back_ring(connection, &key.peer);
        }
        let untold = removed.and_then(|connection| connection.refused.into_ring());
        state.figures.of(&key.peer).reset += u64::from(rest == Rest::Reset);
        if let Some(code) = code {
            self.tell(state, key, Word::Reset { code, taken, reason: reason.into() });
        }
        if let Some(frame) = untold {
            // A peer that does not have the stream gives its ring back.
            self.post(state, key, frame, false);
        }
        if is_counted && let Some(peer) = state.peers.get_mut(&key.peer) {
            peer.streams -= 1;
            if peer.is_idle() {
                state.peers.remove(&key.peer);
            } else if peer.streams == 0 {
                // Pushes in flight go on, and their outcomes are heard.
                peer.await_all();
            }
        }
    }
}

impl State {
    pub(super) fn figures(&mut self) -> Vec<(Arc<str>, StreamFigures)> {
        let keys: Vec<Key> = self.connections.keys().cloned().collect();
        keys.iter().for_each(|key| self.count_direct(key));
        // One that its owner has left only waits for its last outcomes.
        let open = self.connections.iter().filter(|(_, connection)| !connection.end.is_left());
        self.figures.with(open.map(|(key, _)| &key.peer))
    }

    /// Adds a stream's bytes that bypassed the daemon to the figures.
    fn count_direct(&mut self, key: &Key) {
        let (sent, received) = self.connections.get_mut(key).map_or((0, 0), Connection::count_direct);
        if sent + received > 0 {
            let figures = self.figures.of(&key.peer);
            (figures.bytes_sent, figures.bytes_received) =
                (figures.bytes_sent + sent, figures.bytes_received + received);
        }
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        if self.task.check_fork().is_err() {
            // Another thread of the parent may have been changing it.
            let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(std::mem::take(state));
        }
    }
}

fn connection_of<'a>(state: &'a mut State, key: &Key) -> &'a mut Connection {
    state.connections.get_mut(key).expect("the caller found it")
}

/// The error for a reset by the other end.
fn reset_by(peer: &str, code: u64, reason: &str) -> Error {
    let reason = format!("the stream was reset by its other end: {reason}");
    match code {
        code if code == Code::NotFound as u64 => Error::NotFound { task: peer.into(), reason: reason.into() },
        code if code == Code::ResourceExhausted as u64 => Error::full("a limit of the peer", reason),
        _ => Error::unavailable(peer, reason),
    }
}
