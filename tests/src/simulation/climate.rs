//! What a seed chooses before the run starts: the cluster's size, its limits, and how bad the weather is.

use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;
use sealane_fusion::Fuse;
use sealane_transport::SessionLimits;
use sealane_transport::fault::Faults;

/// A ping is sent after this much silence.
const HEARTBEAT: Duration = Duration::from_millis(100);
/// A link that is silent for this long counts as dead.
pub(super) const PEER_TIMEOUT: Duration = Duration::from_millis(400);
/// Requests wait this long for a connection.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_millis(1500);
/// How long tensors stay lent to a peer without a link.
pub(super) const LEASE: Duration = Duration::from_millis(1000);
/// How long callers wait for a welcome.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_millis(200);
/// How long faults occur and tasks work.
pub(super) const STORM: Duration = Duration::from_millis(2500);
/// Longest deadline of a task's own calls.
pub(super) const DEADLINE_MAX: Duration = Duration::from_millis(2000);
/// Largest tensor, in bytes: more than an outbox copies.
pub(super) const TENSOR_BYTES_MAX: usize = 40 * 1024;
/// An idle node takes its next turn after this long at the latest.
pub(super) const IDLE_MAX: Duration = Duration::from_millis(20);
/// Longest that a turn is withheld: shorter than [`PEER_TIMEOUT`] less [`HEARTBEAT`], or peers would rightly take the shard for dead.
pub(super) const WITHHELD_MAX: Duration = Duration::from_millis(100);
/// How late a call may end: deadlines are only noticed in a turn.
pub(super) const LATENESS_MAX: Duration = Duration::from_millis(150);

/// Until a shard sees a job from another thread, usually and at most.
const MAILBOX_TIME: Duration = Duration::from_micros(300);
const MAILBOX_TIME_MAX: Duration = Duration::from_millis(8);
/// Capacity of a mailbox where that limit is not meant to be reached.
const MAILBOX_SLOTS: usize = 1 << 14;

/// Keys that a store holds where limits are not meant to be reached: more than tasks use, and few enough to fill a store for a check.
const PUBLISHED_MAX: usize = 256;
/// How long after a map was loaded others may still use the one before: longer than it takes to notice a dead link.
pub(super) const MAP_SPREADS: Duration = Duration::from_millis(1000);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Weather {
    /// Nothing goes wrong: every call that has its counterpart ends well.
    Calm,
    /// Links break, stall and fall silent; hosts and routes stand.
    Flaky,
    /// As `Flaky`, and processes restart, routes break, calls are refused.
    Storm,
}

#[derive(Debug, Clone)]
pub(super) struct Climate {
    pub(super) weather: Weather,
    pub(super) hosts: usize,
    pub(super) shards_max: usize,
    pub(super) tasks_per_host: usize,
    /// Limits are so small that they are reached.
    pub(super) scarce: bool,
    pub(super) limits: SessionLimits,
    pub(super) pending_sends_max: usize,
    pub(super) published_tensors_max: usize,
    pub(super) slab_send_bytes: usize,
    pub(super) slab_receive_bytes: usize,
    pub(super) fuse: Fuse,
    pub(super) faults: Faults,
    /// Receives in a thousand that see only the first bytes of what is there.
    pub(super) piecemeal: u32,
    /// Calls in a thousand that are lost on their way.
    pub(super) calls_lost: u32,
    /// Turns are withheld at times.
    pub(super) slow: bool,
    /// Capacity of a shard's mailbox, and the longest time until the shard sees a job in it.
    pub(super) mailbox_slots: usize,
    pub(super) mailbox_time: Duration,
    /// Someone introduces itself falsely.
    pub(super) liar: bool,
    /// Approximate number of tensors that are sent.
    pub(super) exchanges: usize,
    /// Fused receives.
    pub(super) batches: usize,
    pub(super) plans: usize,
    pub(super) row_pulls: usize,
    /// Queues that are pushed into.
    pub(super) queues: usize,
    /// The last task joins while the others work; each host learns of it on its own.
    pub(super) grows: bool,
}

impl Climate {
    pub(super) fn draw(random: &mut SmallRng) -> Self {
        let weather = match random.random_range(0..10) {
            0 | 1 => Weather::Calm,
            2..=4 => Weather::Flaky,
            _ => Weather::Storm,
        };
        let scarce = random.random_bool(0.4);
        let rough = |random: &mut SmallRng, max: u32| match weather {
            Weather::Calm => 0,
            _ => random.random_range(0..=max),
        };
        let tasks_per_host = random.random_range(1..=2);
        Climate {
            weather,
            hosts: random.random_range(2..=5),
            shards_max: random.random_range(1..=3),
            tasks_per_host,
            scarce,
            limits: SessionLimits {
                window: random.random_range(1..=4),
                queued_requests_max: if scarce { 6 } else { 4096 },
                parked_requests_max: if scarce { random.random_range(1..=3) } else { 4096 },
                plan_keys_max: if scarce { random.random_range(8..=64) } else { 4096 },
                // Leaves room for the probes, which name another key or two of every task.
                peer_name_bytes_max: if scarce { random.random_range(3_000..20_000) } else { 1 << 20 },
                // From far below a frame, so that a tensor comes in dozens of chunks, to larger than any tensor.
                chunk_bytes: if random.random_bool(0.7) { random.random_range(200..20_000) } else { 1 << 20 },
                in_flight_bytes_max: if random.random_bool(0.3) {
                    random.random_range(1000..80_000)
                } else {
                    256 << 20
                },
                tensor_bytes_max: if scarce { 30 * 1024 } else { 1 << 20 },
                // From the size of one message to that of the largest write.
                turn_bytes: if random.random_bool(0.3) { random.random_range(1..5_000) } else { 256 << 10 },
                turn_payloads: if random.random_bool(0.3) { random.random_range(1..4) } else { 64 },
                heartbeat: HEARTBEAT,
                peer_timeout: PEER_TIMEOUT,
            },
            pending_sends_max: if scarce { random.random_range(2..=6) } else { 4096 },
            published_tensors_max: if scarce { random.random_range(4..=24) } else { PUBLISHED_MAX },
            slab_send_bytes: if scarce { 128 * 1024 } else { 16 << 20 },
            slab_receive_bytes: if scarce { 48 * 1024 } else { 128 << 20 },
            fuse: if random.random_bool(0.3) { Fuse::Off } else { Fuse::Turn },
            faults: Faults {
                reset: rough(random, 4_000),
                delay: random.random_range(0..400_000),
                blackout: rough(random, 600),
                dribble: random.random_range(0..500_000),
            },
            piecemeal: random.random_range(0..500),
            calls_lost: rough(random, 200),
            slow: random.random_bool(0.4) && weather != Weather::Calm,
            mailbox_slots: if random.random_bool(0.3) { random.random_range(1..4) } else { MAILBOX_SLOTS },
            mailbox_time: if random.random_bool(0.5) { MAILBOX_TIME } else { MAILBOX_TIME_MAX },
            liar: random.random_bool(0.3),
            exchanges: random.random_range(30..120),
            batches: random.random_range(2..10),
            plans: random.random_range(3..14),
            row_pulls: random.random_range(10..80),
            queues: random.random_range(1..8),
            grows: tasks_per_host > 1 && random.random_bool(0.4),
        }
    }

    /// Sets fine weather: no faults on new links, and nothing lost or late.
    pub(super) fn fine(&mut self) {
        self.faults = Faults::default();
        self.calls_lost = 0;
        self.slow = false;
        (self.mailbox_slots, self.mailbox_time) = (MAILBOX_SLOTS, MAILBOX_TIME);
    }
}
