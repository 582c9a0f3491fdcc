//! What `sealane bench collectives` measures: a call made by all ranks of a group, each a process, and the same call of gloo in
//! Python. This process is Sealane's first rank. Nothing is pinned; waiting ranks sleep, so that those of the other system can
//! work.

use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use sealane::{DType, Error, Group, GroupOptions, ReduceOp};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::error::BenchError;
use crate::figures::{Metric, Sample};
use crate::hosts::{Directory, mirror};
use crate::peer::{Hosts, Peer, PeerJob, PeerProgram, announce};
use crate::plan::{Collective, Collectives, Plan, SystemName};
use crate::system::{Client, System};

const GLOO: &str = include_str!("collectives.py");

/// How long ranks may take to join: PyTorch's import on a slow disk, and some more.
const JOIN_LIMIT: Duration = Duration::from_secs(120);

/// Time between two checks whether something has happened.
const LOOK: Duration = Duration::from_millis(1);

/// Calls made to estimate how many fit into a round.
const GUESS_CALLS: u64 = 8;

const CALLS_MAX: f64 = 1e6;

/// Instead of a number of calls: there are no more.
const END: u64 = u64::MAX;

/// How long ranks may take to end.
const END_LIMIT: Duration = Duration::from_secs(1);

/// Sealane, and gloo if the plan has it.
///
/// # Errors
/// A rank does not start, or the ranks do not find each other.
pub(super) fn systems(plan: &Plan, python: &str, program: &PeerProgram) -> Result<Vec<System>, BenchError> {
    let of = plan.collectives.clone().expect("it is what the plan is of");
    let variant = of.call.to_string();
    let mut systems = vec![System::new("sealane", variant.clone(), plan, Ours::start(plan, &of, program)?)];
    if plan.baselines.contains(&SystemName::Gloo) {
        systems.push(System::new("gloo", variant, plan, Gloo::start(plan, &of, python)?));
    }
    Ok(systems)
}

trait Ranks {
    /// The time of `count` calls on the slowest rank.
    fn time(&mut self, count: u64) -> Result<Duration, BenchError>;
}

impl<R: Ranks> Client for R {
    fn round(&mut self, _plan: &Plan, length: Duration) -> Result<Sample, BenchError> {
        let guess = self.time(GUESS_CALLS)?.as_secs_f64() / GUESS_CALLS as f64;
        let count = (length.as_secs_f64() / guess).clamp(1.0, CALLS_MAX) as u64;
        let seconds = self.time(count)?.as_secs_f64() / count as f64;
        Ok(Sample::figure(Metric::CallTime, seconds * 1e6))
    }
}

/// Processes that end when this is dropped.
struct Children(Vec<Child>);

