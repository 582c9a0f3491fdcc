//! The engines that are measured: one shard each, with the settings that an engine has by default apart from what a
//! measurement is about.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use sealane_fusion::{EndpointMap, Engine, EngineSettings, Error, Fuse as EngineFuse, LocalEngine};
use sealane_runtime::{Pin, Polling};
use sealane_transport::provider::LinkProvider;
use sealane_transport::tcp::{TcpSettings, listen};
use sealane_transport::verbs::Verbs;

use super::memory;
use crate::error::BenchError;
use crate::plan::{Fuse, Keys, Link, Plan};

/// A rested system is neither pinged nor given up: its peer process is stopped on purpose.
pub(super) const PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// Settings of an engine that serves these tasks, over verbs if it is given any.
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

/// Makes an engine bear that it, or its peer, is stopped while others are measured.
pub(super) fn let_rest(settings: &mut EngineSettings) {
    settings.session.heartbeat = PATIENCE;
    settings.session.peer_timeout = PATIENCE;
    settings.runtime.stall_report = Duration::ZERO;
}

/// What an engine fuses of itself.
pub(super) fn fuse(plan: &Plan) -> EngineFuse {
    if plan.fuse == Fuse::Off { EngineFuse::Off } else { EngineFuse::Turn }
}

/// Starts an engine.
pub(super) fn start(settings: EngineSettings) -> Result<Engine, BenchError> {
    Engine::start(settings).map_err(BenchError::sealane("start"))
}

/// A listening socket as an engine makes it for itself, on a port that the system chooses, and the port.
pub(super) fn listener(plan: &Plan) -> Result<(TcpListener, u16), BenchError> {
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let socket = listen(any_port, &tcp_settings(plan)).map_err(BenchError::sealane("set up its socket"))?;
    let listener = TcpListener::from(socket);
    let port = listener.local_addr().map_err(BenchError::io("find the port"))?.port();
    Ok((listener, port))
}

/// Does something on the engine's shard, and waits until it is done.
pub(super) fn on_shard<T: Send + 'static>(
    engine: &Engine,
    operation: &'static str,
    work: impl AsyncFnOnce(LocalEngine) -> Result<T, Error> + Send + 'static,
) -> Result<T, BenchError> {
    let ended = engine.on_shard(0, work).wait().map_err(BenchError::sealane(operation))?;
    ended.map_err(BenchError::sealane(operation))
}

/// Engines that rest in this process: a spinning shard would take its CPU from whoever is measured next, so its thread is
/// held.
#[derive(Default)]
pub(super) struct Resting(Vec<mpsc::Sender<()>>);

impl Resting {
    pub(super) fn begin(&mut self, engine: &Engine) {
        let (resume, resumed) = mpsc::channel::<()>();
        self.0.push(resume);
        drop(engine.on_shard(0, async move |_| {
            let _ = resumed.recv();
        }));
    }

    pub(super) fn end(&mut self) {
        self.0.clear();
    }
}

/// What an engine's links are made with.
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
    settings.slab_send_bytes = memory::slab_bytes(plan);
    if let Some(keys) = keys {
        settings.authentication = keys.authentication()?;
    }
    settings.slab_receive_bytes = 1 << 20;
    settings.fuse = fuse(plan);
    if matches!(plan.link, Link::Shm | Link::Loopback) {
        settings.session.parked_requests_max = settings.session.parked_requests_max.max(plan.window * 2);
    }
    start(settings)
}

fn tcp_settings(plan: &Plan) -> TcpSettings {
    TcpSettings { congestion: plan.congestion.clone().unwrap_or_default(), ..TcpSettings::default() }
}
