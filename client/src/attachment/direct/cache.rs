//! Where a thread finds the channel to a peer without a lock: the last ones that it used.
//!
//! Limits: [`PLACES`] channels for each thread. A thread that does not call again keeps no channel alive.

use std::{
    cell::RefCell,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use super::Channel;

/// Channels that a thread remembers, a power of two.
const PLACES: usize = 64;

/// Numbers the states of all caches of this process, so that no state is mistaken for another attachment's.
static STATES: AtomicU64 = AtomicU64::new(1);

/// What threads may remember of one attachment's channels.
pub(in crate::attachment) struct ChannelCache {
    /// Changes whenever a channel is opened, or all are lost.
    state: AtomicU64,
    /// A channel was opened since all were lost.
    has_any: AtomicBool,
}

/// What a thread remembers of one peer.
struct Place {
    state: u64,
    peer: String,
    /// `None` if the peer has no channel.
    channel: Option<Weak<Channel>>,
}

thread_local! {
    static KNOWN: RefCell<[Place; PLACES]> = const {
        RefCell::new([const { Place { state: 0, peer: String::new(), channel: None } }; PLACES])
    };
}

/// Compares two names by words that overlap: calling memcmp takes twice as long for names as short as these.
#[inline]
fn is_same(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    if one.len() != other.len() {
        return false;
    }
    match (one.last_chunk::<8>(), other.last_chunk::<8>()) {
        (Some(last), Some(other_last)) => {
            let mut words = one.as_chunks::<8>().0.iter().zip(other.as_chunks::<8>().0);
            last == other_last && words.all(|(one, other)| one == other)
        }
        _ => one.iter().eq(other),
    }
}

impl Default for ChannelCache {
    fn default() -> Self {
        let state = AtomicU64::new(STATES.fetch_add(1, Ordering::Relaxed));
        ChannelCache { state, has_any: AtomicBool::new(false) }
    }
}

impl ChannelCache {
    /// A channel was opened, or there is none any more: every thread forgets what it knows.
    pub(in crate::attachment) fn changes(&self, has_any: bool) {
        self.has_any.store(has_any, Ordering::Relaxed);
        self.state.store(STATES.fetch_add(1, Ordering::Relaxed), Ordering::Release);
    }

    /// The place of a peer: by the first and the last bytes of its name, in one of which names of a job differ.
    #[inline]
    fn place(peer: &str) -> usize {
        let peer = peer.as_bytes();
        let all = || peer.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
        let word = |bytes: Option<&[u8; 8]>| bytes.map_or_else(all, |bytes| u64::from_le_bytes(*bytes));
        let mixed = word(peer.first_chunk()).wrapping_mul(3) ^ word(peer.last_chunk());
        // Fibonacci hashing.
        (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - PLACES.ilog2())) as usize % PLACES
    }

    /// The channel to a peer, found by `look` if this thread does not remember it.
    #[inline]
    pub(in crate::attachment) fn find(
        &self,
        peer: &str,
        look: impl FnOnce() -> Option<Arc<Channel>>,
    ) -> Option<Arc<Channel>> {
        if !self.has_any.load(Ordering::Relaxed) {
            return None;
        }
        let state = self.state.load(Ordering::Acquire);
        let known = KNOWN.try_with(|known| {
            let known = known.borrow();
            let place = &known[Self::place(peer)];
            (place.state == state && is_same(&place.peer, peer)).then(|| place.channel.as_ref().map(Weak::upgrade))
        });
        match known {
            Ok(Some(None)) => None,
            Ok(Some(Some(Some(channel)))) => Some(channel),
            // Not remembered, or closed meanwhile, or the thread ends.
            _ => self.remember(peer, state, look()),
        }
    }

    #[cold]
    fn remember(&self, peer: &str, state: u64, found: Option<Arc<Channel>>) -> Option<Arc<Channel>> {
        // A thread that ends remembers nothing.
        let _remembered = KNOWN.try_with(|known| {
            let place = &mut known.borrow_mut()[Self::place(peer)];
            place.state = state;
            place.peer.clear();
            place.peer.push_str(peer);
            place.channel = found.as_ref().map(Arc::downgrade);
        });
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_differ_in_a_few_bytes_have_places_of_their_own() {
        for names in [["a:1", "b:1"], ["ps0:2222", "ps1:2222"], ["10.0.0.1:2222", "10.0.0.2:2222"]] {
            let [one, other] = names.map(ChannelCache::place);
            assert_ne!(one, other, "{names:?}");
        }
    }
}
