//! What the daemon cannot count: tensors that the program moved over another transport, which it shows next to its own, and bytes of
//! streams that went by connections of their own, which it counts among its own. Added up here, and reported at most once per
//! `ELSEWHERE_INTERVAL`. Under the attachment's lock; bounded by `ELSEWHERE_PEERS_MAX`.

use hashbrown::HashMap;
use sealane_transport::shm::{Moved, Submission};

use super::{Attachment, Held, Line, State, link::Unsubmitted};
use crate::{
    clock::Tick,
    limits::{ELSEWHERE_INTERVAL, ELSEWHERE_PEERS_MAX},
    task::Direction,
};

/// What was not told yet.
#[derive(Default)]
pub(super) struct Elsewhere {
    peers: HashMap<Box<str>, Sums>,
    /// Of peers beyond the limit.
    others: Sums,
    is_new: bool,
    /// When it was told last.
    told: Option<Tick>,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
struct Sums {
    sent: Moved,
    received: Moved,
    /// Bytes of streams.
    streamed: (u64, u64),
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
    /// See [`Task::note_elsewhere`](crate::Task::note_elsewhere).
    pub(crate) fn note_elsewhere(&self, peer: &str, direction: Direction, tensors: u64, bytes: u64) {
        // In a child the lock may be held forever.
        if self.check_fork().is_err() {
            return;
        }
        let mut held = self.lock();
        held.elsewhere.of(peer).add(direction, tensors, bytes);
        held.tell_elsewhere(false);
    }

    /// So many bytes of streams were sent to and received from a peer past the daemon.
    pub(crate) fn note_streamed(&self, peer: &str, sent: u64, received: u64) {
        if self.check_fork().is_err() {
            return;
        }
        let mut held = self.lock();
        let streamed = &mut held.elsewhere.of(peer).streamed;
        *streamed = (streamed.0 + sent, streamed.1 + received);
        held.tell_elsewhere(false);
    }
}

impl Held<'_> {
    /// Tells the daemon what is new, if it is time or `now`. What finds no room is told later.
    pub(super) fn tell_elsewhere(&mut self, now: bool) {
        let tick = Tick::now();
        if !self.elsewhere.is_new
            || !now && self.elsewhere.told.is_some_and(|told| tick < told.after(ELSEWHERE_INTERVAL))
        {
            return;
        }
        let task = self.attachment.task();
        let State { line: Line::Up(link), elsewhere, .. } = &mut **self else { return };
        elsewhere.told = Some(tick);
        let Elsewhere { peers, others, is_new, .. } = elsewhere;
        let new = |sums: &Sums| *sums != Sums::default();
        let named = peers.iter_mut().map(|(peer, sums)| (Some(&**peer), sums));
        let all = named.chain([(None, others)]).filter(|(_, sums)| new(sums));
        let told = all.into_iter().try_for_each(|(peer, sums)| {
            let peer = peer.map(|peer| link.peer(task, peer)).transpose()?;
            let (segment, peer) = peer.map_or((0, None), |peer| (peer.segment, Some(peer.number)));
            let Sums { sent, received, streamed } = *sums;
            if let (Some(peer), (1.., _) | (_, 1..)) = (peer, streamed) {
                let [sent, received] = [streamed.0, streamed.1].map(|bytes| Moved { tensors: 0, bytes });
                link.submit(segment, &Submission::Direct { peer, sent, received })?;
                sums.streamed = (0, 0);
            }
            if (sent, received) != Default::default() {
                link.submit(segment, &Submission::Elsewhere { peer, sent, received })?;
            }
            *sums = Sums::default();
            Ok(())
        });
        match told {
            Ok(()) => *is_new = false,
            Err(Unsubmitted::Full | Unsubmitted::Refused(_)) => {}
            Err(Unsubmitted::Fault(fault)) => return self.lose(&fault),
        }
        self.submitted(1);
    }
}
