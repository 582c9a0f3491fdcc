//! Counts work requests of all links, and dispatches their completions: those for a link wait in its entry, and its owner
//! is notified.
//!
//! Bounded by the completion queue, and for each link by its window: a peer that exceeds it loses its link.

use super::{Arrival, State};
use crate::arena::Handle;
use crate::provider::Told;
use crate::verbs::device::{Completion, RECEIVED, VerbsError};
use crate::verbs::limits::{COMPLETIONS_PER_TURN, MESSAGE_BYTES, WINDOW_MAX};
use crate::verbs::message;

impl State {
    /// True if `works` more work requests may be posted.
    #[inline]
    pub(in crate::verbs) fn has_room_for(&self, works: u32) -> bool {
        self.works + works <= self.works_max
    }

    #[inline]
    pub(in crate::verbs) fn posted(&mut self, works: u32) {
        self.works += works;
        debug_assert!(self.works <= self.works_max);
    }

    #[inline]
    pub(in crate::verbs) fn retired(&mut self, works: u32) {
        self.works -= works;
        self.wake_waiting();
    }

    /// A link could not continue because others hold what it needs; it must be told when there may be some.
    pub(in crate::verbs) fn wait(&mut self, link: Handle) {
        if !self.waiting.contains(&link) {
            self.waiting.push(link);
        }
    }

    #[inline]
    pub(super) fn wake_waiting(&mut self) {
        while let Some(link) = self.waiting.pop() {
            self.mark_told(link, true);
        }
    }

    /// The owner of a link must be notified.
    pub(in crate::verbs) fn mark_told(&mut self, link: Handle, has_room: bool) {
        let Some(entry) = self.links.get_mut(link) else { return };
        entry.has_room |= has_room;
        entry.has_news.set(true);
        if !std::mem::replace(&mut entry.is_told, true) && entry.owner.is_some() {
            self.told.push(link);
        }
    }

    /// Moves completions to their links; returns how many there were.
    #[inline]
    pub(super) fn take_completions(&mut self) -> usize {
        match self.device.poll(&mut self.completions, COMPLETIONS_PER_TURN) {
            Ok(0) => 0,
            polled => self.hand_out_all(polled),
        }
    }

    /// Moves all completions that the queue holds now to their links. A peer that never stops sending does not prolong this.
    pub(in crate::verbs) fn take_all_completions(&mut self) {
        let mut left = 2 * self.device.attributes().completion_depth as usize;
        while left > 0 {
            match self.take_completions() {
                0 => return,
                taken => left = left.saturating_sub(taken),
            }
        }
    }

    fn hand_out_all(&mut self, polled: Result<usize, VerbsError>) -> usize {
        let mut completions = std::mem::take(&mut self.completions);
        for completion in &completions {
            self.hand_out(completion);
        }
        completions.clear();
        self.completions = completions;
        match polled {
            Ok(count) => {
                // An error has put the port out of use.
                let _ = self.post_refills();
                count
            }
            Err(error) => {
                self.give_up(&error.to_string());
                0
            }
        }
    }

    #[inline]
    fn hand_out(&mut self, completion: &Completion) {
        let link = self.by_number.get(&completion.queue_pair).copied();
        let has_come = completion.id & RECEIVED != 0;
        let buffer = (completion.id & !RECEIVED) as u32;
        let Some(link) = link else {
            if has_come {
                self.refill(buffer);
            }
            return;
        };
        let entry = self.links.get_mut(link).expect("a number goes with its link");
        let mut has_room = true;
        if !has_come {
            entry.completed.push_back((completion.id, completion.status));
        } else if !completion.status.is_success() {
            entry.broken.get_or_insert_with(|| format!("receive: {}", completion.status));
            self.refill(buffer);
        } else if entry.arrivals.len() >= WINDOW_MAX as usize {
            entry.broken.get_or_insert_with(|| "the peer exceeded its credit".to_owned());
            self.refill(buffer);
        } else if let Some(word) = completion.word {
            entry.arrivals.push_back(Arrival::Word(word));
            has_room = false;
            self.refill(buffer);
        } else {
            let bytes = completion.bytes as usize;
            let credits = message::credits(&self.receive_buffers[buffer as usize][..bytes.min(MESSAGE_BYTES)]);
            entry.arrivals.push_back(Arrival::Message { buffer, bytes });
            entry.credits = entry.credits.saturating_add(credits.into());
            has_room = credits > 0 && entry.wants_credit;
        }
        self.mark_told(link, has_room);
    }

    pub(super) fn tell(&mut self, into: &mut Vec<Told>) {
        for link in self.told.drain(..) {
            let Some(entry) = self.links.get_mut(link) else { continue };
            entry.is_told = false;
            if let Some(owner) = entry.owner {
                into.push(Told { link: owner, has_room: std::mem::take(&mut entry.has_room) });
            }
        }
    }
}
