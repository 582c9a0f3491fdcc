//! The state of a session's connection, from the first dial to the last link.

use std::time::Instant;

use sealane_transport::endpoint_map::TaskName;
use sealane_transport::error::LinkError;
use sealane_transport::session::Roster;
use sealane_transport::wire::Hello;
use sealane_transport::{Error, Handle, Link};

use super::lists::touch;
use super::{Connection, Peer, Peers};
use crate::metrics::{PathState, Way};
use crate::node::counters::Counters;
use crate::node::orders::{ConnectOrder, DialFailure, DialFailureKind};
use crate::node::pairs::{Pairs, STRANGER};
use crate::node::settings::NodeSettings;

/// What the node must do after a look at a session.
pub(in crate::node) struct Look {
    /// The session has unreleased tensors and was without a link for too long.
    pub(in crate::node) lease_over: bool,
    /// An error if the peer has been silent so long that its link counts as lost.
    pub(in crate::node) silent: Result<(), LinkError>,
}

impl Peers {
    /// Dials the peer if something waits for it and no dial is in progress.
    #[inline]
    pub(in crate::node) fn want_link(&mut self, now: Instant, handle: Handle, settings: &NodeSettings, pairs: &Pairs) {
        let Some(peer) = self.arena.get_mut(handle) else { return };
        if peer.connection != Connection::Idle {
            return;
        }
        if !peer.session.wants_link() {
            peer.calls.stop();
            return;
        }
        peer.calls.want(now);
        self.dial(handle, settings, pairs);
        self.reschedule(handle, settings);
    }

    pub(in crate::node) fn dial(&mut self, handle: Handle, settings: &NodeSettings, pairs: &Pairs) {
        let hello = self.hello(handle, settings, pairs);
        let peer = self.arena.get_mut(handle).expect("the caller looked it up");
        debug_assert_eq!(peer.connection, Connection::Idle, "one peer would be called twice at a time");
        peer.connection = Connection::Dialing;
        peer.metrics.change(PathState::Connecting, |_| ());
        self.orders.push_back(ConnectOrder::Dial { peer: handle, address: peer.address.clone(), hello });
    }

    /// This side's incarnation in its session with a peer.
    pub(in crate::node) fn incarnation(peer: &Peer, settings: &NodeSettings) -> u64 {
        settings.incarnation.wrapping_add(peer.life)
    }

    /// True if the sender of a handshake and this side remember each other, so that their session resumes.
    pub(in crate::node) fn goes_on(&self, handle: Handle, hello: &Hello, settings: &NodeSettings) -> bool {
        let peer = self.arena.get(handle).expect("the caller looked it up");
        let known = peer.remembers && peer.incarnation == Some(hello.incarnation);
        known && hello.remembers == Self::incarnation(peer, settings)
    }

    /// This side's hello for a peer.
    pub(in crate::node) fn hello(&self, handle: Handle, settings: &NodeSettings, pairs: &Pairs) -> Hello {
        let peer = self.arena.get(handle).expect("the caller looked it up");
        Hello {
            features: settings.features,
            incarnation: Self::incarnation(peer, settings),
            remembers: peer.incarnation.filter(|_| peer.remembers).unwrap_or(0),
            tensor_bytes_max: settings.session.tensor_bytes_max,
            epoch: peer.session.epoch(),
            shards: settings.shards,
            shard: settings.shard,
            lane: peer.lane,
            address: settings.addresses[usize::from(peer.via)].to_string(),
            job: settings.job.clone(),
            tasks: pairs.tasks().map(TaskName::to_string).collect(),
        }
    }

