//! The one table of all settings: what each is called, what it accepts, what it is by default, and its typed field. Defaults of a
//! library's settings are read from the library. Reading, `sealane check` and the documentation all follow it.

use std::borrow::Cow;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use sealane_fusion::{EngineSettings, Fuse};
use sealane_runtime::{ExecutorChoice, Polling, RuntimeSettings, SlabSettings};
use sealane_transport::verbs::{Registration, Transfer, VerbsSettings};
use sealane_transport::{JobName, SessionLimits};

use super::effective::Effective;
use super::limits::*;
use super::value::{Kind, MetricsAddress, Unit, Value};
use super::{Peers, Require, Role, Sourced};

#[derive(Debug)]
pub struct Setting {
    /// The full name `section.key`, as in `sealane.toml` and after `--set`.
    pub name: &'static str,
    pub variables: Variables,
    /// The flag of its own that gives it, besides `--set`.
    pub flag: Option<&'static str>,
    /// What it accepts.
    pub kind: Kind,
    pub default: Value,
    /// What it does, in one sentence.
    pub doc: &'static str,
}

/// The environment variables that give a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variables {
    None,
    /// The same one for every role.
    One(&'static str),
    /// One for a ps and one for a worker or chief.
    ByRole {
        /// Read for a ps and for any other job.
        ps: &'static str,
        /// Read for a worker or chief.
        worker: &'static str,
    },
    /// As `ByRole`, with a variable that says the opposite of the setting.
    InvertedByRole {
        /// Read for a ps and for any other job.
        ps: &'static str,
        /// Read for a worker or chief.
        worker: &'static str,
    },
}

impl Variables {
    /// All of them, whoever's they are.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        let [first, second] = match *self {
            Variables::None => [None, None],
            Variables::One(name) => [Some(name), None],
            Variables::ByRole { ps, worker } | Variables::InvertedByRole { ps, worker } => [Some(ps), Some(worker)],
        };
        first.into_iter().chain(second)
    }

    pub fn for_role(&self, role: Role) -> Option<&'static str> {
        match *self {
            Variables::None => None,
            Variables::One(name) => Some(name),
            Variables::ByRole { ps, worker } | Variables::InvertedByRole { ps, worker } => {
                Some(if role.reads_worker_variables() { worker } else { ps })
            }
        }
    }
}

impl Setting {
    /// The section of `sealane.toml` that holds the setting.
    pub fn section(&self) -> &'static str {
        self.name.rsplit_once('.').map_or("", |(section, _)| section)
    }
}

const fn setting(name: &'static str, variables: Variables, kind: Kind, default: Value, doc: &'static str) -> Setting {
    Setting { name, variables, flag: None, kind, default, doc }
}

const fn with_flag(
    flag: &'static str,
    name: &'static str,
    variables: Variables,
    kind: Kind,
    default: Value,
    doc: &'static str,
) -> Setting {
    Setting { name, variables, flag: Some(flag), kind, default, doc }
}

const fn count(min: u64, max: u64) -> Kind {
    Kind::Number { unit: Unit::Count, min, max }
}

const fn bytes(min: u64, max: u64) -> Kind {
    Kind::Number { unit: Unit::Bytes, min, max }
}

const fn milliseconds(min: u64) -> Kind {
    Kind::Number { unit: Unit::Milliseconds, min, max: TIME_MS_MAX }
}

const SESSION: SessionLimits = SessionLimits::DEFAULT;
const VERBS: &VerbsSettings = VerbsSettings::DEFAULT;

const fn text(text: &'static str) -> Value {
    Value::Text(Cow::Borrowed(text))
}

/// A library's default.
const fn whole(number: usize) -> Value {
    Number(number as u64)
}

const fn millis(time: Duration) -> Value {
    Number(time.as_millis() as u64)
}

const fn micros(time: Duration) -> Value {
    Number(time.as_micros() as u64)
}

use Value::{Bool, Number, Unset};
use Variables::{None as Nothing, One};

