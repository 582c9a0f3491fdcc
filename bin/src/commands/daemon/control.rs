//! The control thread: waits for clients, signals and changes of the endpoint map, and handles them. No tensor passes here. Every
//! step is bounded, and it sleeps in between.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use sealane_fusion::{Engine, Portion};
use sealane_transport::Error;
use sealane_transport::job::describe;
use sealane_transport::shm::attach::{self, Attach, Credentials, Request, RequestError};
use sealane_transport::shm::{ClientBell, ShmError};

use super::connecting;
use super::connections::{Client, Connections, Stage};
use super::drain::{Drain, Progress};
use super::gate::{Gate, Rejection};
use super::hand_over::Heir;
use super::instruments::Instruments;
use super::measuring;
use super::metrics::{Metrics, MetricsListener};
use super::next::NextDaemon;
use super::readiness::{For, Readiness, Ready};
use super::refusals::Refusals;
use super::reload::{Files, Rereading};
use super::service_manager;
use super::signals::{Signals, Wish};
use super::socket::ClientSocket;
use super::tasks::{self, list};
use crate::{Failure, counted, log};

/// How often the engine is checked, which stops if a part fails that it needs.
const ENGINE_LOOK: Duration = Duration::from_secs(1);
/// Pause after a connection could not be accepted, mostly for lack of a descriptor: the caller still waits, and retrying at once
/// would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How often a daemon that hands over checks whether connected processes have sent their requests.
const ASKING_LOOK: Duration = Duration::from_millis(1);

/// Connections accepted before other things are handled: rejected ones take no place, and could arrive without end.
const ACCEPTS_AT_ONCE: usize = 64;

pub(super) struct Control {
    pub(super) engine: Engine,
    pub(super) instruments: Instruments,
    pub(super) metrics: Option<Metrics>,
    /// The listening socket for metrics, while the next daemon has it.
    pub(super) metrics_listener: Option<MetricsListener>,
    pub(super) gate: Gate,
    pub(super) portion: Portion,
    pub(super) files: Files,
    /// The thread that rereads the files, while it runs.
    pub(super) rereading: Option<Rereading>,
    pub(super) drain_timeout: Duration,
    pub(super) socket: ClientSocket,
    pub(super) signals: Signals,
    pub(super) readiness: Readiness,
    pub(super) connections: Connections,
    pub(super) refusals: Refusals,
    /// When accepting resumes.
    pub(super) accept_from: Option<Instant>,
    /// Whether the control thread waits for the listener.
    pub(super) listening: bool,
    pub(super) drain: Option<Drain>,
    pub(super) next: NextDaemon,
    /// The daemon for which this one drains, if any.
    pub(super) heir: Option<Heir>,
}

impl Control {
    /// Serves until a signal or a client ends it.
    ///
    /// # Errors
    /// The system cannot wait for descriptors.
    pub(super) fn run(&mut self) -> Result<(), Failure> {
        let ended = self.turn_until_end();
        // The engine stops next, which takes the time that it takes.
        self.instruments.control_ends();
        ended
    }

