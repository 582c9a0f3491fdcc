//! One task of the demo, in its own process. The first line of its standard input is its [`Job`]; each further line lets it go on
//! to the next thing to do. On standard output it reports the result of the last, one JSON value a line. It ends at once when its
//! standard input does. Makes and compares bytes on the main thread.

use std::collections::VecDeque;
use std::fmt::Display;
use std::io::{self, BufRead, Write};
use std::net::{SocketAddr, TcpListener};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use sealane::{Attach, Engine, EngineSettings, Polling, Sending, Task};
use sealane_fusion::{Buffer, EndpointMap, Error, Tensor, TensorMeta};
use sealane_runtime::Pin;
use sealane_transport::Payload;
use serde::{Deserialize, Serialize};

use super::outcome::Flow;
use super::pattern::Pattern;
use crate::arena_size::arena_bytes;
use crate::engine_settings::short_lived_engine_settings;
use crate::figures::Shard;
use crate::flags::SettingsFlags;
use crate::settings::{Role, Settings};
use crate::workload::{TensorSpec, Workload};
use crate::{Context, Failure, locked_memory};

/// How long a request of the demo waits: far longer than any transfer here, but short enough to notice that a demo fails.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Lines read ahead; the parent sends one at a time.
const LINES_MAX: usize = 2;

/// What `sealane demo` starts its tasks with.
#[derive(Debug, clap::Args)]
#[command(hide = true, after_help = "Example:\n  sealane demo-task  # started by `sealane demo`, not by hand")]
pub struct TaskArgs {
    #[command(flatten)]
    settings: SettingsFlags,
}

/// What a task reports to its parent, which waits for all tasks before it lets any go on.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Told {
    /// Address at which its own engine will be reached, if it has one.
    pub(super) address: Option<SocketAddr>,
    /// At the end of a step: what it received from each peer.
    pub(super) fetched: Vec<Fetched>,
    /// Numbers of tensors and bytes that it has compared.
    pub(super) verified: (u64, u64),
    /// After the first and the last step: the shards of its own engine.
    pub(super) shards: Vec<Shard>,
}

/// The role of a task: a ps owns parameters, which workers pull, and accepts the gradients that they push.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Part {
    Ps,
    Worker,
}

impl Part {
    /// The name in the endpoint map of its task with that number.
    pub(super) fn task(self, index: usize) -> String {
        format!("{}{index}:2222", self.role())
    }

    /// The role whose environment variables its processes read.
    pub(super) fn role(self) -> Role {
        match self {
            Part::Ps => Role::Ps,
            Part::Worker => Role::Worker,
        }
    }

    /// The sender number of its task with that number, for [`Pattern`]. A tensor belongs to one ps.
    fn author(self, index: usize) -> usize {
        match self {
            Part::Ps => 0,
            Part::Worker => 1 + index,
        }
    }
}

/// Everything that a task must know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) part: Part,
    /// Its number among the tasks of its part.
    pub(super) index: usize,
    pub(super) workers: usize,
    pub(super) ps: usize,
    /// The workload, as its file has it.
    pub(super) workload: String,
    /// Measured steps.
    pub(super) steps: u64,
    /// True if the task runs an engine in its own process.
    pub(super) is_embedded: bool,
    /// Whether to pin that engine's shard if a CPU is free and no setting says otherwise.
    pub(super) pin: bool,
    /// The endpoint map of that engine, or the socket of the daemon to attach to.
    pub(super) at: PathBuf,
}

/// A tensor that a task sends or receives.
struct Moved {
    /// Its number in the workload. Tensor number `i` belongs to ps number `i` modulo their count.
    number: usize,
    spec: TensorSpec,
    /// The peers that it is sent to or received from.
    peers: Range<usize>,
}

impl Job {
    #[cfg(test)]
    pub(super) fn example(part: Part, index: usize) -> Job {
        let workload =
            r#"{"tensors": [{"name": "a", "shape": [3]}, {"name": "b", "shape": [0]}, {"name": "c", "shape": [5]}]}"#;
        let (workload, at) = (workload.to_owned(), PathBuf::new());
        Job { part, index, workers: 2, ps: 2, workload, steps: 1, is_embedded: true, pin: false, at }
    }

    pub(super) fn task(&self) -> String {
        self.part.task(self.index)
    }

    /// The other part, and its number of tasks.
    fn peers(&self) -> (Part, usize) {
        match self.part {
            Part::Ps => (Part::Worker, self.workers),
            Part::Worker => (Part::Ps, self.ps),
        }
    }

