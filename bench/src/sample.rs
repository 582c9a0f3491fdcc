//! What one system yields in one round.

use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::limits::ROUND_TRIP_NS_MAX;
use crate::stopwatch::Stretch;

/// Significant decimal digits that a histogram keeps: a value is off by at most 0.1 %.
const HISTOGRAM_DIGITS: u8 = 3;

/// A figure that a round yields, under the name that it has in the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Metric {
    /// Time from a request to its full response; percentiles.
    #[serde(rename = "rtt_us")]
    RoundTrip,
    /// Tensors that arrived in a second.
    #[serde(rename = "tensors_per_s")]
    TensorsPerSecond,
    /// 10^9 bytes of tensors that arrived in a second.
    #[serde(rename = "gigabytes_per_s")]
    GigabytesPerSecond,
    /// Milliseconds from the first peer's call until the last peer was welcomed.
    #[serde(rename = "connect_all_ms")]
    ConnectAll,
    /// CPU time of an idle engine's process, in percent of one CPU.
    #[serde(rename = "cpu_percent")]
    CpuPercent,
    /// What the resident memory of an engine's process has grown by for each peer.
    #[serde(rename = "rss_bytes_per_peer")]
    ResidentBytesPerPeer,
    /// What the slowest of many peers got, as a share of what each would have got if all had got the same.
    #[serde(rename = "slowest_share")]
    SlowestShare,
    /// Milliseconds from the start of a step until its last tensor is in its place: the median step of a round.
    #[serde(rename = "step_ms")]
    StepTime,
    /// Steps in a second.
    #[serde(rename = "steps_per_s")]
    StepsPerSecond,
    /// Messages of a step, both ways: frames of the wire; of gRPC, a call is two.
    #[serde(rename = "messages_per_step")]
    MessagesPerStep,
    /// Longest time in milliseconds between two tensors that reached a client of the host whose daemon was restarted.
    #[serde(rename = "gap_ms")]
    Gap,
    /// The same, of a client of another host.
    #[serde(rename = "peer_gap_ms")]
    PeerGap,
    /// Calls that ended with an error and were made again.
    #[serde(rename = "failed_calls")]
    FailedCalls,
    /// Milliseconds that 90 % of the steps of a round took at most.
    #[serde(rename = "step_p90_ms")]
    StepTimeP90,
    /// The same of 99 %.
    #[serde(rename = "step_p99_ms")]
    StepTimeP99,
    /// Bytes of a step that passed the loopback interface, both ways, with the headers of TCP and IP.
    #[serde(rename = "bytes_per_step")]
    BytesPerStep,
    /// CPU time of all processes, in milliseconds a step.
    #[serde(rename = "cpu_ms_per_step")]
    CpuPerStep,
    /// The workers' part of it.
    #[serde(rename = "worker_cpu_ms_per_step")]
    WorkerCpuPerStep,
    /// The parameter servers' part of it.
    #[serde(rename = "ps_cpu_ms_per_step")]
    PsCpuPerStep,
    /// What the fastest of many peers got, as a share of what each would have got if all had got the same.
    #[serde(rename = "fastest_share")]
    FastestShare,
    /// Resident memory of the parameter servers' process, in 2^20 bytes.
    #[serde(rename = "ps_rss_mib")]
    PsResident,
    /// The same of the workers' process, which is the one that measures.
    #[serde(rename = "worker_rss_mib")]
    WorkerResident,
    /// Files that the parameter servers' process has open, sockets included.
    #[serde(rename = "ps_open_files")]
    PsOpenFiles,
}

impl Metric {
    /// The label of an axis or a column, unit included.
    pub fn label(self) -> &'static str {
        self.shown().0
    }

    /// The label in two parts: which figure, and its unit.
    pub(crate) fn label_and_unit(self) -> (&'static str, &'static str) {
        self.label().split_once(", ").unwrap_or((self.label(), ""))
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

    /// The label, and the digits after the point of a value.
    fn shown(self) -> (&'static str, usize) {
        match self {
            Self::RoundTrip => ("round trip, µs", 2),
            Self::TensorsPerSecond => ("tensors/s", 0),
            Self::GigabytesPerSecond => ("GB/s", 2),
            Self::ConnectAll => ("connect all, ms", 2),
            Self::CpuPercent => ("CPU, %", 2),
            Self::ResidentBytesPerPeer => ("RSS a peer, B", 0),
            Self::SlowestShare => ("slowest's share", 2),
            Self::StepTime => ("step, ms", 4),
            Self::StepsPerSecond => ("steps/s", 0),
            Self::MessagesPerStep => ("messages/step", 2),
            Self::Gap => ("gap, ms", 2),
            Self::PeerGap => ("gap of a peer, ms", 2),
            Self::FailedCalls => ("failed calls", 0),
            Self::StepTimeP90 => ("step p90, ms", 4),
            Self::StepTimeP99 => ("step p99, ms", 4),
            Self::BytesPerStep => ("bytes/step", 0),
            Self::CpuPerStep => ("CPU a step, ms", 4),
            Self::WorkerCpuPerStep => ("workers' CPU a step, ms", 4),
            Self::PsCpuPerStep => ("ps' CPU a step, ms", 4),
            Self::FastestShare => ("fastest's share", 2),
            Self::PsResident => ("RSS of ps, MiB", 0),
            Self::WorkerResident => ("RSS of workers, MiB", 0),
            Self::PsOpenFiles => ("open files of ps", 0),
        }
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
    /// A metric in the course of the round, where the system counts as it goes.
    pub course: Option<Course>,
    /// When the round began, since the run did.
    pub began: Duration,
}

/// How a metric changed in the course of a round.
#[derive(Clone, Debug, PartialEq)]
pub struct Course {
    /// Which one.
    pub metric: Metric,
    /// Its values, in the order of time.
    pub points: Vec<Point>,
}

/// A metric's value over a part of a round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The middle of that part, since the round began.
    pub at: Duration,
    /// The mean value there.
    pub value: f64,
}

impl Course {
    /// The course of what is a rate, of which each completion counts `of_each`.
    pub(crate) fn of(metric: Metric, of_each: f64, stretches: &[Stretch]) -> Self {
        let point =
            |stretch: &Stretch| Point { at: (stretch.from + stretch.to) / 2, value: stretch.per_second() * of_each };
        Self { metric, points: stretches.iter().map(point).collect() }
    }
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
