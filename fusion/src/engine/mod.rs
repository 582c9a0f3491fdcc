//! The engine: one node per shard, on pinned threads, with TCP sockets. Embedded in a training process, or in the daemon.

mod accept_limiter;
mod clients;
mod expiry;
mod greetings;
mod hand_over;
mod identity;
mod links;
mod listener;
mod listening;
mod local;
mod local_plan;
mod measuring;
mod published;
mod push;
mod resolver;
mod settings;
mod shard;
mod stream_connections;
mod task;

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use sealane_runtime::{ExecutorKind, JoinHandle, Runtime, RuntimeError, RuntimeSettings};
use sealane_transport::authentication::Authentication;
use sealane_transport::endpoint_map::{EndpointMap, TaskName, TransportAddress};
use sealane_transport::error::LinkError;
use sealane_transport::{Error, LinkKind};

use crate::limits::{FAREWELL_TIME, TIMEOUT_MAX};
use crate::metrics::{KindFigures, NodeMetrics, ShardFigures};
use crate::node::{Counters, Outages};
use clients::Attached;
#[cfg(feature = "fuzzing")]
pub use clients::fuzzing;
pub use clients::{ClientEnds, ClientId, LaneEnd, Portion, SharedArena};
pub use hand_over::Prepared;
use listening::{Binder, address_of, check_reach};
pub use listening::{LoopbackAddress, loopback_addresses};
pub use local::{LocalEngine, LocalPair, LocalReceiving, LocalSending, LocalTask};
pub use local_plan::{LocalPlan, LocalPulling, LocalReceivingBatch, LocalReceivingMany};
pub use measuring::{BURST_TENSOR_BYTES, Measured, ROUND_TRIP_BYTES};
pub use published::{Begun, Brought, Plan};
pub use push::Acceptor;
pub use settings::EngineSettings;
use shard::ShardEngine;
use stream_connections::StreamConnections;
pub use task::{Receiving, Sending, Task};

/// Why an engine failed to start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The settings are invalid.
    #[error("{0}")]
    Settings(String),
    /// Listening on the transport address failed.
    #[error("cannot listen on {address}{}: {source}; {}", shown_if_other(address, *at), listening::hint(source))]
    Listen {
        /// The address.
        address: TransportAddress,
        /// The socket's address that was tried last; `None` if the address could not be resolved.
        at: Option<SocketAddr>,
        /// The system's error.
        source: LinkError,
    },
    /// Other hosts can reach the address, and no authentication is configured.
    #[error(
        "{address} can be reached from other hosts, and no authentication is configured: set security.secret_file, or \
         security.tls_certificate, tls_key and tls_authorities (`sealane keys --help` creates them), or security.insecure = true \
         to accept everyone"
    )]
    Insecure {
        /// The address.
        address: SocketAddr,
    },
    /// The shards did not start.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// A shard could not be set up.
    #[error("a shard could not be set up: {0}")]
    Shard(String),
}

/// Formats the socket's address in parentheses, if the transport address does not show it.
fn shown_if_other(address: &TransportAddress, at: Option<SocketAddr>) -> String {
    at.filter(|at| at.to_string() != address.to_string()).map_or_else(String::new, |at| format!(" ({at})"))
}

/// The deadline of something that begins now and may take `timeout`.
fn deadline(now: Instant, timeout: Duration) -> Instant {
    now + timeout.min(TIMEOUT_MAX)
}

struct Inner {
    runtime: Runtime,
    /// What each shard publishes about itself.
    metrics: Vec<Arc<NodeMetrics>>,
    settings: EngineSettings,
    addresses: Vec<TransportAddress>,
    /// Grows when a new endpoint map adds tasks; never shrinks.
    tasks: RwLock<Vec<TaskName>>,
    attached: Mutex<Attached>,
    stream_connections: Arc<StreamConnections>,
    authentication: Mutex<Authentication>,
    /// Held by whoever publishes or withdraws until each shard has the job, so that all shards do those of two threads in the same order.
    publishing: Mutex<()>,
}

