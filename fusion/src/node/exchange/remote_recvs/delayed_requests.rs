//! How long recvs wait for tensors that come ahead before they send requests: longer where requests were in vain.
//!
//! Usually the producer has not sent yet when a recv is made, or is busy, and a request costs both sides more than the tensor does. So the
//! delay of a pair doubles when a request found no tensor, at most [`REQUEST_DELAY_DOUBLINGS_MAX`] times. It is the shortest again when
//! there was a tensor that had not come: when the producer says that it keeps some ([`held`](super::RemoteRecvs::held)), when one goes back
//! to it, and when a request is answered at once. Recvs wait in the order in which they were made, in one queue for each delay, so that
//! none waits behind one with a longer delay.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use sealane_transport::Handle;

use crate::limits::{REQUEST_DELAY, REQUEST_DELAY_DOUBLINGS_MAX};

/// How often the delay of a recv's pair had doubled when it began to wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RequestDelay(u8);

impl RequestDelay {
    /// How long the recv waits.
    #[inline]
    pub(super) fn time(self) -> Duration {
        REQUEST_DELAY * (1 << self.0)
    }
}

/// The recvs that wait before they send requests; see the module.
#[derive(Default)]
pub(super) struct DelayedRequests {
    /// Recvs that have sent no request, and since when they wait; some may have ended.
    waiting: [VecDeque<(Handle, Instant)>; REQUEST_DELAY_DOUBLINGS_MAX as usize + 1],
    /// One bit for each queue that is not empty.
    used: u8,
    /// By the number of the pair; pairs beyond the end have the shortest time.
    of_pairs: Vec<RequestDelay>,
}

impl DelayedRequests {
    /// The delay of a pair's next recv.
    #[inline]
    pub(super) fn delay_of(&self, pair: u32) -> RequestDelay {
        self.of_pairs.get(pair as usize).copied().unwrap_or_default()
    }

    /// A request after this delay was in vain. Of many recvs that had waited together, only the first counts.
    #[inline]
    pub(super) fn was_in_vain(&mut self, pair: u32, delay: RequestDelay) {
        if delay.0 >= REQUEST_DELAY_DOUBLINGS_MAX || self.delay_of(pair) != delay {
            return;
        }
        let pair = pair as usize;
        if self.of_pairs.len() <= pair {
            self.of_pairs.resize(pair + 1, RequestDelay::default());
        }
        self.of_pairs[pair] = RequestDelay(delay.0 + 1);
    }

    /// The producer has a tensor that must be requested: the pair's recvs wait the shortest time again. True if that is a change.
    #[inline]
    pub(super) fn was_useful(&mut self, pair: u32) -> bool {
        let delay = self.of_pairs.get_mut(pair as usize);
        delay.is_some_and(|delay| std::mem::take(delay) != RequestDelay::default())
    }

    /// A link is lost: nothing is known about the next one.
    pub(super) fn forget(&mut self) {
        self.of_pairs.clear();
    }

    /// True if any recv waits longer than the shortest time.
    #[inline]
    pub(super) fn is_long(&self) -> bool {
        self.used > 1
    }

    /// A recv begins to wait.
    #[inline]
    pub(super) fn push(&mut self, delay: RequestDelay, handle: Handle, since: Instant) {
        self.waiting[usize::from(delay.0)].push_back((handle, since));
        self.used |= 1 << delay.0;
    }

    /// Adds recvs of one delay that have waited since `since`, in their order.
    pub(super) fn insert(&mut self, delay: RequestDelay, since: Instant, handles: impl IntoIterator<Item = Handle>) {
        let waiting = &mut self.waiting[usize::from(delay.0)];
        let later = waiting.split_off(waiting.partition_point(|(_, other)| *other <= since));
        waiting.extend(handles.into_iter().map(|handle| (handle, since)));
        waiting.extend(later);
        self.used |= u8::from(!waiting.is_empty()) << delay.0;
    }

