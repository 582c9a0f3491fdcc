//! The steps of the lab, in order.

use serde_json::{Deserializer, Value};

use crate::build::Build;

/// One step: a command line in the guest that must exit with 0, and whose output must match.
pub(crate) struct Step {
    /// Also the name of its log.
    pub(crate) name: &'static str,
    /// Seconds after which it is killed: several times what it takes on two busy cores.
    pub(crate) within_s: u64,
    /// For `/bin/sh`; `pair` (`pair.sh`) runs perftest.
    pub(crate) run: String,
    /// A line of its output must contain the first text and not the second. If `None`, it must print a report.
    line: Option<(&'static str, &'static str)>,
}

/// The programs of this workspace that steps run. The main program is measured, and so built as for users.
pub(crate) const PROGRAMS: [Build; 5] = [
    Build { package: "sealane-transport", kind: "example", target: "verbs_probe", is_packed: false },
    Build { package: "sealane-transport", kind: "test", target: "conformance", is_packed: false },
    Build { package: "sealane-tests", kind: "test", target: "engine", is_packed: false },
    Build { package: "sealane-cli", kind: "bin", target: "sealane", is_packed: true },
    Build { package: "sealane-bench", kind: "bin", target: "sealane-bench", is_packed: true },
];

/// Steps whose output must have a line with the first text and without the second.
const DEVICE: [[&str; 4]; 2] = [
    ["ibv_devinfo", "ibv_devinfo -v", "PORT_ACTIVE (", "PORT_DOWN"],
    ["verbs_probe", "verbs_probe", "ok ", "PORT_DOWN"],
];

/// Tests use the guest's device if `SEALANE_TEST_RDMA` is set; those that need a behaviour of the in-memory device that a real one
/// lacks are skipped. Should the test that takes the port down fail, the steps after it still need the port.
const TESTS: [(&str, &str); 6] = [
    (
        "conformance",
        "conformance --test-threads 1 verbs --skip tiny --skip slow --skip failing --skip without --skip crowded",
    ),
    ("256_links", "conformance crowded_verbs::"),
    ("engine", "engine --test-threads 1 verbs:: --skip nothing_is_lost --skip links_go_back"),
    ("peer_is_killed", "engine --ignored real_device::a_process_killed"),
    ("200_are_killed", "engine --ignored --nocapture real_device::receive_buffers"),
    ("port_goes_down", "engine --ignored real_device::a_port_that_goes_down; code=$?; ip link set eth0 up; exit $code"),
];

/// The demo may use only verbs; it verifies all that it moves.
const DEMOS: [(&str, &str); 2] = [("demo", ""), ("demo_embedded", "--embedded")];

/// Programs that print reports: perftest, and ours over verbs. In a step of the parameter-server experiment some 16 MB move, at
/// tens of MB/s.
const PERFTESTS: [(&str, &str); 2] = [("ib_send_lat", "-s 64 -n 5000"), ("ib_write_bw", "-s 1048576 -n 200")];
const BENCHES: [(&str, &str); 7] = [
    ("bench_latency", "latency --size 64 --baseline raw"),
    ("bench_write", "bandwidth --size 1MiB --transfer write --baseline raw"),
    ("bench_read", "bandwidth --size 1MiB --transfer read"),
    ("bench_dynamic", "bandwidth --size 1MiB --registration dynamic"),
    ("bench_window_1", "bandwidth --size 1MiB --window 1"),
    ("bench_window_40", "bandwidth --size 1MiB --window 40"),
    (
        "bench_ps",
        "ps --workers 4 --ps 2 --workload dlrm_kaggle --fuse turn --request-buffers 1,40 \
         --registration dynamic,static --seconds 2",
    ),
];

/// All steps. They run in the same boot, and all processes that a step leaves running are killed at its end.
pub(crate) fn steps() -> Vec<Step> {
    let step = |name, within_s, run, line| Step { name, within_s, run, line };
    let device = DEVICE.map(|[name, run, has, lacks]| step(name, 60, run.to_owned(), Some((has, lacks))));
    let tests = TESTS.map(|(name, run)| {
        step(name, 600, format!("SEALANE_TEST_RDMA=1 {run}"), Some(("test result: ok. ", "ok. 0 passed")))
    });
    let demos = DEMOS.map(|(name, how)| {
        let run = format!("sealane demo --link verbs --steps 3 --workload mobilenet_v2 {how}");
        step(name, 120, run, Some((" verbs, 0 tcp", ": 0 verbs")))
    });
    let perftests = PERFTESTS.map(|(name, how)| step(name, 60, format!("pair {name} -d rxe0 -x 1 {how}"), None));
    let bench = |how| format!("sealane-bench {how} --link verbs --rounds 3 --json -");
    let benches = BENCHES.map(|(name, how)| step(name, 300, bench(how), None));
    device.into_iter().chain(tests).chain(demos).chain(perftests).chain(benches).collect()
}

impl Step {
    /// Whether its command line contains this program, which has the name of its target in the guest.
    pub(crate) fn runs(&self, program: &Build) -> bool {
        self.run.split(' ').any(|word| word == program.target)
    }

