//! The sessions with peers' shards: their links, the state of their connections, and lists of sessions that need attention.
//!
//! Events of sessions are handled by the node; this module only handles what concerns the sessions themselves. Bounded by twice
//! `links_max`.

mod calls;
mod connection;
#[cfg(any(test, feature = "fuzzing"))]
mod invariants;
mod lists;
mod outages;
mod peer;
mod schedule;
mod transfer;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use hashbrown::HashMap;
use sealane_transport::endpoint_map::TransportAddress;
use sealane_transport::session::{PeerQuota, Session};
use sealane_transport::trace::Recorder;
use sealane_transport::{Arena, Error, Handle, Link, SessionLimits};

use super::cells::RecvWaiter;
use super::orders::ConnectOrder;
use super::settings::NodeSettings;
use crate::metrics::{NodeMetrics, Way};
use lists::Lists;
pub(crate) use outages::Outages;
pub(super) use peer::{Connection, Peer};
use schedule::Schedule;

/// A session, as a node uses it.
pub(super) type PeerSession = Session<RecvWaiter, Handle>;

/// Identifies a session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct SessionKey {
    /// The index of this side's transport address that it uses.
    pub(super) via: u16,
    /// The peer's address.
    pub(super) address: TransportAddress,
    /// The peer's shard; `None` until its number of shards is known.
    pub(super) shard: Option<u16>,
}

/// All sessions of a node; see the module.
pub(super) struct Peers {
    arena: Arena<Peer>,
    sessions: HashMap<SessionKey, Handle>,
    /// The number of shards at each known transport address.
    shards_at: HashMap<TransportAddress, u16>,
    lists: Lists,
    schedule: Schedule,
    orders: VecDeque<ConnectOrder>,
    /// Which outages the log has reported, shared by all shards of the engine.
    pub(super) outages: Arc<Outages>,
    /// Sessions that have a link.
    links: usize,
    /// The number of the last life that any session began. New sessions start there, so that the numbers a peer sees never decrease.
    lives: u64,
    /// How many sessions were given a recorder.
    traced: u64,
}

impl Peers {
    pub(super) fn new(links_max: usize) -> Peers {
        Peers {
            arena: Arena::new(links_max.saturating_mul(2)),
            sessions: HashMap::new(),
            shards_at: HashMap::new(),
            lists: Lists::default(),
            schedule: Schedule::default(),
            orders: VecDeque::new(),
            outages: Arc::default(),
            links: 0,
            lives: 0,
            traced: 0,
        }
    }

    #[inline]
    pub(super) fn get(&self, handle: Handle) -> Option<&Peer> {
        self.arena.get(handle)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, handle: Handle) -> Option<&mut Peer> {
        self.arena.get_mut(handle)
    }

    #[inline]
    pub(super) fn session(&self, handle: Handle) -> Option<&PeerSession> {
        Some(&self.arena.get(handle)?.session)
    }

    #[inline]
    pub(super) fn session_mut(&mut self, handle: Handle) -> Option<&mut PeerSession> {
        Some(&mut self.arena.get_mut(handle)?.session)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.arena.iter().map(|(_, peer)| peer)
    }

    /// The sessions that `pick` chooses, as handles, since sessions may come and go while they are handled.
    pub(super) fn select(&self, pick: impl FnMut(&Peer) -> bool) -> Vec<Handle> {
        self.arena.select(pick)
    }

    #[inline]
    pub(super) fn has_events(&self, handle: Handle) -> bool {
        self.session(handle).is_some_and(|session| session.has_events())
    }

    /// The way tensors of a session travel.
    pub(super) fn way_of(&self, session: Handle) -> Way {
        self.arena.get(session).map_or(Way::TCP, |peer| peer.way)
    }

    /// Who a session is with, for messages.
    pub(super) fn name_of(&self, session: Handle) -> &str {
        self.session(session).map_or("the peer", |session| session.peer())
    }

    /// Established links.
    pub(super) fn links(&self) -> usize {
        self.links
    }

    pub(super) fn link(&self, handle: Handle) -> Option<&dyn Link> {
        Some(&**self.arena.get(handle)?.link.as_ref()?)
    }

    /// The descriptor of a session's link is readable, or broken.
    pub(super) fn descriptor_ready(&mut self, handle: Handle) {
        if let Some(link) = self.arena.get_mut(handle).and_then(|peer| peer.link.as_mut()) {
            link.descriptor_ready();
        }
    }

    pub(super) fn find(&self, key: &SessionKey) -> Option<Handle> {
        self.sessions.get(key).copied()
    }

    pub(super) fn is_full(&self) -> bool {
        self.arena.is_full()
    }

    /// The number of shards at an address, if known.
    pub(super) fn shards_at(&self, address: &TransportAddress) -> Option<u16> {
        self.shards_at.get(address).copied()
    }

    pub(super) fn set_shards_at(&mut self, address: &TransportAddress, shards: u16) {
        debug_assert_ne!(shards, 0, "no lane would lead to {address}");
        self.shards_at.insert(address.clone(), shards);
    }

