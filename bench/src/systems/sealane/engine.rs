//! The engines that are measured: one shard each, with an engine's default settings except for what a measurement is about; and the
//! memory of tensors on both sides: over verbs in the shard's slab, which is registered once and as large as the plan needs, else
//! on the heap.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use bytes::Bytes;
use sealane_fusion::metrics::SHOW_INTERVAL;
use sealane_fusion::{Buffer, EndpointMap, Engine, EngineSettings, Error, Fuse as EngineFuse, LocalEngine};
use sealane_runtime::{Pin, Polling};
use sealane_transport::provider::LinkProvider;
use sealane_transport::tcp::{TcpSettings, listen};
use sealane_transport::verbs::device::{Device, VerbsError};
use sealane_transport::verbs::{self, Verbs, VerbsSettings};

use crate::error::BenchError;
use crate::limits::FILL;
use crate::machine::RdmaDevice;
use crate::plan::{Fuse, Keys, Link, Plan};
use crate::systems::training::Moved;

/// A resting system is neither pinged nor given up: its peer process is stopped on purpose.
pub(super) const PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// Settings of an engine that serves these tasks, over verbs if any are given.
pub(super) fn settings<T: AsRef<str>>(
    plan: &Plan,
    map: &str,
    tasks: &[T],
    listeners: Vec<TcpListener>,
    verbs: Option<Verbs>,
) -> Result<EngineSettings, BenchError> {
    let map = EndpointMap::parse(map, "the bench's endpoint map").map_err(BenchError::sealane("start"))?;
    let tasks: Vec<&str> = tasks.iter().map(AsRef::as_ref).collect();
    let mut settings = EngineSettings::new(map, &tasks).map_err(BenchError::sealane("start"))?;
    settings.listeners = listeners;
    settings.tcp = tcp_settings(plan);
    settings.links = verbs.map(|verbs| Arc::new(verbs) as Arc<dyn LinkProvider>).into_iter().collect();
    settings.runtime.polling = if plan.polling { Polling::Spin } else { Polling::default() };
    settings.runtime.executor = plan.executor.into();
    // The harness has pinned this thread, and a shard's thread inherits that.
    settings.runtime.pin = Pin::Off;
    Ok(settings)
}

/// Lets an engine tolerate that it, or its peer, is stopped while others are measured.
pub(super) fn let_rest(settings: &mut EngineSettings) {
    settings.session.heartbeat = PATIENCE;
    settings.session.peer_timeout = PATIENCE;
    settings.runtime.stall_report = Duration::ZERO;
}

pub(super) fn fuse(plan: &Plan) -> EngineFuse {
    if plan.fuse == Fuse::Off { EngineFuse::Off } else { EngineFuse::Turn }
}

pub(super) fn start(settings: EngineSettings) -> Result<Engine, BenchError> {
    Engine::start(settings).map_err(BenchError::sealane("start"))
}

/// A listening socket like an engine's own, on a port of `ip` that the system chooses, and its address.
pub(super) fn listener(plan: &Plan, ip: IpAddr) -> Result<(TcpListener, SocketAddr), BenchError> {
    let any_port = SocketAddr::new(ip, 0);
    let socket = listen(any_port, &tcp_settings(plan)).map_err(BenchError::sealane("set up its socket"))?;
    let listener = TcpListener::from(socket);
    let address = listener.local_addr().map_err(BenchError::io("find the port"))?;
    Ok((listener, address))
}

/// Runs a function on the engine's shard, and waits for its result.
pub(super) fn on_shard<T: Send + 'static>(
    engine: &Engine,
    operation: &'static str,
    work: impl AsyncFnOnce(LocalEngine) -> Result<T, Error> + Send + 'static,
) -> Result<T, BenchError> {
    let ended = engine.on_shard(0, work).wait().map_err(BenchError::sealane(operation))?;
    ended.map_err(BenchError::sealane(operation))
}