    /// The step's result in one line, or what is wrong with its output.
    pub(crate) fn judge(&self, printed: &str) -> Result<String, String> {
        let Some((wanted, unwanted)) = self.line else { return self.measured(printed) };
        let line = printed.lines().find(|line| line.contains(wanted)).ok_or_else(|| format!("nowhere: {wanted}"))?;
        if line.contains(unwanted) { Err(line.to_owned()) } else { Ok(line.trim().to_owned()) }
    }

    /// Figures are not judged, since a machine may be busy; but one that is missing or zero is an error.
    fn measured(&self, printed: &str) -> Result<String, String> {
        let report = report(printed).ok_or("no report was printed")?;
        let mut line = String::new();
        for row in report["results"].as_array().into_iter().flatten() {
            let [system, variant, metric] =
                ["system", "variant", "metric"].map(|field| row[field].as_str().unwrap_or(""));
            if !["rtt_us", "gigabytes_per_s", "steps_per_s"].contains(&metric) {
                continue;
            }
            let figure = row["p50"].as_f64().or(row["value"].as_f64()).filter(|figure| *figure > 0.0);
            let figure = figure.ok_or_else(|| format!("{metric} of {system} {variant} is missing or zero"))?;
            line += &format!("{system} {variant} {metric} {figure:.4}; ");
        }
        let system = if self.run.starts_with("pair ") { "perftest" } else { "sealane" };
        for (system, is_wanted) in [(system, true), ("raw", self.run.contains("--baseline raw"))] {
            if is_wanted && !line.contains(&format!("{system} ")) {
                return Err(format!("{system} has no figure"));
            }
        }
        Ok(line)
    }
}

/// The report that a step printed, possibly after a progress bar.
pub(crate) fn report(printed: &str) -> Option<Value> {
    let begins = |(at, _): &(usize, &str)| printed[at + 1..].trim_start().starts_with("\"schema\"");
    let (at, _) = printed.match_indices('{').find(begins)?;
    // Anything after the report is ignored.
    Deserializer::from_str(&printed[at..]).into_iter().next()?.ok()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::command::output;

    fn judged(name: &str, printed: &str) -> Result<String, String> {
        steps().into_iter().find(|step| step.name == name).unwrap().judge(printed)
    }

    #[test]
    fn output_is_judged() {
        assert!(PROGRAMS.iter().all(|program| steps().iter().any(|step| step.runs(program))));
        for (name, good, bad) in [
            ("engine", "x\n\ntest result: ok. 40 passed; 0 failed", "test result: ok. 0 passed; 0 failed"),
            ("engine", "test result: ok. 1 passed; 0 failed", ""),
            ("demo", "links between engines: 2 verbs, 0 tcp", "links between engines: 1 verbs, 1 tcp"),
            ("demo", "links between engines: 10 verbs, 0 tcp", "links between engines: 0 verbs, 0 tcp"),
            ("ibv_devinfo", "state: PORT_ACTIVE (4)", "PORT_DOWN"),
        ] {
            assert!(judged(name, good).is_ok() && judged(name, bad).is_err(), "{name}: {good}, {bad}");
        }
    }

    #[test]
    fn a_figure_that_is_missing_or_zero_is_a_fault() {
        let latency = |figures: &[(&str, f64)]| {
            let row = |(system, p50): &(&str, f64)| format!(r#"{{"system":"{system}","metric":"rtt_us","p50":{p50}}}"#);
            let rows: Vec<String> = figures.iter().map(row).collect();
            let rows = rows.join(",");
            judged(
                "bench_latency",
                &format!("bar {{ \u{1b}[2K{{\n \"schema\": \"sealane-bench/1\", \"results\": [{rows}]}}\nmore"),
            )
        };
        let line = "sealane  rtt_us 25.0000; raw  rtt_us 20.0000; ";
        assert_eq!(latency(&[("sealane", 25.0), ("raw", 20.0)]).as_deref(), Ok(line));
        assert!(latency(&[("sealane", 25.0), ("raw", 0.0)]).unwrap_err().contains("missing or zero"));
        assert!(latency(&[("sealane", 25.0)]).unwrap_err().contains("raw has no figure"));
        assert!(judged("bench_latency", "nothing of { the kind }").is_err());
    }

    /// What the guest's `pair` makes of what perftest's client prints.
    #[test]
    fn perftests_figures_are_reported_as_ours_are() {
        let paired = |printed: &str| {
            let script = include_str!("pair.sh");
            let figures = script[script.find("\nawk").unwrap()..].replace("/tmp/client.log", "");
            let command = format!("printf %s \"$1\" | {}", figures.trim());
            output(Command::new("sh").args(["-c", &command, "sh", printed])).unwrap()
        };
        let latency = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]\n \
                       64      1000          9.68           153.20       10.00    \t       10.64\n";
        let bandwidth = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n \
                         1048576    200              63.35              62.50  \t\t   0.000061\n";
        assert_eq!(judged("ib_send_lat", &paired(latency)).unwrap(), "perftest  rtt_us 20.0000; ");
        assert_eq!(judged("ib_write_bw", &paired(bandwidth)).unwrap(), "perftest  gigabytes_per_s 0.0655; ");
        assert!(judged("ib_send_lat", &paired(" #bytes #iterations t_other[usec]\n 64 1 2\n")).is_err());
    }
}
