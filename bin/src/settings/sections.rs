//! The typed settings, a struct for each section of `sealane.toml`. `table.rs` holds their ranges,
//! defaults and meaning.

use std::path::PathBuf;
use std::time::Duration;

use sealane_runtime::ExecutorChoice;
use sealane_transport::endpoint_map;
use sealane_transport::verbs::{Registration, Transfer};

use super::effective::Effective;
use super::limits::SHARDS_DEFAULT_MAX;
use super::value::{MetricsAddress, Value, read_metrics_address, read_user_ids};
use super::{Environment, Given, SettingsError, Sourced, VERBS_BUILT_IN, places};

/// `[runtime]`
#[derive(Clone, Debug)]
pub struct Runtime {
    /// Number of shards; see [`Runtime::shards_for`].
    pub shards: Sourced<Option<usize>>,
    /// Whether a shard never sleeps.
    pub polling: Sourced<bool>,
    /// How long an idle shard spins before it sleeps.
    pub idle_spin: Sourced<Duration>,
    /// Whether every shard is pinned; `None` pins if enough CPUs are free.
    pub pin: Sourced<Option<bool>>,
    /// What a shard runs on and sleeps in.
    pub executor: Sourced<ExecutorChoice>,
    /// Memory of a shard for tensors to send, in bytes.
    pub slab_send_bytes: Sourced<usize>,
    /// Memory of a shard for tensors received, in bytes.
    pub slab_receive_bytes: Sourced<usize>,
    /// Jobs that may wait for a shard.
    pub mailbox_slots: Sourced<usize>,
    /// A turn that takes longer is reported; zero reports none.
    pub stall_report: Sourced<Duration>,
    /// Where the lock files are that claim CPUs.
    pub claim_directory: Sourced<PathBuf>,
}

impl Runtime {
    pub(super) fn of(from: &Effective) -> Runtime {
        Runtime {
            shards: from.optional("runtime.shards", number),
            polling: from.get("runtime.polling", bool),
            idle_spin: from.get("runtime.idle_spin_us", microseconds),
            pin: from.optional("runtime.pin", bool),
            executor: from.get("runtime.executor", executor),
            slab_send_bytes: from.get("runtime.slab_send_bytes", number),
            slab_receive_bytes: from.get("runtime.slab_receive_bytes", number),
            mailbox_slots: from.get("runtime.mailbox_slots", number),
            stall_report: from.get("runtime.stall_report_ms", milliseconds),
            claim_directory: from.get("runtime.claim_directory", path),
        }
    }

    /// The number of shards for an endpoint map of so many tasks.
    pub fn shards_for(&self, tasks: usize) -> usize {
        let by_tasks = tasks.clamp(1, SHARDS_DEFAULT_MAX);
        self.shards.value.unwrap_or(by_tasks)
    }
}

/// `[transport]`
#[derive(Clone, Debug)]
pub struct Transport {
    /// The endpoint map file.
    pub endpoint_map: Sourced<PathBuf>,
    /// How long a request waits for a connection.
    pub connect_timeout: Sourced<Duration>,
    /// How long a new connection may take to introduce itself.
    pub handshake_timeout: Sourced<Duration>,
    /// How often a quiet link is asked for a sign of life.
    pub heartbeat: Sourced<Duration>,
    /// How long a silent peer is believed to be alive; longer than `heartbeat`.
    pub peer_timeout: Sourced<Duration>,
    /// Requests that a link has in flight.
    pub window: Sourced<usize>,
    /// Largest tensor that is accepted, in bytes.
    pub tensor_bytes_max: Sourced<u64>,
    /// Larger tensors leave in chunks of so many bytes.
    pub chunk_bytes: Sourced<usize>,
    /// Tensors handed to a peer that it has not released, in bytes.
    pub in_flight_bytes: Sourced<usize>,
    /// Links that may be open at once.
    pub links_max: Sourced<usize>,
    /// Connections whose greeting is in progress.
    pub greetings_max: Sourced<usize>,
    /// Of these, callers of one host.
    pub greetings_per_host_max: Sourced<usize>,
    /// Unfinished greetings of callers, in bytes.
    pub greeting_bytes_max: Sourced<usize>,
    /// The kind of links to other hosts.
    pub require: Sourced<Require>,
}