    /// A new session for [`insert`](Self::insert), of a node with `tasks` tasks.
    pub(super) fn make(
        &mut self,
        key: &SessionKey,
        lane: u32,
        (tasks, limits, recorder): (u16, &SessionLimits, Option<&Recorder>),
    ) -> Peer {
        // All sessions with one address share a quota: a peer has as many sessions as it claims shards.
        let known = self.iter().find(|peer| peer.address == key.address);
        let quota = known.map_or_else(|| PeerQuota::new(limits), |peer| peer.session.quota().clone());
        let session = Session::sharing(&key.address.to_string(), tasks, limits.clone(), quota);
        let mut peer = Peer { life: self.lives, ..Peer::new(key.via, key.address.clone(), key.shard, lane, session) };
        if let Some(recorder) = recorder {
            self.traced += 1;
            peer.traced_as = self.traced;
            peer.session.set_recorder(&recorder.of_session(peer.traced_as));
        }
        peer
    }

    /// # Errors
    /// ResourceExhausted: there is no room.
    pub(super) fn insert(
        &mut self,
        key: SessionKey,
        peer: Peer,
        settings: &NodeSettings,
        shown_in: &NodeMetrics,
    ) -> Result<Handle, Error> {
        debug_assert!(
            !self.sessions.contains_key(&key),
            "the session of {key:?} would be lost, and its requests with it"
        );
        let metrics = peer.metrics.clone();
        let Ok(handle) = self.arena.insert(peer) else {
            let limit = settings.links_max;
            return Err(Error::full("transport.links_max", format!("sessions for {limit} links are in use")));
        };
        shown_in.peers.add(&metrics);
        self.sessions.insert(key, handle);
        Ok(handle)
    }

    /// A session that can be dropped: no link, nothing outstanding.
    pub(super) fn find_idle(&self) -> Option<Handle> {
        let idle = self.arena.iter().find(|(_, peer)| {
            peer.connection == Connection::Idle && peer.session.requests() == 0 && !peer.session.awaits_releases()
        });
        idle.map(|(handle, _)| handle)
    }

    /// Removes a session that has nothing to report; lists may still name it until they are next processed.
    pub(super) fn remove(&mut self, handle: Handle) -> Option<Peer> {
        let peer = self.arena.remove(handle)?;
        debug_assert!(peer.link.is_none(), "the link would be counted for ever");
        debug_assert!(!peer.session.has_events(), "those who wait for these events would wait for ever");
        self.sessions.retain(|_, session| *session != handle);
        Some(peer)
    }

    /// Records which shard a session is with, which was not known before.
    pub(super) fn set_shard(&mut self, handle: Handle, shard: u16) {
        let Some(peer) = self.arena.get_mut(handle) else { return };
        debug_assert_eq!(peer.shard, None, "requests of one shard would go to another");
        peer.shard = Some(shard);
        let key = |shard| SessionKey { via: peer.via, address: peer.address.clone(), shard };
        self.sessions.remove(&key(None));
        self.sessions.insert(key(peer.shard), handle);
    }

    /// Tells every session the number of tasks here.
    pub(super) fn set_tasks(&mut self, count: u16) {
        self.arena.iter_mut().for_each(|(_, peer)| peer.session.set_tasks(count));
    }

    /// The next connection order.
    pub(super) fn poll_order(&mut self) -> Option<ConnectOrder> {
        self.orders.pop_front()
    }

    #[inline]
    pub(super) fn has_orders(&self) -> bool {
        !self.orders.is_empty()
    }

    #[inline]
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.schedule.next()
    }

    /// Takes a session out of the schedule whose time has come.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<Handle> {
        while let Some((time, handle)) = self.schedule.take_due(now) {
            let Some(peer) = self.arena.get_mut(handle) else { continue };
            if peer.scheduled == Some(time) {
                peer.scheduled = None;
            }
            return Some(handle);
        }
        None
    }

    /// Enters the session's next timeout, unless an earlier one is entered.
    pub(super) fn reschedule(&mut self, handle: Handle, settings: &NodeSettings) {
        let Some(peer) = self.arena.get(handle) else { return };
        if let Some(time) = peer.next_timeout(settings.connect_timeout, settings.lease) {
            self.schedule_by(handle, time);
        }
    }

    /// True if a session has a link, is listed as having something to send, and has a timeout by `time`.
    #[inline]
    pub(super) fn is_looked_after(&self, handle: Handle, time: Instant) -> bool {
        self.arena.get(handle).is_some_and(|peer| {
            let is_expected = peer.in_dirty && peer.connection == Connection::Attached;
            is_expected && peer.scheduled.is_some_and(|scheduled| scheduled <= time)
        })
    }

    #[inline]
    pub(super) fn schedule_by(&mut self, handle: Handle, time: Instant) {
        let Some(peer) = self.arena.get_mut(handle) else { return };
        if peer.scheduled.is_none_or(|scheduled| time < scheduled) {
            peer.scheduled = Some(time);
            self.schedule.add(time, handle);
        }
    }

    /// Publishes for other threads what has changed in the sessions.
    pub(super) fn show(&mut self) {
        for handle in self.lists.unshown.drain(..) {
            if let Some(peer) = self.arena.get_mut(handle) {
                peer.show();
            }
        }
    }
}