    /// A dial has failed: returns whether to give the session up; `None` if the dial had been dropped before.
    pub(in crate::node) fn call_failed(
        &mut self,
        now: Instant,
        handle: Handle,
        failure: DialFailure,
        pairs: &Pairs,
    ) -> Option<bool> {
        let peer = self.arena.get_mut(handle).filter(|peer| peer.connection == Connection::Dialing)?;
        peer.connection = Connection::Idle;
        let since = peer.calls.fail(now, failure.reason, failure.kind == DialFailureKind::Refused);
        let reason = &peer.calls.last_error;
        tracing::debug!(peer = peer.session.peer(), reason, "a call failed");
        if failure.kind != DialFailureKind::Crossed && self.outages.failed(&peer.address, since, now) {
            let tasks: Vec<_> = pairs.map().tasks_at(&peer.address).map(TaskName::as_str).collect();
            tracing::warn!(peer = peer.session.peer(), tasks = tasks.join(","), reason, "a peer cannot be reached");
        }
        peer.counters.calls_failed += 1;
        peer.metrics.change(PathState::Idle, |path| path.last_error.clone_from(reason));
        touch(peer, handle, &mut self.lists.unshown);
        match failure.kind {
            DialFailureKind::Denied => {
                let reason = format!("{}: {}", peer.session.peer(), peer.calls.last_error);
                peer.session.end_all_requests(&Error::PermissionDenied { reason: reason.into() });
            }
            DialFailureKind::Final => {
                let error = Error::unavailable(peer.session.peer(), peer.calls.last_error.clone());
                peer.session.end_all_requests(&error);
            }
            // It was connected before: the process that had our requests has exited.
            DialFailureKind::Refused if peer.session.epoch() > 0 => return Some(true),
            DialFailureKind::Refused if peer.is_gone(now) => {
                let reason = format!("it was connected, and refuses connections now: {}", peer.calls.last_error);
                let error = Error::unavailable(peer.session.peer(), reason);
                peer.session.end_all_requests(&error);
            }
            DialFailureKind::Refused | DialFailureKind::Crossed | DialFailureKind::Transient => {}
        }
        Some(false)
    }

    /// Notes whether the dial waits for the lookup of the peer's host name.
    pub(in crate::node) fn set_resolving(&mut self, handle: Handle, resolving: bool) {
        if let Some(peer) = self.arena.get_mut(handle) {
            peer.calls.resolving = resolving;
        }
    }

    /// The reason why a session has no link.
    pub(in crate::node) fn last_error(&self, handle: Handle) -> &str {
        self.arena.get(handle).map_or("", |peer| &peer.calls.last_error)
    }

    /// After a failed dial: dials again later, if something still wants a link. A peer that is gone is not dialed earlier if calls that
    /// ended are repeated.
    pub(in crate::node) fn call_again(&mut self, now: Instant, handle: Handle, settings: &NodeSettings) {
        let peer = self.arena.get_mut(handle).expect("its call has just failed");
        if peer.session.wants_link() || peer.is_gone(now) {
            self.wait_to_dial(now, handle, settings);
        } else {
            peer.connection = Connection::Idle;
            peer.calls.stop();
        }
    }

    /// Dials the peer again later, after a longer wait the more dials have failed.
    fn wait_to_dial(&mut self, now: Instant, handle: Handle, settings: &NodeSettings) {
        let Some(peer) = self.arena.get_mut(handle) else { return };
        debug_assert!(peer.link.is_none(), "a second link would take the place of the first");
        peer.connection = Connection::Waiting(now + peer.calls.backoff(settings.incarnation, peer.lane));
        peer.metrics.change(PathState::Connecting, |_| ());
    }

    /// This side drops the session: requests sent to the peer end, and tensors that it has not released are returned. False if there is
    /// none.
    pub(in crate::node) fn give_up(&mut self, handle: Handle, reason: &str) -> bool {
        let Some(peer) = self.arena.get_mut(handle) else { return false };
        peer.remembers = false;
        peer.lost_at = None;
        let error = Error::unavailable(peer.session.peer(), reason);
        peer.session.reset(&error);
        self.begin_life(handle);
        // The handshake of a dial in progress would not tell the peer.
        self.hang_up(handle);
        true
    }

    /// From now on, handshakes of the session's former life do not match it.
    pub(in crate::node) fn begin_life(&mut self, handle: Handle) {
        self.lives += 1;
        if let Some(peer) = self.arena.get_mut(handle) {
            debug_assert!(peer.life < self.lives, "a former greeting would fit the session");
            peer.life = self.lives;
        }
    }

