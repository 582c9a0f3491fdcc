//! The source that establishes links: listens, accepts, dials. Off the hot path; bounded by the handshake limits and timeout in
//! [`EngineSettings`](super::EngineSettings).

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Instant;

use sealane_runtime::{Interest, Readiness, RuntimeError, Shard, Source};
use sealane_transport::endpoint_map::{EndpointMap, Host, TransportAddress};
use sealane_transport::error::LinkError;
use sealane_transport::lane::shard_of;
use sealane_transport::tcp::{Answering, Call, CallError, Dial, DialError, Dialed, Progress, resolve};
use sealane_transport::wire::{Hello, RejectCode, WireError};
use sealane_transport::{Arena, Handle};
use socket2::Socket;

use super::accept_limiter::{AcceptLimiter, Tally, host_of};
use super::expiry::days_left;
use super::listener::{Listener, Watch};
use super::resolver::Resolver;
use super::shard::{ShardEngine, Vital};
use super::{deadline, expiry, identity};
use crate::limits::{ACCEPTS_PER_TURN, CONNECT_PATIENCE};
use crate::node::{Answer, ConnectOrder, DialFailure, DialFailureKind};

enum Greeting {
    Calling { dial: Dial, peer: Handle, more: Vec<SocketAddr>, hello: Hello },
    Answering { answering: Answering, via: u16, from: IpAddr, held: usize },
}

struct Pending {
    /// `None` only while it is polled.
    greeting: Option<Greeting>,
    deadline: Instant,
}

pub(super) struct Greetings {
    /// A listener's token is its index among the engine's; a handshake's token is its handle, which is larger than any index.
    engine: Vital,
    limiter: AcceptLimiter,
    /// Dials of this side that failed because one side could not authenticate.
    denied: Tally,
    /// Callers of other jobs.
    strangers: Tally,
    /// Buffered bytes of callers' unfinished handshakes.
    held_bytes: usize,
    resolver: Resolver,
    pending: Arena<Pending>,
    /// Handshakes whose descriptor reported an event.
    ready: Vec<Handle>,
}

impl Greetings {
    pub(super) fn start(engine: &Rc<ShardEngine>) {
        let greetings = Self::new(engine);
        engine.greetings_source.set(Some(engine.shard.add_source(greetings)));
    }

    fn new(engine: &Rc<ShardEngine>) -> Self {
        Greetings {
            engine: Vital::new(engine),
            limiter: AcceptLimiter::new(
                engine.settings.greetings_per_host_max,
                !engine.settings.authentication.is_open(),
            ),
            denied: Tally::of_log(),
            strangers: Tally::of_log(),
            held_bytes: 0,
            resolver: Resolver::new(&engine.shard),
            pending: Arena::new(engine.settings.greetings_max),
            ready: Vec::new(),
        }
    }

    fn turn(&mut self, now: Instant) -> usize {
        let orders = self.engine.take_orders();
        let mut work = orders.len();
        for order in orders {
            self.carry_out(order);
        }
        for found in self.resolver.take_found() {
            self.engine.borrow_node(|node| node.set_resolving(found.peer, false));
            self.call(found.peer, found.addresses, found.hello);
            work += 1;
        }
        work += self.accept(now);
        for handle in std::mem::take(&mut self.ready) {
            self.poll_pending(handle);
            work += 1;
        }
        if !self.pending.is_empty() {
            work += self.expire(now);
        }
        self.engine.close_unclaimed(now);
        self.mind_listeners(now);
        self.mind_the_end(now);
        work
    }

    /// Warns if the certificate expires soon; one shard does so for all.
    fn mind_the_end(&self, now: Instant) {
        if !self.engine.listens_for_all() || self.engine.look_at_end.get().is_none_or(|look| now < look) {
            return;
        }
        let left = self.engine.authentication.borrow().ends().map(expiry::left);
        left.inspect(|left| expiry::warn(*left));
        self.engine.look_at_end.set(left.map(|left| now + expiry::look_again(left)));
    }

