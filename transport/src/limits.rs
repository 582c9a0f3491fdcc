//! Every limit of the wire format and the session. Those that users can set are in [`SessionLimits`].

/// Longest key of a tensor, in bytes. TensorFlow's rendezvous keys reach about 300.
pub const KEY_BYTES_MAX: usize = 4096;

/// Memory of a key that is kept for the next key in its place, so that a call allocates nothing: enough for TensorFlow's.
pub const SPARE_KEY_BYTES: usize = 512;

/// Longest tensor metadata, in bytes: 254 dimensions of 8 bytes and a fixed part.
pub const META_BYTES_MAX: usize = 2048 + 64;

pub const RELEASES_PER_FRAME: usize = 1024;

/// Longest text of an error or a goaway, in bytes.
pub const REASON_BYTES_MAX: usize = 1024;

/// Time between two checks whether a signal interrupts a call that waits: short enough for control-C to feel immediate.
pub const INTERRUPT_INTERVAL: std::time::Duration = std::time::Duration::from_millis(50);

/// Most figures that one kind of link counts on each shard.
pub const FIGURES_MAX: usize = 16;

/// Longest body of a frame, in bytes, without payload.
pub const FRAME_BODY_BYTES_MAX: usize = 16 * 1024;

/// Approximate maximum size of a frame of several requests or small tensors: its header is then 1% of it, and the other
/// side can start early.
pub const GROUP_BYTES: usize = 4 * 1024;

/// The same limit for a frame of small published tensors.
pub const PART_BYTES: usize = 8 * 1024;

/// Most keys in one set: DeepRec's largest models have some ten thousand variables.
pub const SET_KEYS_MAX: usize = 65_536;

/// Most slices of one published tensor: more than the number of parameter servers in the largest jobs.
pub const SLICES_MAX: usize = 4096;

/// Tensors of pulls that are looked up for a peer in one turn: missing or empty tensors do not fill a frame.
#[cfg(all(feature = "network", not(loom)))]
pub(crate) const LOOKS_PER_TURN: usize = 4096;

/// Most sets that one session pulls, and that one peer pulls from this shard over all its sessions.
pub const SETS_MAX: usize = 65_536;

/// Most streams of pushes (each from one task into one queue of another): of one session to its peer, and of one peer to
/// this shard over all its sessions.
pub const STREAMS_MAX: usize = 65_536;

/// Tensors that wait in a queue of pushes before its pushers must wait, unless its acceptor says otherwise.
pub const QUEUE_TENSORS_MAX: usize = 4096;

pub const QUEUE_BYTES_MAX: usize = 256 << 20;

/// Bytes that a stream of pushes may bring in its life, or have credit for: more than any host will move, and small enough
/// that no sum of a peer's numbers overflows.
pub const STREAM_BYTES_MAX: u64 = 1 << 62;

/// Most keys in all sets of one peer together: a quarter of what a shard has room for by default, so that one peer does not
/// take all of it. A default; the setting is `fusion.plan_keys_max`.
pub const PEER_SET_KEYS_MAX: usize = 1 << 18;

/// Most bytes of the keys in these sets, and of the names of the queues that the peer pushes into: 256 per key. A default;
/// the setting is `fusion.peer_name_bytes_max`.
pub const PEER_NAME_BYTES_MAX: usize = PEER_SET_KEYS_MAX * 256;

/// Most bytes in which one request names rows of tables, including keys, so that it fits into one frame on the wire and one
/// record of a client. For more rows a caller makes several requests.
pub const NAMED_ROWS_BYTES_MAX: usize = 7000;

/// Most tables of which one request names rows.
pub const NAMED_TABLES_MAX: usize = 256;

/// Most bytes in which a request names the rows of one table.
pub const ROW_IDS_BYTES_MAX: usize = 6 * 1024;

/// Most rows of one table that one request names; with rows of 64 bytes, that is 256 KiB.
pub const ROW_IDS_MAX: usize = 4096;

/// Most bytes of rows in one answer; the receiver's `tensor_bytes_max` may be lower.
pub const ROWS_BYTES_MAX: usize = 64 << 20;

/// Suffix of a table's key under which the locks of its rows are published.
pub const LOCKS_SUFFIX: &str = "\0locks";

pub const TABLE_KEY_BYTES_MAX: usize = 512;

/// Name of a queue that every task has. Tensors that are pushed into it are acknowledged and dropped: a peer measures its link by them.
pub const MEASURE_QUEUE: &str = "\0measure";

/// Stands for no task where a task's index chooses memory for arriving tensors: they arrive in the shard's own.
pub const NO_TASK: u16 = u16::MAX;

