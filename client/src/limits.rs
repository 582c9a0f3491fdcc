//! Every limit of an attachment. Those of rings and records are in `sealane_transport::shm::limits`.

use std::{ops::RangeInclusive, time::Duration};

use sealane_transport::shm::limits::{LANE_RING_BYTES, QUEUE_CREDIT_TENSORS_MAX, SLOTS};

/// How much longer than its deadline a call waits for the daemon's word: the daemon ends calls at their deadlines, so one
/// that says nothing for this long hangs.
pub(crate) const GRACE: Duration = Duration::from_secs(1);

/// How long a task that is closed, or a recv that is given up, waits for the daemon to let go of memory. It does so in
/// microseconds unless a tensor is on its way to or from a peer that does not read or write.
pub(crate) const LET_GO_MAX: Duration = Duration::from_secs(1);

/// Arenas of other clients that are mapped to view tensors there: the parameter servers of a host. Tensors in others are copied.
pub(crate) const OTHERS_ARENAS_MAX: usize = 64;

/// How long the daemon may take to show one: it does so in a fraction of a millisecond, and after this the tensor is copied.
pub(crate) const VIEW_TIMEOUT: Duration = Duration::from_secs(1);

/// Direct lanes of this process: as many as its daemon gives it.
pub(crate) const LANES_MAX: usize = 64;

/// Lanes that have gone and whose rings are still looked at: of more, the streams of the first end.
pub(crate) const LANES_RETIRED_MAX: usize = LANES_MAX;

/// Milliseconds between two looks whether a stream still uses one. What a process wrote before it went is known by then.
pub(crate) const LANE_RETIRED: u64 = 2000;

/// How long the daemon may take to give one, as it does in a fraction of a millisecond: what goes by others is not looked after meanwhile.
pub(crate) const LANE_TIMEOUT: Duration = Duration::from_millis(100);

/// Bytes that are copied into a ring of a lane, or out of it, before the other end sees them: so both copy at once.
pub(crate) const RING_PIECE_BYTES: usize = 32 << 10;

/// Bytes that one call moves into a ring or out of it at most, while the other end keeps up: others may wait for its lock.
pub(crate) const RING_BYTES_AT_ONCE: usize = 1 << 20;

/// Bytes that are kept of what a stream has sent by a socket of its own, at most, however large the kernel's buffer is.
pub(crate) const SOCKET_BUFFER_BYTES_MAX: usize = 64 << 20;

/// Bytes that are kept of what was sent, beyond those that fit into that buffer: what the kernel may take over its limit.
pub(crate) const SOCKET_SLACK_BYTES: usize = 256 << 10;

/// To keep fewer bytes takes less time than to ask the kernel which of them have come.
pub(crate) const SOCKET_ASK_BYTES: usize = 16 << 10;

/// Bytes that are given to a socket at once.
pub(crate) const SOCKET_PIECE_BYTES: usize = 1 << 20;

/// Bytes that one call gives to a socket at most, while the kernel takes them: others may wait for its lock.
pub(crate) const SOCKET_BYTES_AT_ONCE: usize = 4 << 20;

/// Sockets of a task's streams: other streams go by the daemon.
pub(crate) const SOCKETS_MAX: usize = 256;

/// Threads that ask the daemon for sockets at once.
pub(crate) const SOCKET_OPENERS_MAX: usize = 4;

/// How long the daemon may take to make one: its handshake timeout, and some more.
pub(crate) const SOCKET_TIMEOUT: Duration = Duration::from_secs(10);

/// Until a peer is asked again with whom no connection could be made, and twice as long each time.
pub(crate) const SOCKET_RETRY: Duration = Duration::from_secs(1);

/// Most of that.
pub(crate) const SOCKET_RETRY_MAX: Duration = Duration::from_secs(64);

/// Looks at a ring before a thread that reads it waits as for all else: some 2 us, in which another process that spins has answered.
pub(crate) const RING_SPINS: usize = 40;

/// Entries of a lane that are kept for the ends of steps.
pub(crate) const ENTRIES_FOR_ENDS: usize = 8;

/// Bytes of the reason of such an end that a lane carries; the rest is cut off.
pub(crate) const LANE_REASON_BYTES_MAX: usize = 512;

