//! Client processes of this host: which process is attached as which task, and the source that moves their calls and answers. Each shard
//! has its own end of every client; shards share nothing.
//!
//! Bounded by one client per task, and by the limits in `client.rs` for each.
//!
//! Clients share no exhaustible resource but the published tensors, of which each leaves some to the others: each has its own 16,384 calls per shard, memory for the small tensors that travel in the ring,
//! number of waiting recvs, 256 records and 1 MiB of copies per turn, and a turn in the queue of copies. A client
//! that breaks the protocol is disconnected; one that does not read its answers is not read from. A panic while a client is
//! admitted, served or told of a drain disconnects that client and is counted; a panic while it is removed stops the engine, because the
//! node's own state is then in doubt.
//!
//! A daemon that drains tells its clients through their rings and serves them until all have read it, for at most another 20 ms. Clients
//! that call or wait read it at once, and hold new calls for the next daemon. Calls that only a new call of this host could complete (a
//! recv of a local tensor that was not sent, a peer's request for one) end with Unavailable; the rest have `daemon.drain_timeout_ms`.
//! Clients repeat pulls and accepts with the next daemon; callers must repeat a send or recv that the drain ended. Clients publish their
//! tensors again with the next daemon, and say how many there are.
//! A publication is announced to every shard. Up to 512 B are copied; larger tensors stay in the arena, lent to each shard, and come back
//! when the last shard has replaced them, no link reads them, and no client views them. A client that asks to view what it pulls is told
//! where large tensors lie in the arenas of other clients of the same user; a share of the tensor is kept until the client gives it back or
//! has gone. When the publisher goes, views stay valid, because nothing writes to its arena any more.
//!
//! Two clients that exchange many small tensors get a [lane](lanes) for them: one of their own if they are of one user, else one each, between
//! which the [switch] moves what they send.

mod client;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod lanes;
mod memory;
mod portion;
mod report;
mod switch;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::{Arc, PoisonError, Weak, mpsc};
use std::time::Instant;

use sealane_runtime::{Interest, JoinHandle, Shard, Source, panic_message};
use sealane_transport::shm::attach::Credentials;
use sealane_transport::shm::{ClientBell, DaemonEnd, DirectLane, Doorbell, Record, SharedMemory};
use sealane_transport::{Arena, Error, Handle};

use super::shard::{ShardEngine, Vital};
use super::{Engine, stopped};
use crate::limits::{CLIENTS_LEAVING_MAX, PEEK_IDLE_TURNS};
use crate::metrics::SHOW_INTERVAL;
use crate::node::ClientOutcomes;
use client::{Client, Who};
pub use lanes::LaneEnd;
use lanes::Lanes;
use memory::Shown;
pub use portion::Portion;
use report::report;
use switch::Switch;

/// What the daemon shares with a client that attaches.
#[derive(Debug)]
pub struct ClientEnds {
    pub task: String,
    pub pid: i32,
    pub uid: u32,
    pub arena: SharedMemory,
    /// The arena as shown to other clients, if they may view what this client publishes and it may view what they publish.
    pub shared: Option<SharedArena>,
    /// Its segments and their doorbells, in the order of the shards.
    pub shards: Vec<(DaemonEnd, Doorbell)>,
    /// How to wake it, and how to hang up on it.
    pub bell: ClientBell,
}

/// An arena that may be shown to other clients.
#[derive(Debug)]
pub struct SharedArena {
    /// The user of its client: only clients of the same user are shown the arena.
    pub uid: u32,
    pub descriptor: OwnedFd,
}

/// The id of an admitted client; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClientId(u64);

/// Who is attached. Belongs to the engine; used from any thread.
#[derive(Debug, Default)]
pub(super) struct Attached {
    seats: HashMap<String, Seat>,
    admitted: u64,
    lanes: Lanes,
    /// The sockets of dismissed clients, held until no link uses their memory any more.
    leaving: Vec<Weak<OwnedFd>>,
}

