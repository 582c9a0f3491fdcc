//! Which connections a node wants, and how it handles those that come.
//!
//! Connections are made lazily, from either side. If two connections cross, the one from the side with the smaller transport address wins.

use std::sync::Arc;
use std::time::Instant;

use sealane_transport::endpoint_map::{EndpointMap, TaskName, TransportAddress};
use sealane_transport::error::LinkError;
use sealane_transport::job::describe;
use sealane_transport::lane::shard_of;
use sealane_transport::limits::INTRODUCTION_NAMES_BYTES_MAX;
use sealane_transport::wire::{FEATURE_PROBE, Greeting, Hello, RejectCode};
use sealane_transport::{Error, Handle, Link};

use super::Node;
use super::context::Context;
use super::orders::{Answer, ConnectOrder, DialFailure, DialFailureKind};
use super::peers::{Connection, SessionKey};
use crate::limits::LIVES_MAX;

impl Node {
    /// The session that serves a pair; created if there is none.
    #[inline]
    pub(super) fn session_of(&mut self, pair: u32) -> Result<Handle, Error> {
        match self.context.pairs[pair].session {
            Some(session) if self.context.peers.get(session).is_some() => Ok(session),
            _ => self.find_session(pair),
        }
    }

    fn find_session(&mut self, pair: u32) -> Result<Handle, Error> {
        let Context { pairs, peers, settings, .. } = &self.context;
        let known = &pairs[pair];
        let (lane, via) = (known.lane, pairs.via(pair));
        let address = pairs.peer_address(known.peer).clone();
        if settings.addresses.contains(&address) {
            let reason = format!("its transport address {address} belongs to this engine, which does not serve it");
            return Err(Error::NotFound { task: pairs.peer_name(known.peer).as_str().into(), reason: reason.into() });
        }
        let shard = peers.shards_at(&address).map(|shards| shard_of(lane, usize::from(shards)) as u16);
        let session = self.session_with(SessionKey { via, address, shard }, lane)?;
        self.context.pairs.set_session(pair, session);
        Ok(session)
    }

    fn session_with(&mut self, key: SessionKey, lane: u32) -> Result<Handle, Error> {
        let Context { pairs, peers, settings, reporter, memory, .. } = &mut self.context;
        if let Some(session) = peers.find(&key) {
            return Ok(session);
        }
        let tasks = pairs.tasks().len() as u16;
        let mut peer = peers.make(&key, lane, (tasks, &settings.session, reporter.recorder.as_ref()));
        peer.session.set_copy_slab(memory.send_slab().clone());
        if peers.is_full() {
            self.forget_idle_peer();
        }
        let Context { peers, settings, reporter, .. } = &mut self.context;
        peers.insert(key, peer, settings, &reporter.metrics)
    }

    /// Makes room for a session by dropping an idle one.
    fn forget_idle_peer(&mut self) {
        let Some(handle) = self.context.peers.find_idle() else { return };
        self.context.peers.session_mut(handle).expect("just found").forget_streams();
        self.handle_events(handle);
        self.context.peers.remove(handle);
    }

    /// The hello that answers a probe of transport address `via`: nothing from which a session could resume, and no more names than fit in
    /// one write.
    pub fn introduction(&self, via: u16) -> Hello {
        let Context { settings, pairs, .. } = &self.context;
        let mut bytes = 0;
        let names = pairs.tasks().map(TaskName::to_string);
        let fits = |name: &String| {
            bytes += name.len();
            bytes <= INTRODUCTION_NAMES_BYTES_MAX
        };
        Hello {
            features: settings.features | FEATURE_PROBE,
            tensor_bytes_max: settings.session.tensor_bytes_max,
            shards: settings.shards,
            shard: settings.shard,
            address: settings.addresses[usize::from(via)].to_string(),
            job: settings.job.clone(),
            tasks: names.take_while(fits).collect(),
            ..Hello::probe()
        }
    }

