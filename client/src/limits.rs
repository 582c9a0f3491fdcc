//! Every limit of an attachment. Those of rings and records are in `sealane_transport::shm::limits`.

use std::{ops::RangeInclusive, time::Duration};

use sealane_transport::shm::limits::{LANE_RING_BYTES, QUEUE_CREDIT_TENSORS_MAX};

/// How much longer than its deadline a call waits for the daemon's answer: the daemon ends calls at their deadlines, so one
/// that is silent for this long hangs.
pub(crate) const GRACE: Duration = Duration::from_secs(1);

/// How long closing a task, or giving up a recv, waits for the daemon to release memory. It does so in microseconds unless a tensor is
/// on its way to or from a peer that does not read or write.
pub(crate) const LET_GO_MAX: Duration = Duration::from_secs(1);

/// Most arenas of other clients mapped to view tensors there: the parameter servers of a host. Tensors in others are copied.
pub(crate) const OTHERS_ARENAS_MAX: usize = 64;

/// How long the daemon may take to hand over such an arena, usually a fraction of a millisecond. After this the tensor is copied.
pub(crate) const VIEW_TIMEOUT: Duration = Duration::from_secs(1);

/// Most lanes of this process: as many as its daemon grants.
pub(crate) const LANES_MAX: usize = 64;

/// Most lanes that are gone and whose rings are still read. Beyond that, the streams of the oldest end.
pub(crate) const LANES_RETIRED_MAX: usize = LANES_MAX;

/// Milliseconds between two checks whether a stream still uses one. By then, what a process wrote before it went is known.
pub(crate) const LANE_RETIRED: u64 = 2000;

/// How long the daemon may take to grant a lane, usually a fraction of a millisecond: the other lanes are not served meanwhile.
pub(crate) const LANE_TIMEOUT: Duration = Duration::from_millis(100);

/// Bytes copied into or out of a lane's ring before the other end sees them, so that both ends copy at the same time.
pub(crate) const RING_PIECE_BYTES: usize = 32 << 10;

/// Most bytes that one call moves into or out of a ring while the other end keeps up: other threads may wait for its lock.
pub(crate) const RING_BYTES_AT_ONCE: usize = 1 << 20;

/// Most sent bytes kept for a stream with a socket of its own, however large the kernel's buffer is.
pub(crate) const SOCKET_BUFFER_BYTES_MAX: usize = 64 << 20;

/// Sent bytes kept beyond the size of that buffer: what the kernel may take over its limit.
pub(crate) const SOCKET_SLACK_BYTES: usize = 256 << 10;

/// Keeping fewer bytes takes less time than asking the kernel which of them have arrived.
pub(crate) const SOCKET_ASK_BYTES: usize = 16 << 10;

/// Bytes given to a socket in one write.
pub(crate) const SOCKET_PIECE_BYTES: usize = 1 << 20;

/// Most bytes that one call gives to a socket while the kernel takes them: other threads may wait for its lock.
pub(crate) const SOCKET_BYTES_AT_ONCE: usize = 4 << 20;

/// Most sockets of a task's streams: further streams go through the daemon.
pub(crate) const SOCKETS_MAX: usize = 256;

/// Most threads that ask the daemon for sockets at the same time.
pub(crate) const SOCKET_OPENERS_MAX: usize = 4;

/// How long the daemon may take to make a socket: its handshake timeout plus a margin.
pub(crate) const SOCKET_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause before a peer is asked again after no connection could be made; doubled each time.
pub(crate) const SOCKET_RETRY: Duration = Duration::from_secs(1);

/// Longest such pause.
pub(crate) const SOCKET_RETRY_MAX: Duration = Duration::from_secs(64);

/// Polls of a ring before its reader waits as for all else: some 2 us, in which another process that spins has answered.
pub(crate) const RING_SPINS: usize = 40;

/// Small tensors exchanged with a task of this host before a lane to it is requested: the request costs as much as they do.
pub(crate) const DIRECT_AFTER: u32 = 64;

/// Milliseconds before a task of this host that had no process is asked about again; doubled each time.
pub(crate) const DIRECT_RETRY: u64 = 1000;

/// Most milliseconds of that pause.
pub(crate) const DIRECT_RETRY_MAX: u64 = 64_000;

/// How often the daemon is told how much went over lanes.
pub(crate) const DIRECT_LOOK: Duration = ELSEWHERE_INTERVAL;

/// Milliseconds between two attempts to send through the daemon what a channel has left, or to ask it for what its recvs wait for.
pub(crate) const LANES_LOOK: u64 = 4;

/// Longest time that other clients wait for an answer of this process while its callers sleep often and listen for themselves.
pub(crate) const HOST_PAUSE: Duration = Duration::from_millis(1);