impl Attached {
    /// Checks that the asking process is the one attached as `task`.
    ///
    /// # Errors
    /// NotFound if no process is attached, PermissionDenied if it is another one.
    pub(super) fn check(&self, task: &str, asker: Credentials) -> Result<(), Error> {
        let not_there = || Error::NotFound { task: task.into(), reason: "no process is attached as it".into() };
        let seat = self.seats.get(task).ok_or_else(not_there)?;
        if (seat.pid, seat.uid) != (asker.pid, asker.uid) {
            let reason = format!("process {} is not the one that is attached as {task}", asker.pid);
            return Err(Error::PermissionDenied { reason: reason.into() });
        }
        Ok(())
    }

    /// Wakes those of the clients that are still attached.
    fn ring_for(&self, told: &[ClientId]) {
        let sockets =
            self.seats.values().filter(|seat| told.contains(&seat.id)).filter_map(|seat| seat.socket.upgrade());
        sockets.for_each(|socket| ClientBell::new(socket).ring());
    }
}

#[derive(Debug)]
struct Seat {
    id: ClientId,
    pid: i32,
    uid: u32,
    arena_bytes: u64,
    /// The arena as shown to other clients: its number, its user and its memory.
    shared: Option<(Shown, Arc<OwnedFd>)>,
    socket: Weak<OwnedFd>,
}

impl Engine {
    /// The process that is attached as a task, if any is.
    pub fn attached(&self, task: &str) -> Option<i32> {
        let attached = self.0.attached.lock().unwrap_or_else(PoisonError::into_inner);
        attached.seats.get(task).map(|seat| seat.pid)
    }

    /// An arena that clients were told they may view, and its size in bytes; for a client of user `uid`.
    ///
    /// # Errors
    /// NotFound if its client has gone or no arena has that number; PermissionDenied for another user.
    pub fn shared_arena(&self, number: u64, uid: u32) -> Result<(Arc<OwnedFd>, u64), Error> {
        let attached = self.0.attached.lock().unwrap_or_else(PoisonError::into_inner);
        let find =
            |seat: &Seat| Some((seat.shared.clone()?, seat.arena_bytes)).filter(|((at, _), _)| at.number == number);
        match attached.seats.values().find_map(find) {
            Some(((shown, descriptor), bytes)) if shown.uid == uid => Ok((descriptor, bytes)),
            Some(_) => Err(Error::PermissionDenied { reason: "it is the arena of another user's process".into() }),
            None => {
                let reason = "no client that is attached has this arena".into();
                Err(Error::NotFound { task: "a publisher".into(), reason })
            }
        }
    }

