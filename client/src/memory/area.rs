//! A receive area: memory from which the daemon allocates, lent to this process tensor by tensor. Any thread; bounded by the
//! size that the daemon announced.
//!
//! The daemon chooses where a tensor is, and two buffers over the same bytes would violate Rust's exclusive access. So the area
//! keeps a bitmap of lent memory, one bit per 64 bytes, and rejects overlaps.
#![allow(unsafe_code)]

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, Weak,
    atomic::{AtomicUsize, Ordering},
};

use sealane_runtime::{Buffer, Lender};
use sealane_transport::shm::{SharedMemory, Span};

use super::{ForkMark, view::Live};
use crate::limits::{FREES_PILED_MAX, FREES_PILED_SHARE};

/// Granularity of the daemon's allocation: no two of its blocks share a grain.
const GRAIN: u64 = 64;

/// Tells the daemon of blocks that are free again.
pub(crate) trait Freed: Send + Sync {
    /// Many blocks have piled up, or (not `many`) one was added to the pile. Called on whichever thread drops a tensor.
    fn freed(&self, many: bool);
}

/// An area; every buffer from it keeps it mapped.
pub(crate) struct Area {
    memory: SharedMemory,
    mark: Arc<ForkMark>,
    freed: Weak<dyn Freed>,
    loans: Mutex<Loans>,
    /// Number of tokens in the pile, readable without the lock.
    piled: AtomicUsize,
    views: Live,
}

struct Loans {
    /// A bit for each grain: set while lent.
    lent: Vec<u64>,
    /// Current loans; a buffer's token is the index of its loan.
    loans: Vec<Loan>,
    vacant: Vec<u32>,
    /// The daemon's tokens of blocks that are free again and not given back yet.
    pile: Vec<u64>,
    piled_bytes: u64,
}

#[derive(Clone, Copy)]
struct Loan {
    token: u64,
    span: Span,
    /// Others wait for it to be given back.
    is_awaited: bool,
}

impl Area {
    pub(crate) fn new(memory: SharedMemory, mark: Arc<ForkMark>, freed: Weak<dyn Freed>) -> Self {
        let words = memory.len().div_ceil(GRAIN * 64) as usize;
        let loans =
            Loans { lent: vec![0; words], loans: Vec::new(), vacant: Vec::new(), pile: Vec::new(), piled_bytes: 0 };
        Self { memory, mark, freed, loans: Mutex::new(loans), piled: AtomicUsize::new(0), views: Live::default() }
    }

    /// Its size in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.memory.len()
    }

    fn loans(&self) -> MutexGuard<'_, Loans> {
        self.loans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer over what the daemon says is a tensor.
    ///
    /// # Errors
    /// Why the daemon cannot be right.
    pub(crate) fn lend(self: &Arc<Self>, span: Span, token: u64) -> Result<Buffer, &'static str> {
        self.lend_as(Loan { token, span, is_awaited: false })
    }

    /// [`lend`](Self::lend) for a block that is given back as soon as it is dropped, since others wait for it.
    ///
    /// # Errors
    /// As [`lend`](Self::lend).
    pub(crate) fn lend_awaited(self: &Arc<Self>, span: Span, token: u64) -> Result<Buffer, &'static str> {
        self.lend_as(Loan { token, span, is_awaited: true })
    }

    fn lend_as(self: &Arc<Self>, loan: Loan) -> Result<Buffer, &'static str> {
        let span = loan.span;
        let bytes = self.memory.bytes(span).map_err(|_| "a tensor lies outside the receive area")?;
        let mut loans = self.loans();
        loans.mark(span)?;
        let place = match loans.vacant.pop() {
            Some(place) => {
                loans.loans[place as usize] = loan;
                place
            }
            None => {
                loans.loans.push(loan);
                (loans.loans.len() - 1) as u32
            }
        };
        drop(loans);
        // SAFETY: the bytes lie in a mapping that this area keeps; the bits that were just set keep them from being lent
        // again until `give_back` clears them. The daemon promises to leave them alone.
        Ok(unsafe { Buffer::lent(bytes.cast(), bytes.len(), place.into(), self.clone()) })
    }

    /// Ends the view of a tensor. Reported at once: its publisher, not this process, waits for the memory.
    pub(super) fn end_view(&self, token: u64) {
        if !self.mark.forked() {
            self.views.remove(token);
            self.pile(self.loans(), token, true);
        }
    }

    pub(super) fn views(&self) -> &Live {
        &self.views
    }

    /// Makes viewed tensors this process's own, since it parts with the daemon.
    pub(crate) fn keep_views(&self) {
        self.views.keep();
    }

    fn pile(&self, mut loans: MutexGuard<'_, Loans>, token: u64, at_once: bool) {
        loans.pile.push(token);
        let is_full =
            || loans.pile.len() >= FREES_PILED_MAX || loans.piled_bytes >= self.memory.len() / FREES_PILED_SHARE;
        let many = at_once || is_full();
        self.piled.store(loans.pile.len(), Ordering::SeqCst);
        drop(loans);
        if let Some(freed) = self.freed.upgrade() {
            freed.freed(many);
        }
    }

    /// True if blocks wait to be given back.
    #[inline]
    pub(crate) fn has_piled(&self) -> bool {
        // ASLEEP: a sleeper announces itself, then looks here; `give_back` adds, then looks for sleepers.
        self.piled.load(Ordering::SeqCst) > 0
    }

    /// Moves up to `most` tokens of free blocks into `into`.
    pub(crate) fn take_piled(&self, most: usize, into: &mut Vec<u64>) {
        let mut loans = self.loans();
        let from = loans.pile.len().saturating_sub(most);
        into.extend(loans.pile.drain(from..));
        loans.piled_bytes = if from == 0 { 0 } else { loans.piled_bytes };
        self.piled.store(from, Ordering::SeqCst);
    }

    /// Returns tokens to the pile for which there was no room.
    pub(crate) fn pile_again(&self, tokens: &[u64]) {
        let mut loans = self.loans();
        loans.pile.extend_from_slice(tokens);
        self.piled.store(loans.pile.len(), Ordering::SeqCst);
    }
}

