//! Queue pairs of closed links: each is destroyed when it can no longer hold a buffer of the shared receive queue.
//!
//! A message that had begun to arrive holds a buffer whose completion comes only after the queue pair is in error, and some
//! devices drop it if the queue pair is destroyed earlier (InfiniBand specification 10.3.1; UCX waits likewise). Until
//! then, buffers promised to the link's peer are not promised to others. Bounded by `DRAINING_MAX` and `DRAIN_WITHIN`.

use std::time::Instant;

use super::State;
use crate::arena::Handle;
use crate::verbs::credits::Credits;
use crate::verbs::device::{QueuePair, STOPPED};
use crate::verbs::limits::{DRAIN_WITHIN, DRAINING_MAX, FLUSH_WITHIN};

pub(super) struct Draining {
    queue_pair: QueuePair,
    credits: Credits,
    /// When it is destroyed, whatever it holds.
    pub(super) until: Instant,
    /// The device has said that it holds nothing.
    is_drained: bool,
}

impl State {
    /// Stops a link's queue pair. True if the device is done with everything posted to it and it may still hold a receive
    /// buffer; otherwise the queue pair is gone.
    pub(super) fn stop(&mut self, link: Handle, queue_pair: &QueuePair) -> bool {
        let is_stopped = !self.is_lost && self.device.stop(queue_pair.id);
        if is_stopped && self.is_flushed(link) {
            return true;
        }
        self.device.destroy(queue_pair.id);
        // What it has left in the completion queue carries its number, which another may get later.
        self.take_all_completions();
        if is_stopped {
            self.note_undrained(queue_pair, "its last requests did not complete in time");
        }
        false
    }

    /// Takes completions until those of a stopped link are complete; false if that takes too long.
    fn is_flushed(&mut self, link: Handle) -> bool {
        let until = Instant::now() + FLUSH_WITHIN;
        loop {
            // Checked first, since this thread may be paused for longer than that.
            let is_over = Instant::now() >= until;
            self.take_all_completions();
            if self.entry(link).completed.back().is_some_and(|(id, _)| *id == STOPPED) {
                return true;
            }
            if self.is_lost || is_over {
                return false;
            }
        }
    }

    /// Keeps the queue pair of a closed link until it holds no receive buffer.
    pub(super) fn drain(&mut self, queue_pair: &QueuePair, credits: &Credits, is_drained: bool) {
        let (queue_pair, credits) = (*queue_pair, credits.clone());
        self.draining.push_back(Draining { queue_pair, credits, until: Instant::now() + DRAIN_WITHIN, is_drained });
        // Often the device has already reported it.
        self.take_events();
        self.go_on_draining();
    }

    /// The device says that a queue pair in error holds no receive buffer.
    pub(super) fn is_drained(&mut self, number: u32) {
        if let Some(draining) = self.draining.iter_mut().find(|draining| draining.queue_pair.number == number) {
            draining.is_drained = true;
        } else if let Some(&link) = self.by_number.get(&number) {
            // It failed before its link ended, and this is not reported again.
            self.entry(link).is_drained = true;
        }
    }

    /// Destroys the queue pairs that hold nothing any more, and those that have waited too long.
    pub(super) fn go_on_draining(&mut self) {
        if self.draining.is_empty() {
            return;
        }
        self.take_events();
        let now = Instant::now();
        let mut at = 0;
        while let Some(draining) = self.draining.get(at) {
            let is_over = self.is_lost || draining.until <= now || self.draining.len() > DRAINING_MAX;
            if !draining.is_drained && !is_over {
                at += 1;
                continue;
            }
            // Its last completions are in the queue by now.
            self.take_all_completions();
            let Some(Draining { queue_pair, credits, is_drained, until }) = self.draining.remove(at) else { return };
            self.device.destroy(queue_pair.id);
            self.take_all_completions();
            credits.end(&mut self.buffers);
            if !is_drained {
                let why = match (self.is_lost, until <= now) {
                    (true, _) => "the device is lost",
                    (_, true) => "the device did not confirm in time that it holds none",
                    _ => "too many queue pairs wait for that",
                };
                self.note_undrained(&queue_pair, why);
            }
        }
    }

    fn note_undrained(&mut self, queue_pair: &QueuePair, why: &str) {
        self.counters.undrained += 1;
        let (number, count) = (queue_pair.number, self.counters.undrained);
        if count == 1 {
            tracing::warn!(
                number,
                why,
                "destroying a queue pair that may hold a receive buffer (further ones are counted, and logged at level debug)"
            );
        } else {
            tracing::debug!(number, why, count, "destroying a queue pair that may hold a receive buffer");
        }
    }
}
