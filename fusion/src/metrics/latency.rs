//! Call latencies: a histogram for each kind of call and each path. One shard records, others read.

use std::time::Instant;

use sealane_runtime::{Histogram, HistogramSnapshot};
use sealane_transport::LinkKind;
pub use sealane_transport::Operation;

/// The path that tensors take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Way(u8);

impl Way {
    /// Between two tasks of one shard, through memory.
    pub(crate) const MEMORY: Way = Way(0);
    pub(crate) const TCP: Way = Way(1);
    /// Number of ways besides the node's own kinds of links.
    const BUILT_IN: usize = 2;

    /// The way over a link of this kind; `kinds` are the node's kinds of links besides TCP.
    pub(crate) fn of(kind: LinkKind, kinds: &[LinkKind]) -> Way {
        match kinds.iter().position(|other| *other == kind) {
            Some(place) => Way((Way::BUILT_IN + place) as u8),
            None if kind == LinkKind::TCP => Way::TCP,
            None => Way::MEMORY,
        }
    }
}

/// A histogram, in nanoseconds, for each way and each kind of call.
#[derive(Debug)]
pub(crate) struct Latencies(Box<[OfWay]>);

#[derive(Debug)]
struct OfWay {
    name: &'static str,
    calls: [Histogram; Operation::ALL.len()],
}

impl Latencies {
    /// Histograms of a node whose links may be of these kinds besides TCP.
    pub(crate) fn new(kinds: &[LinkKind]) -> Latencies {
        let built_in: [_; Way::BUILT_IN] = ["memory", LinkKind::TCP.name()];
        let names = built_in.into_iter().chain(kinds.iter().map(|kind| kind.name()));
        Latencies(names.map(|name| OfWay { name, calls: Default::default() }).collect())
    }

    #[inline]
    pub(crate) fn record(&self, operation: Operation, way: Way, since: Instant, now: Instant) {
        self.record_many(operation, way, (since, 1), now);
    }

    /// Like [`record`](Self::record), for `count` calls that began together.
    #[inline]
    pub(crate) fn record_many(&self, operation: Operation, way: Way, (since, count): (Instant, u64), now: Instant) {
        let took = now.saturating_duration_since(since).as_nanos();
        self.0[usize::from(way.0)].calls[operation as usize]
            .record_many(u64::try_from(took).unwrap_or(u64::MAX), count);
    }

    pub(crate) fn figures(&self) -> Vec<LatencyFigures> {
        let each = Operation::ALL.into_iter().flat_map(|operation| self.0.iter().map(move |way| (operation, way)));
        each.map(|(operation, way)| {
            let nanoseconds = way.calls[operation as usize].snapshot();
            LatencyFigures { operation, way: way.name, nanoseconds }
        })
        .filter(|figures| figures.nanoseconds.count() > 0)
        .collect()
    }
}

/// Latencies of one kind of call on one path.
#[derive(Debug, Clone)]
pub struct LatencyFigures {
    pub operation: Operation,
    /// The path of its tensors: `memory` within a shard, or the name of the kind of link.
    pub way: &'static str,
    /// Durations of its successful calls.
    pub nanoseconds: HistogramSnapshot,
}

/// Calls that began in one turn and end in one turn: most calls do, and so are recorded together.
#[derive(Debug)]
pub(crate) struct Run {
    operation: Operation,
    since: Instant,
    count: u64,
}

impl Run {
    /// An empty run; the turn began at `now`.
    pub(crate) fn new(operation: Operation, now: Instant) -> Run {
        Run { operation, since: now, count: 0 }
    }

    /// A call that began at `since` has ended. Costs one comparison if the previous call began at the same time.
    #[inline]
    pub(crate) fn ended(&mut self, since: Instant, to: (&Latencies, Way, Instant)) {
        self.ended_together(since, 1, to);
    }

    /// Like [`ended`](Self::ended), for `count` calls.
    #[inline]
    pub(crate) fn ended_together(&mut self, since: Instant, count: u32, to: (&Latencies, Way, Instant)) {
        if self.since != since {
            self.begin(since, to);
        }
        self.count += u64::from(count);
    }

    /// Kept out of the code that takes tensors in.
    #[cold]
    #[inline(never)]
    fn begin(&mut self, since: Instant, to: (&Latencies, Way, Instant)) {
        self.record(to);
        self.since = since;
    }

    #[inline]
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
        let other = LinkKind::new("other");
        let (latencies, start) = (Latencies::new(&[other]), Instant::now());
        let now = start + Duration::from_micros(90);
        let to = (&latencies, Way::TCP, now);
        let mut run = Run::new(Operation::Send, now);
        for since in [start, start, start + Duration::from_micros(30), start] {
            run.ended(since, to);
        }
        run.record(to);
        run.record(to);
        latencies.record(Operation::Recv, Way::of(LinkKind::LOOPBACK, &[other]), now, start);
        latencies.record(Operation::Recv, Way::of(other, &[other]), now, start);
        let figures = latencies.figures();
        assert_eq!(
            figures.iter().map(|one| (one.operation, one.way)).collect::<Vec<_>>(),
            [(Operation::Recv, "memory"), (Operation::Recv, "other"), (Operation::Send, "tcp")]
        );
        assert_eq!(figures[0].nanoseconds.sum(), 0, "a clock that stands still is no error");
        assert_eq!((figures[2].nanoseconds.count(), figures[2].nanoseconds.sum()), (4, 330_000));
    }
}
