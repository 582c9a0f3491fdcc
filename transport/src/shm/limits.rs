//! Every limit of shared memory and attaching.

use std::time::Duration;

use crate::limits::{
    INLINE_PAYLOAD_BYTES, KEY_BYTES_MAX, META_BYTES_MAX, NAME_BYTES_MAX, NAMED_ROWS_BYTES_MAX, REASON_BYTES_MAX,
    SET_KEYS_MAX,
};

/// Slots of a ring: at 128 bytes each, 128 KiB, of which a core's second-level cache holds several. Tensors in flight are
/// not bounded by it, only records that the other side has not read yet.
pub const SLOTS: usize = 1024;

/// Words of a slot: two cache lines, which the processor fetches as a pair.
pub const SLOT_WORDS: usize = 16;

/// Words of a slot that carry content; the first is the commit word.
pub const CONTENT_WORDS: usize = SLOT_WORDS - 1;

/// Most slots of one record: the longest key, metadata and inline payload together need 57.
pub const RECORD_SLOTS_MAX: usize = 60;

/// Most words of one record.
pub const RECORD_WORDS_MAX: usize = RECORD_SLOTS_MAX * CONTENT_WORDS;

/// Most bytes of fields that stand before the others of a record.
pub const FIXED_BYTES_MAX: usize = 48;

/// Largest payload that lies in the ring itself, in bytes: a copy on each side in place of a block of the arena, which has
/// to be found, and freed when the tensor was released. At this size a record takes five slots or so.
pub const INLINE_BYTES_MAX: usize = 512;

/// Entries of each direction of a direct lane: tensors that one client has sent another and that it has not taken. More of them go by
/// the daemon. They are pages only once they were used, the last used first.
pub const LANE_ENTRIES: usize = 1024;

/// Words of an entry, 1 KiB: of the record of a small tensor the key and the metadata may have half.
pub const LANE_ENTRY_WORDS: usize = 128;

/// Where the record in an entry begins: behind the word of its state and that of its kind.
pub const LANE_RECORD_AT: usize = 2;

/// Bytes of an entry that are fetched while the one before it is dealt with: what a tensor of 64 bytes takes, with its key.
pub(super) const LANE_AHEAD_BYTES: usize = 256;

/// Notes of one entry that may be unread: that it was sent, and that it was withdrawn.
pub const LANE_NOTES_PER_ENTRY: usize = 2;

/// Rings of bytes of each direction of a direct lane: streams of bytes beyond them go by the daemon.
pub const LANE_RINGS: usize = 16;

/// Bytes of such a ring: what is written there and was not read. Pages once they were used.
pub const LANE_RING_BYTES: usize = 256 << 10;

/// Most calls or tokens in one record: enough to make their share of a record's cost vanish.
pub const NUMBERS_PER_RECORD: usize = 256;

/// Most bytes of keys in one record, with their lengths: those of the longest key.
pub const KEY_LIST_BYTES_MAX: usize = KEY_BYTES_MAX + size_of::<u16>();

/// Most bytes of small calls in one record, with their heads: what a record holds.
pub const CALL_LIST_BYTES_MAX: usize = RECORD_WORDS_MAX * 8 - FIXED_BYTES_MAX;

/// Most tensors that a shard makes visible together; of more, those that came first are seen first.
pub const PUBLISHED_TOGETHER_MAX: usize = 4096;

/// Most peers that one client names to one shard; a peer's number has 16 bits.
pub const PEERS_MAX: usize = 1 << 16;

/// Most plans that one client has open with one shard.
pub const PLANS_MAX: usize = 4096;

/// Most keys of all plans that one client has open with one shard: four of the largest.
pub const PLAN_KEYS_MAX: usize = 4 * SET_KEYS_MAX;

/// Most bytes that these keys have together: 64 a key.
pub const PLAN_KEY_BYTES_MAX: usize = PLAN_KEYS_MAX * 64;