/// What has moved between an engine and its peers, once its figures are newer than this call.
pub(super) fn moved(engine: &Engine) -> Result<Moved, BenchError> {
    let pass = engine.on_shard(0, async |shard| shard.shard().sleep(SHOWN_AFTER).await);
    pass.wait().map_err(BenchError::sealane("train"))?;
    Ok(shown(engine))
}

/// How long after an event an engine's figures include it.
pub(super) const SHOWN_AFTER: Duration = SHOW_INTERVAL.saturating_mul(2);

/// What has moved, according to the engine's current figures.
pub(super) fn shown(engine: &Engine) -> Moved {
    let figures = engine.figures();
    let peers = figures.iter().flat_map(|shard| &shard.peers);
    peers.fold(Moved::default(), |moved, peer| Moved {
        messages: moved.messages + peer.counters.messages_sent + peer.counters.messages_received,
        bytes: moved.bytes + peer.counters.bytes_sent + peer.counters.bytes_received,
    })
}

/// An engine of this process that rests while others are measured: a spinning shard would take their CPU, so its thread is blocked.
/// Dropping this stops it.
pub(super) struct Measured {
    pub(super) engine: Engine,
    resume: Option<mpsc::Sender<()>>,
}

impl Measured {
    /// Resting at first.
    pub(super) fn new(engine: Engine) -> Self {
        let mut measured = Self { engine, resume: None };
        measured.rest();
        measured
    }

    pub(super) fn rest(&mut self) {
        let (resume, resumed) = mpsc::channel::<()>();
        self.resume = Some(resume);
        drop(self.engine.on_shard(0, async move |_| {
            let _ = resumed.recv();
        }));
    }

    pub(super) fn resume(&mut self) {
        self.resume = None;
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        self.resume();
        if let Err(error) = self.engine.stop() {
            eprintln!("the measured engine did not stop cleanly: {error}");
        }
    }
}

pub(super) struct Links<'a> {
    pub(super) listener: TcpListener,
    pub(super) verbs: Option<Verbs>,
    pub(super) keys: Option<&'a Keys>,
}

/// Starts an engine that serves one of the two tasks, or both.
pub(super) fn start_pair(
    plan: &Plan,
    map: String,
    tasks: &[&str],
    Links { listener, verbs, keys }: Links<'_>,
    request_timeout: Duration,
) -> Result<Engine, BenchError> {
    let mut settings = settings(plan, &map, tasks, vec![listener], verbs)?;
    let_rest(&mut settings);
    settings.session.window = plan.window;
    settings.request_timeout = request_timeout;
    settings.slab_send_bytes = slab_bytes(plan);
    if let Some(keys) = keys {
        settings.authentication = keys.authentication()?;
    }
    settings.fuse = fuse(plan);
    if matches!(plan.link, Link::Shm | Link::Loopback) {
        settings.session.parked_requests_max = settings.session.parked_requests_max.max(plan.window * 2);
    }
    start(settings)
}

fn tcp_settings(plan: &Plan) -> TcpSettings {
    TcpSettings { congestion: plan.congestion.clone().unwrap_or_default(), ..TcpSettings::default() }
}

/// Bytes of each slab beyond the plan's tensors: the largest window of small tensors, or a few large ones.
const SLAB_BYTES: usize = 64 << 20;

/// The largest block size that is a power of two; larger blocks are whole pages.
const SMALL_BLOCK_BYTES: usize = 64 << 10;
const PAGE_BYTES: usize = 4 << 10;
/// Bytes not used for whole tensors: partly used extents of small blocks, and bookkeeping.
const SLACK_BYTES: usize = 2 << 20;

/// Memory that stays with one tensor.
pub(super) fn buffer(shard: &LocalEngine, plan: &Plan, bytes: usize) -> Result<Buffer, Error> {
    match plan.link {
        Link::Verbs => shard.allocate(bytes),
        Link::Tcp | Link::Shm | Link::Loopback => Ok(Buffer::from_vec(vec![0; bytes])),
    }
}