/// Sends to a peer through the daemon between two checks which of them are over.
pub(crate) const BY_DAEMON_LOOK: usize = 1024;

/// How often a task being closed checks whether the daemon has released its memory.
pub(crate) const LET_GO_LOOK: Duration = Duration::from_micros(50);

/// Most tensors kept for later recvs of their keys because the recvs they came for were given up. When there are as
/// many, other recvs are refused.
pub(crate) const UNCLAIMED_MAX: usize = 4096;

/// Default arena size: a model such as ResNet-50 (102 MB) with its gradients, or one embedding of 400 MB. Unused memory costs nothing,
/// unless RDMA pins it.
pub const ARENA_BYTES: u64 = 512 << 20;

/// Memory for more bytes of rows than this is checked to be available first: less is small against what a process has.
pub(crate) const ROWS_UNCHECKED_BYTES_MAX: usize = 64 << 20;

/// Default limit for attaching: the daemon may be busy with other clients.
pub(crate) const ATTACH_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause before attaching is tried again after the daemon has closed the connection without an answer.
pub(crate) const ATTACH_RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Stands for a time that the clock cannot hold: longer than any process lives.
pub(crate) const NO_LIMIT: Duration = Duration::from_secs(u32::MAX as u64);

/// How long a call waits by default for the next daemon after one has drained: longer than a service manager takes to start it,
/// and longer than a drain takes by default, since a call may wait for that too.
pub(crate) const RESTART_TIMEOUT: Duration = Duration::from_secs(30);

/// Longest wait for the next daemon that can be set: a day, which any clock can count from now.
pub(crate) const RESTART_TIMEOUT_MAX: Duration = Duration::from_secs(86_400);

/// Least time between two attempts to attach again: a daemon that is restarted is found at once, and one that is gone is
/// not stormed by every call.
pub(crate) const REATTACH_INTERVAL: Duration = Duration::from_millis(10);

/// Longest wait for room in a submission ring. The daemon reads a ring in microseconds; one that takes longer than this
/// is not reading at all.
pub(crate) const ROOM_WAIT_MAX: Duration = Duration::from_secs(1);

/// Default for the calls that may wait in this process for room in the rings or the arena, where calls do not wait in
/// their callers' threads: several steps of the largest models.
pub(crate) const BACKLOG_CALLS: usize = 1 << 18;

/// Default for their bytes, including the tensors that wait for room in the arena.
pub(crate) const BACKLOG_BYTES: u64 = 256 << 20;

/// Smallest slice pulled over another shard than its owner's first: a separate message costs a tenth of what its bytes do.
pub(crate) const STRIPE_BYTES_MIN: usize = 64 << 10;

/// How often a sliced pull is repeated if slices of one owner came at different versions. That happens to a pull that overlaps
/// a publication, which is on all shards within microseconds.
pub(crate) const TORN_PULLS_MAX: u32 = 3;

/// Waiting records that are not calls, beyond the calls' limit: ended steps, named peers, plans and queues opened and closed. The
/// largest, and few are that large, has 7 KiB.
pub(crate) const BACKLOG_ORDERS_MAX: usize = 4096;

/// First sleep of a thread that waits for room, since nothing signals that a daemon has read. Doubled as long as there is
/// none, so that a daemon which does not read costs little.
pub(crate) const ROOM_LOOK: Duration = Duration::from_micros(50);

/// Longest such sleep.
pub(crate) const ROOM_LOOK_MAX: Duration = Duration::from_millis(10);

/// Longest pause between two attempts to attach again that nobody waits for.
pub(crate) const REATTACH_PAUSE_MAX: Duration = Duration::from_millis(500);

/// How often republishing is retried for what found no room in a new daemon's arena: memory of the program's own has to become free
/// for it.
pub(crate) const REPUBLISH_INTERVAL: Duration = Duration::from_millis(500);

/// Polls for room before the thread yields: the daemon may be on this very core.
pub(crate) const ROOM_SPINS: u32 = 100;

/// Bits of a call's number that index the table; those above are its generation.
pub(crate) const CALL_INDEX_BITS: u32 = 20;

/// Most calls in progress, or ended with their outcome not taken: as many tensors as an engine keeps, less two numbers that are no call's.
pub(crate) const CALLS_MAX: usize = (1 << CALL_INDEX_BITS) - 2;

/// Freed blocks of a receive area that are collected before a record of their own gives them back: as many as fill one slot.
pub(crate) const FREES_PILED_MAX: usize = 14;

/// Tries to take the lock for giving blocks back: its holder gives them back, unless it is about to release it.
pub(crate) const LETTING_GO_SPINS: u32 = 64;

/// Share of a receive area that may be held back so: an eighth.
pub(crate) const FREES_PILED_SHARE: u64 = 8;

