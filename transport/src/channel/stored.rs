//! Tensors in the producer's memory: *held*, since there was no credit or no room for them, or *kept*, since their place in the ring was
//! needed before they were settled.
//!
//! Limits: [`HELD_MAX`] held tensors of [`HELD_BYTES_MAX`] bytes; kept tensors count against the producer's credit.

use std::collections::{HashMap, HashSet, VecDeque};

use zerocopy::IntoBytes;

use super::{
    Outgoing, Why,
    record::{Shape, words_of},
};

/// Most tensors that are held for lack of credit.
pub const HELD_MAX: usize = 1 << 16;

/// Most bytes of held tensors, with their keys.
pub const HELD_BYTES_MAX: usize = 16 << 20;

/// Marks the handle of a send that was held when it was made. Other handles are the numbers of their tensors.
pub(super) const HELD: u64 = 1 << 63;

/// A tensor that a consumer has not taken.
#[derive(Debug)]
pub struct Unsettled {
    /// The handle of its send; `None` if nobody asks for its outcome.
    pub handle: Option<u64>,
    pub step: i64,
    pub key: Vec<u8>,
    pub meta: Vec<u8>,
    pub payload: Vec<u8>,
    /// Milliseconds; `u64::MAX` for none.
    pub deadline: u64,
}

/// What the producer remembers of a sent tensor. The lengths are kept here, since the consumer may write to the ring.
#[derive(Debug, Clone, Copy)]
pub(super) struct Of {
    /// `None` if nobody asks for the outcome.
    pub(super) handle: Option<u64>,
    pub(super) step: i64,
    pub(super) deadline: u64,
    pub(super) shape: Shape,
    /// When the consumer was asked to return the tensor, in milliseconds; `u64::MAX` until the next sweep.
    pub(super) revoked: Option<u64>,
    /// Its step was ended here, or by the consumer.
    pub(super) is_aborted: bool,
}

/// A tensor in memory of the producer: key, metadata and payload, as in its record.
#[derive(Debug)]
pub(super) struct Copied {
    pub(super) of: Of,
    words: Box<[u64]>,
}

impl Copied {
    pub(super) fn new(of: Of, key: &[u8], tensor: Outgoing<'_>) -> Copied {
        let parts = [key, tensor.meta, tensor.payload];
        Copied::of_words(of, parts.into_iter().flat_map(words_of))
    }

    /// A tensor from the words of its record.
    pub(super) fn of_words(of: Of, words: impl Iterator<Item = u64>) -> Copied {
        Copied { of, words: words.collect() }
    }

    pub(super) fn parts(&self) -> (&[u8], Outgoing<'_>) {
        let Shape { rank, key, payload } = self.of.shape;
        let (keys, rest) = self.words.split_at(key.div_ceil(8));
        let (meta, bytes) = rest.split_at(1 + rank);
        (&keys.as_bytes()[..key], Outgoing { meta: meta.as_bytes(), payload: &bytes.as_bytes()[..payload] })
    }

    pub(super) fn name(&self) -> Named {
        (self.of.step, self.parts().0.into())
    }

    pub(super) fn into_unsettled(self) -> Unsettled {
        let (key, Outgoing { meta, payload }) = self.parts();
        let Of { handle, step, deadline, .. } = self.of;
        Unsettled { handle, step, key: key.into(), meta: meta.into(), payload: payload.into(), deadline }
    }

    fn bytes(&self) -> usize {
        self.of.shape.words() as usize * 8
    }
}

/// A step and a key.
pub(super) type Named = (i64, Box<[u8]>);

/// Held tensors, in the order of sending.
#[derive(Default)]
pub(super) struct Held {
    tensors: HashMap<Named, Copied>,
    /// The names in order; some may not be held any more, and some be there twice.
    order: VecDeque<Named>,
    bytes: usize,
    /// Recvs of the consumer that wait for tensors that may be held.
    asked: HashSet<Named>,
    /// True from the `Held` record that the consumer gets to its `Resumed`.
    is_active: bool,
    /// Tensors that were ever held, which numbers their handles.
    count: u64,
}

impl Held {
    /// True from the first tensor that is held until [`end`](Self::end).
    pub(super) fn is_active(&self) -> bool {
        self.is_active
    }

    /// Holds a tensor; returns the handle of its send, and whether it is the first.
    ///
    /// # Errors
    /// `Duplicate` if one of that name is held, `Full` if too many are.
    pub(super) fn add(&mut self, mut copied: Copied) -> Result<(u64, bool), Why> {
        let (name, bytes) = (copied.name(), copied.bytes());
        if self.tensors.contains_key(&name) {
            return Err(Why::Duplicate);
        }
        if self.tensors.len() >= HELD_MAX || self.bytes + bytes > HELD_BYTES_MAX {
            return Err(Why::Full);
        }
        let handle = self.count | HELD;
        copied.of.handle = Some(handle);
        self.count += 1;
        self.bytes += bytes;
        if self.order.len() > 2 * self.tensors.len() + 64 {
            let tensors = &self.tensors;
            self.order.retain(|name| tensors.contains_key(name));
        }
        self.order.push_back(name.clone());
        self.tensors.insert(name, copied);
        Ok((handle, !std::mem::replace(&mut self.is_active, true)))
    }

    pub(super) fn get(&self, name: &Named) -> Option<&Copied> {
        self.tensors.get(name)
    }