    fn watch(&self, descriptor: BorrowedFd<'_>, token: u64, interest: Interest) -> Result<(), RuntimeError> {
        let id = self.engine.greetings_source.get().expect("set at start");
        self.engine.shard.watch(id, descriptor, token, interest)
    }

    fn deadline(&self) -> Instant {
        deadline(self.engine.shard.now(), self.engine.settings.handshake_timeout)
    }

    /// The deadline of a handshake that begins now; for a dial, at first that of its connection attempt.
    fn first_deadline(&self, greeting: &Greeting) -> Instant {
        match greeting {
            Greeting::Calling { .. } => self.deadline().min(self.engine.shard.now() + CONNECT_PATIENCE),
            Greeting::Answering { .. } => self.deadline(),
        }
    }

    /// Watches the listeners while there is room for callers.
    fn mind_listeners(&mut self, now: Instant) {
        let has_room = !self.pending.is_full();
        let (shard, id) = (&self.engine.shard, self.engine.greetings_source.get().expect("set at start"));
        for (place, listener) in self.engine.listeners.borrow_mut().iter_mut().enumerate() {
            match listener.mind(now, has_room) {
                Some(Watch::Begin) => {
                    if let Err(error) = shard.watch(id, listener.descriptor(), place as u64, Interest::READ) {
                        tracing::error!(%error, "a listener cannot be watched");
                        listener.watch_failed(now);
                    }
                }
                Some(Watch::End) => {
                    if let Err(error) = shard.unwatch(listener.descriptor()) {
                        tracing::error!(%error, "a listener cannot be unwatched");
                    }
                }
                None => {}
            }
        }
    }

    fn accept(&mut self, now: Instant) -> usize {
        let mut accepted = 0;
        let listeners = self.engine.listeners.borrow().len();
        for place in 0..listeners {
            while accepted < ACCEPTS_PER_TURN && !self.pending.is_full() {
                let call = self.engine.accept(place, now);
                let Some((socket, from, via)) = call else { break };
                accepted += 1;
                self.answer(now, socket, from, via);
            }
        }
        accepted
    }