/// Tensors that a shard may hand over before any of them was accepted: their records usually fit into its ring, so
/// that a queue which nobody empties does not hold other answers back.
pub(crate) const ACCEPT_WINDOW_TENSORS: usize = 128;

/// Share of a shard's receive area that they may take: an eighth.
pub(crate) const ACCEPT_AREA_SHARE: u64 = 8;

/// Most names of pushers kept for sharing; all are forgotten when there are more.
pub(crate) const PUSHERS_MAX: usize = 4096;

/// Submissions between two looks at the answers while nobody waits, so that callers who only send get memory back.
pub(crate) const SUBMISSIONS_PER_LOOK: u32 = 64;

/// Most completions taken from a ring in one pass: about once round, so that a daemon faster than this process cannot keep a
/// thread for itself.
pub(crate) const COMPLETIONS_PER_LOOK: usize = 1024;

/// Polls of the rings between two looks at the clock while spinning.
pub(crate) const SPINS_PER_CLOCK: u32 = 32;

/// Spins in a row without an answer, after which not every wait begins with one.
pub(crate) const FUTILE_SPINS_MAX: u32 = 4;

/// Most waits between two spins where spins do not pay: a spin then costs less than a microsecond a wait.
pub(crate) const SPINS_SKIPPED_MAX: u32 = 64;

/// How often the daemon is told what went past it.
pub(crate) const ELSEWHERE_INTERVAL: Duration = Duration::from_secs(1);

/// Most peers counted separately there: as many as the daemon shows. The others are counted together.
pub(crate) const ELSEWHERE_PEERS_MAX: usize = 1024;

/// How often threads that do not sleep ask whether the daemon lives: a system call, so not at every call.
pub(crate) const LIFE_INTERVAL: Duration = Duration::from_millis(1);

/// How often calls awaited as futures are checked for deadlines that the daemon missed.
pub(crate) const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Tables of up to this size are published anew when written, since they would be copied; larger ones are read in place.
pub(crate) const TABLE_IN_PLACE_MIN: usize = sealane_transport::shm::limits::INLINE_BYTES_MAX;

/// Most requests for rows of one pull in flight, in equal parts for its owners, but at least one of each owner; the rest is requested
/// when these have been answered.
pub(crate) const ROW_REQUESTS_MAX: usize = 256;

/// Bytes of the rows that one request asks for, but at least one row: they are in the second-level cache when they are copied to their
/// places.
pub(crate) const ROWS_REQUEST_BYTES: usize = 128 << 10;

/// Bytes of the rows of one call in flight, in equal parts for its owners, but at least one row of each owner: some twenty
/// calls at once fit into a client's receive area, unless that was made smaller.
pub(crate) const ROWS_IN_FLIGHT_BYTES: usize = 3 << 20;

/// Bytes of rows that one poll of a call reads itself, in the tables of others, before it yields.
pub(crate) const ROWS_READ_BYTES: usize = 1 << 20;

/// Most rows that it reads in one step.
pub(crate) const ROWS_READ_AT_ONCE: usize = 16 << 10;

/// Attempts in a row to read a row that is being written, before the daemon is asked for it.
pub(crate) const ROW_LOOKS_MAX: u32 = 16;

/// Most rows that one pull names, repetitions included.
pub(crate) const ROWS_PER_CALL_MAX: usize = 1 << 24;

/// Most tables whose rows one pushed tensor has.
pub(crate) const PUSHED_TABLES_MAX: usize = 1024;

/// Most bytes of such a tensor, unless it has rows of only one table: a MiB takes several times as long to copy as to push, and finds
/// room in every arena and receive area.
pub(crate) const PUSHED_ROWS_BYTES: usize = 1 << 20;

/// Most streams of a task: as many as a session has pushes.
pub(crate) const STREAMS_MAX: usize = 65_536;

/// Most streams of a listener that wait to be accepted. When it is full, the peer with most of them gives way.
pub(crate) const STREAM_BACKLOG_MAX: usize = 1024;

/// Default stream window: bytes that may arrive before they are read.
pub(crate) const STREAM_WINDOW_BYTES: u64 = 1 << 20;

/// Largest stream window.
pub(crate) const STREAM_WINDOW_BYTES_MAX: u64 = 1 << 30;

/// Bounds of the most bytes of a stream that leave in one push, which depends on the other end's window and this end's memory.
pub(crate) const STREAM_CHUNK_BYTES: RangeInclusive<usize> = 64 << 10..=1 << 20;

/// Pushes that fill a large window: one is read while others are on their way.
pub(crate) const STREAM_CHUNKS_AHEAD: u64 = 4;

/// Pushes that fill the memory which streams keep until it is read.
pub(crate) const STREAM_CHUNKS_LENT: usize = 16;

