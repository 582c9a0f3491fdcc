//! An engine with many peers, in its own process; the peers are in this one. Over TCP a peer is a session over a socket, which
//! answers pings; over shm it is an attached client that does nothing.
//!
//! `idle` measures the cost of the engine's process, which does nothing else and has default settings except for polling; `connect`
//! (see `crowd`) how fast the peers are greeted.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use sealane::{Attach, Task};
use sealane_transport::lane::lane;
use sealane_transport::wire::{Greeting, Hello};

use super::engine::{NAME, ps_task};
use super::training::{OPEN_FILES, Sessions, connect};
use crate::error::BenchError;
use crate::figures::{Metric, Sample};
use crate::limits::{CONNECT_LIMIT, WARM_UP_MAX, WARM_UP_SHARE};
use crate::peer::{Growth, Meter, Peer, PeerJob, PeerProgram};
use crate::plan::{Link, Plan};
use crate::process;
use crate::system::{Client, System};
use crate::systems::crowd::Manners;
use crate::systems::sockets::Meeting;

/// Bytes of an idle client's arena, which is never used: the minimum, since the engine populates it.
const ARENA_BYTES: u64 = 4 << 10;

enum Peers {
    Connected(Box<Sessions>),
    /// Held, since dropping a task detaches it.
    Attached {
        _clients: Vec<Task>,
    },
}

/// An engine whose peers request nothing.
struct Idle {
    /// Dropped before the engine's process, since they say goodbye to it.
    peers: Peers,
    engine: Meter,
    growth: Growth,
    /// Never stopped: the engine would find its peers silent when it continues. Nothing else is measured in turn with it, see
    /// [`Plan::check`].
    peer: Peer,
}

/// An engine in a process of its own, and its peers.
pub(in crate::systems) fn idle(job: &PeerJob, program: &PeerProgram) -> Result<System, BenchError> {
    let plan = &job.plan;
    process::allow_open_files("--peers", plan.peers, if plan.link == Link::Shm { OPEN_FILES } else { 1 })?;
    let meeting = Meeting::arrange()?;
    let job = &PeerJob { meeting_place: Some(meeting.socket()), ..job.clone() };
    let mut peer = Peer::start(program, job)?;
    let (engine, growth) = (peer.meter()?, Growth::of(&peer)?);
    let (peers, congestion) = if plan.link == Link::Shm {
        let attach = |peer| {
            let client = Attach::new(&task(peer)).socket(meeting.socket());
            client.arena_bytes(ARENA_BYTES).timeout(CONNECT_LIMIT).attach()
        };
        let clients = (0..plan.peers).map(attach).collect::<Result<_, _>>().map_err(BenchError::sealane("attach"));
        (Peers::Attached { _clients: clients.map_err(|failure| peer.blame(failure))? }, None)
    } else {
        let (sessions, congestion) = connect(job, &peer).map_err(|failure| peer.blame(failure))?;
        (Peers::Connected(Box::new(sessions)), Some(congestion))
    };
    let variant = format!("{}, {} peers", if plan.polling { "polling" } else { "parking" }, plan.peers);
    Ok(System::new(NAME, variant, plan, Idle { peers, engine, growth, peer }).with_congestion(congestion))
}

impl Idle {
    /// Waits while the peers only answer pings.
    fn pass(&mut self, length: Duration) -> Result<(), BenchError> {
        match &mut self.peers {
            Peers::Connected(sessions) => sessions.attend(length).map_err(|failure| self.peer.blame(failure)),
            Peers::Attached { .. } => {
                thread::sleep(length);
                Ok(())
            }
        }
    }
}

impl Client for Idle {
    fn round(&mut self, plan: &Plan, length: Duration) -> Result<Sample, BenchError> {
        self.pass(length.mul_f64(WARM_UP_SHARE).min(WARM_UP_MAX))?;
        let (began, spent_before) = (Instant::now(), self.engine.cpu_time()?);
        self.pass(length)?;
        let (took, spent) = (began.elapsed(), self.engine.cpu_time()?.saturating_sub(spent_before));
        let cpu_percent = 100.0 * spent.as_secs_f64() / took.as_secs_f64();
        let bytes_per_peer = self.growth.bytes_each(plan.peers)?;
        let figures = vec![(Metric::CpuPercent, cpu_percent), (Metric::ResidentBytesPerPeer, bytes_per_peer)];
        Ok(figures.into())
    }
}

/// The port in the transport address of peer number 0, at which nobody listens: peers call, and are not called. All ports have the
/// same number of digits, so that all greetings have the same length.
const FIRST_PORT: usize = 20_000;

pub(in crate::systems::sealane) fn task(peer: usize) -> String {
    format!("worker{peer:04}:1")
}

fn address(peer: usize) -> String {
    format!("127.0.1.1:{}", FIRST_PORT + peer)
}

/// The addresses of the engine's tasks and of every peer: each at its own transport address.
pub(in crate::systems::sealane) fn map<'t>(tasks: impl Iterator<Item = (&'t str, SocketAddr)>, peers: usize) -> String {
    let served = tasks.map(|(task, address)| format!("{task}={address}\n"));
    served.chain((0..peers).map(|peer| format!("{}={}\n", task(peer), address(peer)))).collect()
}

fn hello(peer: usize, visit: u64) -> Hello {
    let task = task(peer);
    Hello {
        features: 0,
        // A different one each time, and far from the last, as for a new process.
        incarnation: (visit + 1) << 32,
        remembers: 0,
        tensor_bytes_max: 1 << 30,
        epoch: 0,
        shards: 1,
        shard: 0,
        lane: lane(&task, &ps_task(0)),
        address: address(peer),
        job: None,
        tasks: vec![task],
    }
}

/// Bytes of a peer's hello and of the engine's welcome.
pub(in crate::systems) fn greeting_bytes() -> (usize, usize) {
    let hello = hello(0, 0);
    let address = format!("127.0.0.1:{FIRST_PORT}");
    let welcome = Hello { address, tasks: vec![ps_task(0)], ..hello.clone() };
    (Greeting::Hello(hello).to_bytes().len(), Greeting::Welcome(welcome).to_bytes().len())
}

/// Peers that greet as engines do.
pub(in crate::systems) const GREETERS: Manners = Manners {
    greeting: |caller, visit| Greeting::Hello(hello(caller, visit)).to_bytes(),
    welcome: |heard| match Greeting::parse(heard).map_err(|error| error.to_string())? {
        None => Ok(None),
        Some((Greeting::Welcome(_), length)) => Ok(Some(length)),
        Some((Greeting::Reject(no), _)) => Err(no.reason),
        Some((other, _)) => Err(format!("it answered a hello with a greeting of kind {}", other.kind())),
    },
};