    /// Begins a caller's handshake, if its host may have one more in progress.
    fn answer(&mut self, now: Instant, socket: Socket, from: Option<SocketAddr>, via: u16) {
        let host = from.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |from| host_of(from.ip()));
        if let Err(reason) = self.limiter.begin(now, host) {
            self.engine.count_callers(|counters| counters.turned_away += 1);
            tracing::debug!(?from, reason, "a client connection was rejected");
            return;
        }
        let ShardEngine { settings, addresses, authentication, .. } = &*self.engine;
        let answering = {
            let authentication = authentication.borrow();
            Answering::new(socket, &addresses[usize::from(via)], &settings.tcp, &authentication)
        };
        match answering {
            Ok(answering) => self.add(Greeting::Answering { answering, via, from: host, held: 0 }),
            Err(error) => {
                self.limiter.ended(host);
                tracing::warn!(?from, %error, "a connection's socket cannot be used");
            }
        }
    }

    /// A caller's handshake has ended, successful or not.
    fn answered(&mut self, from: IpAddr, held: usize) {
        self.limiter.ended(from);
        self.held_bytes -= held;
    }

    fn add(&mut self, greeting: Greeting) {
        let pending = Pending { greeting: None, deadline: self.first_deadline(&greeting) };
        let Ok(handle) = self.pending.insert(pending) else {
            match greeting {
                Greeting::Calling { peer, .. } => {
                    let most = self.engine.settings.greetings_max;
                    let reason = format!("{most} handshakes are in progress (transport.greetings_max)");
                    self.dial_failed(peer, reason, DialFailureKind::Transient);
                }
                Greeting::Answering { from, held, .. } => self.answered(from, held),
            }
            return;
        };
        let descriptor = match &greeting {
            Greeting::Calling { dial, .. } => dial.descriptor(),
            Greeting::Answering { answering, .. } => answering.descriptor(),
        };
        // A socket becomes writable once when it is connected, so that is reported once.
        if let Err(error) = self.watch(descriptor, handle.to_bits(), Interest::READ_WRITE.edge()) {
            self.pending.remove(handle);
            tracing::error!(%error, "a handshake cannot be watched");
            match greeting {
                Greeting::Calling { peer, .. } => {
                    self.dial_failed(peer, error.to_string(), DialFailureKind::Transient);
                }
                Greeting::Answering { from, held, .. } => self.answered(from, held),
            }
            return;
        }
        self.pending.get_mut(handle).expect("just inserted").greeting = Some(greeting);
        self.ready.push(handle);
    }

    fn carry_out(&mut self, order: ConnectOrder) {
        match order {
            ConnectOrder::Dial { peer, address, hello } => self.dial(peer, address, hello),
            ConnectOrder::HangUp(peer) => {
                self.resolver.drop_those_for(peer);
                let of_peer = |pending: &Pending| matches!(&pending.greeting, Some(Greeting::Calling { peer: other, .. }) if *other == peer);
                for handle in self.pending.select(of_peer) {
                    self.pending.remove(handle);
                }
            }
        }
    }

    /// Host names are resolved first; addresses are dialed directly.
    fn dial(&mut self, peer: Handle, address: TransportAddress, hello: Hello) {
        if !matches!(address.host, Host::Name(_)) {
            let found = resolve(&address);
            return self.call(peer, found, hello);
        }
        match self.resolver.begin(peer, address, hello) {
            Ok(()) => self.engine.borrow_node(|node| node.set_resolving(peer, true)),
            Err(reason) => self.dial_failed(peer, reason, DialFailureKind::Transient),
        }
    }

    fn call(&mut self, peer: Handle, found: Result<Vec<SocketAddr>, LinkError>, hello: Hello) {
        match found {
            Ok(addresses) => self.call_next(peer, addresses, hello, LinkError::Closed),
            Err(error) => self.dial_failed(peer, error.to_string(), DialFailureKind::Transient),
        }
    }

    /// Dials the next address of a name; `error` is how the previous attempt ended.
    fn call_next(&mut self, peer: Handle, mut more: Vec<SocketAddr>, hello: Hello, mut error: LinkError) {
        let Some(called) = self.engine.borrow_node(|node| node.address_of(peer)) else { return };
        while !more.is_empty() {
            let address = more.remove(0);
            let settings = &self.engine.settings;
            let dial = {
                let authentication = self.engine.authentication.borrow();
                Dial::start(address, (&called, hello.clone()), &settings.tcp, &authentication)
            };
            match dial {
                Ok(dial) => return self.add(Greeting::Calling { dial, peer, more, hello }),
                Err(failed) => error = failed,
            }
        }
        let kind = kind_of(&error);
        self.dial_failed(peer, error.to_string(), kind);
    }

    /// Days until this side's certificate expires, if it has one.
    fn own_days_left(&self) -> Option<f64> {
        self.engine.authentication.borrow().ends().map(days_left)
    }

    fn dial_failed(&mut self, peer: Handle, reason: String, kind: DialFailureKind) {
        if kind == DialFailureKind::Denied
            && let Some(calls) = self.denied.add(self.engine.shard.now())
        {
            let address = self.engine.borrow_node(|node| node.address_of(peer)).map(|address| address.to_string());
            let own_certificate_days_left = self.own_days_left();
            tracing::warn!(
                peer = address,
                calls,
                reason,
                own_certificate_days_left,
                "a peer rejects this side, or is rejected"
            );
        }
        self.engine.with_node(|node, now| node.dial_failed(now, peer, DialFailure { reason, kind }));
    }

    fn poll_pending(&mut self, handle: Handle) {
        let Some(pending) = self.pending.get_mut(handle) else { return };
        let deadline = pending.deadline;
        match pending.greeting.take().expect("polled by nobody else") {
            Greeting::Calling { dial, peer, more, hello } => {
                let had_connection = dial.is_connected();
                match dial.poll() {
                    Ok(Progress::Pending(dial)) => {
                        let has_connection_now = !had_connection && dial.is_connected();
                        let deadline = if has_connection_now { self.deadline() } else { deadline };
                        let greeting = Some(Greeting::Calling { dial, peer, more, hello });
                        *self.pending.get_mut(handle).expect("still there") = Pending { greeting, deadline };
                    }
                    Ok(Progress::Done(dialed)) => {
                        self.pending.remove(handle);
                        self.dialed(peer, dialed);
                    }
                    Err(error) => {
                        self.pending.remove(handle);
                        self.call_failed(peer, more, hello, error);
                    }
                }
            }
            Greeting::Answering { answering, via, from, held } => match answering.poll() {
                Ok(Progress::Pending(answering)) => {
                    let now_held = answering.held_bytes();
                    self.held_bytes = self.held_bytes - held + now_held;
                    let most = self.engine.settings.greeting_bytes_max;
                    if self.held_bytes > most {
                        self.pending.remove(handle);
                        self.engine.count_callers(|counters| counters.turned_away += 1);
                        self.broke_off(
                            from,
                            &format_args!(
                                "{most} bytes of unfinished handshakes are buffered \
                                 (transport.greeting_bytes_max)"
                            ),
                        );
                        self.answered(from, now_held);
                        return;
                    }
                    let greeting = Some(Greeting::Answering { answering, via, from, held: now_held });
                    *self.pending.get_mut(handle).expect("still there") = Pending { greeting, deadline };
                }
                Ok(Progress::Done(call)) => {
                    self.pending.remove(handle);
                    self.introduced(call, via, from);
                    self.answered(from, held);
                }
                Err(error) => {
                    self.pending.remove(handle);
                    match error {
                        CallError::Unauthenticated(reason) => self.unauthenticated(from, &reason),
                        CallError::Link(error) => self.broke_off(from, &error),
                    }
                    self.answered(from, held);
                }
            },
        }
    }

    /// A caller has introduced itself.
    fn introduced(&mut self, call: Call, via: u16, from: IpAddr) {
        if let Err(reason) = self.engine.borrow_node(|node| identity_of(&call, node.map())) {
            self.unauthenticated(from, &reason);
            return call.reject(RejectCode::Unauthenticated, reason);
        }
        if call.hello.is_probe() {
            tracing::debug!(%from, "a probe was answered");
            return call.describe(self.engine.borrow_node(|node| node.introduction(via)));
        }
        if let Err(reason) = self.engine.borrow_node(|node| node.check_job(&call.hello)) {
            if let Some(callers) = self.strangers.add(self.engine.shard.now()) {
                tracing::warn!(%from, peer = call.hello.address, callers, reason, "rejected a caller of another job");
            }
            return call.reject(RejectCode::Job, reason);
        }
        if call.hello.streams().is_some() {
            if let Err(error) = self.engine.shard.unwatch(call.descriptor()) {
                tracing::error!(%error, "a handshake cannot be unwatched");
            }
            return self.engine.keep_for_streams(call, via);
        }
        self.route(call, via);
    }

    /// A caller failed to authenticate.
    fn unauthenticated(&mut self, from: IpAddr, reason: &str) {
        self.engine.count_callers(|counters| counters.unauthenticated += 1);
        if let Some(failures) = self.limiter.failed(self.engine.shard.now(), from) {
            let own_certificate_days_left = self.own_days_left();
            tracing::warn!(%from, failures, reason, own_certificate_days_left, "a caller is not authenticated");
        }
    }

    /// A caller's handshake failed before the caller had introduced itself.
    fn broke_off(&mut self, from: IpAddr, reason: &dyn std::fmt::Display) {
        if let Some(callers) = self.limiter.broke_off(self.engine.shard.now(), from) {
            tracing::warn!(%from, callers, %reason, "a caller did not complete its handshake");
        }
    }

    fn dialed(&mut self, peer: Handle, dialed: Dialed) {
        let Dialed { link, welcome, certificate } = dialed;
        // The handshake's watch ends here; the link's own begins when the node takes it.
        if let Some(descriptor) = sealane_transport::Link::descriptor(&link)
            && let Err(error) = self.engine.shard.unwatch(descriptor)
        {
            tracing::error!(%error, "a handshake cannot be unwatched");
        }
        if let Err(reason) = self.engine.borrow_node(|node| node.check_job(&welcome)) {
            return self.dial_failed(peer, reason, DialFailureKind::Denied);
        }
        if let Err(reason) = self.engine.check_features(&welcome) {
            return self.dial_failed(peer, reason, DialFailureKind::Final);
        }
        let (address, map) = self.engine.borrow_node(|node| (node.address_of(peer), node.map().clone()));
        // The dial was dropped meanwhile: dropping the link closes it.
        let Some(address) = address else { return };
        if let Err(reason) = identity::check(certificate.as_ref(), &address, &welcome.tasks, &map) {
            return self.dial_failed(peer, format!("not authenticated: {reason}"), DialFailureKind::Denied);
        }
        let link = self.engine.link(link, &welcome);
        self.engine.with_node(|node, now| node.dialed(now, peer, link, &welcome));
    }

    fn call_failed(&mut self, peer: Handle, more: Vec<SocketAddr>, hello: Hello, error: DialError) {
        match error {
            DialError::Link(error) => self.call_next(peer, more, hello, error),
            DialError::Rejected(reject) => {
                let kind = match reject.code {
                    RejectCode::Crossed => DialFailureKind::Crossed,
                    RejectCode::Full => DialFailureKind::Transient,
                    RejectCode::Version | RejectCode::Refused => DialFailureKind::Final,
                    RejectCode::Unauthenticated | RejectCode::Job => DialFailureKind::Denied,
                };
                self.dial_failed(peer, format!("rejected: {}", reject.reason), kind);
            }
            error @ DialError::Unauthenticated(_) => self.dial_failed(peer, error.to_string(), DialFailureKind::Denied),
        }
    }

    /// Passes a caller to the shard that serves its lane.
    fn route(&self, call: Call, via: u16) {
        if let Err(error) = self.engine.shard.unwatch(call.descriptor()) {
            tracing::error!(%error, "a handshake cannot be unwatched");
        }
        let owner = shard_of(call.hello.lane, self.engine.shard.shards());
        if owner == self.engine.shard.index() {
            return self.engine.answer(call, via);
        }
        let job = move |_: &Shard| match ShardEngine::current() {
            Some(engine) => engine.answer(call, via),
            // The shard may have started by the caller's next attempt.
            None => call.reject(RejectCode::Full, "the engine is starting or stopping"),
        };
        if let Err(full) = self.engine.shard.shard_ref(owner).submit(Box::new(job)) {
            // The caller's socket is in the job and is closed with it; the caller tries again.
            tracing::warn!(%full, "a caller could not be passed to its shard");
        }
    }

    fn expire(&mut self, now: Instant) -> usize {
        let late = self.pending.select(|pending| pending.deadline <= now);
        for &handle in &late {
            let pending = self.pending.remove(handle).expect("just selected");
            let within = self.engine.settings.handshake_timeout;
            match pending.greeting {
                Some(Greeting::Calling { dial, peer, more, hello }) => {
                    let reason = match dial.is_connected() {
                        true => format!("it accepted the connection but did not answer within {within:?}"),
                        false => format!("no connection within {:?}", within.min(CONNECT_PATIENCE)),
                    };
                    let error = std::io::Error::new(ErrorKind::TimedOut, reason);
                    self.call_next(peer, more, hello, LinkError::io("greet", &error));
                }
                Some(Greeting::Answering { from, held, .. }) => {
                    self.broke_off(from, &format_args!("it did not complete the handshake within {within:?}"));
                    self.answered(from, held);
                }
                None => unreachable!("it is polled by nobody now"),
            }
        }
        late.len()
    }
}

