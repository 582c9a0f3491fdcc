//! Where recvs whose producer is a task of another node meet their tensors, small ones of which may come before their recvs.
//!
//! A recv of a pair that has made a request on this link before first waits for a [while](delayed_requests): usually its tensor comes ahead
//! of any request. If not, it sends its request, which is how it learns everything else: that the producer has left, that the step has
//! ended, that the tensor is large. Until then recvs of one call wait [together](posted), and tensors that came before their call wait
//! [together](unexpected) as well. Bounded by `fusion.queued_requests_max`, and what is kept by the peers' credit and
//! [`KEPT_AHEAD_BYTES_MAX`](crate::limits::KEPT_AHEAD_BYTES_MAX).

mod arrivals;
mod delayed_requests;
#[cfg(any(test, feature = "fuzzing"))]
mod invariants;
mod key_lists;
mod posted;
mod recvs;
mod unexpected;

use std::hash::BuildHasher;
use std::time::Instant;

use hashbrown::{DefaultHashBuilder, HashSet, HashTable};
use sealane_runtime::earliest;
use sealane_transport::limits::AHEAD_TENSOR_BYTES;
use sealane_transport::session::{KeyOf, RequestOptions};
use sealane_transport::tensor::Tensor;
use sealane_transport::wire::Fate;
use sealane_transport::{Arena, Chains, Destination, Handle, reuse_key};

use super::batches::Batches;
use super::large_keys::LargeKeys;
use crate::limits::REQUEST_DELAY;
use crate::node::cells::RecvWaiter;
use crate::rendezvous::{MatchKey, RawMatchKey};

use delayed_requests::{DelayedRequests, RequestDelay};
use posted::Posted;
pub(in crate::node) use posted::ToPost;
use unexpected::Unexpected;

/// Consecutive tensors that came ahead, by their numbers in the session.
#[derive(Clone, Copy)]
struct AheadRange {
    session: Handle,
    first: u64,
    count: u32,
    /// What they cost of the session's credit.
    cost: usize,
}

/// A tensor that came before its recv.
struct Kept {
    range: AheadRange,
    tensor: Tensor,
}

/// Memory of a kept tensor that costs `cost` credit: its entry, its share of index and chains, and what it allocates.
fn memory_of(cost: usize) -> usize {
    cost + 3 * size_of::<Handle>() + size_of::<Entry>()
}

/// A recv that waits, or a tensor that came before its recv.
struct Entry {
    pair: u32,
    step: i64,
    key: String,
    since: Instant,
    deadline: Instant,
    /// The caller's memory, until the request is sent.
    destination: Option<Destination>,
    /// Set for a recv that waits.
    waiter: Option<RecvWaiter>,
    options: RequestOptions,
    /// The delay before its request, and when it was sent; `None` if it was not sent, or at once.
    waited: Option<(RequestDelay, Instant)>,
    /// It may get a tensor that comes ahead; those lie in host memory.
    takes_ahead: bool,
    /// The session by which its request was sent, and the id of the request there.
    request: Option<(Handle, Handle)>,
    kept: Option<Kept>,
}

impl Entry {
    /// An unused entry.
    #[cold]
    fn nothing() -> Self {
        let now = Instant::now();
        Entry {
            pair: 0,
            step: 0,
            key: String::new(),
            since: now,
            deadline: now,
            destination: None,
            waiter: None,
            options: RequestOptions::default(),
            waited: None,
            takes_ahead: false,
            request: None,
            kept: None,
        }
    }

    #[inline]
    fn is(&self, at: RawMatchKey<'_>) -> bool {
        (self.pair, self.step, self.key.as_bytes()) == (at.pair, at.step, at.key)
    }
}

