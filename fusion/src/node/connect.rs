//! Which connections a node wants, and what it makes of those that come.
//!
//! Connections are made lazily, from either side. Two calls that cross are settled to one: the call of the side with
//! the smaller transport address stands.

use std::sync::Arc;
use std::time::Instant;

use crate::metrics::PathState;
use sealane_transport::endpoint_map::{EndpointMap, TransportAddress};
use sealane_transport::error::LinkError;
use sealane_transport::lane::shard_of;
use sealane_transport::limits::INTRODUCTION_NAMES_BYTES_MAX;
use sealane_transport::session::{PeerQuota, Roster, Session};
use sealane_transport::wire::{FEATURE_PROBE, Greeting, Hello, RejectCode};
use sealane_transport::{Error, Handle, Link, LinkKind};

use super::peer::{Connection, Peer, touch};
use super::{Node, STRANGER, SessionKey};

/// Sessions of one process begin anew less often than this: incarnations that differ by less are of one process.
const LIVES_MAX: u64 = 1 << 20;

/// What the owner of a node is to do about connections.
#[derive(Debug)]
pub enum ConnectOrder {
    /// Call a peer, say `hello`, and report with [`Node::dialed`] or [`Node::dial_failed`].
    Dial {
        /// Names the call in the report.
        peer: Handle,
        /// Whom to call.
        address: TransportAddress,
        /// What to say.
        hello: Hello,
    },
    /// Drop the call: the peer's own call came first.
    HangUp(Handle),
}

/// A call that came to nothing.
#[derive(Debug)]
pub struct DialFailure {
    /// Why, for a person.
    pub reason: String,
    /// What it means for those who wait.
    pub kind: DialFailureKind,
}

/// What a failed call means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DialFailureKind {
    /// Nobody listens there.
    Refused,
    /// The peer's own call is on its way.
    Crossed,
    /// It may work later.
    Transient,
    /// It will not work later either: another program or version.
    Final,
    /// One side has not shown the other that it may talk.
    Denied,
}

/// What becomes of a caller.
#[derive(Debug)]
pub enum Answer {
    /// Make the link, and hand it over with [`Node::accepted`].
    Welcome {
        /// Names the session.
        peer: Handle,
    },
    /// Say no.
    Reject(RejectCode, String),
}

impl Node {
    /// The session that serves a pair; made if there is none.
    pub(super) fn session_of(&mut self, pair: u32) -> Result<Handle, Error> {
        let known = &self.pairs[pair as usize];
        if let Some(session) = known.session
            && self.peers.get(session).is_some()
        {
            return Ok(session);
        }
        let (lane, peer) = (known.lane, &self.peer_tasks[known.peer as usize]);
        let via = self.context.settings.tasks[usize::from(known.local)].1;
        let address = peer.address.clone();
        if self.context.settings.addresses.contains(&address) {
            let reason = format!("its transport address {address} is this engine's, which does not serve it");
            return Err(Error::NotFound { task: peer.name.as_str().into(), reason: reason.into() });
        }
        let shard = self.shards_at.get(&address).map(|&shards| shard_of(lane, usize::from(shards)) as u16);
        let session = self.session_with(SessionKey { via, address, shard }, lane)?;
        self.pairs[pair as usize].session = Some(session);
        Ok(session)
    }

    fn session_with(&mut self, key: SessionKey, lane: u32) -> Result<Handle, Error> {
        if let Some(&session) = self.sessions.get(&key) {
            return Ok(session);
        }
        let tasks = self.context.settings.tasks.len() as u16;
        // A peer has as many sessions as it claims shards.
        let known = self.peers.iter().find(|(_, peer)| peer.address == key.address);
        let limits = self.context.settings.session.clone();
        let quota = known.map_or_else(|| PeerQuota::new(&limits), |(_, peer)| peer.session.quota().clone());
        let session = Session::sharing(&key.address.to_string(), tasks, limits, quota);
        let peer = Peer { life: self.lives, ..Peer::new(key.via, key.address.clone(), key.shard, lane, session) };
        if self.peers.is_full() {
            self.forget_idle_peer();
        }
        let mut peer = peer;
        if let Some(recorder) = &self.context.reporter.recorder {
            self.sessions_traced += 1;
            peer.traced_as = self.sessions_traced;
            peer.session.set_recorder(&recorder.of_session(peer.traced_as));
        }
        let metrics = peer.metrics.clone();
        let Ok(handle) = self.peers.insert(peer) else {
            let limit = self.context.settings.links_max;
            return Err(Error::full("transport.links_max", format!("sessions for {limit} links are in use")));
        };
        self.context.reporter.metrics.peers.add(&metrics);
        self.sessions.insert(key, handle);
        Ok(handle)
    }

