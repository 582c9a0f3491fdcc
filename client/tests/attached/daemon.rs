//! A daemon to test clients with: one thread, sockets and segments as a real one has, and a rendezvous of a client with
//! itself. What it does wrong, it does on request.

mod queues;
mod shelf;

use std::{
    collections::HashMap,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, Sender, TryRecvError, channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sealane::{Error, Operation};
use sealane_runtime::{Block, Extents};
use sealane_transport::shm::{
    ClientBell, Completion, DaemonEnd, Doorbell, NO_TIMEOUT, PayloadAt, PushError, ReceivedAt, Record, SharedMemory,
    Span, Submission,
    attach::{Request, ShardDescriptors, VERSION, Welcome, Welcoming, accept, listen, read_request, refuse},
    limits::INLINE_BYTES_MAX,
    segment_bytes,
};
use tempfile::TempDir;

use self::{queues::Queues, shelf::Shelf};

/// A wait that is over by then has failed; far beyond what a loaded machine takes.
pub const LONG: Duration = Duration::from_secs(60);

/// What a daemon is started with.
#[derive(Debug, Clone)]
pub struct Settings {
    pub shards: u32,
    pub area_bytes: u64,
    pub request_timeout_ms: u64,
    /// Refuses every client with this.
    pub refusal: Option<Error>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { shards: 2, area_bytes: 4 << 20, request_timeout_ms: 60_000, refusal: None }
    }
}

/// What a daemon was asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Log {
    pub attached: usize,
    pub conducts: usize,
    pub sends: usize,
    pub recvs: usize,
    /// Recvs that were one of many.
    pub fused: usize,
    pub publications: usize,
    pub plans: usize,
    pub pulls: usize,
    pub plans_closed: usize,
    pub pushes: usize,
    pub queues: usize,
    pub queues_closed: usize,
    /// Tensors that there was credit for.
    pub granted: usize,
    pub cancels: usize,
    pub freed: usize,
    pub aborts: usize,
    pub cleanups: usize,
    pub detaches: usize,
    pub hang_ups: usize,
    /// Payloads that came in the arena, by where they were.
    pub in_place: Vec<Span>,
    /// Destinations, likewise.
    pub destinations: Vec<Option<Span>>,
}

/// What is said to a recv, by its call.
pub type Answer = Box<dyn FnMut(&mut DaemonEnd, u32) + Send>;

/// How a daemon behaves from now on.
pub enum Conduct {
    /// As it should.
    Serve,
    /// Reads and answers nothing.
    Mute,
    /// Does not read its rings.
    Deaf,
    /// Answers each recv with what this says.
    Answer(Answer),
    /// Says to everybody that it is about to stop, and goes on as it should.
    Drain,
    /// Goes: its sockets and memory with it.
    Die,
}

pub struct Daemon {
    socket: PathBuf,
    conduct: Sender<Conduct>,
    log: Arc<Mutex<Log>>,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    /// Starts one that listens in `directory`.
    pub fn start(directory: &TempDir, settings: Settings) -> Daemon {
        let socket = directory.path().join("sealane.sock");
        let listener = listen(&socket).unwrap();
        let (conduct, told) = channel();
        let log = Arc::new(Mutex::new(Log::default()));
        let host = Host { listener, settings, log: log.clone(), clients: Vec::new(), conduct: Conduct::Serve };
        let path = socket.clone();
        let thread = std::thread::Builder::new()
            .name("daemon".into())
            .spawn(move || {
                host.run(&told);
                std::fs::remove_file(path).unwrap();
            })
            .unwrap();
        Daemon { socket, conduct, log, thread: Some(thread) }
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Changes its conduct; it has when this returns.
    pub fn conduct(&self, conduct: Conduct) {
        let before = self.log().conducts;
        self.conduct.send(conduct).unwrap();
        self.until("it changes its conduct", |log| log.conducts > before);
    }

    pub fn log(&self) -> Log {
        self.log.lock().unwrap().clone()
    }

    /// Looks at the log until `done` holds.
    ///
    /// # Panics
    /// If that takes longer than [`LONG`].
    pub fn until(&self, what: &str, done: impl Fn(&Log) -> bool) {
        let deadline = Instant::now() + LONG;
        while !done(&self.log.lock().unwrap()) {
            assert!(Instant::now() < deadline, "{what}: still {:?}", self.log());
            std::thread::yield_now();
        }
    }

    /// Ends it, as a crash would: clients learn it from their sockets.
    pub fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = self.conduct.send(Conduct::Die);
            thread.join().unwrap();
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.end();
    }
}

