//! The figures of the README: tables between two markers, and single figures between two others, in its sentences. Pure.

use super::chapters::{HOST, MANY, ONE, PS, by_grpc, exchange, experiments, lab};
use super::comparison::Line;
use super::figure::{self, NOT_MEASURED, quotient};
use super::page::{MARKDOWN, day};
use super::results::{Results, Run};
use sealane_bench::{Column, Table, brief};

/// Begins a generated table, whose name and [`OPENED`] follow; ends it.
const TABLE: &str = "<!-- measured ";
const OPENED: &str = ": made by `cargo xtask report` -->";
const TABLE_END: &str = "<!-- end of measured -->";

/// Begins a generated figure, whose name and `-->` follow; ends it.
const FIGURE: &str = "<!-- figure ";
const FIGURE_END: &str = "<!-- end -->";

/// What of a result a figure is.
enum Which {
    /// The median of a system's metric.
    Median(&'static str, &'static str),
    /// The same with its spread.
    Spread(&'static str, &'static str),
    /// The median of a quotient.
    Ratio(&'static str, &'static str),
    /// The same with its spread.
    RatioSpread(&'static str, &'static str),
}

use Which::{Median, Ratio, RatioSpread, Spread};

/// Every figure that a sentence may have: its name, the experiment, and what of it.
const FIGURES: &[(&str, &str, Which)] = &[
    ("latency_to_raw", "latency", Ratio("sealane/raw", "rtt_us.p50")),
    ("latency_shm", "latency_shm", Median("sealane", "rtt_us.p50")),
    ("plan_step", "fuse_plan", Median("sealane", "step_ms")),
    ("plan_to_grpc", "fuse_plan", Ratio("sealane/grpc", "steps_per_s")),
    ("plan_to_grpc_one_message", "fuse_plan", Ratio("sealane/grpc, one message", "steps_per_s")),
    ("secret_latency", "latency_secret", RatioSpread("sealane/open", "rtt_us.p50")),
    ("tls_latency", "latency_tls", RatioSpread("sealane/open", "rtt_us.p50")),
    ("tls_latency_median", "latency_tls", Ratio("sealane/open", "rtt_us.p50")),
    ("tls_bandwidth", "bandwidth_tls", Median("sealane", "gigabytes_per_s")),
    ("tls_bandwidth_ratio", "bandwidth_tls", RatioSpread("sealane/open", "gigabytes_per_s")),
    ("restart_gap", "restart", Median("sealane", "gap_ms")),
    ("restart_gap_spread", "restart", Spread("sealane", "gap_ms")),
    ("restart_peer_gap_spread", "restart", Spread("sealane", "peer_gap_ms")),
    ("fanin_peer_bytes", "fanin_plan", Median("sealane", "rss_bytes_per_peer")),
    ("fanin_slowest", "fanin_plan", Median("sealane", "slowest_share")),
    ("fanin_plan_kept", "fanin_plan", RatioSpread("1000 peers/10 peers", "tensors_per_s")),
    ("fanin_sent_kept", "fanin_sent", RatioSpread("1000 peers/10 peers", "tensors_per_s")),
    ("idle_cpu", "idle", Median("sealane", "cpu_percent")),
    ("idle_peer_bytes", "idle", Median("sealane", "rss_bytes_per_peer")),
    ("idle_client_cpu", "idle_clients", Median("sealane", "cpu_percent")),
    ("idle_client_bytes", "idle_clients", Median("sealane", "rss_bytes_per_peer")),
    ("connect_all", "connect", Spread("sealane", "connect_all_ms")),
    ("connect_to_raw", "connect", RatioSpread("sealane/raw", "connect_all_ms")),
];

/// The rows of the table of systems, by where they come from.
const ROWS: [(&[Line], &[usize]); 4] = [(ONE, &[0, 1, 2, 3, 4, 6]), (MANY, &[0, 1, 5]), (PS, &[0, 1]), (HOST, &[0, 4])];

