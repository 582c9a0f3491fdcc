//! Slots of recvs and of tensors that arrived before their recvs, and the copy of a tensor that a slot holds.
//!
//! Limits: [`SLOTS_MAX`] slots for a channel; they are allocated on first use and reused.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    task::Waker,
};

use zerocopy::IntoBytes;

use super::{Why, key::Name, record::Shape};
use crate::ring::load;

/// Most recvs and unexpected tensors of a channel.
pub const SLOTS_MAX: usize = 1 << 16;

/// No slot.
pub(super) const NONE: u32 = u32::MAX;

/// Words of a tensor that lie in its slot: metadata of rank 3 and 64 bytes of payload.
const OWN_WORDS: usize = 12;

/// A tensor in the channel's memory of this side: its metadata in wire form, and its payload.
#[derive(Debug, Default, Clone)]
pub struct Content {
    meta_words: u16,
    payload_bytes: u16,
    own: [u64; OWN_WORDS],
    /// All words, if they are more than `own` has.
    large: Option<Box<[u64]>>,
}

impl Content {
    /// Copies the content of a tensor's record, whose length was checked. Each word is loaded once.
    #[inline]
    pub(super) fn load(&mut self, record: &[AtomicU64], shape: Shape) {
        let words = &record[shape.meta_at()..shape.used()];
        (self.meta_words, self.payload_bytes) = (1 + shape.rank as u16, shape.payload as u16);
        self.large = None;
        match self.own.get_mut(..words.len()) {
            Some(own) => load(words, own),
            None => self.large = Some(words.iter().map(|word| word.load(Relaxed)).collect()),
        }
    }

    #[inline]
    fn words(&self) -> &[u64] {
        self.large.as_deref().unwrap_or(&self.own)
    }

    /// The metadata in wire form; not checked.
    #[inline]
    pub fn meta(&self) -> &[u8] {
        self.words()[..usize::from(self.meta_words)].as_bytes()
    }

    /// The payload.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        &self.words()[usize::from(self.meta_words)..].as_bytes()[..usize::from(self.payload_bytes)]
    }
}

// Words are loaded and stored as the integers that they are, so a big-endian host would see its bytes reversed.
const _: () = assert!(cfg!(target_endian = "little"), "a channel is between processes of one little-endian host");

/// What a slot holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Free,
    /// A recv that waits.
    Posted,
    /// A recv that waits, and which the switch is to be asked for.
    Asking,
    /// A recv whose tensor is in the slot.
    Done,
    /// A recv that has failed.
    Failed(Why),
    /// A recv that the switch was asked for: it is another call there from now on.
    Moved(u32),
    /// The name of a call at the switch, which a tensor of this channel may serve, too.
    Adopted {
        call: u32,
        /// The switch is known to have a tensor for it.
        is_announced: bool,
        /// The call was made for that tensor, so that the switch does not give it another, which was not announced.
        is_certain: bool,
    },
    /// A call at the switch whose tensor has arrived and is in the slot, with its number until it is settled.
    Arrived {
        call: u32,
        number: Option<u64>,
    },
    /// A tensor that no recv has taken, with its number; none if the number is settled.
    Unexpected(Option<u64>),
    /// An announcement that no recv has taken.
    Announced,
}

/// A slot; `D` is what the caller keeps with a recv.
pub(super) struct Slot<D> {
    pub(super) state: State,
    /// The next slot of the same name, or the next recv of the list.
    pub(super) next: u32,
    /// The recv fails rather than waits once the peer is gone.
    pub(super) fails_if_gone: bool,
    /// The waker is a future's, for which somebody else must poll.
    pub(super) is_watched: bool,
    pub(super) hash: u64,
    pub(super) name: Name,
    /// Milliseconds; `u64::MAX` for none.
    pub(super) deadline: u64,
    pub(super) content: Content,
    pub(super) waker: Option<Waker>,
    pub(super) data: Option<D>,
}

pub(super) struct Slots<D> {
    all: Vec<Slot<D>>,
    free: Vec<u32>,
}

impl<D> Default for Slots<D> {
    fn default() -> Self {
        Slots { all: Vec::new(), free: Vec::new() }
    }
}

impl<D> Slots<D> {
    /// A slot for a name; `None` if there are [`SLOTS_MAX`].
    #[inline]
    pub(super) fn add(&mut self, state: State, name: Name, deadline: u64) -> Option<u32> {
        let Some(at) = self.free.pop() else { return self.add_new(state, name, deadline) };
        let slot = &mut self.all[at as usize];
        (slot.state, slot.next, slot.name, slot.deadline) = (state, NONE, name, deadline);
        Some(at)
    }

    #[cold]
    fn add_new(&mut self, state: State, name: Name, deadline: u64) -> Option<u32> {
        if self.all.len() >= SLOTS_MAX {
            return None;
        }
        self.all.push(Slot {
            state,
            next: NONE,
            fails_if_gone: false,
            is_watched: false,
            hash: 0,
            name,
            deadline,
            content: Content::default(),
            waker: None,
            data: None,
        });
        Some(self.all.len() as u32 - 1)
    }

    /// Frees a slot, whose waker and data were taken.
    #[inline]
    pub(super) fn free(&mut self, at: u32) {
        let slot = &mut self.all[at as usize];
        debug_assert!(slot.state != State::Free && slot.waker.is_none() && slot.data.is_none());
        (slot.state, slot.fails_if_gone) = (State::Free, false);
        self.free.push(at);
    }

    #[inline]
    pub(super) fn get(&self, at: u32) -> &Slot<D> {
        &self.all[at as usize]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, at: u32) -> &mut Slot<D> {
        &mut self.all[at as usize]
    }

    /// All slots in use.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Slot<D>)> {
        (0..).zip(&self.all).filter(|(_, slot)| slot.state != State::Free)
    }

    /// The slots for which `is` holds.
    pub(super) fn find_all(&self, is: impl Fn(&Slot<D>) -> bool) -> Vec<u32> {
        self.iter().filter(|(_, slot)| is(slot)).map(|(at, _)| at).collect()
    }
}