impl Lender for Area {
    fn give_back(&self, place: u64) {
        // In a child the tensors are also the parent's, and a lock may be held by a thread that was not copied.
        if self.mark.forked() {
            return;
        }
        let mut loans = self.loans();
        let Some(&Loan { token, span, is_awaited }) = loans.loans.get(place as usize) else { return };
        loans.clear(span);
        loans.vacant.push(place as u32);
        loans.piled_bytes += span.len;
        self.pile(loans, token, is_awaited);
    }
}

impl Loans {
    /// Sets the bits of a span, which lies in the memory.
    fn mark(&mut self, span: Span) -> Result<(), &'static str> {
        if masks(span).any(|(word, mask)| self.lent[word] & mask != 0) {
            return Err("a tensor overlaps another that was not given back");
        }
        masks(span).for_each(|(word, mask)| self.lent[word] |= mask);
        Ok(())
    }

    fn clear(&mut self, span: Span) {
        masks(span).for_each(|(word, mask)| self.lent[word] &= !mask);
    }
}

/// The bits of a span, as masks of words.
fn masks(span: Span) -> impl Iterator<Item = (usize, u64)> {
    let (first, end) = (span.offset / GRAIN, (span.offset + span.len).div_ceil(GRAIN));
    // A span of no bytes covers no grain.
    let end = if span.len == 0 { first } else { end };
    (first / 64..end.div_ceil(64)).map(move |word| {
        let (from, to) = (first.max(word * 64) - word * 64, end.min((word + 1) * 64) - word * 64);
        let below = |bit: u64| if bit == 64 { u64::MAX } else { (1 << bit) - 1 };
        (word as usize, below(to) & !below(from))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Ledger(Mutex<Vec<bool>>);

    impl Freed for Ledger {
        fn freed(&self, many: bool) {
            self.0.lock().unwrap().push(many);
        }
    }

    fn area(bytes: u64) -> (Arc<Area>, Arc<Ledger>) {
        let (memory, _) = SharedMemory::create("test", bytes).unwrap();
        let ledger = Arc::new(Ledger(Mutex::default()));
        let freed: Arc<dyn Freed> = ledger.clone();
        let mark = Arc::new(ForkMark::new().unwrap());
        (Arc::new(Area::new(memory, mark, Arc::downgrade(&freed))), ledger)
    }

    fn span(offset: u64, len: u64) -> Span {
        Span { offset, len }
    }

    #[test]
    fn tokens_pile_up_and_are_taken() {
        let (area, ledger) = area(1 << 20);
        let buffers: Vec<_> = (0..20).map(|at| area.lend(span(at * 64, 64), 100 + at).unwrap()).collect();
        assert!(!area.has_piled());
        drop(buffers);
        assert!(area.has_piled());
        let many = ledger.0.lock().unwrap().clone();
        assert_eq!(many.iter().filter(|many| **many).count(), 20 - FREES_PILED_MAX + 1);
        let mut tokens = Vec::new();
        area.take_piled(15, &mut tokens);
        assert_eq!((tokens.len(), area.has_piled()), (15, true));
        area.take_piled(15, &mut tokens);
        tokens.sort_unstable();
        assert_eq!((tokens.clone(), area.has_piled()), ((100..120).collect(), false));
        area.pile_again(&tokens[..2]);
        assert!(area.has_piled());
    }

    #[test]
    fn a_large_block_is_given_back_at_once() {
        let (area, ledger) = area(1 << 20);
        drop(area.lend(span(0, 1 << 18), 1).unwrap());
        assert_eq!(*ledger.0.lock().unwrap(), [true]);
    }

    #[test]
    fn what_overlaps_or_lies_outside_is_refused() {
        let (area, _ledger) = area(1 << 20);
        let first = area.lend(span(4096, 10_000), 1).unwrap();
        for wrong in [span(4096, 1), span(0, 4097), span(14_000, 100), span(8192, 64), span(0, 1 << 20)] {
            assert!(area.lend(wrong, 2).is_err(), "{wrong:?}");
        }
        for outside in [span(1 << 20, 1), span(0, (1 << 20) + 1), span(u64::MAX, 2)] {
            assert!(area.lend(outside, 2).is_err(), "{outside:?}");
        }
        let neighbours = [area.lend(span(0, 4096), 2).unwrap(), area.lend(span(14_144, 64), 3).unwrap()];
        drop((first, neighbours));
        assert_eq!(area.lend(span(0, 1 << 20), 4).unwrap().len(), 1 << 20);
        assert!(area.lend(span(128, 0), 5).unwrap().is_empty());
    }
}
