//! The control thread: waits for clients, signals and changes of the endpoint map, and does what they ask. No tensor
//! passes here. Every step is bounded, and between two it sleeps.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use sealane_fusion::{Engine, LaneEnd, Portion, SpareArenas};
use sealane_transport::Error;
use sealane_transport::shm::ShmError;
use sealane_transport::shm::attach::{self, Attach, Request, RequestError};

use super::connecting;
use super::connections::{Client, Connections, Stage};
use super::drain::{Drain, Progress};
use super::gate::Gate;
use super::hand_over::Heir;
use super::instruments::Instruments;
use super::metrics::{Metrics, MetricsListener};
use super::next::NextDaemon;
use super::readiness::{For, Readiness, Ready};
use super::reload::{MapInUse, reload_credentials};
use super::service_manager;
use super::signals::{Signals, Wish};
use super::socket::ClientSocket;
use super::tasks::{self, list};
use super::watch::{Unwatched, Watch};
use crate::settings::Security;
use crate::{Failure, counted};

/// How often the engine is looked at, which stops where a part fails that it cannot do without.
const ENGINE_LOOK: Duration = Duration::from_secs(1);
/// Pause after a connection could not be accepted, mostly for want of a descriptor: the caller still waits, and asking
/// at once again would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How often a daemon that hands over looks whether those who have connected have asked.
const ASKING_LOOK: Duration = Duration::from_millis(1);

/// Connections accepted before other things are looked at: those who are turned away take no place, and could come forever.
const ACCEPTS_AT_ONCE: usize = 64;

/// Everything that the control thread looks after.
pub(super) struct Control {
    pub(super) engine: Engine,
    pub(super) instruments: Instruments,
    pub(super) metrics: Option<Metrics>,
    /// Its socket, while the next daemon has it.
    pub(super) metrics_listener: Option<MetricsListener>,
    pub(super) gate: Gate,
    pub(super) portion: Portion,
    /// For the clients of the daemon whose place this one has taken, and until when they are kept.
    pub(super) spares: SpareArenas,
    pub(super) spares_until: Option<Instant>,
    pub(super) map: MapInUse,
    pub(super) security: Security,
    pub(super) drain_timeout: Duration,
    pub(super) socket: ClientSocket,
    pub(super) signals: Signals,
    /// None where the system has no watches left: then files are read again on a signal alone.
    pub(super) watch: Option<Watch>,
    pub(super) readiness: Readiness,
    pub(super) connections: Connections,
    /// When connections are accepted again.
    pub(super) accept_from: Option<Instant>,
    /// Whether the listener is waited for.
    pub(super) listening: bool,
    pub(super) drain: Option<Drain>,
    pub(super) next: NextDaemon,
    /// For whom this daemon drains, if for another one.
    pub(super) heir: Option<Heir>,
}

impl Control {
    /// Serves until a signal or a client ends it.
    ///
    /// # Errors
    /// The system cannot wait for descriptors.
    pub(super) fn run(&mut self) -> Result<(), Failure> {
        let refused = |error| Failure::work(format!("the daemon's descriptors cannot be waited for ({error})"));
        self.readiness.add(&self.socket, For::Reading, Ready::Listener).map_err(refused)?;
        self.readiness.add(&self.signals, For::Reading, Ready::Signals).map_err(refused)?;
        if let Some(watch) = &self.watch {
            self.readiness.add(watch, For::Reading, Ready::Files).map_err(refused)?;
        }
        // The files were read before they were watched.
        self.map.reload(&self.engine);
        reload_credentials(&self.security, &self.engine, &self.instruments);
        service_manager::ready(&self.status());
        loop {
            let now = Instant::now();
            self.hang_up_on_the_overdue(now);
            self.next.look();
            if self.spares_until.take_if(|until| *until <= now).is_some() {
                self.spares = SpareArenas::default();
            }
            self.listen_if_there_is_room(now);
            if self.taking_until().is_some_and(|until| until <= now) {
                self.serve_again("it took too long to take what it was sent");
            }
            let Some(look_again) = self.look_at_drain(now) else { return Ok(()) };
            if self.engine.has_stopped() {
                return Err(Failure::work("the engine has stopped because a part of it failed; the log says which"));
            }
            let wake_ups = [
                Some(now + ENGINE_LOOK),
                look_again,
                self.connections.next_overdue(),
                self.accept_from,
                self.spares_until,
            ];
            for ready in self.readiness.wait(wake_ups.into_iter().flatten().min())? {
                let now = Instant::now();
                match ready {
                    Ready::Listener => self.accept(now),
                    Ready::Signals if self.obey_signals(now) => {}
                    Ready::Signals => return Ok(()),
                    Ready::Files => self.look_at_files(),
                    Ready::Connection(number) if self.serve(now, number) => {}
                    Ready::Connection(_) => return Ok(()),
                    Ready::Process(number) => self.hang_up(number, "its process is gone"),
                }
            }
        }
    }