/// Checks a caller's identity. An address that cannot be parsed is refused later, when the caller is answered.
fn identity_of(call: &Call, map: &EndpointMap) -> Result<(), String> {
    let Ok(address) = call.hello.address.parse() else { return Ok(()) };
    identity::check(call.certificate.as_ref(), &address, &call.hello.tasks, map)
}

fn kind_of(error: &LinkError) -> DialFailureKind {
    match error {
        LinkError::Io { kind: ErrorKind::ConnectionRefused, .. } => DialFailureKind::Refused,
        LinkError::Protocol(WireError::NotSealane(_) | WireError::Version { .. }) => DialFailureKind::Final,
        _ => DialFailureKind::Transient,
    }
}

impl ShardEngine {
    /// The next caller of a listener, its address, and the index of the transport address it called.
    fn accept(&self, place: usize, now: Instant) -> Option<(Socket, Option<SocketAddr>, u16)> {
        let mut listeners = self.listeners.borrow_mut();
        let (socket, from) = listeners[place].accept(now)?;
        Some((socket, from, listeners[place].via))
    }

    /// Answers a caller whose pair this shard serves.
    fn answer(&self, call: Call, via: u16) {
        if let Err(reason) = self.check_features(&call.hello) {
            return call.reject(RejectCode::Refused, reason);
        }
        // Checked once more: while a new map is distributed, the listening shard may have another one than this shard.
        if let Err(reason) = self.borrow_node(|node| identity_of(&call, node.map())) {
            self.count_callers(|counters| counters.unauthenticated += 1);
            return call.reject(RejectCode::Unauthenticated, reason);
        }
        let answer = self.with_node(|node, now| node.called(now, via, &call.hello));
        match answer {
            Answer::Reject(code, reason) => {
                tracing::debug!(peer = call.hello.address, reason, "a caller was rejected");
                call.reject(code, reason);
            }
            Answer::Welcome { peer } => {
                let hello = call.hello.clone();
                let link = self.link(call.accept(), &hello);
                self.with_node(|node, now| node.accepted(now, peer, link, &hello));
            }
        }
    }
}

