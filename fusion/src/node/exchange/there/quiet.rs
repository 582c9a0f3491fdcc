//! How long recvs wait for tensors that come ahead before they ask: longer where asking was in vain.
//!
//! Usually the producer has not sent yet when a recv is made, or is busy, and a request costs both sides more than the tensor does. So the
//! waiting time of a pair doubles when a request found no tensor, at most [`QUIET_DOUBLINGS_MAX`] times. It is the shortest again when
//! there was a tensor that had not come: when the producer says that it keeps some ([`held`](super::There::held)), when one goes back to
//! it, and when a request is answered at once. Recvs wait in the order in which they were made, in one queue for each waiting time, so that
//! none waits behind one with a longer time.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use sealane_transport::Handle;

use crate::limits::{QUIET_DOUBLINGS_MAX, QUIET_TIME};

/// How often the waiting time of a recv's pair had doubled when it began to wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Patience(u8);

impl Patience {
    /// How long the recv waits.
    #[inline]
    pub(super) fn time(self) -> Duration {
        QUIET_TIME * (1 << self.0)
    }
}

/// The recvs that wait before they ask; see the module.
#[derive(Default)]
pub(super) struct Quiet {
    /// Recvs that have not asked, and since when they wait; some may have ended.
    waiting: [VecDeque<(Handle, Instant)>; QUIET_DOUBLINGS_MAX as usize + 1],
    /// One bit for each queue that is not empty.
    used: u8,
    /// By the number of the pair; pairs beyond the end have the shortest time.
    of_pairs: Vec<Patience>,
}

impl Quiet {
    /// The patience of a pair's next recv.
    #[inline]
    pub(super) fn patience(&self, pair: u32) -> Patience {
        self.of_pairs.get(pair as usize).copied().unwrap_or_default()
    }

    /// A recv with this patience has asked in vain. Of many that had waited together, only the first counts.
    #[inline]
    pub(super) fn was_vain(&mut self, pair: u32, patience: Patience) {
        if patience.0 >= QUIET_DOUBLINGS_MAX || self.patience(pair) != patience {
            return;
        }
        let pair = pair as usize;
        if self.of_pairs.len() <= pair {
            self.of_pairs.resize(pair + 1, Patience::default());
        }
        self.of_pairs[pair] = Patience(patience.0 + 1);
    }

    /// The producer has a tensor that must be asked for: the pair's recvs wait the shortest time again. True if that is a change.
    #[inline]
    pub(super) fn is_of_use(&mut self, pair: u32) -> bool {
        let patience = self.of_pairs.get_mut(pair as usize);
        patience.is_some_and(|patience| std::mem::take(patience) != Patience::default())
    }

    /// A link is lost: nothing is known about the next one.
    pub(super) fn forget(&mut self) {
        self.of_pairs.clear();
    }

    /// True if any recv waits longer than the shortest time.
    #[inline]
    pub(super) fn is_patient(&self) -> bool {
        self.used > 1
    }

    /// A recv begins to wait.
    #[inline]
    pub(super) fn push(&mut self, patience: Patience, handle: Handle, since: Instant) {
        self.waiting[usize::from(patience.0)].push_back((handle, since));
        self.used |= 1 << patience.0;
    }

    /// Adds recvs of one patience that have waited since `since`, in their order.
    pub(super) fn insert(&mut self, patience: Patience, since: Instant, handles: impl IntoIterator<Item = Handle>) {
        let waiting = &mut self.waiting[usize::from(patience.0)];
        let later = waiting.split_off(waiting.partition_point(|(_, other)| *other <= since));
        waiting.extend(handles.into_iter().map(|handle| (handle, since)));
        waiting.extend(later);
        self.used |= u8::from(!waiting.is_empty()) << patience.0;
    }

