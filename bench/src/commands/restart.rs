//! What `sealane bench restart` measures: two daemons of the `sealane` beside this program, a ps and a worker attached to one and a worker to
//! the other, and tensors that the ps pushes to both and that both pull. In each round the ps's daemon hands over to the next one, or is drained and
//! started anew, by the commands that a person would use. Bounded by three tasks and four threads.

use std::cell::RefCell;
use std::fs::File;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::{BenchError, Metric, Rounds, STALL_LIMIT, Sample, System};
use sealane::{AcceptOptions, Acceptor, Attach, Keys, SendOptions, Task, Tensor};
use sealane_cli::programs;
use tempfile::TempDir;

const PS: &str = "ps0:2222";
/// By the daemon that serves them: the ps's own, and the other.
const WORKERS: [&str; 2] = ["worker0:2222", "worker1:2222"];

/// The queue that each worker accepts from.
const QUEUE: &str = "tensors";

/// What the ps has published: the workers pull the first of these tensors, and see the others' cost, for all are published again
/// together. They fill half of its arena.
const PUBLISHED: usize = 32;
const PUBLISHED_BYTES: usize = 1 << 20;
const PULLED_BYTES: usize = 4096;

/// Between two tensors: often enough to see a gap of a millisecond, and seldom enough to leave the processors to the daemons.
const PACE: Duration = Duration::from_micros(500);

/// Between two looks whether something has happened, and after a call that failed.
const LOOK: Duration = Duration::from_millis(1);

/// How long a thread waits for a tensor before it looks whether it is to end.
const ACCEPT_TIME: Duration = Duration::from_millis(100);

/// How long a daemon may take to let its first client in.
const START_LIMIT: Duration = Duration::from_secs(30);

/// The end of a daemon's log that goes into an error.
const LOG_LINES: usize = 5;

/// A host's daemon.
struct Host {
    directory: PathBuf,
    name: &'static str,
    tasks: Vec<&'static str>,
    daemon: Option<Child>,
}

/// What reaches one worker.
struct Arrivals {
    last: Instant,
    longest: Duration,
    count: u64,
    failed: u64,
}

/// The tensors from the ps to one worker, of one kind.
struct Stream {
    arrivals: Arc<Mutex<Arrivals>>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    /// Attached for as long as it is there.
    _worker: Task,
}

/// How a daemon's place is taken by the next one.
#[derive(Clone, Copy)]
enum Way {
    HandOver,
    StopAndStart,
}

/// One of the ways, in rounds.
struct Turn {
    restart: Rc<RefCell<Restart>>,
    way: Way,
}

/// Both ways of exchanging a daemon, under the same traffic.
///
/// # Errors
/// A daemon does not start, or a task cannot attach.
pub(super) fn systems(size_bytes: usize) -> Result<Vec<System>, BenchError> {
    let restart = Rc::new(RefCell::new(Restart::start(size_bytes)?));
    let system = |(way, variant)| System::new("sealane", variant, Turn { restart: restart.clone(), way });
    Ok([(Way::StopAndStart, "drained and started anew"), (Way::HandOver, "handed over")].map(system).into())
}

/// See the module.
struct Restart {
    // Dropped in this order: tasks leave before their daemons end, and both before their files.
    pushes: Vec<Stream>,
    pulls: Vec<Stream>,
    _ps: Task,
    hosts: [Host; 2],
    _directory: TempDir,
}

