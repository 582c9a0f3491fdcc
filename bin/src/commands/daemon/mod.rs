//! `sealane daemon`: carries the tensors of all tasks of a host. The shards move them; the main thread, the *control
//! thread*, serves clients that attach, signals and changes of the endpoint map.

mod connecting;
mod connections;
mod control;
mod drain;
mod gate;
mod hand_over;
mod instruments;
mod measuring;
pub(super) mod metrics;
mod next;
mod readiness;
mod refusals;
mod rehearsal;
mod reload;
mod service_manager;
mod signals;
pub(crate) mod socket;
mod take_over;
mod tasks;
mod watch;

use std::io::stdin;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, raise};
use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::{Pid, geteuid, getppid};
use sealane_fusion::{Engine, EngineSettings, Portion};
use sealane_transport::JobName;
use sealane_transport::endpoint_map::TaskName;

use self::connections::Connections;
use self::control::Control;
use self::gate::Gate;
use self::instruments::Instruments;
use self::metrics::{Metrics, MetricsListener};
use self::next::NextDaemon;
use self::readiness::Readiness;
pub(crate) use self::rehearsal::{Rehearsal, rehearse};
use self::reload::{Files, MapInUse};
use self::signals::Signals;
use self::socket::{Claim, ClientSocket};
use self::take_over::{Predecessor, Serving};
use self::watch::Watch;
use crate::flags::{SettingsFlags, path_override};
use crate::settings::{Override, Settings};
use crate::trace::TraceFile;
use crate::{Context, Failure, host, log};

/// Run the daemon that carries the tensors of this host's tasks
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  sealane daemon --endpoint-map jobs/.endpoint_map --role ps")]
pub struct Args {
    #[command(flatten)]
    settings: SettingsFlags,

    /// A task to serve; repeatable [default: every task whose transport address belongs to this host]
    #[arg(long, value_name = "ADDR")]
    task: Vec<String>,

    #[command(flatten)]
    places: PlacesFlags,

    /// Write a trace of every call to a file; open it in ui.perfetto.dev for a timeline
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Take the place of the daemon that serves at the socket, if there is one
    ///
    /// It serves until this one has populated its memory, then drains and hands its listening sockets and CPUs over: no caller is
    /// refused in between. If this one fails first, the other serves on. Until then both have their memory. A daemon that gets
    /// SIGUSR2 starts the next one itself, with its own command line and this flag: so a service is exchanged by
    /// `systemctl kill --kill-whom=main -s USR2`.
    #[arg(long)]
    take_over: bool,

    /// Take the listening socket that is standard input for the one transport address of the tasks, as inetd's servers do: a
    /// port that the command which starts this daemon merely named could be another program's by then
    #[arg(long, hide = true, conflicts_with = "take_over")]
    listener_on_stdin: bool,

    /// End once that process, which started this one, has ended
    #[arg(long, hide = true, value_name = "PID")]
    end_with: Option<i32>,
}

/// Where a daemon is found.
#[derive(Debug, clap::Args)]
pub(crate) struct PlacesFlags {
    /// Where clients attach
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Name of the job: clients and peers of another job are refused
    #[arg(long, value_name = "NAME")]
    job: Option<String>,

    /// Address to serve metrics on over HTTP, such as 127.0.0.1:9490, or off
    #[arg(long, value_name = "ADDR")]
    metrics: Option<String>,
}

impl PlacesFlags {
    pub(crate) fn overrides(&self) -> Result<impl Iterator<Item = Override>, Failure> {
        let metrics = self.metrics.as_ref().map(|address| Override::new("--metrics", "daemon.metrics", address));
        let job = self.job.as_ref().map(|name| Override::new("--job", "daemon.job", name));
        Ok(socket_override(self.socket.as_ref())?.into_iter().chain(job).chain(metrics))
    }
}

/// Beginning of the line that announces that the daemon serves and that clients can attach.
const ANNOUNCEMENT: &str = "sealane daemon: serves ";