    /// The next recv that has waited long enough, or that, says `has_ended`, is not to send a request any more.
    pub(super) fn pop(&mut self, now: Instant, has_ended: impl Fn(Handle) -> bool) -> Option<(Handle, RequestDelay)> {
        for delay in Self::used(self.used) {
            let waiting = &mut self.waiting[usize::from(delay.0)];
            let popped = waiting.pop_front_if(|(handle, since)| *since + delay.time() <= now || has_ended(*handle));
            if waiting.is_empty() {
                self.used &= !(1 << delay.0);
            }
            if let Some((handle, _)) = popped {
                return Some((handle, delay));
            }
        }
        None
    }

    /// When the first recv will have waited long enough.
    #[inline]
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let first = |delay: RequestDelay| Some(self.waiting[usize::from(delay.0)].front()?.1 + delay.time());
        Self::used(self.used).filter_map(first).min()
    }

    #[inline]
    fn used(mut bits: u8) -> impl Iterator<Item = RequestDelay> {
        std::iter::from_fn(move || {
            let first = (bits != 0).then(|| RequestDelay(bits.trailing_zeros() as u8));
            bits &= bits.wrapping_sub(1);
            first
        })
    }

    /// No recv waits any more.
    #[inline]
    pub(super) fn clear(&mut self) {
        Self::used(self.used).for_each(|delay| self.waiting[usize::from(delay.0)].clear());
        self.used = 0;
    }

    /// True if a recv is in a queue.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn contains(&self, handle: Handle) -> bool {
        self.waiting.iter().flatten().any(|(waits, _)| *waits == handle)
    }

    /// Panics unless each recv will send its request in time.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn check_invariants(&self) {
        for (delay, waiting) in self.waiting.iter().enumerate() {
            let sorted = waiting.iter().is_sorted_by_key(|(_, since)| *since);
            assert!(sorted, "a recv would wait behind one that came later");
            assert_eq!(self.used & (1 << delay) != 0, !waiting.is_empty(), "recvs would never send requests");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(number: u64) -> Handle {
        Handle::from_bits(number)
    }

    #[test]
    fn a_pair_waits_longer_after_requests_in_vain_and_shortly_again_after_useful_ones() {
        let (mut delayed, pair) = (DelayedRequests::default(), 3);
        assert_eq!(delayed.delay_of(pair).time(), REQUEST_DELAY);
        for doublings in 0..10 {
            let delay = delayed.delay_of(pair);
            assert_eq!(delay.time(), REQUEST_DELAY * (1 << doublings.min(REQUEST_DELAY_DOUBLINGS_MAX)));
            // Recvs that have waited together count once.
            (0..100).for_each(|_| delayed.was_in_vain(pair, delay));
        }
        assert_eq!(delayed.delay_of(pair - 1), delayed.delay_of(pair + 1));
        assert!(delayed.was_useful(pair) && !delayed.was_useful(pair) && !delayed.was_useful(99));
        assert_eq!(delayed.delay_of(pair).time(), REQUEST_DELAY);
    }

    #[test]
    fn each_request_is_due_when_its_own_delay_is_over() {
        let (mut delayed, begun) = (DelayedRequests::default(), Instant::now());
        let [short, long] = [RequestDelay(0), RequestDelay(REQUEST_DELAY_DOUBLINGS_MAX)];
        delayed.push(long, handle(1), begun);
        delayed.push(short, handle(2), begun + REQUEST_DELAY);
        delayed.insert(short, begun, [handle(3), handle(4)]);
        delayed.check_invariants();
        assert_eq!(delayed.next_deadline(), Some(begun + REQUEST_DELAY));
        let none = |_| false;
        let due = |delayed: &mut DelayedRequests, at| {
            std::iter::from_fn(|| Some(delayed.pop(begun + at, none)?.0)).collect::<Vec<_>>()
        };
        assert_eq!(due(&mut delayed, REQUEST_DELAY / 2), []);
        assert_eq!(due(&mut delayed, REQUEST_DELAY), [handle(3), handle(4)]);
        assert_eq!(due(&mut delayed, 2 * REQUEST_DELAY), [handle(2)]);
        assert_eq!(delayed.next_deadline(), Some(begun + long.time()));
        delayed.check_invariants();
        assert_eq!(delayed.pop(begun, |ended| ended == handle(1)), Some((handle(1), long)));
        assert_eq!(delayed.next_deadline(), None);
        delayed.check_invariants();
    }
}