/// Small tensors to or from a task of this host, after which a direct lane to it is asked for: a conversation with the daemon costs as much
/// as they do.
pub(crate) const DIRECT_AFTER: u32 = 64;

/// Milliseconds until a task of this host is asked about again that had no process, and twice as long each time.
pub(crate) const DIRECT_RETRY: u64 = 1000;

/// Most of them.
pub(crate) const DIRECT_RETRY_MAX: u64 = 64_000;

/// How often the daemon is told how much went by lanes.
pub(crate) const DIRECT_LOOK: Duration = ELSEWHERE_INTERVAL;

/// Milliseconds after which the daemon is asked for a recv that a lane did not serve, where nothing says that its tensor goes by that: it
/// may have been sent before there was a lane. One that was asked for costs more when its tensor comes by the lane after all.
pub(crate) const ASK_AFTER: u64 = 16;

/// Milliseconds between two looks after the lanes while tensors go by them. So much later may a recv be asked for, if it has the time: to
/// wake a thread for it would take longer than what it waits for most often does.
pub(crate) const LANES_LOOK: u64 = 4;

/// Milliseconds after which a tensor goes by the daemon that was sent by a lane and not received, or half of its time if that is less: its
/// receiver does not want it yet, or does not look. The daemon can wait for either. A recv that comes later is late by [`ASK_AFTER`].
pub(crate) const LANE_PATIENCE: u64 = 256;

/// Entries of a lane that may say at once that a tensor goes by the daemon: the others are for tensors.
pub(crate) const HINTS_MAX: usize = sealane_transport::shm::limits::LANE_ENTRIES / 4;

/// Tensors of a lane that go by the daemon after all, at one look: about 0.1 ms in which no other call is made.
pub(crate) const REDIRECTED_PER_LOOK: usize = 128;

/// Keys of which the last tensor came by the daemon in spite of a lane; all are forgotten when there are more.
pub(crate) const BY_DAEMON_MAX: usize = 4096;

/// Notes of one lane taken at one look, as with completions.
pub(crate) const LANE_NOTES_PER_LOOK: usize = SLOTS;

/// Steps that have ended, of which lanes know until they are cleaned up: of more the daemon alone does.
pub(crate) const ENDED_STEPS_MAX: usize = 1024;

/// How often a task that is closed looks whether the daemon has let go.
pub(crate) const LET_GO_LOOK: Duration = Duration::from_micros(50);

/// Tensors that are kept for the next recvs of their keys, since the recvs that they came for were given up. When there are as
/// many, other recvs are refused.
pub(crate) const UNCLAIMED_MAX: usize = 4096;

/// Memory for tensors, unless told otherwise: a model such as ResNet-50 (102 MB) with its gradients, or one embedding of 400 MB. What is
/// not used costs nothing, but where RDMA pins it.
pub(crate) const ARENA_BYTES: u64 = 512 << 20;

/// Rows of more bytes than this are looked for with an error in mind: others are small against what a process has.
pub(crate) const ROWS_UNCHECKED_BYTES_MAX: usize = 64 << 20;

/// How long attaching may take, unless told otherwise: the daemon has to find memory for the arena.
pub(crate) const ATTACH_TIMEOUT: Duration = Duration::from_secs(5);

/// In place of a time that the clock cannot hold: longer than any process lives.
pub(crate) const NO_LIMIT: Duration = Duration::from_secs(u32::MAX as u64);

/// How long a daemon that has drained is waited for, unless told otherwise: longer than a service manager takes to start the
/// next one, and longer than a drain takes by default, for a call may wait for that too.
pub(crate) const RESTART_TIMEOUT: Duration = Duration::from_secs(30);

/// Longest time for that: a day, which any clock can count from now.
pub(crate) const RESTART_TIMEOUT_MAX: Duration = Duration::from_secs(86_400);

/// Least time between two attempts to attach again: a daemon that is restarted is found at once, one that is gone is
/// not stormed by every call.
pub(crate) const REATTACH_INTERVAL: Duration = Duration::from_millis(10);

