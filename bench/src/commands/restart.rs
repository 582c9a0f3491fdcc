//! What `sealane bench restart` measures: two daemons of the `sealane` program beside this one, a ps and a worker attached to one,
//! a worker attached to the other, and tensors that the ps pushes to both and that both pull. In each round the ps's daemon hands
//! over to the next one, or is drained and started again, by the commands that a person would use. Bounded by three tasks and six
//! threads.

use std::cell::RefCell;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use sealane::{AcceptOptions, Attach, Keys, SendOptions, Task, Tensor};
use sealane_cli::programs;
use tempfile::TempDir;

use crate::error::BenchError;
use crate::figures::{Metric, Sample};
use crate::limits::STALL_LIMIT;
use crate::plan::Plan;
use crate::system::{Client, System};

const PS: &str = "ps0:2222";
/// The workers, by the daemon that serves them: the ps's own, and the other one.
const WORKERS: [&str; 2] = ["worker0:2222", "worker1:2222"];

/// The names of both daemons, with the tasks of each.
const HOSTS: [(&str, &[&str]); 2] = [("first", &[PS, WORKERS[0]]), ("second", &[WORKERS[1]])];

/// The queue that each worker accepts from.
const QUEUE: &str = "tensors";

/// Number of tensors that the ps publishes. The workers pull only the first, but the others add to the cost, since all are
/// published again together. They fill half of its arena.
const PUBLISHED: usize = 32;
const PUBLISHED_BYTES: usize = 1 << 20;
const PULLED_BYTES: usize = 4096;

/// Time between two tensors: short enough to notice a gap of a millisecond, and long enough to leave the processors to the daemons.
const PACE: Duration = Duration::from_micros(500);

/// Time between two checks whether something has happened, and after a failed call.
const LOOK: Duration = Duration::from_millis(1);

/// How long a thread waits for a tensor before it checks whether it should end.
const ACCEPT_TIME: Duration = Duration::from_millis(100);

/// How long a daemon may take until its first client, or its successor, can attach.
const START_LIMIT: Duration = Duration::from_secs(30);

/// Lines of the end of a daemon's log that are included in an error.
const LOG_LINES: usize = 5;

/// Both ways of replacing a daemon, under the same traffic.
///
/// # Errors
/// A daemon does not start, or a task cannot attach.
pub(super) fn systems(plan: &Plan) -> Result<Vec<System>, BenchError> {
    let restart = Rc::new(RefCell::new(Restart::start(plan.size_bytes)?));
    let ways: [(Way, _); 2] = [(Host::stop_and_start, "drained and started anew"), (Host::hand_over, "handed over")];
    let system = |(way, variant)| System::new("sealane", variant, plan, Turn { restart: restart.clone(), way });
    Ok(ways.map(system).into())
}

/// How the next daemon replaces a daemon.
type Way = fn(&mut Host) -> Result<(), BenchError>;

/// One of the ways, measured in rounds.
struct Turn {
    restart: Rc<RefCell<Restart>>,
    way: Way,
}

impl Client for Turn {
    fn round(&mut self, _plan: &Plan, length: Duration) -> Result<Sample, BenchError> {
        self.restart.borrow_mut().round(length, self.way)
    }
}

struct Restart {
    // Dropped in this order: tasks leave before their daemons end, and both before their files are removed.
    /// Pushes to both workers, then pulls by both.
    streams: Vec<Stream>,
    _tasks: Vec<Task>,
    hosts: Vec<Host>,
    _directory: TempDir,
}

impl Restart {
    fn start(size_bytes: usize) -> Result<Restart, BenchError> {
        let directory = tempfile::tempdir().map_err(BenchError::io("make a directory for the daemons"))?;
        let map = endpoint_map().map_err(BenchError::io("find free ports on 127.0.0.1"))?;
        fs::write(directory.path().join(".endpoint_map"), map).map_err(BenchError::io("write the endpoint map"))?;
        let mut hosts = HOSTS.iter().map(|host| Host::start(directory.path(), host)).collect::<Result<Vec<_>, _>>()?;
        let tasks =
            [(0, PS), (0, WORKERS[0]), (1, WORKERS[1])].map(|(host, task): (usize, _)| hosts[host].attach(task));
        let tasks = tasks.into_iter().collect::<Result<Vec<Task>, _>>()?;
        let streams = traffic(&tasks, size_bytes).map_err(BenchError::sealane("begin the traffic"))?;
        Ok(Restart { streams, _tasks: tasks, hosts, _directory: directory })
    }

