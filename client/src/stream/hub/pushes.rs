//! Pushes on their way to a peer, in order, and streams that wait for their turn. What the peer has no memory for is pushed again,
//! in order, for a while.

use std::{
    collections::VecDeque,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Instant,
};

use sealane_transport::{
    Code, Error, RecvOptions,
    tensor::{DType, Tensor, TensorMeta},
};

use super::{Connection, Frame, Hub, Key, Kind, NEVER, QUEUE, State, connection_of};
use crate::{
    Receiving, Sending,
    limits::{STREAM_BACKLOG_MAX, STREAM_PUSHES_AWAITED, STREAM_PUSHES_MAX, STREAM_RETRY_MAX, STREAM_RETRY_PAUSE},
};

/// A task that there are streams with.
pub(super) struct Peer {
    /// Ends when the peer's process does.
    pub(super) life: Receiving,
    pub(super) bell: Waker,
    /// Pushes that it has not taken yet, in order.
    pushes: VecDeque<Posted>,
    /// Somebody waits to hear that it has taken so many of the first of them.
    awaited: usize,
    /// Streams that have bytes to push, in turn.
    queued: VecDeque<Key>,
    /// Streams whose pushes were refused, and what ends when they are pushed again.
    refused: Vec<Key>,
    /// Resets that were refused.
    unheard: Vec<(Key, Pushed)>,
    pause: Option<Receiving>,
    pub(super) streams: usize,
}

impl Peer {
    pub(super) fn new(life: Receiving, bell: Waker) -> Peer {
        let (pushes, queued, refused) = (VecDeque::new(), VecDeque::new(), Vec::new());
        Peer { life, bell, pushes, awaited: 0, queued, refused, unheard: Vec::new(), pause: None, streams: 0 }
    }

    /// Somebody waits to hear that it has taken pushes: the end of a stream, what comes before a retry or is one, or for room.
    fn is_awaited(&self) -> bool {
        self.awaited > 0 || self.pushes.len() >= STREAM_PUSHES_AWAITED
    }

    /// From now on, all that are on their way are waited for.
    pub(super) fn await_all(&mut self) {
        let was_awaited = self.is_awaited();
        self.awaited = self.pushes.len();
        if was_awaited != self.is_awaited() {
            self.bell.wake_by_ref();
        }
    }

    /// There are no streams with it, and nothing is to be heard of what was pushed.
    pub(super) fn is_idle(&self) -> bool {
        self.streams == 0 && self.pushes.is_empty() && self.unheard.is_empty()
    }

    /// Pushes that have ended, in order.
    fn ended(&mut self, context: &mut Context<'_>) -> Vec<(Posted, Result<(), Error>)> {
        let (is_awaited, mut ended) = (self.is_awaited(), Vec::new());
        while let Some(posted) = self.pushes.front_mut()
            && let Poll::Ready(outcome) = match is_awaited {
                true => std::pin::pin!(&mut posted.push).poll(context),
                false => posted.push.poll_aside(context),
            }
        {
            self.awaited = self.awaited.saturating_sub(1);
            ended.extend(self.pushes.pop_front().map(|posted| (posted, outcome)));
        }
        ended
    }
}

/// What is pushed of a stream.
pub(in crate::stream) struct Pushed {
    /// It has bytes of the stream, or their end.
    carries: bool,
    is_end: bool,
    /// It is a reset, first pushed then.
    resets_since: Option<Instant>,
    tensor: Tensor,
}

/// A push on its way.
struct Posted {
    stream: u64,
    is_dialed: bool,
    frame: Pushed,
    /// It was refused before.
    is_again: bool,
    push: Sending,
}

impl Posted {
    fn is_of(&self, key: &Key) -> bool {
        (self.stream, self.is_dialed) == (key.stream, key.is_dialed)
    }
}

/// What a peer had no memory for, and what came behind it, which the peer does not keep. Pushed again one by one.
#[derive(Default)]
pub(in crate::stream) struct Refused {
    frames: VecDeque<Pushed>,
    /// Pushes on their way that are to be heard of first.
    on_way: usize,
    /// One of `frames` is on its way again.
    is_trying: bool,
    /// They wait for a pause to end.
    is_paused: bool,
    /// When the first of them was refused, and why.
    since: Option<(Instant, Error)>,
}

impl Refused {
    /// Nothing else of the stream's bytes leaves.
    pub(in crate::stream) fn holds(&self) -> bool {
        self.is_trying || !self.frames.is_empty()
    }

    /// The stream has ended: nothing is pushed again. How many pushes of its bytes are lost.
    pub(in crate::stream) fn give_up(&mut self) -> usize {
        self.frames.drain(..).filter(|frame| frame.carries).count()
    }

