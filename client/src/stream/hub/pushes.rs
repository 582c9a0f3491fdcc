//! Pushes in flight to a peer, in order, and streams that wait for their turn. What the peer has no memory for is pushed again,
//! in order, for a while.

use std::{
    collections::VecDeque,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use sealane_transport::{
    Code, Error, RecvOptions,
    tensor::{DType, Tensor, TensorMeta},
};

use super::{
    super::{
        frame::reset_to_bytes,
        untold::{Untold, Word},
    },
    Connection, Frame, Hub, Key, Kind, NEVER, QUEUE, State, connection_of,
    life::Life,
    sockets::Supply,
};
use crate::{
    Receiving, Sending,
    limits::{
        STREAM_PUSHES_AWAITED, STREAM_PUSHES_MAX, STREAM_REPLIES_MAX, STREAM_RETRY_MAX, STREAM_RETRY_PAUSE,
        STREAM_TELL_PAUSE,
    },
};

/// A task with which there are streams, or that is still to be told of some.
pub(super) struct Peer {
    pub(super) life: Life,
    pub(super) bell: Waker,
    /// Pushes in flight, in order.
    pushes: VecDeque<Posted>,
    /// How many of the first of them somebody waits for.
    awaited: usize,
    /// Number of pushes in flight that the peer has caused.
    replies: usize,
    /// Streams with bytes to push, in turn.
    queued: VecDeque<Key>,
    /// Streams to ask the peer about, or to tell it of, in turn.
    pub(super) asked: VecDeque<Key>,
    /// Streams with refused pushes, and the pause after which these are pushed again.
    refused: Vec<Key>,
    pause: Option<Receiving>,
    /// The recv that ends with the peer is to be renewed after the pause.
    pub(super) is_unwatched: bool,
    pub(super) supply: Supply,
    pub(super) untold: Untold,
    /// The pause after which failed last words are pushed again.
    untold_pause: Option<Receiving>,
    pub(super) streams: usize,
}

impl Peer {
    pub(super) fn new(bell: Waker) -> Peer {
        Peer {
            life: Life::default(),
            bell,
            pushes: VecDeque::new(),
            awaited: 0,
            replies: 0,
            queued: VecDeque::new(),
            asked: VecDeque::new(),
            refused: Vec::new(),
            pause: None,
            is_unwatched: false,
            supply: Supply::default(),
            untold: Untold::default(),
            untold_pause: None,
            streams: 0,
        }
    }

    /// The peer is gone, or cannot be reached: drops everything about its streams, except what it is to be told.
    pub(super) fn lose(&mut self) {
        let (bell, mut untold) = (self.bell.clone(), std::mem::take(&mut self.untold));
        untold.interrupt();
        *self = Peer { untold, ..Peer::new(bell) };
    }

    /// Somebody waits for pushes to be taken: for a retry, for last words, or for room.
    fn is_awaited(&self) -> bool {
        self.awaited > 0 || self.pushes.len() >= STREAM_PUSHES_AWAITED
    }

    /// From now on, all pushes in flight are waited for.
    pub(super) fn await_all(&mut self) {
        let was_awaited = self.is_awaited();
        self.awaited = self.pushes.len();
        if was_awaited != self.is_awaited() {
            self.bell.wake_by_ref();
        }
    }

    /// The outcomes of pushes matter only for what is left to do: there are no streams, or last words wait for room.
    fn is_behind(&self) -> bool {
        self.streams == 0 || self.untold.has_due()
    }

    /// There are no streams with it, and no push or last word is pending.
    pub(super) fn is_idle(&self) -> bool {
        self.streams == 0 && self.pushes.is_empty() && self.untold.is_empty()
    }

    /// Takes the pushes that have ended, in order.
    fn ended(&mut self, context: &mut Context<'_>) -> Vec<(Posted, Result<(), Error>)> {
        let (is_awaited, mut ended) = (self.is_awaited(), Vec::new());
        while let Some(posted) = self.pushes.front_mut()
            && let Poll::Ready(outcome) = match is_awaited {
                true => std::pin::pin!(&mut posted.push).poll(context),
                false => posted.push.poll_aside(context),
            }
        {
            self.awaited = self.awaited.saturating_sub(1);
            let posted = self.pushes.pop_front().expect("it was just polled");
            self.replies -= usize::from(posted.frame.is_reply);
            ended.push((posted, outcome));
        }
        ended
    }
}

/// A pushed frame of a stream.
pub(in crate::stream) struct Pushed {
    /// It carries bytes of the stream, or their end.
    carries: bool,
    /// It is a last word, with that serial number.
    word: Option<u64>,
    /// The peer has caused it.
    is_reply: bool,
    tensor: Tensor,
}

impl Pushed {
    fn is_ring(&self) -> bool {
        matches!(Frame::parse(self.tensor.bytes()), Some((Frame { kind: Kind::Ring(_), .. }, _)))
    }
}

/// A push in flight.
struct Posted {
    stream: u64,
    is_dialed: bool,
    frame: Pushed,
    /// It was refused before.
    is_again: bool,
    push: Sending,
}

/// Frames that a peer had no memory for, and those behind them, which the peer does not keep. Pushed again one by one.
#[derive(Default)]
pub(in crate::stream) struct Refused {
    frames: VecDeque<Pushed>,
    /// Pushes in flight whose outcomes are awaited first.
    on_way: usize,
    /// One of `frames` is being pushed again.
    is_trying: bool,
    /// They wait for a pause to end.
    is_paused: bool,
    /// When the first of them was refused, and why.
    since: Option<(Instant, Error)>,
}

impl Refused {
    /// True if no other bytes of the stream may be sent.
    pub(in crate::stream) fn holds(&self) -> bool {
        self.is_trying || !self.frames.is_empty()
    }

    /// True if no more frames that the peer causes may be kept.
    fn is_full(&self) -> bool {
        self.frames.len() >= STREAM_REPLIES_MAX
    }

    /// True if everything pushed was taken, as far as is known.
    pub(in crate::stream) fn is_over(&self) -> bool {
        self.on_way == 0 && !self.holds()
    }

    /// The stream has ended: nothing is pushed again, except its ring's place when its owner has left it.
    pub(in crate::stream) fn give_up(&mut self) {
        self.frames.retain(Pushed::is_ring);
    }

    /// The frame with its ring's place, if that was to be pushed again.
    pub(super) fn into_ring(self) -> Option<Pushed> {
        self.frames.into_iter().find(Pushed::is_ring)
    }

    /// Handles the end of a push; returns the frame unless it is to be pushed again.
    fn settle(&mut self, frame: Pushed, is_again: bool, refusal: Option<Error>, now: Instant) -> Option<Pushed> {
        self.on_way -= usize::from((frame.carries || is_again) && self.on_way > 0);
        let is_refused = refusal.is_some();
        if let Some(error) = refusal {
            self.since.get_or_insert((now, error));
        }
        match (is_again, is_refused) {
            (true, false) => (self.is_trying, self.since) = (false, None),
            (true, true) => {
                self.is_trying = false;
                self.frames.push_front(frame);
                return None;
            }
            // The peer does not keep what is behind missing bytes.
            (false, _) if is_refused || frame.carries && self.holds() => {
                self.frames.push_back(frame);
                return None;
            }
            (false, _) => {}
        }
        Some(frame)
    }
}

impl Hub {
    /// Handles what has ended of a peer: pushes that it took, or its process.
    pub(super) fn look_after(&self, state: &mut State, name: &Arc<str>) {
        let Some(peer) = state.peers.get_mut(name) else { return };
        let bell = peer.bell.clone();
        let mut context = Context::from_waker(&bell);
        // What it took counts before its end does.
        for (posted, outcome) in peer.ended(&mut context) {
            let key = Key { peer: name.clone(), is_dialed: posted.is_dialed, stream: posted.stream };
            self.settle(state, &key, posted.frame, posted.is_again, outcome);
        }
        self.look_at_life(state, name, &mut context);
        if let Some(peer) = state.peers.get_mut(name)
            && let Some(pause) = &mut peer.pause
            && std::pin::pin!(pause).poll(&mut context).is_ready()
        {
            peer.pause = None;
            let (refused, is_unwatched) = (std::mem::take(&mut peer.refused), std::mem::take(&mut peer.is_unwatched));
            refused.iter().for_each(|key| self.push_again(state, key));
            if is_unwatched {
                self.watch(state, name);
            }
        }
        self.serve(state, name);
        self.tell_untold(state, name, &mut context);
        if state.peers.get(name).is_some_and(Peer::is_idle) {
            state.peers.remove(name);
        }
    }

    /// Handles the end of a push.
    fn settle(&self, state: &mut State, key: &Key, frame: Pushed, is_again: bool, outcome: Result<(), Error>) {
        if let Some(serial) = frame.word {
            let untold = &mut self.meet(state, &key.peer).untold;
            return untold.settle((key.is_dialed, key.stream), serial, outcome.is_ok(), Instant::now());
        }
        let refusal = outcome.as_ref().err().filter(|error| error.code() == Code::ResourceExhausted).cloned();
        // If the stream is gone, the other end was told all that it had to hear.
        let Some(connection) = state.connections.get_mut(key) else { return };
        if !connection.end.is_failed() && (outcome.is_ok() || refusal.is_some()) {
            let settled = connection.refused.settle(frame, is_again, refusal, Instant::now());
            let (is_left, is_taken) = (connection.refused.on_way == 0 && connection.refused.holds(), settled.is_some());
            if is_left && !connection.refused.is_trying {
                self.push_later(state, key, is_again && is_taken);
            } else if is_again && is_taken {
                self.send_waiting(state, key);
            }
            if !is_taken {
                // It is pushed again once the outcomes of all earlier pushes are known.
                self.meet(state, &key.peer).await_all();
                return;
            }
        }
        let Some(connection) = state.connections.get_mut(key) else { return };
        if is_again {
            state.wakers.extend(connection.writer.take());
        }
        // The other end misses what it carried, and only this says so; unless the other end has everything after all.
        if let Err(error) = outcome
            && !connection.end.is_delivered()
        {
            self.fail(state, key, &error);
        }
        self.settle_rest(state, key, "");
    }

    /// Pushes again what was refused of a stream: at once if `is_next`, else after a pause.
    fn push_later(&self, state: &mut State, key: &Key, is_next: bool) {
        if is_next {
            return self.push_again(state, key);
        }
        if !std::mem::replace(&mut connection_of(state, key).refused.is_paused, true) {
            self.pausing(state, &key.peer).refused.push(key.clone());
        }
    }

    /// The peer's entry, with the pause begun after which refused frames are pushed again.
    pub(super) fn pausing<'a>(&self, state: &'a mut State, name: &Arc<str>) -> &'a mut Peer {
        let peer = self.meet(state, name);
        if peer.pause.is_none() {
            peer.pause = Some(self.pause(name, "refused", STREAM_RETRY_PAUSE));
            peer.bell.wake_by_ref();
        }
        peer
    }

    /// A recv that ends after that time, since nobody sends what it waits for.
    fn pause(&self, name: &str, what: &str, time: Duration) -> Receiving {
        let options = RecvOptions { timeout: Some(time), ..RecvOptions::default() };
        self.task.recv_with(self.task.name(), NEVER, &format!("{QUEUE}.{what}.{name}"), options)
    }

    fn push_again(&self, state: &mut State, key: &Key) {
        let Some(connection) = state.connections.get_mut(key).filter(|connection| !connection.end.is_failed()) else {
            return;
        };
        let refused = &mut connection.refused;
        refused.is_paused = false;
        if refused.is_trying {
            return;
        }
        if let Some((since, error)) = &refused.since
            && since.elapsed() >= STREAM_RETRY_MAX
        {
            let error = error.clone();
            return self.fail(state, key, &error);
        }
        if let Some(frame) = refused.frames.pop_front() {
            refused.is_trying = true;
            self.post(state, key, frame, true);
        }
    }

    /// Lets waiting streams push, in turn.
    pub(super) fn serve(&self, state: &mut State, name: &Arc<str>) {
        while let Some(peer) = state.peers.get_mut(name)
            && peer.pushes.len() < STREAM_PUSHES_MAX
            && let Some(key) = peer.queued.pop_front()
        {
            let Some(connection) = state.connections.get_mut(&key) else { continue };
            connection.outgoing.is_queued = false;
            if connection.refused.holds() {
                continue;
            }
            let waiting = connection.outgoing.next_waiting();
            if !waiting.is_empty() {
                self.push_data(state, &key, &waiting);
            }
            let Some(connection) = state.connections.get_mut(&key) else { continue };
            state.wakers.extend(connection.writer.take());
            if !connection.outgoing.waiting.is_empty() {
                // More came back from a broken connection than one push holds, or the other end allows.
                if connection.outgoing.allowed_now() > 0 {
                    connection.outgoing.is_queued = true;
                    self.meet(state, name).queued.push_back(key);
                }
                continue;
            }
            if connection.end.is_to_tell() {
                connection.end.told();
                let sent = connection.sent();
                self.push(state, &key, Kind::Finish(sent), &[]);
            }
        }
        self.ask(state, name);
    }

    /// Asks the peer about streams by repeating their windows: it answers where it takes one for ended. Tells it of acceptances and windows
    /// that waited because it had too many replies to take.
    fn ask(&self, state: &mut State, name: &Arc<str>) {
        while let Some(peer) = state.peers.get_mut(name)
            && peer.pushes.len() < STREAM_PUSHES_MAX
            && let Some(key) = peer.asked.pop_front()
        {
            if let Some(connection) = state.connections.get(&key).filter(|connection| !connection.end.is_failed()) {
                let allowed = connection.incoming.allowed();
                let kind = if connection.is_unanswered { Kind::Accept(allowed) } else { Kind::Window(allowed) };
                self.push(state, &key, kind, &[]);
            }
        }
    }

    /// Pushes last words, as many as may be in flight.
    pub(super) fn tell_untold(&self, state: &mut State, name: &Arc<str>, context: &mut Context<'_>) {
        // Without a daemon nothing is sent; the peer is looked after when there is one.
        if state.is_down || self.task.poll_daemon(context).is_pending() {
            return;
        }
        let Some(peer) = state.peers.get_mut(name) else { return };
        if let Some(pause) = &mut peer.untold_pause
            && let Poll::Ready(ended) = std::pin::pin!(pause).poll(context)
        {
            peer.untold_pause = None;
            // After any other error the time has not passed: tried again when something else happens.
            if ended.is_err_and(|unreceived| unreceived.error.code() == Code::DeadlineExceeded) {
                peer.untold.again();
            }
        } else if peer.untold_pause.is_none() && peer.untold.has_failed() {
            peer.untold_pause = Some(self.pause(name, "untold", STREAM_TELL_PAUSE));
            peer.bell.wake_by_ref();
        }
        while let Some(peer) = state.peers.get_mut(name)
            && peer.pushes.len() < STREAM_PUSHES_MAX
            && let Some(((is_dialed, stream), serial, word)) = peer.untold.next()
        {
            let key = Key { peer: name.clone(), is_dialed, stream };
            let tensor = match word {
                Word::Taken(bytes) => self.tensor(&key, Kind::Taken(bytes), &[]),
                Word::Reset { code, taken, reason } => {
                    self.tensor(&key, Kind::Reset(code), &reset_to_bytes(taken, &reason))
                }
            };
            self.post(state, &key, Pushed { carries: false, word: Some(serial), is_reply: false, tensor }, false);
        }
    }

    /// Pushes a stream's waiting bytes, now or in turn.
    pub(super) fn send_waiting(&self, state: &mut State, key: &Key) {
        let Some(connection) = state.connections.get_mut(key) else { return };
        let Connection { outgoing, refused, end, .. } = connection;
        let has_nothing = outgoing.waiting.is_empty() && !end.is_to_tell();
        if has_nothing || outgoing.is_queued || refused.holds() || end.is_failed() {
            return;
        }
        outgoing.is_queued = true;
        self.meet(state, &key.peer).queued.push_back(key.clone());
        self.serve(state, &key.peer);
    }

    /// Takes bytes to send: pushes them if it is the stream's turn, else keeps them. Returns how many; none if there is no room.
    pub(super) fn write(&self, state: &mut State, key: &Key, bytes: &[u8]) -> usize {
        let Some(connection) = state.connections.get_mut(key) else { return 0 };
        let Connection { outgoing, refused, .. } = connection;
        let count = outgoing.room().min(bytes.len());
        if count == 0 {
            return 0;
        }
        let is_next = outgoing.waiting.is_empty() && !outgoing.is_queued && !refused.holds();
        if is_next && self.meet(state, &key.peer).pushes.len() < STREAM_PUSHES_MAX {
            self.push_data(state, key, &bytes[..count]);
        } else {
            connection_of(state, key).outgoing.waiting.extend_from_slice(&bytes[..count]);
            self.send_waiting(state, key);
        }
        count
    }

    fn push_data(&self, state: &mut State, key: &Key, bytes: &[u8]) {
        let outgoing = &mut connection_of(state, key).outgoing;
        let from = outgoing.sent;
        outgoing.sent += bytes.len() as u64;
        state.figures.of(&key.peer).bytes_sent += bytes.len() as u64;
        self.push(state, key, Kind::Data(from), bytes);
        self.goes_by_daemon(state, key, bytes.len());
    }

    /// Pushes a frame of a stream. Its outcome is handled in order.
    ///
    /// A peer that does not take its replies gets no more of them: acceptances and windows wait, and a stream with another reply ends.
    pub(super) fn push(&self, state: &mut State, key: &Key, kind: Kind, bytes: &[u8]) {
        let is_reply =
            matches!(kind, Kind::Accept(_) | Kind::Window(_) | Kind::Have(_) | Kind::Broken(_) | Kind::Lost(_));
        if is_reply {
            let has_room = self.meet(state, &key.peer).replies < STREAM_REPLIES_MAX;
            let is_full = state.connections.get(key).is_some_and(|connection| connection.refused.is_full());
            match (kind, state.connections.get_mut(key)) {
                (Kind::Accept(_), Some(connection)) => connection.is_unanswered = !has_room,
                (Kind::Accept(_) | Kind::Window(_), _) => {}
                _ if has_room && !is_full => {}
                _ => {
                    let reason = format!("it has not taken {STREAM_REPLIES_MAX} frames about streams");
                    return self.fail(state, key, &Error::unavailable(&key.peer, reason));
                }
            }
            if !has_room {
                let asked = &mut self.meet(state, &key.peer).asked;
                if !asked.contains(key) {
                    asked.push_back(key.clone());
                }
                return;
            }
        }
        // Frames about a connection stay behind the frame that announced it.
        let carries =
            matches!(kind, Kind::Data(_) | Kind::Finish(_) | Kind::Ring(_) | Kind::Socket(_) | Kind::Broken(_));
        let tensor = self.tensor(key, kind, bytes);
        self.post(state, key, Pushed { carries, word: None, is_reply, tensor }, false);
    }

    /// Tells the other end of a stream a last word.
    pub(super) fn tell(&self, state: &mut State, key: &Key, word: Word) {
        let peer = self.meet(state, &key.peer);
        peer.untold.tell((key.is_dialed, key.stream), word, Instant::now());
        self.told_soon(state, key);
    }

    /// Answers a peer that has sent something of an unknown stream.
    pub(super) fn answer(&self, state: &mut State, key: &Key, word: Word) {
        let peer = self.meet(state, &key.peer);
        peer.untold.answer((key.is_dialed, key.stream), word, Instant::now());
        self.told_soon(state, key);
    }

    fn told_soon(&self, state: &mut State, key: &Key) {
        let bell = self.meet(state, &key.peer).bell.clone();
        self.tell_untold(state, &key.peer, &mut Context::from_waker(&bell));
        if let Some(peer) = state.peers.get_mut(&key.peer)
            && peer.is_behind()
        {
            peer.await_all();
        }
    }

    pub(super) fn post(&self, state: &mut State, key: &Key, frame: Pushed, is_again: bool) {
        if let Some(connection) = state.connections.get_mut(key) {
            connection.refused.on_way += usize::from(frame.carries || is_again);
        }
        let push = self.task.push(&key.peer, QUEUE, frame.tensor.share());
        let peer = self.meet(state, &key.peer);
        let was_awaited = peer.is_awaited();
        peer.replies += usize::from(frame.is_reply);
        peer.pushes.push_back(Posted { stream: key.stream, is_dialed: key.is_dialed, frame, is_again, push });
        if is_again {
            peer.awaited = peer.pushes.len();
        }
        if peer.pushes.len() == 1 || was_awaited != peer.is_awaited() {
            peer.bell.wake_by_ref();
        }
    }

    /// A frame as a tensor, whose memory is shared with its push.
    pub(super) fn tensor(&self, key: &Key, kind: Kind, bytes: &[u8]) -> Tensor {
        let frame = Frame { kind, is_from_dialer: key.is_dialed, stream: key.stream }.to_bytes();
        let memory = self.source.filled(&frame, bytes);
        let meta = TensorMeta::new(DType::U8, &[memory.len() as u64]);
        let payload = sealane_transport::Payload::from(memory).into_shared();
        meta.and_then(|meta| Tensor::new(meta, payload)).expect("bytes are a tensor of as many")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn frame(number: u64) -> Pushed {
        let tensor = Tensor::from_elements(&[1], &[number]).unwrap();
        Pushed { carries: true, word: None, is_reply: false, tensor }
    }

    #[test]
    fn what_is_behind_a_refused_push_is_pushed_again_in_order() {
        let (mut refused, now) = (Refused { on_way: 4, ..Refused::default() }, Instant::now());
        let full = || Some(Error::full("a limit of the test", "it is full"));
        assert!(refused.settle(frame(0), false, None, now).is_some());
        assert!(!refused.holds());
        for (number, refusal) in [(1, full()), (2, None), (3, full())] {
            assert!(refused.settle(frame(number), false, refusal, now + Duration::from_secs(number)).is_none());
        }
        assert!(refused.holds() && refused.on_way == 0);
        assert_eq!(refused.since.as_ref().map(|(since, _)| *since), Some(now + Duration::from_secs(1)));
        let mut taken = Vec::new();
        for refusal in [full(), None, None, None] {
            let again = refused.frames.pop_front().unwrap();
            (refused.is_trying, refused.on_way) = (true, 1);
            taken.extend(refused.settle(again, true, refusal, now));
        }
        let numbers: Vec<u8> = taken.iter().map(|pushed| pushed.tensor.bytes()[0]).collect();
        assert_eq!((numbers, refused.holds(), refused.since.is_none()), (vec![1, 2, 3], false, true));
    }
}
