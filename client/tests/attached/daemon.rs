//! A daemon in the process of the test: a real engine, and a thread that lets clients in at a socket as the program does.

use std::{
    net::{Ipv4Addr, TcpListener},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{Sender, channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sealane::Error;
use sealane_fusion::{ClientEnds, ClientId, EndpointMap, Engine, EngineSettings, metrics::ClientCounters};
use sealane_runtime::Pin;
use sealane_transport::shm::{
    ClientBell, DaemonEnd, Doorbell, SharedMemory,
    attach::{Attach, Request, ShardDescriptors, VERSION, Welcome, Welcoming, accept, listen, read_request, refuse},
    segment_bytes,
};
use tempfile::TempDir;

/// A wait that is over by then has failed; far beyond what a loaded machine takes.
pub const LONG: Duration = Duration::from_secs(60);

/// A client's receive area with each shard.
pub const AREA_BYTES: u64 = 4 << 20;

/// What a daemon is started with.
pub struct Settings {
    pub shards: usize,
    pub tasks: Vec<String>,
}

pub struct Daemon {
    pub engine: Engine,
    socket: PathBuf,
    /// Closed to end the thread.
    open: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    /// Starts one that listens in `directory`.
    pub fn start(directory: &TempDir, Settings { shards, tasks }: Settings) -> Daemon {
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
        let engine = Engine::start(settings).unwrap();
        let socket = directory.path().join("sealane.sock");
        let listener = listen(&socket).unwrap();
        let (open, end) = UnixStream::pair().unwrap();
        let serving = engine.clone();
        let thread = std::thread::spawn(move || serve(&serving, &listener, &end));
        Daemon { engine, socket, open: Some(open), thread: Some(thread) }
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Keeps the shards from reading and answering anything, until what this returns is dropped.
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

    /// What all clients have of something, at all shards. A few milliseconds old.
    pub fn sum(&self, of: impl Fn(&ClientCounters) -> u64) -> u64 {
        self.engine.figures().iter().flat_map(|shard| &shard.clients).map(|client| of(&client.counters)).sum()
    }

    /// Calls that have not ended.
    pub fn under_way(&self) -> u64 {
        self.sum(|counters| counters.under_way)
    }

    /// Looks at it until `done` holds.
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

    /// Waits until so many calls of all clients are under way.
    pub fn until_under_way(&self, calls: u64) {
        self.until(&format!("{calls} calls are under way"), |daemon| daemon.under_way() == calls);
    }

    /// Waits until nobody is attached as a task.
    pub fn until_detached(&self, task: &str) {
        self.until("it is detached", |daemon| daemon.engine.attached(task).is_none());
    }

    /// Ends it as a crash would: clients learn it from their sockets, and nothing of how their calls ended.
    pub fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.open = None;
        if let Some(thread) = self.thread.take() {
            let served = thread.join();
            std::fs::remove_file(&self.socket).unwrap();
            self.engine.stop().unwrap();
            served.unwrap();
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.end();
    }
}

/// Lets clients in and notices when they go, until the other end of `end` is closed.
fn serve(engine: &Engine, listener: &OwnedFd, end: &UnixStream) {
    let mut clients: Vec<(Arc<OwnedFd>, Option<ClientId>)> = Vec::new();
    loop {
        let sockets = clients.iter().map(|(socket, _)| socket.as_fd());
        let all = [end.as_fd(), listener.as_fd()].into_iter().chain(sockets);
        let mut polled: Vec<_> = all.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        poll(&mut polled, PollTimeout::NONE).unwrap();
        if polled[0].any().unwrap() {
            break;
        }
        clients.extend(accept(listener).unwrap().map(|socket| (Arc::new(socket), None)));
        clients.retain_mut(|(socket, client)| match (read_request(socket), client.as_ref()) {
            (Ok(None), _) => true,
            (Ok(Some(Request::Attach(wish))), None) => match let_in(engine, &wish, socket) {
                Ok(id) => {
                    *client = Some(id);
                    true
                }
                Err(error) => {
                    refuse(socket, &error).unwrap();
                    false
                }
            },
            (Ok(Some(request)), _) => panic!("{request:?}"),
            (Err(_), None) => false,
            (Err(error), Some(id)) => {
                engine.dismiss(*id, &error.to_string());
                false
            }
        });
    }
    clients.into_iter().filter_map(|(_, client)| client).for_each(|id| engine.dismiss(id, "the daemon is gone"));
}

fn let_in(engine: &Engine, wish: &Attach, socket: &Arc<OwnedFd>) -> Result<ClientId, Error> {
    let (arena, arena_fd) = SharedMemory::create("arena", wish.arena_bytes, false).unwrap();
    let (shards, descriptors): (Vec<_>, Vec<_>) = (0..engine.shards())
        .map(|_| {
            let (end, segment) = DaemonEnd::create(AREA_BYTES, false).unwrap();
            let bell = Doorbell::create().unwrap();
            let doorbell = bell.duplicate().unwrap();
            ((end, bell), ShardDescriptors { segment, doorbell })
        })
        .unzip();
    let welcome = Welcome {
        version: VERSION,
        shards: engine.shards() as u32,
        arena_bytes: arena.len(),
        segment_bytes: segment_bytes(AREA_BYTES),
        area_bytes: AREA_BYTES,
        request_timeout_ms: LONG.as_millis() as u64,
        tensor_bytes_max: 64 << 20,
        daemon_pid: std::process::id(),
    };
    let (task, pid, bell) = (wish.task.clone(), std::process::id() as i32, ClientBell::new(socket.clone()));
    let id = engine.admit(ClientEnds { task, pid, arena, shards, bell })?;
    let mut welcoming = Welcoming::new(welcome, arena_fd, descriptors);
    // A client that is gone by now is noticed next.
    while let Ok(false) = welcoming.step(socket) {
        std::thread::yield_now();
    }
    Ok(id)
}
