//! Limits and times of groups.

use std::time::Duration;

/// Longest sleep of a rank before it checks whether the ranks that it waits for live.
pub(super) const GROUP_LOOK: Duration = Duration::from_millis(20);

/// Polls of another rank's word before sleeping: some tens of microseconds. (Not tuned.)
pub(super) const GROUP_SPINS: u32 = 2000;

/// The same if ranks outnumber CPUs.
pub(super) const GROUP_SPINS_CROWDED: u32 = 50;

/// Spins for a message between two looks at the clock.
pub(super) const GROUP_SPINS_PER_CLOCK: u32 = 64;

/// Tensors up to this size are reduced by every rank, in one round; larger ones by parts, in two.
pub(super) const GROUP_ONE_SHOT_BYTES: usize = 16 << 10;

/// Most bytes of messages that wait in a process for a later recv because an earlier recv waits for another message.
pub(super) const GROUP_UNEXPECTED_BYTES_MAX: usize = 1 << 30;

/// How often the thread that moves messages checks whether nobody else does, while there are messages.
pub(super) const GROUP_PROGRESS_TICK: Duration = Duration::from_millis(1);

/// How long it keeps checking when there are none.
pub(super) const GROUP_PROGRESS_IDLE: Duration = Duration::from_millis(100);

/// How often a thread checks whether another one has ended its collective.
pub(super) const GROUP_LOCK_LOOK: Duration = Duration::from_micros(50);

/// How long a rank polls for what a rank of another host sends, before it sleeps. (Not tuned.)
pub(super) const GROUP_FAR_SPIN: Duration = Duration::from_micros(50);

/// The same if ranks outnumber CPUs.
pub(super) const GROUP_FAR_SPIN_CROWDED: Duration = Duration::from_micros(5);

/// Most addresses that a rank announces.
pub(super) const GROUP_ADDRESSES_MAX: usize = 16;

/// How long each of them is tried while ranks meet.
pub(super) const GROUP_ATTEMPT: Duration = Duration::from_secs(2);

/// Pause before an address is tried again where nobody listened.
pub(super) const GROUP_RETRY: Duration = Duration::from_millis(20);

/// How long a caller may take to identify itself.
pub(super) const GROUP_OPENING: Duration = Duration::from_secs(10);

/// Most unidentified callers: so many are accepted at once, the others wait.
pub(super) const GROUP_CALLED_MAX: usize = 128;

/// After a rank's connection has ended, how long to wait for its reason, which comes by another connection.
pub(super) const GROUP_NOTICE: Duration = Duration::from_millis(200);

/// Most ranks of a group on all hosts.
pub(super) const GROUP_RANKS_MAX: usize = 4096;

/// Polls of connections for a message before sleeping. (Not tuned.)
pub(super) const GROUP_FAR_LOOKS: u32 = 30;

/// Most bytes of messages that move to or from a rank of another host under one lock.
pub(super) const GROUP_FAR_STEP_BYTES: usize = 1 << 20;

/// Longest sleep of a rank while bytes for ranks of other hosts wait to be sent.
pub(super) const GROUP_PUSH: Duration = Duration::from_millis(1);

/// Most unsent bytes for a rank of another host while the collective goes on. More than two ranks have in flight to each other
/// before they receive.
pub(super) const GROUP_UNSENT_BYTES_MAX: usize = 4 << 20;

/// Sent bytes are discarded by so many at a time, and so much memory is kept for the next.
pub(super) const GROUP_COMPACT_BYTES: usize = 1 << 20;

/// Longest pause between the last bytes of a rank that has left; the network may have lost them once or twice.
pub(super) const GROUP_LAST_BYTES: Duration = Duration::from_secs(10);