/// The README with its figures made anew.
///
/// # Errors
/// What is marked and not known, or has no end.
pub(super) fn written(readme: &str, results: &Results) -> Result<String, Vec<String>> {
    let tables = between(readme, TABLE, OPENED, TABLE_END, |name| {
        let table = table(name, results)?;
        Some(format!("\n\n{}\n", table.trim_end()) + "\n")
    })?;
    between(&tables, FIGURE, " -->", FIGURE_END, |name| {
        FIGURES
            .iter()
            .find(|(known, ..)| *known == name)
            .map(|(_, experiment, which)| shown(results.get(experiment), which))
    })
}

/// Replaces what is between each mark, which names it, and the next end.
fn between(
    text: &str,
    begin: &str,
    opened: &str,
    end: &str,
    made: impl Fn(&str) -> Option<String>,
) -> Result<String, Vec<String>> {
    let (mut written, mut rest, mut problems) = (String::new(), text, Vec::new());
    while let Some((before, after)) = rest.split_once(begin) {
        let Some((name, after)) = after.split_once(opened) else {
            problems.push(format!("README.md: {begin:?} is not followed by a name and {opened:?}"));
            break;
        };
        let Some((old, after)) = after.split_once(end).filter(|(old, _)| !old.contains(begin)) else {
            problems.push(format!("README.md: {begin}{name} has no {end}"));
            break;
        };
        let new = made(name).unwrap_or_else(|| {
            problems.push(format!("README.md: nothing is called {name}, as {begin}{name} says"));
            old.to_owned()
        });
        written += &format!("{before}{begin}{name}{opened}{new}{end}");
        rest = after;
    }
    if problems.is_empty() { Ok(written + rest) } else { Err(problems) }
}

fn shown(run: Option<&Run>, which: &Which) -> String {
    let figure = |system, metric| run.and_then(|run| run.figure(system, None, metric));
    let text = match *which {
        Median(system, metric) => figure(system, metric).map(|spread| figure::median(metric, spread)),
        Spread(system, metric) => figure(system, metric).map(|spread| figure::with_spread(metric, spread)),
        Ratio(name, of) => run.and_then(|run| run.ratio(name, of)).map(|spread| brief(spread.median)),
        RatioSpread(name, of) => run.and_then(|run| run.ratio(name, of)).map(quotient),
    };
    text.unwrap_or_else(|| format!("({NOT_MEASURED})"))
}

/// A generated part by its name.
fn table(name: &str, results: &Results) -> Option<String> {
    match name {
        "systems" => Some(format!("{}\n{}", systems(results).to_markdown(), where_and_when(results))),
        "verbs" => Some(lab(results).to_markdown()),
        _ => None,
    }
}

/// What a stranger wants to know first.
fn systems(results: &Results) -> Table {
    let lines = ROWS.iter().flat_map(|(lines, chosen)| chosen.iter().map(|at| &lines[*at]));
    let command =
        |name: &str| experiments().find(|experiment| experiment.name == name).map(|experiment| experiment.short());
    let row = |line: &Line| {
        let [what, cells @ ..] = line.cells(results);
        let what = if line.experiment.ends_with("_shm") { format!("one host: {what}") } else { what };
        let command = command(line.experiment).map_or_else(String::new, |command| format!("`{command}`"));
        [what].into_iter().chain(cells).chain([command]).collect()
    };
    let steps = |system: &str| exchange(results, system).map(|steps| figure::with_spread("steps_per_s", steps));
    let training = |(what, system): (&str, &str)| {
        vec![
            what.to_owned(),
            steps(system).unwrap_or_else(|| NOT_MEASURED.to_owned()),
            String::new(),
            steps("grpc").unwrap_or_default(),
            String::new(),
            by_grpc(results, system).map_or_else(String::new, quotient),
            command("training").map_or_else(String::new, |command| format!("`{command}`")),
        ]
    };
    let trained = [
        ("DLRM in Python, 4 workers, the exchange alone, by the host's daemon", "sealane"),
        ("the same by two daemons, with TCP between them", "sealane-tcp"),
    ];
    let heads = super::comparison::SYSTEMS.iter().skip(1).map(|head| Column::number(head));
    let columns = [Column::text("what")].into_iter().chain(heads).chain([Column::text("command")]);
    Table::new(columns.collect::<Vec<_>>(), lines.map(row).chain(trained.map(training)).collect::<Vec<_>>())
}

