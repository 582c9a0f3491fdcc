//! Trace events of requests: recorded by sessions and their owner on one shard, for a listener on another thread. Without a
//! listener there is no recorder, and nothing is recorded.
//!
//! A recorder delivers its events in batches and never blocks: if the listener falls behind, events are dropped and counted.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Instant;

use crate::arena::Handle;

const BATCH: usize = 1024;
/// Batches that may wait for the listener: some 100,000 events, or about ten megabytes.
const BATCHES_MAX: usize = 128;

/// An event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Moment {
    /// A caller has made a recv from a peer.
    RecvQueued { step: i64, key: Box<str> },
    /// The recv's request was written for the link.
    RecvOnTheWire,
    /// The recv's tensor has arrived.
    RecvDelivered { bytes: u64 },
    /// The recv ended without a tensor, or moves to another session.
    RecvEnded,
    /// A recv got its tensor from memory: from a task of its own shard, or one that came ahead of its request.
    RecvInMemory {
        step: i64,
        key: Box<str>,
        /// When the recv was made.
        since: Instant,
        bytes: u64,
    },
    /// A send waits for its recv.
    SendQueued { step: i64, key: Box<str>, bytes: u64 },
    /// The send was matched with its recv: it is now a response, with this name in its session.
    SendMatched { session: u64, response: Handle },
    /// A response was written for the link.
    ResponseOnTheWire,
    /// The consumer has released the send's tensor.
    SendReleased,
    /// The send ended without its tensor taken, or its tensor came back and waits again: then the send is queued a second time.
    SendEnded,
    /// A send whose recv waited already, in a task of its own shard, has ended at once.
    SendInMemory { step: i64, key: Box<str>, bytes: u64 },
    /// A pull was made.
    PullQueued { tensors: u64 },
    /// The pull has got everything that will come.
    PullEnded,
    /// Tensors were pushed together.
    PushQueued { queue: Box<str>, tensors: u64 },
    /// The queue has taken the tensors, or they have failed.
    PushEnded,
}

/// One event of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceEvent {
    pub at: Instant,
    /// The session, to which the name of the call belongs; 0 for calls named by the owner of the sessions.
    pub session: u64,
    /// The name of the call or answer.
    pub call: Handle,
    pub moment: Moment,
}

/// Events of one shard, in order.
#[derive(Debug)]
pub struct Batch {
    pub shard: u16,
    pub events: Vec<TraceEvent>,
}

/// Where recorders send their events, for one listener. Clones send to the same listener.
#[derive(Debug, Clone)]
pub struct TraceSender {
    batches: SyncSender<Batch>,
    dropped: Arc<AtomicU64>,
}

/// The listener's end.
#[derive(Debug)]
pub struct TraceReceiver {
    /// What recorders have sent; closed once the last of them is gone.
    pub batches: Receiver<Batch>,
    dropped: Arc<AtomicU64>,
}

impl TraceReceiver {
    /// Number of events that were dropped because the listener fell behind.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// The two ends of a trace.
pub fn trace() -> (TraceSender, TraceReceiver) {
    let (sender, batches) = sync_channel(BATCHES_MAX);
    let dropped = Arc::new(AtomicU64::new(0));
    (TraceSender { batches: sender, dropped: dropped.clone() }, TraceReceiver { batches, dropped })
}

/// One shard's recorder. Clones record into the same batch.
#[derive(Debug, Clone)]
pub struct Recorder {
    shared: Rc<Shared>,
    session: u64,
}

#[derive(Debug)]
struct Shared {
    shard: u16,
    sender: TraceSender,
    events: RefCell<Vec<TraceEvent>>,
}

impl Recorder {
    pub fn new(sender: TraceSender, shard: u16) -> Recorder {
        let events = RefCell::new(Vec::with_capacity(BATCH));
        Recorder { shared: Rc::new(Shared { shard, sender, events }), session: 0 }
    }

    /// This recorder for one session, which has any number but 0.
    pub fn of_session(&self, session: u64) -> Recorder {
        Recorder { shared: self.shared.clone(), session }
    }

    #[cold]
    pub fn record(&self, call: Handle, moment: Moment) {
        let event = TraceEvent { at: Instant::now(), session: self.session, call, moment };
        let mut events = self.shared.events.borrow_mut();
        events.push(event);
        if events.len() >= BATCH {
            self.shared.send(&mut events);
        }
    }

    /// Sends what was recorded: called between turns, and before the shard sleeps.
    pub fn flush(&self) {
        let mut events = self.shared.events.borrow_mut();
        if !events.is_empty() {
            self.shared.send(&mut events);
        }
    }
}

/// Records an event of a call, for listeners. If there are none, this only checks a pointer: the recording is kept out of
/// the caller's code.
#[inline]
pub fn tell(recorder: Option<&Recorder>, call: Handle, moment: impl FnOnce() -> Moment) {
    #[cold]
    #[inline(never)]
    fn record(recorder: &Recorder, call: Handle, moment: impl FnOnce() -> Moment) {
        recorder.record(call, moment());
    }
    if let Some(recorder) = recorder {
        record(recorder, call, moment);
    }
}

impl Shared {
    fn send(&self, events: &mut Vec<TraceEvent>) {
        let events = std::mem::replace(events, Vec::with_capacity(BATCH));
        match self.sender.batches.try_send(Batch { shard: self.shard, events }) {
            Ok(()) => {}
            Err(TrySendError::Full(batch) | TrySendError::Disconnected(batch)) => {
                self.sender.dropped.fetch_add(batch.events.len() as u64, Ordering::Relaxed);
            }
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let mut events = std::mem::take(self.events.get_mut());
        if !events.is_empty() {
            self.send(&mut events);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_batches_with_the_session_that_they_are_of() {
        let (sender, receiver) = trace();
        let recorder = Recorder::new(sender, 3);
        recorder.record(Handle::from_bits(7), Moment::PullEnded);
        recorder.of_session(9).record(Handle::from_bits(8), Moment::RecvOnTheWire);
        assert!(receiver.batches.try_recv().is_err(), "it waits for more");
        recorder.flush();
        recorder.flush();
        let batch = receiver.batches.recv().unwrap();
        assert_eq!(batch.shard, 3);
        let seen: Vec<_> = batch.events.iter().map(|event| (event.session, event.call.to_bits())).collect();
        assert_eq!(seen, [(0, 7), (9, 8)]);
        assert!(batch.events[0].at <= batch.events[1].at);
        recorder.record(Handle::from_bits(1), Moment::PushEnded);
        drop(recorder);
        assert_eq!(receiver.batches.iter().map(|batch| batch.events.len()).sum::<usize>(), 1, "the last leave with it");
    }

    #[test]
    fn a_listener_that_is_behind_makes_nobody_wait() {
        let (sender, receiver) = trace();
        let recorder = Recorder::new(sender, 0);
        for _ in 0..BATCH * (BATCHES_MAX + 2) {
            recorder.record(Handle::NONE, Moment::PullEnded);
        }
        assert_eq!(receiver.dropped(), 2 * BATCH as u64);
        assert_eq!(receiver.batches.try_iter().count(), BATCHES_MAX);
    }
}