/// Runs `sealane daemon`, until a signal or `sealane drain` ends it.
///
/// # Errors
///
/// The settings or the endpoint map are wrong, the socket or a transport address is in use, or the shards cannot be
/// started or stopped.
pub fn run(args: &Args, context: &Context, log_is_json: bool) -> Result<(), Failure> {
    let settings = context.settings(&args.settings, args.places.overrides()?)?;
    for (_, says, remedy) in settings.warnings() {
        tracing::warn!("{says}; {remedy}");
    }
    // Before any thread starts, so that all inherit the signal mask.
    let signals = Signals::take()?;
    args.end_with_parent()?;
    let listeners = args.listeners()?;
    allow_many_descriptors();
    let map = rehearsal::map(&settings)?;
    let map_now = map.snapshot();
    let tasks = rehearsal::tasks(&map_now, &settings, &args.task)?;
    let names: Vec<&str> = tasks.iter().map(TaskName::as_str).collect();
    let who = format!("sealane daemon of {}", names.join(", "));
    let tracing = args.trace.as_ref().map(|path| TraceFile::begin(path, &who)).transpose()?;
    // Kept until the engine has stopped, so that the file is complete.
    let (trace, _trace_file) = tracing.unzip();
    let settled = |shared: &[usize]| -> Result<EngineSettings, Failure> {
        let engine = rehearsal::engine(&settings, &map_now, &tasks, shared)?;
        let slabs_bytes = (engine.slab_send_bytes + engine.slab_receive_bytes) as u64;
        host::check_memory_limit(slabs_bytes.saturating_mul(engine.runtime.shards as u64))?;
        Ok(EngineSettings { trace, ..engine })
    };
    let gate = Gate::new(&settings.daemon, geteuid().as_raw());
    let open_to_others = gate.is_open_to_others();
    // Before the engine starts: a second daemon should report the first one, not a port that is in use.
    let path = &settings.daemon.socket.value;
    let job = settings.daemon.job.value.as_ref();
    let found = if args.take_over { Predecessor::find(path, job)? } else { Err(Claim::take(path)?) };
    let serving = match found {
        Err(claim) => {
            let metrics = MetricsListener::bind(&settings.daemon.metrics)?;
            let engine = settled(&[])?;
            let engine = Engine::start(EngineSettings { listeners, ..engine }).map_err(Failure::work)?;
            Serving { engine, socket: claim.listen(open_to_others)?, metrics }
        }
        Ok(mut predecessor) => {
            let metrics = predecessor.bind_metrics(&settings)?;
            let engine = settled(predecessor.cpus())?;
            let prepared = predecessor.prepare(engine)?;
            predecessor.take_over(prepared, metrics, (&settings, &signals, open_to_others))?
        }
    };
    let engine = serving.engine.clone();
    let map = MapInUse::new(map, args.task.is_empty());
    let served = serve(&settings, serving, gate, map, signals, log_is_json);
    let stopped = engine.stop().map_err(|error| Failure::work(format!("the daemon did not stop cleanly: {error}")));
    // Clients learn from the engine how their calls ended before they see their connection end.
    drop(served?);
    stopped
}

impl Args {
    /// The listening sockets; empty if the transport addresses are to be bound.
    ///
    /// # Errors
    /// Standard input is no listening socket.
    fn listeners(&self) -> Result<Vec<TcpListener>, Failure> {
        if !self.listener_on_stdin {
            return Ok(Vec::new());
        }
        let stdin = stdin();
        match getsockopt(&stdin, sockopt::AcceptConn) {
            Ok(true) => {}
            Ok(false) | Err(_) => return Err(Failure::input("standard input is not a listening socket")),
        }
        let listener = stdin.as_fd().try_clone_to_owned();
        listener.map(|listener| vec![listener.into()]).map_err(Failure::work)
    }

