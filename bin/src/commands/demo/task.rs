//! One task of the demo, in a process of its own: its share of the workload, what moves that (the host's daemon, or an engine in
//! this process), and the orders of the parent. Makes and compares bytes on the main thread.

use std::collections::VecDeque;
use std::fmt::Display;
use std::io::{self, BufRead, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use sealane::{Attach, Engine, EngineSettings, Polling, Sending, Task};
use sealane_fusion::{EndpointMap, Error, Tensor};
use sealane_runtime::Pin;

use super::protocol::{Fetched, Job, Order, Part, Report};
use super::share::Share;
use crate::arena_size::arena_bytes;
use crate::engine_settings::short_lived_engine_settings;
use crate::figures::Shard;
use crate::flags::SettingsFlags;
use crate::settings::{Runtime, Settings, Source, Sourced};
use crate::workload::Workload;
use crate::{Context, Failure, locked_memory};

/// How long a request of the demo waits: far longer than any transfer here, short enough to see a demo fail.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Slabs of a demo's engine where no setting gives them: its tensors bring their own memory.
pub(super) const SLAB_BYTES: usize = 1 << 20;
/// Orders read ahead of the one that is carried out; the parent sends one at a time.
const ORDERS_MAX: usize = 2;

/// What `sealane demo` starts its tasks with.
#[derive(Debug, clap::Args)]
#[command(hide = true, after_help = "Example:\n  sealane demo-task  # started by `sealane demo`, not by hand")]
pub struct TaskArgs {
    /// As in `sealane demo`
    #[arg(long)]
    config: Option<PathBuf>,
    /// As in `sealane demo`
    #[arg(long)]
    set: Vec<String>,
}

/// Runs one task of the demo.
///
/// # Errors
///
/// Standard output cannot be written. Whatever else goes wrong is reported to the parent, which ends this process.
pub fn run_task(args: &TaskArgs, context: &Context) -> Result<(), Failure> {
    leave_signals_to_parent()?;
    let orders = read_orders();
    if let Err(reason) = serve(&orders, args, context) {
        report(&Report::Failed { reason })?;
        // The parent has the reason and closes standard input, which ends the process.
        while orders.recv().is_ok() {}
    }
    Ok(())
}

/// In a task: only what is sent to it alone ends it.
///
/// # Errors
/// The kernel refuses.
fn leave_signals_to_parent() -> Result<(), Failure> {
    let of_terminal: SigSet = [Signal::SIGINT, Signal::SIGHUP].into_iter().collect();
    let of_kill: SigSet = [Signal::SIGTERM].into_iter().collect();
    of_terminal
        .thread_block()
        .and_then(|()| of_kill.thread_unblock())
        .map_err(|error| Failure::work(format!("signals cannot be set up ({error})")))
}

/// Reads orders on a thread of its own, so that the end of standard input ends the process whatever it waits for.
fn read_orders() -> Receiver<Result<Order, String>> {
    let (sender, receiver) = mpsc::sync_channel(ORDERS_MAX);
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            let order = serde_json::from_str(&line).map_err(|error| format!("an order cannot be read ({error})"));
            let is_last = matches!(order, Ok(Order::Finish));
            // Nobody listens once the work has ended.
            if sender.send(order).is_err() || is_last {
                return;
            }
        }
        std::process::exit(1);
    });
    receiver
}

fn report(report: &Report) -> Result<(), Failure> {
    let mut line = serde_json::to_vec(report).map_err(Failure::work)?;
    line.push(b'\n');
    let mut out = io::stdout().lock();
    out.write_all(&line).and_then(|()| out.flush()).map_err(Failure::work)
}

