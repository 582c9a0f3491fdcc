//! Two halves over rings on the heap. `model` drives them in random orders, `orders` in all orders of few events. Both do so over
//! one memory, and over splices between two.

mod hazards;
mod hostile;
mod model;
mod orders;
mod spliced;

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

impl<const WORDS: u64> Default for Heap<WORDS> {
    fn default() -> Self {
        Self::new()
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

/// What lies between two halves: nothing, as they share their rings, or a splice for each direction.
pub(super) struct Between<const WORDS: u64>(Option<[Splice<Heap<WORDS>>; 2]>);

impl<const WORDS: u64> Between<WORDS> {
    /// Moves what one side has written, and the other settled.
    pub(super) fn turn(&mut self, from: usize) -> Option<Spliced> {
        self.0.as_mut().map(|splices| splices[from].turn().unwrap())
    }

    pub(super) fn turn_both(&mut self) {
        (0..2).for_each(|from| _ = self.turn(from));
    }
}

/// Two halves that see everything of each other: neither is blind.
pub(super) fn pair<const WORDS: u64>() -> [Side<WORDS>; 2] {
    pair_with(false).0
}

/// [`pair`], over splices if asked for.
pub(super) fn pair_with<const WORDS: u64>(is_spliced: bool) -> ([Side<WORDS>; 2], Between<WORDS>) {
    let (mut halves, mut between) = if is_spliced { spliced_pair() } else { (blind_pair(), Between(None)) };
    for _ in 0..2 {
        halves.iter_mut().for_each(|half: &mut Side<WORDS>| {
            half.clear();
            between.turn_both();
            half.drain().unwrap();
        });
    }
    between.turn_both();
    (halves, between)
}

fn half<const WORDS: u64>(outgoing: &Heap<WORDS>, incoming: &Heap<WORDS>) -> Side<WORDS> {
    Half::new(outgoing.clone(), incoming.clone(), Seed::random(), Steps::default())
}

/// Two halves as they are opened.
pub(super) fn blind_pair<const WORDS: u64>() -> [Side<WORDS>; 2] {
    let [one, other] = [Heap::new(), Heap::new()];
    [half(&one, &other), half(&other, &one)]
}

fn spliced_pair<const WORDS: u64>() -> ([Side<WORDS>; 2], Between<WORDS>) {
    let rings: [[Heap<WORDS>; 2]; 2] = Default::default();
    let halves = rings.each_ref().map(|[outgoing, incoming]| half(outgoing, incoming));
    let splice = |from: usize| Splice::new(rings[from][0].clone(), rings[1 - from][1].clone());
    (halves, Between(Some([splice(0), splice(1)])))
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