struct Host {
    listener: OwnedFd,
    settings: Settings,
    log: Arc<Mutex<Log>>,
    clients: Vec<Client>,
    conduct: Conduct,
}

struct Client {
    socket: Arc<OwnedFd>,
    bell: ClientBell,
    arena: SharedMemory,
    shards: Vec<Shard>,
    gone: bool,
}

/// Peer, step and key.
type Place = (u16, i64, String);
/// Call, metadata and bytes.
type Deposit = (u32, Vec<u8>, Vec<u8>);

struct Shard {
    end: DaemonEnd,
    doorbell: Doorbell,
    area: Extents,
    blocks: HashMap<u64, Block>,
    next_token: u64,
    peers: Vec<String>,
    deposits: HashMap<Place, Deposit>,
    wanted: HashMap<Place, (u32, Option<Span>)>,
    deadlines: Vec<(Instant, u32, Operation, i64, String)>,
    shelf: Shelf,
    queues: Queues,
    record: Record,
    detached: bool,
}

impl Host {
    fn run(mut self, told: &Receiver<Conduct>) {
        let mut idle = 0;
        loop {
            match told.try_recv() {
                Ok(Conduct::Die) | Err(TryRecvError::Disconnected) => return,
                Ok(conduct) => {
                    self.conduct = conduct;
                    if matches!(self.conduct, Conduct::Drain) {
                        self.announce_drain();
                    }
                    self.log.lock().unwrap().conducts += 1;
                }
                Err(TryRecvError::Empty) => {}
            }
            if self.turn() {
                idle = 0;
                continue;
            }
            idle += 1;
            std::thread::yield_now();
            if idle > 100 {
                self.sleep();
            }
        }
    }

    fn announce_drain(&mut self) {
        for client in &mut self.clients {
            client.shards.iter_mut().for_each(|shard| shard.say(&Completion::Draining));
            client.bell.ring();
        }
    }

    fn turn(&mut self) -> bool {
        let mut worked = self.greet();
        for client in &mut self.clients {
            match read_request(&client.socket) {
                Ok(None) => {}
                Ok(Some(request)) => panic!("{request:?} of an attached client"),
                Err(_) => {
                    client.gone = true;
                    self.log.lock().unwrap().hang_ups += 1;
                }
            }
            if matches!(self.conduct, Conduct::Deaf) {
                continue;
            }
            for shard in &mut client.shards {
                worked |= shard.turn(&client.arena, &mut self.conduct, &self.log, &client.bell);
            }
        }
        let detached = |client: &&mut Client| !client.gone && client.shards.iter().all(|shard| shard.detached);
        for client in self.clients.iter_mut().filter(detached) {
            client.gone = true;
            self.log.lock().unwrap().hang_ups += 1;
        }
        self.clients.retain(|client| !client.gone);
        worked
    }