    /// A push has ended; gives it back if it has not to be pushed again.
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
            // What is behind bytes that are missing there was not kept.
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
    /// Something about a peer has ended: pushes that it took, or its process.
    pub(super) fn look_after(&self, state: &mut State, name: &Arc<str>) {
        let Some(peer) = state.peers.get_mut(name) else { return };
        let bell = peer.bell.clone();
        let mut context = Context::from_waker(&bell);
        // What it took counts before its end does.
        for (posted, outcome) in peer.ended(&mut context) {
            let key = Key { peer: name.clone(), is_dialed: posted.is_dialed, stream: posted.stream };
            self.settle(state, &key, posted.frame, posted.is_again, outcome);
        }
        if !self.is_alive(state, name, &mut context) {
            return;
        }
        if let Some(peer) = state.peers.get_mut(name)
            && let Some(pause) = &mut peer.pause
            && std::pin::pin!(pause).poll(&mut context).is_ready()
        {
            peer.pause = None;
            let (refused, unheard) = (std::mem::take(&mut peer.refused), std::mem::take(&mut peer.unheard));
            refused.iter().for_each(|key| self.push_again(state, key));
            unheard.into_iter().for_each(|(key, reset)| self.post(state, &key, reset, false));
        }
        self.serve(state, name);
        if state.peers.get(name).is_some_and(Peer::is_idle) {
            state.peers.remove(name);
        }
    }

    /// False if the peer's process has ended.
    fn is_alive(&self, state: &mut State, name: &Arc<str>, context: &mut Context<'_>) -> bool {
        let Some(peer) = state.peers.get_mut(name) else { return false };
        let mut has_waited = false;
        while let Poll::Ready(ended) = std::pin::pin!(&mut peer.life).poll(context) {
            let error = match ended {
                Err(unreceived) if unreceived.error.code() == Code::DeadlineExceeded => {
                    peer.life = self.task.recv(name, NEVER, QUEUE);
                    has_waited = true;
                    continue;
                }
                Err(unreceived) => unreceived.error,
                // A peer that answers is none of ours; that must not keep this thread.
                Ok(_) => Error::unavailable(name, "it has answered what is never answered"),
            };
            state.lose(name, &error);
            return false;
        }
        if has_waited {
            self.give_up_dials(state, name);
        }
        true
    }

    /// A push has ended.
    fn settle(&self, state: &mut State, key: &Key, frame: Pushed, is_again: bool, outcome: Result<(), Error>) {
        let refusal = outcome.as_ref().err().filter(|error| error.code() == Code::ResourceExhausted).cloned();
        if let Some(since) = frame.resets_since {
            if refusal.is_some() && since.elapsed() < STREAM_RETRY_MAX {
                self.reset_again(state, key, frame);
            }
            return;
        }
        let carries = frame.carries;
        let Some(connection) = state.connections.get_mut(key) else {
            // Its owner let go of it while that was on its way. One reset is enough for all that was.
            let last = state.peers.get(&key.peer).and_then(|peer| peer.pushes.back());
            if let Err(error) = outcome
                && carries
                && !last.is_some_and(|last| last.frame.resets_since.is_some() && last.is_of(key))
            {
                self.reset(state, key, error.code() as u64, &error.to_string());
            }
            return;
        };
        if connection.error.is_none() && (outcome.is_ok() || refusal.is_some()) {
            let settled = connection.refused.settle(frame, is_again, refusal, Instant::now());
            let (is_left, is_taken) = (connection.refused.on_way == 0 && connection.refused.holds(), settled.is_some());
            if is_left && !connection.refused.is_trying {
                self.push_later(state, key, is_again && is_taken);
            } else if is_again && is_taken {
                self.send_waiting(state, key);
            }
            if !is_taken {
                // It is pushed again when all that was pushed before has been heard of.
                self.meet(state, &key.peer).await_all();
                return;
            }
        }
        let Some(connection) = state.connections.get_mut(key) else { return };
        // A peer may have opened anew what it had ended.
        connection.outgoing.on_way = connection.outgoing.on_way.saturating_sub(usize::from(carries));
        connection.outgoing.is_lost |= carries && outcome.is_err();
        let is_first = connection.error.is_none();
        if connection.outgoing.is_finished || is_again {
            state.wakers.extend(connection.writer.take());
        }
        // What it carried is missing there, and nothing says so but this.
        if let Err(error) = outcome
            && is_first
        {
            self.fail(state, key, &error);
        }
    }