    /// The next recv that has waited long enough, or that, says `has_ended`, is not to ask any more.
    pub(super) fn pop(&mut self, now: Instant, has_ended: impl Fn(Handle) -> bool) -> Option<(Handle, Patience)> {
        for patience in Self::used(self.used) {
            let waiting = &mut self.waiting[usize::from(patience.0)];
            let popped = waiting.pop_front_if(|(handle, since)| *since + patience.time() <= now || has_ended(*handle));
            if waiting.is_empty() {
                self.used &= !(1 << patience.0);
            }
            if let Some((handle, _)) = popped {
                return Some((handle, patience));
            }
        }
        None
    }

    /// When the first recv will have waited long enough.
    #[inline]
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let first = |patience: Patience| Some(self.waiting[usize::from(patience.0)].front()?.1 + patience.time());
        Self::used(self.used).filter_map(first).min()
    }

    #[inline]
    fn used(mut bits: u8) -> impl Iterator<Item = Patience> {
        std::iter::from_fn(move || {
            let first = (bits != 0).then(|| Patience(bits.trailing_zeros() as u8));
            bits &= bits.wrapping_sub(1);
            first
        })
    }

    /// No recv waits any more.
    #[inline]
    pub(super) fn clear(&mut self) {
        Self::used(self.used).for_each(|patience| self.waiting[usize::from(patience.0)].clear());
        self.used = 0;
    }

    /// True if a recv is in a queue.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn contains(&self, handle: Handle) -> bool {
        self.waiting.iter().flatten().any(|(waits, _)| *waits == handle)
    }

    /// Panics unless each recv will ask in time.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn check_invariants(&self) {
        for (place, waiting) in self.waiting.iter().enumerate() {
            let sorted = waiting.iter().is_sorted_by_key(|(_, since)| *since);
            assert!(sorted, "a recv would wait behind one that came later");
            assert_eq!(self.used & (1 << place) != 0, !waiting.is_empty(), "recvs would never ask");
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
    fn a_pair_waits_longer_after_asking_in_vain_and_shortly_again_after_asking_with_use() {
        let (mut quiet, pair) = (Quiet::default(), 3);
        assert_eq!(quiet.patience(pair).time(), QUIET_TIME);
        for doublings in 0..10 {
            let patience = quiet.patience(pair);
            assert_eq!(patience.time(), QUIET_TIME * (1 << doublings.min(QUIET_DOUBLINGS_MAX)));
            // Recvs that have waited together count once.
            (0..100).for_each(|_| quiet.was_vain(pair, patience));
        }
        assert_eq!(quiet.patience(pair - 1), quiet.patience(pair + 1));
        assert!(quiet.is_of_use(pair) && !quiet.is_of_use(pair) && !quiet.is_of_use(99));
        assert_eq!(quiet.patience(pair).time(), QUIET_TIME);
    }

    #[test]
    fn each_asks_when_its_own_time_is_over() {
        let (mut quiet, begun) = (Quiet::default(), Instant::now());
        let [short, long] = [Patience(0), Patience(QUIET_DOUBLINGS_MAX)];
        quiet.push(long, handle(1), begun);
        quiet.push(short, handle(2), begun + QUIET_TIME);
        quiet.insert(short, begun, [handle(3), handle(4)]);
        quiet.check_invariants();
        assert_eq!(quiet.next_deadline(), Some(begun + QUIET_TIME));
        let none = |_| false;
        let due =
            |quiet: &mut Quiet, at| std::iter::from_fn(|| Some(quiet.pop(begun + at, none)?.0)).collect::<Vec<_>>();
        assert_eq!(due(&mut quiet, QUIET_TIME / 2), []);
        assert_eq!(due(&mut quiet, QUIET_TIME), [handle(3), handle(4)]);
        assert_eq!(due(&mut quiet, 2 * QUIET_TIME), [handle(2)]);
        assert_eq!(quiet.next_deadline(), Some(begun + long.time()));
        quiet.check_invariants();
        assert_eq!(quiet.pop(begun, |ended| ended == handle(1)), Some((handle(1), long)));
        assert_eq!(quiet.next_deadline(), None);
        quiet.check_invariants();
    }
}