    /// From now on, the parent's end acts like a service manager's signal.
    ///
    /// # Errors
    /// The kernel refuses.
    fn end_with_parent(&self) -> Result<(), Failure> {
        let Some(parent) = self.end_with else { return Ok(()) };
        let refused = |error: Errno| Failure::work(format!("process {parent} cannot be watched ({error})"));
        set_pdeathsig(Signal::SIGTERM).map_err(refused)?;
        // It may already have ended.
        if getppid() == Pid::from_raw(parent) { Ok(()) } else { raise(Signal::SIGTERM).map_err(refused) }
    }
}

/// Serves until the end; returns what must outlive the engine.
fn serve(
    settings: &Settings,
    Serving { engine, socket, metrics }: Serving,
    gate: Gate,
    map: MapInUse,
    signals: Signals,
    log_is_json: bool,
) -> Result<Control, Failure> {
    let instruments = Instruments::new(engine.clone(), settings.daemon.job.value.clone());
    let metrics = metrics.map(|listener| listener.serve(instruments.clone())).transpose()?;
    announce((&engine, settings.daemon.job.value.as_ref()), &map, &socket, metrics.as_ref(), log_is_json);
    let mut control = Control {
        portion: Portion {
            shards: engine.shards(),
            area_bytes: settings.daemon.area_bytes.value,
            request_timeout: settings.fusion.request_timeout.value,
            tensor_bytes_max: settings.transport.tensor_bytes_max.value,
            views: settings.daemon.views.value,
            direct_lanes: settings.daemon.direct_lanes.value,
            job: settings.daemon.job.value.clone(),
        },
        metrics,
        metrics_listener: None,
        gate,
        files: Files {
            map,
            security: settings.security.clone(),
            watch: watch(settings).map(Arc::new),
            engine: engine.clone(),
            instruments: instruments.clone(),
        },
        rereading: None,
        engine,
        instruments,
        drain_timeout: settings.daemon.drain_timeout.value,
        socket,
        signals,
        readiness: Readiness::new()?,
        connections: Connections::default(),
        refusals: refusals::Refusals::default(),
        accept_from: None,
        listening: true,
        drain: None,
        heir: None,
        next: NextDaemon::of_this(),
    };
    control.run().map(|()| control)
}

fn watch(settings: &Settings) -> Option<Watch> {
    let mut files = vec![settings.transport.endpoint_map.value.as_path()];
    files.extend(settings.security.peers.files());
    match Watch::new(&files) {
        Ok(watch) => Some(watch),
        Err(error) => {
            tracing::warn!(%error, "changes of the endpoint map and of credentials are not detected, send SIGHUP to reload them; is fs.inotify.max_user_instances reached?");
            None
        }
    }
}

/// Announces the start: one line for people who start the daemon by hand, and for programs in the log's own form.
fn announce(
    (engine, job): (&Engine, Option<&JobName>),
    map: &MapInUse,
    socket: &ClientSocket,
    metrics: Option<&Metrics>,
    is_json: bool,
) {
    let serves = tasks::by_address(&map.snapshot(), &engine.tasks());
    let path = socket.path().display();
    let job = job.map_or_else(String::new, |job| format!(" of job '{job}'"));
    let metrics =
        metrics.map_or_else(String::new, |metrics| format!("; metrics at http://{}/metrics", metrics.address()));
    let line = format!("{ANNOUNCEMENT}{serves}{job}; clients attach at {path}{metrics}");
    if is_json {
        tracing::info!("{line}");
    } else {
        log::write_line(&line);
    }
}

/// The override by a flag with the daemon's socket.
pub(crate) fn socket_override(flag: Option<&PathBuf>) -> Result<Option<Override>, Failure> {
    path_override("--socket", "daemon.socket", flag)
}

/// Raises the descriptor limit: every link, client and shard of a client needs a descriptor, and the usual soft limit of 1024 is
/// meant for programs that use `select`, which this one does not.
pub(crate) fn allow_many_descriptors() {
    let raised =
        getrlimit(Resource::RLIMIT_NOFILE).and_then(|(_, most)| setrlimit(Resource::RLIMIT_NOFILE, most, most));
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit on open files could not be raised");
    }
}