    /// Makes room for a session: one without a link and with nothing under way is as good as none.
    fn forget_idle_peer(&mut self) {
        let idle = self.peers.iter().find(|(_, peer)| {
            peer.connection == Connection::Idle && peer.session.requests() == 0 && !peer.session.has_loans()
        });
        if let Some((handle, _)) = idle {
            self.peers.get_mut(handle).expect("just found").session.forget_streams();
            self.settle_events(handle);
            self.peers.remove(handle);
            self.sessions.retain(|_, session| *session != handle);
        }
    }

    /// The numbers of a peer's tasks. Names that the endpoint map does not have are strangers: a peer cannot make
    /// this side remember more than its map.
    fn roster(&mut self, names: &[String]) -> Roster {
        Roster { numbers: names.iter().map(|name| self.number_of(name).unwrap_or(STRANGER)).collect() }
    }

    /// Calls the peer if something waits for it and nothing is under way.
    pub(super) fn want_link(&mut self, now: Instant, handle: Handle) {
        let Some(peer) = self.peers.get_mut(handle) else { return };
        if peer.connection != Connection::Idle {
            return;
        }
        if !peer.session.wants_link() {
            (peer.wanted_since, peer.attempts) = (None, 0);
            return;
        }
        peer.wanted_since.get_or_insert(now);
        self.dial(handle);
        self.reschedule(handle);
    }

    fn dial(&mut self, handle: Handle) {
        let hello = self.hello(handle);
        let peer = self.peers.get_mut(handle).expect("the caller looked it up");
        peer.connection = Connection::Dialing;
        peer.metrics.change(PathState::Connecting, |_| ());
        self.orders.push_back(ConnectOrder::Dial { peer: handle, address: peer.address.clone(), hello });
    }

    /// This side's incarnation in its session with a peer.
    pub(super) fn incarnation(&self, peer: &Peer) -> u64 {
        self.context.settings.incarnation.wrapping_add(peer.life)
    }

    /// True if a greeting's sender and this side remember each other, so that their session goes on.
    fn goes_on(&self, handle: Handle, hello: &Hello) -> bool {
        let peer = self.peers.get(handle).expect("the caller looked it up");
        let known = peer.remembers && peer.incarnation == Some(hello.incarnation);
        known && hello.remembers == self.incarnation(peer)
    }

    fn hello(&self, handle: Handle) -> Hello {
        let peer = self.peers.get(handle).expect("the caller looked it up");
        Hello {
            features: self.context.settings.features,
            incarnation: self.incarnation(peer),
            remembers: peer.incarnation.filter(|_| peer.remembers).unwrap_or(0),
            tensor_bytes_max: self.context.settings.session.tensor_bytes_max,
            epoch: peer.session.epoch(),
            shards: self.context.settings.shards,
            shard: self.context.settings.shard,
            lane: peer.lane,
            address: self.context.settings.addresses[usize::from(peer.via)].to_string(),
            tasks: self.context.settings.tasks.iter().map(|(task, _)| task.to_string()).collect(),
        }
    }

    /// What a probe is told that called the transport address number `via`: nothing that a session could go on from, and
    /// no more names than leave in one write.
    pub fn introduction(&self, via: u16) -> Hello {
        let mut bytes = 0;
        let names = self.context.settings.tasks.iter().map(|(task, _)| task.to_string());
        let fits = |name: &String| {
            bytes += name.len();
            bytes <= INTRODUCTION_NAMES_BYTES_MAX
        };
        Hello {
            features: self.context.settings.features | FEATURE_PROBE,
            tensor_bytes_max: self.context.settings.session.tensor_bytes_max,
            shards: self.context.settings.shards,
            shard: self.context.settings.shard,
            address: self.context.settings.addresses[usize::from(via)].to_string(),
            tasks: names.take_while(fits).collect(),
            ..Hello::probe()
        }
    }