    /// The tensor that is next.
    pub(super) fn first(&mut self) -> Option<(&Named, &Copied)> {
        while !self.tensors.contains_key(self.order.front()?) {
            self.order.pop_front();
        }
        self.tensors.get_key_value(self.order.front()?)
    }

    pub(super) fn take(&mut self, name: &Named) -> Option<Copied> {
        let copied = self.tensors.remove(name)?;
        self.bytes -= copied.bytes();
        Some(copied)
    }

    /// Takes the tensors for which `is` holds, in order.
    pub(super) fn take_where(&mut self, is: impl Fn(&Of) -> bool) -> Vec<Copied> {
        let is = |name: &&Named| self.tensors.get(*name).is_some_and(|copied| is(&copied.of));
        let names: Vec<Named> = self.order.iter().filter(is).cloned().collect();
        names.iter().filter_map(|name| self.take(name)).collect()
    }

    /// The consumer waits for a tensor: it is next.
    pub(super) fn put_first(&mut self, name: &Named) {
        if self.order.front() != Some(name) {
            // One place for each, however often the consumer asks.
            self.order.retain(|other| other != name);
            self.order.push_front(name.clone());
        }
    }

    /// The consumer waits for a tensor that is not held, but may be.
    pub(super) fn ask(&mut self, name: Named) {
        if self.asked.len() < HELD_MAX {
            self.asked.insert(name);
        }
    }

    /// True if the consumer has asked for a tensor; it is not asked for any more.
    pub(super) fn take_asked(&mut self, step: i64, key: &[u8]) -> bool {
        self.is_active && self.asked.remove(&(step, key.into()))
    }

    /// All held tensors were sent.
    pub(super) fn end(&mut self) {
        self.is_active = false;
        self.order.clear();
        self.asked.clear();
    }

    /// Nobody asks for the outcome of a send any more.
    pub(super) fn forget(&mut self, handle: u64) {
        if let Some(copied) = self.tensors.values_mut().find(|copied| copied.of.handle == Some(handle)) {
            copied.of.handle = None;
        }
    }

    pub(super) fn earliest_deadline(&self) -> u64 {
        self.tensors.values().map(|copied| copied.of.deadline).min().unwrap_or(u64::MAX)
    }

    pub(super) fn len(&self) -> usize {
        self.tensors.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// # Panics
    /// If an invariant is broken.
    pub(super) fn check_invariants(&self) {
        let bytes = self.tensors.values().map(Copied::bytes).sum::<usize>();
        assert_eq!(self.bytes, bytes);
        assert!(self.tensors.is_empty() || self.is_active);
        let in_order: HashSet<&Named> = self.order.iter().collect();
        assert!(self.tensors.keys().all(|name| in_order.contains(name)));
    }
}

/// Kept tensors, by number.
#[derive(Default)]
pub(super) struct Kept {
    tensors: HashMap<u64, Copied>,
    /// Words of their records.
    words: u64,
}

impl Kept {
    pub(super) fn add(&mut self, number: u64, copied: Copied) {
        self.words += copied.of.shape.words();
        self.tensors.insert(number, copied);
    }

    pub(super) fn take(&mut self, number: u64) -> Option<Copied> {
        let copied = self.tensors.remove(&number)?;
        self.words -= copied.of.shape.words();
        Some(copied)
    }

    pub(super) fn take_all(&mut self) -> Vec<(u64, Copied)> {
        self.words = 0;
        self.tensors.drain().collect()
    }

    /// Drops tensors that are settled.
    pub(super) fn drop_settled(&mut self, is_settled: impl Fn(u64) -> bool) {
        let words = &mut self.words;
        self.tensors.retain(|number, copied| {
            let goes = is_settled(*number);
            *words -= if goes { copied.of.shape.words() } else { 0 };
            !goes
        });
    }

    pub(super) fn has(&self, number: u64) -> bool {
        self.tensors.contains_key(&number)
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut Of> {
        self.tensors.get_mut(&number).map(|copied| &mut copied.of)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut Of)> {
        self.tensors.iter_mut().map(|(number, copied)| (*number, &mut copied.of))
    }

    /// Words of their records.
    pub(super) fn words(&self) -> u64 {
        self.words
    }

    pub(super) fn len(&self) -> usize {
        self.tensors.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// # Panics
    /// If an invariant is broken, or a tensor is not older than `low`.
    pub(super) fn check_invariants(&self, low: u64) {
        assert_eq!(self.words, self.tensors.values().map(|copied| copied.of.shape.words()).sum::<u64>());
        assert!(self.tensors.keys().all(|number| *number < low));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensor_that_is_asked_for_often_has_one_place() {
        let shape = Shape { rank: 0, key: 1, payload: 8 };
        let of = Of { handle: None, step: 1, deadline: u64::MAX, shape, revoked: None, is_aborted: false };
        let mut held = Held::default();
        let names = [b"v", b"w"].map(|key: &[u8; 1]| {
            held.add(Copied::new(of, key, Outgoing { meta: &[0; 8], payload: &[7; 8] })).unwrap();
            (1, key.as_slice().into())
        });
        for _ in 0..100 {
            names.iter().for_each(|name| held.put_first(name));
        }
        held.check_invariants();
        assert_eq!(held.order.len(), 2, "a consumer that asks again makes no queue longer");
        assert_eq!(held.first().map(|(name, _)| name), Some(&names[1]));
    }
}