fn serve(orders: &Receiver<Result<Order, String>>, args: &TaskArgs, context: &Context) -> Result<(), String> {
    let next = || orders.recv().map_err(|_| "the orders ended".to_owned())?;
    let report = |answer| report(&answer).map_err(told);
    let too_early = |order: Order| Err(format!("told to {order:?} before it had started"));
    let mut player = match next()? {
        Order::Begin(job) => {
            let listener = TcpListener::bind("127.0.0.1:0");
            let listener = listener.map_err(|error| format!("no port is available on 127.0.0.1 ({error})"))?;
            report(Report::Listening { address: listener.local_addr().map_err(told)? })?;
            match next()? {
                Order::Start { endpoint_map } => embed(&job, listener, &endpoint_map, args, context).map_err(told)?,
                order => return too_early(order),
            }
        }
        Order::Attach { job, socket, spin } => attach(&job, &socket, spin, args, context).map_err(told)?,
        order => return too_early(order),
    };
    report(Report::Ready)?;
    loop {
        report(match next()? {
            Order::Fill { step } => player.fill(step).map_err(told)?,
            Order::Fetch { step } => player.fetch(step).map_err(told)?,
            Order::Verify { step } => {
                let (tensors, bytes) = player.share.verify(step)?;
                Report::Verified { tensors, bytes }
            }
            Order::ShowShards => Report::Shards(player.shards()),
            Order::Finish => return player.finish().map_err(told),
            order => return Err(format!("told to {order:?} after it had started")),
        })?;
    }
}

fn told(error: impl Display) -> String {
    error.to_string()
}

/// With an engine in this process.
fn embed(
    job: &Job,
    listener: TcpListener,
    endpoint_map: &Path,
    args: &TaskArgs,
    context: &Context,
) -> Result<Player, Failure> {
    let settings = settings(job.part, &args.config, &args.set, context)?;
    let task = job.task();
    let pin = if job.pin { Pin::IfFree } else { Pin::Off };
    let engine = short_lived_engine_settings(&settings, EndpointMap::load(endpoint_map)?, &[&task], pin)?;
    let Runtime { slab_send_bytes, slab_receive_bytes, .. } = &settings.runtime;
    let engine = EngineSettings {
        listeners: vec![listener],
        slab_send_bytes: given_or(slab_send_bytes, SLAB_BYTES),
        slab_receive_bytes: given_or(slab_receive_bytes, SLAB_BYTES),
        connect_timeout: engine.connect_timeout.min(REQUEST_TIMEOUT),
        request_timeout: engine.request_timeout.min(REQUEST_TIMEOUT),
        ..engine
    };
    locked_memory::check(&engine)?;
    let window = engine.session.window;
    let engine = Engine::start(engine).map_err(Failure::work)?;
    let task = engine.task(&task).map_err(Failure::work)?.into();
    Player::new(job, &workload(job)?, task, Some(engine), window)
}

/// As a client of the daemon at `socket`.
fn attach(job: &Job, socket: &Path, spin: bool, args: &TaskArgs, context: &Context) -> Result<Player, Failure> {
    let settings = settings(job.part, &args.config, &args.set, context)?;
    let workload = workload(job)?;
    let how = Attach::new(&job.task())
        .socket(socket)
        .arena_bytes(arena_bytes(Share::new(job, &workload).lengths()))
        // The memory is made meanwhile.
        .timeout(REQUEST_TIMEOUT)
        .polling(polling(&settings.runtime, spin));
    let task = how.attach().map_err(Failure::work)?;
    Player::new(job, &workload, task, None, settings.transport.window.value)
}

fn workload(job: &Job) -> Result<Workload, Failure> {
    Workload::parse(&job.workload, "the workload")
}

/// A client waits as a shard does, where a setting says how.
fn polling(runtime: &Runtime, spin: bool) -> Polling {
    match (runtime.polling.value, &runtime.idle_spin) {
        (true, _) => Polling::Spin,
        (false, Sourced { source: Source::Default, .. }) if spin => Polling::idle(Attach::IDLE_SPIN),
        (false, Sourced { source: Source::Default, .. }) => Polling::Park,
        (false, idle_spin) => Polling::idle(idle_spin.value),
    }
}

