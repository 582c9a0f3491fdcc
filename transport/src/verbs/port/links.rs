//! The links of a port: creates and ends their queue pairs; ends all of them when the port goes down.
//!
//! Bounded by the promised receive buffers, a few per link.

use super::{Arrival, Entry, State};
use crate::arena::Handle;
use crate::verbs::credits::Credits;
use crate::verbs::device::{Endpoint, QueuePair, VerbsError};

impl State {
    /// A new link's queue pair, what its peer needs to know of it, and its share of receive buffers.
    pub(in crate::verbs) fn begin_link(&mut self) -> Result<(Handle, QueuePair, Endpoint, Credits), VerbsError> {
        let queue_pair = self.device.create()?;
        let Some(credits) = Credits::begin(&mut self.buffers) else {
            self.device.destroy(queue_pair.id);
            return Err(VerbsError::new("receive buffers (verbs.queue_depth)", "all are promised to other links"));
        };
        assert!(self.buffers.promised() <= self.receive_buffers.len() as u32, "a promise without a buffer");
        let Ok(link) = self.links.insert(Entry::default()) else {
            unreachable!("links are fewer than numbers of queue pairs")
        };
        self.by_number.insert(queue_pair.number, link);
        let attributes = self.device.attributes();
        let endpoint = Endpoint {
            number: queue_pair.number,
            first_packet: first_packet(queue_pair.id),
            gid: attributes.gid,
            lid: attributes.lid,
            mtu: attributes.mtu,
            reads: attributes.reads,
        };
        Ok((link, queue_pair, endpoint, credits))
    }

    /// Ends a link: its peer can no longer access memory of this side, and its `works` outstanding work requests are forgotten.
    pub(in crate::verbs) fn end_link(&mut self, link: Handle, queue_pair: &QueuePair, credits: &Credits, works: u32) {
        let drains = self.stop(link, queue_pair);
        self.by_number.remove(&queue_pair.number);
        self.retired(works);
        let mut is_drained = false;
        if let Some(entry) = self.links.remove(link) {
            is_drained = entry.is_drained;
            for arrival in entry.arrivals {
                if let Arrival::Message { buffer, .. } = arrival {
                    self.refill(buffer);
                }
            }
        }
        // An error has put the port out of use.
        let _ = self.post_refills();
        if drains {
            self.drain(queue_pair, credits, is_drained);
        } else {
            credits.end(&mut self.buffers);
        }
    }

    /// True if something has come for a link that it has not taken, as far as the device reports now.
    pub(in crate::verbs) fn has_more(&mut self, link: Handle) -> bool {
        self.take_all_completions();
        !self.entry(link).arrivals.is_empty()
    }

    pub(in crate::verbs) fn entry(&mut self, link: Handle) -> &mut Entry {
        self.links.get_mut(link).expect("a link has its entry until it ends")
    }

    /// Sets the name under which the owner of a link is notified.
    pub(in crate::verbs) fn adopt(&mut self, link: Handle, owner: Handle) {
        let entry = self.entry(link);
        entry.owner = Some(owner);
        if entry.is_told {
            self.told.push(link);
        }
    }

    /// Ends a link at its next call.
    pub(in crate::verbs) fn break_link(&mut self, link: Handle, reason: &str) {
        let Some(entry) = self.links.get_mut(link) else { return };
        entry.broken.get_or_insert_with(|| reason.to_owned());
        self.mark_told(link, true);
    }

    pub(super) fn fail_all(&mut self, reason: &str) {
        for link in self.links.select(|_| true) {
            self.break_link(link, reason);
        }
    }

    /// No link can ever begin again, and all existing ones end.
    pub(super) fn give_up(&mut self, reason: &str) {
        self.is_lost = true;
        self.go_down(reason);
    }

    /// No link can begin until the port comes up, and all existing ones end.
    pub(in crate::verbs) fn go_down(&mut self, reason: &str) {
        if self.down.is_none() {
            tracing::error!(reason, "verbs are out of use: links continue over TCP");
            self.down = Some(reason.to_owned());
        }
        self.fail_all(reason);
    }
}

/// The number of a queue pair's first packet: 24 bits that differ from link to link, so that packets of a former link are
/// not mistaken for the new one's.
fn first_packet(id: u64) -> u32 {
    use std::hash::{BuildHasher, RandomState};
    (RandomState::new().hash_one(id) & 0xff_ffff) as u32
}
