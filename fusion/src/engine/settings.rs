//! What an engine is started with.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use sealane_runtime::{RuntimeSettings, SlabSettings};
use sealane_transport::endpoint_map::{EndpointMap, TaskName, TransportAddress};
use sealane_transport::tcp::TcpSettings;
use sealane_transport::{Error, SessionLimits};

use super::TIMEOUT_MAX;
use crate::node::{Fuse, NodeSettings};

/// Settings of an engine. [`EngineSettings::new`] gives working defaults; the program `sealane` fills them from flags,
/// variables and `sealane.toml`. Libraries read no environment.
#[derive(Debug)]
pub struct EngineSettings {
    /// Where every task is.
    pub map: Arc<EndpointMap>,
    /// The tasks served here; all have the same transport address in the map.
    pub tasks: Vec<TaskName>,
    /// A listening socket to use instead of binding the transport address: for tests, and for socket activation.
    pub listener: Option<TcpListener>,
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
    /// Links of one shard at most. Default 4,096.
    pub links_max: usize,
    /// How long a request waits for a connection. Default 120 s.
    pub connect_timeout: Duration,
    /// How long a greeting may take. Default 5 s.
    pub handshake_timeout: Duration,
    /// The deadline of sends and recvs that name none. Default 10 min.
    pub request_timeout: Duration,
    /// How long a tensor stays lent to a peer that has no link. Default 120 s.
    pub lease: Duration,
    /// Tensors of one shard that wait or are lent at most. Default 1,048,576.
    pub deposited_tensors_max: usize,
    /// How messages of a turn leave. Default [`Fuse::Turn`].
    pub fuse: Fuse,
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
        let slab = SlabSettings::default();
        Ok(EngineSettings {
            map: Arc::new(map),
            tasks: tasks.iter().map(parse).collect::<Result<_, _>>()?,
            listener: None,
            runtime: RuntimeSettings { thread_name: "sealane".into(), ..RuntimeSettings::default() },
            slab_send_bytes: slab.bytes,
            slab_receive_bytes: slab.bytes,
            tcp: TcpSettings::default(),
            session: SessionLimits::default(),
            links_max: 4096,
            connect_timeout: Duration::from_secs(120),
            handshake_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(600),
            lease: Duration::from_secs(120),
            deposited_tensors_max: 1 << 20,
            fuse: Fuse::Turn,
        })
    }

    /// The transport address of the tasks, if the settings can be carried out.
    pub(super) fn check(&self) -> Result<TransportAddress, String> {
        let Some(first) = self.tasks.first() else {
            return Err("the engine has no task to serve: name at least one".into());
        };
        let find = |task: &TaskName| {
            let found = self.map.resolve(task.as_str());
            found.ok_or_else(|| format!("task {task} is not in the endpoint map: add a line '{task}=HOST:PORT'"))
        };
        let address = find(first)?;
        for task in &self.tasks {
            let other = find(task)?;
            if other != address {
                return Err(format!(
                    "tasks {first} and {task} have different transport addresses ({address} and {other}): \
                     one engine serves one"
                ));
            }
        }
        if self.session.window == 0 {
            return Err("transport.window is 0: at least one request must be in flight".into());
        }
        Ok(address.clone())
    }

    /// The same settings for one shard; the listener stays with the engine.
    pub(super) fn clone_for_shard(&self) -> EngineSettings {
        EngineSettings {
            map: self.map.clone(),
            tasks: self.tasks.clone(),
            listener: None,
            runtime: self.runtime.clone(),
            tcp: self.tcp.clone(),
            session: self.session.clone(),
            ..*self
        }
    }

    pub(super) fn node(&self, address: &TransportAddress, shard: usize, incarnation: u64) -> NodeSettings {
        NodeSettings {
            address: address.clone(),
            tasks: self.tasks.clone(),
            shard: shard as u16,
            shards: self.runtime.shards as u16,
            incarnation,
            session: self.session.clone(),
            deposited_tensors_max: self.deposited_tensors_max,
            links_max: self.links_max,
            connect_timeout: self.connect_timeout.min(TIMEOUT_MAX),
            lease: self.lease.min(TIMEOUT_MAX),
            fuse: self.fuse,
        }
    }
}