impl Restart {
    /// Starts both daemons and the traffic.
    ///
    /// # Errors
    /// A daemon does not start, or a task cannot attach.
    fn start(size_bytes: usize) -> Result<Restart, BenchError> {
        let directory = tempfile::tempdir().map_err(io("make a directory for the daemons"))?;
        let tasks = [vec![PS, WORKERS[0]], vec![WORKERS[1]]];
        let map = endpoint_map(&tasks)?;
        std::fs::write(directory.path().join(".endpoint_map"), map).map_err(io("write the endpoint map"))?;
        let host = |(name, tasks)| Host { directory: directory.path().to_owned(), name, tasks, daemon: None };
        let mut hosts = { ["first", "second"].into_iter().zip(tasks).map(host) };
        let mut hosts = [hosts.next().expect("two"), hosts.next().expect("two")];
        hosts.iter_mut().try_for_each(|host| host.start(&[]))?;
        let ps = hosts[0].attach(PS)?;
        let workers = hosts.iter_mut().zip(WORKERS).map(|(host, worker)| host.attach(worker));
        let workers = workers.collect::<Result<Vec<Task>, BenchError>>()?;
        let of_bytes = |bytes: usize| Tensor::from_elements(&[bytes as u64], &vec![1_u8; bytes]);
        let tensor = |at: usize| Ok((at.to_string(), of_bytes(if at == 0 { PULLED_BYTES } else { PUBLISHED_BYTES })?));
        let published = (0..PUBLISHED).map(tensor).collect::<Result<Vec<_>, sealane::Error>>();
        let published = published.and_then(|tensors| ps.publish_many(1, tensors).wait());
        published.map_err(BenchError::sealane("publish"))?;
        let pushes = workers.iter().map(|worker| Stream::of_pushes(&ps, worker, size_bytes)).collect();
        let pulls =
            workers.iter().map(Stream::of_pulls).collect::<Result<_, _>>().map_err(BenchError::sealane("pull"))?;
        Ok(Restart { pushes, pulls, _ps: ps, hosts, _directory: directory })
    }

    fn streams(&self) -> impl Iterator<Item = &Stream> {
        self.pushes.iter().chain(&self.pulls)
    }

