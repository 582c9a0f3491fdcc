//! Every limit of shared memory and attaching.

use std::time::Duration;

use crate::limits::{
    INLINE_PAYLOAD_BYTES, KEY_BYTES_MAX, META_BYTES_MAX, NAME_BYTES_MAX, NAMED_ROWS_BYTES_MAX, REASON_BYTES_MAX,
    SET_KEYS_MAX,
};

/// Words of a trunk in each direction: 128 KiB, several of which fit into a core's second-level cache. This does not limit the tensors in
/// flight, only records that the other side has not read yet.
pub const TRUNK_WORDS: u64 = 1 << 14;

/// Most calls of a client that one shard of the daemon has not answered. A list of calls that would exceed it is refused as a whole by the
/// client.
pub const CALLS_PER_SHARD_MAX: usize = 1 << 14;

/// Most words of a record's content: with its header 113 cache lines. The longest key, metadata and inline payload together need 850.
pub const RECORD_WORDS_MAX: usize = 113 * 8 - 1;

/// Most bytes of the fixed fields at the front of a record.
pub const FIXED_BYTES_MAX: usize = 48;

/// Largest payload that is put into the ring itself, in bytes. It costs a copy on each side, but no arena block, which
/// would have to be found, and freed after the tensor's release. At this size a record takes about ten cache lines.
pub const INLINE_BYTES_MAX: usize = 512;

/// Words of a channel's ring in each direction: 64 KiB. Its pages are allocated on first use, and a quiet channel stays in the first.
pub const CHANNEL_WORDS: u64 = 8192;

/// Rings of bytes in each direction of a direct lane: further streams of bytes go through the daemon.
pub const LANE_RINGS: usize = 16;

/// Bytes of such a ring, which hold what was written and not yet read. Pages are allocated on first use.
pub const LANE_RING_BYTES: usize = 256 << 10;

/// Most calls or tokens in one record: enough to make each one's share of a record's cost negligible.
pub const NUMBERS_PER_RECORD: usize = 256;

/// Most bytes of keys in one record, with their lengths: room for the longest key.
pub const KEY_LIST_BYTES_MAX: usize = KEY_BYTES_MAX + size_of::<u16>();

/// Most bytes of small calls in one record, with their heads: as many as a record holds.
pub const CALL_LIST_BYTES_MAX: usize = RECORD_WORDS_MAX * 8 - FIXED_BYTES_MAX;

/// Most tensors that a shard makes visible together; of a larger set, the first become visible earlier.
pub const PUBLISHED_TOGETHER_MAX: usize = 4096;

/// Most peers that one client names to one shard; a peer's number has 16 bits.
pub const PEERS_MAX: usize = 1 << 16;

/// Most plans that one client has open with one shard.
pub const PLANS_MAX: usize = 4096;

/// Most keys of all plans that one client has open with one shard: four of the largest.
pub const PLAN_KEYS_MAX: usize = 4 * SET_KEYS_MAX;

/// Most bytes of these keys together: 64 per key.
pub const PLAN_KEY_BYTES_MAX: usize = PLAN_KEYS_MAX * 64;

/// Most queues from which one client accepts at one shard, including closed ones in which tensors wait for its next
/// acceptor.
pub const QUEUES_MAX: usize = 1024;

/// Most tensors that may wait in all queues of one client on one shard: as many as an engine keeps. Small ones wait in the
/// daemon's own memory.
pub const QUEUED_TENSORS_MAX: usize = 1 << 20;

/// Most tensors of one queue that a shard hands over before the client has taken any: as many small ones as a trunk has room for.
pub const QUEUE_CREDIT_TENSORS_MAX: u32 = 1024;

/// Most bytes of these tensors. No window is meant to be that large: the limit keeps sums from overflowing.
pub const QUEUE_CREDIT_BYTES_MAX: u64 = MEMORY_BYTES_MAX;

/// The part of a receive area that the waiting tensors of one queue may fill, a quarter: its pushers may have credit for as
/// much again.
pub const QUEUE_AREA_SHARE: u64 = 4;

/// Longest message of the attach protocol, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024;

/// Most shards that a daemon may announce: the maximum of `NETWORK_*_CORE_NUMBER`.
pub const SHARDS_MAX: usize = 1024;

/// Largest arena or receive area, in bytes. No setting is meant to be that large: the limit keeps sums of sizes from
/// overflowing.
pub const MEMORY_BYTES_MAX: u64 = 1 << 42;