    /// Where a peer is called, while there is a session with it.
    pub fn address_of(&self, peer: Handle) -> Option<TransportAddress> {
        Some(self.peers.get(peer)?.address.clone())
    }

    /// The endpoint map in use.
    pub fn map(&self) -> &Arc<EndpointMap> {
        &self.map
    }

    /// The next thing to do about connections.
    pub fn poll_order(&mut self) -> Option<ConnectOrder> {
        self.orders.pop_front()
    }

    /// A call was answered with a welcome.
    pub fn dialed(&mut self, now: Instant, handle: Handle, link: Box<dyn Link>, welcome: &Hello) {
        // Hung up meanwhile: dropping the link closes it.
        if self.peers.get(handle).is_none_or(|peer| peer.connection != Connection::Dialing) {
            return;
        }
        let address = self.peers.get(handle).expect("just looked at").address.clone();
        if self.links >= self.context.settings.links_max {
            let reason = format!("transport.links_max: {} links stand on this side", self.links);
            self.dial_failed(now, handle, DialFailure { reason, kind: DialFailureKind::Transient });
        } else if self.shards_at.get(&address).is_some_and(|&shards| shards != welcome.shards) {
            // The call reached the shard that the former process would have answered from: call anew.
            self.renumber(now, &address, welcome.shards);
        } else if welcome.remembers != 0 && !self.goes_on(handle, welcome) {
            let reason = "the welcome answers a former greeting".into();
            self.dial_failed(now, handle, DialFailure { reason, kind: DialFailureKind::Transient });
        } else if self.place(now, handle, welcome) {
            if welcome.remembers == 0 {
                self.start_anew(handle, welcome);
            }
            self.attach(now, handle, link, welcome, welcome.epoch);
        } else {
            let reason = "the peer answered from another shard than its greeting's lane says".into();
            self.dial_failed(now, handle, DialFailure { reason, kind: DialFailureKind::Final });
        }
    }

    /// A call came to nothing.
    pub fn dial_failed(&mut self, now: Instant, handle: Handle, failure: DialFailure) {
        let Some(peer) = self.peers.get_mut(handle).filter(|peer| peer.connection == Connection::Dialing) else {
            return;
        };
        peer.connection = Connection::Idle;
        peer.last_error = failure.reason;
        tracing::debug!(peer = peer.session.peer(), reason = peer.last_error, "a call failed");
        peer.counters.calls_failed += 1;
        peer.metrics.change(PathState::Idle, |path| path.last_error.clone_from(&peer.last_error));
        touch(peer, handle, &mut self.unshown);
        match failure.kind {
            DialFailureKind::Denied => {
                let reason = format!("{}: {}", peer.session.peer(), peer.last_error);
                peer.session.end_all_requests(&Error::PermissionDenied { reason: reason.into() });
            }
            DialFailureKind::Final => {
                let error = Error::unavailable(peer.session.peer(), peer.last_error.clone());
                peer.session.end_all_requests(&error);
            }
            // It stood once: whoever was asked there is gone.
            DialFailureKind::Refused if peer.session.epoch() > 0 => {
                let reason = format!("it was connected and is gone: {}", peer.last_error);
                self.give_up(handle, &reason);
            }
            _ => {}
        }
        let peer = self.peers.get_mut(handle).expect("still there");
        if peer.session.wants_link() {
            self.wait_to_dial(now, handle);
        } else {
            (peer.connection, peer.wanted_since, peer.attempts) = (Connection::Idle, None, 0);
        }
        self.settle_events(handle);
        self.reschedule(handle);
    }

    /// This side gives the session up: what the peer was asked ends, what it was lent comes back.
    pub(super) fn give_up(&mut self, handle: Handle, reason: &str) {
        let Some(peer) = self.peers.get_mut(handle) else { return };
        peer.remembers = false;
        peer.lost_at = None;
        let error = Error::unavailable(peer.session.peer(), reason);
        peer.session.reset(&error);
        self.context.reporter.counters.sessions_reset += 1;
        self.begin_life(handle);
        // The greeting of a call under way does not tell the peer.
        self.hang_up(handle);
        self.settle_events(handle);
    }

    fn begin_life(&mut self, handle: Handle) {
        self.lives += 1;
        if let Some(peer) = self.peers.get_mut(handle) {
            peer.life = self.lives;
        }
    }