/// The kind of links to other hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Require {
    /// RDMA verbs where this build, this host and the peer have them, else TCP.
    Auto,
    /// TCP, whatever there is.
    Tcp,
    /// RDMA verbs; whatever rules them out is an error.
    Verbs,
}

impl Require {
    /// Reads one of the setting's words, for a build that has verbs or has not.
    ///
    /// # Errors
    /// Verbs are required, and the build has none.
    pub(super) fn read(word: &str, verbs_built_in: bool, given: impl FnOnce() -> Given) -> Result<Self, SettingsError> {
        match word {
            "auto" => Ok(Require::Auto),
            "tcp" => Ok(Require::Tcp),
            _ if verbs_built_in => Ok(Require::Verbs),
            _ => Err(SettingsError::NoVerbs { given: given() }),
        }
    }
}

impl Transport {
    pub(super) fn of(from: &Effective) -> Result<Transport, SettingsError> {
        let heartbeat = from.get("transport.heartbeat_ms", milliseconds);
        let peer_timeout = from.get("transport.peer_timeout_ms", milliseconds);
        if peer_timeout.value <= heartbeat.value {
            return Err(SettingsError::Contradiction {
                first: Box::new(from.given("transport.peer_timeout_ms")),
                second: Box::new(from.given("transport.heartbeat_ms")),
                fix: "make the peer time-out longer than the heartbeat, three times as long say",
            });
        }
        let require = from.get("transport.require", text);
        let given = || from.given("transport.require");
        Ok(Transport {
            endpoint_map: endpoint_map_file(from),
            connect_timeout: from.get("transport.connect_timeout_ms", milliseconds),
            handshake_timeout: from.get("transport.handshake_timeout_ms", milliseconds),
            heartbeat,
            peer_timeout,
            window: from.get("transport.window", number),
            tensor_bytes_max: from.get("transport.tensor_bytes_max", number),
            chunk_bytes: from.get("transport.chunk_bytes", number),
            in_flight_bytes: from.get("transport.in_flight_bytes", number),
            links_max: from.get("transport.links_max", number),
            greetings_max: from.get("transport.greetings_max", number),
            greetings_per_host_max: from.get("transport.greetings_per_host_max", number),
            greeting_bytes_max: from.get("transport.greeting_bytes_max", number),
            require: Sourced { value: Require::read(&require.value, VERBS_BUILT_IN, given)?, source: require.source },
        })
    }
}

/// A file that is named wins over a directory that is named by the same kind of source or a
/// weaker one.
fn endpoint_map_file(from: &Effective) -> Sourced<PathBuf> {
    let file = from.optional("transport.endpoint_map", path);
    let directory = from.get("transport.endpoint_map_directory", path);
    match file.value {
        Some(value) if file.source.rank() >= directory.source.rank() => Sourced { value, source: file.source },
        _ => directory.map(|directory| match directory.as_os_str().to_str() {
            // `.endpoint_map` reads better than `./.endpoint_map` in every message.
            Some(".") => PathBuf::from(endpoint_map::FILE_NAME),
            _ => directory.join(endpoint_map::FILE_NAME),
        }),
    }
}

/// `[transport.tcp]`
#[derive(Clone, Debug)]
pub struct Tcp {
    /// The congestion control to ask for; `None` leaves the kernel's default.
    pub congestion: Sourced<Option<String>>,
    /// Send buffer of a socket, in bytes; `None` leaves it to the kernel.
    pub send_buffer_bytes: Sourced<Option<usize>>,
    /// Receive buffer of a socket, in bytes; `None` leaves it to the kernel.
    pub receive_buffer_bytes: Sourced<Option<usize>>,
}

impl Tcp {
    pub(super) fn of(from: &Effective) -> Tcp {
        let buffer = |name| {
            let bytes: Sourced<usize> = from.get(name, number);
            bytes.map(|bytes| (bytes > 0).then_some(bytes))
        };
        Tcp {
            congestion: from.get("transport.tcp.congestion", text).map(|name| (!name.is_empty()).then_some(name)),
            send_buffer_bytes: buffer("transport.tcp.send_buffer_bytes"),
            receive_buffer_bytes: buffer("transport.tcp.receive_buffer_bytes"),
        }
    }
}