    /// Admits a client.
    ///
    /// # Errors
    /// NotFound if the task is not served here, Unavailable if another process is attached as it or the engine has
    /// stopped, ResourceExhausted if links still use the memory of `CLIENTS_LEAVING_MAX` clients that have gone.
    ///
    /// # Panics
    /// If there are not as many segments as shards.
    pub fn admit(&self, client: ClientEnds) -> Result<ClientId, Error> {
        assert_eq!(client.shards.len(), self.shards(), "a segment for every shard");
        let ClientEnds { task, pid, uid, arena, shared, shards, bell } = client;
        let tasks = self.tasks();
        let Some(place) = tasks.iter().position(|name| name.as_str() == task) else {
            let names: Vec<_> = tasks.iter().map(|task| task.as_str()).collect();
            let reason = format!("this daemon serves {}", names.join(", "));
            return Err(Error::NotFound { task: task.into(), reason: reason.into() });
        };
        let mut attached = self.0.attached.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Seat { pid, .. }) = attached.seats.get(&task) {
            return Err(Error::unavailable(
                &task,
                format!("process {pid} is already attached as this task; only one process may be"),
            ));
        }
        attached.leaving.retain(|socket| socket.strong_count() > 0);
        if attached.leaving.len() >= CLIENTS_LEAVING_MAX {
            let reason =
                format!("links still use the memory of {CLIENTS_LEAVING_MAX} clients that have gone; attach later");
            return Err(Error::full("clients that leave", reason));
        }
        attached.admitted += 1;
        let socket = bell.witness();
        let id = ClientId(attached.admitted);
        let shared = shared.map(|SharedArena { uid, descriptor }| {
            // Random, so that it cannot be guessed: only a client that was told of a tensor there knows the number.
            let number = RandomState::new().hash_one((id, std::time::SystemTime::now()));
            (Shown { number, uid }, Arc::new(descriptor))
        });
        let shown = shared.as_ref().map(|(shown, _)| *shown);
        let admitted: Vec<JoinHandle<()>> = shards
            .into_iter()
            .enumerate()
            .map(|(index, (end, doorbell))| {
                let (name, arena, bell) = (task.clone(), arena.clone(), bell.clone());
                self.0.runtime.shard(index).run_always(async move |_| {
                    let engine = ShardEngine::current().expect("set up at start");
                    let who = Who { task: place as u16, name, pid, shown };
                    let client = Client::new(who, end, doorbell, bell, arena);
                    engine.client_changes.borrow_mut().push_back(Change::Admit(id, Box::new(client)));
                })
            })
            .collect();
        let admitted: Vec<_> = admitted.into_iter().map(JoinHandle::wait).collect();
        if let Some(error) = admitted.into_iter().find_map(Result::err) {
            // The shards that have admitted it dismiss it again.
            self.tell_dismissed(id, "it could not be let in");
            return Err(stopped(&error));
        }
        attached.seats.insert(task, Seat { id, pid, uid, arena_bytes: arena.len(), shared, socket });
        Ok(id)
    }

    /// Dismisses a client, or records that it has gone: its calls end, its tensors that nobody has asked for are freed, and those who wait
    /// for it are told `reason`. Does nothing if it was dismissed before.
    ///
    /// Not for code on a shard: it waits until the shards have heard of it.
    pub fn dismiss(&self, id: ClientId, reason: &str) {
        let mut attached = self.0.attached.lock().unwrap_or_else(PoisonError::into_inner);
        let left: Vec<_> = attached.seats.extract_if(|_, seat| seat.id == id).collect();
        if !left.is_empty() {
            self.tell_dismissed(id, reason);
            let told = attached.lanes.dismiss(id);
            attached.ring_for(&told);
        }
        attached.leaving.extend(left.into_iter().map(|(_, seat)| seat.socket));
    }

    fn tell_dismissed(&self, id: ClientId, reason: &str) {
        let (telling, told) = mpsc::channel::<()>();
        for index in 0..self.shards() {
            let (reason, telling) = (reason.to_owned(), telling.clone());
            // The client was admitted by a job on this shard too; a shard that has stopped has no clients.
            self.0.runtime.shard(index).submit_always(Box::new(move |_| {
                if let Some(engine) = ShardEngine::current() {
                    engine.client_changes.borrow_mut().push_back(Change::Dismiss(id, reason));
                }
                drop(telling);
            }));
        }
        drop(telling);
        // Blocks until each job has run or was dropped.
        let _ = told.recv();
    }

    /// Tells all clients that [`drain`](Self::drain) comes next. Once they have heard it, they keep new calls for the next engine; calls
    /// they still make here are carried out as usual.
    ///
    /// # Errors
    /// Unavailable if the engine has stopped.
    pub fn announce_drain(&self) -> Result<(), Error> {
        let announce = |engine: &ShardEngine| {
            engine.drain_announced.set(true);
            // Until the next poll counts them.
            engine.clients_unaware.set(usize::MAX);
            engine.client_changes.borrow_mut().push_back(Change::Drain);
        };
        self.on_all_shards(announce).map(|_| ())
    }

    /// True if every client has heard of the [announced](Self::announce_drain) drain and all its earlier calls are known here, so that
    /// nothing more comes.
    ///
    /// # Errors
    /// Unavailable if the engine has stopped.
    pub fn all_are_aware_of_drain(&self) -> Result<bool, Error> {
        let unaware = self.on_all_shards(|engine| engine.clients_unaware.get())?;
        Ok(unaware.into_iter().all(|clients| clients == 0))
    }

    /// Ends the connections of all clients; those told of a drain attach to the next engine.
    pub(super) fn hang_up_on_clients(&self) {
        let attached = self.0.attached.lock().unwrap_or_else(PoisonError::into_inner);
        for socket in attached.seats.values().filter_map(|seat| seat.socket.upgrade()) {
            ClientBell::new(socket).take_leave();
        }
    }

    /// From now on new calls of clients, and requests for tensors that are not there, end with Unavailable; what is in progress can finish.
    ///
    /// # Errors
    /// Unavailable if the engine has stopped.
    pub fn drain(&self) -> Result<(), Error> {
        self.on_all_shards(|engine| engine.with_node(|node, _| node.drain())).map(|_| ())
    }

    /// From now on nothing that peers send is read, so nothing new gets under way.
    ///
    /// # Errors
    /// Unavailable if the engine has stopped.
    pub fn stop_reading(&self) -> Result<(), Error> {
        self.on_all_shards(|engine| engine.with_node(|node, _| node.stop_reading())).map(|_| ())
    }

    /// Calls of clients that have not ended, tensors that peers have not released, and tensors taken from pushers that no client has yet.
    ///
    /// # Errors
    /// Unavailable if the engine has stopped.
    pub fn under_way(&self) -> Result<usize, Error> {
        let count = |engine: &ShardEngine| engine.borrow_node(|node| node.under_way()) + engine.client_calls.get();
        Ok(self.on_all_shards(count)?.into_iter().sum())
    }
}