/// Most queues that one client accepts from with one shard, together with those that it has closed and in which tensors
/// wait for its next acceptor.
pub const QUEUES_MAX: usize = 1024;

/// Most tensors that may wait in all queues of one client on one shard: as many as an engine keeps. Small ones are in the
/// daemon's own memory meanwhile.
pub const QUEUED_TENSORS_MAX: usize = 1 << 20;

/// Most tensors of one queue that a shard hands over before the client has taken any: as many as a ring has slots.
pub const QUEUE_CREDIT_TENSORS_MAX: u32 = SLOTS as u32;

/// Most bytes of them. No window means to go this far: it keeps sums from overflowing.
pub const QUEUE_CREDIT_BYTES_MAX: u64 = MEMORY_BYTES_MAX;

/// Part of a receive area that the tensors of one queue may fill while they wait with the shard, a quarter: its pushers may
/// have credit for as much again.
pub const QUEUE_AREA_SHARE: u64 = 4;

/// Longest message of the attaching conversation, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024;

/// Most shards that a daemon may announce: as many as `NETWORK_*_CORE_NUMBER` allows.
pub const SHARDS_MAX: usize = 1024;

/// Largest arena or receive area, in bytes. No setting means to go this far: it keeps sums of sizes from overflowing.
pub const MEMORY_BYTES_MAX: u64 = 1 << 42;

/// So much of an arena is there from the start (about 20 ms), so that no tensor waits for its pages. Those of a larger one come when
/// they are first written, and cost nothing before: making them would delay the next client that attaches.
pub const POPULATED_BYTES_MAX: u64 = 64 << 20;

/// Most figures of a daemon that are read, in bytes of JSON: some 1,000 a peer and shard, for a hundred thousand of them.
pub const FIGURES_BYTES_MAX: u64 = 256 << 20;

/// Most bytes that a daemon's description for its successor is read of: 64 for each of so many clients, addresses and CPUs.
pub const ESTATE_BYTES_MAX: u64 = 16 << 20;

/// Most listening sockets that one daemon takes over from another: as many as it may have transport addresses.
pub const LISTENERS_MAX: usize = 1 << 16;

/// How long a daemon that hands over waits until its successor reads: that one has nothing else to do then.
pub const SUCCESSOR_PATIENCE: Duration = Duration::from_secs(1);

/// Callers that may wait to be accepted: all tasks of a large host at once, with some to spare.
pub const LISTEN_BACKLOG: i32 = 256;

/// Longest wait for a daemon with many callers to take one more: a day, which the kernel's clock can hold.
pub const PATIENCE_MAX: Duration = Duration::from_secs(86_400);

/// Most doorbell messages that a client takes off its socket at one waking. The socket's buffer holds fewer; a daemon
/// that sends without end cannot keep a client in the loop.
pub const RINGS_PER_WAKING: usize = 1024;

const _: () = {
    assert!(SLOTS.is_power_of_two());
    assert!(LANE_ENTRIES.is_power_of_two() && LANE_NOTES_PER_ENTRY.is_power_of_two());
    // An entry's number has 16 bits in a note.
    assert!(LANE_ENTRIES <= 1 << 16);
    assert!(LANE_ENTRY_WORDS <= RECORD_WORDS_MAX);
    // The reader says how far it is every quarter, so a record must not need the whole ring to be free.
    assert!(RECORD_SLOTS_MAX <= SLOTS / 4);
    // A record's length has 16 bits in the commit word, and so has the length of each of its fields.
    assert!(RECORD_WORDS_MAX <= u16::MAX as usize);
    assert!(KEY_BYTES_MAX + META_BYTES_MAX <= u16::MAX as usize);
    assert!(NAME_BYTES_MAX <= u16::MAX as usize);
    assert!(REASON_BYTES_MAX <= u16::MAX as usize);
    assert!(INLINE_BYTES_MAX <= u16::MAX as usize);
    // What a store has packed leaves in frames.
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
};