/// One sentence about the machine and the day.
fn where_and_when(results: &Results) -> String {
    let Some((machine, run)) = results.iter().find_map(|run| Some((run.machine()?, run))) else {
        return format!("Nothing has been measured yet: {MARKDOWN} will tell.\n");
    };
    let days = results.iter().map(|run| day(run.provenance.unix_seconds)).collect::<std::collections::BTreeSet<_>>();
    format!(
        "Measured on {}, {} CPUs, Linux {}, congestion control {}; {}.\n",
        machine.cpu_model,
        machine.cpus,
        machine.kernel,
        run.provenance.congestion,
        days.into_iter().collect::<Vec<_>>().join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::super::fixtures;
    use super::*;

    #[test]
    fn figures_and_tables_are_made_anew_and_the_rest_stays() {
        let readme = "a <!-- figure latency_to_raw -->9<!-- end --> b\n<!-- measured systems: made by `cargo xtask report` -->\nold\n\
                      <!-- end of measured --> c <!-- figure restart_gap_spread --><!-- end -->\n";
        let written = written(readme, &fixtures::results()).unwrap();
        assert!(
            written.starts_with("a <!-- figure latency_to_raw -->1.25<!-- end --> b\n<!-- measured systems: "),
            "{written}"
        );
        assert!(
            written.ends_with("<!-- end of measured --> c <!-- figure restart_gap_spread -->190 ms<!-- end -->\n"),
            "{written}"
        );
        assert!(!written.contains("old"), "{written}");
        for expected in [
            "| 64 B there and back, p50 | 8 µs | 6.4 µs | 24 µs | 0.8 | 3 | `bench latency --size 64` |",
            "| one host: 64 B there and back, p50 | 8 µs |",
            "| DLRM in Python, 4 workers, the exchange alone, by the host's daemon | 700/s (690 to 710) |  | 200/s (190 to 210) |  | 3.5 (3.2 to 3.9) | `python",
            "Measured on Abacus 9, 2 CPUs, Linux 6.18, congestion control bbr; 2025-11-20.",
        ] {
            assert!(written.contains(expected), "{expected} in {written}");
        }
        assert_eq!(super::written(&written, &fixtures::results()).unwrap(), written);
    }

    #[test]
    fn what_is_not_measured_says_so() {
        let readme = "<!-- figure idle_cpu -->9<!-- end --> <!-- measured systems: made by `cargo xtask report` --><!-- end of measured -->";
        let written = written(readme, &Results::default()).unwrap();
        assert!(written.starts_with("<!-- figure idle_cpu -->(not measured)<!-- end -->"), "{written}");
        assert!(written.contains("| 4 MiB tensors | not measured |"), "{written}");
        assert!(written.contains("Nothing has been measured yet"), "{written}");
    }

    #[test]
    fn marks_that_mean_nothing_are_named() {
        let error = |readme: &str| written(readme, &Results::default()).unwrap_err().remove(0);
        assert!(error("<!-- figure speed -->9<!-- end -->").contains("nothing is called speed"));
        assert!(error("<!-- figure idle_cpu -->9").contains("<!-- figure idle_cpu has no <!-- end -->"));
        assert!(error("<!-- figure idle_cpu -->9 <!-- figure idle_cpu -->9<!-- end -->").contains("has no"));
        assert!(error("<!-- figure idle_cpu").contains("is not followed by a name"));
        assert!(
            error("<!-- measured x: made by `cargo xtask report` --><!-- end of measured -->")
                .contains("nothing is called x")
        );
    }

    #[test]
    fn every_figure_is_of_an_experiment() {
        for (name, experiment, _) in FIGURES {
            assert!(experiments().any(|known| known.name == *experiment), "{name}");
        }
        let results = fixtures::results();
        for (name, experiment, which) in FIGURES {
            let shown = shown(results.get(experiment), which);
            assert!(!shown.contains(NOT_MEASURED), "{name}");
        }
    }
}
