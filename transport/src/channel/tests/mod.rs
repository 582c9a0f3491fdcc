//! Two halves over rings on the heap. `model` drives them in random orders, `orders` in all orders of few events. `trunks` has a switch between
//! the halves of several clients.

mod hazards;
mod hostile;
mod model;
mod orders;
mod trunks;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use super::*;

/// A ring on the heap.
#[derive(Clone)]
pub(super) struct Heap<const WORDS: u64>(Arc<(Vec<AtomicU64>, [AtomicU64; 3])>);

impl<const WORDS: u64> Heap<WORDS> {
    pub(super) fn new() -> Self {
        let words = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
        Heap(Arc::new((words, [0; 3].map(AtomicU64::new))))
    }
}

impl<const N: u64> RingMemory for Heap<N> {
    const WORDS: u64 = N;

    fn word(&self, position: u64) -> &AtomicU64 {
        &self.0.0[(position % N) as usize]
    }

    fn words(&self, position: u64, count: u64) -> &[AtomicU64] {
        let at = (position % N) as usize;
        &self.0.0[at..at + count as usize]
    }

    fn read(&self) -> &AtomicU64 {
        &self.0.1[0]
    }
}

impl<const N: u64> ChannelMemory for Heap<N> {
    fn took(&self) -> &AtomicU64 {
        &self.0.1[1]
    }

    fn returned(&self) -> &AtomicU64 {
        &self.0.1[2]
    }
}

impl Accepts for u32 {
    fn accepts(&self, _: &[u8], bytes: u64) -> bool {
        bytes <= u64::from(*self)
    }
}

pub(super) type Side<const WORDS: u64> = Half<Heap<WORDS>, u32>;

/// Two halves that see everything of each other: neither is blind.
pub(super) fn pair<const WORDS: u64>() -> [Side<WORDS>; 2] {
    let mut halves = blind_pair();
    for _ in 0..2 {
        halves.iter_mut().for_each(|half: &mut Side<WORDS>| {
            half.clear();
            half.drain().unwrap();
        });
    }
    halves
}

/// Two halves as they are opened.
pub(super) fn blind_pair<const WORDS: u64>() -> [Side<WORDS>; 2] {
    let rings = [Heap::new(), Heap::new()];
    let half = |own: usize| Half::new(rings[own].clone(), rings[1 - own].clone(), Seed::random(), Steps::default());
    [half(0), half(1)]
}

/// Metadata of a vector of bytes.
pub(super) fn meta(bytes: usize) -> [u8; 16] {
    let mut meta = [0; 16];
    meta[5] = 1;
    meta[8..].copy_from_slice(&(bytes as u64).to_le_bytes());
    meta
}

/// A payload by which a tensor is recognized.
pub(super) fn payload(id: u64, bytes: usize) -> Vec<u8> {
    id.to_le_bytes().into_iter().cycle().take(bytes.max(8)).collect()
}

/// Which tensor a payload is.
pub(super) fn id(content: &Content) -> u64 {
    let (payload, first) = (content.payload(), content.payload().first_chunk::<8>().unwrap());
    assert!(payload.chunks(8).all(|bytes| *bytes == first[..bytes.len()]), "{payload:?}");
    assert_eq!(content.meta(), meta(payload.len()));
    u64::from_le_bytes(*first)
}

pub(super) fn send<const WORDS: u64>(
    half: &mut Side<WORDS>,
    name: (i64, &str),
    id: u64,
    bytes: usize,
) -> Result<u64, Refusal> {
    send_until(half, name, id, bytes, u64::MAX)
}

pub(super) fn send_until<const WORDS: u64>(
    half: &mut Side<WORDS>,
    (step, key): (i64, &str),
    id: u64,
    bytes: usize,
    deadline: u64,
) -> Result<u64, Refusal> {
    let payload = payload(id, bytes);
    let sent = half.send((step, key.as_bytes()), Outgoing { meta: &meta(payload.len()), payload: &payload }, deadline);
    half.check_invariants();
    sent
}

pub(super) fn post<const WORDS: u64>(half: &mut Side<WORDS>, step: i64, key: &str) -> u32 {
    let slot = post_unchecked(half, step, key);
    half.check_invariants();
    slot
}

/// [`post`], in a time that does not grow with the number of slots.
pub(super) fn post_unchecked<const WORDS: u64>(half: &mut Side<WORDS>, step: i64, key: &str) -> u32 {
    let key = key.as_bytes();
    half.post(Posting { step, key, deadline: u64::MAX, fails_if_gone: false, data: &mut None }).unwrap()
}

pub(super) fn drain<const WORDS: u64>(half: &mut Side<WORDS>) {
    half.drain().unwrap();
    half.check_invariants();
}

/// Takes the tensor of a recv that is done.
pub(super) fn take<const WORDS: u64>(half: &mut Side<WORDS>, slot: u32) -> Option<u64> {
    if half.recv(slot) != Recv::Done {
        return None;
    }
    let id = id(half.content(slot));
    half.free(slot);
    half.check_invariants();
    Some(id)
}

/// Sets a word of the reader of what a side writes.
pub(super) fn set(word: &AtomicU64, value: u64) {
    word.store(value, Ordering::Relaxed);
}