    /// The tensors that it sends and those that it receives.
    fn tensors(&self, workload: &Workload) -> [Vec<Moved>; 2] {
        let of = |tensors: &[TensorSpec]| {
            let moved = tensors.iter().enumerate().filter_map(|(number, spec)| {
                let peers = match (self.part, number % self.ps) {
                    (Part::Worker, owner) => owner..owner + 1,
                    (Part::Ps, owner) if owner == self.index => 0..self.workers,
                    (Part::Ps, _) => return None,
                };
                Some(Moved { number, spec: spec.clone(), peers })
            });
            moved.collect()
        };
        match self.part {
            Part::Ps => [of(&workload.pull), of(&workload.push)],
            Part::Worker => [of(&workload.push), of(&workload.pull)],
        }
    }

    /// Bytes of memory that it needs: a tensor sent to many peers is stored once, one received from many once for each.
    pub(super) fn memory_bytes(&self, workload: &Workload) -> u64 {
        let [sent, received] = self.tensors(workload);
        let received = received.iter().flat_map(|moved| std::iter::repeat_n(moved.spec.bytes(), moved.peers.len()));
        let lengths = sent.iter().map(|moved| moved.spec.bytes()).chain(received);
        if self.is_embedded { lengths.sum() } else { arena_bytes(lengths) }
    }
}

/// What was received from one peer in one step.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Fetched {
    /// From the first request to the last arrival.
    pub(super) flow: Flow,
    /// Time from the request for each tensor to its arrival.
    pub(super) latencies_ns: Vec<u64>,
}

/// Runs one task of the demo.
///
/// # Errors
///
/// Standard output cannot be written. Whatever else goes wrong is reported to the parent, which ends this process.
pub fn run_task(args: &TaskArgs, context: &Context) -> Result<(), Failure> {
    leave_signals_to_parent()?;
    let lines = read_lines();
    if let Err(reason) = play(&lines, args, context) {
        tell(&Err(reason)).map_err(Failure::work)?;
        // The parent has the reason and closes standard input, which ends this process.
        while lines.recv().is_ok() {}
    }
    Ok(())
}

/// In a task: only signals sent to this process alone end it.
fn leave_signals_to_parent() -> Result<(), Failure> {
    let of_terminal: SigSet = [Signal::SIGINT, Signal::SIGHUP].into_iter().collect();
    let of_kill: SigSet = [Signal::SIGTERM].into_iter().collect();
    let set = of_terminal.thread_block().and_then(|()| of_kill.thread_unblock());
    set.map_err(|error| Failure::work(format!("signals cannot be set up ({error})")))
}

/// Reads lines on a separate thread, so that the end of standard input ends the process whatever it waits for.
fn read_lines() -> Receiver<String> {
    let (sender, receiver) = mpsc::sync_channel(LINES_MAX);
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            // Nobody receives once the work has ended.
            let _ = sender.send(line);
        }
        std::process::exit(1);
    });
    receiver
}

fn tell(told: &Result<Told, String>) -> Result<(), String> {
    let mut line = serde_json::to_vec(told).map_err(shown)?;
    line.push(b'\n');
    let mut out = io::stdout().lock();
    out.write_all(&line).and_then(|()| out.flush()).map_err(shown)
}

/// Does each thing that a task does, and after each waits until all tasks have done it.
fn play(lines: &Receiver<String>, args: &TaskArgs, context: &Context) -> Result<(), String> {
    let next = || lines.recv().map_err(shown);
    let meet = |told| tell(&Ok(told)).and_then(|()| next().map(drop));
    let job: Job = serde_json::from_str(&next()?).map_err(|error| format!("a job cannot be read ({error})"))?;
    let listener = job.is_embedded.then(|| TcpListener::bind("127.0.0.1:0")).transpose();
    let listener = listener.map_err(|error| format!("no port is available on 127.0.0.1 ({error})"))?;
    let address = listener.as_ref().map(TcpListener::local_addr).transpose().map_err(shown)?;
    meet(Told { address, ..Told::default() })?;
    let (own_part, steps) = (job.part, job.steps as i64);
    let mut player = Player::start(job, listener, args, context).map_err(shown)?;
    meet(Told::default())?;
    for step in 0..=steps {
        player.fill(step).map_err(shown)?;
        meet(Told::default())?;
        let mut fetched = Vec::new();
        // The workers pull; then the ps accept the pushes.
        for part in [Part::Worker, Part::Ps] {
            if part == own_part {
                fetched = player.fetch(step).map_err(shown)?;
            }
            meet(Told::default())?;
        }
        let verified = player.verify(step)?;
        let shards = if step == 0 || step == steps { player.shards() } else { Vec::new() };
        meet(Told { fetched, verified, shards, address: None })?;
    }
    player.finish().map_err(shown)
}

