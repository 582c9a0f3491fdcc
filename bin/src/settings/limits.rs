//! The ranges and defaults of the settings, each with its reason.

/// One KiB, in bytes.
pub(super) const KIB: u64 = 1024;
/// One MiB, in bytes.
pub(super) const MIB: u64 = 1024 * KIB;
/// One GiB, in bytes.
pub(super) const GIB: u64 = 1024 * MIB;
/// One TiB, in bytes.
pub(super) const TIB: u64 = 1024 * GIB;

/// Most shards: the most CPUs that a CPU set of the C library holds.
pub const SHARDS_MAX: u64 = 1024;
/// Most shards by default: what DeepRec gives a parameter server with many connections.
pub const SHARDS_DEFAULT_MAX: usize = 16;

/// Longest spin before a shard sleeps, in µs; whoever wants more wants `polling`.
pub(super) const IDLE_SPIN_US_MAX: u64 = 1_000_000;
/// Several times a round trip in a data centre, so that a request's answer is met awake.
pub(super) const IDLE_SPIN_US: u64 = 200;

/// Smallest slab: a few tensors of the largest eager size.
pub(super) const SLAB_BYTES_MIN: u64 = MIB;
/// Largest slab: more than a shard's share of any host's memory.
pub(super) const SLAB_BYTES_MAX: u64 = TIB;
/// Room for a step of a common vision model, at a cost that a small host can pay.
pub(super) const SLAB_BYTES: u64 = 64 * MIB;

/// Smallest mailbox: one slot would serialise every exchange between two shards.
pub(super) const MAILBOX_SLOTS_MIN: u64 = 2;
/// Largest mailbox: 16 MiB of slots a shard.
pub(super) const MAILBOX_SLOTS_MAX: u64 = 1 << 20;
/// A step's worth of jobs of a model with thousands of variables.
pub(super) const MAILBOX_SLOTS: u64 = 4096;

/// A task that holds its shard for as long as this has missed hundreds of round trips.
pub(super) const STALL_REPORT_MS: u64 = 100;

/// One day: a longer time-out is a mistaken unit.
pub(super) const TIME_MS_MAX: u64 = 86_400_000;
/// DeepRec's default of `NETWORK_MAX_CONNECTION_TIMEOUT`.
pub(super) const CONNECT_TIMEOUT_MS: u64 = 120_000;
/// Far more than a handshake takes, short enough to try again within a connect time-out.
pub(super) const HANDSHAKE_TIMEOUT_MS: u64 = 5_000;
/// Three heartbeats fit into the peer time-out, so that one lost is no loss of the peer.
pub(super) const HEARTBEAT_MS: u64 = 10_000;
/// How long a silent peer is believed to be alive.
pub(super) const PEER_TIMEOUT_MS: u64 = 30_000;
const _: () = assert!(3 * HEARTBEAT_MS <= PEER_TIMEOUT_MS);

/// Largest window: the request ids of one link in flight.
pub(super) const WINDOW_MAX: u64 = 65_536;
/// The request buffers a peer that mt-verbs found best.
pub(super) const WINDOW: u64 = 40;
/// Largest tensor that can be allowed.
pub(super) const TENSOR_BYTES_CEILING: u64 = TIB;
/// Largest tensor by default: an embedding table's shard, not a broken length.
pub(super) const TENSOR_BYTES_MAX: u64 = 4 * GIB;
/// Most links that can be allowed: every pair of a port and a peer.
pub(super) const LINKS_CEILING: u64 = 65_536;
/// Most links by default: thousands of peers.
pub(super) const LINKS_MAX: u64 = 4096;
/// Thousands of workers that start at once; each has 16 KiB for its greeting.
pub(super) const GREETINGS_MAX: u64 = 4096;
/// A quarter of all, so that no host holds up the others: a thousand processes of one.
pub(super) const GREETINGS_PER_HOST_MAX: u64 = 1024;
/// A hundred of the longest greetings.
pub(super) const GREETING_BYTES_MAX: u64 = 32 * MIB;
/// The longest greeting.
pub(super) const GREETING_BYTES_FLOOR: u64 = 256 * KIB;
/// Several hundred milliseconds of a fast link: a consumer that lags behind by more is not fed.
pub(super) const IN_FLIGHT_BYTES: u64 = 256 * MIB;
/// Smallest chunk: a frame and its write cost as much as a few KiB of payload.
pub(super) const CHUNK_BYTES_MIN: u64 = 16 * KIB;
/// What a small message waits for at most: 0.4 ms of a fast link. With 1 MiB one stream of 4 MiB tensors lost an eighth of its speed
/// (`bench bandwidth`: 0.80 of raw instead of 0.93), while 16 tensors at once did not tell the two apart (`bench fuse`).
pub(super) const CHUNK_BYTES: u64 = 4 * MIB;
/// Largest socket buffer: beyond this the kernel refuses.
pub(super) const SOCKET_BUFFER_BYTES_MAX: u64 = GIB;

/// A slow step of a large job.
pub(super) const REQUEST_TIMEOUT_MS: u64 = 600_000;
/// How long a producer keeps what a dead consumer never releases.
pub(super) const LEASE_MS: u64 = 120_000;
/// Ceiling of the four queue limits below: each entry costs about 100 bytes.
pub(super) const QUEUED_MAX: u64 = 1 << 24;
/// Requests that wait for a link.
pub(super) const QUEUED_REQUESTS_MAX: u64 = 65_536;
/// Requests that wait for their tensor.
pub(super) const PARKED_REQUESTS_MAX: u64 = 65_536;
/// Tensors that wait for their request.
pub(super) const DEPOSITED_TENSORS_MAX: u64 = 1 << 20;

/// Keys that are published or named by plans.
pub(super) const PUBLISHED_TENSORS_MAX: u64 = 1 << 20;
/// A quarter of what a shard has room for, so that one peer does not take all of it.
pub(super) const PLAN_KEYS_MAX: u64 = 1 << 18;
/// 64 B tensors gain nothing past 64 KiB (`bench rate`: 2.9 M/s with 4 KiB, 4.4 with 16, 4.5-4.7 from there on), plans of 8 KB
/// tensors a tenth with each doubling (`bench fuse`: 5.2, 5.6, 6.4 GB/s with 64 KiB, 256 KiB, 1 MiB), at so much memory a busy link.
pub(super) const TURN_BYTES: u64 = 256 * KIB;
/// Twice the vectors of one system call; 4 to 256 made no difference that could be told from noise (256 tensors of 64 KiB).
pub(super) const TURN_PAYLOADS: u64 = 64;
/// Largest turn: a second of a fast link, in tensors of the largest eager size.
pub(super) const TURN_PAYLOADS_MAX: u64 = 65_536;

/// Most clients that can be allowed: more processes than a host trains with.
pub(super) const CLIENTS_CEILING: u64 = 16_384;
/// Clients of a large host, several processes an accelerator.
pub(super) const CLIENTS_MAX: u64 = 1024;
/// Largest arena by default: a client's step of large embeddings, a part of a training host's memory.
pub(super) const ARENA_BYTES_MAX: u64 = 16 * GIB;
/// Smallest receive area: a few tensors of the largest eager size.
pub(super) const AREA_BYTES_MIN: u64 = MIB;
/// As much as a shard's own slab holds, since it takes the slab's place for a client.
pub(super) const AREA_BYTES: u64 = SLAB_BYTES;
/// Calls under way mostly end within a step; a service manager kills after 90 s.
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
/// Time for a cable to be plugged in again or a device to be reset, short enough to be back within a few steps.
pub(super) const VERBS_RETRY_AFTER_MS: u64 = 30_000;