    /// Runs traffic for `length`, then the restart.
    fn round(&mut self, length: Duration, way: Way) -> Result<Sample, BenchError> {
        self.until_all_have_got_one(Instant::now())?;
        for stream in &self.streams {
            stream.look(|arrivals| (arrivals.longest, arrivals.failed) = (Duration::ZERO, 0));
        }
        thread::sleep(length);
        way(&mut self.hosts[0])?;
        self.until_all_have_got_one(Instant::now())?;
        let gap = |stream: &Stream| stream.look(|arrivals| arrivals.longest).as_secs_f64() * 1e3;
        let metrics = [Metric::Gap, Metric::PeerGap, Metric::PullGap, Metric::PeerPullGap];
        let mut figures: Vec<_> = metrics.into_iter().zip(self.streams.iter().map(gap)).collect();
        let failed: u64 = self.streams[..2].iter().map(|pushes| pushes.look(|arrivals| arrivals.failed)).sum();
        figures.push((Metric::FailedCalls, failed as f64));
        Ok(figures.into())
    }

    /// Waits until each worker has received a tensor since `since`.
    fn until_all_have_got_one(&self, since: Instant) -> Result<(), BenchError> {
        let waiting = Instant::now();
        while self.streams.iter().any(|stream| stream.look(|arrivals| arrivals.last.is_none_or(|last| last <= since))) {
            if waiting.elapsed() > STALL_LIMIT {
                return Err(BenchError::Stalled { system: "sealane", waited: STALL_LIMIT });
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }
}

/// The tasks of each daemon at their own address, which was free a moment ago: a daemon that is started again has to bind it by
/// itself, as usual.
fn endpoint_map() -> std::io::Result<String> {
    let listeners = HOSTS.map(|_| TcpListener::bind("127.0.0.1:0"));
    let mut map = String::new();
    for (listener, (_, tasks)) in listeners.iter().zip(HOSTS) {
        let address = listener.as_ref().map_err(|error| error.kind())?.local_addr()?;
        map.extend(tasks.iter().map(|task| format!("{task}={address}\n")));
    }
    Ok(map)
}

struct Host {
    socket: PathBuf,
    tasks: &'static [&'static str],
    daemon: Child,
}

impl Host {
    fn start(directory: &Path, (name, tasks): &(&str, &'static [&'static str])) -> Result<Host, BenchError> {
        let socket = directory.join(name);
        Ok(Host { daemon: spawn(&socket, tasks, &[])?, socket, tasks })
    }

    /// Has another daemon take over, and returns when the first one has ended.
    fn hand_over(&mut self) -> Result<(), BenchError> {
        let next = spawn(&self.socket, self.tasks, &["--take-over"])?;
        let mut first = std::mem::replace(&mut self.daemon, next);
        let begun = Instant::now();
        let failure = loop {
            match (first.try_wait(), self.daemon.try_wait()) {
                (Ok(Some(ended)), _) if ended.success() => return Ok(()),
                (Ok(Some(ended)), _) | (_, Ok(Some(ended))) => break self.failed("hand over to a daemon", ended),
                _ if begun.elapsed() <= START_LIMIT => thread::sleep(LOOK),
                _ => break BenchError::Stalled { system: "sealane", waited: START_LIMIT },
            }
        };
        // The first one serves on.
        let _ = std::mem::replace(&mut self.daemon, first).kill();
        Err(failure)
    }

    /// Runs `sealane drain`, waits for the daemon's end, and starts another.
    fn stop_and_start(&mut self) -> Result<(), BenchError> {
        let mut drain = command("drain", &self.socket);
        let drained = drain.stderr(Stdio::null()).status().map_err(BenchError::io("start `sealane drain`"))?;
        let ended = if drained.success() { self.daemon.wait() } else { Ok(drained) };
        let ended = ended.map_err(BenchError::io("wait for a daemon"))?;
        if !ended.success() {
            return Err(self.failed("drain a daemon", ended));
        }
        self.daemon = spawn(&self.socket, self.tasks, &[])?;
        Ok(())
    }

    /// Attaches a task as soon as the daemon listens.
    fn attach(&mut self, task: &str) -> Result<Task, BenchError> {
        let begun = Instant::now();
        loop {
            match (Attach::new(task).socket(&self.socket).attach(), self.daemon.try_wait()) {
                (Ok(task), _) => return Ok(task),
                (Err(_), Ok(Some(ended))) => return Err(self.failed("start a daemon", ended)),
                (Err(_), _) if begun.elapsed() <= START_LIMIT => thread::sleep(LOOK),
                (Err(error), _) => return Err(BenchError::sealane("attach")(error)),
            }
        }
    }