    /// Waits until each worker has got a tensor since `since`.
    fn until_all_have_got_one(&self, since: Instant) -> Result<(), BenchError> {
        let waiting = Instant::now();
        while self.streams().any(|stream| stream.look(|arrivals| arrivals.count == 0 || arrivals.last <= since)) {
            if waiting.elapsed() > STALL_LIMIT {
                return Err(BenchError::Stalled { system: "sealane", waited: STALL_LIMIT });
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }
}

impl Rounds for Turn {
    fn round(&mut self, length: Duration) -> Result<Sample, BenchError> {
        self.restart.borrow_mut().round(length, self.way)
    }
}

impl Restart {
    /// Traffic for `length`, then the restart.
    fn round(&mut self, length: Duration, way: Way) -> Result<Sample, BenchError> {
        self.until_all_have_got_one(Instant::now())?;
        self.streams().for_each(|stream| {
            stream.look(|arrivals| (arrivals.longest, arrivals.failed) = (Duration::ZERO, 0));
        });
        thread::sleep(length);
        match way {
            Way::HandOver => self.hosts[0].hand_over()?,
            Way::StopAndStart => {
                self.hosts[0].drain()?;
                self.hosts[0].start(&[])?;
            }
        }
        let anew = Instant::now();
        self.until_all_have_got_one(anew)?;
        let gap = |stream: &Stream| stream.look(|arrivals| arrivals.longest).as_secs_f64() * 1e3;
        let failed: u64 = self.pushes.iter().map(|stream| stream.look(|arrivals| arrivals.failed)).sum();
        let mut sample = Sample::figure(Metric::Gap, gap(&self.pushes[0]));
        sample.figures.extend([(Metric::PeerGap, gap(&self.pushes[1])), (Metric::FailedCalls, failed as f64)]);
        sample.figures.extend([(Metric::PullGap, gap(&self.pulls[0])), (Metric::PeerPullGap, gap(&self.pulls[1]))]);
        Ok(sample)
    }
}

impl Host {
    fn socket(&self) -> PathBuf {
        self.directory.join(self.name)
    }

    fn log(&self) -> PathBuf {
        self.directory.join(self.name).with_extension("log")
    }

    fn command(&self, command: &str) -> Command {
        let mut made = Command::new(programs::find("sealane"));
        made.arg(command).arg("--socket").arg(self.socket()).current_dir(&self.directory);
        made.stdin(Stdio::null()).stdout(Stdio::null());
        made
    }

    fn start(&mut self, arguments: &[&str]) -> Result<(), BenchError> {
        let mut daemon = self.command("daemon");
        daemon.args(arguments);
        // One shard, as the daemons of other measurements have; all else is as by default.
        daemon.args(["--endpoint-map", ".endpoint_map", "--metrics", "off", "--set", "runtime.shards=1"]);
        daemon.args(self.tasks.iter().flat_map(|task| ["--task", task]));
        daemon.arg("--end-with").arg(std::process::id().to_string());
        let log = File::options().create(true).append(true).open(self.log()).map_err(io("make a daemon's log"))?;
        self.daemon = Some(daemon.stderr(log).spawn().map_err(io("start a daemon"))?);
        Ok(())
    }

    /// Has another daemon take over, and has the first one's end when this returns.
    fn hand_over(&mut self) -> Result<(), BenchError> {
        let Some(mut daemon) = self.daemon.take() else { unreachable!("it was started") };
        self.start(&["--take-over"])?;
        let begun = Instant::now();
        loop {
            match daemon.try_wait().map_err(io("wait for a daemon"))? {
                Some(ended) if ended.success() => return Ok(()),
                Some(ended) => return Err(self.failed("hand over to a daemon", ended)),
                None => {}
            }
            if let Some(Ok(Some(ended))) = self.daemon.as_mut().map(Child::try_wait) {
                // The first one serves on.
                self.daemon = Some(daemon);
                return Err(self.failed("hand over to a daemon", ended));
            }
            if begun.elapsed() > START_LIMIT {
                self.daemon.replace(daemon).map(|mut next| next.kill());
                return Err(BenchError::Stalled { system: "sealane", waited: START_LIMIT });
            }
            thread::sleep(LOOK);
        }
    }

    /// Runs `sealane drain`, and has the daemon's end when this returns.
    fn drain(&mut self) -> Result<(), BenchError> {
        let drained = self.command("drain").stderr(Stdio::null()).status().map_err(io("start `sealane drain`"))?;
        if !drained.success() {
            return Err(self.failed("drain a daemon", drained));
        }
        let Some(mut daemon) = self.daemon.take() else { unreachable!("it was started") };
        let ended = daemon.wait().map_err(io("wait for a daemon"))?;
        if ended.success() { Ok(()) } else { Err(self.failed("drain a daemon", ended)) }
    }

    /// Attaches to a daemon that may just have been started.
    fn attach(&mut self, task: &str) -> Result<Task, BenchError> {
        let begun = Instant::now();
        loop {
            let error = match Attach::new(task).socket(self.socket()).attach() {
                Ok(task) => return Ok(task),
                Err(error) => error,
            };
            if let Some(Ok(Some(ended))) = self.daemon.as_mut().map(Child::try_wait) {
                return Err(self.failed("start a daemon", ended));
            }
            if begun.elapsed() > START_LIMIT {
                return Err(BenchError::sealane("attach")(error));
            }
            thread::sleep(LOOK);
        }
    }

    fn failed(&self, operation: &'static str, ended: ExitStatus) -> BenchError {
        let log = std::fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().rev().take(LOG_LINES).collect();
        let last = lines.into_iter().rev().collect::<Vec<_>>().join("; ");
        BenchError::sealane(operation)(format!("{ended}; its log ends with: {last}"))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let Some(mut daemon) = self.daemon.take() else { return };
        // One that is gone is what is wanted.
        let _ = daemon.kill();
        let _ = daemon.wait();
    }
}

impl Stream {
    fn to(worker: &Task) -> Stream {
        let arrivals = Arrivals { last: Instant::now(), longest: Duration::ZERO, count: 0, failed: 0 };
        let (arrivals, stop) = (Arc::new(Mutex::new(arrivals)), Arc::new(AtomicBool::new(false)));
        Stream { arrivals, stop, threads: Vec::new(), _worker: worker.clone() }
    }

    fn of_pulls(worker: &Task) -> Result<Stream, sealane::Error> {
        let mut plan = worker.plan(PS, Keys::new(["0"])?);
        let mut stream = Stream::to(worker);
        stream.spawn(move |arrivals| {
            note(arrivals, plan.pull_within(1, STALL_LIMIT).wait().map(|()| true));
            thread::sleep(PACE);
        });
        Ok(stream)
    }

    fn of_pushes(ps: &Task, worker: &Task, size_bytes: usize) -> Stream {
        let acceptor = worker.acceptor(QUEUE, AcceptOptions::default());
        let options = || SendOptions { timeout: Some(STALL_LIMIT) };
        let (ps, to) = (ps.clone(), worker.name().to_owned());
        let mut stream = Stream::to(worker);
        stream.spawn(move |arrivals| {
            let tensor = Tensor::from_elements(&[size_bytes as u64], &vec![1_u8; size_bytes]);
            let pushed = tensor.and_then(|tensor| ps.push_with(&to, QUEUE, tensor, options()).wait());
            note(arrivals, pushed.map(|()| false));
            thread::sleep(PACE);
        });
        stream.spawn(move |arrivals| note(arrivals, accept(&acceptor)));
        stream
    }

    /// Does a thing again and again until the end.
    fn spawn(&mut self, mut again: impl FnMut(&Mutex<Arrivals>) + Send + 'static) {
        let (arrivals, stop) = (self.arrivals.clone(), self.stop.clone());
        self.threads.push(thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                again(&arrivals);
            }
        }));
    }

    fn look<T>(&self, look: impl FnOnce(&mut Arrivals) -> T) -> T {
        look(&mut self.arrivals.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // A thread that has panicked has said so.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// True if a tensor came.
fn accept(acceptor: &Acceptor) -> Result<bool, sealane::Error> {
    Ok(acceptor.accept().wait_within(ACCEPT_TIME)?.is_some())
}

/// Notes a tensor that came, or a call that failed and is to be made again.
fn note(arrivals: &Mutex<Arrivals>, came: Result<bool, sealane::Error>) {
    let now = Instant::now();
    let mut arrivals = arrivals.lock().unwrap_or_else(PoisonError::into_inner);
    match came {
        Ok(false) => {}
        Ok(true) => {
            arrivals.longest = arrivals.longest.max(now - arrivals.last);
            (arrivals.last, arrivals.count) = (now, arrivals.count + 1);
        }
        Err(error) => {
            arrivals.failed += 1;
            drop(arrivals);
            tracing::debug!(%error, "a call is made again");
            thread::sleep(LOOK);
        }
    }
}

/// The tasks of each daemon at an address of their own, which was free a moment ago: a daemon that is started anew has to
/// bind it by itself, as any does.
fn endpoint_map(tasks: &[Vec<&str>]) -> Result<String, BenchError> {
    let listeners: Vec<TcpListener> = tasks
        .iter()
        .map(|_| TcpListener::bind("127.0.0.1:0"))
        .collect::<Result<_, _>>()
        .map_err(io("find free ports on 127.0.0.1"))?;
    let mut map = String::new();
    for (listener, tasks) in listeners.iter().zip(tasks) {
        let address = listener.local_addr().map_err(io("find free ports on 127.0.0.1"))?;
        map.extend(tasks.iter().map(|task| format!("{task}={address}\n")));
    }
    Ok(map)
}

fn io(operation: &'static str) -> impl Fn(std::io::Error) -> BenchError + Copy {
    move |source| BenchError::Io { operation: operation.to_owned(), source }
}