/// What the source is told about its clients.
pub(super) enum Change {
    Admit(ClientId, Box<Client>),
    Dismiss(ClientId, String),
    /// All clients are told that the engine is about to stop.
    Drain,
    /// One client is told so.
    DrainOf(Handle),
    /// The shard's sides of the lanes of two clients.
    Connect([ClientId; 2], Box<[DirectLane; 2]>),
}

/// The source. It holds the engine as [`Vital`]: without it clients would wait forever.
///
/// A panic while a client is served must not end the source: the client's records may have caused it. The client is disconnected, and the
/// shard continues. State that the panic left inconsistent belongs to the client, which is dropped, or to the node, where it is reached
/// only through generational handles, and where a task's state is found by the task, not by the client's own records. If cleanup panics
/// too, or a panic belongs to no client, the engine stops.
pub(super) struct Clients {
    engine: Vital,
    clients: Arena<Client>,
    handles: HashMap<ClientId, Handle>,
    /// Dismissed clients that wait, each holding its socket open, until no link reads or writes their memory any more: until the peer is
    /// done, or its link ends.
    leaving: Vec<Client>,
    switch: Switch,
    /// Outcomes not told yet; empty between turns, unless telling one panicked.
    outcomes: ClientOutcomes,
    /// The client being served, which is blamed for a panic.
    served: Option<Handle>,
    record: Record,
    /// Turns since a client last had anything to say or to hear.
    idle_turns: u32,
    /// When the metrics for other threads are next updated.
    show_at: Instant,
}

impl Clients {
    pub(super) fn start(engine: &Rc<ShardEngine>) {
        let clients = Clients {
            engine: Vital::new(engine),
            clients: Arena::new(usize::MAX),
            handles: HashMap::new(),
            leaving: Vec::new(),
            switch: Switch::default(),
            outcomes: ClientOutcomes::default(),
            served: None,
            record: Record::new(),
            idle_turns: 0,
            show_at: engine.shard.now(),
        };
        engine.clients_source.set(Some(engine.shard.add_source(clients)));
    }

    /// Handles admissions, dismissals and drains, one at a time: the rest waits for the next poll if one panics.
    fn take_changes(&mut self) -> usize {
        let mut count = 0;
        loop {
            let change = self.engine.client_changes.borrow_mut().pop_front();
            match change {
                Some(Change::Admit(id, client)) => self.admit(id, *client),
                Some(Change::Dismiss(id, reason)) => self.dismiss(id, &reason),
                Some(Change::Drain) => {
                    let mut changes = self.engine.client_changes.borrow_mut();
                    self.clients.iter().for_each(|(handle, _)| changes.push_front(Change::DrainOf(handle)));
                }
                Some(Change::DrainOf(handle)) => {
                    self.served = Some(handle);
                    if let Some(client) = self.clients.get_mut(handle) {
                        client.announce_drain(&mut self.record);
                    }
                }
                Some(Change::Connect(pair, lanes)) => {
                    let clients = pair.map(|id| self.handles.get(&id).copied().unwrap_or(Handle::NONE));
                    self.switch.connect(clients, *lanes, self.engine.shard.now());
                }
                None => return count,
            }
            self.served = None;
            count += 1;
        }
    }

