//! How long calls took: a histogram for each kind of call and each way that tensors go. One shard records, others read.

use std::time::Instant;

use sealane_runtime::{Histogram, HistogramSnapshot};
use sealane_transport::LinkKind;
pub use sealane_transport::Operation;

/// The way that tensors go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// Between two tasks of one shard, through memory.
    Memory,
    /// Over a TCP link.
    Tcp,
    /// Over an RDMA link.
    Verbs,
}

impl Way {
    /// All of them.
    pub const ALL: [Way; 3] = [Way::Memory, Way::Tcp, Way::Verbs];

    /// The name used in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Way::Memory => "memory",
            Way::Tcp => "tcp",
            Way::Verbs => "verbs",
        }
    }
}

impl From<LinkKind> for Way {
    fn from(kind: LinkKind) -> Way {
        match kind {
            LinkKind::Loopback => Way::Memory,
            LinkKind::Tcp => Way::Tcp,
            LinkKind::Verbs => Way::Verbs,
        }
    }
}

/// A histogram, in nanoseconds, for each kind of call and each way.
#[derive(Debug, Default)]
pub struct Latencies([[Histogram; Way::ALL.len()]; Operation::ALL.len()]);

impl Latencies {
    #[inline]
    pub(crate) fn record(&self, operation: Operation, way: Way, since: Instant, now: Instant) {
        self.record_many(operation, way, (since, 1), now);
    }

    #[inline]
    fn record_many(&self, operation: Operation, way: Way, (since, count): (Instant, u64), now: Instant) {
        let took = now.saturating_duration_since(since).as_nanos();
        self.0[operation as usize][way as usize].record_many(u64::try_from(took).unwrap_or(u64::MAX), count);
    }

    pub(crate) fn figures(&self) -> Vec<LatencyFigures> {
        let each = Operation::ALL.into_iter().flat_map(|operation| Way::ALL.map(|way| (operation, way)));
        each.map(|(operation, way)| {
            let nanoseconds = self.0[operation as usize][way as usize].snapshot();
            LatencyFigures { operation, way, nanoseconds }
        })
        .filter(|figures| figures.nanoseconds.count() > 0)
        .collect()
    }
}

/// How long calls of one kind took on one way.
#[derive(Debug, Clone)]
pub struct LatencyFigures {
    /// The kind of call.
    pub operation: Operation,
    /// The way.
    pub way: Way,
    /// Its calls that ended well.
    pub nanoseconds: HistogramSnapshot,
}

/// Calls that end in one turn and began in one turn: most do together, and are recorded at once.
#[derive(Debug)]
pub(crate) struct Run {
    operation: Operation,
    since: Instant,
    count: u64,
}

impl Run {
    /// Nothing has ended yet; the turn began at `now`.
    pub(crate) fn new(operation: Operation, now: Instant) -> Run {
        Run { operation, since: now, count: 0 }
    }

    /// A call ended at `now` that had begun at `since`. Costs a comparison where the call before it began together with it.
    #[inline]
    pub(crate) fn ended(&mut self, since: Instant, to: (&Latencies, Way, Instant)) {
        if self.since != since {
            self.begin(since, to);
        }
        self.count += 1;
    }

    /// Kept out of the code that takes a tensor in.
    #[cold]
    #[inline(never)]
    fn begin(&mut self, since: Instant, to: (&Latencies, Way, Instant)) {
        self.record(to);
        self.since = since;
    }

    /// Records what has run together.
    pub(crate) fn record(&mut self, (latencies, way, now): (&Latencies, Way, Instant)) {
        if self.count > 0 {
            latencies.record_many(self.operation, way, (self.since, self.count), now);
            self.count = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn calls_that_ran_together_are_recorded_one_by_one() {
        let (latencies, start) = (Latencies::default(), Instant::now());
        let now = start + Duration::from_micros(90);
        let to = (&latencies, Way::Tcp, now);
        let mut run = Run::new(Operation::Send, now);
        for since in [start, start, start + Duration::from_micros(30), start] {
            run.ended(since, to);
        }
        run.record(to);
        run.record(to);
        latencies.record(Operation::Recv, Way::Memory, now, start);
        let figures = latencies.figures();
        assert_eq!(
            figures.iter().map(|one| (one.operation, one.way)).collect::<Vec<_>>(),
            [(Operation::Recv, Way::Memory), (Operation::Send, Way::Tcp)]
        );
        assert_eq!(figures[0].nanoseconds.sum(), 0, "a clock that stands still is no error");
        assert_eq!((figures[1].nanoseconds.count(), figures[1].nanoseconds.sum()), (4, 330_000));
    }
}