/// A task that can move its tensors: by a client's calls on the task's main thread, which also looks for the answers.
struct Player {
    share: Share,
    task: Task,
    /// The engine in this process; `None` if the task is attached to a daemon.
    engine: Option<Engine>,
    /// Bounds the recvs in flight from each peer.
    window: usize,
    /// What was offered and may not have been released.
    offered: Vec<Sending>,
}

impl Player {
    fn new(
        job: &Job,
        workload: &Workload,
        task: Task,
        engine: Option<Engine>,
        window: usize,
    ) -> Result<Player, Failure> {
        let mut share = Share::new(job, workload);
        // Tensors move from such memory, and into it, without another copy in this process.
        share.take_memory(|bytes| task.alloc(bytes)).map_err(Failure::work)?;
        Ok(Player { share, task, engine, window, offered: Vec::new() })
    }

    /// Also sees the offers of the step before end: then their memory is free to be used again.
    fn fill(&mut self, step: i64) -> Result<Report, Error> {
        self.settle()?;
        self.share.fill(step, |bytes| self.task.alloc(bytes))?;
        for (peer, tensors) in self.share.offers() {
            self.offered.extend(self.task.send_all(&peer, step, tensors));
        }
        Ok(Report::Filled)
    }

    /// Waits until the peers have all that was offered.
    fn settle(&mut self) -> Result<(), Error> {
        self.offered.drain(..).try_for_each(Sending::wait)
    }

    /// Receives tensors from all peers at once into their memory, a window of requests to each.
    fn fetch(&mut self, step: i64) -> Result<Report, Error> {
        // All memory is lent before the first request, whose time begins to count.
        let mut waiting = self.share.wanted();
        let start = Instant::now();
        let mut fetched: Vec<_> = (0..waiting.len()).map(|peer| Fetched { peer, ..Fetched::default() }).collect();
        let mut arrived: Vec<Vec<Tensor>> = waiting.iter().map(|_| Vec::new()).collect();
        let mut ask_next = |number: usize| {
            let (peer, wanted) = &mut waiting[number];
            let (key, destination) = wanted.next()?;
            Some((number, Instant::now(), self.task.recv_into(peer, step, &key, destination)))
        };
        // In turn, so that none waits for all requests to another.
        let turns = (0..self.window).flat_map(|_| 0..fetched.len());
        let mut in_flight: VecDeque<_> = turns.filter_map(&mut ask_next).collect();
        // Answers come in the order of the requests, or nearly so.
        while let Some((number, asked, receiving)) = in_flight.pop_front() {
            arrived[number].push(receiving.wait()?);
            let from = &mut fetched[number];
            from.latencies_ns.push(nanoseconds(asked.elapsed()));
            from.elapsed_ns = nanoseconds(start.elapsed());
            in_flight.extend(ask_next(number));
        }
        for (from, tensors) in fetched.iter_mut().zip(arrived) {
            from.tensors = tensors.len() as u64;
            from.bytes = self.share.arrived_from(from.peer, tensors);
        }
        Ok(Report::Fetched(fetched))
    }

    /// What the shards of an engine in this process show.
    fn shards(&self) -> Vec<Shard> {
        self.engine.iter().flat_map(Engine::figures).map(Shard::from).collect()
    }

    /// Ends it in good order.
    fn finish(mut self) -> Result<(), Error> {
        // A daemon that still waits for releases would drain until its time is over.
        self.settle()?;
        let stopped = self.engine.map_or(Ok(()), |engine| engine.stop());
        stopped.map_err(|error| Error::unavailable("this engine", error.to_string()))
    }
}

/// The settings of a demo's task.
pub(super) fn settings(
    part: Part,
    config: &Option<PathBuf>,
    set: &[String],
    context: &Context,
) -> Result<Settings, Failure> {
    let role = Some(part.role());
    context.settings(&SettingsFlags { endpoint_map: None, role, config: config.clone(), set: set.to_vec() })
}

/// What a flag, a variable or a file gives, or else what suits a demo.
fn given_or<T: Copy>(setting: &Sourced<T>, demo: T) -> T {
    if setting.source == Source::Default { demo } else { setting.value }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
