//! Settings of a fake device.

use std::time::Duration;

/// Size and behavior of one fake device. The defaults are those of a small real one that answers at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FakeSettings {
    /// The adapter. Devices opened under one name share its GID, its port and its faults, like the shards of a host. Default
    /// `fake0`.
    pub name: String,
    /// Buffers that the shared receive queue holds. Default 1024.
    pub receive_depth: u32,
    /// Entries of the completion queue. Default 4096.
    pub completion_depth: u32,
    /// Work requests that a queue pair holds. Default 128.
    pub send_depth: u32,
    /// Most bytes of an inline send; 0 for none. Default 64.
    pub inline_bytes: u32,
    /// Windows can be bound. Default true.
    pub has_windows: bool,
    /// Memory of other devices can be registered, by dma-buf. Default true.
    pub registers_direct: bool,
    /// Reads that a queue pair answers at the same time. Default 16.
    pub reads: u8,
    /// Path MTU in bytes. Default 1024.
    pub mtu: u16,
    /// Most bytes of one work request. Default 1 GiB.
    pub work_bytes_max: u32,
    /// Each request waits before it is carried out, and again before it is acknowledged, for up to this many polls of any
    /// device of the fabric; the fabric's seed chooses how many. For an armed device time passes at once, since it sleeps.
    /// Default 0: at once.
    pub delay_polls_max: u32,
    /// A request that meets a port that is down is retried for this many polls before it ends with
    /// [`RETRIES_EXCEEDED`](crate::verbs::device::Status::RETRIES_EXCEEDED). Default 16.
    pub retry_polls: u32,
    /// A stopped queue pair returns the receive buffer that it holds after this many polls. For an armed device time passes at
    /// once. Default 0: at once.
    pub drain_polls: u32,
    /// How long registering takes per MiB, and deregistering as well. Default 0.
    pub register_time_per_mib: Duration,
    /// A stopped queue pair reports when it holds no receive buffer
    /// ([`LastReceive`](crate::verbs::device::AsyncEvent::LastReceive)). Default true.
    pub tells_last_receive: bool,
}

impl Default for FakeSettings {
    fn default() -> Self {
        Self {
            name: "fake0".into(),
            receive_depth: 1024,
            completion_depth: 4096,
            send_depth: 128,
            inline_bytes: 64,
            has_windows: true,
            registers_direct: true,
            reads: 16,
            mtu: 1024,
            work_bytes_max: 1 << 30,
            delay_polls_max: 0,
            retry_polls: 16,
            drain_polls: 0,
            register_time_per_mib: Duration::ZERO,
            tells_last_receive: true,
        }
    }
}
