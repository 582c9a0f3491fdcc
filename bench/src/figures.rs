//! The results of systems: figures of each round, their spread over the rounds, and ratios between Sealane and the baselines, taken
//! round by round, so that whatever slowed a round down affects both.

use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::limits::ROUND_TRIP_NS_MAX;

/// Significant decimal digits that a histogram keeps: a value is off by at most 0.1 %.
const HISTOGRAM_DIGITS: u8 = 3;

const HEADLINE_FIGURES: usize = 4;

/// Digits kept after the decimal point, as a power of ten: more than any figure deserves.
const KEPT: f64 = 1e4;

/// The system that all others are compared with.
const SUBJECT: &str = "sealane";

/// Percentiles of round trips, by their names in the report.
pub(crate) const PERCENTILES: [(&str, f64); 4] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999)];

macro_rules! metrics {
    ($($(#[$doc:meta])+ $name:ident: $json:literal, $label:literal, $digits:literal;)+) => {
        /// A figure of a round, with the name that it has in the report.
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

// Each with its name in the report, its label with the unit, and its digits after the decimal point.
metrics! {
    /// Time from a request to its full response; percentiles.
    RoundTrip: "rtt_us", "round trip, µs", 2;
    /// The time of a call of all ranks on the slowest one.
    CallTime: "call_us", "call, µs", 1;
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
    /// CPU time of the consumer's process, in seconds for 10^9 bytes of tensors.
    CpuPerGigabyte: "cpu_s_per_gigabyte", "CPU here, s/GB", 3;
    /// The same of the producer's process.
    ProducerCpuPerGigabyte: "producer_cpu_s_per_gigabyte", "CPU there, s/GB", 3;
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
            // A hundred workers together may make fewer than a hundred steps a second.
            Self::StepsPerSecond if value < 100.0 => 2,
            // A device in software moves less than 0.1 GB/s.
            Self::GigabytesPerSecond if value < 1.0 => 4,
            _ => self.shown().1,
        };
        format!("{value:.digits$}")
    }
}

/// Its name in the report.
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
    pub fn round_trips(histogram: Histogram<u64>) -> Self {
        Self { round_trips: Some(histogram), ..Self::default() }
    }

    pub fn figure(metric: Metric, value: f64) -> Self {
        vec![(metric, value)].into()
    }

    /// The first figures, in a few words: they are what the measurement is about.
    pub(crate) fn headline(&self) -> String {
        let median = self.round_trips.iter().map(|trips| format!("p50 {:.2} µs", microseconds(trips, 0.5)));
        let figures = self.figures.iter().map(|(metric, value)| format!("{value:.2} {}", metric.label()));
        median.chain(figures).take(HEADLINE_FIGURES).collect::<Vec<_>>().join(", ")
    }
}

impl From<Vec<(Metric, f64)>> for Sample {
    fn from(figures: Vec<(Metric, f64)>) -> Self {
        Self { round_trips: None, figures }
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

pub(crate) fn microseconds(trips: &Histogram<u64>, quantile: f64) -> f64 {
    trips.value_at_quantile(quantile) as f64 / 1_000.0
}

/// All rounds of one system.
#[derive(Clone, Debug)]
pub struct Measured {
    pub system: &'static str,
    pub variant: String,
    /// One sample a round, in the order of the rounds.
    pub samples: Vec<Sample>,
}

impl Measured {
    /// The round trips of all rounds together, if the system measures round trips.
    pub(crate) fn all_round_trips(&self) -> Option<Histogram<u64>> {
        let rounds = self.samples.iter().filter_map(|sample| sample.round_trips.as_ref());
        rounds.cloned().reduce(|mut all, round| {
            all.add(round).expect("all have the same bounds");
            all
        })
    }

    /// Every metric except round trips, in the order in which the system reports them, with its value in each round.
    pub(crate) fn values(&self) -> Vec<(Metric, Vec<f64>)> {
        let first = self.samples.first().map(|sample| &sample.figures[..]).unwrap_or_default();
        let of = |metric| {
            let figures = self.samples.iter().flat_map(|sample| &sample.figures);
            figures.filter(|(name, _)| *name == metric).map(|(_, value)| *value).collect()
        };
        first.iter().map(|(metric, _)| (*metric, of(*metric))).collect()
    }

    /// Figures to compare with other systems, by name in the report, with the value in each round. The maximum of round trips is
    /// left out: it is a single event.
    pub(crate) fn compared(&self) -> Vec<(String, Vec<f64>)> {
        let trips = || self.samples.iter().filter_map(|sample| sample.round_trips.as_ref());
        let percentiles = PERCENTILES.iter().filter(|_| trips().next().is_some()).map(|(label, quantile)| {
            let values = trips().map(|trips| microseconds(trips, *quantile)).collect();
            (format!("{}.{label}", Metric::RoundTrip), values)
        });
        percentiles.chain(self.values().into_iter().map(|(metric, values)| (metric.to_string(), values))).collect()
    }
}

/// The spread of one figure over the rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The median; of an even number of rounds the mean of the middle two.
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// The spread of `values`; `None` when there are none.
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let median = f64::midpoint(sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        Some(Self { median: rounded(median), min: rounded(min), max: rounded(max) })
    }
}

/// Cuts off digits that only noise fills.
pub(crate) fn rounded(value: f64) -> f64 {
    (value * KEPT).round() / KEPT
}

/// A quotient of one figure of two systems.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// Which systems: the first one's figure is divided by the second one's.
    pub name: String,
    pub of: String,
    #[serde(flatten)]
    pub spread: Spread,
}

/// One ratio for every baseline and every figure that it shares with Sealane. All are relative to the first measurement of Sealane,
/// including its other variants; none without Sealane.
pub(crate) fn ratios(measured: &[Measured]) -> Vec<Ratio> {
    let Some(first) = measured.iter().position(|one| one.system == SUBJECT) else {
        return Vec::new();
    };
    let others = measured.iter().enumerate().filter(|(place, _)| *place != first);
    others.flat_map(|(place, other)| compare(&measured[first], other, &measured[..place])).collect()
}

/// The first variant of a baseline is called by its system's name alone.
fn name(subject: &Measured, baseline: &Measured, before: &[Measured]) -> String {
    if baseline.system == SUBJECT {
        return format!("{}/{}", subject.variant, baseline.variant);
    }
    let name = format!("{SUBJECT}/{}", baseline.system);
    let is_first = before.iter().all(|other| other.system != baseline.system);
    if is_first { name } else { format!("{name}, {}", baseline.variant) }
}

/// Divides round by round; a round in which the baseline did nothing has no quotient.
fn compare(subject: &Measured, baseline: &Measured, before: &[Measured]) -> Vec<Ratio> {
    let (name, theirs) = (name(subject, baseline, before), baseline.compared());
    let ratio = |(of, ours): (String, Vec<f64>)| {
        let (_, theirs) = theirs.iter().find(|(name, _)| *name == of)?;
        let quotients = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs);
        let spread = Spread::of(&quotients.filter(|quotient| quotient.is_finite()).collect::<Vec<_>>())?;
        Some(Ratio { name: name.clone(), of, spread })
    };
    subject.compared().into_iter().filter_map(ratio).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(system: &'static str, variant: &str, metric: Metric, values: &[f64]) -> Measured {
        let samples = values.iter().map(|value| Sample::figure(metric, *value)).collect();
        Measured { system, variant: variant.to_owned(), samples }
    }

    fn rates(system: &'static str, values: &[f64]) -> Measured {
        measured(system, "", Metric::TensorsPerSecond, values)
    }

    fn trips(system: &'static str, nanoseconds: &[u64]) -> Measured {
        let sample = |took: &u64| {
            let mut histogram = round_trip_histogram();
            record_round_trip(&mut histogram, Duration::from_nanos(*took));
            Sample::round_trips(histogram)
        };
        Measured { system, variant: String::new(), samples: nanoseconds.iter().map(sample).collect() }
    }

    #[test]
    fn the_median_is_in_the_middle_and_noise_is_cut_off() {
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]), Some(Spread { median: 2.0, min: 1.0, max: 3.0 }));
        assert_eq!(Spread::of(&[4.0, 1.0, 2.0, 3.0]), Some(Spread { median: 2.5, min: 1.0, max: 4.0 }));
        assert_eq!((rounded(1.160_049), rounded(0.000_05)), (1.16, 0.000_1));
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        let made = ratios(&[rates("raw", &[10.0, 20.0]), rates(SUBJECT, &[5.0, 30.0])]);
        let spread = Spread { median: 1.0, min: 0.5, max: 1.5 };
        assert_eq!(made, [Ratio { name: "sealane/raw".to_owned(), of: "tensors_per_s".to_owned(), spread }]);
        let other = measured("raw", "", Metric::GigabytesPerSecond, &[1.0]);
        for pair in [[rates("raw", &[1.0]), rates("grpc", &[1.0])], [rates(SUBJECT, &[1.0]), other]] {
            assert_eq!(ratios(&pair), []);
        }
        assert_eq!(ratios(&[rates(SUBJECT, &[1.0]), rates("raw", &[0.0])]), []);
    }

    #[test]
    fn variants_have_names() {
        let [many, few] = ["1000 peers", "10 peers"].map(|of| measured(SUBJECT, of, Metric::StepTime, &[1.0]));
        let [unary, whole] = ["unary", "one message"].map(|of| measured("grpc", of, Metric::StepTime, &[1.0]));
        let names: Vec<_> = ratios(&[many, few, unary, whole]).into_iter().map(|ratio| ratio.name).collect();
        assert_eq!(names, ["1000 peers/10 peers", "sealane/grpc", "sealane/grpc, one message"]);
    }

    #[test]
    fn every_percentile_but_the_maximum_is_compared_and_rounds_are_put_together() {
        let made = ratios(&[trips("raw", &[1_000]), trips(SUBJECT, &[1_500])]);
        let of: Vec<_> = made.iter().map(|ratio| ratio.of.as_str()).collect();
        assert_eq!(of, ["rtt_us.p50", "rtt_us.p90", "rtt_us.p99", "rtt_us.p999"]);
        assert!(made.iter().all(|ratio| ratio.spread.median == 1.5));
        let all = trips("raw", &[100, 0, u64::MAX]).all_round_trips().expect("there are some");
        assert_eq!((all.len(), all.min()), (3, 1));
        assert!(all.max() >= ROUND_TRIP_NS_MAX && rates("raw", &[]).all_round_trips().is_none());
    }

    #[test]
    fn a_metric_is_named_as_in_the_report_and_written_with_its_digits() {
        assert_eq!(Metric::StepTimeP90.to_string(), "step_p90_ms");
        assert_eq!(Metric::GigabytesPerSecond.written(0.06251), "0.0625");
        assert_eq!(Metric::GigabytesPerSecond.written(6.251), "6.25");
        let mut sample = trips("raw", &[6_400]).samples.remove(0);
        sample.figures.extend([(Metric::GigabytesPerSecond, 8.125); 5]);
        assert_eq!(sample.headline(), "p50 6.40 µs, 8.12 GB/s, 8.12 GB/s, 8.12 GB/s");
    }
}
