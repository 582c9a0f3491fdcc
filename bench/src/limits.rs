//! Every bound of the harness in one place: no wait, buffer or count is unlimited.

use std::time::Duration;

/// Bytes of a request, the same for every system: room for a header, a key's number and a step.
pub const REQUEST_BYTES: usize = 64;

/// What sent tensors are filled with: memory that was never written is one page of zeros, however long it is, and costs nothing to
/// read.
pub(crate) const FILL: u8 = 1;

/// Largest tensor of a measurement. More would measure the machine's memory, not the link.
pub const SIZE_BYTES_MAX: usize = 1 << 30;

/// Most bytes of tensors that are in flight at once in shared memory, which exists twice: where they are sent from and
/// where they arrive. All of it is taken from the machine before the first round.
pub const SHARED_BYTES_MAX: usize = 1 << 30;

pub const ROUNDS_MAX: u32 = 1_000;

/// Longest round, in seconds.
pub const SECONDS_MAX: f64 = 3_600.0;

/// Most requests in flight at once.
pub const WINDOW_MAX: usize = 65_536;

/// Most peers of one engine: as many links as a shard of an engine has by default, and as many callers as wait in its
/// listener's backlog.
pub const PEERS_MAX: usize = 4_096;

/// Most parameter servers of one experiment: their ports go to the workers in one line.
pub const PS_MAX: usize = 512;

/// Most connections of one experiment, one of each worker with each ps: as many ports as the loopback interface has for
/// calls to one address, and half of the files that a process may commonly have open.
pub const SESSIONS_MAX: usize = 32_768;

/// Most workers of one experiment over verbs or shm: each is an engine there, with a thread and a device's queues, or a
/// client, with a thread and an arena, and all are in one process.
pub const HOSTED_WORKERS_MAX: usize = 64;

/// Most bytes that such workers pull and push in a step together: each has memory for its own.
pub const HOSTED_BYTES_MAX: usize = 2 << 30;

/// Most ranks of a group, which are as many processes on this machine.
pub const RANKS_MAX: usize = 64;

pub const TABLES_MAX: usize = 1_024;

/// Most elements of a row.
pub const TABLE_DIM_MAX: usize = 16_384;

/// Most rows that a worker names of a table in a step.
pub const TABLE_BATCH_MAX: usize = 1 << 20;

/// Most bytes of all tables together: every system has its own, and all are there at once.
pub const TABLES_BYTES_MAX: u64 = 64 << 30;

/// Longest time that a worker computes in a step, in microseconds.
pub const COMPUTE_US_MAX: u64 = 1_000_000;

pub const ROUND_STEPS_MAX: u64 = 1_000_000;

/// Peers of the small crowd that many peers of one engine are compared with.
pub const FEW_PEERS: usize = 10;

/// Most tensors of one step: their sizes go to the producer in one argument of at most 128 KiB.
pub const STEP_TENSORS_MAX: usize = 8_192;

/// Most bytes of one step, which exist on both sides.
pub const STEP_BYTES_MAX: usize = 1 << 30;

/// Longest gap between two requests of a latency round, in microseconds.
pub const IDLE_US_MAX: u64 = 10_000_000;

/// How long a client spins before it sleeps if both sides should poll: it does neither while other systems are measured.
pub(crate) const CLIENT_SPIN: Duration = Duration::from_millis(5);

/// Gap between requests when polling is off: five times the default idle spin of 200 µs, so that
/// every reactor has gone to sleep when the next request comes.
pub const IDLE_US_DEFAULT: u64 = 1_000;

/// Share of a round's length that is run before it and not counted, so that caches, branch
/// predictors and the congestion window are those of steady work.
pub const WARM_UP_SHARE: f64 = 0.1;

/// Longest warm-up: a tenth of a second is many round trips even of the slowest system.
pub const WARM_UP_MAX: Duration = Duration::from_millis(100);

/// How long a link may move nothing before the round fails.
pub const STALL_LIMIT: Duration = Duration::from_secs(10);

/// The bytes a second of the slowest link: a device in software on an emulated machine, with others at work beside it. A request
/// may wait for everything requested before it.
pub const SLOWEST_BYTES_PER_SECOND: usize = 2 << 20;

/// Idle passes of a spinning loop between two clock readings.
pub const IDLE_PASSES_A_LOOK: u32 = 4_096;

/// How long a producer process may take to report that it is ready; generous, because a test suite may start many at once on few
/// cores.
pub const READY_LIMIT: Duration = Duration::from_secs(30);

/// Longest line in which a producer reports that it is ready.
pub const READY_LINE_BYTES_MAX: u64 = 4 << 10;

/// How long a connection to a ready producer may take.
pub const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// How long a producer may take to end after its control pipe closed, before it is killed.
pub const END_LIMIT: Duration = Duration::from_secs(5);

/// How long a failed round waits to learn whether its producer died of the same cause.
pub const BLAME_LIMIT: Duration = Duration::from_millis(500);

/// Callers of `sealane bench serve` that have not authenticated yet.
pub const CALLERS_MAX: usize = 8;

/// Producers of one consumer at the same time: one for each system of a measurement.
pub const PRODUCERS_MAX: usize = 16;

/// Keys in the store of the ranks of a group, and bytes of a value: each rank sets a few short ones.
pub const STORED_KEYS_MAX: usize = 32 * RANKS_MAX;
pub const STORED_BYTES_MAX: usize = 64 << 10;

/// How long a consumer waits for the one that is served: no longer than the producers of that one may take to end.
pub const TURN_LIMIT: Duration = END_LIMIT;

/// Longest time for which one consumer is served.
pub const SESSION_LIMIT: Duration = Duration::from_secs(3_600);

/// How much of the end of a producer's standard error is shown in an error message.
pub const STDERR_BYTES_TOLD: u64 = 8 << 10;

/// Largest write of many small messages at once, and the read buffer of the many-message rounds.
pub const FUSED_BYTES_MAX: usize = 256 << 10;

/// Capacity of one direction of the in-memory raw link: fits in a core's second-level cache.
pub const RING_BYTES: usize = 256 << 10;

/// Capacity of one direction of the in-memory gRPC connection.
pub const DUPLEX_BYTES: usize = 1 << 20;

/// Flow-control window of gRPC, of a stream and of the connection: never the limit of a round.
pub const GRPC_WINDOW_BYTES: u32 = 1 << 30;

/// Unary calls of a step that are in flight at once: for a step of a thousand tensors of 64 bytes, more made no difference.
pub const GRPC_CALLS_MAX: usize = 64;

/// Largest HTTP/2 frame. Of 16 KiB to 8 MiB this moved 4 MiB tensors fastest (`bench bandwidth`, 2
/// cores: 2.2 GB/s with 16 KiB, 4.1 with 64 KiB, 6.2 with 1 MiB, 6.1 with 8 MiB).
pub const GRPC_FRAME_BYTES: u32 = 1 << 20;

/// Longest round trip that a histogram tells apart, in nanoseconds; longer ones count as this.
pub const ROUND_TRIP_NS_MAX: u64 = 60_000_000_000;

const _: () = assert!(
    IDLE_US_DEFAULT < IDLE_US_MAX && STALL_LIMIT.as_micros() >= IDLE_US_MAX as u128,
    "an idle gap must not look like a stall"
);
const _: () = assert!(FUSED_BYTES_MAX >= REQUEST_BYTES);
const _: () = assert!(SIZE_BYTES_MAX <= SHARED_BYTES_MAX, "one tensor of any size fits");