    /// For the service manager and for people.
    pub(super) fn status(&self) -> String {
        let (tasks, addresses) =
            (counted(self.engine.tasks().len(), "task"), list(self.engine.addresses(), "no address"));
        let clients = counted(self.connections.clients(), "client");
        let known = counted(self.map.snapshot().len(), "task");
        let doing = match (&self.drain, &self.heir) {
            (None, _) => "serves",
            (Some(_), None) => "drains",
            (Some(_), Some(_)) => "hands over",
        };
        format!("{doing} {tasks} at {addresses}; {clients} attached; {known} in the endpoint map")
    }

    /// False if it has to end at once.
    fn obey_signals(&mut self, now: Instant) -> bool {
        while let Some(wish) = self.signals.next() {
            match wish {
                Wish::Stop if let Some(drain) = &self.drain => {
                    // The first that comes while another daemon takes over is obeyed by that or, if it fails, by this one.
                    let first = self.heir.as_mut().map(|heir| *heir.stop_asked.get_or_insert(now));
                    if drain.is_not_enough(first, now) {
                        tracing::warn!("second signal: the daemon exits without waiting");
                        return false;
                    }
                }
                Wish::Stop => self.begin_drain(now, "a signal"),
                Wish::Reload => {
                    self.watch.iter().flat_map(Watch::renew).for_each(Unwatched::warn);
                    self.reload();
                }
                Wish::Replace if self.drain.is_some() => {
                    tracing::warn!("the daemon drains: no other is started to take over");
                }
                Wish::Replace => self.next.start(),
            }
        }
        true
    }

    fn look_at_files(&mut self) {
        if self.watch.as_ref().is_some_and(Watch::changed) {
            self.reload();
        }
    }

    pub(super) fn reload(&mut self) {
        if let Some(heir) = &mut self.heir {
            heir.reload_asked = true;
        }
        if self.drain.is_some() {
            return;
        }
        service_manager::reloading();
        self.map.reload(&self.engine);
        reload_credentials(&self.security, &self.engine, &self.instruments);
        service_manager::ready(&self.status());
    }

    pub(super) fn begin_drain(&mut self, now: Instant, asked_by: &str) {
        if self.drain.is_some() {
            self.heir.iter_mut().for_each(|heir| _ = heir.stop_asked.get_or_insert(now));
            return;
        }
        tracing::info!(asked_by, timeout = ?self.drain_timeout, "the daemon drains");
        self.instruments.drains();
        if let Err(error) = self.engine.announce_drain() {
            tracing::error!(%error, "clients cannot be notified of the drain");
        }
        self.drain = Some(Drain::begin(now, self.drain_timeout));
        match self.heir {
            // The service goes on, in another process.
            Some(_) => service_manager::status(&self.status()),
            None => service_manager::stopping(&self.status()),
        }
    }

    /// When to look again, if at all; nothing if the drain is over.
    fn look_at_drain(&mut self, now: Instant) -> Option<Option<Instant>> {
        let taking_until = self.taking_until();
        let Some(drain) = &mut self.drain else { return Some(None) };
        if taking_until.is_some() {
            return Some(taking_until);
        }
        // An engine that has stopped has nothing in flight.
        let aware = self.engine.all_are_aware_of_drain().unwrap_or(true);
        match drain.look(now, aware, self.engine.under_way().unwrap_or(0)) {
            Progress::Notice(until) | Progress::Wait(until) => Some(Some(until)),
            Progress::Close => {
                if let Err(error) = self.engine.drain() {
                    tracing::error!(%error, "the engine cannot be drained");
                }
                Some(Some(now))
            }
            Progress::StopReading => {
                if let Err(error) = self.engine.stop_reading() {
                    tracing::error!(%error, "the engine still reads what peers send");
                }
                Some(Some(now))
            }
            Progress::Over { .. } if self.heir.is_some() && self.connections.are_about_to_ask(now) => {
                Some(Some(now + ASKING_LOOK))
            }
            Progress::Over { left } => {
                match left {
                    0 => tracing::info!("the daemon is drained"),
                    _ => {
                        tracing::warn!(left, timeout = ?self.drain_timeout, "the drain timeout has passed: calls in progress end, and what nobody has accepted is lost");
                    }
                }
                self.hand_over(now).then(|| self.taking_until())
            }
        }
    }