/// `[fusion]`
#[derive(Clone, Debug)]
pub struct Fusion {
    /// What moves as one message.
    pub fuse: Sourced<Fuse>,
    /// How long a request waits for its tensor when its caller names no deadline.
    pub request_timeout: Sourced<Duration>,
    /// How long a producer keeps a tensor that was fetched and not released.
    pub lease: Sourced<Duration>,
    /// Requests of a shard that may wait for a link.
    pub queued_requests_max: Sourced<usize>,
    /// Requests of one peer to a shard that may wait for their tensor.
    pub parked_requests_max: Sourced<usize>,
    /// Tensors of a shard that may wait for their request.
    pub deposited_tensors_max: Sourced<usize>,
    /// Keys of a shard that may be published; plans may name as many that are not.
    pub published_tensors_max: Sourced<usize>,
    /// Keys of all plans of one peer together.
    pub plan_keys_max: Sourced<usize>,
    /// Bytes of these keys, and of the names of the queues that the peer pushes into.
    pub peer_name_bytes_max: Sourced<usize>,
    /// Bytes of small messages that leave in one turn, to one peer.
    pub turn_bytes: Sourced<usize>,
    /// Large tensors that leave in one turn, to one peer.
    pub turn_payloads: Sourced<usize>,
}

/// What moves as one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fuse {
    /// Nothing: every message is a write of its own.
    Off,
    /// The small messages that a turn queues for one peer.
    Turn,
}

impl Fusion {
    pub(super) fn of(from: &Effective) -> Fusion {
        let fuse = |value: &Value| match text(value)?.as_str() {
            "off" => Some(Fuse::Off),
            "turn" => Some(Fuse::Turn),
            _ => None,
        };
        Fusion {
            fuse: from.get("fusion.fuse", fuse),
            request_timeout: from.get("fusion.request_timeout_ms", milliseconds),
            lease: from.get("fusion.lease_ms", milliseconds),
            queued_requests_max: from.get("fusion.queued_requests_max", number),
            parked_requests_max: from.get("fusion.parked_requests_max", number),
            deposited_tensors_max: from.get("fusion.deposited_tensors_max", number),
            published_tensors_max: from.get("fusion.published_tensors_max", number),
            plan_keys_max: from.get("fusion.plan_keys_max", number),
            peer_name_bytes_max: from.get("fusion.peer_name_bytes_max", number),
            turn_bytes: from.get("fusion.turn_bytes", number),
            turn_payloads: from.get("fusion.turn_payloads", number),
        }
    }
}

/// `[daemon]`
#[derive(Clone, Debug)]
pub struct Daemon {
    /// Where clients attach.
    pub socket: Sourced<PathBuf>,
    /// User ids whose processes may attach, besides root's and the daemon's own.
    pub allowed_uids: Sourced<Vec<u32>>,
    /// Clients that may be attached at once.
    pub clients_max: Sourced<usize>,
    /// Largest arena that a client may ask for, in bytes.
    pub arena_bytes_max: Sourced<u64>,
    /// Memory of a client and shard for tensors received without a destination, in bytes.
    pub area_bytes: Sourced<u64>,
    /// How long a stopping daemon waits for the calls that are in progress.
    pub drain_timeout: Sourced<Duration>,
    /// Where metrics are served.
    pub metrics: Sourced<MetricsAddress>,
}

impl Daemon {
    pub(super) fn of(from: &Effective, environment: &Environment) -> Result<Daemon, SettingsError> {
        let socket = from.optional("daemon.socket", path);
        let allowed_uids = from.optional("daemon.allowed_uids", |value| read_user_ids(&text(value)?));
        Ok(Daemon {
            socket: Sourced {
                value: match socket.value {
                    Some(path) => path,
                    None => places::socket(environment)?,
                },
                source: socket.source,
            },
            allowed_uids: allowed_uids.map(Option::unwrap_or_default),
            clients_max: from.get("daemon.clients_max", number),
            arena_bytes_max: from.get("daemon.arena_bytes_max", number),
            area_bytes: from.get("daemon.area_bytes", number),
            drain_timeout: from.get("daemon.drain_timeout_ms", milliseconds),
            metrics: from.get("daemon.metrics", |value| read_metrics_address(&text(value)?)),
        })
    }
}