    /// Drops the dial in progress, if there is one.
    pub(in crate::node) fn hang_up(&mut self, handle: Handle) {
        if let Some(peer) = self.arena.get_mut(handle).filter(|peer| peer.connection == Connection::Dialing) {
            peer.connection = Connection::Idle;
            self.orders.push_back(ConnectOrder::HangUp(handle));
        }
    }

    /// One of the two sides does not remember the session: what was in flight on it is in doubt.
    pub(in crate::node) fn start_anew(&mut self, handle: Handle, hello: &Hello, counters: &mut Counters) {
        let peer = self.arena.get_mut(handle).expect("the caller looked it up");
        counters.sessions_reset += u64::from(peer.session.epoch() > 0);
        if peer.incarnation.is_some_and(|incarnation| incarnation != hello.incarnation) {
            let error = Error::unavailable(peer.session.peer(), "it restarted, and its outstanding requests are lost");
            peer.session.reset(&error);
        } else {
            peer.session.start_anew();
        }
    }

    /// Gives the session a link.
    pub(in crate::node) fn attach(
        &mut self,
        now: Instant,
        handle: Handle,
        mut link: Box<dyn Link>,
        (hello, epoch, roster): (&Hello, u32, Roster),
    ) {
        let peer = self.arena.get_mut(handle).expect("the caller looked it up");
        debug_assert!(peer.link.is_none(), "the link before would be counted for ever");
        let has_strangers = roster.numbers.contains(&STRANGER);
        (peer.incarnation, peer.remembers) = (Some(hello.incarnation), true);
        peer.is_negotiating = !link.traits().open;
        peer.metrics.set_shard(hello.shard);
        peer.session.attach(now, epoch, roster, hello.tensor_bytes_max);
        link.adopt(handle);
        peer.link = Some(link);
        peer.connection = Connection::Attached;
        (peer.blocked, peer.blocked_turns, peer.stuck, peer.last_pair) = (false, 0, false, None);
        peer.has_strangers = has_strangers;
        self.links += 1;
        self.lists.new_links.push(handle);
    }

    /// The link of a session accepts frames from now on: its kind, and the reason for that, go to the log and the metrics.
    pub(in crate::node) fn link_opened(
        &mut self,
        now: Instant,
        handle: Handle,
        settings: &NodeSettings,
        counters: &mut Counters,
    ) {
        let Some(peer) = self.arena.get_mut(handle) else { return };
        let Some(link) = &peer.link else { return };
        debug_assert!(link.traits().open, "frames would go to a link that does not take them yet");
        let kind = link.kind();
        peer.lost_at = None;
        peer.calls.succeed();
        if let Some(outage) = self.outages.ended(&peer.address, now) {
            tracing::info!(peer = peer.session.peer(), ?outage, "a peer can be reached again");
        }
        // A link that negotiated its kind has already logged the reason.
        let found_out = link.reason().map(str::to_owned);
        let reason = found_out.clone().unwrap_or_else(|| settings.path_reason.clone());
        if found_out.is_none() {
            tracing::info!(peer = peer.session.peer(), link = kind.name(), reason, "link up");
        }
        peer.way = Way::of(kind, &settings.kinds);
        peer.counters.links_made += 1;
        peer.counters.fallbacks += u64::from(link.fell_back());
        if let Some(place) = settings.kinds.iter().position(|other| *other == kind) {
            counters.kinds[place].links += 1;
        }
        peer.metrics.change(PathState::Up, |path| (path.link, path.reason) = (Some(kind), reason));
        touch(peer, handle, &mut self.lists.unshown);
    }