    fn listen_if_there_is_room(&mut self, now: Instant) {
        if self.accept_from.is_some_and(|from| from <= now) {
            self.accept_from = None;
        }
        // Who comes while another daemon takes over waits for that one.
        let wanted = self.accept_from.is_none() && !self.connections.is_crowded() && self.heir.is_none();
        if wanted != self.listening {
            self.listening = wanted;
            let interest = if wanted { For::Reading } else { For::HangUp };
            self.readiness.change(&self.socket, interest, Ready::Listener);
        }
    }

    fn accept(&mut self, now: Instant) {
        for _ in 0..ACCEPTS_AT_ONCE {
            if self.connections.is_crowded() || self.heir.is_some() {
                return;
            }
            let accepted = attach::accept(self.socket.listener());
            let known = accepted.and_then(|socket| match socket {
                Some(socket) => attach::credentials(&socket).map(|peer| Some((socket, peer))),
                None => Ok(None),
            });
            let (socket, peer) = match known {
                Ok(Some(known)) => known,
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, retry_in = ?ACCEPT_PAUSE, "a client cannot be accepted");
                    self.accept_from = Some(now + ACCEPT_PAUSE);
                    return;
                }
            };
            if let Err(error) = self.gate.may_ask(peer.uid, self.connections.opening_of(peer.uid)) {
                tracing::debug!(pid = peer.pid, uid = peer.uid, %error, "a client connection was rejected");
                // What it has asked by now is taken, since the kernel tells it otherwise that it was cut off.
                let _ = attach::read_request(&socket);
                let _ = attach::refuse(&socket, &error);
                continue;
            }
            let number = self.connections.add(now, socket, peer);
            let connection = self.connections.get_mut(number).expect("just added");
            if let Err(error) = self.readiness.add(&*connection.socket, For::Reading, Ready::Connection(number)) {
                tracing::warn!(%error, pid = peer.pid, "a client cannot be waited for");
                self.connections.remove(number);
            }
        }
    }

    /// Takes a connection a step further; false if another daemon has taken over by it.
    fn serve(&mut self, now: Instant, number: u64) -> bool {
        let Some(connection) = self.connections.get_mut(number) else { return true };
        match &mut connection.stage {
            Stage::Asking | Stage::Preparing | Stage::Inheriting => {
                let socket = Arc::clone(&connection.socket);
                match attach::read_request(&socket) {
                    Ok(None) => {}
                    Ok(Some(Request::Taken { .. })) if self.is_heir(number) => return !self.let_go(number),
                    Ok(Some(request)) => self.answer(now, number, request),
                    Err(RequestError::HungUp) => self.hang_up(number, "it disconnected"),
                    Err(error) => self.refuse(number, &Error::invalid(error.to_string())),
                }
            }
            Stage::Welcoming(_, welcoming) => match welcoming.step(&connection.socket) {
                Ok(true) => self.attached(number),
                Ok(false) => {}
                Err(error) => self.hang_up(number, &error.to_string()),
            },
            // A client has nothing to say on its socket: whatever makes it readable is its end.
            Stage::Attached(_) => match attach::read_request(&connection.socket) {
                Ok(None) => {}
                Err(RequestError::HungUp) => self.hang_up(number, "it disconnected"),
                Ok(Some(_)) => self.hang_up(number, "it sent a second request"),
                Err(error) => self.hang_up(number, &error.to_string()),
            },
            Stage::AwaitingEnd => self.hang_up(number, "it disconnected"),
        }
        true
    }

    fn answer(&mut self, now: Instant, number: u64, request: Request) {
        let answered = match request {
            Request::Attach(wish) => self.attach(now, number, &wish),
            Request::Drain { .. } => self.drain_for(now, number),
            Request::Arena { arena, .. } => self.show_arena(number, arena),
            Request::Lane { task, peer, .. } => self.give_lane(number, &task, &peer),
            Request::Connect { task, peer, .. } => self.connect_for_stream(number, task, peer),
            Request::Connection { task, peer, number: which, .. } => self.give_connection(number, &task, &peer, which),
            Request::Show { .. } => self.show(number),
            Request::TakeOver { .. } => self.show_estate(now, number),
            Request::HandOver { .. } => self.begin_hand_over(now, number),
            Request::Taken { .. } => Err(Error::invalid("nothing was handed over")),
        };
        if let Err(error) = answered {
            self.refuse(number, &error);
        }
    }

    fn attach(&mut self, now: Instant, number: u64, wish: &Attach) -> Result<(), Error> {
        if self.drain.is_some() {
            return Err(Error::unavailable("this daemon", "it is draining; attach again after its restart"));
        }
        let clients = self.connections.clients();
        let connection = self.connections.get_mut(number).expect("it asks");
        let peer = connection.peer;
        self.gate.may_attach(wish, clients)?;
        tasks::must_be_free(&wish.task, &self.engine.tasks(), self.engine.attached(&wish.task))?;
        let failed = |error: ShmError| Error::full("memory of this host", error.to_string());
        let wish = &Attach { arena_bytes: self.gate.arena_bytes(wish), ..wish.clone() };
        let (ends, welcoming) = self
            .portion
            .make(wish, peer, &connection.socket, &mut self.spares, &self.engine.tasks())
            .map_err(failed)?;
        let id = self.engine.admit(ends)?;
        let process = process(peer.pid);
        if let Some(process) = &process
            && let Err(error) = self.readiness.add(process, For::Reading, Ready::Process(number))
        {
            tracing::warn!(%error, pid = peer.pid, "a client process cannot be watched; only its disconnect will be noticed");
        }
        let client = Client { id, task: wish.task.clone(), process };
        (connection.stage, connection.since) = (Stage::Welcoming(client, welcoming), now);
        self.readiness.change(&*connection.socket, For::Writing, Ready::Connection(number));
        let _goes_on = self.serve(now, number);
        Ok(())
    }

    /// All of the welcome has left.
    fn attached(&mut self, number: u64) {
        let connection = self.connections.get_mut(number).expect("it is welcomed");
        let stage = std::mem::replace(&mut connection.stage, Stage::Asking);
        let Stage::Welcoming(client, _) = stage else { unreachable!("it is welcomed") };
        let peer = connection.peer;
        tracing::info!(
            task = client.task,
            pid = peer.pid,
            uid = peer.uid,
            link = "shm",
            reason = "it attached at this host's socket",
            "client attached"
        );
        connection.stage = Stage::Attached(client);
        self.readiness.change(&*connection.socket, For::Reading, Ready::Connection(number));
        service_manager::status(&self.status());
    }

    /// Shows a caller the daemon's figures; whoever may connect may see them.
    fn show(&mut self, number: u64) -> Result<(), Error> {
        let failed = |error: String| Error::full("memory of this host", error);
        let figures = serde_json::to_vec(&self.instruments.figures()).map_err(|error| failed(error.to_string()))?;
        let connection = self.connections.get_mut(number).expect("it asks");
        if let Err(error) = attach::show_figures(&connection.socket, &figures) {
            // One that does not read any more has lost nothing.
            tracing::debug!(%error, pid = connection.peer.pid, "figures could not be sent");
        }
        self.hang_up(number, "it has seen the figures");
        Ok(())
    }

    /// Shows a client the arena of another, which it was told of, so that it can read what is published there.
    fn show_arena(&mut self, number: u64, arena: u64) -> Result<(), Error> {
        let connection = self.connections.get_mut(number).expect("it asks");
        let (memory, bytes) = self.engine.shared_arena(arena, connection.peer.uid)?;
        if let Err(error) = attach::show_arena(&connection.socket, &memory, bytes) {
            // One that hears nothing pulls a copy.
            tracing::warn!(%error, pid = connection.peer.pid, "an arena could not be shown to another client");
        }
        self.hang_up(number, "it was shown an arena");
        Ok(())
    }

    /// Gives a client its end of the direct lane with another.
    fn give_lane(&mut self, number: u64, task: &str, peer: &str) -> Result<(), Error> {
        if !self.portion.direct_lanes {
            return Err(Error::PermissionDenied { reason: "daemon.direct_lanes is off".into() });
        }
        let connection = self.connections.get_mut(number).expect("it asks");
        let LaneEnd { lane, side, ear, bell } = self.engine.direct_lane(task, peer, connection.peer)?;
        if let Err(error) = attach::give_lane(&connection.socket, &lane, side, (&ear, &bell)) {
            // One that hears nothing sends by the daemon, and asks for another lane.
            tracing::warn!(%error, task, peer, "a direct lane could not be given to a client");
        }
        self.hang_up(number, "it was given a lane");
        Ok(())
    }

    /// Makes a connection for a stream of a client, on a thread of its own, which answers.
    fn connect_for_stream(&mut self, number: u64, task: String, peer: String) -> Result<(), Error> {
        self.may_have_connection(number, &task)?;
        let place =
            connecting::Place::take().ok_or_else(|| Error::full("connections for streams", "others are made"))?;
        let connection = self.connections.remove(number).expect("it asks");
        self.readiness.remove(&*connection.socket);
        connecting::answer(self.engine.clone(), connection, (task, peer), place);
        Ok(())
    }

    /// Gives a client its end of a connection that another daemon has made for one of its streams.
    fn give_connection(&mut self, number: u64, task: &str, peer: &str, which: u64) -> Result<(), Error> {
        self.may_have_connection(number, task)?;
        let socket = self.engine.stream_connection(task, peer, which)?;
        let connection = self.connections.get_mut(number).expect("it asks");
        if let Err(error) = attach::give_connection(&connection.socket, which, &socket) {
            // The other end sees it closed.
            tracing::warn!(%error, task, peer, "a connection could not be given to a client");
        }
        self.hang_up(number, "it was given a connection");
        Ok(())
    }

    /// # Errors
    /// PermissionDenied if streams go by the daemon, or another process asks than the one that is attached as `task`.
    fn may_have_connection(&mut self, number: u64, task: &str) -> Result<(), Error> {
        if !self.portion.direct_lanes {
            return Err(Error::PermissionDenied { reason: "daemon.direct_lanes is off".into() });
        }
        let asker = self.connections.get_mut(number).expect("it asks").peer;
        self.engine.check_attached(task, asker)
    }

    fn drain_for(&mut self, now: Instant, number: u64) -> Result<(), Error> {
        let connection = self.connections.get_mut(number).expect("it asks");
        let peer = connection.peer;
        self.gate.may_drain(peer.uid)?;
        // Whoever does not read that may still see the end of the connection.
        let _ = attach::draining(&connection.socket);
        (connection.stage, connection.since) = (Stage::AwaitingEnd, now);
        self.readiness.change(&*connection.socket, For::HangUp, Ready::Connection(number));
        self.begin_drain(now, &format!("process {} of user id {}", peer.pid, peer.uid));
        Ok(())
    }

    /// Tells a connection that has asked why it is not served, and ends it.
    pub(super) fn refuse(&mut self, number: u64, error: &Error) {
        let Some(connection) = self.connections.remove(number) else { return };
        if self.is_heir(number) {
            self.serve_again("it asked for something else");
        }
        let peer = connection.peer;
        tracing::warn!(pid = peer.pid, uid = peer.uid, %error, "a client was refused");
        // One that does not listen any more has lost nothing.
        let _ = attach::refuse(&connection.socket, error);
    }

    fn hang_up_on_the_overdue(&mut self, now: Instant) {
        for number in self.connections.overdue(now) {
            self.hang_up(number, "it took too long to send its request or read the answer");
        }
    }

    /// Ends a connection, and the client that it may be.
    pub(super) fn hang_up(&mut self, number: u64, reason: &str) {
        let Some(connection) = self.connections.remove(number) else { return };
        if self.is_heir(number) {
            self.serve_again(reason);
        }
        // The shards may hold the socket for a while, to ring its bell.
        self.readiness.remove(&*connection.socket);
        let peer = connection.peer;
        let (Stage::Welcoming(client, _) | Stage::Attached(client)) = connection.stage else {
            return tracing::debug!(pid = peer.pid, uid = peer.uid, reason, "a connection ended");
        };
        if let Some(process) = &client.process {
            self.readiness.remove(process);
        }
        self.engine.dismiss(client.id, &format!("process {} was attached as this task: {reason}", peer.pid));
        // A client that has said goodbye hears the socket close, when the last shard has let go of its memory.
        tracing::info!(task = client.task, pid = peer.pid, uid = peer.uid, reason, "client detached");
        service_manager::status(&self.status());
    }
}

/// A descriptor of a process; none where the kernel has none, or told no process.
fn process(pid: i32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
}
