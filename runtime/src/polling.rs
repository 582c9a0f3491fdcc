//! What threads do when they find no work.

use std::time::Duration;

/// What a thread does when it finds no work: a shard, or a client that waits for its daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polling {
    /// Never sleep: lowest latency, one CPU always busy.
    Spin,
    /// Spin for a while, then sleep until something happens. If other threads want the CPU too, a shard sleeps at once for a while.
    SpinThenPark {
        /// How long the thread spins without work before it sleeps.
        idle_spin: Duration,
    },
    /// Sleep as soon as there is nothing to do: least CPU time, tens of microseconds more latency.
    Park,
}

impl Polling {
    /// How long an idle shard spins by default: several round trips in a data centre, so that the answer to a request finds it
    /// awake, and too short to be noticed as load.
    pub const IDLE_SPIN: Duration = Duration::from_micros(200);

    /// Spins for `idle_spin` before it sleeps: `Park` for zero, `Spin` for [`Duration::MAX`].
    pub fn idle(idle_spin: Duration) -> Self {
        match idle_spin {
            Duration::ZERO => Self::Park,
            Duration::MAX => Self::Spin,
            idle_spin => Self::SpinThenPark { idle_spin },
        }
    }
}

impl Default for Polling {
    /// The default for a shard: `SpinThenPark` with [`IDLE_SPIN`](Self::IDLE_SPIN).
    fn default() -> Self {
        Self::SpinThenPark { idle_spin: Self::IDLE_SPIN }
    }
}
