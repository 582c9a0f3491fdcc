//! An engine with many peers, in a process of its own; the peers are in this one. Over TCP a peer is a plain socket that
//! greets, answers pings and stays; over shm an attached client that does nothing.
//!
//! `idle` measures what the engine's process costs meanwhile, which does nothing else and has the settings that an engine has by
//! default, apart from polling; `connect` (see `crowd`) how fast the peers are greeted.

use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use sealane::{Attach, Task};
use sealane_fusion::Engine;
use sealane_transport::lane::lane;
use sealane_transport::shm::attach;
use sealane_transport::wire::{Frame, FrameWriter, Greeting, Hello, parse};

use super::attached::{AREA_BYTES, admit_next};
use super::engine::{self, NAME, PATIENCE, PS, listener};
use super::fanin;
use crate::error::BenchError;
use crate::limits::{CONNECT_LIMIT, WARM_UP_MAX, WARM_UP_SHARE};
use crate::peer::{Peer, PeerJob, PeerProgram, announce, until_ended};
use crate::plan::{Bench, Link, Plan};
use crate::process::{self, Growth, Process};
use crate::sample::{Metric, Sample};
use crate::system::{Rounds, System};
use crate::systems::crowd::{Crowd, Manners};
use crate::systems::sockets::Meeting;

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
    process::allow_open_files("--peers", plan.peers, open_files_each(plan.link))?;
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
            let client = Attach::new(&task(peer)).socket(meeting.socket());
            client.arena_bytes(ARENA_BYTES).timeout(CONNECT_LIMIT).attach()
        };
        let clients = (0..plan.peers).map(attach).collect::<Result<_, _>>().map_err(BenchError::sealane("attach"))?;
        return Ok((Peers::Attached(clients), None));
    }
    let (crowd, _) = Crowd::call(NAME, Workers::Answering, 0, plan.peers, port, plan.congestion.as_deref())?;
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

/// Peer number 0 has this port in its transport address, at which nobody listens: peers call, and are not called. All
/// ports have as many digits, so that all greetings have as many bytes.
const FIRST_PORT: usize = 20_000;

/// The task of a peer.
pub(in crate::systems::sealane) fn task(peer: usize) -> String {
    format!("worker{peer:04}:1")
}

fn address(peer: usize) -> String {
    format!("127.0.1.1:{}", FIRST_PORT + peer)
}

/// Where the engine's tasks and every peer are: each at a transport address of its own.
pub(in crate::systems::sealane) fn map<'t>(tasks: impl Iterator<Item = (&'t str, u16)>, peers: usize) -> String {
    let served = tasks.map(|(task, port)| format!("{task}=127.0.0.1:{port}\n"));
    served.chain((0..peers).map(|peer| format!("{}={}\n", task(peer), address(peer)))).collect()
}

fn hello(peer: usize, visit: u64) -> Hello {
    let task = task(peer);
    Hello {
        features: 0,
        // Another one each time, and far from the last: a process that was started anew.
        incarnation: (visit + 1) << 32,
        remembers: 0,
        tensor_bytes_max: 1 << 30,
        epoch: 0,
        shards: 1,
        shard: 0,
        lane: lane(&task, PS),
        address: address(peer),
        tasks: vec![task],
    }
}

/// Bytes of a peer's hello and of the engine's welcome.
pub(in crate::systems) fn greeting_bytes() -> (usize, usize) {
    let hello = hello(0, 0);
    let address = format!("127.0.0.1:{FIRST_PORT}");
    let welcome = Hello { address, tasks: vec![PS.to_owned()], ..hello.clone() };
    (Greeting::Hello(hello).to_bytes().len(), Greeting::Welcome(welcome).to_bytes().len())
}

/// Peers that greet, and stay.
#[derive(Clone, Copy, Debug)]
pub(in crate::systems) enum Workers {
    /// They answer pings.
    Answering,
    /// Something else than the crowd takes care of them once they are welcomed.
    Silent,
}

impl Manners for Workers {
    fn greeting(self, caller: usize, visit: u64) -> Vec<u8> {
        Greeting::Hello(hello(caller, visit)).to_bytes()
    }

    fn welcome(self, heard: &[u8]) -> Result<Option<usize>, String> {
        match Greeting::parse(heard).map_err(|error| error.to_string())? {
            None => Ok(None),
            Some((Greeting::Welcome(_), length)) => Ok(Some(length)),
            Some((Greeting::Reject(no), _)) => Err(no.reason),
            Some((other, _)) => Err(format!("it answered a hello with a greeting of kind {}", other.kind())),
        }
    }