    fn greet(&mut self) -> bool {
        let Some(socket) = accept(&self.listener).unwrap() else { return false };
        let deadline = Instant::now() + LONG;
        let wish = loop {
            match read_request(&socket) {
                Ok(Some(Request::Attach(wish))) => break wish,
                Ok(None) => assert!(Instant::now() < deadline, "a client says nothing"),
                // A caller who only looks whether somebody listens.
                _ => return true,
            }
        };
        if let Some(error) = &self.settings.refusal {
            refuse(&socket, error).unwrap();
            return true;
        }
        let area_bytes = self.settings.area_bytes;
        let (arena, arena_fd) = SharedMemory::create("arena", wish.arena_bytes, false).unwrap();
        let welcome = Welcome {
            version: VERSION,
            shards: self.settings.shards,
            arena_bytes: arena.len(),
            segment_bytes: segment_bytes(area_bytes),
            area_bytes,
            request_timeout_ms: self.settings.request_timeout_ms,
            tensor_bytes_max: 64 << 20,
            daemon_pid: std::process::id(),
        };
        let (shards, descriptors) = (0..self.settings.shards).map(|_| Shard::new(area_bytes)).unzip();
        let mut welcoming = Welcoming::new(welcome, arena_fd, descriptors);
        while !welcoming.step(&socket).unwrap() {
            std::thread::yield_now();
        }
        let socket = Arc::new(socket);
        self.clients.push(Client { bell: ClientBell::new(socket.clone()), socket, arena, shards, gone: false });
        self.log.lock().unwrap().attached += 1;
        true
    }

    /// Sleeps until somebody rings, or conduct may have changed.
    fn sleep(&mut self) {
        let shards = || self.clients.iter().flat_map(|client| &client.shards);
        shards().for_each(|shard| shard.end.own_sleep().announce());
        if matches!(self.conduct, Conduct::Deaf) || shards().all(|shard| shard.end.submissions.is_empty()) {
            let sockets = self.clients.iter().map(|client| client.socket.as_fd());
            let bells = shards().map(|shard| shard.doorbell.as_fd());
            let all = [self.listener.as_fd()].into_iter().chain(sockets).chain(bells);
            let mut polled: Vec<_> = all.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
            poll(&mut polled, PollTimeout::from(5_u8)).unwrap();
        }
        for shard in shards() {
            shard.end.own_sleep().awake();
            // A real one watches for edges; this one empties the bell.
            let mut polled = [PollFd::new(shard.doorbell.as_fd(), PollFlags::POLLIN)];
            if poll(&mut polled, PollTimeout::ZERO).unwrap() > 0 {
                nix::unistd::read(shard.doorbell.as_fd(), &mut [0; 8]).unwrap();
            }
        }
    }
}

impl Shard {
    fn new(area_bytes: u64) -> (Shard, ShardDescriptors) {
        let (end, segment) = DaemonEnd::create(area_bytes, false).unwrap();
        let doorbell = Doorbell::create().unwrap();
        let descriptors = ShardDescriptors { segment, doorbell: doorbell.duplicate().unwrap() };
        let shard = Shard {
            area: Extents::new(area_bytes as usize),
            end,
            doorbell,
            blocks: HashMap::new(),
            next_token: 1 << 40,
            peers: Vec::new(),
            deposits: HashMap::new(),
            wanted: HashMap::new(),
            deadlines: Vec::new(),
            shelf: Shelf::default(),
            queues: Queues::default(),
            record: Record::new(),
            detached: false,
        };
        (shard, descriptors)
    }

    fn turn(&mut self, arena: &SharedMemory, conduct: &mut Conduct, log: &Mutex<Log>, bell: &ClientBell) -> bool {
        let mut worked = false;
        let mut sent = Vec::new();
        let mut record = std::mem::take(&mut self.record);
        while self.end.submissions.pop(&mut record).unwrap() {
            worked = true;
            let submission = Submission::decode(&record).unwrap();
            note(&submission, &mut log.lock().unwrap());
            match (submission, &mut *conduct) {
                (Submission::Peer { number, name }, _) => {
                    assert_eq!(usize::from(number), self.peers.len());
                    self.peers.push(name.to_owned());
                }
                (Submission::Recv { call, .. }, Conduct::Answer(answer)) => answer(&mut self.end, call),
                (_, Conduct::Mute) => {}
                (submission, _) => self.serve(submission, arena, &mut sent),
            }
        }
        self.end.submissions.publish();
        self.record = record;
        for calls in sent.chunks(200) {
            self.say(&Completion::Sent { calls });
        }
        worked |= self.expire();
        if worked && self.end.client_sleep().must_ring() {
            bell.ring();
        }
        worked
    }

