//! What the daemon cannot count itself: tensors that the program moved over another transport, which it shows next to its own, and bytes of
//! streams on connections of their own, which it counts among its own. Summed here, and reported at most once per
//! `ELSEWHERE_INTERVAL`. Under the attachment's lock; bounded by `ELSEWHERE_PEERS_MAX`.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use hashbrown::HashMap;
use sealane_transport::shm::{Moved, Submission};

use super::{Attachment, Held, Line, State, link::Unsubmitted};
use crate::{
    clock::Tick,
    limits::{ELSEWHERE_INTERVAL, ELSEWHERE_PEERS_MAX},
    task::Direction,
};

/// Sums not reported yet.
#[derive(Default)]
pub(super) struct Elsewhere {
    peers: HashMap<Box<str>, Sums>,
    /// For peers beyond the limit.
    others: Sums,
    is_new: bool,
    /// For peers within the limit.
    streamed: HashMap<Box<str>, Arc<Streamed>>,
    /// When sums were last reported.
    told: Option<Tick>,
}

/// Bytes of streams with one peer to be reported to the daemon. Each connection adds to them without a lock.
#[derive(Default)]
pub(crate) struct Streamed {
    sent: AtomicU64,
    received: AtomicU64,
}

impl Streamed {
    pub(crate) fn add_sent(&self, bytes: u64) {
        self.sent.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn add_received(&self, bytes: u64) {
        self.received.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes sent and received.
    fn bytes(&self) -> (u64, u64) {
        (self.sent.load(Ordering::Relaxed), self.received.load(Ordering::Relaxed))
    }

    fn is_new(&self) -> bool {
        self.bytes() != (0, 0)
    }

    /// Subtracts what was reported.
    fn take(&self, told: (u64, u64)) {
        self.sent.fetch_sub(told.0, Ordering::Relaxed);
        self.received.fetch_sub(told.1, Ordering::Relaxed);
    }
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
struct Sums {
    sent: Moved,
    received: Moved,
}

impl Sums {
    fn add(&mut self, direction: Direction, tensors: u64, bytes: u64) {
        let sum = match direction {
            Direction::Sent => &mut self.sent,
            Direction::Received => &mut self.received,
        };
        sum.tensors = sum.tensors.saturating_add(tensors);
        sum.bytes = sum.bytes.saturating_add(bytes);
    }
}

impl Elsewhere {
    fn of(&mut self, peer: &str) -> &mut Sums {
        self.is_new = true;
        let has_room = self.peers.len() < ELSEWHERE_PEERS_MAX;
        match self.peers.contains_key(peer) || has_room {
            true => self.peers.entry(peer.into()).or_default(),
            false => &mut self.others,
        }
    }
}

impl Attachment {
    pub(crate) fn note_elsewhere(&self, peer: &str, direction: Direction, tensors: u64, bytes: u64) {
        // In a child the lock may be held forever.
        if self.check_fork().is_err() {
            return;
        }
        let mut held = self.lock();
        held.elsewhere.of(peer).add(direction, tensors, bytes);
        held.tell_elsewhere(false);
    }

    /// Counts bytes of streams with a peer that bypass the daemon; for peers beyond the limit they are not reported.
    pub(crate) fn streamed(&self, peer: &str) -> Arc<Streamed> {
        if self.check_fork().is_err() {
            return Arc::default();
        }
        let streamed = &mut self.lock().elsewhere.streamed;
        if !streamed.contains_key(peer) && streamed.len() >= ELSEWHERE_PEERS_MAX {
            return Arc::default();
        }
        streamed.entry(peer.into()).or_default().clone()
    }
}

impl Held<'_> {
    /// Reports new sums to the daemon, if it is time or `now`. What finds no room is reported later.
    pub(super) fn tell_elsewhere(&mut self, now: bool) {
        let tick = Tick::now();
        if !now && self.elsewhere.told.is_some_and(|told| tick < told.after(ELSEWHERE_INTERVAL)) {
            return;
        }
        let task = self.attachment.task();
        let State { line: Line::Up(link), elsewhere, .. } = &mut **self else { return };
        let Elsewhere { peers, others, is_new, streamed, told } = elsewhere;
        if !*is_new && !streamed.values().any(|streamed| streamed.is_new()) {
            return;
        }
        *told = Some(tick);
        let by_connections = streamed.iter().filter(|(_, streamed)| streamed.is_new());
        let told = by_connections.into_iter().try_for_each(|(peer, streamed)| {
            let peer = link.peer(task, peer)?;
            let bytes = streamed.bytes();
            let [sent, received] = [bytes.0, bytes.1].map(|bytes| Moved { tensors: 0, bytes });
            link.submit(peer.segment, &Submission::Direct { peer: peer.number, sent, received })?;
            streamed.take(bytes);
            Ok(())
        });
        let told = told.and_then(|()| {
            let named = peers.iter_mut().map(|(peer, sums)| (Some(&**peer), sums));
            let all = named.chain([(None, others)]).filter(|(_, sums)| **sums != Sums::default());
            all.into_iter().try_for_each(|(peer, sums)| {
                let peer = peer.map(|peer| link.peer(task, peer)).transpose()?;
                let (segment, peer) = peer.map_or((0, None), |peer| (peer.segment, Some(peer.number)));
                let Sums { sent, received } = *sums;
                link.submit(segment, &Submission::Elsewhere { peer, sent, received })?;
                *sums = Sums::default();
                Ok(())
            })
        });
        match told {
            Ok(()) => *is_new = false,
            Err(Unsubmitted::Full | Unsubmitted::Refused(_)) => {}
            Err(Unsubmitted::Fault(fault)) => return self.lose(&fault),
        }
        self.submitted(1);
    }
}