fn shown(error: impl Display) -> String {
    error.to_string()
}

/// A task that moves its tensors, by calls on the process's main thread.
struct Player {
    job: Job,
    task: Task,
    /// The engine in this process; `None` if the task is attached to a daemon.
    engine: Option<Engine>,
    /// Most recvs in flight from each peer.
    window: usize,
    /// Tensors to send, whose memory all their receivers share.
    outgoing: Vec<(Moved, Arc<Buffer>)>,
    /// Tensors to receive, by the number of the peer that sends them.
    incoming: Vec<Vec<Incoming>>,
    /// Sends that may not have been released yet.
    offered: Vec<Sending>,
}

struct Incoming {
    number: usize,
    spec: TensorSpec,
    /// What arrived last; its memory is reused for the next.
    meta: TensorMeta,
    memory: Buffer,
}

impl Player {
    fn start(job: Job, listener: Option<TcpListener>, args: &TaskArgs, context: &Context) -> Result<Player, Failure> {
        let settings = context.settings(&args.settings, [])?;
        let Settings { runtime, transport, .. } = &settings;
        let workload = Workload::parse(&job.workload, "the workload")?;
        let Some(listener) = listener else {
            let polling = if runtime.polling.value { Polling::Spin } else { Polling::idle(runtime.idle_spin.value) };
            let how =
                Attach::new(&job.task()).socket(&job.at).arena_bytes(job.memory_bytes(&workload)).polling(polling);
            // Memory is allocated meanwhile.
            let task = how.timeout(REQUEST_TIMEOUT).attach().map_err(Failure::work)?;
            return Player::new(job, &workload, task, None, transport.window.value).map_err(Failure::work);
        };
        let pin = if job.pin { Pin::IfFree } else { Pin::Off };
        let engine = short_lived_engine_settings(&settings, EndpointMap::load(&job.at)?, &[&job.task()], pin)?;
        let engine = EngineSettings { listeners: vec![listener], ..engine };
        locked_memory::check(&engine)?;
        let window = engine.session.window;
        let engine = Engine::start(engine).map_err(Failure::work)?;
        let task = engine.task(&job.task()).map_err(Failure::work)?.into();
        Player::new(job, &workload, task, Some(engine), window).map_err(Failure::work)
    }

    /// Allocates the memory of all tensors, and touches every page that is received into: a first write during a transfer would
    /// cost it time. Tensors are sent from and received into this memory without another copy in this process.
    fn new(job: Job, workload: &Workload, task: Task, engine: Option<Engine>, window: usize) -> Result<Player, Error> {
        let [sent, received] = job.tensors(workload);
        let alloc = |spec: &TensorSpec| task.alloc(spec.bytes() as usize);
        let lend = |moved: Moved| alloc(&moved.spec).map(|memory| (moved, Arc::new(memory)));
        let outgoing = sent.into_iter().map(lend).collect::<Result<_, Error>>()?;
        let mut incoming: Vec<Vec<Incoming>> = (0..job.peers().1).map(|_| Vec::new()).collect();
        for Moved { number, spec, peers } in received {
            for peer in peers {
                let mut memory = alloc(&spec)?;
                memory.fill(0xa5);
                incoming[peer].push(Incoming { number, spec: spec.clone(), meta: spec.meta().clone(), memory });
            }
        }
        Ok(Player { job, task, engine, window, outgoing, incoming, offered: Vec::new() })
    }

    fn peer(&self, number: usize) -> String {
        self.job.peers().0.task(number)
    }

    /// Makes the tensors of a step and sends them.
    fn fill(&mut self, step: i64) -> Result<(), Error> {
        self.settle()?;
        let author = self.job.part.author(self.job.index);
        for (Moved { number, .. }, memory) in &mut self.outgoing {
            if Arc::get_mut(memory).is_none() {
                // The engine has not released the last step's tensor yet.
                *memory = Arc::new(self.task.alloc(memory.len())?);
            }
            let memory = Arc::get_mut(memory).expect("looked at, or made, just now");
            Pattern::new(author, *number, step).fill(memory);
        }
        for peer in 0..self.incoming.len() {
            let to_peer = self.outgoing.iter().filter(|(moved, _)| moved.peers.contains(&peer));
            let offer = |(Moved { spec, .. }, memory): &(Moved, Arc<Buffer>)| {
                let tensor = Tensor::new(spec.meta().clone(), Payload::Shared(Arc::clone(memory)))?;
                Ok((spec.name().clone(), tensor))
            };
            let tensors = to_peer.map(offer).collect::<Result<Vec<_>, Error>>()?;
            self.offered.extend(self.task.send_all(&self.peer(peer), step, tensors));
        }
        Ok(())
    }