    /// Checks that a peer that has introduced itself belongs to the job of this side.
    ///
    /// # Errors
    /// Why it does not: names both jobs.
    pub fn check_job(&self, hello: &Hello) -> Result<(), String> {
        let Context { settings, .. } = &self.context;
        if hello.job == settings.job {
            return Ok(());
        }
        let (ours, theirs) = (describe(settings.job.as_ref()), describe(hello.job.as_ref()));
        let here = settings.addresses.first().map(ToString::to_string).unwrap_or_default();
        Err(format!("{here} serves {ours}, and its peer {theirs}: start both daemons with the same --job"))
    }

    /// The address at which a peer is dialed, while there is a session with it.
    pub fn address_of(&self, peer: Handle) -> Option<TransportAddress> {
        Some(self.context.peers.get(peer)?.address.clone())
    }

    /// The endpoint map in use.
    pub fn map(&self) -> &Arc<EndpointMap> {
        self.context.pairs.map()
    }

    /// The next connection order.
    pub fn poll_order(&mut self) -> Option<ConnectOrder> {
        self.context.peers.poll_order()
    }

    /// A dial was answered with a welcome.
    pub fn dialed(&mut self, now: Instant, handle: Handle, link: Box<dyn Link>, welcome: &Hello) {
        let Context { peers, settings, .. } = &mut self.context;
        // The dial was dropped meanwhile: dropping the link closes it.
        let Some(peer) = peers.get(handle).filter(|peer| peer.connection == Connection::Dialing) else { return };
        let address = peer.address.clone();
        let links = peers.links();
        let failure = if links >= settings.links_max {
            let reason = format!("transport.links_max: {links} links are open on this side");
            DialFailure { reason, kind: DialFailureKind::Transient }
        } else if peers.shards_at(&address).is_some_and(|shards| shards != welcome.shards) {
            // The dial reached the shard that would have served it in the former process: dial again.
            return self.renumber(now, &address, welcome.shards);
        } else if welcome.remembers != 0 && !peers.goes_on(handle, welcome, settings) {
            let reason = "the welcome answers an earlier hello".into();
            DialFailure { reason, kind: DialFailureKind::Transient }
        } else if self.place(now, handle, welcome) {
            if welcome.remembers == 0 {
                let Context { peers, reporter, .. } = &mut self.context;
                peers.start_anew(handle, welcome, &mut reporter.counters);
            }
            return self.attach(now, handle, link, welcome, welcome.epoch);
        } else {
            let reason = "the peer answered from a shard that does not serve the lane".into();
            DialFailure { reason, kind: DialFailureKind::Final }
        };
        self.dial_failed(now, handle, failure);
    }

    /// A dial has begun or ended the lookup of the peer's host name.
    pub fn set_resolving(&mut self, handle: Handle, resolving: bool) {
        self.context.peers.set_resolving(handle, resolving);
    }

    /// A dial failed.
    pub fn dial_failed(&mut self, now: Instant, handle: Handle, failure: DialFailure) {
        let Context { peers, pairs, .. } = &mut self.context;
        let Some(is_gone) = peers.call_failed(now, handle, failure, pairs) else { return };
        if is_gone {
            let reason = format!("it was connected, and the link was lost: {}", self.context.peers.last_error(handle));
            self.give_up(handle, &reason);
        }
        let Context { peers, settings, .. } = &mut self.context;
        peers.call_again(now, handle, settings);
        self.handle_events(handle);
        self.context.reschedule(handle);
    }

    /// This side drops the session: requests sent to the peer end, and tensors that it has not released are returned.
    pub(super) fn give_up(&mut self, handle: Handle, reason: &str) {
        if self.context.peers.give_up(handle, reason) {
            self.context.reporter.counters.sessions_reset += 1;
            self.handle_events(handle);
        }
    }

    /// Decides about a caller that has introduced itself to this side's transport address `via`.
    pub fn called(&mut self, now: Instant, via: u16, hello: &Hello) -> Answer {
        match self.admit(now, via, hello) {
            Ok(peer) => Answer::Welcome { peer },
            Err(rejection) => rejection,
        }
    }