    fn admit(&mut self, id: ClientId, client: Client) {
        let Ok(handle) = self.clients.insert(client) else { unreachable!("2^32 clients do not fit in memory") };
        let client = self.clients.get_mut(handle).expect("just inserted");
        client.handle = handle;
        self.handles.insert(id, handle);
        self.served = Some(handle);
        #[cfg(test)]
        tests::fall_into_trap_of_process(client.pid);
        self.engine.borrow_node(|node| node.metrics().clients.add(&client.metrics));
        let source = self.engine.clients_source.get().expect("set at start");
        let doorbell = std::os::fd::AsFd::as_fd(client.doorbell());
        // Edge-triggered: the doorbell is never read, since the client could make reading it wait.
        if let Err(error) = self.engine.shard.watch(source, doorbell, handle.to_bits(), Interest::READ.edge()) {
            tracing::error!(%error, "a client's doorbell cannot be watched; the client is disconnected");
            client.hang_up("its doorbell cannot be watched");
        }
        self.engine.interfaces().for_each(|interface| interface.add_client(client.pid, &client.memories()));
        let (task, pool) = (client.task, client.pool());
        self.engine.with_node(|node, _| {
            node.set_pool(task, Some(pool));
            node.meet_client(task);
        });
    }

    fn dismiss(&mut self, id: ClientId, reason: &str) {
        if let Some(handle) = self.handles.remove(&id) {
            self.remove(handle, reason);
        }
    }

    fn remove(&mut self, handle: Handle, reason: &str) {
        let Some(mut client) = self.clients.remove(handle) else { return };
        if let Err(error) = self.engine.shard.unwatch(std::os::fd::AsFd::as_fd(client.doorbell())) {
            tracing::debug!(%error, "a doorbell was not watched");
        }
        self.engine.interfaces().for_each(|interface| interface.remove_client(&client.memories()));
        self.switch.client_gone(handle);
        self.engine.with_node(|node, _| {
            client.leave(node);
            node.set_pool(client.task, None);
            node.forget_client(client.task, reason);
        });
        if let Some(arena) = client.shown() {
            self.clients.iter_mut().for_each(|(_, other)| other.forget_arena(arena, &mut self.record));
        }
        // Even if it did not say goodbye here: another shard may have heard that.
        self.leaving.push(client);
    }

    /// Serves all clients once. If serving one panics, that client is put out, and the others are served in the next poll.
    fn serve(&mut self, now: Instant) -> usize {
        self.served = None;
        // Pushes of other tasks end where there is room again; their outcomes are written with the rest.
        let turn = AssertUnwindSafe(|| {
            self.take_changes() + self.switch(now) + self.read(now) + self.hand_out() + self.write(now)
        });
        catch_unwind(turn).unwrap_or_else(|panic| self.put_out(panic))
    }

    /// Serving a client has panicked: it loses its place.
    #[cold]
    fn put_out(&mut self, panic: Box<dyn Any + Send>) -> usize {
        let Some(handle) = self.served.take() else { resume_unwind(panic) };
        if let Some(client) = self.clients.get(handle) {
            // The owner of its socket sees it close, and dismisses the client from the other shards too.
            client.fail(&panic_message(&*panic));
        }
        self.engine.clients_failed.set(self.engine.clients_failed.get() + 1);
        self.handles.retain(|_, other| *other != handle);
        self.remove(handle, "its daemon has failed to serve it");
        1
    }

    /// True if a client has written something.
    fn has_come(&self) -> bool {
        self.clients.iter().any(|(_, client)| client.has_submissions()) || self.switch.has_work()
    }

    /// Moves small tensors between clients.
    fn switch(&mut self, now: Instant) -> usize {
        let Self { switch, clients, .. } = self;
        switch.turn(now, |client| {
            if let Some(client) = clients.get(client) {
                client.ring();
            }
        })
    }