    /// Waits until the peers have received all that was sent.
    fn settle(&mut self) -> Result<(), Error> {
        self.offered.drain(..).try_for_each(Sending::wait)
    }

    /// Receives tensors from all peers at once into their memory, with a window of requests to each.
    fn fetch(&mut self, step: i64) -> Result<Vec<Fetched>, Error> {
        let peers: Vec<String> = (0..self.incoming.len()).map(|number| self.peer(number)).collect();
        let (task, mut fetched) = (&self.task, Vec::new());
        fetched.resize_with(peers.len(), Fetched::default);
        let mut waiting: Vec<_> = self.incoming.iter_mut().map(|from| from.iter_mut()).collect();
        let start = Instant::now();
        let mut ask_next = |peer: usize| {
            let incoming = waiting[peer].next()?;
            let memory = std::mem::take(&mut incoming.memory);
            Some((peer, Instant::now(), task.recv_into(&peers[peer], step, incoming.spec.name(), memory), incoming))
        };
        // In turn, so that no peer waits for all requests to another.
        let turns = (0..self.window).flat_map(|_| 0..peers.len());
        let mut in_flight: VecDeque<_> = turns.filter_map(&mut ask_next).collect();
        // Answers come in the order of the requests, or nearly so.
        while let Some((peer, asked, receiving, incoming)) = in_flight.pop_front() {
            let (meta, memory) = receiving.wait().map(|tensor| (tensor.meta().clone(), tensor.into_buffer()))?;
            let from = &mut fetched[peer];
            from.latencies_ns.push(u64::try_from(asked.elapsed().as_nanos()).unwrap_or(u64::MAX));
            let one = Flow { tensors: 1, bytes: memory.len() as u64, time: Duration::ZERO };
            from.flow = from.flow.with(one, start.elapsed());
            (incoming.meta, incoming.memory) = (meta, memory);
            in_flight.extend(ask_next(peer));
        }
        Ok(fetched)
    }

    /// Compares type, shape and every byte of all that arrived in a step with what its sender should have sent. Returns the numbers
    /// of tensors and bytes compared.
    ///
    /// # Errors
    /// The first difference, with its place.
    fn verify(&self, step: i64) -> Result<(u64, u64), String> {
        let (mut tensors, mut bytes) = (0, 0);
        let (part, _) = self.job.peers();
        for (peer, from) in self.incoming.iter().enumerate() {
            for Incoming { number, spec, meta, memory } in from {
                let place = || format!("{} from {} in step {step}", spec.name(), self.peer(peer));
                if meta != spec.meta() {
                    return Err(format!("{} is {meta:?}, not {:?}", place(), spec.meta()));
                }
                let compared = Pattern::new(part.author(peer), *number, step).verify(memory);
                compared.map_err(|(offset, found, expected)| {
                    format!("byte {offset} of {} is {found:#04x}, not {expected:#04x}", place())
                })?;
                (tensors, bytes) = (tensors + 1, bytes + spec.bytes());
            }
        }
        Ok((tensors, bytes))
    }

    /// The figures of the shards, if this process has an engine.
    fn shards(&self) -> Vec<Shard> {
        self.engine.iter().flat_map(Engine::figures).map(Shard::from).collect()
    }

    fn finish(mut self) -> Result<(), Error> {
        // Otherwise a daemon that still waits for releases would drain until its time limit.
        self.settle()?;
        let stopped = self.engine.map_or(Ok(()), |engine| engine.stop());
        stopped.map_err(|error| Error::unavailable("this engine", error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_are_dealt_out_and_need_memory_on_both_sides() {
        let job = Job::example;
        let workload = Workload::parse(&job(Part::Ps, 0).workload, "test").unwrap();
        let shown = |moved: Vec<Moved>| {
            let shown = moved.iter().map(|moved| format!("{}{}{:?}", moved.number, moved.spec.name(), moved.peers));
            shown.collect::<Vec<_>>().join(" ")
        };
        let names = |job: Job| job.tensors(&workload).map(shown);
        let all = "0a0..1 1b1..2 2c0..1".to_owned();
        assert_eq!(names(job(Part::Worker, 1)), [all.clone(), all]);
        assert_eq!(names(job(Part::Ps, 0)), ["0a0..2 2c0..2", "0a0..2 2c0..2"]);
        assert_eq!(names(job(Part::Ps, 1)), ["1b0..2", "1b0..2"]);
        // Tensors a and c to all workers, and a and c from each of two.
        assert_eq!(job(Part::Ps, 0).memory_bytes(&workload), 32 + 2 * 32);
        assert_eq!(job(Part::Worker, 0).memory_bytes(&workload), 32 + 32);
    }
}
