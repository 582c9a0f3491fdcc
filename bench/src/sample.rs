//! What one system yields in one round.

use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::limits::ROUND_TRIP_NS_MAX;

/// Significant decimal digits that a histogram keeps: a value is off by at most 0.1 %.
const HISTOGRAM_DIGITS: u8 = 3;

macro_rules! metrics {
    ($($(#[$doc:meta])+ $name:ident: $json:literal, $label:literal, $digits:literal;)+) => {
        /// A figure that a round yields, under the name that it has in the report.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum Metric {
            $($(#[$doc])+ #[serde(rename = $json)] $name,)+
        }

        impl Metric {
            /// The label, and the digits after the point of a value.
            fn shown(self) -> (&'static str, usize) {
                match self {
                    $(Self::$name => ($label, $digits),)+
                }
            }
        }
    };
}

// Each with its name in the report, its label with the unit, and digits after the point.
metrics! {
    /// Time from a request to its full response; percentiles.
    RoundTrip: "rtt_us", "round trip, µs", 2;
    /// Tensors that arrived in a second.
    TensorsPerSecond: "tensors_per_s", "tensors/s", 0;
    /// 10^9 bytes of tensors that arrived in a second.
    GigabytesPerSecond: "gigabytes_per_s", "GB/s", 2;
    /// Rows of tables that arrived in a second, as often as they were named.
    RowsPerSecond: "rows_per_s", "rows/s", 0;
    /// Milliseconds from the first peer's call until the last peer was welcomed.
    ConnectAll: "connect_all_ms", "connect all, ms", 2;
    /// CPU time of an idle engine's process, in percent of one CPU.
    CpuPercent: "cpu_percent", "CPU, %", 2;
    /// What the resident memory of an engine's process has grown by for each peer.
    ResidentBytesPerPeer: "rss_bytes_per_peer", "RSS a peer, B", 0;
    /// What the slowest of many peers got, as a share of what each would have got if all had got the same.
    SlowestShare: "slowest_share", "slowest's share", 2;
    /// Milliseconds from the start of a step until its last tensor is in its place: the median step of a round.
    StepTime: "step_ms", "step, ms", 4;
    /// Steps in a second.
    StepsPerSecond: "steps_per_s", "steps/s", 0;
    /// Messages of a step, both ways: frames of the wire; of gRPC, a call is two.
    MessagesPerStep: "messages_per_step", "messages/step", 2;
    /// Longest time in milliseconds between two tensors that reached a client of the host whose daemon was restarted.
    Gap: "gap_ms", "gap, ms", 2;
    /// The same, of a client of another host.
    PeerGap: "peer_gap_ms", "gap of a peer, ms", 2;
    /// Longest time in which a worker pulled nothing of what was published.
    PullGap: "pull_gap_ms", "gap of pulls, ms", 2;
    /// The same of a worker on another host.
    PeerPullGap: "peer_pull_gap_ms", "gap of a peer's pulls, ms", 2;
    /// Calls that ended with an error and were made again.
    FailedCalls: "failed_calls", "failed calls", 0;
    /// Milliseconds that 90 % of the steps of a round took at most.
    StepTimeP90: "step_p90_ms", "step p90, ms", 4;
    /// The same of 99 %.
    StepTimeP99: "step_p99_ms", "step p99, ms", 4;
    /// Bytes of a step that passed the loopback interface, both ways, with the headers of TCP and IP.
    BytesPerStep: "bytes_per_step", "bytes/step", 0;
    /// CPU time of all processes, in milliseconds a step.
    CpuPerStep: "cpu_ms_per_step", "CPU a step, ms", 4;
    /// The workers' part of it.
    WorkerCpuPerStep: "worker_cpu_ms_per_step", "workers' CPU a step, ms", 4;
    /// The parameter servers' part of it.
    PsCpuPerStep: "ps_cpu_ms_per_step", "ps' CPU a step, ms", 4;
    /// What the fastest of many peers got, as a share of what each would have got if all had got the same.
    FastestShare: "fastest_share", "fastest's share", 2;
    /// Resident memory of the parameter servers' process, in 2^20 bytes.
    PsResident: "ps_rss_mib", "RSS of ps, MiB", 0;
    /// The same of the workers' process, which is the one that measures.
    WorkerResident: "worker_rss_mib", "RSS of workers, MiB", 0;
    /// Files that the parameter servers' process has open, sockets included.
    PsOpenFiles: "ps_open_files", "open files of ps", 0;
}

impl Metric {
    /// The label of an axis or a column, unit included.
    pub fn label(self) -> &'static str {
        self.shown().0
    }

    /// A value with as many digits as it deserves.
    pub(crate) fn written(self, value: f64) -> String {
        let digits = match self {
            // A hundred workers may make fewer steps in a second than there are of them.
            Self::StepsPerSecond if value < 100.0 => 2,
            // A device in software moves less than a tenth.
            Self::GigabytesPerSecond if value < 1.0 => 4,
            _ => self.shown().1,
        };
        format!("{value:.digits$}")
    }
}

/// As the report names it.
impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// What one system yielded in one round: round trips, or figures, or both.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Every round trip of the round, in nanoseconds.
    pub round_trips: Option<Histogram<u64>>,
    /// The other metrics, each at most once.
    pub figures: Vec<(Metric, f64)>,
}

impl Sample {
    /// A sample that consists of round trips.
    pub fn round_trips(histogram: Histogram<u64>) -> Self {
        Self { round_trips: Some(histogram), ..Self::default() }
    }

    /// A sample that is a single figure.
    pub fn figure(metric: Metric, value: f64) -> Self {
        Self { figures: vec![(metric, value)], ..Self::default() }
    }
}

/// An empty histogram of round trips in nanoseconds.
pub fn round_trip_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, ROUND_TRIP_NS_MAX, HISTOGRAM_DIGITS)
        .expect("the bounds are constants that the histogram accepts")
}

/// Counts one round trip; one that is too long counts as the longest.
pub fn record_round_trip(histogram: &mut Histogram<u64>, took: Duration) {
    let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    histogram.saturating_record(nanoseconds.clamp(1, ROUND_TRIP_NS_MAX));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_out_of_range_are_clamped() {
        let mut histogram = round_trip_histogram();
        record_round_trip(&mut histogram, Duration::ZERO);
        record_round_trip(&mut histogram, Duration::from_secs(3_600));
        assert_eq!(histogram.len(), 2);
        assert_eq!(histogram.min(), 1);
        assert!(histogram.max() >= ROUND_TRIP_NS_MAX);
    }

    #[test]
    fn a_metric_is_named_as_in_the_report() {
        assert_eq!(Metric::StepTimeP90.to_string(), "step_p90_ms");
        assert_eq!(Metric::GigabytesPerSecond.written(0.06251), "0.0625");
        assert_eq!(Metric::GigabytesPerSecond.written(6.251), "6.25");
    }
}