    /// Drops the call that is under way, if one is.
    pub(super) fn hang_up(&mut self, handle: Handle) {
        if let Some(peer) = self.peers.get_mut(handle).filter(|peer| peer.connection == Connection::Dialing) {
            peer.connection = Connection::Idle;
            self.orders.push_back(ConnectOrder::HangUp(handle));
        }
    }

    /// Decides about a caller that has introduced itself to the transport address number `via` of this side.
    pub fn called(&mut self, now: Instant, via: u16, hello: &Hello) -> Answer {
        let Ok(address) = hello.address.parse::<TransportAddress>() else {
            return Answer::Reject(RejectCode::Refused, format!("'{}' is not a transport address", hello.address));
        };
        if shard_of(hello.lane, usize::from(self.context.settings.shards)) != usize::from(self.context.settings.shard) {
            return Answer::Reject(RejectCode::Refused, "the call reached a shard that does not serve its lane".into());
        }
        if self.map.tasks_at(&address).next().is_none() {
            let here = &self.context.settings.addresses[usize::from(via)];
            let reason = format!("the endpoint map of {here} has no task at {address}; add its line there and reload");
            return Answer::Reject(RejectCode::Refused, reason);
        }
        if let Some(provisional) =
            self.sessions.get(&SessionKey { via, address: address.clone(), shard: None }).copied()
        {
            self.place_provisional(now, provisional, hello);
        } else if self.shards_at.get(&address).is_some_and(|&shards| shards != hello.shards) {
            self.renumber(now, &address, hello.shards);
        }
        self.shards_at.insert(address.clone(), hello.shards);
        let handle = match self
            .session_with(SessionKey { via, address: address.clone(), shard: Some(hello.shard) }, hello.lane)
        {
            Ok(handle) => handle,
            Err(error) => return Answer::Reject(RejectCode::Full, error.to_string()),
        };
        let peer = self.peers.get_mut(handle).expect("just found or made");
        if peer.incarnation.is_some_and(|known| (1..LIVES_MAX).contains(&known.wrapping_sub(hello.incarnation))) {
            return Answer::Reject(RejectCode::Crossed, "a later greeting came before this one".into());
        }
        let same = peer.incarnation.is_none_or(|incarnation| incarnation == hello.incarnation);
        if peer.connection != Connection::Attached && self.links >= self.context.settings.links_max {
            let limit = self.context.settings.links_max;
            return Answer::Reject(RejectCode::Full, format!("transport.links_max: {limit} links stand"));
        }
        match peer.connection {
            Connection::Attached if same && hello.epoch < peer.session.epoch() => {
                return Answer::Reject(RejectCode::Crossed, "another link stands".into());
            }
            // The peer knows better that the old link is dead, or is a new process.
            // Not `lose`: a call from here would cross the link that is about to stand.
            Connection::Attached => self.drop_link(now, handle, &LinkError::Closed),
            Connection::Dialing if self.context.settings.addresses[usize::from(via)] < address => {
                return Answer::Reject(RejectCode::Crossed, "the call from here stands".into());
            }
            _ => {}
        }
        self.hang_up(handle);
        Answer::Welcome { peer: handle }
    }

    /// Takes over the link of a caller that was welcomed; the welcome is the first thing that goes out on it.
    pub fn accepted(&mut self, now: Instant, handle: Handle, link: Box<dyn Link>, hello: &Hello) {
        let peer = self.peers.get_mut(handle).expect("welcomed a moment ago");
        let epoch = peer.session.epoch().max(hello.epoch).wrapping_add(1);
        let peer_was_met = peer.session.epoch() > 0;
        let mut remembers = hello.incarnation;
        if !self.goes_on(handle, hello) {
            remembers = 0;
            if peer_was_met {
                // Greetings that were meant for the session as it was must not fit the one that it is from now on.
                self.begin_life(handle);
            }
            self.start_anew(handle, hello);
        }
        let welcome = Hello { epoch, remembers, ..self.hello(handle) };
        self.attach(now, handle, link, hello, epoch);
        let peer = self.peers.get_mut(handle).expect("still there");
        let bytes = Greeting::Welcome(welcome).to_bytes();
        peer.session.outbox().stage(|writer| writer.0.extend_from_slice(&bytes));
        self.mark_dirty(handle);
    }

