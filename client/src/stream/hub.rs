//! What carries the streams of a task: pushes into one queue of each task, which its own hub empties. A hub runs on whichever
//! thread calls it or wakes it, one at a time, and waits for
//! nothing: while a daemon is being restarted its calls fail, and what it accepts from comes by the next one.
//!
//! Reliability, order and what happens when a link is lost are those of pushes. The rest is here: bytes that one end has
//! allowed the other (as in HTTP/2, RFC 9113, section 5.2), so that a stream that nobody reads holds up itself alone; and a recv
//! that is never answered, by which a hub learns that a peer's process has ended.

mod polls;
mod pushes;

use std::{
    collections::{HashMap, VecDeque},
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use sealane_transport::{Code, Error, tensor::Tensor};

use pushes::Peer;
pub(super) use pushes::Refused;

use super::{
    StreamOptions,
    connection::{Connection, Lent},
    figures::{Figures, StreamFigures},
    frame::{CLOSED, Frame, Kind},
    memory::Source,
};
use crate::{
    AcceptOptions, Accepted, Acceptor, Sending, Task, Waiter,
    acceptor::Watch,
    attachment::at_once,
    limits::{
        STREAM_ACCEPTORS_MAX, STREAM_ACCEPTS_IN_A_ROW, STREAM_ACCEPTS_PER_LOOK, STREAM_AREA_SHARE, STREAM_BACKLOG_MAX,
        STREAM_QUEUE_BYTES, STREAM_REASON_MAX, STREAM_UNACCEPTED_BYTES, STREAMS_MAX,
    },
};

/// The queue of a task that the frames of its streams are pushed into.
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
    /// Who accepts, or did: all are woken for each stream.
    wakers: Vec<Waker>,
    options: StreamOptions,
    pub(super) error: Option<Error>,
}

impl Listener {
    /// Has somebody woken who waits for a stream. `others` are to be woken when the state is free again.
    pub(super) fn wake_too(&mut self, waker: &Waker, others: &mut Vec<Waker>) {
        if self.wakers.iter().any(|known| known.will_wake(waker)) {
            return;
        }
        if self.wakers.len() >= STREAM_ACCEPTORS_MAX {
            // Most of them wait no more; the others come again.
            others.append(&mut self.wakers);
        }
        self.wakers.push(waker.clone());
    }
}

pub(super) struct State {
    pub(super) connections: HashMap<Key, Connection>,
    pub(super) listeners: HashMap<Box<str>, Listener>,
    peers: HashMap<Arc<str>, Peer>,
    last: u64,
    lent: Lent,
    figures: Figures,
    /// What dialers are told who were refused, as long as they have not heard it.
    refusals: Vec<Sending>,
    watch: Watch,
    /// Whom to wake when the state is free again.
    wakers: Vec<Waker>,
}