/// The bytes of a tensor that is sent repeatedly, without a copy.
pub(super) fn filled(shard: &LocalEngine, plan: &Plan, bytes: usize) -> Result<Bytes, Error> {
    let mut memory = buffer(shard, plan, bytes)?;
    memory.fill(FILL);
    Ok(Bytes::from_owner(memory))
}

/// Bytes of the slab that both sides take their tensors from.
fn slab_bytes(plan: &Plan) -> usize {
    match plan.link {
        Link::Verbs => SLAB_BYTES + room_bytes(&lanes(plan)),
        Link::Tcp | Link::Shm | Link::Loopback => SLAB_BYTES,
    }
}

/// Bytes of a slab, an arena or an area that has room for tensors of these sizes: a quarter more, since free pages need not be
/// adjacent.
pub(super) fn room_bytes(sizes: &[usize]) -> usize {
    let block = |bytes: &usize| match *bytes {
        ..=SMALL_BLOCK_BYTES => bytes.next_power_of_two() + PAGE_BYTES,
        large => large + large / 4 + PAGE_BYTES,
    };
    SLACK_BYTES + sizes.iter().map(block).sum::<usize>()
}

/// The device of an engine, known once it is opened.
pub(super) type Opened = Arc<OnceLock<RdmaDevice>>;

/// Verbs settings for the plan, with the system's device; `None` if the link is not verbs.
pub(super) fn verbs_settings(plan: &Plan) -> Option<(Verbs, Opened)> {
    verbs_with(plan, verbs::open)
}

/// Like [`verbs_settings`], with the caller's device.
pub(super) fn verbs_with(
    plan: &Plan,
    open: impl Fn(&VerbsSettings) -> Result<Box<dyn Device>, VerbsError> + Send + Sync + 'static,
) -> Option<(Verbs, Opened)> {
    let (transfer, registration) = plan.verbs()?;
    let opened = Opened::default();
    let noted = Arc::clone(&opened);
    let open_and_note = move |settings: &VerbsSettings| {
        let device = open(settings)?;
        noted.get_or_init(|| RdmaDevice::from(device.attributes()));
        Ok(device)
    };
    let settings =
        VerbsSettings { transfer: transfer.into(), registration: registration.into(), ..VerbsSettings::default() };
    Some((Verbs { is_required: true, open: Arc::new(open_and_note), ..Verbs::new(settings) }, opened))
}

pub(super) const NAME: &str = "sealane";
pub(super) const PS: &str = "ps:1";
pub(super) const WORKER: &str = "worker:1";

/// The queue of a ps that gradients are pushed into.
pub(super) const QUEUE: &str = "gradients";

/// The key of the tensor that a consumer sends after a gap, and that the producer answers: otherwise a small tensor would arrive
/// during the gap.
pub(super) const ASKED: &str = "asked";

pub(super) fn ps_task(number: usize) -> String {
    format!("ps{number:03}:1")
}

/// The ps with this number: the one that the plan names, if it is measured through daemons.
pub(super) fn ps_of(plan: &Plan, number: usize) -> String {
    plan.daemon.as_ref().map_or_else(|| ps_task(number), |[_, ps]| ps.clone())
}

pub(super) fn key_of(tensor: usize) -> String {
    format!("layer_{tensor}/kernel")
}

/// Bytes of the tensors that are requested under separate keys: a window of one size, or all tensors of a step.
pub(super) fn lanes(plan: &Plan) -> Vec<usize> {
    if plan.step.is_empty() { vec![plan.size_bytes; plan.window] } else { plan.step.clone() }
}

/// The endpoint map of the two tasks.
pub(super) fn map(ps: SocketAddr, worker: SocketAddr) -> String {
    format!("{PS}={ps}\n{WORKER}={worker}\n")
}