/// A running engine. Clones share it; it stops when told to, or when the last clone and the last [`Task`] are gone.
///
/// ```
/// use std::net::{SocketAddr, TcpListener};
/// use sealane_fusion::{EndpointMap, Engine, EngineSettings, Tensor};
///
/// // Two tasks, each with an engine of its own, as they would be on two hosts.
/// let (ps, worker) = (TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?);
/// let map = format!("ps0:2222={}\nworker0:2222={}\n", ps.local_addr()?, worker.local_addr()?);
/// let start = |task: &str, listener| {
///     let map = EndpointMap::parse(&map, "example").unwrap();
///     let mut settings = EngineSettings::new(map, &[task]).unwrap();
///     settings.listeners = vec![listener];
///     Engine::start(settings)
/// };
/// let (ps, worker) = (start("ps0:2222", ps)?, start("worker0:2222", worker)?);
///
/// let weights = Tensor::from_elements(&[2, 2], &[1.0_f32, 2.0, 3.0, 4.0])?;
/// let sending = ps.task("ps0:2222")?.send("worker0:2222", 1, "dense/kernel", weights);
/// let arrived = worker.task("worker0:2222")?.recv("ps0:2222", 1, "dense/kernel").wait()?;
/// assert_eq!(arrived.elements::<f32>()?, [1.0, 2.0, 3.0, 4.0]);
/// sending.wait()?; // the consumer has it: the memory is free again
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

impl Engine {
    /// Starts the shards and listens on the transport addresses of the tasks.
    ///
    /// # Errors
    /// See [`StartError`]; nothing is left running.
    pub fn start(mut settings: EngineSettings) -> Result<Engine, StartError> {
        let (addresses, sockets) = Engine::bind(&mut settings)?;
        let engine = Engine::set_up(settings, addresses, Runtime::start)?;
        engine.listen(sockets).map_err(|error| StartError::Shard(error.to_string()))?;
        Ok(engine)
    }