    fn answer(self, heard: &[u8], answers: &mut Vec<u8>) -> Result<usize, String> {
        let mut answered = 0;
        if matches!(self, Self::Silent) {
            return Ok(answered);
        }
        while let Some((frame, length)) = parse(&heard[answered..]).map_err(|error| error.to_string())? {
            answered += length;
            match frame {
                Frame::Ping { nonce } => FrameWriter(answers).pong(nonce),
                Frame::GoAway(away) => return Err(away.reason.to_owned()),
                Frame::Resumed => {}
                other => return Err(format!("it sent {other:?} to a peer that asks for nothing")),
            }
        }
        Ok(answered)
    }
}

/// Serves peers until the process ends.
pub(in crate::systems) fn serve(job: &PeerJob) -> Result<(), BenchError> {
    let plan = &job.plan;
    process::allow_open_files("--peers", plan.peers, open_files_each(plan.link))?;
    let (listener, port) = listener(plan)?;
    let _engine_and_clients = if plan.link == Link::Shm {
        let tasks: Vec<String> = (0..plan.peers).map(task).collect();
        let map: String = tasks.iter().map(|task| format!("{task}=127.0.0.1:{port}\n")).collect();
        let engine = start(plan, &map, &tasks, listener)?;
        let door = attach::listen(job.meeting_place()?).map_err(BenchError::sealane("listen for clients"))?;
        announce(0)?;
        let clients = tasks.iter().map(|_| admit_next(&engine, &door, AREA_BYTES)).collect::<Result<Vec<_>, _>>()?;
        (engine, clients)
    } else {
        let map = map([(PS, port)].into_iter(), plan.peers);
        let engine = start(plan, &map, &[PS.to_owned()], listener)?;
        if plan.bench == Bench::FanIn {
            fanin::start_ps(&engine, plan)?;
        }
        announce(port)?;
        (engine, Vec::new())
    };
    until_ended()
}

/// Open files of a peer, on either side: its socket; of a client also its doorbell, and what it sleeps on.
fn open_files_each(link: Link) -> usize {
    if link == Link::Shm { 3 } else { 1 }
}

/// An engine that serves these tasks.
fn start(plan: &Plan, map: &str, tasks: &[String], listener: TcpListener) -> Result<Engine, BenchError> {
    let mut settings = engine::settings(plan, map, tasks, vec![listener], None)?;
    if plan.bench == Bench::FanIn {
        engine::let_rest(&mut settings);
        settings.request_timeout = PATIENCE;
    }
    engine::start(settings)
}

#[cfg(test)]
mod tests {
    use sealane_transport::wire::{Reject, RejectCode};

    use super::*;
    use crate::limits::PEERS_MAX;

    #[test]
    fn all_greetings_have_as_many_bytes() {
        let (hello_bytes, _) = greeting_bytes();
        for (peer, visit) in [(0, 0), (PEERS_MAX - 1, 7)] {
            assert_eq!(Workers::Answering.greeting(peer, visit).len(), hello_bytes);
        }
    }

    #[test]
    fn a_welcome_is_told_from_a_no() {
        let welcome = Greeting::Welcome(hello(0, 0)).to_bytes();
        assert_eq!(Workers::Answering.welcome(&welcome), Ok(Some(welcome.len())));
        assert_eq!(Workers::Answering.welcome(&welcome[1..]).map_err(|_| ()), Err(()));
        assert_eq!(Workers::Answering.welcome(&welcome[..20]), Ok(None));
        let no = Greeting::Reject(Reject { code: RejectCode::Full, reason: "no room".to_owned() }).to_bytes();
        assert_eq!(Workers::Answering.welcome(&no), Err("no room".to_owned()));
        assert!(Workers::Answering.welcome(&Workers::Answering.greeting(0, 0)).is_err());
    }

    #[test]
    fn pings_are_answered_and_anything_else_is_an_end() {
        let (mut heard, mut pongs, mut answers) = (Vec::new(), Vec::new(), Vec::new());
        FrameWriter(&mut heard).resumed();
        FrameWriter(&mut heard).ping(7);
        let whole = heard.len();
        FrameWriter(&mut heard).ping(8);
        heard.pop();
        FrameWriter(&mut pongs).pong(7);
        assert_eq!((Workers::Answering.answer(&heard, &mut answers), answers), (Ok(whole), pongs));
        for end in [|w: &mut FrameWriter<'_>| w.go_away("the engine stops"), |w: &mut FrameWriter<'_>| w.released(1)] {
            let mut heard = Vec::new();
            end(&mut FrameWriter(&mut heard));
            assert!(Workers::Answering.answer(&heard, &mut Vec::new()).is_err());
        }
        assert!(Workers::Answering.answer(&[77; 32], &mut Vec::new()).is_err());
    }
}