    /// Removes the link of a session, which is lost; false if it has none.
    pub(in crate::node) fn detach(
        &mut self,
        now: Instant,
        handle: Handle,
        error: &LinkError,
        (settings, counters): (&NodeSettings, &mut Counters),
    ) -> bool {
        let Some(peer) = self.arena.get_mut(handle) else { return false };
        let Some(mut link) = peer.link.take() else { return false };
        debug_assert_eq!(peer.connection, Connection::Attached, "a call under way would be taken for a link");
        tracing::info!(peer = peer.session.peer(), link = link.kind().name(), %error, "link lost");
        let kind = link.kind();
        if let Some(place) = settings.kinds.iter().position(|other| *other == kind && !peer.is_negotiating) {
            counters.kinds[place].links -= 1;
        }
        let landings = link.abandon(peer.session.outbox());
        peer.session.detach(landings);
        peer.calls.last_error = error.to_string();
        // Since when it has had no open link.
        peer.lost_at.get_or_insert(now);
        peer.is_expected_back = matches!(error, LinkError::WentAway(_));
        (peer.connection, peer.blocked, peer.stuck) = (Connection::Idle, false, false);
        peer.counters.links_lost += 1;
        peer.metrics.change(PathState::Idle, |path| path.last_error.clone_from(&peer.calls.last_error));
        touch(peer, handle, &mut self.lists.unshown);
        self.links -= 1;
        counters.links_lost += 1;
        true
    }

    /// False if the link of a session does not accept frames yet.
    pub(in crate::node) fn had_opened(&self, handle: Handle) -> bool {
        self.arena.get(handle).is_some_and(|peer| !peer.is_negotiating)
    }

    /// After a loss: dials the next link; after a wait if the last one never opened, as after a failed dial.
    pub(in crate::node) fn replace_lost(
        &mut self,
        now: Instant,
        handle: Handle,
        had_opened: bool,
        settings: &NodeSettings,
        pairs: &Pairs,
    ) {
        match self.arena.get_mut(handle) {
            Some(peer) if !had_opened && peer.connection == Connection::Idle && peer.session.wants_link() => {
                peer.calls.want(now);
                self.wait_to_dial(now, handle, settings);
            }
            _ => self.want_link(now, handle, settings, pairs),
        }
        self.reschedule(handle, settings);
    }

    /// One link that fell back because of this side, and would no longer do so. `None` if no link fell back.
    pub(in crate::node) fn find_fallback(&self, now: Instant) -> Option<Option<Handle>> {
        // A link that is being negotiated may still fall back.
        let can = |peer: &Peer| match &peer.link {
            _ if peer.is_negotiating => Some(false),
            link => link.as_ref()?.can_do_better(now),
        };
        let mut fallbacks = self.arena.iter().filter_map(|(handle, peer)| Some((handle, can(peer)?))).peekable();
        fallbacks.peek()?;
        Some(fallbacks.find(|(_, can)| *can).map(|(handle, _)| handle))
    }

    /// Checks a session whose time has come: requests that have waited too long for a link end.
    pub(in crate::node) fn look_after(
        &mut self,
        now: Instant,
        handle: Handle,
        settings: &NodeSettings,
        pairs: &Pairs,
    ) -> Option<Look> {
        let peer = self.arena.get_mut(handle)?;
        let silent = peer.handle_timeout(now, |task| pairs.peer_name(task));
        let has_link = peer.link.is_some();
        if !has_link && peer.calls.wanted_for(settings.connect_timeout).is_some_and(|over| over <= now) {
            let within = settings.connect_timeout;
            let reason = format!("no connection within {within:?} (connect_timeout_ms): {}", peer.standing(now));
            let error = Error::unavailable(peer.session.peer(), reason);
            peer.session.end_all_requests(&error);
            peer.calls.stop();
            self.hang_up(handle);
        }
        let peer = self.arena.get_mut(handle)?;
        if let Connection::Waiting(until) = peer.connection
            && until <= now
        {
            peer.connection = Connection::Idle;
        }
        let lease_over = peer.lost_at.is_some_and(|lost| lost + settings.lease <= now);
        let lease_over = !has_link && lease_over && peer.session.awaits_releases();
        Some(Look { lease_over, silent })
    }
}
