//! Large payloads that are sent in chunks, so that other messages can pass in between.
//!
//! Part of an outbox; bounded by [`TRANSFERS_MAX`]. Each payload is kept whole until its last chunk is written.

use std::ops::Range;

use sealane_runtime::VolatileSlice;

use crate::limits::{ANSWER_TRANSFERS_MAX, CHUNKS_AHEAD, INLINE_PAYLOAD_BYTES, TRANSFERS_MAX};
use crate::outbox::Owner;
use crate::payload::Payload;

struct Transfer {
    number: u16,
    owner: Owner,
    payload: Payload,
    /// Bytes handed out in chunks so far.
    staged: usize,
}

impl Transfer {
    fn is_push(&self) -> bool {
        matches!(self.owner, Owner::Push { .. })
    }
}

/// The payloads of one link that leave in chunks, by number.
pub(crate) struct Transfers {
    under_way: Vec<Transfer>,
    chunk_bytes: usize,
    /// Index in `under_way` of the payload whose turn it is.
    turn: usize,
    /// Bytes of chunks that were handed out and not written yet.
    unwritten: usize,
}

/// True if a payload of `bytes` bytes is sent in chunks of `chunk_bytes`. One that fits into a frame never is.
#[inline]
pub(crate) fn leaves_in_chunks(bytes: usize, chunk_bytes: usize) -> bool {
    bytes > chunk_bytes.max(INLINE_PAYLOAD_BYTES)
}

impl Transfers {
    pub(crate) fn new(chunk_bytes: usize) -> Self {
        Self { under_way: Vec::new(), chunk_bytes: chunk_bytes.max(1), turn: 0, unwritten: 0 }
    }

    /// Most bytes of payloads that may wait to be written.
    pub(crate) fn ahead_bytes_max(&self) -> usize {
        self.chunk_bytes.saturating_mul(CHUNKS_AHEAD)
    }

    /// True if a payload of `bytes` bytes is sent in chunks.
    #[inline]
    pub(crate) fn takes(&self, bytes: usize) -> bool {
        leaves_in_chunks(bytes, self.chunk_bytes)
    }

    pub(crate) fn has_room_for_answer(&self) -> bool {
        self.under_way.iter().filter(|transfer| !transfer.is_push()).count() < ANSWER_TRANSFERS_MAX
    }

    pub(crate) fn has_room_for_push(&self) -> bool {
        let pushes = self.under_way.iter().filter(|transfer| transfer.is_push()).count();
        pushes < TRANSFERS_MAX - ANSWER_TRANSFERS_MAX
    }

    /// Takes in a payload; returns the number of its transfer.
    ///
    /// # Panics
    /// If there is no room for it.
    pub(crate) fn begin(&mut self, owner: Owner, payload: Payload) -> u16 {
        let is_free = |number: &u16| self.under_way.iter().all(|transfer| transfer.number != *number);
        let number = (1..=TRANSFERS_MAX as u16).find(is_free).expect("a transfer begins only if there is room");
        self.under_way.push(Transfer { number, owner, payload, staged: 0 });
        number
    }

    /// True while a payload has bytes that were not handed out.
    #[inline]
    pub(crate) fn has_more(&self) -> bool {
        self.under_way.iter().any(|transfer| transfer.staged < transfer.payload.len())
    }

    /// The next chunk, of the payload whose turn it is: its transfer, and its range in the payload. `None` if there is none, or
    /// if [`CHUNKS_AHEAD`] wait to be written.
    #[inline]
    pub(crate) fn next_chunk(&mut self) -> Option<(u16, Range<usize>)> {
        if self.unwritten.saturating_add(self.chunk_bytes) > self.ahead_bytes_max() {
            return None;
        }
        let count = self.under_way.len();
        let mut by_turns = (0..count).map(|step| (self.turn + step) % count);
        let at = by_turns.find(|&at| {
            let transfer = &self.under_way[at];
            transfer.staged < transfer.payload.len()
        })?;
        self.turn = at + 1;
        let transfer = &mut self.under_way[at];
        let start = transfer.staged;
        transfer.staged = (start + self.chunk_bytes).min(transfer.payload.len());
        self.unwritten += transfer.staged - start;
        Some((transfer.number, start..transfer.staged))
    }

    fn place_of(&self, number: u16) -> usize {
        let at = self.under_way.iter().position(|transfer| transfer.number == number);
        at.expect("a payload stays until its last chunk is written")
    }

    /// The bytes of a chunk that was handed out.
    pub(crate) fn bytes(&self, number: u16, range: Range<usize>) -> VolatileSlice<'_> {
        self.under_way[self.place_of(number)].payload.volatile().range(range)
    }

    /// Notes that `count` bytes of a transfer were written, up to `end` of its payload. Returns the payload if that was all of
    /// it.
    pub(crate) fn written(&mut self, number: u16, count: usize, end: usize) -> Option<(Owner, Payload)> {
        self.unwritten -= count;
        let at = self.place_of(number);
        if end < self.under_way[at].payload.len() {
            return None;
        }
        // The others keep their order, and so their turn.
        let Transfer { owner, payload, .. } = self.under_way.remove(at);
        self.turn -= usize::from(at < self.turn);
        Some((owner, payload))
    }

    /// The link is gone: returns all payloads.
    pub(crate) fn clear(&mut self) -> impl Iterator<Item = (Owner, Payload)> {
        (self.turn, self.unwritten) = (0, 0);
        self.under_way.drain(..).map(|transfer| (transfer.owner, transfer.payload))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Handle;

    const CHUNK: usize = INLINE_PAYLOAD_BYTES;

    #[test]
    fn answers_leave_room_for_pushes_and_pushes_for_answers() {
        let mut transfers = Transfers::new(CHUNK);
        let mut numbers = Vec::new();
        while transfers.has_room_for_answer() {
            numbers.push(transfers.begin(Owner::Nobody, vec![0; 2 * CHUNK].into()));
        }
        let stream = Handle::from_bits(1);
        while transfers.has_room_for_push() {
            let owner = Owner::Push { stream, number: 0 };
            numbers.push(transfers.begin(owner, vec![0; 2 * CHUNK].into()));
        }
        assert_eq!(numbers, (1..=TRANSFERS_MAX as u16).collect::<Vec<_>>());
        assert_eq!(transfers.clear().count(), TRANSFERS_MAX);
        assert!(transfers.next_chunk().is_none() && transfers.has_room_for_push());
    }
}