/// Longest wait for room in a submission ring. The daemon reads a ring in microseconds; one that needs longer than this
/// is not reading at all.
pub(crate) const ROOM_WAIT_MAX: Duration = Duration::from_secs(1);

/// Calls that may wait in this process for room in the rings or in the arena, unless told otherwise, where calls do not wait in
/// their callers' threads: several steps of the largest models.
pub(crate) const BACKLOG_CALLS: usize = 1 << 18;

/// Bytes of them, with the tensors that wait for room in the arena, unless told otherwise.
pub(crate) const BACKLOG_BYTES: u64 = 256 << 20;

/// Smallest slice that goes over another shard than the first of its owner: what a message of its own costs there is a tenth of
/// what its bytes do.
pub(crate) const STRIPE_BYTES_MIN: usize = 64 << 10;

/// How often a sliced pull is repeated in which slices of one owner came at different versions. That happens to a pull that crosses
/// a publication, which is on all shards within microseconds.
pub(crate) const TORN_PULLS_MAX: u32 = 3;

/// What may wait besides and is no call: steps that end, peers that are named, plans and queues that are opened and closed. A record
/// of the largest, and few are as large as that, has 7 KiB.
pub(crate) const BACKLOG_ORDERS_MAX: usize = 4096;

/// How long a thread sleeps that waits for room: nothing rings when a daemon has read. Twice as long each time that there is
/// none, so that a daemon which does not read costs little.
pub(crate) const ROOM_LOOK: Duration = Duration::from_micros(50);

/// Longest such sleep.
pub(crate) const ROOM_LOOK_MAX: Duration = Duration::from_millis(10);

/// Longest time between two attempts to attach again that nobody waits for.
pub(crate) const REATTACH_PAUSE_MAX: Duration = Duration::from_millis(500);

/// How often it is tried to publish again what has found no room in the arena of a daemon that is new: memory of the program's own
/// has to come free for it.
pub(crate) const REPUBLISH_INTERVAL: Duration = Duration::from_millis(500);

/// Looks for room before the processor is left to others: the daemon may be on this very core.
pub(crate) const ROOM_SPINS: u32 = 100;

/// Bits of a call's number that index the table; those above are its generation.
pub(crate) const CALL_INDEX_BITS: u32 = 20;

/// Calls in progress, or ended and not yet asked after, at most: as many tensors as an engine keeps, less two numbers that are no call's.
pub(crate) const CALLS_MAX: usize = (1 << CALL_INDEX_BITS) - 2;

/// Blocks of a receive area that are kept before they are given back by a record of their own: as many as fill one slot.
pub(crate) const FREES_PILED_MAX: usize = 14;

/// Tries to take the lock for giving blocks back: whoever has it gives them back, unless it is about to be let go of.
pub(crate) const LETTING_GO_SPINS: u32 = 64;

/// Part of a receive area that may be kept so: an eighth.
pub(crate) const FREES_PILED_SHARE: u64 = 8;

/// Tensors that a shard may hand over before any of them was accepted: their records fit into its ring most often, so
/// that a queue which nobody looks at does not keep other answers back.
pub(crate) const ACCEPT_WINDOW_TENSORS: usize = 128;

/// Part of a shard's receive area that they may take, an eighth.
pub(crate) const ACCEPT_AREA_SHARE: u64 = 8;

/// Names of pushers that are kept to be shared; all are forgotten when there are more.
pub(crate) const PUSHERS_MAX: usize = 4096;

/// Submissions between two looks at the answers while nobody waits, so that memory comes back to those who only send.
pub(crate) const SUBMISSIONS_PER_LOOK: u32 = 64;

/// Completions taken from a ring at one look: once round, so that a daemon which is faster than this process cannot keep a
/// thread for itself.
pub(crate) const COMPLETIONS_PER_LOOK: usize = SLOTS;

/// Looks at the rings between two looks at the clock while spinning.
pub(crate) const SPINS_PER_CLOCK: u32 = 32;

/// Spins without an answer, in a row, after which not every wait begins with one.
pub(crate) const FUTILE_SPINS_MAX: u32 = 4;

/// Waits from one spin to the next, at most, where they do not pay: a spin then costs less than a microsecond a wait.
pub(crate) const SPINS_SKIPPED_MAX: u32 = 64;