    /// The session of an accepted caller, or the rejection.
    fn admit(&mut self, now: Instant, via: u16, hello: &Hello) -> Result<Handle, Answer> {
        let address = self.check_caller(via, hello)?;
        let peers = &mut self.context.peers;
        if let Some(provisional) = peers.find(&SessionKey { via, address: address.clone(), shard: None }) {
            self.place_provisional(now, provisional, hello);
        } else if peers.shards_at(&address).is_some_and(|shards| shards != hello.shards) {
            self.renumber(now, &address, hello.shards);
        }
        self.context.peers.set_shards_at(&address, hello.shards);
        let key = SessionKey { via, address: address.clone(), shard: Some(hello.shard) };
        let handle =
            self.session_with(key, hello.lane).map_err(|error| Answer::Reject(RejectCode::Full, error.to_string()))?;
        let Context { peers, settings, .. } = &mut self.context;
        let peer = peers.get(handle).expect("just found or made");
        if peer.incarnation.is_some_and(|known| (1..LIVES_MAX).contains(&known.wrapping_sub(hello.incarnation))) {
            return Err(Answer::Reject(RejectCode::Crossed, "a later handshake overtook this one".into()));
        }
        let same = peer.incarnation.is_none_or(|incarnation| incarnation == hello.incarnation);
        if peer.connection != Connection::Attached && peers.links() >= settings.links_max {
            let limit = settings.links_max;
            return Err(Answer::Reject(RejectCode::Full, format!("transport.links_max: {limit} links are open")));
        }
        match peer.connection {
            Connection::Attached if same && hello.epoch < peer.session.epoch() => {
                return Err(Answer::Reject(RejectCode::Crossed, "another link is open".into()));
            }
            // The peer knows better that the old link is dead, or is a new process. Not `lose`: a dial from here would cross the link that
            // is about to be made.
            Connection::Attached => self.drop_link(now, handle, &LinkError::Closed),
            Connection::Dialing if settings.addresses[usize::from(via)] < address => {
                return Err(Answer::Reject(
                    RejectCode::Crossed,
                    "the connection from this side takes precedence".into(),
                ));
            }
            _ => {}
        }
        self.context.peers.hang_up(handle);
        Ok(handle)
    }

    /// The transport address that a caller claims, if it is plausible.
    fn check_caller(&self, via: u16, hello: &Hello) -> Result<TransportAddress, Answer> {
        let Context { settings, pairs, .. } = &self.context;
        let Ok(address) = hello.address.parse::<TransportAddress>() else {
            return Err(Answer::Reject(RejectCode::Refused, format!("'{}' is not a transport address", hello.address)));
        };
        if shard_of(hello.lane, usize::from(settings.shards)) != usize::from(settings.shard) {
            return Err(Answer::Reject(
                RejectCode::Refused,
                "the connection reached a shard that does not serve its lane".into(),
            ));
        }
        if pairs.map().tasks_at(&address).next().is_none() {
            let here = &settings.addresses[usize::from(via)];
            let reason = format!("the endpoint map of {here} has no task at {address}; add its line there and reload");
            return Err(Answer::Reject(RejectCode::Refused, reason));
        }
        Ok(address)
    }

    /// Takes over the link of an accepted caller; the welcome is the first frame sent on it.
    pub fn accepted(&mut self, now: Instant, handle: Handle, link: Box<dyn Link>, hello: &Hello) {
        let Context { peers, pairs, settings, reporter, .. } = &mut self.context;
        let session = peers.session(handle).expect("welcomed a moment ago");
        let epoch = session.epoch().max(hello.epoch).wrapping_add(1);
        let peer_was_met = session.epoch() > 0;
        let mut remembers = hello.incarnation;
        if !peers.goes_on(handle, hello, settings) {
            remembers = 0;
            if peer_was_met {
                // Handshakes meant for the session's former life must not match its new one.
                peers.begin_life(handle);
            }
            peers.start_anew(handle, hello, &mut reporter.counters);
        }
        let welcome = Hello { epoch, remembers, ..peers.hello(handle, settings, pairs) };
        self.attach(now, handle, link, hello, epoch);
        let session = self.context.peers.session_mut(handle).expect("still there");
        let bytes = Greeting::Welcome(welcome).to_bytes();
        session.outbox().stage(|writer| writer.0.extend_from_slice(&bytes));
        self.context.peers.mark_dirty(handle);
    }