/// Recvs from, and early tensors of, other nodes; see the module.
pub(in crate::node) struct RemoteRecvs {
    entries: Arena<Entry>,
    index: HashTable<Handle>,
    hasher: DefaultHashBuilder,
    /// `entries` by pair and step, for ending a step.
    steps: Chains,
    /// Recvs of one call that wait together.
    posted: Posted,
    /// Recvs that have not sent their requests yet.
    delayed: DelayedRequests,
    /// Recvs that are to send their requests now.
    hurried: Vec<Handle>,
    /// Pairs and steps whose recvs were all hurried since requests were last sent: done once, whatever a peer says.
    hurried_steps: HashSet<(u32, i64)>,
    /// Tensors that came before the call that will have them.
    unexpected: Vec<Unexpected>,
    /// Memory of all kept tensors.
    kept_bytes: usize,
    /// Keys whose recvs send their requests at once.
    large: LargeKeys,
    /// Kept tensors that have ended in this turn. They are released later: those that a client took must be in its ring before their
    /// producers hear of it.
    to_release: Vec<(AheadRange, Fate)>,
}

#[inline]
fn hash(hasher: &DefaultHashBuilder, at: RawMatchKey<'_>) -> u64 {
    hasher.hash_one((at.pair, at.step, at.key))
}

#[inline]
fn find(index: &HashTable<Handle>, entries: &Arena<Entry>, hash: u64, at: RawMatchKey<'_>) -> Option<Handle> {
    index.find(hash, |handle| entries.get(*handle).is_some_and(|entry| entry.is(at))).copied()
}

impl RemoteRecvs {
    pub(super) fn new() -> Self {
        Self {
            entries: Arena::new(usize::MAX),
            index: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            steps: Chains::default(),
            posted: Posted::default(),
            delayed: DelayedRequests::default(),
            hurried: Vec::new(),
            hurried_steps: HashSet::new(),
            unexpected: Vec::new(),
            kept_bytes: 0,
            large: LargeKeys::new(),
            to_release: Vec::new(),
        }
    }

