//! Median, lowest and highest of a few rounds; and ratios of Sealane's figures and the baselines', taken round by round, so that
//! what slowed a round down slowed both down.

use serde::{Deserialize, Serialize};

use crate::run::Measured;
use crate::sample::{Metric, Sample};

/// Digits that figures keep after the point: more than any of them deserves.
const KEPT: f64 = 1e4;

/// The spread of one figure over the rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The median; of an even number of rounds the mean of the middle two.
    pub median: f64,
    /// The lowest.
    pub min: f64,
    /// The highest.
    pub max: f64,
}

impl Spread {
    /// The spread of `values`; `None` when there are none.
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len().is_multiple_of(2) {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        } else {
            sorted[middle]
        };
        Some(Self { median: rounded(median), min: rounded(min), max: rounded(max) })
    }
}

/// Cuts off digits that only noise fills.
pub(crate) fn rounded(value: f64) -> f64 {
    (value * KEPT).round() / KEPT
}

/// The system that all others are compared with.
const SUBJECT: &str = "sealane";

/// Percentiles of a round trip that are compared. The maximum is not: it is one event.
const PERCENTILES: [(&str, f64); 4] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999)];

/// A quotient of one figure of two systems.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Which systems: the first one's figure is divided by the second one's.
    pub name: String,
    /// Which figure.
    pub of: String,
    /// Its spread over the rounds.
    #[serde(flatten)]
    pub spread: Spread,
}

/// One ratio for every baseline and figure that it shares with Sealane, or rather with what was measured of Sealane first,
/// with which the others of Sealane are compared as well; none without Sealane.
pub(crate) fn ratios(measured: &[Measured]) -> Vec<Ratio> {
    let Some(first) = measured.iter().position(|one| one.system == SUBJECT) else {
        return Vec::new();
    };
    let others = measured.iter().enumerate().filter(|(place, _)| *place != first);
    others.flat_map(|(place, other)| compare(&measured[first], other, &measured[..place])).collect()
}

/// The first variant of a baseline goes by its system's name alone.
fn name(subject: &Measured, baseline: &Measured, before: &[Measured]) -> String {
    if baseline.system == SUBJECT {
        return format!("{}/{}", subject.variant, baseline.variant);
    }
    let name = format!("{SUBJECT}/{}", baseline.system);
    let is_first = before.iter().all(|other| other.system != baseline.system);
    if is_first { name } else { format!("{name}, {}", baseline.variant) }
}

fn compare(subject: &Measured, baseline: &Measured, before: &[Measured]) -> Vec<Ratio> {
    let name = name(subject, baseline, before);
    let ratio =
        |of: String, quotients: &[f64]| Spread::of(quotients).map(|spread| Ratio { name: name.clone(), of, spread });
    let percentiles = PERCENTILES.iter().filter_map(|(label, quantile)| {
        let of = format!("{}.{label}", Metric::RoundTrip);
        ratio(of, &quotients(&percentile(subject, *quantile), &percentile(baseline, *quantile)))
    });
    let shared = subject.metrics().into_iter().filter_map(|metric| {
        let quotients = quotients(&subject.values(metric), &baseline.values(metric));
        ratio(metric.to_string(), &quotients)
    });
    percentiles.chain(shared).collect()
}

fn percentile(measured: &Measured, quantile: f64) -> Vec<f64> {
    let at = |sample: &Sample| sample.round_trips.as_ref().map(|all| all.value_at_quantile(quantile) as f64);
    measured.samples.iter().filter_map(at).collect()
}

/// Divides round by round; a round in which the baseline did nothing has no quotient.
fn quotients(subject: &[f64], baseline: &[f64]) -> Vec<f64> {
    subject
        .iter()
        .zip(baseline)
        .map(|(subject, baseline)| subject / baseline)
        .filter(|quotient| quotient.is_finite())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::round_trip_histogram;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(Spread::of(&[]), None);
        let odd = Spread::of(&[3.0, 1.0, 2.0]).expect("three");
        assert_eq!(odd, Spread { median: 2.0, min: 1.0, max: 3.0 });
        let even = Spread::of(&[4.0, 1.0, 2.0, 3.0]).expect("four");
        assert_eq!(even, Spread { median: 2.5, min: 1.0, max: 4.0 });
    }

    #[test]
    fn noise_is_cut_off() {
        assert_eq!(rounded(1.160_049), 1.16);
        assert_eq!(rounded(0.000_05), 0.000_1);
    }

    fn rates(system: &'static str, rounds: &[f64]) -> Measured {
        let sample = |value: &f64| Sample::figure(Metric::TensorsPerSecond, *value);
        Measured { system, variant: String::new(), samples: rounds.iter().map(sample).collect() }
    }

    #[test]
    fn quotients_are_taken_round_by_round() {
        // The medians' quotient would be 3.
        let subject = rates(SUBJECT, &[100.0, 300.0, 800.0]);
        let baseline = rates("raw", &[50.0, 100.0, 200.0]);
        let made = ratios(&[subject, baseline]);
        assert_eq!(
            made,
            [Ratio {
                name: "sealane/raw".to_owned(),
                of: "tensors_per_s".to_owned(),
                spread: Spread { median: 3.0, min: 2.0, max: 4.0 },
            }]
        );
        let paired = ratios(&[rates(SUBJECT, &[10.0, 40.0]), rates("grpc", &[10.0, 10.0])]);
        assert_eq!(paired[0].name, "sealane/grpc");
        assert_eq!(paired[0].spread, Spread { median: 2.5, min: 1.0, max: 4.0 });
    }

    #[test]
    fn variants_of_one_system_are_told_apart() {
        let variant = |system, variant: &str| Measured { variant: variant.to_owned(), ..rates(system, &[1.0]) };
        let measured = [
            variant(SUBJECT, "1000 peers"),
            variant(SUBJECT, "10 peers"),
            variant("grpc", "unary"),
            variant("grpc", "one message"),
        ];
        let names: Vec<_> = ratios(&measured).into_iter().map(|ratio| ratio.name).collect();
        assert_eq!(names, ["1000 peers/10 peers", "sealane/grpc", "sealane/grpc, one message"]);
    }

    #[test]
    fn every_percentile_but_the_maximum_is_compared() {
        let trips = |system, nanoseconds| {
            let mut histogram = round_trip_histogram();
            histogram.saturating_record(nanoseconds);
            let samples = vec![Sample::round_trips(histogram)];
            Measured { system, variant: String::new(), samples }
        };
        let made = ratios(&[trips("raw", 1_000), trips(SUBJECT, 1_500)]);
        let of: Vec<_> = made.iter().map(|ratio| ratio.of.as_str()).collect();
        assert_eq!(of, ["rtt_us.p50", "rtt_us.p90", "rtt_us.p99", "rtt_us.p999"]);
        assert!(made.iter().all(|ratio| ratio.spread.median == 1.5));
    }

    #[test]
    fn what_is_not_shared_or_not_finite_is_left_out() {
        assert!(ratios(&[rates("raw", &[1.0]), rates("grpc", &[1.0])]).is_empty());
        assert!(ratios(&[rates(SUBJECT, &[1.0]), rates("raw", &[0.0])]).is_empty());
        let other = Measured {
            system: "raw",
            variant: String::new(),
            samples: vec![Sample::figure(Metric::GigabytesPerSecond, 1.0)],
        };
        assert!(ratios(&[rates(SUBJECT, &[1.0]), other]).is_empty());
    }
}