    fn serve(&mut self, submission: Submission<'_>, arena: &SharedMemory, sent: &mut Vec<u32>) {
        let aborted = |step, reason: &str| Error::Aborted { step, reason: reason.into() };
        match submission {
            Submission::Send { call, peer, step, timeout_ms, key, meta, payload } => {
                let bytes = match payload {
                    PayloadAt::Inline(bytes) => bytes.to_vec(),
                    PayloadAt::Arena(span) => read(arena, span),
                };
                let place = (peer, step, key.to_owned());
                match self.wanted.remove(&place) {
                    Some((recv, destination)) => {
                        self.deliver(recv, destination, arena, meta, &bytes);
                        sent.push(call);
                    }
                    None => {
                        self.limit(timeout_ms, call, Operation::Send, step, key);
                        self.deposits.insert(place, (call, meta.to_vec(), bytes));
                    }
                }
            }
            Submission::Recv { call, peer, step, timeout_ms, key, destination, .. } => {
                let place = (peer, step, key.to_owned());
                match self.deposits.remove(&place) {
                    Some((send, meta, bytes)) => {
                        sent.push(send);
                        self.deliver(call, destination, arena, &meta, &bytes);
                    }
                    None => {
                        self.limit(timeout_ms, call, Operation::Recv, step, key);
                        self.wanted.insert(place, (call, destination));
                    }
                }
            }
            Submission::Cancel { call } if self.cancel_pull(call) => {}
            Submission::Cancel { call } => {
                let place = self.wanted.iter().find(|(_, (wanted, _))| *wanted == call).map(|(place, _)| place.clone());
                if let Some(place) = place {
                    self.wanted.remove(&place);
                    self.fail(call, aborted(place.1, "it was given up"));
                }
            }
            Submission::Abort { step, reason } => {
                let ended: Vec<_> =
                    self.wanted.extract_if(|place, _| place.1 == step).map(|(_, (call, _))| call).collect();
                ended.into_iter().for_each(|call| self.fail(call, aborted(step, reason)));
            }
            Submission::Cleanup { step } => {
                let ended: Vec<_> =
                    self.deposits.extract_if(|place, _| place.1 == step).map(|(_, (call, ..))| call).collect();
                ended.into_iter().for_each(|call| self.fail(call, aborted(step, "it was cleaned up")));
            }
            Submission::Free { tokens } => {
                for token in tokens.iter().filter(|token| **token != 0) {
                    self.area.free(self.blocks.remove(token).expect("a token is given back once"));
                }
            }
            Submission::Detach => self.detached = true,
            Submission::Peer { .. } => {}
            queues @ (Submission::Push { .. }
            | Submission::OpenQueue { .. }
            | Submission::Grant { .. }
            | Submission::CloseQueue { .. }) => self.serve_queues(queues, arena),
            other => self.serve_shelf(other, arena),
        }
    }

    fn limit(&mut self, timeout_ms: u32, call: u32, operation: Operation, step: i64, key: &str) {
        if timeout_ms != NO_TIMEOUT {
            let deadline = Instant::now() + Duration::from_millis(timeout_ms.into());
            self.deadlines.push((deadline, call, operation, step, key.to_owned()));
        }
    }

    fn expire(&mut self) -> bool {
        let now = Instant::now();
        let over: Vec<_> = self.deadlines.extract_if(.., |(deadline, ..)| *deadline <= now).collect();
        for (_, call, operation, step, key) in &over {
            self.pull(*call, true);
            if let Some(lent) = self.take_push(*call) {
                let error = Error::late(*operation, *step, key.as_str(), Duration::from_millis(1));
                self.say(&Completion::Failed { call: *call, memory_back: !lent, error });
                if lent {
                    self.say(&Completion::Returned { calls: &[*call] });
                }
                continue;
            }
            let before = self.wanted.len() + self.deposits.len();
            self.wanted.retain(|_, (wanted, _)| wanted != call);
            self.deposits.retain(|_, (deposited, ..)| deposited != call);
            if self.wanted.len() + self.deposits.len() < before {
                self.fail(*call, Error::late(*operation, *step, key.as_str(), Duration::from_millis(1)));
            }
        }
        !over.is_empty()
    }