/// See the module.
pub(super) struct Hub {
    task: Task,
    acceptor: Acceptor,
    waiter: Waiter,
    /// Memory that bytes leave from.
    source: Source,
    state: Mutex<State>,
    /// Something has come since the last look.
    has_news: AtomicBool,
    /// Peers of which something has.
    rung: Mutex<Vec<Arc<str>>>,
    /// Wakes it when something was pushed.
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

/// Wakes a hub for its queue; holds no hub, which ends with its last stream.
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
        let state = State {
            connections: HashMap::new(),
            listeners: HashMap::new(),
            peers: HashMap::new(),
            // A number that a former process of this task has not used, most likely.
            last: RandomState::new().hash_one(()),
            lent: Lent::new(2 * share),
            figures: Figures::default(),
            refusals: Vec::new(),
            watch: Watch::default(),
            wakers: Vec::new(),
        };
        let hub = Arc::new_cyclic(|itself| Hub {
            task: task.clone(),
            waiter: task.waiter(),
            source: Source::of(task, 2 * share as u64),
            acceptor: task.acceptor(QUEUE, AcceptOptions { bytes_max: share, ..AcceptOptions::default() }),
            state: Mutex::new(state),
            has_news: AtomicBool::new(true),
            rung: Mutex::default(),
            bell: Waker::from(Arc::new(QueueBell(itself.clone()))),
            itself: itself.clone(),
        });
        hub.look();
        hub
    }

    /// What a thread waits with for its streams.
    pub(super) fn waiter(&self) -> &Waiter {
        &self.waiter
    }

    /// Ready unless its daemon is being restarted.
    pub(super) fn poll_daemon(&self, context: &Context<'_>) -> Poll<()> {
        self.task.poll_daemon(context)
    }

    /// Lets `f` use the state, then looks at what came meanwhile, and wakes whom all that concerns.
    pub(super) fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        let result = self.run(lock(&self.state), f);
        self.look_at_news();
        result
    }

    fn run<T>(&self, mut state: MutexGuard<'_, State>, f: impl FnOnce(&mut State) -> T) -> T {
        // Whoever else has streams waits for the state.
        let result = at_once(|| f(&mut state));
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        result
    }

    /// Something came. Who has the state looks at it; this thread may be the very one.
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
                // Not locked meanwhile: what is done for one may ring for it again.
                let rung = std::mem::take(&mut *lock(&self.rung));
                rung.iter().for_each(|peer| self.look_after(state, peer));
            });
        }
    }

    /// Takes what was pushed.
    fn accept(&self, state: &mut State) {
        let mut context = Context::from_waker(&self.bell);
        for _ in 0..STREAM_ACCEPTS_IN_A_ROW {
            match self.acceptor.poll_accept(STREAM_ACCEPTS_PER_LOOK, &mut state.watch, &mut context) {
                Poll::Pending => return,
                Poll::Ready(Ok(accepted)) => accepted.into_iter().for_each(|accepted| self.take_in(state, accepted)),
                Poll::Ready(Err(error)) => {
                    state.fail_all(&error);
                    return;
                }
            }
        }
        // Whom all that concerns is woken before more is taken.
        self.has_news.store(true, Ordering::SeqCst);
    }

    /// Takes in what a peer has pushed: whatever it may be.
    fn take_in(&self, state: &mut State, accepted: Accepted) {
        let Accepted { from, tensor } = accepted;
        let Some((frame, rest)) = Frame::parse(tensor.bytes()) else { return };
        let key = Key { peer: from, is_dialed: !frame.is_from_dialer, stream: frame.stream };
        let text = || String::from_utf8_lossy(&rest[..rest.len().min(STREAM_REASON_MAX)]).into_owned();
        if let Kind::Open(window) = frame.kind {
            // The numbers of streams that are dialed here are this side's to choose.
            if frame.is_from_dialer {
                self.opened(state, key, &text(), window);
            }
            return;
        }
        let Some(connection) = state.connections.get_mut(&key) else {
            // Of one that has ended here, which the other end has been told: an answer to each would be theirs to ask for.
            return;
        };
        if connection.error.is_some() {
            return;
        }
        if let Kind::Reset(code) = frame.kind {
            connection.is_closed_there = code == CLOSED;
            state.figures.of(&key.peer).reset += u64::from(code != CLOSED);
            state.wakers.extend(connection.fail(reset_by(&key.peer, code, &text())));
            return;
        }
        let came = connection.incoming.came();
        let taken = connection.take_in(frame.kind, tensor.into_buffer());
        state.figures.of(&key.peer).bytes_received += connection.incoming.came() - came;
        let concerned = match frame.kind {
            Kind::Accept(_) | Kind::Window(_) => connection.writer.take(),
            _ => connection.reader.take(),
        };
        state.wakers.extend(concerned);
        match taken {
            Ok(()) => self.send_waiting(state, &key),
            Err(reason) => self.fail(state, &key, &Error::unavailable(&key.peer, reason)),
        }
    }

    /// A peer dials.
    fn opened(&self, state: &mut State, key: Key, name: &str, window: u64) {
        let count = state.connections.len();
        let Some(listener) = state.listeners.get_mut(name) else {
            return self.refuse(state, &key, Code::NotFound, &format!("nobody listens for '{name}'"));
        };
        if listener.waiting.len() >= STREAM_BACKLOG_MAX || count >= STREAMS_MAX {
            let reason = format!("{STREAM_BACKLOG_MAX} streams wait to be accepted, or {STREAMS_MAX} are open");
            return self.refuse(state, &key, Code::ResourceExhausted, &reason);
        }
        if let Some(connection) = state.connections.get(&key) {
            if connection.error.is_some() {
                return;
            }
            return self.fail(state, &key, &Error::unavailable(&key.peer, "it has opened the stream twice"));
        }
        let allowed = listener.options.window_bytes.min(STREAM_UNACCEPTED_BYTES);
        let mut connection = Connection::new(allowed, state.lent.clone());
        connection.is_open = true;
        connection.outgoing.allow(window);
        listener.waiting.push_back(key.clone());
        state.wakers.append(&mut listener.wakers);
        state.connections.insert(key.clone(), connection);
        state.figures.of(&key.peer).opened += 1;
        self.meet(state, &key.peer).streams += 1;
        self.push(state, &key, Kind::Accept(allowed), &[]);
    }

    /// The peer's entry; made if there is none.
    fn meet<'a>(&self, state: &'a mut State, peer: &Arc<str>) -> &'a mut Peer {
        state.peers.entry(peer.clone()).or_insert_with(|| {
            let bell = Waker::from(Arc::new(Bell { hub: self.itself.clone(), peer: peer.clone() }));
            // It is looked at for the first time, and then by its waker.
            bell.wake_by_ref();
            let life = self.task.recv(peer, NEVER, QUEUE);
            Peer::new(life, bell)
        })
    }

    /// A request timeout has passed: what was dialed before the last one and is not open ends.
    fn give_up_dials(&self, state: &mut State, name: &Arc<str>) {
        let mut late = Vec::new();
        for (key, connection) in state.connections.iter_mut().filter(|(key, _)| key.peer == *name) {
            if !connection.is_open && connection.error.is_none() && std::mem::replace(&mut connection.is_late, true) {
                late.push(key.clone());
            }
        }
        for key in late {
            let reason = format!("{name} did not answer the dial of a stream within a request timeout");
            self.fail(state, &key, &Error::TimedOut { reason: reason.into() });
        }
    }

    /// Its owner ends a stream.
    pub(super) fn end(&self, state: &mut State, key: &Key, reason: &str) {
        if connection_of(state, key).error.is_none() {
            self.fail(state, key, &Error::unavailable(&key.peer, format!("the stream was reset here: {reason}")));
        }
    }

    /// A stream ends here and there.
    fn fail(&self, state: &mut State, key: &Key, error: &Error) {
        if let Some(connection) = state.connections.get_mut(key) {
            state.figures.of(&key.peer).reset += u64::from(connection.error.is_none());
            state.wakers.extend(connection.fail(error.clone()));
        }
        self.reset(state, key, error.code() as u64, &error.to_string());
    }

    /// Tells a peer that a stream of its is not opened; unless so many have been told and not heard it, since each costs memory.
    fn refuse(&self, state: &mut State, key: &Key, code: Code, reason: &str) {
        if state.refusals.len() >= STREAM_BACKLOG_MAX {
            state.refusals.retain_mut(|refusal| refusal.try_outcome().is_none());
        }
        if state.refusals.len() < STREAM_BACKLOG_MAX {
            let reset = self.reset_tensor(key, code as u64, reason);
            state.refusals.push(self.task.push(&key.peer, QUEUE, reset));
        }
    }

    fn reset_tensor(&self, key: &Key, code: u64, reason: &str) -> Tensor {
        let mut end = reason.len().min(STREAM_REASON_MAX);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        self.tensor(key, Kind::Reset(code), &reason.as_bytes()[..end])
    }

    /// Begins a stream to a listener of `peer`; its key.
    ///
    /// # Errors
    /// ResourceExhausted if there are too many streams, InvalidArgument for a name that is too long.
    pub(super) fn dial(&self, peer: &str, name: &str, options: StreamOptions) -> Result<Key, Error> {
        if name.len() > STREAM_REASON_MAX {
            return Err(Error::invalid(format!("a listener's name has at most {STREAM_REASON_MAX} bytes")));
        }
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
            self.push(state, &key, Kind::Open(options.window_bytes), name.as_bytes());
            Ok(key)
        })
    }

    /// From now on, streams to `name` wait to be accepted.
    ///
    /// # Errors
    /// Someone listens there already.
    pub(super) fn listen(&self, name: &str, options: StreamOptions) -> Result<(), Error> {
        self.with(|state| {
            if state.listeners.contains_key(name) {
                return Err(Error::invalid(format!("'{name}' already has a listener")));
            }
            state.listeners.insert(name.into(), Listener { options, ..Listener::default() });
            Ok(())
        })
    }

    /// Nobody listens there any more: what waits is reset.
    pub(super) fn stop_listening(&self, name: &str) {
        self.with(|state| {
            let Listener { waiting, wakers, .. } = state.listeners.remove(name).unwrap_or_default();
            state.wakers.extend(wakers);
            for key in waiting {
                self.forget(state, &key, Code::Unavailable, "the listener was closed");
            }
        });
    }

    /// A stream has no owner any more: it is reset, unless both ends know that it has ended.
    pub(super) fn forget(&self, state: &mut State, key: &Key, code: Code, reason: &str) {
        let Some(connection) = state.connections.remove(key) else { return };
        // What was refused is not pushed again.
        if connection.error.is_none() && (!connection.outgoing.has_told || connection.refused.holds()) {
            state.figures.of(&key.peer).reset += 1;
            self.reset(state, key, code as u64, reason);
        } else if connection.error.is_none() && !connection.incoming.is_finished {
            // What it wrote is whole, and read as such; what the other end writes is read by nobody.
            self.reset(state, key, CLOSED, "it has closed the stream");
        }
        if connection.is_counted
            && let Some(peer) = state.peers.get_mut(&key.peer)
        {
            peer.streams -= 1;
            if peer.is_idle() {
                state.peers.remove(&key.peer);
            } else if peer.streams == 0 {
                // Pushes that are on their way go on, and what becomes of them is heard.
                peer.await_all();
            }
        }
    }
}

