//! Counters for tests: operations done, resources left, and queue overruns.

use super::fault::RequestKind;

/// A number of requests, and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    pub requests: u64,
    pub bytes: u64,
}

/// Counters of one adapter, or of all together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    carried_out: [Tally; RequestKind::ALL.len()],
    /// Posted requests that ended with another status than success, including flushed ones.
    pub failed: u64,
    /// Regions registered so far.
    pub registrations: u64,
    /// Most bytes that a single call has registered or deregistered before it returned.
    pub register_call_bytes_max: u64,
    /// Windows allocated so far.
    pub allocations: u64,
    /// Queue pairs created so far.
    pub creations: u64,
    /// Regions that are registered now.
    pub regions: u64,
    /// Windows that exist now.
    pub windows: u64,
    /// Queue pairs that exist now.
    pub queue_pairs: u64,
    /// Regions, windows and queue pairs that still existed when their device was dropped.
    pub left_behind: u64,
    /// Windows that were bound when their queue pair was destroyed. They open nothing, but some drivers wait for them: free or
    /// invalidate them first.
    pub windows_orphaned: u64,
    /// Requests that found a shared receive queue empty. Credit keeps this at 0.
    pub receiver_not_ready: u64,
    /// Receive buffers lost because their queue pair was destroyed after a message had begun to come into them.
    pub receives_lost: u64,
    /// Completions for which there was no room. Credit keeps this at 0.
    pub completion_overruns: u64,
    /// Most completions that one device's completion queue could have held at once, if everything posted and not known to be
    /// done had failed: to be compared with its depth.
    pub completions_worst: u64,
}

impl Counters {
    /// Requests of one kind that were carried out.
    pub fn of(&self, kind: RequestKind) -> Tally {
        self.carried_out[kind as usize]
    }

    pub(super) fn carry_out(&mut self, kind: RequestKind, bytes: u32) {
        let tally = &mut self.carried_out[kind as usize];
        tally.requests += 1;
        tally.bytes += u64::from(bytes);
    }

    pub(super) fn add(&mut self, other: &Counters) {
        for (mine, theirs) in self.carried_out.iter_mut().zip(&other.carried_out) {
            mine.requests += theirs.requests;
            mine.bytes += theirs.bytes;
        }
        self.failed += other.failed;
        self.registrations += other.registrations;
        self.register_call_bytes_max = self.register_call_bytes_max.max(other.register_call_bytes_max);
        self.allocations += other.allocations;
        self.creations += other.creations;
        self.regions += other.regions;
        self.windows += other.windows;
        self.queue_pairs += other.queue_pairs;
        self.left_behind += other.left_behind;
        self.windows_orphaned += other.windows_orphaned;
        self.receiver_not_ready += other.receiver_not_ready;
        self.receives_lost += other.receives_lost;
        self.completion_overruns += other.completion_overruns;
        self.completions_worst = self.completions_worst.max(other.completions_worst);
    }
}