/// How often the daemon is told of what went past it.
pub(crate) const ELSEWHERE_INTERVAL: Duration = Duration::from_secs(1);

/// Peers of them that are distinguished: as many as the daemon shows. What is beyond counts as others'.
pub(crate) const ELSEWHERE_PEERS_MAX: usize = 1024;

/// How often threads that do not sleep ask whether the daemon lives: a system call, so not at every call.
pub(crate) const LIFE_INTERVAL: Duration = Duration::from_millis(1);

/// How often calls that are awaited as futures are looked over for deadlines that the daemon missed.
pub(crate) const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// A table of so many bytes is published anew when it is written; a larger one is read where it lies. Smaller ones would be copied.
pub(crate) const TABLE_IN_PLACE_MIN: usize = sealane_transport::shm::limits::INLINE_BYTES_MAX;

/// Requests for rows of one pull that are in flight, in equal parts for its owners, but one of each owner at least; what it wants
/// besides is asked for when they have been answered.
pub(crate) const ROW_REQUESTS_MAX: usize = 256;

/// Bytes of the rows that one request asks for, but one row at least: they are in the second-level cache when they are put to their
/// places.
pub(crate) const ROWS_REQUEST_BYTES: usize = 128 << 10;

/// Bytes of the rows of one call that are in flight, in equal parts for its owners, but one row of each owner at least: some twenty
/// calls at once fit into a client's receive area, unless that was made smaller.
pub(crate) const ROWS_IN_FLIGHT_BYTES: usize = 3 << 20;

/// Bytes of rows that a poll of a call reads itself, in the tables of others, before it gives way.
pub(crate) const ROWS_READ_BYTES: usize = 1 << 20;

/// Rows that it reads between two looks at what it was asked to do.
pub(crate) const ROWS_READ_AT_ONCE: usize = 16 << 10;

/// Looks in a row at a row that is being written, before the daemon is asked for it.
pub(crate) const ROW_LOOKS_MAX: u32 = 16;

/// Rows that one pull names at most, the same row as often as it is named.
pub(crate) const ROWS_PER_CALL_MAX: usize = 1 << 24;

/// Tables of which one tensor has rows that are pushed, at most.
pub(crate) const PUSHED_TABLES_MAX: usize = 1024;

/// Bytes of such a tensor at most, unless it has rows of one table alone: a MiB takes several times as long to copy as to push, and finds
/// room in every arena and receive area.
pub(crate) const PUSHED_ROWS_BYTES: usize = 1 << 20;

/// Streams of a task, at most: as many as a session has of pushes.
pub(crate) const STREAMS_MAX: usize = 65_536;

/// Streams of a listener that wait to be accepted, at most. When it is full, the peer with most of them gives way.
pub(crate) const STREAM_BACKLOG_MAX: usize = 1024;

/// Bytes that may come before they are read, unless told otherwise.
pub(crate) const STREAM_WINDOW_BYTES: u64 = 1 << 20;

/// Most of them.
pub(crate) const STREAM_WINDOW_BYTES_MAX: u64 = 1 << 30;

/// Bytes of a stream that leave in one push at most: by the window of the other end, and the memory of this one.
pub(crate) const STREAM_CHUNK_BYTES: RangeInclusive<usize> = 64 << 10..=1 << 20;

/// Pushes of bytes that fill a large window: one is read while others are on their way.
pub(crate) const STREAM_CHUNKS_AHEAD: u64 = 4;

/// And that fill the memory which streams keep until they are read.
pub(crate) const STREAM_CHUNKS_LENT: usize = 16;

/// Share of a client's receive area that bytes of all streams take while they wait for this process, with as many again on their way;
/// and twice that, those that stay there until they are read. What comes beyond is copied out.
pub(crate) const STREAM_AREA_SHARE: u64 = 8;

/// Least and most of the first: an eighth of the smallest area, and what keeps a fast link busy.
pub(crate) const STREAM_QUEUE_BYTES: RangeInclusive<u64> = 128 << 10..=4 << 20;