    fn attach(&mut self, now: Instant, handle: Handle, link: Box<dyn Link>, hello: &Hello, epoch: u32) {
        let Context { peers, pairs, settings, reporter, .. } = &mut self.context;
        let roster = pairs.roster(&hello.tasks);
        peers.attach(now, handle, link, (hello, epoch, roster));
        if peers.had_opened(handle) {
            peers.link_opened(now, handle, settings, &mut reporter.counters);
        }
        self.handle_events(handle);
        self.exchange.note_repeated(handle, &mut self.context.pairs);
        self.context.peers.mark_dirty(handle);
        self.context.peers.mark_hot(handle);
        self.context.reschedule(handle);
    }

    /// The link is gone. Open requests are sent again on the next one. It is dialed at once if this side has requests, or after a wait if
    /// the lost link never opened, as after a failed dial.
    pub(super) fn lose(&mut self, now: Instant, handle: Handle, error: &LinkError) {
        let had_opened = self.context.peers.had_opened(handle);
        self.drop_link(now, handle, error);
        self.leave_behind(now, handle);
        let Context { peers, pairs, settings, .. } = &mut self.context;
        peers.replace_lost(now, handle, had_opened, settings, pairs);
    }

    /// Drops one link that fell back because of this side, and would no longer do so: the session continues on the next link, as after any
    /// loss. `None` if no link fell back; otherwise whether one was dropped.
    pub fn replace_fallback(&mut self, now: Instant) -> Option<bool> {
        if self.context.draining {
            return None;
        }
        let Some(handle) = self.context.peers.find_fallback(now)? else { return Some(false) };
        self.drop_link(now, handle, &LinkError::Replaced);
        let Context { peers, pairs, settings, .. } = &mut self.context;
        if peers.get(handle).is_some_and(|peer| peer.connection == Connection::Idle) {
            // Even if nothing waits, so that the next call finds a link.
            peers.dial(handle, settings, pairs);
        }
        self.context.reschedule(handle);
        Some(true)
    }

    pub(super) fn drop_link(&mut self, now: Instant, handle: Handle, error: &LinkError) {
        self.exchange.release_ended(&mut self.context);
        let Context { peers, settings, reporter, .. } = &mut self.context;
        if !peers.detach(now, handle, error, (settings, &mut reporter.counters)) {
            return;
        }
        self.exchange.forget_session(handle);
        self.context.pairs.forget_requested(handle);
        self.row_requests.forget_session(handle);
        if let LinkError::WentAway(reason) = error {
            let reason = format!("it went away: {reason}");
            self.give_up(handle, &reason);
        }
        self.handle_events(handle);
    }

    /// Checks the connection of a session when its time has come.
    pub(super) fn look_after(&mut self, now: Instant, handle: Handle) {
        let Context { peers, settings, pairs, .. } = &mut self.context;
        let Some(look) = peers.look_after(now, handle, settings, pairs) else { return };
        if look.lease_over {
            self.give_up(handle, "it had no link for longer than fusion.lease_ms");
        }
        self.handle_events(handle);
        match look.silent {
            Ok(()) => self.context.want_link(now, handle),
            Err(error) => self.lose(now, handle, &error),
        }
        self.context.peers.mark_dirty(handle);
    }

    /// Says goodbye to every peer and ends every call: the engine stops.
    pub fn shut_down(&mut self, now: Instant, reason: &str) {
        // Before the goodbye, peers are told what was taken.
        self.exchange.release_ended(&mut self.context);
        for handle in self.context.peers.select(|_| true) {
            let peer = self.context.peers.get_mut(handle).expect("just selected");
            peer.session.go_away(reason);
            let error = Error::unavailable(peer.session.peer(), format!("this engine stops: {reason}"));
            peer.session.end_all_requests(&error);
            self.handle_events(handle);
            self.context.peers.mark_dirty(handle);
        }
        let stops = Error::unavailable("this engine", format!("it stops: {reason}"));
        self.exchange.end_all_here(&stops, &mut self.context);
        self.exchange.end_there(None, &stops, &mut self.context);
        self.row_requests.end_of(None, true, &stops, &mut self.context);
        self.pulls.end_local(|_| true, &stops, &mut self.context.reporter);
        self.pushes.end_local(|_| true, &stops, &mut self.context);
        self.pushes.drop_left(None, self.context.settings.shard);
        self.exchange.end_sends(reason, &mut self.context);
        self.turn(now);
    }
}