    /// The two sides do not both remember their session: what was under way on it is in doubt.
    fn start_anew(&mut self, handle: Handle, hello: &Hello) {
        let peer = self.peers.get_mut(handle).expect("the caller looked it up");
        self.context.reporter.counters.sessions_reset += u64::from(peer.session.epoch() > 0);
        if peer.incarnation.is_some_and(|incarnation| incarnation != hello.incarnation) {
            let error = Error::unavailable(peer.session.peer(), "it restarted, and what it was asked is lost");
            peer.session.reset(&error);
        } else {
            peer.session.start_anew();
        }
    }

    fn attach(&mut self, now: Instant, handle: Handle, link: Box<dyn Link>, hello: &Hello, epoch: u32) {
        let roster = self.roster(&hello.tasks);
        let has_strangers = roster.numbers.contains(&STRANGER);
        let peer = self.peers.get_mut(handle).expect("the caller looked it up");
        (peer.incarnation, peer.remembers) = (Some(hello.incarnation), true);
        peer.settling = !link.traits().open;
        peer.metrics.set_shard(hello.shard);
        peer.session.attach(now, epoch, roster, hello.tensor_bytes_max);
        let mut link = link;
        link.adopt(handle);
        peer.link = Some(link);
        peer.connection = Connection::Attached;
        (peer.blocked, peer.blocked_turns, peer.stuck, peer.last_pair) = (false, 0, false, None);
        peer.has_strangers = has_strangers;
        if !peer.settling {
            self.link_opened(handle);
        }
        self.links += 1;
        self.new_links.push(handle);
        self.settle_events(handle);
        self.mark_dirty(handle);
        self.mark_hot(handle);
        self.reschedule(handle);
    }

    /// The link of a session takes frames from now on: what it is, and why, is said to whoever wants to know.
    pub(super) fn link_opened(&mut self, handle: Handle) {
        let Some(peer) = self.peers.get_mut(handle) else { return };
        let Some(link) = &peer.link else { return };
        let kind = link.kind();
        (peer.wanted_since, peer.lost_at, peer.attempts) = (None, None, 0);
        // One that found out itself has said so.
        let found_out = link.reason().map(str::to_owned);
        let reason = found_out.clone().unwrap_or_else(|| self.context.settings.path_reason.clone());
        if found_out.is_none() {
            tracing::info!(peer = peer.session.peer(), link = kind.name(), reason, "link up");
        }
        peer.way = kind.into();
        peer.counters.links_made += 1;
        peer.counters.fallbacks += u64::from(found_out.is_some() && kind == LinkKind::Tcp);
        self.context.reporter.counters.links_verbs += u64::from(kind == LinkKind::Verbs);
        peer.metrics.change(PathState::Up, |path| (path.link, path.reason) = (Some(kind), reason));
        touch(peer, handle, &mut self.unshown);
    }

    /// The link is gone. What stands is asked again on the next one, which is called for at once if this side asks, or after a
    /// wait if this one never opened: then it is as if the call had failed.
    pub(super) fn lose(&mut self, now: Instant, handle: Handle, error: &LinkError) {
        let opened = self.peers.get(handle).is_some_and(|peer| !peer.settling);
        self.drop_link(now, handle, error);
        match self.peers.get_mut(handle) {
            Some(peer) if !opened && peer.connection == Connection::Idle && peer.session.wants_link() => {
                peer.wanted_since.get_or_insert(now);
                self.wait_to_dial(now, handle);
            }
            _ => self.want_link(now, handle),
        }
        self.reschedule(handle);
    }

    /// Calls the peer again later: the longer, the more often it has been in vain.
    fn wait_to_dial(&mut self, now: Instant, handle: Handle) {
        let Some(peer) = self.peers.get_mut(handle) else { return };
        peer.connection = Connection::Waiting(now + peer.backoff(self.context.settings.incarnation));
        peer.metrics.change(PathState::Connecting, |_| ());
    }