/// The settings of each section: the field that a setting has in its section's struct (none where the section makes its field, in
/// parentheses, of several settings), its type, what it is called by those that the section is for, and its row of the table.
macro_rules! settings {
    ($(
        $(#[$doc:meta])*
        $section:ident($($made:ident: $made_type:ty)?) for $target:ident {
            $($($field:ident: $type:ty $(as $($place:ident).+)?)? => $row:expr,)*
        }
    )*) => {
        /// All settings, by section, in the order in which they are shown.
        pub static TABLE: &[Setting] = &[$($($row,)*)*];

        /// The settings that are passed on, by what they are called there.
        #[cfg(test)]
        pub(crate) static PASSED_ON: &[(&Setting, &str)] =
            &[$($($($((&$row, stringify!($($place).+)),)?)?)*)*];

        $(
            $(#[$doc])*
            #[derive(Clone, Debug)]
            pub struct $section {
                $(#[doc = "Made of several settings of the section."] pub $made: $made_type,)?
                $($(#[doc = concat!("The setting `", stringify!($field), "`: see [`TABLE`].")] pub $field: Sourced<$type>,)?)*
            }

            impl $section {
                pub(super) fn of(from: &Effective, $($made: $made_type)?) -> $section {
                    $section { $($made,)? $($($field: from.get(($row).name),)?)* }
                }

                #[allow(dead_code, unused_variables, reason = "a section that only the daemon uses passes nothing on")]
                pub(crate) fn apply(&self, target: &mut $target) {
                    $($($(target.$($place).+ = Clone::clone(&self.$field.value);)?)?)*
                }
            }
        )*
    };
}

#[rustfmt::skip] // One row a setting: a table is read down its columns.
settings! {
    /// `[runtime]`: shards, polling, pinning, memory.
    Runtime() for EngineSettings {
        shards: Option<usize> => setting("runtime.shards",
            Variables::ByRole { ps: "NETWORK_PS_CORE_NUMBER", worker: "NETWORK_WORKER_CORE_NUMBER" },
            count(1, SHARDS_MAX), Unset("min(16, tasks served, CPUs that may be used)"),
            "Number of shards, one thread each."),
        polling: bool => setting("runtime.polling",
            Variables::ByRole { ps: "PS_ENABLE_POLLING", worker: "WORKER_ENABLE_POLLING" },
            Kind::Bool, Bool(false),
            "True: shards never sleep. False: a shard sleeps after `idle_spin_us` without work."),
        idle_spin: Duration => setting("runtime.idle_spin_us", Nothing,
            Kind::Number { unit: Unit::Microseconds, min: 0, max: IDLE_SPIN_US_MAX }, micros(Polling::IDLE_SPIN),
            "How long an idle shard spins before it sleeps; 0 means it sleeps immediately. Once other threads have wanted its CPU, it sleeps immediately for a while."),
        pin: Option<bool> => setting("runtime.pin",
            Variables::InvertedByRole { ps: "PS_DISABLE_PIN_CORES", worker: "WORKER_DISABLE_PIN_CORES" },
            Kind::Bool, Unset("pin if enough CPUs are free"),
            "Whether every shard is pinned to its own CPU."),
        executor: ExecutorChoice as runtime.executor => setting("runtime.executor", Nothing,
            Kind::OneOf(&["auto", "io_uring", "epoll"]), text("auto"),
            "Executor of the shards. auto: io_uring where available, else epoll; io_uring: fail if it is not available."),
        slab_send_bytes: usize as slab_send_bytes => setting("runtime.slab_send_bytes", Nothing,
            bytes(SLAB_BYTES_MIN, SLAB_BYTES_MAX), whole(SlabSettings::BYTES),
            "Memory of each shard for tensors to send."),
        slab_receive_bytes: usize as slab_receive_bytes => setting("runtime.slab_receive_bytes", Nothing,
            bytes(SLAB_BYTES_MIN, SLAB_BYTES_MAX), whole(SlabSettings::BYTES),
            "Memory of each shard for received tensors."),
        mailbox_slots: usize as runtime.mailbox_slots => setting("runtime.mailbox_slots", Nothing,
            count(MAILBOX_SLOTS_MIN, MAILBOX_SLOTS_MAX), whole(RuntimeSettings::MAILBOX_SLOTS),
            "Jobs that may wait in a shard's mailbox."),
        stall_report: Duration as runtime.stall_report => setting("runtime.stall_report_ms", Nothing,
            milliseconds(0), millis(RuntimeSettings::STALL_REPORT),
            "Turns that take longer are reported; 0 disables the report."),
        claim_directory: PathBuf as runtime.claim_directory => setting("runtime.claim_directory", Nothing,
            Kind::Path, text(RuntimeSettings::CLAIM_DIRECTORY),
            "Directory of the lock files that claim CPUs; all daemons and embedded engines of a host must use the same one."),
    }

    /// `[transport]`: the endpoint map, timeouts and limits of links.
    Transport(endpoint_map: Sourced<PathBuf>) for EngineSettings {
        => with_flag("--endpoint-map", "transport.endpoint_map", Nothing,
            Kind::Path, Unset("`.endpoint_map` in transport.endpoint_map_directory"),
            "The endpoint map file."),
        => setting("transport.endpoint_map_directory", One("TF_SEASTAR_ENDPOINT_MAP_PATH"),
            Kind::Path, text("."),
            "The directory that holds `.endpoint_map`."),
        listen: Option<IpAddr> as listen => setting("transport.listen", Nothing,
            Kind::IpAddress, Unset("the transport address"),
            "Address of this host to listen on, at the port of the transport address, where the transport address is not this host's own (NAT, a Kubernetes service) or a loopback name; `0.0.0.0` or `::` for all. Name the tasks with `--task` then."),
        connect_timeout: Duration as connect_timeout => setting("transport.connect_timeout_ms", One("NETWORK_MAX_CONNECTION_TIMEOUT"),
            milliseconds(1), millis(EngineSettings::CONNECT_TIMEOUT),
            "How long a request waits for a connection. If a peer that was connected dies and its port refuses connections, requests fail within a second."),
        handshake_timeout: Duration as handshake_timeout => setting("transport.handshake_timeout_ms", Nothing,
            milliseconds(1), millis(EngineSettings::HANDSHAKE_TIMEOUT),
            "How long the handshake of a new connection may take."),
        heartbeat: Duration as session.heartbeat => setting("transport.heartbeat_ms", Nothing,
            milliseconds(1), millis(SESSION.heartbeat),
            "How long a link may be silent before it is pinged."),
        peer_timeout: Duration as session.peer_timeout => setting("transport.peer_timeout_ms", Nothing,
            milliseconds(1), millis(SESSION.peer_timeout),
            "How long a silent peer is considered alive; more than `heartbeat_ms`."),
        window: usize as session.window => setting("transport.window", Nothing,
            count(1, WINDOW_MAX), whole(SESSION.window),
            "Requests in flight per link."),
        tensor_bytes_max: u64 as session.tensor_bytes_max => setting("transport.tensor_bytes_max", Nothing,
            bytes(1, TENSOR_BYTES_CEILING), Number(SESSION.tensor_bytes_max),
            "Largest tensor accepted."),
        chunk_bytes: usize as session.chunk_bytes => setting("transport.chunk_bytes", Nothing,
            bytes(CHUNK_BYTES_MIN, TIB), whole(SESSION.chunk_bytes),
            "Larger tensors are sent in chunks of this size, so that other messages can pass in between."),
        in_flight_bytes: usize as session.in_flight_bytes_max => setting("transport.in_flight_bytes", Nothing,
            bytes(1, TIB), whole(SESSION.in_flight_bytes_max),
            "Bytes of tensors sent to a peer and not yet released, except those sent ahead of their requests, which have a credit of their own; further ones wait, but one tensor of any size may always be sent."),
        links_max: usize as links_max => setting("transport.links_max", Nothing,
            count(1, LINKS_CEILING), whole(EngineSettings::LINKS_MAX),
            "Open links of one shard."),
        greetings_max: usize as greetings_max => setting("transport.greetings_max", Nothing,
            count(1, LINKS_CEILING), whole(EngineSettings::GREETINGS_MAX),
            "Handshakes in progress on one shard; beyond this, callers wait in the kernel's backlog."),
        greetings_per_host_max: usize as greetings_per_host_max => setting("transport.greetings_per_host_max", Nothing,
            count(1, LINKS_CEILING), whole(EngineSettings::GREETINGS_PER_HOST_MAX),
            "Handshakes in progress from one host; further connections are closed and must retry."),
        greeting_bytes_max: usize as greeting_bytes_max => setting("transport.greeting_bytes_max", Nothing,
            bytes(GREETING_BYTES_FLOOR, GIB), whole(EngineSettings::GREETING_BYTES_MAX),
            "Buffered bytes of unfinished handshakes; callers beyond this limit are disconnected."),
        require: Require => setting("transport.require", Nothing,
            Kind::OneOf(&["auto", "tcp", "verbs"]), text("auto"),
            "Links to other hosts. auto: RDMA verbs if both sides have them, else TCP; tcp: only TCP; verbs: verbs or an error."),
    }

    /// `[transport.tcp]`: sockets.
    Tcp() for EngineSettings {
        congestion: String as tcp.congestion => setting("transport.tcp.congestion", Nothing,
            Kind::Text, text(""),
            "TCP congestion control; empty keeps the kernel's default."),
        send_buffer_bytes: usize as tcp.send_buffer_bytes => setting("transport.tcp.send_buffer_bytes", Nothing,
            bytes(0, SOCKET_BUFFER_BYTES_MAX), Number(0),
            "Socket send buffer; 0 lets the kernel choose."),
        receive_buffer_bytes: usize as tcp.receive_buffer_bytes => setting("transport.tcp.receive_buffer_bytes", Nothing,
            bytes(0, SOCKET_BUFFER_BYTES_MAX), Number(0),
            "Socket receive buffer; 0 lets the kernel choose."),
    }

    /// `[fusion]`: requests and tensors in flight.
    Fusion() for EngineSettings {
        fuse: Fuse as fuse => setting("fusion.fuse", Nothing,
            Kind::OneOf(&["off", "turn"]), text("turn"),
            "Message fusion. off: each message is sent separately; turn: small messages of a turn are sent together."),
        request_timeout: Duration as request_timeout => setting("fusion.request_timeout_ms", Nothing,
            milliseconds(1), millis(EngineSettings::REQUEST_TIMEOUT),
            "How long a request waits for its tensor if the caller sets no deadline."),
        lease: Duration as lease => setting("fusion.lease_ms", Nothing,
            milliseconds(1), millis(EngineSettings::LEASE),
            "How long the unreleased tensors of a peer without a link are kept for it before they are offered again."),
        queued_requests_max: usize as session.queued_requests_max => setting("fusion.queued_requests_max", Nothing,
            count(1, QUEUED_MAX), whole(SESSION.queued_requests_max),
            "Outstanding requests to one peer's shard, in flight or waiting; also the limit on its pulls, its pushes, and each task's recvs from tasks of this engine."),
        parked_requests_max: usize as session.parked_requests_max => setting("fusion.parked_requests_max", Nothing,
            count(1, QUEUED_MAX), whole(SESSION.parked_requests_max),
            "Requests of one peer to a shard that may wait for their tensor; also the limit on its pulls, and on the tensors they wait for."),
        pending_sends_max: usize as pending_sends_max => setting("fusion.pending_sends_max", Nothing,
            count(1, QUEUED_MAX), whole(EngineSettings::PENDING_SENDS_MAX),
            "Tensors of a shard that may wait for their recv, or be sent but not yet released."),
        published_tensors_max: usize as published_tensors_max => setting("fusion.published_tensors_max", Nothing,
            count(1, QUEUED_MAX), whole(EngineSettings::PUBLISHED_TENSORS_MAX),
            "Published keys per shard; of the last 32nd part, a task gets at most half of what is free, and its keys and metadata have at most 128 B for each key of the limit (at least 1 MiB). Plans may name the same number of unpublished keys, peers' plans three quarters of it."),
        plan_keys_max: usize as session.plan_keys_max => setting("fusion.plan_keys_max", Nothing,
            count(1, QUEUED_MAX), whole(SESSION.plan_keys_max),
            "Keys in all plans of one peer together; a peer is a transport address, however many links it has with a shard."),
        peer_name_bytes_max: usize as session.peer_name_bytes_max => setting("fusion.peer_name_bytes_max", Nothing,
            bytes(KIB, TIB), whole(SESSION.peer_name_bytes_max),
            "Total bytes of one peer's plan keys and of the names of queues that it pushes into."),
        turn_bytes: usize as session.turn_bytes => setting("fusion.turn_bytes", Nothing,
            bytes(KIB, GIB), whole(SESSION.turn_bytes),
            "Bytes of small messages sent to one peer per turn, in one write."),
        turn_payloads: usize as session.turn_payloads => setting("fusion.turn_payloads", Nothing,
            count(1, TURN_PAYLOADS_MAX), whole(SESSION.turn_payloads),
            "Large tensors sent to one peer per turn."),
    }

    /// `[daemon]`: attaching to the daemon, and its stop.
    Daemon(socket: Sourced<PathBuf>) for EngineSettings {
        => with_flag("--socket", "daemon.socket", Nothing,
            Kind::Path, Unset("`sealane.sock` in $XDG_RUNTIME_DIR, else in /run/sealane if this user may write there, else in /tmp/sealane-UID"),
            "Where clients attach to the daemon."),
        job: Option<JobName> as job => with_flag("--job", "daemon.job", One("SEALANE_JOB"),
            Kind::JobName, Unset("no named job"),
            "The name of the job. The daemon accepts only clients and peers of the same job; a client that names none joins the daemon's. Without it, daemons and clients of different jobs cannot be told apart."),
        allowed_uids: Vec<u32> => setting("daemon.allowed_uids", Nothing,
            Kind::UserIds, Unset("none besides root and the daemon's own"),
            "User ids that may attach besides root and the daemon's own; they also need access to the socket's directory."),
        clients_max: usize => setting("daemon.clients_max", Nothing,
            count(1, CLIENTS_CEILING), Number(CLIENTS_MAX),
            "Number of attached clients."),
        arena_bytes_max: u64 => setting("daemon.arena_bytes_max", Nothing,
            bytes(MIB, TIB), Number(ARENA_BYTES_MAX),
            "Largest arena (the memory a client sends from) that a client may request."),
        area_bytes: u64 => setting("daemon.area_bytes", Nothing,
            bytes(AREA_BYTES_MIN, TIB), Number(AREA_BYTES),
            "Memory of each client, per shard, for tensors received without a destination; allocated on first use."),
        views: bool => setting("daemon.views", Nothing,
            Kind::Bool, Bool(true),
            "Whether a client may map the arena of another client of the same user to view the tensors published there, and read rows of tables. It can then read that whole arena. `false`: tensors are always copied, and rows gathered by the daemon."),
        direct_lanes: bool => setting("daemon.direct_lanes", Nothing,
            Kind::Bool, Bool(true),
            "Whether two clients of the same user on this host may send each other small tensors and the bytes of streams directly, past the daemon, and streams to tasks of other hosts may have TCP connections of their own. The daemon then only counts what passes. `false`: all of it goes by the daemon, which copies the small tensors of two clients from the memory of one to that of the other."),
        drain_timeout: Duration => setting("daemon.drain_timeout_ms", Nothing,
            milliseconds(0), Number(DRAIN_TIMEOUT_MS),
            "How long a stopping daemon waits for calls in flight."),
        metrics: MetricsAddress => with_flag("--metrics", "daemon.metrics", Nothing,
            Kind::MetricsAddress, text("127.0.0.1:9490"),
            "Address on which the daemon serves metrics over HTTP, without authentication; `off` disables them."),
    }

    /// `[security]`: what peers of other hosts must show.
    Security(peers: Peers) for EngineSettings {
        => setting("security.secret_file", Nothing,
            Kind::Path, Unset("no shared secret"),
            "Text file, readable only by its owner, with the secret that the hosts of a job share: one line, or two while it is being replaced; `sealane keys secret` creates it."),
        => setting("security.tls_certificate", Nothing,
            Kind::Path, Unset("no TLS"),
            "This host's certificate in PEM; with `tls_key` and `tls_authorities`, links use TLS 1.3, and peers speak only for the tasks in their certificates; `sealane keys tls` creates all three."),
        => setting("security.tls_key", Nothing,
            Kind::Path, Unset("no TLS"),
            "The certificate's key in PEM, readable only by its owner."),
        => setting("security.tls_authorities", Nothing,
            Kind::Path, Unset("no TLS"),
            "Trusted certificate authorities in PEM."),
        insecure: bool as insecure => setting("security.insecure", Nothing,
            Kind::Bool, Bool(false),
            "Without a shared secret or TLS, also listen on addresses that other hosts can reach, and accept everyone."),
        plaintext_rdma: bool => setting("security.plaintext_rdma", Nothing,
            Kind::Bool, Bool(false),
            "Under TLS, also allow RDMA, which carries tensors in plain text; otherwise links use TCP. Each side decides for itself."),
    }

    /// `[verbs]`; what has a variable is read and checked as TensorFlow's verbs reads it.
    Verbs() for VerbsSettings {
        device: Option<String> as device => setting("verbs.device", One("RDMA_DEVICE"),
            Kind::Text, Unset("of those with an active port, the one of the transport address's network, else the first"),
            "The RDMA device."),
        port: Option<u8> as port => setting("verbs.port", One("RDMA_DEVICE_PORT"),
            count(1, RDMA_BYTE_MAX), Unset("the first active port"),
            "The device's port; requires `device`."),
        gid_index: Option<u8> as gid_index => setting("verbs.gid_index", One("RDMA_GID_INDEX"),
            count(0, RDMA_BYTE_MAX), Unset("the RoCE v2 GID of an IPv4 address"),
            "Index of the port's GID."),
        pkey_index: u16 as pkey_index => setting("verbs.pkey_index", One("RDMA_PKEY"),
            count(0, RDMA_BYTE_MAX), Number(VERBS.pkey_index as u64),
            "Index of the partition key."),
        queue_depth: u32 as queue_depth => setting("verbs.queue_depth", One("RDMA_QUEUE_DEPTH"),
            count(1, RDMA_QUEUE_DEPTH_MAX), Number(VERBS.queue_depth as u64),
            "16 KiB buffers in a shard's shared receive queue; at most the device's limit."),
        timeout: u8 as timeout => setting("verbs.timeout", One("RDMA_TIMEOUT"),
            count(0, RDMA_TIMEOUT_MAX), Number(VERBS.timeout as u64),
            "Acknowledgement timeout: 4.096 µs times 2 to this power; 0 waits forever."),
        retry_count: u8 as retry_count => setting("verbs.retry_count", One("RDMA_RETRY_CNT"),
            count(0, RDMA_RETRY_MAX), Number(VERBS.retry_count as u64),
            "How often an unacknowledged packet is retransmitted."),
        service_level: u8 as service_level => setting("verbs.service_level", One("RDMA_SL"),
            count(0, RDMA_SERVICE_LEVEL_MAX), Number(VERBS.service_level as u64),
            "Service level of a queue pair."),
        mtu: Option<u16> as mtu => setting("verbs.mtu", One("RDMA_MTU"),
            Kind::OneOf(&["256", "512", "1024", "2048", "4096"]), Unset("the port's active MTU"),
            "Path MTU in bytes; at most the port's active MTU."),
        traffic_class: u8 as traffic_class => setting("verbs.traffic_class", One("RDMA_TRAFFIC_CLASS"),
            count(0, RDMA_BYTE_MAX), Number(VERBS.traffic_class as u64),
            "Traffic class of a queue pair's packets."),
        transfer: Transfer as transfer => setting("verbs.transfer", Nothing,
            Kind::OneOf(&["write", "read"]), text("write"),
            "How large tensors move. write: the producer writes into the consumer's memory; read: the consumer reads from the producer's."),
        registration: Registration as registration => setting("verbs.registration", Nothing,
            Kind::OneOf(&["static", "dynamic"]), text("static"),
            "When memory is registered. static: slabs and arenas once; dynamic: all memory for each transfer (slow, for comparison)."),
        client_pinned_bytes_max: u64 as client_pinned_bytes_max => setting("verbs.client_pinned_bytes_max", Nothing,
            bytes(0, TIB), Number(VERBS.client_pinned_bytes_max),
            "Most bytes of one client's arena and area that a shard registers with the device, and so pins; tensors beyond it are copied."),
        retry_after: Duration as retry_after => setting("verbs.retry_after_ms", Nothing,
            milliseconds(1), millis(VERBS.retry_after),
            "How long a peer is reached over TCP after several consecutive failures of its verbs links."),
    }
}

/// Names of the last release that are still read, with those of today.
const FORMER: [(&str, &str); 1] = [("fusion.deposited_tensors_max", "fusion.pending_sends_max")];

/// The setting called `name`, today or formerly, and its place in the table.
pub(super) fn find(name: &str) -> Option<(usize, &'static Setting)> {
    let name = FORMER.iter().find(|(former, _)| *former == name).map_or(name, |(_, today)| today);
    TABLE.iter().enumerate().find(|(_, setting)| setting.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_and_variables_are_unique_and_described() {
        let mut names = HashSet::new();
        let mut variables = HashSet::new();
        for setting in TABLE {
            assert!(names.insert(setting.name), "{}", setting.name);
            assert!(!setting.section().is_empty(), "{}", setting.name);
            assert!(setting.doc.ends_with('.'), "{}", setting.name);
            let roles = [Role::Ps, Role::Worker];
            let read: HashSet<_> = roles.map(|role| setting.variables.for_role(role)).into();
            for variable in read.into_iter().flatten() {
                assert!(variables.insert(variable), "{variable}");
            }
        }
        assert_eq!(variables.len(), 2 * 3 + 3 + 10);
    }

    #[test]
    fn every_default_is_accepted() {
        for setting in TABLE {
            match &setting.default {
                Unset(meaning) => assert!(!meaning.is_empty(), "{}", setting.name),
                default => {
                    assert_eq!(setting.kind.read(&default.to_string()).as_ref(), Some(default), "{}", setting.name)
                }
            }
        }
    }
}