/// Bytes of one push that are worth keeping there; fewer are copied, since each would keep a piece of that memory.
pub(crate) const STREAM_LENT_MIN: usize = 4 << 10;

/// A stream goes by a ring only if its reader's window is as large as this: what a ring holds counts in place of it.
pub(crate) const STREAM_RING_WINDOW_MIN: u64 = LANE_RING_BYTES as u64 / 2;

/// Bytes that may come of a stream before it is accepted: times [`STREAM_BACKLOG_MAX`], what callers can have a listener keep.
pub(crate) const STREAM_UNACCEPTED_BYTES: u64 = 64 << 10;

/// Pushes on their way to one peer, of all streams; what is written meanwhile waits, and leaves in larger pushes.
pub(crate) const STREAM_PUSHES_MAX: usize = 64;

/// So many of them are waited for: with fewer, nobody is woken to hear that one was taken.
pub(crate) const STREAM_PUSHES_AWAITED: usize = STREAM_PUSHES_MAX / 2;

/// After a push of a stream was refused for want of memory, until the next attempt; and for how long attempts are made.
pub(crate) const STREAM_RETRY_PAUSE: Duration = Duration::from_millis(10);
pub(crate) const STREAM_RETRY_MAX: Duration = Duration::from_secs(30);

/// Answers to one peer that wait until it takes them: to dials that are refused, and to what it sends of streams that are not
/// known. It does not get more of them, and asks again.
pub(crate) const STREAM_ANSWERS_MAX: usize = 1024;

/// After a push of a stream's last word was in vain, until the next attempt; and for how long attempts are made. By then, the
/// other end has asked, as it does whenever a recv that waits for the peer's end has to be renewed.
pub(crate) const STREAM_TELL_PAUSE: Duration = Duration::from_millis(250);
pub(crate) const STREAM_TELL_MAX: Duration = Duration::from_secs(600);

/// Bytes of a listener's name, and of the reason that the other end of a stream is told.
pub(crate) const STREAM_REASON_MAX: usize = 1024;

/// After an accept for a tonic server found no daemon, until the next.
#[cfg(feature = "tonic")]
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Pushes of streams that are taken at once.
pub(crate) const STREAM_ACCEPTS_PER_LOOK: usize = 64;

/// How often in a row, before whom they concern is woken.
pub(crate) const STREAM_ACCEPTS_IN_A_ROW: usize = 4;

/// Peers whose streams are counted apart: as many as the daemon shows.
pub(crate) const STREAM_PEERS_SHOWN_MAX: usize = 1024;

/// Wakers that a listener keeps, of threads and tasks that accept from it or did.
pub(crate) const STREAM_ACCEPTORS_MAX: usize = 1024;

const _: () = {
    assert!(CALLS_MAX <= 1 << 31);
    assert!(ACCEPT_WINDOW_TENSORS <= QUEUE_CREDIT_TENSORS_MAX as usize);
    assert!(SUBMISSIONS_PER_LOOK as usize <= SLOTS);
    assert!(SPINS_SKIPPED_MAX.is_power_of_two());
    // What is pushed together is accepted.
    assert!(PUSHED_ROWS_BYTES / size_of::<u64>() <= ROWS_PER_CALL_MAX);
};

/// CUDA devices of a host.
#[cfg(feature = "cuda")]
pub(crate) const CUDA_DEVICES_MAX: usize = 64;

/// Memory that the CUDA driver pins by one call: drivers refuse more.
#[cfg(feature = "cuda")]
pub(crate) const CUDA_REGISTERED_BYTES_MAX: usize = 64 << 30;

/// How long a copy between the host and a CUDA device may take, with the work that it waits for. One that takes longer has failed,
/// and its memory is not used again.
#[cfg(feature = "cuda")]
pub(crate) const CUDA_COPY_MAX: Duration = Duration::from_secs(300);

/// How often copies in progress are looked at, beside when the driver says that one has ended.
#[cfg(feature = "cuda")]
pub(crate) const CUDA_LOOK: Duration = Duration::from_millis(10);

/// What tensors from a device are aligned to in the arena: a cache line, as everything there.
#[cfg(feature = "cuda")]
pub(crate) const CUDA_ALIGNMENT: usize = 64;