    /// When the next recv is to send its request.
    #[inline]
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        earliest([self.delayed.next_deadline(), self.posted.next_deadline()])
    }

    #[inline]
    fn hash(&self, at: RawMatchKey<'_>) -> u64 {
        hash(&self.hasher, at)
    }

    #[inline]
    fn find(&self, hash: u64, at: RawMatchKey<'_>) -> Option<Handle> {
        find(&self.index, &self.entries, hash, at)
    }

    /// Adds an entry for a match key under which nothing waits, to be filled.
    #[inline]
    fn enter(&mut self, hash: u64, at: MatchKey<'_>) -> (Handle, &mut Entry) {
        let Self { entries, index, hasher, steps, .. } = self;
        let (handle, entry) = entries.renew(Entry::nothing).expect("2^32 recvs do not fit in memory");
        (entry.pair, entry.step) = (at.pair, at.step);
        entry.key.push_str(at.key);
        let rehash = |handle: &Handle| {
            let entry = entries.get(*handle).expect("the index holds live entries");
            hasher.hash_one((entry.pair, entry.step, entry.key.as_bytes()))
        };
        index.insert_unique(hash, handle, rehash);
        steps.add(handle, (at.pair, at.step));
        (handle, entries.get_mut(handle).expect("just entered"))
    }

    /// Removes an entry, whose hash is known, and returns what `f` makes of it.
    #[inline]
    fn take<R>(&mut self, hash: u64, handle: Handle, f: impl FnOnce(&mut Entry) -> R) -> Option<R> {
        if let Ok(slot) = self.index.find_entry(hash, |other| *other == handle) {
            slot.remove();
        }
        self.steps.remove(handle);
        let taken = self.entries.retire(handle, |entry| {
            reuse_key(&mut entry.key);
            f(entry)
        });
        if self.entries.is_empty() {
            self.delayed.clear();
        }
        taken
    }

    /// Like [`take`](Self::take), by the handle alone.
    fn remove<R>(&mut self, handle: Handle, f: impl FnOnce(&mut Entry) -> R) -> Option<R> {
        let Entry { pair, step, key, .. } = self.entries.get(handle)?;
        let hash = self.hash(RawMatchKey { pair: *pair, step: *step, key: key.as_bytes() });
        self.take(hash, handle, f)
    }

    /// Removes an entry and returns the tensor kept in it.
    fn take_kept(&mut self, handle: Handle) -> Option<Kept> {
        self.entries.get(handle)?.kept.as_ref()?;
        let kept = self.remove(handle, |entry| entry.kept.take())??;
        self.kept_bytes -= memory_of(kept.range.cost);
        Some(kept)
    }

    #[inline]
    pub(super) fn waits(&self, handle: Handle) -> bool {
        self.entries.get(handle).is_some_and(|entry| entry.waiter.is_some())
    }

    fn of_step(&self, pair: u32, step: i64) -> Vec<Handle> {
        let mut handles = self.steps.of((pair, step));
        handles.retain(|&handle| self.entries.get(handle).is_some_and(|it| (it.pair, it.step) == (pair, step)));
        handles
    }

    /// Remembers whether an answer's tensor is large.
    #[inline]
    fn note_size(&mut self, handle: Handle, bytes: usize) {
        let Some(Entry { pair, key, .. }) = self.entries.get(handle) else { return };
        if bytes > AHEAD_TENSOR_BYTES {
            self.large.insert(*pair, key);
        } else {
            self.large.remove(*pair, key);
        }
    }

    /// Notes whether the request of a recv was useful: if the answer comes at once, the tensor was already there.
    #[inline]
    fn note_use(&mut self, now: Instant, handle: Handle) {
        let Some(&Entry { pair, waited: Some((delay, sent)), .. }) = self.entries.get(handle) else { return };
        if now > sent + 2 * REQUEST_DELAY {
            self.delayed.was_in_vain(pair, delay);
        } else {
            self.delayed.was_useful(pair);
        }
    }

    /// The recv's waiter, for an answer with a tensor of `bytes` bytes, or without one; `None` if nobody waits any more.
    #[inline]
    pub(in crate::node) fn answered(
        &mut self,
        now: Instant,
        handle: Handle,
        bytes: Option<usize>,
    ) -> Option<RecvWaiter> {
        if let Some(bytes) = bytes {
            self.note_size(handle, bytes);
            self.note_use(now, handle);
        }
        if !self.waits(handle) {
            return None;
        }
        self.remove(handle, |entry| entry.waiter.take())?
    }

    /// The peer recalls a tensor: returns what it cost if it was kept here; it no longer is.
    pub(in crate::node) fn revoked(&mut self, session: Handle, number: u64, pair: u32, of: KeyOf<'_>) -> Option<usize> {
        let at = RawMatchKey { pair, step: of.step, key: of.key.as_bytes() };
        self.split_up(at);
        let handle = self.find(self.hash(at), at)?;
        let kept = self.entries.get(handle)?.kept.as_ref()?;
        if (kept.range.session, kept.range.first) != (session, number) {
            return None;
        }
        self.take_kept(handle).map(|kept| kept.range.cost)
    }

    /// A link is lost: future recvs wait for the shortest time again.
    pub(in crate::node) fn forget_delays(&mut self) {
        self.delayed.forget();
    }

    /// The caller of recvs that wait together no longer waits.
    pub(in crate::node) fn close_posted(&mut self, batch: Handle) {
        self.posted.close(batch);
    }

    /// The peer keeps a tensor until it is requested: its recv sends the request at once, now or when it is made.
    pub(in crate::node) fn held(&mut self, pair: u32, of: KeyOf<'_>, batches: &mut Batches) {
        self.large.insert(pair, of.key);
        self.delayed.was_useful(pair);
        let at = RawMatchKey { pair, step: of.step, key: of.key.as_bytes() };
        // Other recvs of the step may also wait for kept tensors, and for long.
        let is_long = self.delayed.is_long() || self.posted.is_long();
        let hurries_all = is_long && self.hurried_steps.insert((pair, of.step));
        if hurries_all || self.posted.find(at).is_some() {
            self.unpost_those(batches, |pair, step| (pair, step) == (at.pair, at.step));
        }
        let waiting = match hurries_all {
            true => self.of_step(pair, at.step),
            false => self.find(self.hash(at), at).into_iter().collect(),
        };
        let is_to_request = |entry: &Entry| entry.waiter.is_some() && entry.request.is_none();
        self.hurried.extend(waiting.into_iter().filter(|handle| self.entries.get(*handle).is_some_and(is_to_request)));
    }
}