/// Longest body of a handshake message, in bytes: room for [`TASKS_PER_HELLO`] names of ordinary length.
pub const HELLO_BYTES_MAX: usize = 256 * 1024;

/// Most tasks in one handshake message.
pub const TASKS_PER_HELLO: usize = 4096;

/// Most bytes of task names in the answer to a probe: what any socket accepts in one write, and more tasks than hosts have.
pub const INTRODUCTION_NAMES_BYTES_MAX: usize = 8 * 1024;

/// Longest name of a job, in bytes.
pub const JOB_NAME_BYTES_MAX: usize = 64;

/// Longest task name or transport address in a handshake message, in bytes.
pub const NAME_BYTES_MAX: usize = 512;

/// A payload up to this size is copied behind its header instead of being a vector of its own: below it, an iovec
/// costs more than the copy.
pub const INLINE_PAYLOAD_BYTES: usize = 8 * 1024;

/// Pushes of up to this many bytes are kept and accepted in the memory of their frame. Copying larger ones again would cost
/// more than handling each separately.
pub const BATCHED_TENSOR_BYTES: usize = 1024;

/// Tensors of up to this many bytes are sent ahead of their requests. Copying larger ones twice would cost more than a
/// request.
pub const AHEAD_TENSOR_BYTES: usize = 4 * 1024;

/// Most bytes of tensors sent ahead to a peer on one session, including keys and metadata, before the peer has said what
/// became of them: 1,000 requests of a hundred bytes in flight need a tenth of it.
pub const AHEAD_BYTES_MAX: usize = 1 << 20;

/// Additional charge for each of them, so that empty tensors are bounded too.
pub const AHEAD_RECORD_BYTES: usize = 64;

/// Most releases of tensors sent ahead in one frame.
pub const AHEAD_RELEASES_PER_FRAME: usize = 512;

/// An outbox with this many staged bytes accepts no more until the link has sent some: bounds a turn's write, and memory.
/// 64 B tensors gain nothing past 64 KiB (`bench rate`: 2.9 M/s with 4 KiB, 4.4 with 16, 4.5-4.7 from there on); plans of 8
/// KB tensors gain a tenth with each doubling (`bench fuse`: 5.2, 5.6, 6.4 GB/s with 64 KiB, 256 KiB, 1 MiB), at this much
/// memory per busy link. A default; the setting is `fusion.turn_bytes`.
pub const OUTBOX_STAGED_BYTES: usize = 256 * 1024;

/// Empty buffers that a thread keeps for its links and sessions: this many can wait for room in their sockets at once
/// without an allocation. An outbox's buffer is as large as what it stages, about 256 KiB.
pub const SPARE_BUFFERS_MAX: usize = 64;

/// Larger payloads are sent in chunks of this size, so that other messages can pass in between: at 10 GB/s a small tensor
/// then waits at most 0.4 ms for a large one. With 1 MiB one stream of 4 MiB tensors lost an eighth of its speed (`bench
/// bandwidth`: 0.80 of raw instead of 0.93), while 16 tensors at once showed no difference (`bench fuse`). A default; see
/// [`SessionLimits::chunk_bytes`].
pub const CHUNK_BYTES: usize = 4 << 20;

/// Most chunks that wait in an outbox for the link; payloads sent whole are limited to as many bytes. One is written while
/// another keeps the link at work; more would only delay what could pass them.
pub const CHUNKS_AHEAD: usize = 2;

/// Payloads sent in chunks at the same time, in each direction of a link. The receiver allocates memory for each.
pub const TRANSFERS_MAX: usize = 8;

/// Most of these that are responses; the others are pushes, so that neither blocks the other.
pub const ANSWER_TRANSFERS_MAX: usize = 5;

/// Most payload vectors queued in an outbox: twice those of one system call; values from 4 to 256 made no measurable
/// difference (256 tensors of 64 KiB). A default; the setting is `fusion.turn_payloads`.
pub const OUTBOX_PAYLOADS: usize = 64;

/// Control frames (failures, parked notes, cancels) waiting to leave; at this many the session reads no more from its peer
/// until some are sent, so a peer that requests but never reads stalls only itself.
pub const CONTROL_QUEUE_MAX: usize = 4096;

/// Releases not yet acknowledged; at this many the session sends no more requests until some are.
pub const RELEASE_LOG_MAX: usize = 65_536;

/// The producer acknowledges releases after this many.
pub const RELEASE_ACK_EVERY: u64 = 256;

