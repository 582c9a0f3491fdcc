//! A daemon in the test's process: a real engine, and a thread that lets clients in at a socket as the program does.

use std::{
    net::{Ipv4Addr, TcpListener},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::PathBuf,
    sync::{
        Arc,
        mpsc::{Sender, channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sealane::Error;
use sealane_fusion::{ClientId, EndpointMap, Engine, EngineSettings, Portion, metrics::ClientCounters};
use sealane_runtime::Pin;
use sealane_transport::shm::attach::{
    Request, accept, credentials, give_connection, listen, read_request, refuse, show_arena,
};
use tempfile::TempDir;

/// A wait that takes longer has failed; far beyond what a loaded machine needs.
pub const LONG: Duration = Duration::from_secs(60);

/// What each client gets from one shard.
pub const PORTION: Portion = Portion {
    shards: 1,
    area_bytes: 4 << 20,
    request_timeout: LONG,
    tensor_bytes_max: 64 << 20,
    views: true,
    direct_lanes: true,
    job: None,
};

/// What a daemon is started with.
pub struct Settings {
    pub shards: usize,
    pub tasks: Vec<String>,
}

pub struct Daemon {
    pub engine: Engine,
    pub socket: PathBuf,
    /// Closed to end the thread.
    open: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    /// Starts a daemon that listens in `directory`.
    pub fn start(directory: &TempDir, settings: Settings) -> Daemon {
        Self::start_with(directory, settings, |_| {})
    }

    /// Like [`Daemon::start`], with changed engine settings.
    pub fn start_with(directory: &TempDir, settings: Settings, change: impl FnOnce(&mut EngineSettings)) -> Daemon {
        Self::start_as(directory, settings, PORTION, change)
    }

    /// Like [`Daemon::start_with`], with a different portion for its clients; its `shards` is ignored.
    pub fn start_as(
        directory: &TempDir,
        Settings { shards, tasks }: Settings,
        portion: Portion,
        change: impl FnOnce(&mut EngineSettings),
    ) -> Daemon {
        let portion = Portion { shards, ..portion };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let map: String = tasks.iter().map(|task| format!("{task}={address}\n")).collect();
        let tasks: Vec<&str> = tasks.iter().map(String::as_str).collect();
        let mut settings = EngineSettings::new(EndpointMap::parse(&map, "test").unwrap(), &tasks).unwrap();
        settings.listeners = vec![listener];
        (settings.runtime.shards, settings.runtime.pin) = (shards, Pin::Off);
        // Tests hold shards up.
        settings.runtime.stall_report = Duration::ZERO;
        (settings.slab_send_bytes, settings.slab_receive_bytes) = (1 << 20, 1 << 20);
        change(&mut settings);
        let engine = Engine::start(settings).unwrap();
        let socket = directory.path().join("sealane.sock");
        let listener = listen(&socket).unwrap();
        let (open, end) = UnixStream::pair().unwrap();
        let serving = engine.clone();
        let thread = std::thread::spawn(move || serve(&serving, &portion, &listener, &end));
        Daemon { engine, socket, open: Some(open), thread: Some(thread) }
    }

    /// Keeps the shards from reading or answering anything until the result is dropped.
    pub fn hold(&self) -> Vec<Sender<()>> {
        let hold = |shard| {
            let ((letting_go, held), (holding, holds)) = (channel::<()>(), channel());
            let _on_its_own = self.engine.on_shard(shard, async move |_| {
                holding.send(()).unwrap();
                let _ = held.recv();
            });
            holds.recv().unwrap();
            letting_go
        };
        (0..self.engine.shards()).map(hold).collect()
    }

    /// The sum of a counter over all clients and shards. A few milliseconds old.
    pub fn sum(&self, of: impl Fn(&ClientCounters) -> u64) -> u64 {
        self.engine.figures().iter().flat_map(|shard| &shard.clients).map(|client| of(&client.counters)).sum()
    }

    /// Calls that have not ended.
    pub fn under_way(&self) -> u64 {
        self.sum(|counters| counters.under_way)
    }

    /// Polls until `done` holds.
    ///
    /// # Panics
    /// If that takes longer than [`LONG`].
    pub fn until(&self, what: &str, done: impl Fn(&Daemon) -> bool) {
        let deadline = Instant::now() + LONG;
        while !done(self) {
            assert!(Instant::now() < deadline, "{what}: still {:?}", self.engine.figures());
            std::thread::yield_now();
        }
    }

    /// Waits until this many calls of all clients are in flight.
    pub fn until_under_way(&self, calls: u64) {
        self.until(&format!("{calls} calls are under way"), |daemon| daemon.under_way() == calls);
    }

    /// Waits until nobody is attached as a task.
    pub fn until_detached(&self, task: &str) {
        self.until("it is detached", |daemon| daemon.engine.attached(task).is_none());
    }

    /// Ends it like a crash: clients learn of it from their sockets, and not how their calls ended.
    pub fn kill(self) {}
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.open = None;
        let served = self.thread.take().map(JoinHandle::join);
        std::fs::remove_file(&self.socket).unwrap();
        self.engine.stop().unwrap();
        served.unwrap().unwrap();
    }
}

/// Lets clients in until the other end of `end` is closed.
fn serve(engine: &Engine, portion: &Portion, listener: &OwnedFd, end: &UnixStream) {
    std::thread::scope(|scope| {
        while is_readable(listener, end) {
            if let Some(socket) = accept(listener).unwrap() {
                scope.spawn(|| serve_one(engine, portion, &Arc::new(socket), end));
            }
        }
    });
}

/// Waits until there is something to read; false if `end` was closed.
fn is_readable(socket: &OwnedFd, end: &UnixStream) -> bool {
    let mut polled = [socket.as_fd(), end.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
    poll(&mut polled, PollTimeout::NONE).unwrap();
    !polled[1].any().unwrap()
}

/// Serves one client, and notices when it goes.
fn serve_one(engine: &Engine, portion: &Portion, socket: &Arc<OwnedFd>, end: &UnixStream) {
    let mut client = None;
    while is_readable(socket, end)
        && let Ok(request) = read_request(socket)
    {
        if let Some(Request::Arena { arena, .. }) = request {
            let shared = engine.shared_arena(arena, credentials(socket).unwrap().uid);
            return match shared {
                Ok((memory, bytes)) => show_arena(socket, &memory, bytes).unwrap(),
                Err(error) => refuse(socket, &error).unwrap(),
            };
        }
        if let Some(Request::Lane { task, peer, .. }) = &request {
            let given = engine.lane(task, peer, credentials(socket).unwrap(), portion.direct_lanes);
            // A client that has stopped waiting, or is gone, gets no answer.
            let _ = match given {
                Ok(end) => end.give(socket),
                Err(error) => refuse(socket, &error),
            };
            return;
        }
        let connection = match &request {
            Some(Request::Connect { task, peer, .. }) => Some(engine.connect_for_stream(task, peer)),
            Some(Request::Connection { task, peer, number, .. }) => {
                Some(engine.stream_connection(task, peer, *number).map(|connection| (*number, connection)))
            }
            _ => None,
        };
        if let Some(given) = connection {
            let _ = match given {
                Ok((number, connection)) => give_connection(socket, number, &connection),
                Err(error) => refuse(socket, &error),
            };
            return;
        }
        match request.map(|request| let_in(engine, portion, &request, socket)) {
            None => {}
            Some(Ok(id)) => client = Some(id),
            Some(Err(error)) => return refuse(socket, &error).unwrap(),
        }
    }
    client.into_iter().for_each(|id| engine.dismiss(id, "it is gone"));
}

fn let_in(engine: &Engine, portion: &Portion, request: &Request, socket: &Arc<OwnedFd>) -> Result<ClientId, Error> {
    let Request::Attach(wish) = request else { panic!("{request:?}") };
    let (ends, mut welcoming) = portion.make(wish, credentials(socket).unwrap(), socket, &engine.tasks()).unwrap();
    let id = engine.admit(ends)?;
    // If the client is already gone, that is noticed next.
    while let Ok(false) = welcoming.step(socket) {
        std::thread::yield_now();
    }
    Ok(id)
}
