//! Reads what `sealane bench` measured in the guest, and sets it beside perftest of the same boot. Figures pass no judgement:
//! a machine may be busy. But one that is missing, or is zero, is a fault.

use std::fmt::Write;

use serde_json::{Deserializer, Value, json};

use super::perftest;
use super::steps::{Outputs, of};

/// The steps that the figures come from: their names, and what is measured against what.
pub(crate) const LATENCY: &str = "bench_latency";
pub(crate) const PERFTEST_LATENCY: &str = "ib_send_lat";
pub(crate) const PERFTEST_BANDWIDTH: &str = "ib_write_bw";
/// The first has the bare operation beside it.
pub(crate) const BANDWIDTHS: [&str; 5] =
    ["bench_write", "bench_read", "bench_dynamic", "bench_window_1", "bench_window_40"];

/// The parameter-server experiment: request buffers and registration, 2 x 2.
pub(crate) const TRAINING: &str = "bench_ps";

/// Its variants in the order of its flags, of which the first is what the others are compared with.
const TRAINED: [&str; 4] = ["1 request buffer, dynamic", "static", "40 request buffers", "both"];

/// How a report begins; before it may stand a bar of progress.
const REPORT: &str = "{\n  \"schema\": \"sealane-bench/";

/// Which figure of a report.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Metric {
    /// Microseconds there and back, the median.
    RoundTrip,
    /// 10^9 bytes a second.
    Bandwidth,
}

impl Metric {
    fn show(self, figure: f64) -> String {
        match self {
            Metric::RoundTrip => format!("{figure:.1} µs"),
            Metric::Bandwidth => format!("{figure:.4} GB/s"),
        }
    }
}

/// The report that a step printed; of what perftest printed, one of the same shape.
pub(crate) fn report(printed: &str) -> Option<Value> {
    let Some(at) = printed.find(REPORT) else { return of_perftest(printed) };
    // What follows the report is not looked at.
    Deserializer::from_str(&printed[at..]).into_iter().next()?.ok()
}

/// Perftest's figure, as ours are reported.
fn of_perftest(printed: &str) -> Option<Value> {
    let row = match (perftest::latency_us(printed), perftest::bytes_per_s(printed)) {
        (Some(us), _) => json!({ "system": "perftest", "variant": "", "metric": "rtt_us", "p50": 2.0 * us }),
        (None, Some(bytes)) => {
            json!({ "system": "perftest", "variant": "", "metric": "gigabytes_per_s", "value": bytes / 1e9 })
        }
        (None, None) => return None,
    };
    Some(json!({ "schema": "perftest", "results": [row] }))
}

/// The figure of a system in the report that a step printed.
fn figure(printed: &str, system: &str, metric: Metric) -> Option<f64> {
    let report = report(printed)?;
    let (name, value) = match metric {
        Metric::RoundTrip => ("rtt_us", "p50"),
        Metric::Bandwidth => ("gigabytes_per_s", "value"),
    };
    let mut rows = report["results"].as_array()?.iter();
    let row = rows.find(|row| row["system"] == system && row["metric"] == name)?;
    row[value].as_f64().filter(|figure| *figure > 0.0)
}

/// Perftest's figure of the same: its latency is that of one way.
fn yardstick(outputs: &Outputs, metric: Metric) -> Option<f64> {
    match metric {
        Metric::RoundTrip => perftest::latency_us(of(outputs, PERFTEST_LATENCY)).map(|us| 2.0 * us),
        Metric::Bandwidth => perftest::bytes_per_s(of(outputs, PERFTEST_BANDWIDTH)).map(|bytes| bytes / 1e9),
    }
}

fn beside(outputs: &Outputs, metric: Metric, figure: f64) -> String {
    let name = match metric {
        Metric::RoundTrip => "2 x ib_send_lat",
        Metric::Bandwidth => "ib_write_bw",
    };
    yardstick(outputs, metric).map_or_else(String::new, |yardstick| format!("{:.2} x {name}", figure / yardstick))
}

/// Judges a step that measured round trips.
pub(crate) fn latency(outputs: &Outputs, step: &str) -> Result<String, String> {
    judge(outputs, step, Metric::RoundTrip)
}

/// Judges a step that measured large tensors.
pub(crate) fn bandwidth(outputs: &Outputs, step: &str) -> Result<String, String> {
    judge(outputs, step, Metric::Bandwidth)
}

fn judge(outputs: &Outputs, step: &str, metric: Metric) -> Result<String, String> {
    let printed = of(outputs, step);
    let sealane = figure(printed, "sealane", metric).ok_or("Sealane's figure is missing or zero")?;
    let mut line = metric.show(sealane);
    let beside = beside(outputs, metric, sealane);
    if !beside.is_empty() {
        let _ = write!(line, ", {beside}");
    }
    if step == LATENCY || step == BANDWIDTHS[0] {
        let raw = figure(printed, "raw", metric).ok_or("the figure of the bare operation is missing or zero")?;
        let _ = write!(line, "; raw {}", metric.show(raw));
    }
    Ok(line)
}