    /// Gives up one link that is TCP because this side could do no better when it was made, if its peer, by its transport
    /// address, `can` be reached better now: the session goes on with the next link, as after any loss. `None` if there is no
    /// such link; else whether one was given up.
    pub fn replace_fallback(&mut self, now: Instant, mut can: impl FnMut(&str) -> bool) -> Option<bool> {
        if self.context.draining {
            return None;
        }
        // One that settles may become TCP.
        let may_be = |peer: &Peer| peer.settling || peer.link.as_ref().is_some_and(|link| link.is_fallback());
        let mut fallbacks = self.peers.iter().filter(|(_, peer)| may_be(peer)).peekable();
        fallbacks.peek()?;
        let found = fallbacks.find(|(_, peer)| !peer.settling && can(peer.session.peer()));
        let found = found.map(|(handle, _)| handle);
        drop(fallbacks);
        let Some(handle) = found else { return Some(false) };
        self.drop_link(now, handle, &LinkError::Replaced);
        if self.peers.get(handle).is_some_and(|peer| peer.connection == Connection::Idle) {
            // Also where nothing waits, so that the next call finds a link.
            self.dial(handle);
        }
        self.reschedule(handle);
        Some(true)
    }

    pub(super) fn drop_link(&mut self, now: Instant, handle: Handle, error: &LinkError) {
        let Some(peer) = self.peers.get_mut(handle) else { return };
        let Some(mut link) = peer.link.take() else { return };
        tracing::info!(peer = peer.session.peer(), link = link.kind().name(), %error, "link lost");
        self.context.reporter.counters.links_verbs -= u64::from(link.kind() == LinkKind::Verbs);
        let landings = link.abandon(peer.session.outbox());
        peer.session.detach(landings);
        peer.last_error = error.to_string();
        // Since when it has no link that was open.
        peer.lost_at.get_or_insert(now);
        (peer.connection, peer.blocked, peer.stuck) = (Connection::Idle, false, false);
        peer.counters.links_lost += 1;
        peer.metrics.change(PathState::Idle, |path| path.last_error.clone_from(&peer.last_error));
        touch(peer, handle, &mut self.unshown);
        self.links -= 1;
        self.context.reporter.counters.links_lost += 1;
        self.table.withdraw_session(handle);
        if let LinkError::WentAway(reason) = error {
            let reason = format!("it went away: {reason}");
            self.give_up(handle, &reason);
        }
        self.settle_events(handle);
    }

    /// Looks at the connection of a session when its time has come.
    pub(super) fn look_after(&mut self, now: Instant, handle: Handle) {
        let Some(peer) = self.peers.get_mut(handle) else { return };
        let silent = peer.session.handle_timeout(now);
        let settles = peer.link.is_some();
        if !settles && peer.wanted_since.is_some_and(|since| since + self.context.settings.connect_timeout <= now) {
            let within = self.context.settings.connect_timeout;
            let reason = format!("no connection within {within:?} (connect_timeout_ms): {}", peer.last_error);
            let error = Error::unavailable(peer.session.peer(), reason);
            peer.session.end_all_requests(&error);
            (peer.wanted_since, peer.attempts) = (None, 0);
            self.hang_up(handle);
        }
        let Some(peer) = self.peers.get_mut(handle) else { return };
        if let Connection::Waiting(until) = peer.connection
            && until <= now
        {
            peer.connection = Connection::Idle;
        }
        let lease_over = peer.lost_at.is_some_and(|lost| lost + self.context.settings.lease <= now);
        if !settles && lease_over && peer.session.has_loans() {
            self.give_up(handle, "it had no link for longer than fusion.lease_ms");
        }
        self.settle_events(handle);
        match silent {
            Ok(()) => self.want_link(now, handle),
            Err(error) => self.lose(now, handle, &error),
        }
        self.mark_dirty(handle);
    }

    /// Says goodbye to every peer and ends every call: the engine stops.
    pub fn shut_down(&mut self, now: Instant, reason: &str) {
        for handle in self.peers.select(|_| true) {
            let peer = self.peers.get_mut(handle).expect("just selected");
            peer.session.go_away(reason);
            let error = Error::unavailable(peer.session.peer(), format!("this engine stops: {reason}"));
            peer.session.end_all_requests(&error);
            self.settle_events(handle);
            self.mark_dirty(handle);
        }
        let stops = Error::unavailable("this engine", format!("it stops: {reason}"));
        self.end_all_local(&stops);
        self.end_local_pulls(|_| true, &stops);
        self.end_local_pushes(|_| true, &stops);
        self.drop_left(None);
        for unsent in self.table.take_deposits() {
            let error = Error::Aborted { step: unsent.step, reason: reason.into() };
            self.context.reporter.finish_send(unsent.sender.waiter, Err(error));
        }
        self.turn(now);
    }
}
