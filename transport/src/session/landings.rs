//! Tensors received in chunks, while they wait for the next chunk: the receiving half of an outbox's transfers.
//!
//! Bounded by [`TRANSFERS_MAX`]; the memory of each is allocated when it begins.

use crate::arena::Handle;
use crate::limits::TRANSFERS_MAX;
use crate::link::{Landing, LandingOf};
use crate::wire::{Chunk, WireError};

#[derive(Default)]
pub(super) struct Landings {
    waiting: Vec<Landing>,
    /// Tensors that links are filling right now; TCP fills one at a time.
    filling: Vec<Traveller>,
}

/// Identifies a tensor on its way.
#[derive(PartialEq, Eq)]
struct Traveller {
    request: Handle,
    number: u64,
}

impl Traveller {
    /// `None` for one that is only dropped: it does no harm, however often it comes.
    fn of(landing: &Landing) -> Option<Traveller> {
        landing.memory()?;
        let number = match landing.of {
            LandingOf::Response | LandingOf::GivenUp => 0,
            LandingOf::Part { index, .. } => u64::from(index),
            LandingOf::Push { number } => number,
        };
        Some(Traveller { request: landing.request, number })
    }
}

impl Landings {
    /// Checks what a frame says of its payload; `transfer` is 0 for a payload that follows immediately.
    ///
    /// # Errors
    /// The number is out of range or names another payload that has not ended, or there are no bytes.
    #[inline]
    pub(super) fn check(&self, transfer: u16, payload_bytes: u64) -> Result<(), WireError> {
        if transfer == 0 {
            return Ok(());
        }
        if usize::from(transfer) > TRANSFERS_MAX || self.place_of(transfer).is_some() {
            return Err(WireError::BadValue { what: "transfer that begins", found: u64::from(transfer) });
        }
        if payload_bytes == 0 {
            return Err(WireError::BadValue { what: "length of a payload in chunks", found: 0 });
        }
        Ok(())
    }

    /// Checks that a tensor that begins to arrive is not on its way already.
    ///
    /// # Errors
    /// It is: each tensor is sent only once per link.
    #[inline]
    pub(super) fn admit(&self, landing: &Landing) -> Result<(), WireError> {
        let is_filling = || Traveller::of(landing).is_some_and(|traveller| self.filling.contains(&traveller));
        if self.waiting.iter().any(|other| landing.collides_with(other)) || is_filling() {
            let found = landing.request.to_bits();
            return Err(WireError::BadValue { what: "handle of a tensor that is on its way already", found });
        }
        Ok(())
    }

    /// A link begins to fill this landing.
    #[inline]
    pub(super) fn begin_filling(&mut self, landing: &Landing) {
        self.filling.extend(Traveller::of(landing));
    }

    /// A link is done with a landing that it was filling, or that came all at once.
    #[inline]
    pub(super) fn end_filling(&mut self, landing: &Landing) {
        if self.filling.is_empty() {
            return;
        }
        if let Some(traveller) = Traveller::of(landing)
            && let Some(at) = self.filling.iter().position(|other| *other == traveller)
        {
            self.filling.swap_remove(at);
        }
    }

    /// Keeps a tensor until its next chunk comes.
    pub(super) fn keep(&mut self, landing: Landing) {
        self.waiting.push(landing);
    }

    /// The tensor that a chunk belongs to.
    ///
    /// # Errors
    /// There is none, or the chunk is empty or exceeds the tensor's end.
    pub(super) fn resume(&mut self, chunk: Chunk) -> Result<Landing, WireError> {
        let Some(at) = self.place_of(chunk.transfer) else {
            return Err(WireError::BadValue { what: "transfer of a chunk", found: u64::from(chunk.transfer) });
        };
        let landing = &self.waiting[at];
        if chunk.bytes == 0 || chunk.bytes > (landing.total - landing.filled) as u64 {
            return Err(WireError::BadValue { what: "length of a chunk", found: chunk.bytes });
        }
        let mut landing = self.waiting.swap_remove(at);
        landing.end = landing.filled + chunk.bytes as usize;
        Ok(landing)
    }

    /// The link is gone: returns all that waits.
    pub(super) fn take(&mut self) -> Vec<Landing> {
        self.filling.clear();
        std::mem::take(&mut self.waiting)
    }

    fn place_of(&self, transfer: u16) -> Option<usize> {
        self.waiting.iter().position(|landing| landing.transfer == transfer)
    }
}