/// Share of a client's receive area for bytes of all streams that wait for this process, with as many again on their way;
/// twice that for bytes that stay there until they are read. What comes beyond is copied out.
pub(crate) const STREAM_AREA_SHARE: u64 = 8;

/// Bounds of the first: an eighth of the smallest area, and what keeps a fast link busy.
pub(crate) const STREAM_QUEUE_BYTES: RangeInclusive<u64> = 128 << 10..=4 << 20;

/// Smallest push worth keeping there; smaller ones are copied, since each would hold a block of that memory.
pub(crate) const STREAM_LENT_MIN: usize = 4 << 10;

/// A stream uses a ring only if its reader's window is at least this large: what a ring holds counts in place of it.
pub(crate) const STREAM_RING_WINDOW_MIN: u64 = LANE_RING_BYTES as u64 / 2;

/// Bytes of a stream that may arrive before it is accepted: times [`STREAM_BACKLOG_MAX`], what callers can make a listener keep.
pub(crate) const STREAM_UNACCEPTED_BYTES: u64 = 64 << 10;

/// Most pushes in flight to one peer, of all streams; what is written meanwhile waits, and leaves in larger pushes.
pub(crate) const STREAM_PUSHES_MAX: usize = 64;

/// From so many in flight on, they are awaited: with fewer, nobody is woken to hear that one was taken.
pub(crate) const STREAM_PUSHES_AWAITED: usize = STREAM_PUSHES_MAX / 2;

/// Pause before a push of a stream that was refused for want of memory is tried again; and for how long it is tried.
pub(crate) const STREAM_RETRY_PAUSE: Duration = Duration::from_millis(10);
pub(crate) const STREAM_RETRY_MAX: Duration = Duration::from_secs(30);

/// Most answers to one peer that wait until it takes them: to refused dials, and to frames of unknown streams. Beyond that it gets
/// none, and asks again.
pub(crate) const STREAM_ANSWERS_MAX: usize = 1024;

/// Most frames to one peer that it has caused and not taken yet: acceptances, windows, and frames about connections.
pub(crate) const STREAM_REPLIES_MAX: usize = 1024;

/// Pause before a failed push of a stream's last word is tried again; and for how long it is tried. By then, the
/// other end has asked, as it does whenever the recv that waits for its peer's end has to be renewed.
pub(crate) const STREAM_TELL_PAUSE: Duration = Duration::from_millis(250);
pub(crate) const STREAM_TELL_MAX: Duration = Duration::from_secs(600);

/// Most bytes of a listener's name, and of the reason that the other end of a stream is told.
pub(crate) const STREAM_REASON_MAX: usize = 1024;

/// Pause after an accept for a tonic server found no daemon.
#[cfg(feature = "tonic")]
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Most pushes of streams taken in one batch.
pub(crate) const STREAM_ACCEPTS_PER_LOOK: usize = 64;

/// Batches taken in a row before those they concern are woken.
pub(crate) const STREAM_ACCEPTS_IN_A_ROW: usize = 4;

/// Most peers whose streams are counted separately: as many as the daemon shows.
pub(crate) const STREAM_PEERS_SHOWN_MAX: usize = 1024;

/// Most wakers that a listener keeps, of threads and tasks that accept from it or did.
pub(crate) const STREAM_ACCEPTORS_MAX: usize = 1024;

const _: () = {
    assert!(CALLS_MAX <= 1 << 31);
    assert!(ACCEPT_WINDOW_TENSORS <= QUEUE_CREDIT_TENSORS_MAX as usize);
    assert!(SPINS_SKIPPED_MAX.is_power_of_two());
    // Whatever is pushed in one tensor is also accepted.
    assert!(PUSHED_ROWS_BYTES / size_of::<u64>() <= ROWS_PER_CALL_MAX);
};

/// Most CUDA devices of a host.
#[cfg(feature = "cuda")]
pub(crate) const CUDA_DEVICES_MAX: usize = 64;

/// Most memory that the CUDA driver pins in one call: drivers refuse more.
#[cfg(feature = "cuda")]
pub(crate) const CUDA_REGISTERED_BYTES_MAX: usize = 64 << 30;

/// How long a copy between the host and a CUDA device may take, with the work that it waits for. A longer one counts as failed,
/// and its memory is not used again.
#[cfg(feature = "cuda")]
pub(crate) const CUDA_COPY_MAX: Duration = Duration::from_secs(300);

/// How often copies in progress are checked, besides when the driver says that one has ended.
#[cfg(feature = "cuda")]
pub(crate) const CUDA_LOOK: Duration = Duration::from_millis(10);

/// Alignment of tensors from a device in the arena: a cache line, as for everything there.
#[cfg(feature = "cuda")]
pub(crate) const CUDA_ALIGNMENT: usize = 64;