    /// Binds the transport addresses of the tasks: all that [`start`](Self::start) does before it takes memory and CPUs. Dropping the
    /// sockets closes them again; to check whether an engine would start, bind and drop them.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn bind(settings: &mut EngineSettings) -> Result<(Vec<TransportAddress>, Vec<TcpListener>), StartError> {
        let addresses = settings.check().map_err(StartError::Settings)?;
        let sockets = std::mem::take(&mut settings.listeners);
        if !sockets.is_empty() {
            sockets.iter().try_for_each(|socket| check_reach(address_of(socket)?, settings))?;
            return Ok((addresses, sockets));
        }
        let binder = Binder::new(settings, &addresses);
        let sockets = addresses.iter().map(|address| binder.bind(address)).collect::<Result<_, _>>()?;
        Ok((addresses, sockets))
    }

    /// Starts the shards, with `start`, and sets them up; they do not listen yet.
    fn set_up(
        mut settings: EngineSettings,
        addresses: Vec<TransportAddress>,
        start: impl FnOnce(RuntimeSettings) -> Result<Runtime, RuntimeError>,
    ) -> Result<Engine, StartError> {
        if settings.tcp.user_timeout.is_zero() {
            settings.tcp.user_timeout = settings.session.peer_timeout.min(TIMEOUT_MAX);
        }
        let runtime = start(settings.runtime.clone())?;
        let incarnation = incarnation();
        let (outages, stream_connections) = (Arc::<Outages>::default(), Arc::<StreamConnections>::default());
        let started: Vec<JoinHandle<Result<Arc<NodeMetrics>, String>>> = (0..runtime.shards())
            .map(|index| {
                let node = settings.node(&addresses, index, incarnation);
                let shared = (outages.clone(), stream_connections.clone());
                let settings = settings.clone_for_shard();
                runtime.on_shard(index, async move |shard| {
                    shard.set_up(|| ShardEngine::start(&shard, node, shared, settings))
                })
            })
            .collect();
        let metrics = started.into_iter().map(|shard| shard.wait()?.map_err(StartError::Shard));
        let metrics = metrics.collect::<Result<Vec<_>, StartError>>()?;
        let tasks = RwLock::new(settings.tasks.clone());
        let authentication = Mutex::new(settings.authentication.clone());
        let attached = Mutex::default();
        Ok(Engine(Arc::new(Inner {
            runtime,
            metrics,
            settings,
            addresses,
            tasks,
            attached,
            stream_connections,
            authentication,
            publishing: Mutex::default(),
        })))
    }

    /// A task of this engine.
    ///
    /// # Errors
    /// NotFound if it is not among the tasks that the engine was started with.
    pub fn task(&self, name: &str) -> Result<Task, Error> {
        Task::new(self.clone(), name)
    }

    /// The tasks served here.
    pub fn tasks(&self) -> Vec<TaskName> {
        self.0.tasks.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// This engine's transport addresses.
    pub fn addresses(&self) -> &[TransportAddress] {
        &self.0.addresses
    }

    /// Number of shards.
    pub fn shards(&self) -> usize {
        self.0.runtime.shards()
    }

    /// True if the engine was stopped, or stopped because an essential part failed.
    pub fn has_stopped(&self) -> bool {
        (0..self.shards()).any(|shard| self.0.runtime.shard(shard).has_stopped())
    }

    /// The CPU of each shard, where it is pinned.
    pub fn cpus(&self) -> Vec<Option<usize>> {
        self.0.runtime.cpus()
    }

    /// The executor that the shards run on.
    pub fn executor(&self) -> ExecutorKind {
        self.0.runtime.executor()
    }

    /// The shard that serves a pair of tasks.
    pub fn shard_of(&self, local: &str, peer: &str) -> usize {
        use sealane_transport::lane;
        lane::shard_of(lane::lane(local, peer), self.shards())
    }

    /// Runs `f` on a shard, where sends and recvs need no thread crossing and no allocation.
    ///
    /// # Panics
    /// If there is no such shard.
    pub fn on_shard<T, F>(&self, index: usize, f: F) -> JoinHandle<T>
    where
        F: AsyncFnOnce(LocalEngine) -> T + Send + 'static,
        T: Send + 'static,
    {
        self.0.runtime.on_shard(index, async move |_| f(LocalEngine::current().expect("set up at start")).await)
    }

    /// Each shard's published metrics: time, counters, peers and their paths, call latencies. At most
    /// [`SHOW_INTERVAL`](crate::metrics::SHOW_INTERVAL) and a turn old; reading them neither stops nor wakes a shard. For a
    /// stopped engine, the last ones.
    pub fn figures(&self) -> Vec<ShardFigures> {
        let (cpus, settings) = (self.cpus(), &self.0.settings);
        let each = self.0.metrics.iter().enumerate().map(|(shard, metrics)| {
            let counters = metrics.counters.read();
            let kinds = settings.links.iter().zip(&counters.kinds);
            ShardFigures {
                shard,
                cpu: cpus[shard],
                load: self.0.runtime.load(shard).snapshot(),
                counters,
                kinds: kinds.map(|(links, counters)| KindFigures::new(&**links, counters)).collect(),
                latencies: metrics.latencies.figures(),
                peers: metrics.peer_figures(),
                clients: metrics.client_figures(),
                tables: metrics.table_figures(),
                slab_send_bytes_max: settings.slab_send_bytes as u64,
                slab_receive_bytes_max: settings.slab_receive_bytes as u64,
            }
        });
        each.collect()
    }

    /// Each shard's counters, exact: each shard is queried between two of its turns.
    ///
    /// # Errors
    /// Unavailable if the engine has stopped.
    pub fn counters(&self) -> Result<Vec<Counters>, Error> {
        self.on_all_shards(ShardEngine::counters)
    }

    /// Links by kind: TCP, then the kinds of the settings.
    ///
    /// # Errors
    /// Unavailable if the engine has stopped.
    pub fn links(&self) -> Result<Vec<(LinkKind, u64)>, Error> {
        let counters = self.counters()?;
        let all = counters.iter().map(|shard| shard.links).sum::<u64>();
        let of = |place: usize| counters.iter().map(|shard| shard.kinds[place].links).sum();
        let kinds = self.0.settings.links.iter().enumerate().map(|(place, links)| (links.kind(), of(place)));
        let kinds = kinds.collect::<Vec<_>>();
        let others = kinds.iter().map(|(_, count)| count).sum::<u64>();
        Ok([(LinkKind::TCP, all - others)].into_iter().chain(kinds).collect())
    }

    /// Runs `ask` on every shard and waits for all of them: on none if the engine has stopped, on all otherwise. A full mailbox
    /// does not matter.
    ///
    /// # Errors
    /// Unavailable if the engine has stopped.
    fn on_all_shards<T: Send + 'static>(
        &self,
        ask: impl Fn(&ShardEngine) -> T + Clone + Send + 'static,
    ) -> Result<Vec<T>, Error> {
        let ask_one = |index| {
            let ask = ask.clone();
            let ask = async move |_| ask(&ShardEngine::current().expect("set up at start"));
            self.0.runtime.shard(index).run_always(ask)
        };
        let asked: Vec<_> = (0..self.shards()).map(ask_one).collect();
        let answers: Vec<_> = asked.into_iter().map(JoinHandle::wait).collect();
        answers.into_iter().map(|answer| answer.map_err(|error| stopped(&error))).collect()
    }

    /// Installs a new endpoint map on all shards, and also serves the tasks `more` of that map, on the existing listening addresses.
    /// Requests in flight complete on their current links.
    ///
    /// # Errors
    /// InvalidArgument, and nothing has changed, if one of `more` is not in the map or not at one of those addresses; Unavailable if the
    /// engine has stopped.
    pub fn set_map(&self, map: Arc<EndpointMap>, more: &[TaskName]) -> Result<(), Error> {
        let mut tasks = self.0.tasks.write().unwrap_or_else(PoisonError::into_inner);
        let new: Vec<_> = more.iter().filter(|task| !tasks.contains(task)).cloned().collect();
        let places = EngineSettings::places(&map, &new, &self.0.addresses).map_err(Error::invalid)?;
        let set = move |shard: &ShardEngine| shard.with_node(|node, _| node.set_map(map.clone(), places.clone()));
        self.on_all_shards(set)?.into_iter().collect::<Result<(), Error>>()?;
        tasks.extend(new);
        Ok(())
    }

    /// The authentication required on new links.
    pub fn authentication(&self) -> Authentication {
        self.0.authentication.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the secrets or certificates that peers must present and that this engine presents. Existing links continue; new
    /// links use the new ones.
    ///
    /// # Errors
    /// InvalidArgument, and nothing has changed, if it is of a different kind from the one the engine started with; Unavailable
    /// if the engine has stopped.
    pub fn set_authentication(&self, authentication: Authentication) -> Result<(), Error> {
        let mut current = self.0.authentication.lock().unwrap_or_else(PoisonError::into_inner);
        if authentication.name() != current.name() {
            let (new, old) = (authentication.name(), current.name());
            return Err(Error::invalid(format!(
                "peers present {old} here, and {new} cannot replace it while the engine runs; restart it"
            )));
        }
        *current = authentication.clone();
        self.on_all_shards(move |shard| shard.set_authentication(authentication.clone())).map(|_| ())
    }

    /// Sends goaway to the peers, ends every call with Unavailable or Aborted, and stops the shards.
    ///
    /// # Errors
    /// A shard did not stop in time, or had panicked.
    pub fn stop(&self) -> Result<(), RuntimeError> {
        let deadline = Instant::now() + FAREWELL_TIME;
        let goodbyes: Vec<_> = (0..self.shards())
            .map(|index| self.on_shard(index, async move |shard| shard.shut_down("the engine stops", deadline).await))
            .collect();
        for goodbye in goodbyes {
            // A shard that has stopped has already said all that it can; if its mailbox is full, peers see the links end.
            let _ = goodbye.wait();
        }
        // Clients have been told how their calls ended, and need not wait until the shards have freed their memory.
        self.hang_up_on_clients();
        self.0.runtime.stop()
    }
}

fn stopped(error: &RuntimeError) -> Error {
    Error::unavailable("this engine", error.to_string())
}

/// A number that is unique among all engine starts on this cluster: time and process, mixed.
fn incarnation() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one((std::process::id(), std::time::SystemTime::now()))
}
