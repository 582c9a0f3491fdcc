//! Limits and times of groups.

use std::time::Duration;

/// How long a rank of a group sleeps at most before it looks whether the ranks it waits for live.
pub(super) const GROUP_LOOK: Duration = Duration::from_millis(20);

/// How often a rank looks at what another says before it sleeps: some tens of microseconds. (Not tuned.)
pub(super) const GROUP_SPINS: u32 = 2000;

/// The same where ranks outnumber CPUs.
pub(super) const GROUP_SPINS_CROWDED: u32 = 50;

/// Spins for a message between two looks at the clock.
pub(super) const GROUP_SPINS_PER_CLOCK: u32 = 64;

/// Tensors up to this size are reduced by every rank, in one round; larger ones by parts, in two.
pub(super) const GROUP_ONE_SHOT_BYTES: usize = 16 << 10;

/// Most bytes of messages between ranks that wait in a process for a later recv, as an earlier one waits for another.
pub(super) const GROUP_UNEXPECTED_BYTES_MAX: usize = 1 << 30;

/// How often the thread that moves messages looks whether nobody else does, while there are some.
pub(super) const GROUP_PROGRESS_TICK: Duration = Duration::from_millis(1);

/// How long it goes on looking when there are none.
pub(super) const GROUP_PROGRESS_IDLE: Duration = Duration::from_millis(100);

/// How often a thread looks whether another one has ended its collective.
pub(super) const GROUP_LOCK_LOOK: Duration = Duration::from_micros(50);

/// How long a rank looks for what a rank of another host gives it, before it sleeps. (Not tuned.)
pub(super) const GROUP_FAR_SPIN: Duration = Duration::from_micros(50);

/// The same where ranks outnumber CPUs.
pub(super) const GROUP_FAR_SPIN_CROWDED: Duration = Duration::from_micros(5);

/// Most addresses at which a rank says that it can be reached.
pub(super) const GROUP_ADDRESSES_MAX: usize = 16;

/// How long one of them is tried while ranks meet, before the next is.
pub(super) const GROUP_ATTEMPT: Duration = Duration::from_secs(2);

/// After what time one is tried again where nobody listened.
pub(super) const GROUP_RETRY: Duration = Duration::from_millis(20);

/// How long a caller may take to say which rank it is.
pub(super) const GROUP_OPENING: Duration = Duration::from_secs(10);

/// Most callers that have not said it: as many are taken in at once, the others wait.
pub(super) const GROUP_CALLED_MAX: usize = 128;

/// How long a rank whose connection has ended may take to be known to have given a reason, which comes by another connection.
pub(super) const GROUP_NOTICE: Duration = Duration::from_millis(200);

/// Most ranks of a group on all hosts.
pub(super) const GROUP_RANKS_MAX: usize = 4096;

/// How often connections are looked at for a message before sleeping. (Not tuned.)
pub(super) const GROUP_FAR_LOOKS: u32 = 30;

/// Most bytes of messages that move to or from a rank of another host under one lock.
pub(super) const GROUP_FAR_STEP_BYTES: usize = 1 << 20;

/// How long a rank sleeps at most while bytes that it gives to ranks of other hosts wait to leave.
pub(super) const GROUP_PUSH: Duration = Duration::from_millis(1);

/// Most bytes for a rank of another host that wait to leave while its collective goes on. More than two ranks have under way to each other
/// before they receive.
pub(super) const GROUP_UNSENT_BYTES_MAX: usize = 4 << 20;

/// As many bytes that have left are let go of, and as much memory is kept for the next.
pub(super) const GROUP_COMPACT_BYTES: usize = 1 << 20;

/// How long the next of the last bytes of a rank that has left may take, which the network may have lost once or twice.
pub(super) const GROUP_LAST_BYTES: Duration = Duration::from_secs(10);