    fn deliver(&mut self, call: u32, destination: Option<Span>, arena: &SharedMemory, meta: &[u8], bytes: &[u8]) {
        let len = bytes.len() as u64;
        let payload = match destination {
            Some(destination) if destination.len < len => {
                let reason = format!("the destination has {} bytes, the tensor needs {len}", destination.len);
                return self.fail(call, Error::InvalidArgument { reason: reason.into() });
            }
            Some(destination) => {
                write(arena, Span { len, ..destination }, bytes);
                ReceivedAt::Destination { len }
            }
            None if bytes.len() <= INLINE_BYTES_MAX => ReceivedAt::Inline(bytes),
            None => {
                let Some(block) = self.area.allocate(bytes.len()) else {
                    let error = Error::ResourceExhausted { limit: "area".into(), reason: "no room".into() };
                    return self.fail(call, error);
                };
                let (span, token) = (Span { offset: block.offset() as u64, len }, self.next_token);
                self.next_token += 1;
                self.blocks.insert(token, block);
                write(self.end.area(), span, bytes);
                ReceivedAt::Area { span, token }
            }
        };
        self.say(&Completion::Received { call, meta, payload });
    }

    fn fail(&mut self, call: u32, error: Error) {
        self.say(&Completion::Failed { call, memory_back: true, error });
    }

    fn say(&mut self, completion: &Completion<'_>) {
        say(&mut self.end, completion);
    }
}

/// Writes a completion, when there is room.
pub fn say(end: &mut DaemonEnd, completion: &Completion<'_>) {
    let mut record = Record::new();
    completion.encode(&mut record).unwrap();
    let deadline = Instant::now() + LONG;
    while let Err(full) = end.completions.push(&record) {
        assert_eq!(full, PushError::Full);
        assert!(Instant::now() < deadline, "a client does not read");
        std::thread::yield_now();
    }
}

fn note(submission: &Submission<'_>, log: &mut Log) {
    match submission {
        Submission::Send { payload, .. } => {
            log.sends += 1;
            if let PayloadAt::Arena(span) = payload {
                log.in_place.push(*span);
            }
        }
        Submission::Recv { destination, fused, .. } => {
            log.recvs += 1;
            log.fused += usize::from(*fused);
            log.destinations.push(*destination);
        }
        Submission::Cancel { .. } => log.cancels += 1,
        Submission::Abort { .. } => log.aborts += 1,
        Submission::Cleanup { .. } => log.cleanups += 1,
        Submission::Free { tokens } => log.freed += tokens.len(),
        Submission::Detach => log.detaches += 1,
        Submission::Publish { .. } => log.publications += 1,
        Submission::OpenPlan { .. } => log.plans += 1,
        Submission::Pull { .. } => log.pulls += 1,
        Submission::ClosePlan { .. } => log.plans_closed += 1,
        Submission::Push { .. } => log.pushes += 1,
        Submission::OpenQueue { .. } => log.queues += 1,
        Submission::CloseQueue { .. } => log.queues_closed += 1,
        Submission::Grant { tensors, .. } => log.granted += *tensors as usize,
        Submission::Peer { .. } | Submission::Withdraw { .. } | Submission::PlanKeys { .. } => {}
    }
}

fn read(memory: &SharedMemory, span: Span) -> Vec<u8> {
    let bytes = memory.bytes(span).unwrap();
    // SAFETY: the range lies in the mapping, and the client leaves it alone until the call has ended.
    unsafe { bytes.as_ref() }.to_vec()
}

fn write(memory: &SharedMemory, span: Span, bytes: &[u8]) {
    let mut target = memory.bytes(span).unwrap();
    // SAFETY: the range lies in the mapping, and the client leaves it alone until the call has ended.
    unsafe { target.as_mut() }.copy_from_slice(bytes);
}