    fn failed(&self, operation: &'static str, ended: ExitStatus) -> BenchError {
        let log = fs::read_to_string(self.socket.with_extension("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let last = lines[lines.len().saturating_sub(LOG_LINES)..].join("; ");
        BenchError::sealane(operation)(format!("{ended}; its log ends with: {last}"))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // A daemon that is already gone is fine.
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

/// A command of the program beside this one, for the daemon at that socket.
fn command(name: &str, socket: &Path) -> Command {
    let mut made = Command::new(programs::find("sealane"));
    made.arg(name).arg("--socket").arg(socket).current_dir(socket.parent().expect("it is in the directory"));
    made.stdin(Stdio::null()).stdout(Stdio::null());
    made
}

/// Starts a daemon of those tasks, which appends to the log beside its socket.
fn spawn(socket: &Path, tasks: &[&str], arguments: &[&str]) -> Result<Child, BenchError> {
    let mut daemon = command("daemon", socket);
    daemon.args(arguments);
    // One shard, as for the daemons of other measurements; everything else is the default.
    daemon.args(["--endpoint-map", ".endpoint_map", "--metrics", "off", "--set", "runtime.shards=1"]);
    daemon.args(tasks.iter().flat_map(|task| ["--task", task]));
    daemon.arg("--end-with").arg(std::process::id().to_string());
    let log = File::options().create(true).append(true).open(socket.with_extension("log"));
    let started = log.and_then(|log| daemon.stderr(log).spawn());
    started.map_err(BenchError::io("start a daemon"))
}

#[derive(Default)]
struct Arrivals {
    last: Option<Instant>,
    longest: Duration,
    failed: u64,
    /// True if nothing more will come.
    is_over: bool,
}

/// The tensors from the ps to one worker, of one kind.
#[derive(Default)]
struct Stream {
    arrivals: Arc<Mutex<Arrivals>>,
    threads: Vec<JoinHandle<()>>,
}

/// The tensors that the ps pushes to the workers, and those that they pull from it.
fn traffic(tasks: &[Task], size_bytes: usize) -> Result<Vec<Stream>, sealane::Error> {
    let (ps, workers) = (&tasks[0], &tasks[1..]);
    let of_bytes = |bytes: usize| Tensor::from_elements(&[bytes as u64], &vec![1_u8; bytes]);
    let tensor = |at: usize| Ok((at.to_string(), of_bytes(if at == 0 { PULLED_BYTES } else { PUBLISHED_BYTES })?));
    ps.publish_many(1, (0..PUBLISHED).map(tensor).collect::<Result<Vec<_>, sealane::Error>>()?).wait()?;
    let mut streams = Vec::new();
    for worker in workers {
        let mut pushes = Stream::default();
        let (acceptor, ps, to) =
            (worker.acceptor(QUEUE, AcceptOptions::default()), ps.clone(), worker.name().to_owned());
        pushes.spawn(PACE, move || {
            let pushed = Tensor::from_elements(&[size_bytes as u64], &vec![1_u8; size_bytes])
                .and_then(|tensor| ps.push_with(&to, QUEUE, tensor, SendOptions { timeout: Some(STALL_LIMIT) }).wait());
            pushed.map(|()| false)
        });
        pushes.spawn(Duration::ZERO, move || Ok(acceptor.accept().wait_within(ACCEPT_TIME)?.is_some()));
        streams.push(pushes);
    }
    for worker in workers {
        let (mut pulls, mut plan) = (Stream::default(), worker.plan(PS, Keys::new(["0"])?));
        pulls.spawn(PACE, move || plan.pull_within(1, STALL_LIMIT).wait().map(|()| true));
        streams.push(pulls);
    }
    Ok(streams)
}

impl Stream {
    /// Repeats a call at this pace until the end; records whether a tensor came, or the call failed and must be repeated.
    fn spawn(&mut self, pace: Duration, mut again: impl FnMut() -> Result<bool, sealane::Error> + Send + 'static) {
        let arrivals = self.arrivals.clone();
        self.threads.push(thread::spawn(move || {
            loop {
                let (came, now) = (again(), Instant::now());
                let mut arrivals = arrivals.lock().unwrap_or_else(PoisonError::into_inner);
                if arrivals.is_over {
                    return;
                }
                match came {
                    Ok(false) => {}
                    Ok(true) => {
                        let last = arrivals.last.replace(now).unwrap_or(now);
                        arrivals.longest = arrivals.longest.max(now - last);
                    }
                    Err(error) => {
                        arrivals.failed += 1;
                        tracing::debug!(%error, "a call is made again");
                    }
                }
                drop(arrivals);
                thread::sleep(pace);
            }
        }));
    }

    fn look<T>(&self, look: impl FnOnce(&mut Arrivals) -> T) -> T {
        look(&mut self.arrivals.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.look(|arrivals| arrivals.is_over = true);
        // A panic of a thread was already reported.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}
