//! An engine with many peers, in a process of its own; the peers are in this one. Over TCP a peer is a plain socket that
//! greets, answers pings and stays; over shm an attached client that does nothing.
//!
//! `idle` measures what the engine's process costs meanwhile; `connect` (see `storm`) how fast the peers are greeted.

pub(super) mod greeting;
pub(super) mod host;

use std::thread;
use std::time::{Duration, Instant};

use ::sealane::{Attach, Task};

use super::names::NAME;
use crate::error::BenchError;
use crate::limits::{CONNECT_LIMIT, WARM_UP_MAX, WARM_UP_SHARE};
use crate::open_files;
use crate::peer::{Peer, PeerJob, PeerProgram};
use crate::plan::{Link, Plan};
use crate::process::{Growth, Process};
use crate::sample::{Metric, Sample};
use crate::system::{Rounds, System};
use crate::systems::crowd::Crowd;
use crate::systems::meeting::Meeting;

pub(in crate::systems) use greeting::{Workers, greeting_bytes};
pub(in crate::systems) use host::serve;

/// Bytes of an idle client's arena, none of which is ever touched.
const ARENA_BYTES: u64 = 1 << 20;

enum Peers {
    Greeted(Crowd<Workers>),
    /// Held, since dropping a task detaches it.
    Attached(Vec<Task>),
}

impl Peers {
    fn count(&self) -> usize {
        match self {
            Self::Greeted(crowd) => crowd.count(),
            Self::Attached(clients) => clients.len(),
        }
    }
}

/// An engine whose peers want nothing.
struct Idle {
    /// Before the engine's process, which they say goodbye to.
    peers: Peers,
    engine: Process,
    growth: Growth,
    /// It is never stopped: the engine would find its peers silent when it goes on. Nothing else is measured in turn with
    /// it, see [`Plan::check`].
    peer: Peer,
}

/// An engine in a process of its own, and its peers.
pub(in crate::systems) fn idle(job: &PeerJob, program: &PeerProgram) -> Result<System, BenchError> {
    let plan = job.plan.clone();
    open_files::allow_for("--peers", plan.peers, host::open_files_each(plan.link))?;
    let meeting = Meeting::arrange()?;
    let job = PeerJob { meeting_place: Some(meeting.socket()), ..job.clone() };
    let mut peer = Peer::start(program, &job)?;
    let (engine, growth) = (Process::new(peer.process_id())?, Growth::of(peer.process_id())?);
    let (peers, congestion) = connect(&plan, peer.ready().port, &meeting).map_err(|failure| peer.blame(failure))?;
    let waiting = if plan.polling { "polling" } else { "parking" };
    let variant = format!("{waiting}, {} peers", peers.count());
    Ok(System::new(NAME, variant, Idle { peers, engine, growth, peer }).with_congestion(congestion))
}

impl Idle {
    /// Lets time pass, in which the peers only answer pings.
    fn pass(&mut self, length: Duration) -> Result<(), BenchError> {
        match &mut self.peers {
            Peers::Greeted(crowd) => crowd.attend(length).map_err(|failure| self.peer.blame(failure)),
            Peers::Attached(_) => {
                thread::sleep(length);
                Ok(())
            }
        }
    }
}

fn connect(plan: &Plan, port: u16, meeting: &Meeting) -> Result<(Peers, Option<String>), BenchError> {
    if plan.link == Link::Shm {
        let attach = |peer| {
            let client = Attach::new(&greeting::task(peer)).socket(meeting.socket());
            client.arena_bytes(ARENA_BYTES).timeout(CONNECT_LIMIT).attach()
        };
        let clients = (0..plan.peers).map(attach).collect::<Result<_, _>>().map_err(BenchError::sealane("attach"))?;
        return Ok((Peers::Attached(clients), None));
    }
    let (crowd, _) = Crowd::call(NAME, Workers, 0, plan.peers, port, plan.congestion.as_deref())?;
    let congestion = crowd.congestion()?;
    Ok((Peers::Greeted(crowd), Some(congestion)))
}

impl Rounds for Idle {
    fn round(&mut self, length: Duration) -> Result<Sample, BenchError> {
        self.pass(length.mul_f64(WARM_UP_SHARE).min(WARM_UP_MAX))?;
        let (began, spent_before) = (Instant::now(), self.engine.cpu_time()?);
        self.pass(length)?;
        let (took, spent) = (began.elapsed(), self.engine.cpu_time()?.saturating_sub(spent_before));
        let cpu_percent = 100.0 * spent.as_secs_f64() / took.as_secs_f64();
        let bytes_per_peer = self.growth.bytes_each(self.peers.count())?;
        let figures = vec![(Metric::CpuPercent, cpu_percent), (Metric::ResidentBytesPerPeer, bytes_per_peer)];
        Ok(Sample { figures, ..Sample::default() })
    }
}
