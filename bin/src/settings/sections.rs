//! The typed settings, a struct for each section of `sealane.toml`. `table.rs` says what each setting means, what it accepts and
//! what it is by default.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sealane_fusion::Fuse;
use sealane_runtime::ExecutorChoice;
use sealane_transport::endpoint_map;
use sealane_transport::verbs::{Registration, Transfer};

use super::effective::Effective;
use super::limits::SHARDS_DEFAULT_MAX;
use super::value::MetricsAddress;
use super::{Environment, Given, Sourced};
use crate::Failure;

/// A section: each field with its type and the setting that it is read from. Those in parentheses are worked out before.
macro_rules! section {
    ($(#[$doc:meta])* $section:ident($($made:ident: $made_type:ty = $made_of:literal),*) {
        $($field:ident: $type:ty = $setting:literal,)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $section {
            $(#[doc = concat!("The setting `", $made_of, "`.")] pub $made: Sourced<$made_type>,)*
            $(#[doc = concat!("The setting `", $setting, "`.")] pub $field: Sourced<$type>,)*
        }

        impl $section {
            pub(super) fn of(from: &Effective, $($made: Sourced<$made_type>),*) -> $section {
                $section { $($made,)* $($field: from.get($setting),)* }
            }
        }
    };
}

section! {
    /// `[runtime]`
    Runtime() {
        shards: Option<usize> = "runtime.shards",
        polling: bool = "runtime.polling",
        idle_spin: Duration = "runtime.idle_spin_us",
        pin: Option<bool> = "runtime.pin",
        executor: ExecutorChoice = "runtime.executor",
        slab_send_bytes: usize = "runtime.slab_send_bytes",
        slab_receive_bytes: usize = "runtime.slab_receive_bytes",
        mailbox_slots: usize = "runtime.mailbox_slots",
        stall_report: Duration = "runtime.stall_report_ms",
        claim_directory: PathBuf = "runtime.claim_directory",
    }
}

impl Runtime {
    /// The number of shards for an endpoint map of so many tasks.
    pub fn shards_for(&self, tasks: usize) -> usize {
        let by_tasks = tasks.clamp(1, SHARDS_DEFAULT_MAX);
        self.shards.value.unwrap_or(by_tasks)
    }
}

section! {
    /// `[transport]`
    Transport(endpoint_map: PathBuf = "transport.endpoint_map") {
        connect_timeout: Duration = "transport.connect_timeout_ms",
        handshake_timeout: Duration = "transport.handshake_timeout_ms",
        heartbeat: Duration = "transport.heartbeat_ms",
        peer_timeout: Duration = "transport.peer_timeout_ms",
        window: usize = "transport.window",
        tensor_bytes_max: u64 = "transport.tensor_bytes_max",
        chunk_bytes: usize = "transport.chunk_bytes",
        in_flight_bytes: usize = "transport.in_flight_bytes",
        links_max: usize = "transport.links_max",
        greetings_max: usize = "transport.greetings_max",
        greetings_per_host_max: usize = "transport.greetings_per_host_max",
        greeting_bytes_max: usize = "transport.greeting_bytes_max",
        require: Require = "transport.require",
    }
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
    /// The same, for a build that has verbs or has not.
    ///
    /// # Errors
    /// Verbs are required, and the build has none.
    pub(super) fn possible(self, verbs_built_in: bool, given: impl FnOnce() -> Given) -> Result<Self, Failure> {
        match self {
            Require::Verbs if !verbs_built_in => Err(Failure::input(format!(
                "{} asks for RDMA verbs, and this build has none; build it with `--features verbs`, or write auto or tcp",
                given()
            ))),
            _ => Ok(self),
        }
    }
}

impl Transport {
    /// The section, for a build that has verbs or has not.
    ///
    /// # Errors
    /// Settings contradict each other, or verbs are required and the build has none.
    pub(super) fn checked(from: &Effective, verbs_built_in: bool) -> Result<Transport, Failure> {
        let transport = Transport::of(from, endpoint_map_file(from));
        if transport.peer_timeout.value <= transport.heartbeat.value {
            let fix = "make the peer timeout longer than the heartbeat, for example three times";
            return Err(from.contradiction("transport.peer_timeout_ms", "transport.heartbeat_ms", fix));
        }
        transport.require.value.possible(verbs_built_in, || from.given("transport.require"))?;
        Ok(transport)
    }
}

/// A file that is named wins over a directory that is named by the same kind of source or a
/// weaker one.
fn endpoint_map_file(from: &Effective) -> Sourced<PathBuf> {
    let file: Sourced<Option<PathBuf>> = from.get("transport.endpoint_map");
    let directory: Sourced<PathBuf> = from.get("transport.endpoint_map_directory");
    match file.value {
        Some(value) if file.source.rank() >= directory.source.rank() => Sourced { value, source: file.source },
        _ => directory.map(|directory| match directory.as_os_str().to_str() {
            // `.endpoint_map` reads better than `./.endpoint_map` in every message.
            Some(".") => PathBuf::from(endpoint_map::FILE_NAME),
            _ => directory.join(endpoint_map::FILE_NAME),
        }),
    }
}

section! {
    /// `[transport.tcp]`
    Tcp() {
        congestion: String = "transport.tcp.congestion",
        send_buffer_bytes: usize = "transport.tcp.send_buffer_bytes",
        receive_buffer_bytes: usize = "transport.tcp.receive_buffer_bytes",
    }
}

impl Tcp {
    /// The congestion control to ask for; `None` leaves the kernel's default.
    pub fn wanted_congestion(&self) -> Option<&str> {
        Some(self.congestion.value.as_str()).filter(|name| !name.is_empty())
    }
}

section! {
    /// `[fusion]`
    Fusion() {
        fuse: Fuse = "fusion.fuse",
        request_timeout: Duration = "fusion.request_timeout_ms",
        lease: Duration = "fusion.lease_ms",
        queued_requests_max: usize = "fusion.queued_requests_max",
        parked_requests_max: usize = "fusion.parked_requests_max",
        deposited_tensors_max: usize = "fusion.deposited_tensors_max",
        published_tensors_max: usize = "fusion.published_tensors_max",
        plan_keys_max: usize = "fusion.plan_keys_max",
        peer_name_bytes_max: usize = "fusion.peer_name_bytes_max",
        turn_bytes: usize = "fusion.turn_bytes",
        turn_payloads: usize = "fusion.turn_payloads",
    }
}

section! {
    /// `[daemon]`
    Daemon(socket: PathBuf = "daemon.socket") {
        allowed_uids: Vec<u32> = "daemon.allowed_uids",
        clients_max: usize = "daemon.clients_max",
        arena_bytes_max: u64 = "daemon.arena_bytes_max",
        area_bytes: u64 = "daemon.area_bytes",
        drain_timeout: Duration = "daemon.drain_timeout_ms",
        metrics: MetricsAddress = "daemon.metrics",
    }
}

impl Daemon {
    /// The section, whose socket has its place in the environment where nothing gives one.
    pub(super) fn placed(from: &Effective, environment: &Environment) -> Result<Daemon, Failure> {
        let Sourced { value, source }: Sourced<Option<PathBuf>> = from.get("daemon.socket");
        let value = match value {
            Some(socket) => socket,
            None => sealane::socket_in(environment.get("XDG_RUNTIME_DIR")?.map(Path::new)),
        };
        Ok(Daemon::of(from, Sourced { value, source }))
    }
}

section! {
    /// `[verbs]`; what has a variable is read and checked as TensorFlow's verbs reads it.
    Verbs() {
        device: Option<String> = "verbs.device",
        port: Option<u8> = "verbs.port",
        gid_index: Option<u8> = "verbs.gid_index",
        pkey_index: u8 = "verbs.pkey_index",
        queue_depth: u32 = "verbs.queue_depth",
        timeout: u8 = "verbs.timeout",
        retry_count: u8 = "verbs.retry_count",
        service_level: u8 = "verbs.service_level",
        mtu: Option<u16> = "verbs.mtu",
        traffic_class: u8 = "verbs.traffic_class",
        transfer: Transfer = "verbs.transfer",
        registration: Registration = "verbs.registration",
        client_pinned_bytes_max: u64 = "verbs.client_pinned_bytes_max",
        retry_after: Duration = "verbs.retry_after_ms",
    }
}

impl Verbs {
    /// The section.
    ///
    /// # Errors
    /// It has a port without a device.
    pub(super) fn checked(from: &Effective) -> Result<Verbs, Failure> {
        let verbs = Verbs::of(from);
        match (&verbs.device.value, verbs.port.value) {
            (None, Some(_)) => {
                let given = from.given("verbs.port");
                Err(Failure::input(format!("{given} names a port without a device; set RDMA_DEVICE too")))
            }
            _ => Ok(verbs),
        }
    }
}