/// `[verbs]`; what has a variable is read and checked as TensorFlow's verbs reads it.
#[derive(Clone, Debug)]
pub struct Verbs {
    /// The RDMA device; `None` takes the first with an active port.
    pub device: Sourced<Option<String>>,
    /// The device's port; `None` takes the first active one.
    pub port: Sourced<Option<u8>>,
    /// Index of the port's GID; `None` takes the RoCE v2 GID of an IPv4 address.
    pub gid_index: Sourced<Option<u8>>,
    /// Index of the partition key.
    pub pkey_index: Sourced<u8>,
    /// Buffers of a shard's shared receive queue.
    pub queue_depth: Sourced<u32>,
    /// Wait for an acknowledgement, as a power of two of 4.096 µs.
    pub timeout: Sourced<u8>,
    /// How often an unacknowledged packet is sent again.
    pub retry_count: Sourced<u8>,
    /// Service level of a queue pair.
    pub service_level: Sourced<u8>,
    /// Path MTU in bytes; `None` takes the port's active MTU.
    pub mtu: Sourced<Option<u16>>,
    /// Traffic class of a queue pair's packets.
    pub traffic_class: Sourced<u8>,
    /// How large tensors move.
    pub transfer: Sourced<Transfer>,
    /// When memory is registered.
    pub registration: Sourced<Registration>,
    /// Bytes of one client's memory that a shard pins at most.
    pub client_pinned_bytes_max: Sourced<u64>,
    /// How long a peer is reached by TCP after its verbs links have failed several times in a row.
    pub retry_after: Sourced<Duration>,
}

impl Verbs {
    pub(super) fn of(from: &Effective) -> Result<Verbs, SettingsError> {
        let device = from.optional("verbs.device", text);
        let port = from.optional("verbs.port", number);
        if port.value.is_some() && device.value.is_none() {
            return Err(SettingsError::PortWithoutDevice { given: from.given("verbs.port") });
        }
        let transfer = |value: &Value| match text(value)?.as_str() {
            "write" => Some(Transfer::Write),
            "read" => Some(Transfer::Read),
            _ => None,
        };
        let registration = |value: &Value| match text(value)?.as_str() {
            "static" => Some(Registration::Static),
            "dynamic" => Some(Registration::Dynamic),
            _ => None,
        };
        Ok(Verbs {
            device,
            port,
            gid_index: from.optional("verbs.gid_index", number),
            pkey_index: from.get("verbs.pkey_index", number),
            queue_depth: from.get("verbs.queue_depth", number),
            timeout: from.get("verbs.timeout", number),
            retry_count: from.get("verbs.retry_count", number),
            service_level: from.get("verbs.service_level", number),
            mtu: from.optional("verbs.mtu", |value| text(value)?.parse().ok()),
            traffic_class: from.get("verbs.traffic_class", number),
            transfer: from.get("verbs.transfer", transfer),
            registration: from.get("verbs.registration", registration),
            client_pinned_bytes_max: from.get("verbs.client_pinned_bytes_max", number),
            retry_after: from.get("verbs.retry_after_ms", milliseconds),
        })
    }
}

fn number<T: TryFrom<u64>>(value: &Value) -> Option<T> {
    match value {
        Value::Number(number) => T::try_from(*number).ok(),
        _ => None,
    }
}

fn milliseconds(value: &Value) -> Option<Duration> {
    number(value).map(Duration::from_millis)
}

fn microseconds(value: &Value) -> Option<Duration> {
    number(value).map(Duration::from_micros)
}

pub(super) fn bool(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(bool) => Some(*bool),
        _ => None,
    }
}

fn executor(value: &Value) -> Option<ExecutorChoice> {
    match text(value)?.as_str() {
        "auto" => Some(ExecutorChoice::Auto),
        "io_uring" => Some(ExecutorChoice::IoUring),
        "epoll" => Some(ExecutorChoice::Epoll),
        _ => None,
    }
}

pub(super) fn text(value: &Value) -> Option<String> {
    match value {
        Value::Text(text) => Some(text.clone()),
        _ => None,
    }
}

pub(super) fn path(value: &Value) -> Option<PathBuf> {
    text(value).map(PathBuf::from)
}