    fn read(&mut self, now: Instant) -> usize {
        let mut work = 0;
        let Self { engine, clients, served, record, .. } = self;
        for (handle, client) in clients.iter_mut().filter(|(_, client)| client.has_submissions()) {
            *served = Some(handle);
            work += engine.borrow_node(|node| client.read(node, now, record));
        }
        if work > 0 {
            // Requests to peers leave in the next turn.
            self.engine.shard.notify();
        }
        work
    }

    /// Hands clients the tensors that were pushed into their queues.
    fn hand_out(&mut self) -> usize {
        let mut work = 0;
        let record = &mut self.record;
        for (handle, client) in self.clients.iter_mut().filter(|(_, client)| client.accepts()) {
            self.served = Some(handle);
            work += self.engine.borrow_node(|node| client.hand_out(node, record));
        }
        if work > 0 {
            // Credit for peers leaves in the next turn.
            self.engine.shard.notify();
        }
        work
    }

    /// Updates the clients' metrics for other threads.
    fn show(&self) {
        for (_, client) in self.clients.iter() {
            let pinned = |memory| self.engine.interfaces().map(|interface| interface.pinned_bytes(memory)).sum::<u64>();
            client.show(client.memories().into_iter().map(pinned).sum());
        }
    }

    /// Writes the outcomes of clients' calls, including those from this turn's links.
    fn write(&mut self, now: Instant) -> usize {
        self.served = None;
        if self.outcomes.is_empty() {
            self.engine.borrow_node(|node| node.swap_client_outcomes(&mut self.outcomes));
        }
        let Self { clients, outcomes, record, served, .. } = self;
        report(clients, outcomes, (now, record), served)
    }
}

impl Source for Clients {
    fn poll(&mut self, shard: &Shard, _budget: usize) -> usize {
        let now = shard.now();
        let mut work = 0;
        // Outcomes for clients that have gone come too, and are dropped.
        let has_outcomes = !self.outcomes.is_empty() || self.engine.borrow_node(|node| node.has_client_outcomes());
        if has_outcomes || !self.clients.is_empty() || !self.engine.client_changes.borrow().is_empty() {
            work += self.serve(now);
        }
        if !self.leaving.is_empty() {
            // Dropping a client closes its socket, unless another shard still holds it; the close tells the client.
            self.leaving.retain(|client| !client.has_let_go());
        }
        self.idle_turns = if work > 0 { 0 } else { self.idle_turns.saturating_add(1) };
        // Also after the last client has gone, since its calls no longer count.
        if self.show_at <= now {
            self.show_at = now + SHOW_INTERVAL;
            self.show();
        }
        if self.engine.drain_announced.get() && self.engine.client_changes.borrow().is_empty() {
            let unaware = self.clients.iter_mut().filter_map(|(_, client)| (!client.is_aware()).then_some(()));
            self.engine.clients_unaware.set(unaware.count());
        }
        if work > 0 || self.engine.drain_announced.get() {
            let has_left = |client: &Client| client.under_way() + client.untold();
            self.engine.client_calls.set(self.clients.iter().map(|(_, client)| has_left(client)).sum());
        }
        work
    }

    fn has_work(&self) -> bool {
        !self.engine.client_changes.borrow().is_empty()
            || self.engine.borrow_node(|node| node.has_client_outcomes())
            || self.has_come()
    }

    fn peek(&self) -> Option<bool> {
        let is_of_use = self.idle_turns < PEEK_IDLE_TURNS && !self.clients.is_empty();
        is_of_use.then(|| self.has_come())
    }

    fn try_sleep(&mut self) -> bool {
        self.show();
        let may_sleep = self.clients.iter().all(|(_, client)| client.try_sleep()) && self.switch.try_sleep();
        may_sleep && !self.has_work()
    }

    fn wake(&mut self) {
        self.clients.iter().for_each(|(_, client)| client.wake());
        self.switch.wake();
    }

    fn next_timeout(&self) -> Option<Instant> {
        let looks = self.clients.iter().filter_map(|(_, client)| client.next_look());
        looks.chain(self.switch.next_look(self.engine.shard.now())).min()
    }

    fn name(&self) -> &'static str {
        "clients"
    }
}
