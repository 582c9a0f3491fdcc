//! Reports what happens to calls: to their waiters, the counters, the latencies, and a trace.

use std::sync::Arc;
use std::time::Instant;

use sealane_transport::trace::{self, Moment, Recorder};
use sealane_transport::{Handle, LinkKind, PullBuffer, RecvOutcome, SendOutcome};

use super::Counters;
use super::cells::{PullWaiter, RecvWaiter, SendWaiter};
use super::outcomes::Outcomes;
use crate::metrics::{NodeMetrics, Operation, Run, Way};

/// The reporter of a node; see the module.
pub(super) struct Reporter {
    pub(super) outcomes: Outcomes,
    pub(super) counters: Counters,
    pub(super) metrics: Arc<NodeMetrics>,
    /// Records every call, if somebody listens.
    pub(super) recorder: Option<Recorder>,
    /// The time of the last turn; used where it need not be exact.
    pub(super) clock: Instant,
    /// Calls between tasks of this node that have ended since the last turn.
    in_memory: [Run; Operation::ALL.len()],
    has_runs: bool,
}

impl Reporter {
    /// The reporter of a node whose links may be of these kinds besides TCP.
    pub(super) fn new(kinds: &[LinkKind]) -> Reporter {
        let clock = Instant::now();
        Reporter {
            outcomes: Outcomes::default(),
            counters: Counters::default(),
            metrics: Arc::new(NodeMetrics::new(kinds)),
            recorder: None,
            clock,
            in_memory: Operation::ALL.map(|operation| Run::new(operation, clock)),
            has_runs: false,
        }
    }

    /// Traces an event of a call, by the node's handle for it.
    #[inline]
    pub(super) fn trace(&self, call: Handle, moment: impl FnOnce() -> Moment) {
        trace::tell(self.recorder.as_ref(), call, moment);
    }

    /// Records the latency of a call that began at `since` and has succeeded.
    #[inline]
    pub(super) fn record(&mut self, operation: Operation, way: Way, since: Instant) {
        let latencies = &self.metrics.latencies;
        if way == Way::MEMORY {
            self.has_runs = true;
            self.in_memory[operation as usize].ended(since, (latencies, way, self.clock));
        } else {
            latencies.record(operation, way, since, self.clock);
        }
    }

    /// Records the calls that have ended since the last turn: called before the next turn, and before metrics are published.
    #[inline]
    pub(super) fn record_runs(&mut self) {
        if std::mem::take(&mut self.has_runs) {
            for run in &mut self.in_memory {
                run.record((&self.metrics.latencies, Way::MEMORY, self.clock));
            }
        }
    }

    #[inline]
    pub(super) fn count_received(&mut self, tensors: u32, bytes: usize) {
        self.counters.tensors_received += u64::from(tensors);
        self.counters.bytes_received += bytes as u64;
    }

    #[inline]
    pub(super) fn count_sent(&mut self, tensors: u32, bytes: usize) {
        self.counters.tensors_sent += u64::from(tensors);
        self.counters.bytes_sent += bytes as u64;
    }

    /// Tells a waiter how its recv ended.
    #[inline]
    pub(super) fn finish_recv(&mut self, waiter: RecvWaiter, outcome: RecvOutcome) {
        self.outcomes.finish_recv(waiter, outcome);
    }

    /// Tells a waiter how its send ended.
    #[inline]
    pub(super) fn finish_send(&mut self, waiter: SendWaiter, outcome: SendOutcome) {
        self.outcomes.finish_send(waiter, outcome);
    }

    /// Gives a waiter the pull buffer of its pull.
    pub(super) fn finish_pull(&mut self, waiter: PullWaiter, pull_buffer: PullBuffer) {
        self.outcomes.finish_pull(waiter, pull_buffer);
    }
}