impl Source for Greetings {
    fn poll(&mut self, shard: &Shard, _budget: usize) -> usize {
        self.turn(shard.now())
    }

    fn ready(&mut self, token: u64, _readiness: Readiness) {
        match self.engine.listeners.borrow_mut().get_mut(token as usize) {
            Some(listener) => listener.callers_wait = true,
            None => self.ready.push(Handle::from_bits(token)),
        }
    }

    fn has_work(&self) -> bool {
        let callers_wait = self.engine.listeners.borrow().iter().any(|listener| listener.callers_wait);
        callers_wait && !self.pending.is_full() || !self.ready.is_empty() || self.engine.has_orders()
    }

    fn try_sleep(&mut self) -> bool {
        !self.has_work()
    }

    fn wake(&mut self) {}

    fn next_timeout(&self) -> Option<Instant> {
        let listeners = self.engine.listeners.borrow();
        let pauses = listeners.iter().filter_map(Listener::next_timeout);
        let end = self.engine.look_at_end.get().filter(|_| self.engine.listens_for_all());
        let connections = self.engine.close_unclaimed_at.get();
        self.pending.iter().map(|(_, pending)| pending.deadline).chain(pauses).chain(end).chain(connections).min()
    }

    fn name(&self) -> &'static str {
        "greetings"
    }
}

#[cfg(test)]
mod tests;
