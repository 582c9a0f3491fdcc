//! The ranges of the settings, and the defaults of those that no library has, each with its reason.

use sealane_runtime::SlabSettings;

pub(super) const KIB: u64 = 1024;
pub(super) const MIB: u64 = 1024 * KIB;
pub(super) const GIB: u64 = 1024 * MIB;
pub(super) const TIB: u64 = 1024 * GIB;

/// Most shards: the most CPUs that a CPU set of the C library holds.
pub const SHARDS_MAX: u64 = 1024;
/// Most shards by default: what DeepRec gives a parameter server with many connections.
pub const SHARDS_DEFAULT_MAX: usize = 16;

/// Longest spin before a shard sleeps, in µs; for longer ones there is `polling`.
pub(super) const IDLE_SPIN_US_MAX: u64 = 1_000_000;

/// Smallest slab: a few tensors of the largest eager size.
pub(super) const SLAB_BYTES_MIN: u64 = MIB;
/// Largest slab: more than a shard's share of any host's memory.
pub(super) const SLAB_BYTES_MAX: u64 = TIB;

/// Smallest mailbox: one slot would serialise every exchange between two shards.
pub(super) const MAILBOX_SLOTS_MIN: u64 = 2;
/// Largest mailbox: 16 MiB of slots a shard.
pub(super) const MAILBOX_SLOTS_MAX: u64 = 1 << 20;

/// One day: a longer time-out is a mistaken unit.
pub(super) const TIME_MS_MAX: u64 = 86_400_000;

/// Largest window: the request ids of one link in flight.
pub(super) const WINDOW_MAX: u64 = 65_536;
/// Highest value for the largest tensor.
pub(super) const TENSOR_BYTES_CEILING: u64 = TIB;
/// Highest value for the number of links: every pair of a port and a peer.
pub(super) const LINKS_CEILING: u64 = 65_536;
/// The longest greeting.
pub(super) const GREETING_BYTES_FLOOR: u64 = 256 * KIB;
/// Smallest chunk: a frame and its write cost as much as a few KiB of payload.
pub(super) const CHUNK_BYTES_MIN: u64 = 16 * KIB;
/// Largest socket buffer: beyond this the kernel refuses.
pub(super) const SOCKET_BUFFER_BYTES_MAX: u64 = GIB;

/// Ceiling of the four queue limits below: each entry costs about 100 bytes.
pub(super) const QUEUED_MAX: u64 = 1 << 24;

/// Largest turn: a second of a fast link, in tensors of the largest eager size.
pub(super) const TURN_PAYLOADS_MAX: u64 = 65_536;

/// Highest value for the number of clients: more processes than a host trains with.
pub(super) const CLIENTS_CEILING: u64 = 16_384;
/// Clients of a large host, several processes an accelerator.
pub(super) const CLIENTS_MAX: u64 = 1024;
/// Largest arena by default: a client's step of large embeddings, a part of a training host's memory.
pub(super) const ARENA_BYTES_MAX: u64 = 16 * GIB;
/// Smallest receive area: a few tensors of the largest eager size.
pub(super) const AREA_BYTES_MIN: u64 = MIB;
/// As much as a shard's own slab holds, since it takes the slab's place for a client.
pub(super) const AREA_BYTES: u64 = SlabSettings::BYTES as u64;
/// Calls in progress mostly end within a step; a service manager kills after 90 s.
pub(super) const DRAIN_TIMEOUT_MS: u64 = 10_000;

/// The fields of a queue pair's attributes hold no more (InfiniBand specification, vol. 1, 11.2).
pub(super) const RDMA_TIMEOUT_MAX: u64 = 31;
/// Three bits, as above.
pub(super) const RDMA_RETRY_MAX: u64 = 7;
/// TensorFlow accepts eight service levels.
pub(super) const RDMA_SERVICE_LEVEL_MAX: u64 = 7;
/// TensorFlow narrows these numbers to a byte.
pub(super) const RDMA_BYTE_MAX: u64 = 255;
/// More than any device's `max_qp_wr`.
pub(super) const RDMA_QUEUE_DEPTH_MAX: u64 = 65_536;