impl Children {
    /// Waits until they have ended by themselves, for a while.
    fn wait(&mut self) {
        let until = Instant::now() + END_LIMIT;
        while Instant::now() < until && self.0.iter_mut().any(|child| matches!(child.try_wait(), Ok(None))) {
            thread::sleep(LOOK);
        }
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // A child that is already gone is fine.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

struct Ours {
    // Dropped before the directory of their store.
    others: Children,
    /// The process on the other host whose children are the ranks there.
    _there: Option<Peer>,
    rank: Rank,
    _directory: TempDir,
}

/// What another rank's process is told, as JSON in one argument.
#[derive(Serialize, Deserialize)]
struct Job {
    plan: Plan,
    rank: usize,
    store: PathBuf,
    /// The address at which ranks of other hosts reach it.
    address: IpAddr,
}

impl Job {
    /// Starts the rank's process.
    fn start(&self) -> Result<Child, BenchError> {
        let job = serde_json::to_string(self).expect("a job has only named fields and finite numbers");
        let mut command = Command::new("/proc/self/exe");
        command.arg("rank").arg(job).stdin(Stdio::null()).stdout(Stdio::null());
        command.spawn().map_err(BenchError::io("start a rank"))
    }
}

/// The first rank on the last host.
fn first_of_last_host(of: &Collectives) -> usize {
    (0..of.ranks).find(|rank| rank * of.hosts / of.ranks == of.hosts - 1).unwrap_or(of.ranks)
}

impl Ours {
    fn start(plan: &Plan, of: &Collectives, program: &PeerProgram) -> Result<Ours, BenchError> {
        let directory = tempfile::tempdir().map_err(BenchError::io("make a directory for the ranks"))?;
        let store = directory.path().to_owned();
        let other_host = program.other_host();
        let hosts = other_host.map(|host| host.hosts()).unwrap_or_default();
        let there = other_host.map(|_| Peer::start(program, &job_there(plan, hosts))).transpose()?;
        let here = if there.is_some() { first_of_last_host(of) } else { of.ranks };
        let job = |rank| Job { plan: plan.clone(), rank, store: store.clone(), address: hosts.consumer };
        let mut others = Children(Vec::new());
        for rank in 1..here {
            others.0.push(job(rank).start()?);
        }
        let rank = match other_host {
            None => Rank::join(&job(0))?,
            // The ranks there have a store of their own.
            Some(host) => thread::scope(|scope| {
                let joining = scope.spawn(|| Rank::join(&job(0)));
                mirror(&Directory::at(&store), host, || joining.is_finished())?;
                joining.join().expect("a rank does not panic")
            })?,
        };
        Ok(Ours { others, _there: there, rank, _directory: directory })
    }
}

/// The process on the other host.
fn job_there(plan: &Plan, hosts: Hosts) -> PeerJob {
    let (cpu, consumer_port, meeting_place, keys) = (None, None, None, None);
    PeerJob { system: SystemName::Sealane, plan: plan.clone(), cpu, hosts, consumer_port, meeting_place, keys }
}

/// Starts the ranks of the last host, which is not the first rank's, and waits until one of them ends.
///
/// # Errors
/// A rank does not start, or fails.
pub(crate) fn serve_ranks(job: &PeerJob) -> Result<(), BenchError> {
    let of = job.plan.collectives.as_ref().expect("it is what the plan is of");
    let store = job.meeting_place()?.to_owned();
    let rank = |rank| Job { plan: job.plan.clone(), rank, store: store.clone(), address: job.hosts.producer }.start();
    let mut ranks = Children((first_of_last_host(of)..of.ranks).map(rank).collect::<Result<_, _>>()?);
    announce(&[])?;
    for rank in &mut ranks.0 {
        let ended = rank.wait().map_err(BenchError::io("wait for a rank"))?;
        if !ended.success() {
            return Err(BenchError::sealane("make a call of all ranks")(format!("a rank on this host: {ended}")));
        }
    }
    Ok(())
}

/// The others end before this one leaves: a rank that misses another says so.
impl Drop for Ours {
    fn drop(&mut self) {
        if self.rank.group.broadcast(&mut END.to_ne_bytes(), 0, Some(END_LIMIT)).is_ok() {
            self.others.wait();
        }
    }
}

impl Ranks for Ours {
    fn time(&mut self, count: u64) -> Result<Duration, BenchError> {
        Ok(self.rank.time(count).map_err(failed)?.unwrap_or_default())
    }
}

fn failed(error: Error) -> BenchError {
    BenchError::sealane("make a call of all ranks")(error)
}

/// Follows the first rank's orders until it says that there are no more.
///
/// # Errors
/// The job cannot be read, the ranks do not find each other, or a result is wrong.
pub(super) fn serve(job: &str) -> Result<(), BenchError> {
    let job: Job = serde_json::from_str(job).map_err(BenchError::failed("a rank", "understand its job"))?;
    set_pdeathsig(Signal::SIGKILL).map_err(BenchError::io("ask to be ended with the parent process"))?;
    let mut rank = Rank::join(&job)?;
    while rank.time(0).map_err(failed)?.is_some() {}
    Ok(())
}

struct Rank {
    group: Group,
    call: Collective,
    one: Vec<u8>,
    /// A part for each rank; so has `other`.
    whole: Vec<u8>,
    other: Vec<u8>,
    sent: Arc<[u8]>,
}

impl Rank {
    fn join(job: &Job) -> Result<Rank, BenchError> {
        let (of, bytes) = (job.plan.collectives.as_ref().expect("it is what the plan is of"), job.plan.size_bytes);
        let options = GroupOptions {
            limit: JOIN_LIMIT,
            interface: Some(job.address.to_string()),
            host: Some(format!("host {}", job.rank * of.hosts / of.ranks)),
            ..GroupOptions::default()
        };
        let group = Group::new(&Directory::at(&job.store), job.rank, of.ranks, &options);
        let group = group.map_err(BenchError::sealane("bring the ranks together"))?;
        // Elements are the rank's number from 1 on, so that results show which ranks took part.
        let own = job.rank as f32 + 1.0;
        let filled = |count: usize| own.to_ne_bytes().repeat(bytes / 4 * count);
        let [one, whole, other] = [1, of.ranks, of.ranks].map(filled);
        let sent = one.clone().into();
        let mut rank = Rank { group, call: of.call, one, whole, other, sent };
        rank.run().map_err(failed)?;
        rank.check()?;
        // Reset, since sums of sums would grow without end.
        for bytes in [&mut rank.one, &mut rank.whole, &mut rank.other] {
            bytes.fill(0);
        }
        Ok(rank)
    }

    /// The time of `count` calls on the slowest rank; only the first rank knows `count`. `None` if that was [`END`].
    fn time(&mut self, count: u64) -> Result<Option<Duration>, Error> {
        let mut count = count.to_ne_bytes();
        self.group.broadcast(&mut count, 0, None)?;
        if count == END.to_ne_bytes() {
            return Ok(None);
        }
        self.group.barrier(None)?;
        let began = Instant::now();
        for _ in 0..u64::from_ne_bytes(count) {
            self.run()?;
        }
        let mut took = began.elapsed().as_secs_f64().to_ne_bytes();
        self.group.all_reduce(&mut took, DType::F64, ReduceOp::Max, None)?;
        Ok(Some(Duration::from_secs_f64(f64::from_ne_bytes(took))))
    }

    fn run(&mut self) -> Result<(), Error> {
        let Rank { group, call, one, whole, other, .. } = self;
        match call {
            Collective::AllReduce => group.all_reduce(one, DType::F32, ReduceOp::Sum, None),
            Collective::ReduceScatter => group.reduce_scatter(whole, one, DType::F32, ReduceOp::Sum, None),
            Collective::AllGather => group.all_gather(whole, None),
            Collective::AllToAll => group.all_to_all(other, whole, None),
            Collective::Broadcast => group.broadcast(one, 0, None),
            Collective::Barrier => group.barrier(None),
            Collective::Send => self.there_and_back(),
        }
    }

    /// Sends a message from the first rank to the last, and one back, each into new memory.
    fn there_and_back(&self) -> Result<(), Error> {
        let last = self.group.size() - 1;
        for (sender, receiver) in [(0, last), (last, 0)] {
            if self.group.rank() == sender {
                self.group.send(self.sent.clone(), receiver, 0)?.wait(None)?;
            } else if self.group.rank() == receiver {
                self.group.recv(vec![0; self.sent.len()], Some(sender), 0)?.wait(None)?;
            }
        }
        Ok(())
    }

    /// Checks the result of the first call, if it is in this rank's tensors.
    fn check(&self) -> Result<(), BenchError> {
        let ranks = self.group.size();
        let are_all =
            |bytes: &[u8], expected: f32| bytes.as_chunks().0.iter().all(|of| f32::from_ne_bytes(*of) == expected);
        let is_right = match self.call {
            Collective::AllReduce | Collective::ReduceScatter => are_all(&self.one, (ranks * (ranks + 1) / 2) as f32),
            Collective::AllGather | Collective::AllToAll => {
                let parts = self.whole.chunks(self.whole.len() / ranks).enumerate();
                { parts }.all(|(rank, part)| are_all(part, rank as f32 + 1.0))
            }
            Collective::Broadcast => are_all(&self.one, 1.0),
            // A barrier brings no data, and messages have memory of their own.
            Collective::Barrier | Collective::Send => true,
        };
        if is_right { Ok(()) } else { Err(BenchError::sealane("give all ranks the right result")(self.call)) }
    }
}

struct Gloo {
    program: String,
    asked: ChildStdin,
    said: BufReader<ChildStdout>,
    _ranks: Children,
    _directory: TempDir,
}

impl Gloo {
    fn start(plan: &Plan, of: &Collectives, python: &str) -> Result<Gloo, BenchError> {
        let directory = tempfile::tempdir().map_err(BenchError::io("make a directory for the ranks"))?;
        let mut ranks = Children(Vec::new());
        for rank in 0..of.ranks {
            let mut command = Command::new(python);
            command.args(["-c", GLOO]).arg(directory.path().join("store"));
            command.args([rank, of.ranks].map(|number| number.to_string()));
            command.args([of.call.to_string(), plan.size_bytes.to_string()]);
            command.env("GLOO_SOCKET_IFNAME", "lo").env("OMP_NUM_THREADS", "1");
            // Only the first rank is asked.
            let pipe = || if rank == 0 { Stdio::piped() } else { Stdio::null() };
            command.stdin(pipe()).stdout(pipe());
            ranks.0.push(command.spawn().map_err(BenchError::io(format!("start {python}, which --python names")))?);
        }
        let first = &mut ranks.0[0];
        let (asked, said) = (first.stdin.take().expect("it is a pipe"), first.stdout.take().expect("it is a pipe"));
        Ok(Gloo { program: python.into(), asked, said: BufReader::new(said), _ranks: ranks, _directory: directory })
    }

    fn ended(&self) -> BenchError {
        let reason = format!("{} has ended; it needs PyTorch: name a Python that has it by --python", self.program);
        BenchError::failed("gloo", "make a call of all ranks")(reason)
    }
}

impl Ranks for Gloo {
    fn time(&mut self, count: u64) -> Result<Duration, BenchError> {
        writeln!(self.asked, "{count}").map_err(|_| self.ended())?;
        let mut line = String::new();
        // gloo also prints there that it has connected.
        while let Ok(1..) = self.said.read_line(&mut line) {
            if let Some(seconds) = line.strip_prefix("seconds ").and_then(|text| text.trim().parse().ok()) {
                return Ok(Duration::from_secs_f64(seconds));
            }
            line.clear();
        }
        Err(self.ended())
    }
}