    /// Pushes what was refused of a stream, after a pause where the last was refused as well.
    fn push_later(&self, state: &mut State, key: &Key, is_next: bool) {
        if is_next {
            return self.push_again(state, key);
        }
        if !std::mem::replace(&mut connection_of(state, key).refused.is_paused, true) {
            self.pausing(state, &key.peer).refused.push(key.clone());
        }
    }

    /// Pushes a reset again after a pause. Each that waits costs memory: not more than so many do.
    fn reset_again(&self, state: &mut State, key: &Key, frame: Pushed) {
        let peer = self.pausing(state, &key.peer);
        if peer.unheard.len() < STREAM_BACKLOG_MAX {
            peer.unheard.push((key.clone(), frame));
        }
    }

    /// The peer's entry; what it refused is pushed again after a pause.
    fn pausing<'a>(&self, state: &'a mut State, name: &Arc<str>) -> &'a mut Peer {
        let peer = self.meet(state, name);
        if peer.pause.is_none() {
            let options = RecvOptions { timeout: Some(STREAM_RETRY_PAUSE), destination: None };
            let queue = format!("{QUEUE}.{name}");
            peer.pause = Some(self.task.recv_with(self.task.name(), NEVER, &queue, options));
            peer.bell.wake_by_ref();
        }
        peer
    }

    fn push_again(&self, state: &mut State, key: &Key) {
        let Some(connection) = state.connections.get_mut(key).filter(|connection| connection.error.is_none()) else {
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

    /// Lets streams push that waited for their turn.
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
            let waiting = std::mem::take(&mut connection.outgoing.waiting);
            if !waiting.is_empty() {
                self.push_data(state, &key, &waiting);
            }
            let Some(connection) = state.connections.get_mut(&key) else { continue };
            state.wakers.extend(connection.writer.take());
            if connection.outgoing.is_finished && !connection.outgoing.has_told {
                connection.outgoing.has_told = true;
                let sent = connection.outgoing.sent;
                self.push(state, &key, Kind::Finish(sent), &[]);
            }
        }
    }

    /// Pushes what waits in a stream, now or in its turn.
    pub(super) fn send_waiting(&self, state: &mut State, key: &Key) {
        let Some(connection) = state.connections.get_mut(key) else { return };
        let Connection { outgoing, refused, error, .. } = connection;
        let has_end = outgoing.is_finished && !outgoing.has_told;
        let has_nothing = outgoing.waiting.is_empty() && !has_end;
        if has_nothing || outgoing.is_queued || refused.holds() || error.is_some() {
            return;
        }
        outgoing.is_queued = true;
        self.meet(state, &key.peer).queued.push_back(key.clone());
        self.serve(state, &key.peer);
    }

    /// Takes bytes to send: pushes them where the stream has its turn, else keeps them. How many; none where there is no room.
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
    }

    /// Pushes a frame of a stream. What becomes of it is heard in its turn.
    pub(super) fn push(&self, state: &mut State, key: &Key, kind: Kind, bytes: &[u8]) {
        let is_end = matches!(kind, Kind::Finish(_));
        let carries = is_end || matches!(kind, Kind::Data(_));
        if let Some(connection) = state.connections.get_mut(key) {
            connection.outgoing.on_way += usize::from(carries);
        }
        let tensor = self.tensor(key, kind, bytes);
        self.post(state, key, Pushed { carries, is_end, resets_since: None, tensor }, false);
    }

    /// Tells the other end of a stream that it has ended; again for a while, where it has no memory for that.
    pub(super) fn reset(&self, state: &mut State, key: &Key, code: u64, reason: &str) {
        let (tensor, resets_since) = (self.reset_tensor(key, code, reason), Some(Instant::now()));
        self.post(state, key, Pushed { carries: false, is_end: false, resets_since, tensor }, false);
    }

    fn post(&self, state: &mut State, key: &Key, frame: Pushed, is_again: bool) {
        if let Some(connection) = state.connections.get_mut(key) {
            connection.refused.on_way += usize::from(frame.carries || is_again);
        }
        let push = self.task.push(&key.peer, QUEUE, frame.tensor.share());
        let peer = self.meet(state, &key.peer);
        let (was_awaited, is_to_be) = (peer.is_awaited(), frame.is_end || is_again);
        peer.pushes.push_back(Posted { stream: key.stream, is_dialed: key.is_dialed, frame, is_again, push });
        if is_to_be {
            peer.awaited = peer.pushes.len();
        }
        if peer.pushes.len() == 1 || was_awaited != peer.is_awaited() {
            peer.bell.wake_by_ref();
        }
    }

    /// A frame, whose memory is shared with its push.
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
        Pushed { carries: true, is_end: false, resets_since: None, tensor }
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
