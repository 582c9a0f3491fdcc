//! The settings of an engine.

use std::net::{IpAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use sealane_runtime::{RuntimeSettings, SlabSettings};
use sealane_transport::authentication::Authentication;
use sealane_transport::endpoint_map::{EndpointMap, TaskName, TransportAddress};
use sealane_transport::provider::LinkProvider;
use sealane_transport::tcp::TcpSettings;
use sealane_transport::trace::TraceSender;
use sealane_transport::{Error, JobName, SessionLimits};

use crate::limits::{LINK_KINDS_MAX, TIMEOUT_MAX};
use crate::node::{Fuse, NodeSettings};

/// Settings of an engine. [`EngineSettings::new`] gives working defaults; the program `sealane` fills them from flags,
/// variables and `sealane.toml`. Libraries do not read the environment.
#[derive(Debug)]
pub struct EngineSettings {
    /// The transport address of every task.
    pub map: Arc<EndpointMap>,
    /// The tasks served here. The engine listens on all their transport addresses in the map.
    pub tasks: Vec<TaskName>,
    /// Listening sockets to use instead of binding the transport addresses, for tests and for socket activation: one for each
    /// address, in the order of their first use in `tasks`. If empty, the engine binds the addresses.
    pub listeners: Vec<TcpListener>,
    /// The address to listen on, at the port of each transport address, where a transport address is none of this host's, as behind
    /// NAT. Default `None`: the transport address.
    pub listen: Option<IpAddr>,
    /// Shards, pinning, polling.
    pub runtime: RuntimeSettings,
    /// Bytes of each shard's slab for sending. Default 64 MiB.
    pub slab_send_bytes: usize,
    /// Bytes of each shard's slab for tensors that arrive without a destination. Default 64 MiB.
    pub slab_receive_bytes: usize,
    /// Socket options.
    pub tcp: TcpSettings,
    /// Limits of each session.
    pub session: SessionLimits,
    /// Maximum links of one shard. Default 4,096.
    pub links_max: usize,
    /// Handshakes in progress at once, outgoing and incoming together; beyond this, callers wait in the kernel's backlog.
    /// Default 4,096.
    pub greetings_max: usize,
    /// Handshakes of callers from one host in progress at once; further ones are closed. Default 1,024.
    pub greetings_per_host_max: usize,
    /// Buffered bytes of callers' unfinished handshakes; callers beyond this limit are disconnected. Default 32 MiB.
    pub greeting_bytes_max: usize,
    /// How long a request waits for a connection. If a peer that was connected dies and its port refuses connections, requests fail within
    /// a second. Default 120 s.
    pub connect_timeout: Duration,
    /// How long a handshake may take. Default 5 s.
    pub handshake_timeout: Duration,
    /// The default timeout of sends and recvs. Default 10 min.
    pub request_timeout: Duration,
    /// How long an unreleased tensor is kept for a peer that has no link. Default 120 s.
    pub lease: Duration,
    /// Maximum tensors of one shard that wait or are not released. Default 1,048,576.
    pub pending_sends_max: usize,
    /// Maximum published keys of one shard; of the last 32nd part, a task gets at most half of what is free, and its keys and metadata have
    /// at most 128 bytes for each key of the limit. Plans may name the same number of unpublished keys, peers' plans three quarters of it.
    /// Default 1,048,576.
    pub published_tensors_max: usize,
    /// How messages of a turn are sent. Default [`Fuse::Turn`].
    pub fuse: Fuse,
    /// Why links are of their kind, for the log. Default: TCP is the only network link.
    pub path_reason: String,
    /// The required authentication. Default: none, which is accepted only on loopback addresses; see `insecure`.
    pub authentication: Authentication,
    /// Without authentication, also listen on addresses that other hosts can reach. Default `false`: that is an error.
    pub insecure: bool,
    /// The name of the job: links connect only engines of the same job, or those without one. Default `None`.
    pub job: Option<JobName>,
    /// Kinds of links besides TCP, the best first: each link uses the first that its peer also offers. At most
    /// [`LINK_KINDS_MAX`]. Default: none.
    pub links: Vec<Arc<dyn LinkProvider>>,
    /// A listener for every call and its progress. Default `None`.
    pub trace: Option<TraceSender>,
}

/// The defaults, which the program's settings refer to.
impl EngineSettings {
    /// Thousands of peers.
    pub const LINKS_MAX: usize = 4096;
    /// Thousands of workers that start at once; each has 16 KiB for its handshake.
    pub const GREETINGS_MAX: usize = 4096;
    /// A quarter of all, so that no host blocks the others: a thousand processes of one host.
    pub const GREETINGS_PER_HOST_MAX: usize = 1024;
    /// A hundred of the longest handshakes.
    pub const GREETING_BYTES_MAX: usize = 32 << 20;
    /// DeepRec's default of `NETWORK_MAX_CONNECTION_TIMEOUT`.
    pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(120);
    /// Far more than a handshake takes, and short enough to retry within a connect timeout.
    pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
    /// A slow step of a large job.
    pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(600);
    /// How long an unreleased tensor is kept for a consumer that has no link and may be dead.
    pub const LEASE: Duration = Duration::from_secs(120);
    /// Tensors of a shard that wait for their recv, or were sent and are not released yet.
    pub const PENDING_SENDS_MAX: usize = 1 << 20;
    /// Keys of a shard that are published.
    pub const PUBLISHED_TENSORS_MAX: usize = 1 << 20;
}

impl EngineSettings {
    /// Working settings for `tasks`: one shard, unpinned unless a CPU is free, spinning 200 µs before it sleeps.
    ///
    /// # Errors
    /// InvalidArgument if a task's name is not `host:port`.
    pub fn new(map: EndpointMap, tasks: &[&str]) -> Result<EngineSettings, Error> {
        let parse = |task: &&str| {
            task.parse::<TaskName>().map_err(|problem| Error::invalid(format!("task '{task}': {problem}")))
        };
        Ok(EngineSettings {
            map: Arc::new(map),
            tasks: tasks.iter().map(parse).collect::<Result<_, _>>()?,
            listeners: Vec::new(),
            listen: None,
            runtime: RuntimeSettings { thread_name: "sealane".into(), ..RuntimeSettings::default() },
            slab_send_bytes: SlabSettings::BYTES,
            slab_receive_bytes: SlabSettings::BYTES,
            tcp: TcpSettings::default(),
            session: SessionLimits::default(),
            links_max: Self::LINKS_MAX,
            greetings_max: Self::GREETINGS_MAX,
            greetings_per_host_max: Self::GREETINGS_PER_HOST_MAX,
            greeting_bytes_max: Self::GREETING_BYTES_MAX,
            connect_timeout: Self::CONNECT_TIMEOUT,
            handshake_timeout: Self::HANDSHAKE_TIMEOUT,
            request_timeout: Self::REQUEST_TIMEOUT,
            lease: Self::LEASE,
            pending_sends_max: Self::PENDING_SENDS_MAX,
            published_tensors_max: Self::PUBLISHED_TENSORS_MAX,
            fuse: Fuse::Turn,
            path_reason: "the only network link in this build".into(),
            authentication: Authentication::default(),
            insecure: false,
            job: None,
            links: Vec::new(),
            trace: None,
        })
    }

    /// The transport addresses of the tasks, if the settings are valid.
    pub(super) fn check(&self) -> Result<Vec<TransportAddress>, String> {
        if self.tasks.is_empty() {
            return Err("the engine has no task to serve: name at least one".into());
        }
        let find = |task: &TaskName| {
            let found = self.map.resolve(task.as_str());
            found.ok_or_else(|| format!("task {task} is not in the endpoint map: add a line '{task}=HOST:PORT'"))
        };
        let mut addresses: Vec<TransportAddress> = Vec::new();
        for task in &self.tasks {
            let address = find(task)?;
            if !addresses.contains(address) {
                addresses.push(address.clone());
            }
        }
        let (found, wanted) = (self.listeners.len(), addresses.len());
        if found > 0 && found != wanted {
            return Err(format!("{found} listeners for {wanted} transport addresses: give one for each, or none"));
        }
        if let Some(ip) = self.listen {
            let shared = addresses.iter().enumerate().find_map(|(place, address)| {
                addresses[..place].iter().find(|other| other.port == address.port).map(|other| (other, address))
            });
            if let Some((one, other)) = shared {
                return Err(format!(
                    "transport.listen is {ip}, but {one} and {other} have one port: give each its own, or one daemon to each"
                ));
            }
        }
        if self.links.len() > LINK_KINDS_MAX {
            return Err(format!("{} kinds of links are too many: {LINK_KINDS_MAX} fit besides TCP", self.links.len()));
        }
        self.links.iter().try_for_each(|links| links.check(self.authentication.is_encrypted()))?;
        if self.session.window == 0 {
            return Err("transport.window is 0: at least one request must be in flight".into());
        }
        Ok(addresses)
    }

    /// The tasks, each with the index of its transport address in `addresses`.
    ///
    /// # Errors
    /// A task is not in the map, or its address is not in `addresses`.
    pub(super) fn places(
        map: &EndpointMap,
        tasks: &[TaskName],
        addresses: &[TransportAddress],
    ) -> Result<Vec<(TaskName, u16)>, String> {
        let place = |task: &TaskName| {
            let address =
                map.resolve(task.as_str()).ok_or_else(|| format!("task {task} is not in the endpoint map"))?;
            let place = addresses.iter().position(|other| other == address);
            let place =
                place.ok_or_else(|| format!("task {task} is at {address}, where this engine does not listen"))?;
            Ok((task.clone(), place as u16))
        };
        tasks.iter().map(place).collect()
    }

    /// A copy of the settings for one shard; the listeners stay with the engine.
    pub(super) fn clone_for_shard(&self) -> EngineSettings {
        EngineSettings {
            map: self.map.clone(),
            tasks: self.tasks.clone(),
            listeners: Vec::new(),
            path_reason: self.path_reason.clone(),
            authentication: self.authentication.clone(),
            job: self.job.clone(),
            links: self.links.clone(),
            trace: self.trace.clone(),
            runtime: self.runtime.clone(),
            tcp: self.tcp.clone(),
            session: self.session.clone(),
            ..*self
        }
    }

    pub(super) fn node(&self, addresses: &[TransportAddress], shard: usize, incarnation: u64) -> NodeSettings {
        let tasks = Self::places(&self.map, &self.tasks, addresses);
        NodeSettings {
            addresses: addresses.to_vec(),
            tasks: tasks.expect("the addresses are those of the tasks"),
            shard: shard as u16,
            shards: self.runtime.shards as u16,
            incarnation,
            job: self.job.clone(),
            session: self.session.clone(),
            pending_sends_max: self.pending_sends_max,
            published_tensors_max: self.published_tensors_max,
            links_max: self.links_max,
            connect_timeout: self.connect_timeout.min(TIMEOUT_MAX),
            lease: self.lease.min(TIMEOUT_MAX),
            fuse: self.fuse,
            path_reason: self.path_reason.clone(),
            features: 0,
            kinds: self.links.iter().map(|links| links.kind()).collect(),
        }
    }
}