impl State {
    pub(super) fn figures(&self) -> Vec<(Arc<str>, StreamFigures)> {
        self.figures.with(self.connections.keys().map(|key| &key.peer))
    }

    /// A peer's process has ended, or cannot be reached.
    fn lose(&mut self, name: &Arc<str>, error: &Error) {
        self.peers.remove(name);
        self.end(error, |key| key.peer == *name);
    }

    /// This task can be reached by nobody.
    fn fail_all(&mut self, error: &Error) {
        self.peers.clear();
        self.end(error, |_| true);
        for listener in self.listeners.values_mut() {
            listener.error = Some(error.clone());
            self.wakers.append(&mut listener.wakers);
        }
    }

    fn end(&mut self, error: &Error, is_one: impl Fn(&Key) -> bool) {
        for (key, connection) in self.connections.iter_mut().filter(|(key, _)| is_one(key)) {
            self.figures.of(&key.peer).reset += u64::from(connection.error.is_none());
            connection.is_counted = false;
            connection.outgoing.is_lost |= connection.outgoing.on_way > 0;
            self.wakers.extend(connection.fail(error.clone()));
        }
    }
}

fn connection_of<'a>(state: &'a mut State, key: &Key) -> &'a mut Connection {
    state.connections.get_mut(key).expect("the caller found it")
}

/// What the other end says of a stream's end.
fn reset_by(peer: &str, code: u64, reason: &str) -> Error {
    let reason = format!("the stream was reset by its other end: {reason}");
    match code {
        code if code == Code::NotFound as u64 => Error::NotFound { task: peer.into(), reason: reason.into() },
        code if code == Code::ResourceExhausted as u64 => Error::full("a limit of the peer", reason),
        _ => Error::unavailable(peer, reason),
    }
}