/// Bytes of an arena that a client allocates when it attaches (about 2 ms), so that small tensors cause no page faults. The
/// rest is allocated on first use: hundreds of clients of one host would otherwise take memory that few of them use.
pub const POPULATED_BYTES_MAX: u64 = 8 << 20;

/// Largest figures of a daemon that are read, in bytes of JSON: some 1,000 per peer and shard, for a hundred thousand of
/// them.
pub const FIGURES_BYTES_MAX: u64 = 256 << 20;

/// Largest description from a predecessor that is read, in bytes: 64 for each client, address and CPU at their maximum.
pub const ESTATE_BYTES_MAX: u64 = 16 << 20;

/// Most listening sockets that one daemon takes over from another: as many as it may have transport addresses.
pub const LISTENERS_MAX: usize = 1 << 16;

/// How long a daemon that hands over waits for its successor to read: the successor has nothing else to do then.
pub const SUCCESSOR_PATIENCE: Duration = Duration::from_secs(1);

/// Callers that may wait to be accepted: all tasks of a large host at once, with some to spare.
pub const LISTEN_BACKLOG: i32 = 256;

/// Connections that a rank accepts per turn while it meets the others: strangers may connect without end. The ranks of a
/// large host connect within one turn.
pub(super) const GROUP_ACCEPTS_PER_TURN: usize = 256;

/// Connections to a rank that have not said which rank they are: as many as a host has ranks.
pub(super) const GROUP_CALLERS_MAX: usize = 256;

/// Longest wait for a busy daemon to accept a caller: a day, which the kernel's clock can represent.
pub const PATIENCE_MAX: Duration = Duration::from_secs(86_400);

/// Most doorbell messages that a client takes off its socket each time it wakes. The socket's buffer holds fewer; so a
/// daemon that sends endlessly cannot keep a client in the loop.
pub const RINGS_PER_WAKING: usize = 1024;

const _: () = {
    assert!(TRUNK_WORDS.is_power_of_two() && TRUNK_WORDS <= u16::MAX as u64);
    assert!(CHANNEL_WORDS.is_power_of_two() && CHANNEL_WORDS <= u16::MAX as u64);
    assert!(INLINE_BYTES_MAX == crate::channel::PAYLOAD_BYTES_MAX);
    // The reader tells its position every quarter, and a record does not wrap, so none may need the whole ring to be free.
    assert!(RECORD_WORDS_MAX < TRUNK_WORDS as usize / 4);
    // The length of each field of a record has 16 bits.
    assert!(RECORD_WORDS_MAX <= u16::MAX as usize);
    assert!(KEY_BYTES_MAX + META_BYTES_MAX <= u16::MAX as usize);
    assert!(NAME_BYTES_MAX <= u16::MAX as usize);
    assert!(REASON_BYTES_MAX <= u16::MAX as usize);
    // A section's length has 15 bits in its head.
    assert!(KEY_BYTES_MAX < 1 << 15 && META_BYTES_MAX < 1 << 15 && INLINE_BYTES_MAX < 1 << 15);
    // What a store has packed is sent in frames.
    assert!(INLINE_BYTES_MAX <= INLINE_PAYLOAD_BYTES);
    assert!(KEY_LIST_BYTES_MAX <= u16::MAX as usize);
    assert!(CALL_LIST_BYTES_MAX <= u16::MAX as usize);
    assert!(NUMBERS_PER_RECORD * size_of::<u64>() <= u16::MAX as usize);
    assert!(FIXED_BYTES_MAX + KEY_BYTES_MAX + META_BYTES_MAX + INLINE_BYTES_MAX <= RECORD_WORDS_MAX * 8);
    assert!(FIXED_BYTES_MAX + KEY_BYTES_MAX + REASON_BYTES_MAX <= RECORD_WORDS_MAX * 8);
    assert!(FIXED_BYTES_MAX + KEY_LIST_BYTES_MAX <= RECORD_WORDS_MAX * 8);
    assert!(FIXED_BYTES_MAX + NAME_BYTES_MAX + META_BYTES_MAX + INLINE_BYTES_MAX <= RECORD_WORDS_MAX * 8);
    assert!(FIXED_BYTES_MAX + NAMED_ROWS_BYTES_MAX <= RECORD_WORDS_MAX * 8);
    assert!(NAME_BYTES_MAX <= KEY_BYTES_MAX);
    assert!(NUMBERS_PER_RECORD < RECORD_WORDS_MAX);
    assert!(cfg!(target_endian = "little"));
};
