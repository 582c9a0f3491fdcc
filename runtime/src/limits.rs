//! Every bound of a shard, in one place. All are per shard unless the comment says otherwise.

use std::time::Duration;

/// Mailbox jobs run in one turn, so that a flood of jobs cannot starve the sources.
pub(crate) const JOBS_PER_TURN: usize = 64;

/// Timers fired in one turn; what is left fires in the next, before the shard may sleep.
pub(crate) const TIMERS_PER_TURN: usize = 256;

/// What one source may do in one turn, in the source's own units (frames, completions, ...).
pub(crate) const SOURCE_BUDGET: usize = 64;

/// Kernel events taken from the epoll set at once; level-triggered leftovers come again in the next turn.
pub(crate) const EVENTS_PER_TURN: usize = 64;

/// While sources report work, the epoll set is checked only every so many turns: hot descriptors are read directly, and one
/// `epoll_wait` (about 0.15 us) is then a small part of 8 busy turns. An idle turn always checks, because it has nothing better to
/// do.
pub(crate) const EPOLL_EVERY: u32 = 8;

/// While a source has memory to peek at, an idle shard asks the kernel only every so many turns: a turn that peeks takes about 0.15
/// us, as long as an `epoll_wait`, and what the kernel reports can wait for 5 us.
pub(crate) const EPOLL_EVERY_PEEKING: u32 = 32;

/// Peeks at the memory of a source after an idle turn: about 0.3 us in all, three times the turn itself, so that new work is
/// usually found at once.
pub(crate) const PEEKS: usize = 64;

/// A cancelled timer stays in the heap until it is due or until the heap is more than half cancelled timers;
/// below this size the heap is not worth compacting.
pub(crate) const TIMER_COMPACT_MIN: usize = 64;

/// Shards of one runtime. The settings of the project allow as many.
pub(crate) const SHARDS_MAX: usize = 1024;

/// Rounds that cancelled tasks get to finish when a shard stops. One is enough for a task that only has to be
/// dropped; more are needed only where dropping one task wakes another.
pub(crate) const STOP_ROUNDS: usize = 1000;

/// Stall reports are written at most this often; the ones in between are counted in the next.
pub(crate) const STALL_REPORT_EVERY: Duration = Duration::from_secs(1);

/// A task's sleep that is longer ends after this long: a hundred years, which any clock can count from now. So
/// `Duration::MAX` may stand for "forever".
pub(crate) const SLEEP_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The longest sleep that is passed to the kernel; a later deadline is simply slept for in parts.
pub(crate) const PARK_MAX: Duration = Duration::from_secs(24 * 3600);