const _: () = {
    // Lengths and counts in a frame or greeting have 16 bits; a metadata length of all ones means the same metadata as before.
    assert!(FRAME_BODY_BYTES_MAX < u16::MAX as usize);
    assert!(INLINE_PAYLOAD_BYTES <= u16::MAX as usize);
    assert!(NAME_BYTES_MAX <= u16::MAX as usize);
    assert!(TASKS_PER_HELLO <= u16::MAX as usize);
    assert!(KEY_BYTES_MAX + 64 <= FRAME_BODY_BYTES_MAX);
    assert!(META_BYTES_MAX + 64 <= FRAME_BODY_BYTES_MAX);
    assert!(ROW_IDS_BYTES_MAX + TABLE_KEY_BYTES_MAX + 64 <= NAMED_ROWS_BYTES_MAX);
    assert!(NAMED_ROWS_BYTES_MAX + 64 <= FRAME_BODY_BYTES_MAX);
    assert!(GROUP_BYTES <= FRAME_BODY_BYTES_MAX && PART_BYTES <= FRAME_BODY_BYTES_MAX);
    assert!(META_BYTES_MAX + INLINE_PAYLOAD_BYTES + 64 <= FRAME_BODY_BYTES_MAX);
    assert!(RELEASES_PER_FRAME * 8 <= FRAME_BODY_BYTES_MAX);
    assert!(REASON_BYTES_MAX + 64 <= FRAME_BODY_BYTES_MAX);
    assert!(FRAME_BODY_BYTES_MAX + INLINE_PAYLOAD_BYTES <= OUTBOX_STAGED_BYTES);
    assert!(ANSWER_TRANSFERS_MAX < TRANSFERS_MAX);
    assert!(CHUNK_BYTES > INLINE_PAYLOAD_BYTES);
    assert!(RELEASE_ACK_EVERY < RELEASE_LOG_MAX as u64 / 2);
};

/// Limits of a session that users can set. Some, as noted, apply to a peer, over all its sessions with a shard.
#[derive(Debug, Clone)]
pub struct SessionLimits {
    /// Requests in flight to a peer that it has neither answered nor parked. Default 40, like mt-verbs' request buffers.
    pub window: usize,
    /// Outstanding requests of this side, in flight or waiting for the window. Default 65,536.
    pub queued_requests_max: usize,
    /// Requests of a peer that wait here for their tensor, its pulls, and the tensors that these wait for, each over all its
    /// sessions; also tensors handed out on one session and not yet released. Default 65,536.
    pub parked_requests_max: usize,
    /// Keys of all plans of a peer that it pulls from this side, over all its sessions. Default 262,144.
    pub plan_keys_max: usize,
    /// Bytes of these keys, and of the names of the queues that the peer pushes into, over all its sessions. Default 64 MiB.
    pub peer_name_bytes_max: usize,
    /// Most bytes of small messages sent to one peer per turn. Default 256 KiB.
    pub turn_bytes: usize,
    /// Most large tensors sent to one peer per turn. Default 64.
    pub turn_payloads: usize,
    /// Larger tensors are sent in chunks of this size, so that small ones can pass in between. Default 4 MiB.
    pub chunk_bytes: usize,
    /// Bytes of tensors handed to a peer and not released by it; further ones wait, but a single tensor of any size may go.
    /// Tensors sent in chunks are counted separately, so that the others can pass them. Default 256 MiB: several hundred
    /// milliseconds of a fast link; a consumer that lags further behind gets no more.
    pub in_flight_bytes_max: usize,
    /// Largest tensor accepted, in bytes. Default 4 GiB: an embedding table's shard, not a broken length.
    pub tensor_bytes_max: u64,
    /// A ping is sent after this long without data from the peer. Default 10 s.
    pub heartbeat: std::time::Duration,
    /// A link is closed after this long without data from the peer. Default 30 s.
    pub peer_timeout: std::time::Duration,
}

impl SessionLimits {
    /// The defaults; the program's settings read them from here.
    pub const DEFAULT: SessionLimits = SessionLimits {
        window: 40,
        queued_requests_max: 65_536,
        parked_requests_max: 65_536,
        plan_keys_max: PEER_SET_KEYS_MAX,
        peer_name_bytes_max: PEER_NAME_BYTES_MAX,
        turn_bytes: OUTBOX_STAGED_BYTES,
        turn_payloads: OUTBOX_PAYLOADS,
        chunk_bytes: CHUNK_BYTES,
        in_flight_bytes_max: 256 << 20,
        tensor_bytes_max: 4 << 30,
        heartbeat: std::time::Duration::from_secs(10),
        peer_timeout: std::time::Duration::from_secs(30),
    };
}

impl Default for SessionLimits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

// One lost heartbeat must not count as the loss of the peer.
const _: () =
    assert!(3 * SessionLimits::DEFAULT.heartbeat.as_millis() <= SessionLimits::DEFAULT.peer_timeout.as_millis());