    fn turn_until_end(&mut self) -> Result<(), Failure> {
        let refused = |error| Failure::work(format!("the daemon's descriptors cannot be waited for ({error})"));
        self.readiness.add(&self.socket, For::Reading, Ready::Listener).map_err(refused)?;
        self.readiness.add(&self.signals, For::Reading, Ready::Signals).map_err(refused)?;
        if let Some(watch) = &self.files.watch {
            self.readiness.add(&**watch, For::Reading, Ready::Files).map_err(refused)?;
        }
        // The files were read before they are watched, and may have changed in between. The daemon is ready once they are read again.
        self.reread(Instant::now());
        loop {
            let now = Instant::now();
            self.instruments.control_turns();
            log::report_lost();
            if self.rereading.as_mut().is_some_and(|rereading| rereading.is_newly_overdue(now)) {
                self.report_ready();
            }
            self.drop_overdue(now);
            self.next.look();
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
                self.rereading.as_ref().and_then(|rereading| rereading.overdue_at),
            ];
            for ready in self.readiness.wait(wake_ups.into_iter().flatten().min())? {
                let now = Instant::now();
                match ready {
                    Ready::Listener => self.accept(now),
                    Ready::Signals if self.obey_signals(now) => {}
                    Ready::Signals => return Ok(()),
                    Ready::Files => self.look_at_files(now),
                    Ready::Reread => self.reread_ended(now),
                    Ready::Connection(number) if self.serve(now, number) => {}
                    Ready::Connection(_) => return Ok(()),
                    Ready::Process(number) => self.hang_up(number, "its process is gone"),
                }
            }
        }
    }

    /// The status line for the service manager and for people.
    pub(super) fn status(&self) -> String {
        let (tasks, addresses) =
            (counted(self.engine.tasks().len(), "task"), list(self.engine.addresses(), "no address"));
        let clients = counted(self.connections.clients(), "client");
        let known = counted(self.files.map.snapshot().len(), "task");
        let doing = match (&self.drain, &self.heir) {
            (None, _) => "serves",
            (Some(_), None) => "drains",
            (Some(_), Some(_)) => "hands over",
        };
        format!("{doing} {tasks} at {addresses}; {clients} attached; {known} in the endpoint map")
    }

    /// False if the daemon must end at once.
    fn obey_signals(&mut self, now: Instant) -> bool {
        while let Some(wish) = self.signals.next() {
            match wish {
                Wish::Stop if let Some(drain) = &self.drain => {
                    // The first stop signal during a take-over is obeyed by the other daemon or, if that fails, by this one.
                    let first = self.heir.as_mut().map(|heir| *heir.stop_asked.get_or_insert(now));
                    if drain.is_not_enough(first, now) {
                        tracing::warn!("second signal: the daemon exits without waiting");
                        return false;
                    }
                }
                Wish::Stop => self.begin_drain(now, "a signal"),
                Wish::Reload => self.reload(now),
                Wish::Replace if self.drain.is_some() => {
                    tracing::warn!("the daemon drains: no other is started to take over");
                }
                Wish::Replace => self.next.start(),
            }
        }
        true
    }

    fn look_at_files(&mut self, now: Instant) {
        if self.files.watch.as_ref().is_some_and(|watch| watch.changed()) {
            self.reload(now);
        }
    }

    pub(super) fn reload(&mut self, now: Instant) {
        if let Some(heir) = &mut self.heir {
            heir.reload_asked = true;
        }
        if self.drain.is_some() {
            return;
        }
        service_manager::reloading();
        self.reread(now);
    }

    /// Has a thread reread the files; [`reread_ended`](Self::reread_ended) follows.
    fn reread(&mut self, now: Instant) {
        if let Some(rereading) = &mut self.rereading {
            rereading.again = true;
            return;
        }
        let begun = Rereading::begin(now, self.files.clone()).and_then(|rereading| {
            self.readiness.add(&rereading, For::Reading, Ready::Reread)?;
            Ok(rereading)
        });
        match begun {
            Ok(rereading) => self.rereading = Some(rereading),
            Err(error) => {
                tracing::error!(%error, "no thread can reread the endpoint map and credentials, and the previous ones stay in use");
                self.report_ready();
            }
        }
    }

    /// Called when the thread that rereads the files has finished.
    fn reread_ended(&mut self, now: Instant) {
        let Some(rereading) = self.rereading.take() else { return };
        self.readiness.remove(&rereading);
        if rereading.again {
            self.reload(now);
        } else {
            self.report_ready();
        }
    }

    fn report_ready(&self) {
        if self.drain.is_none() {
            service_manager::ready(&self.status());
        }
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

    /// When to look again, if at all; `None` if the drain is over.
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
        // Processes that connect during a take-over wait for the other daemon.
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
            if let Err(error) = self.gate.may_connect(peer.uid, self.connections.opening_of(peer.uid)) {
                tracing::debug!(pid = peer.pid, uid = peer.uid, %error, "a client connection was rejected");
                // Its request is read first, since otherwise the kernel reports a reset to it.
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

    /// Advances a connection; false if another daemon has taken over through it.
    fn serve(&mut self, now: Instant, number: u64) -> bool {
        let Some(connection) = self.connections.get_mut(number) else { return true };
        match &mut connection.stage {
            Stage::Asking | Stage::Preparing | Stage::Inheriting => {
                let socket = Arc::clone(&connection.socket);
                match attach::read_request(&socket) {
                    Ok(None) => {}
                    Ok(Some(request)) => return self.answer(now, number, request),
                    Err(RequestError::HungUp) => self.hang_up(number, "it disconnected"),
                    Err(error) => self.refuse(number, &Error::invalid(error.to_string())),
                }
            }
            Stage::Welcoming(_, welcoming) => match welcoming.step(&connection.socket) {
                Ok(true) => self.attached(number),
                Ok(false) => {}
                Err(error) => self.hang_up(number, &error.to_string()),
            },
            // A client sends nothing on its socket: whatever makes it readable is its end.
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

    /// Handles a request, if the user of its process has the permission. Returns false if another daemon has taken over.
    fn answer(&mut self, now: Instant, number: u64, request: Request) -> bool {
        let peer = self.connections.get_mut(number).expect("it asks").peer;
        if let Err(error) = self.gate.check(peer.uid, request.permission()) {
            self.refuse(number, &error);
            return true;
        }
        let answered = match request {
            Request::Attach(wish) => match self.attach(now, number, &wish) {
                Ok(()) => Ok(()),
                Err(Rejection::OtherJob) => {
                    self.refuse_for_job(number, &wish);
                    return true;
                }
                Err(Rejection::Refused(error)) => Err(error),
            },
            Request::Drain { .. } => self.drain_for(now, number),
            Request::Arena { arena, .. } => self.show_arena(number, arena),
            Request::Lane { task, peer, .. } => self.give_lane(number, &task, &peer),
            Request::Connect { task, peer, .. } => self.connect_for_stream(number, task, peer),
            Request::Connection { task, peer, number: which, .. } => self.give_connection(number, &task, &peer, which),
            Request::Show { .. } => self.show(number),
            Request::Measure { .. } => self.measure(number),
            Request::TakeOver { job, .. } => self.show_estate(now, number, job.as_ref()),
            Request::HandOver { .. } => self.begin_hand_over(now, number),
            Request::Taken { .. } => return !self.let_go(number),
        };
        if let Err(error) = answered {
            self.refuse(number, &error);
        }
        true
    }

    fn attach(&mut self, now: Instant, number: u64, wish: &Attach) -> Result<(), Rejection> {
        if self.drain.is_some() {
            return Err(Error::unavailable("this daemon", "it is draining; attach again after its restart").into());
        }
        let holder = if wish.replace { self.connections.holder(&wish.task) } else { None };
        let clients = self.connections.clients() - usize::from(holder.is_some());
        let peer = self.connections.get_mut(number).expect("it asks").peer;
        self.gate.may_attach(wish, clients)?;
        if let Some(holder) = holder {
            self.detach_holder(&wish.task, holder, peer)?;
        }
        let connection = self.connections.get_mut(number).expect("it asks");
        tasks::must_be_free(&wish.task, &self.engine.tasks(), self.engine.attached(&wish.task))?;
        let failed = |error: ShmError| Error::full("memory of this host", error.to_string());
        let wish = &Attach { arena_bytes: self.gate.arena_bytes(wish), ..wish.clone() };
        let (ends, welcoming) =
            self.portion.make(wish, peer, &connection.socket, &self.engine.tasks()).map_err(failed)?;
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

    /// Detaches the process that is attached as `task` over a connection, for another process of its user.
    ///
    /// # Errors
    /// PermissionDenied if it is another user's.
    fn detach_holder(
        &mut self,
        task: &str,
        (number, holder): (u64, Credentials),
        by: Credentials,
    ) -> Result<(), Error> {
        self.gate.may_replace(by.uid, (holder.pid, holder.uid), task)?;
        let connection = self.connections.get_mut(number).expect("just found");
        ClientBell::new(Arc::clone(&connection.socket)).announce_successor(by.pid);
        tracing::warn!(
            task,
            pid = by.pid,
            replaced_pid = holder.pid,
            "a process replaced the one attached as its task"
        );
        self.hang_up(number, &format!("process {} replaced it", by.pid));
        Ok(())
    }

    /// Called when all of the welcome has been sent.
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

    /// Sends the daemon's figures to a caller; everyone who may connect may see them.
    fn show(&mut self, number: u64) -> Result<(), Error> {
        let failed = |error: String| Error::full("memory of this host", error);
        let figures = serde_json::to_vec(&self.instruments.figures()).map_err(|error| failed(error.to_string()))?;
        let connection = self.connections.get_mut(number).expect("it asks");
        if let Err(error) = attach::show_figures(&connection.socket, &figures) {
            // It does not matter if the caller no longer reads.
            tracing::debug!(%error, pid = connection.peer.pid, "figures could not be sent");
        }
        self.hang_up(number, "it has seen the figures");
        Ok(())
    }

    /// Measures the links to the peers, on a thread that also answers the caller.
    fn measure(&mut self, number: u64) -> Result<(), Error> {
        if self.drain.is_some() {
            return Err(Error::unavailable("this daemon", "it is draining; measure again after its restart"));
        }
        let turn = measuring::Turn::take()
            .ok_or_else(|| Error::full("measurements of a daemon", "one is in progress; try again in ten seconds"))?;
        let connection = self.connections.remove(number).expect("it asks");
        self.readiness.remove(&*connection.socket);
        tracing::info!(pid = connection.peer.pid, uid = connection.peer.uid, "measuring the links to all peers");
        measuring::answer(self.engine.clone(), self.files.map.snapshot(), connection, turn);
        Ok(())
    }

    /// Sends a client the arena of another client that it was told of, so that it can read what is published there.
    fn show_arena(&mut self, number: u64, arena: u64) -> Result<(), Error> {
        let connection = self.connections.get_mut(number).expect("it asks");
        let (memory, bytes) = self.engine.shared_arena(arena, connection.peer.uid)?;
        if let Err(error) = attach::show_arena(&connection.socket, &memory, bytes) {
            // A client without the arena pulls a copy instead.
            tracing::warn!(%error, pid = connection.peer.pid, "an arena could not be shown to another client");
        }
        self.hang_up(number, "it was shown an arena");
        Ok(())
    }

    fn give_lane(&mut self, number: u64, task: &str, peer: &str) -> Result<(), Error> {
        let connection = self.connections.get_mut(number).expect("it asks");
        let end = self.engine.lane(task, peer, connection.peer, self.portion.direct_lanes)?;
        if let Err(error) = end.give(&connection.socket) {
            // A client without the lane sends through the daemon, and asks for another lane.
            tracing::warn!(%error, task, peer, "a lane could not be given to a client");
        }
        self.hang_up(number, "it was given a lane");
        Ok(())
    }

    /// Makes a connection for a client's stream, on its own thread, which sends the answer.
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
    /// PermissionDenied if streams go through the daemon, or if the asking process is not the one attached as `task`.
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
        // A process that does not read this may still see the end of the connection.
        let _ = attach::draining(&connection.socket);
        (connection.stage, connection.since) = (Stage::AwaitingEnd, now);
        self.readiness.change(&*connection.socket, For::HangUp, Ready::Connection(number));
        self.begin_drain(now, &format!("process {} of user id {}", peer.pid, peer.uid));
        Ok(())
    }

    /// Tells a client that it belongs to another job, and ends its connection.
    fn refuse_for_job(&mut self, number: u64, wish: &Attach) {
        let (ours, theirs) = (describe(self.portion.job.as_ref()), describe(wish.job.name()));
        let reason = format!("this daemon serves {ours}, and the client that wants to be {} {theirs}", wish.task);
        let Some(socket) = self.remove_refused(number, &reason) else { return };
        // It does not matter if the process no longer listens.
        let _ = attach::refuse_for_job(&socket, self.portion.job.as_ref());
    }

    /// Tells a connection why its request is refused, and ends it.
    pub(super) fn refuse(&mut self, number: u64, error: &Error) {
        let Some(socket) = self.remove_refused(number, &error.to_string()) else { return };
        // It does not matter if the process no longer listens.
        let _ = attach::refuse(&socket, error);
    }

    /// Removes a connection whose request is refused, logs the refusal, and returns the socket for the answer.
    fn remove_refused(&mut self, number: u64, error: &str) -> Option<Arc<OwnedFd>> {
        let connection = self.connections.remove(number)?;
        if self.is_heir(number) {
            self.serve_again("it asked for something else");
        }
        if let Some((error, unlogged)) = self.refusals.add(Instant::now(), error) {
            if unlogged > 0 {
                tracing::warn!(unlogged, "more clients were refused within a minute than the log says");
            }
            tracing::warn!(pid = connection.peer.pid, uid = connection.peer.uid, %error, "a client was refused");
        }
        Some(connection.socket)
    }

    fn drop_overdue(&mut self, now: Instant) {
        for number in self.connections.overdue(now) {
            let Some(connection) = self.connections.get_mut(number) else { continue };
            let (peer, reason) = (connection.peer, "the process took too long to send its request or read the answer");
            if let Some((reason, unlogged)) = self.refusals.add(now, reason) {
                tracing::warn!(pid = peer.pid, uid = peer.uid, reason, unlogged, "dropped connection");
            }
            self.hang_up(number, reason);
        }
    }

    /// Ends a connection, and the client behind it if there is one.
    pub(super) fn hang_up(&mut self, number: u64, reason: &str) {
        let Some(connection) = self.connections.remove(number) else { return };
        if self.is_heir(number) {
            self.serve_again(reason);
        }
        // The shards may keep the socket for a while, to ring its bell.
        self.readiness.remove(&*connection.socket);
        let peer = connection.peer;
        let (Stage::Welcoming(client, _) | Stage::Attached(client)) = connection.stage else {
            return tracing::debug!(pid = peer.pid, uid = peer.uid, reason, "a connection ended");
        };
        if let Some(process) = &client.process {
            self.readiness.remove(process);
        }
        self.engine.dismiss(client.id, &format!("process {} was attached as this task: {reason}", peer.pid));
        // A client that has said goodbye sees the socket close when the last shard has released its memory.
        tracing::info!(task = client.task, pid = peer.pid, uid = peer.uid, reason, "client detached");
        service_manager::status(&self.status());
    }
}

/// A descriptor of a process; `None` if the kernel has none, or reported no process.
fn process(pid: i32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
}