/// Judges the parameter-server experiment.
pub(crate) fn training(outputs: &Outputs, step: &str) -> Result<String, String> {
    let report = report(of(outputs, step)).ok_or("no report was printed")?;
    let rows = report["results"].as_array().into_iter().flatten();
    let paces = rows.filter(|row| row["system"] == "sealane" && row["metric"] == "steps_per_s");
    let paces: Vec<f64> = paces.filter_map(|row| row["value"].as_f64()).filter(|pace| *pace > 0.0).collect();
    if paces.len() != TRAINED.len() {
        return Err(format!("{} of {} variants have a pace", paces.len(), TRAINED.len()));
    }
    let mut line = format!("{:.2} steps/s with {}", paces[0], TRAINED[0]);
    for (pace, name) in paces.iter().zip(TRAINED).skip(1) {
        let _ = write!(line, "; {name} {:.2} x", pace / paces[0]);
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEND_LAT: &str =
        " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]\n 64 1000 9.68 153.20 10.00\n";
    const WRITE_BW: &str =
        " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]\n 1048576 200 63.35 62.50\n";

    fn report(rows: &str) -> String {
        format!("bar \u{1b}[2K{REPORT}1\",\n  \"results\": [{rows}]\n}}\nand more\n")
    }

    fn outputs() -> Outputs {
        let latency =
            r#"{"system":"sealane","metric":"rtt_us","p50":25.0},{"system":"raw","metric":"rtt_us","p50":20.0}"#;
        let bandwidth = r#"{"system":"sealane","metric":"gigabytes_per_s","value":0.0625},
            {"system":"raw","metric":"gigabytes_per_s","value":0.07}"#;
        Outputs::from([
            (LATENCY, report(latency)),
            ("bench_write", report(bandwidth)),
            ("bench_read", report(r#"{"system":"sealane","metric":"gigabytes_per_s","value":0.0}"#)),
            (PERFTEST_LATENCY, SEND_LAT.to_owned()),
            (PERFTEST_BANDWIDTH, WRITE_BW.to_owned()),
        ])
    }

    #[test]
    fn figures_stand_beside_perftests() {
        let mut outputs = outputs();
        assert_eq!(latency(&outputs, LATENCY).unwrap(), "25.0 µs, 1.25 x 2 x ib_send_lat; raw 20.0 µs");
        assert_eq!(bandwidth(&outputs, "bench_write").unwrap(), "0.0625 GB/s, 0.95 x ib_write_bw; raw 0.0700 GB/s");
        outputs.remove(PERFTEST_LATENCY);
        assert_eq!(latency(&outputs, LATENCY).unwrap(), "25.0 µs; raw 20.0 µs");
    }

    #[test]
    fn a_figure_that_is_missing_or_zero_is_a_fault() {
        let mut outputs = outputs();
        assert!(bandwidth(&outputs, "bench_read").unwrap_err().contains("missing or zero"));
        assert!(bandwidth(&outputs, LATENCY).is_err() && bandwidth(&outputs, "none").is_err());
        outputs.insert(LATENCY, report(r#"{"system":"sealane","metric":"rtt_us","p50":25.0}"#));
        assert!(latency(&outputs, LATENCY).unwrap_err().contains("bare operation"));
    }

    #[test]
    fn perftests_figures_can_be_kept_as_ours_are() {
        let found = |printed: &str| super::report(printed).unwrap()["results"][0].clone();
        assert_eq!((&found(SEND_LAT)["metric"], &found(SEND_LAT)["p50"]), (&json!("rtt_us"), &json!(20.0)));
        assert_eq!(found(WRITE_BW)["value"], 0.065_536);
        assert_eq!(super::report(of(&outputs(), LATENCY)).unwrap()["results"][1]["system"], "raw");
        assert_eq!(super::report("nothing of the kind"), None);
    }

    #[test]
    fn every_variant_of_the_experiment_has_a_pace() {
        let row = |metric: &str, pace: f64| format!(r#"{{"system":"sealane","metric":"{metric}","value":{pace}}}"#);
        let judged = |paces: &[f64]| {
            let rows = paces.iter().flat_map(|pace| [row("steps_per_s", *pace), row("step_ms", 1.0)]);
            let printed = report(&rows.collect::<Vec<_>>().join(","));
            training(&Outputs::from([(TRAINING, printed)]), TRAINING)
        };
        let expected =
            "2.00 steps/s with 1 request buffer, dynamic; static 1.50 x; 40 request buffers 2.00 x; both 2.50 x";
        assert_eq!(judged(&[2.0, 3.0, 4.0, 5.0]).unwrap(), expected);
        assert_eq!(judged(&[2.0, 3.0, 0.0, 5.0]).unwrap_err(), "3 of 4 variants have a pace");
        assert!(training(&Outputs::new(), TRAINING).is_err());
    }
}
