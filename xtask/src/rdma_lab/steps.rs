//! What the lab runs, in this order: one row a step.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Deserializer, Value};

use crate::build::Build;

/// One step: a command line in the guest, that must end with 0, and whose output must be as wanted.
pub(crate) struct Step {
    /// Names its log, too.
    pub(crate) name: &'static str,
    /// Seconds after which it is killed: several times what it takes on two busy cores.
    pub(crate) within_s: u64,
    /// The step's one line in the table, or what is wrong with what was printed.
    pub(crate) judge: Judge,
    /// For `/bin/sh`; `pair` (`pair.sh`) runs perftest.
    pub(crate) run: &'static str,
}

/// Judges a step by the output of every step so far.
pub(crate) type Judge = fn(&Outputs, &Step) -> Result<String, String>;

/// What each step printed, by the step's name.
pub(crate) type Outputs = BTreeMap<&'static str, String>;

impl Step {
    /// Whether its command line has this program, which bears the name of its target in the guest.
    pub(crate) fn runs(&self, program: &Build) -> bool {
        self.run.split(' ').any(|word| word == program.target)
    }
}

/// What of this workspace steps run. The program is what is measured, and so built as users get it.
pub(crate) const PROGRAMS: [Build; 4] = [
    Build { package: "sealane-transport", kind: "example", target: "verbs_probe", release: false, verbs: true },
    Build { package: "sealane-transport", kind: "test", target: "conformance", release: false, verbs: true },
    Build { package: "sealane-tests", kind: "test", target: "engine", release: false, verbs: true },
    Build { package: "sealane-cli", kind: "bin", target: "sealane", release: true, verbs: true },
];

const fn step(name: &'static str, within_s: u64, judge: Judge, run: &'static str) -> Step {
    Step { name, within_s, judge, run }
}

/// Measures large tensors.
macro_rules! bandwidth {
    ($name:literal, $flags:literal) => {
        step(
            $name,
            120,
            bandwidth,
            concat!("sealane bench bandwidth --link verbs --size 1MiB --rounds 3 --json - ", $flags),
        )
    };
}

/// Every step. Each runs in the same boot, and all that it leaves running is killed when it ends. Tests use the guest's device
/// where `SEALANE_TEST_RDMA` is set; those are skipped that ask of a device in memory what a real one does not do. Should the test
/// that takes the port down have failed, the steps after it need it nevertheless.
pub(crate) const STEPS: &[Step] = &[
    step("ibv_devinfo", 30, port_is_active, "ibv_devinfo -v"),
    step("verbs_probe", 60, trials, "verbs_probe"),
    step(
        "conformance",
        600,
        tests_passed,
        "SEALANE_TEST_RDMA=1 conformance --test-threads 1 verbs \
         --skip tiny --skip slow --skip failing --skip without --skip crowded",
    ),
    step("256_links", 120, tests_passed, "SEALANE_TEST_RDMA=1 conformance crowded_verbs::"),
    step(
        "engine",
        400,
        tests_passed,
        "SEALANE_TEST_RDMA=1 engine --test-threads 1 verbs:: \
         --skip nothing_is_lost --skip a_port_that_goes_down --skip links_go_back",
    ),
    step("peer_is_killed", 120, tests_passed, "SEALANE_TEST_RDMA=1 engine --ignored real_device::a_process_killed"),
    step(
        "200_are_killed",
        400,
        tests_passed,
        "SEALANE_TEST_RDMA=1 engine --ignored --nocapture real_device::receive_buffers",
    ),
    step(
        "port_goes_down",
        120,
        tests_passed,
        "SEALANE_TEST_RDMA=1 engine --ignored real_device::a_port_that_goes_down; \
         code=$?; ip link set eth0 up; exit $code",
    ),
    step("demo", 120, every_byte, "sealane demo --link verbs --steps 3 --workload mobilenet_v2"),
    step("demo_embedded", 120, every_byte, "sealane demo --link verbs --steps 3 --workload mobilenet_v2 --embedded"),
    step("ib_send_lat", 60, latency, "pair ib_send_lat -d rxe0 -x 1 -s 64 -n 5000"),
    step("ib_write_bw", 60, bandwidth, "pair ib_write_bw -d rxe0 -x 1 -s 1048576 -n 200"),
    step(
        "bench_latency",
        120,
        latency,
        "sealane bench latency --link verbs --size 64 --rounds 3 --baseline raw --json -",
    ),
    bandwidth!("bench_write", "--transfer write --baseline raw"),
    bandwidth!("bench_read", "--transfer read"),
    bandwidth!("bench_dynamic", "--registration dynamic"),
    bandwidth!("bench_window_1", "--window 1"),
    bandwidth!("bench_window_40", "--window 40"),
    // The parameter-server experiment. Some 16 MB move in a step of all workers, at tens of MB/s.
    step(
        "bench_ps",
        300,
        training,
        "sealane bench ps --link verbs --workers 4 --ps 2 --workload dlrm_kaggle --fuse turn \
         --request-buffers 1,40 --registration dynamic,static --rounds 3 --seconds 2 --json -",
    ),
];

/// What a step printed; nothing, if it has not run.
fn of<'a>(outputs: &'a Outputs, step: &str) -> &'a str {
    outputs.get(step).map_or("", String::as_str)
}

/// Counts what `verbs_probe` tried with success; what failed shows in its exit code.
fn trials(outputs: &Outputs, step: &Step) -> Result<String, String> {
    match of(outputs, step.name).lines().filter(|line| line.starts_with("ok ")).count() {
        0 => Err("nothing was tried".to_string()),
        tried => Ok(format!("{tried} trials of the device")),
    }
}

/// The tests of a test binary that passed; what failed shows in its exit code.
fn tests_passed(outputs: &Outputs, step: &Step) -> Result<String, String> {
    let passed = of(outputs, step.name).lines().find_map(|line| {
        let (passed, _) = line.strip_prefix("test result: ok. ")?.split_once(" passed")?;
        passed.parse().ok()
    });
    match passed {
        None => Err("no tests ran".to_string()),
        Some(0) => Err("no test has that name".to_string()),
        Some(1) => Ok("1 test".to_string()),
        Some(count @ 2_u64..) => Ok(format!("{count} tests")),
    }
}

/// The demo's links are verbs alone, and it has looked at all that it moved.
fn every_byte(outputs: &Outputs, step: &Step) -> Result<String, String> {
    let line = |what| of(outputs, step.name).lines().find(|line: &&str| line.contains(what));
    let links = line("links between engines: ").ok_or("no link was counted")?;
    let verified = line("verified").ok_or("nothing was verified")?;
    match links.ends_with(" verbs, 0 tcp") && !links.contains(" 0 verbs") {
        true => Ok(verified.trim().to_string()),
        false => Err(links.to_string()),
    }
}

fn port_is_active(outputs: &Outputs, step: &Step) -> Result<String, String> {
    let printed = of(outputs, step.name);
    let gids = printed.lines().filter(|line| line.trim_start().starts_with("GID[")).count();
    match printed.contains("PORT_ACTIVE") {
        true => Ok(format!("port active, {gids} GIDs")),
        false => Err("no port is active".to_string()),
    }
}

/// The report that a step printed, before which may stand a bar of progress.
pub(crate) fn report(printed: &str) -> Option<Value> {
    let begins = |(at, _): &(usize, &str)| printed[at + 1..].trim_start().starts_with("\"schema\"");
    let (at, _) = printed.match_indices('{').find(begins)?;
    // What follows the report is not looked at.
    Deserializer::from_str(&printed[at..]).into_iter().next()?.ok()
}

/// The figures of a system in the report that a step printed, without those that are zero.
fn figures(outputs: &Outputs, step: &str, system: &str, metric: &str) -> Vec<f64> {
    let report = report(of(outputs, step)).unwrap_or_default();
    let rows = report["results"].as_array().into_iter().flatten();
    let rows = rows.filter(|row| row["system"] == system && row["metric"] == metric);
    rows.filter_map(|row| row["p50"].as_f64().or(row["value"].as_f64())).filter(|figure| *figure > 0.0).collect()
}

/// Judges a step that measured round trips, in microseconds.
fn latency(outputs: &Outputs, step: &Step) -> Result<String, String> {
    measured(outputs, step, "rtt_us", "ib_send_lat", |us| format!("{us:.1} µs there and back"))
}

/// Judges a step that measured large tensors, in 10^9 bytes a second.
fn bandwidth(outputs: &Outputs, step: &Step) -> Result<String, String> {
    measured(outputs, step, "gigabytes_per_s", "ib_write_bw", |figure| format!("{figure:.4} GB/s"))
}

/// Sets what a step measured beside perftest of the same boot. Figures pass no judgement: a machine may be busy. But one that is
/// missing, or is zero, is a fault.
fn measured(
    outputs: &Outputs,
    step: &Step,
    metric: &str,
    yardstick: &str,
    show: fn(f64) -> String,
) -> Result<String, String> {
    let of = |step, system| figures(outputs, step, system, metric).first().copied();
    let perftest = of(yardstick, "perftest");
    if step.name == yardstick {
        return perftest.map(show).ok_or_else(|| "perftest's figure is missing or zero".to_owned());
    }
    let sealane = of(step.name, "sealane").ok_or("Sealane's figure is missing or zero")?;
    let mut line = show(sealane);
    if let Some(perftest) = perftest {
        let _ = write!(line, ", {:.2} x {yardstick}", sealane / perftest);
    }
    if step.run.contains("--baseline raw") {
        let raw = of(step.name, "raw").ok_or("the figure of the bare operation is missing or zero")?;
        let _ = write!(line, "; raw {}", show(raw));
    }
    Ok(line)
}

/// Judges the parameter-server experiment, whose variants are compared with the first; in the order of its flags.
fn training(outputs: &Outputs, step: &Step) -> Result<String, String> {
    let variants = ["1 request buffer, dynamic", "static", "40 request buffers", "both"];
    let paces = figures(outputs, step.name, "sealane", "steps_per_s");
    if paces.len() != variants.len() {
        return Err(format!("{} of {} variants have a pace", paces.len(), variants.len()));
    }
    let mut line = format!("{:.2} steps/s with {}", paces[0], variants[0]);
    for (pace, name) in paces.iter().zip(variants).skip(1) {
        let _ = write!(line, "; {name} {:.2} x", pace / paces[0]);
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use serde_json::json;

    use super::*;
    use crate::command::output;

    /// Judges the step of this name.
    fn judged(outputs: &Outputs, name: &str) -> Result<String, String> {
        let step = STEPS.iter().find(|step| step.name == name).unwrap();
        (step.judge)(outputs, step)
    }

    /// Judges the step that printed this.
    fn judged_alone(name: &'static str, printed: &str) -> Result<String, String> {
        judged(&Outputs::from([(name, printed.to_owned())]), name)
    }

    #[test]
    fn every_step_has_a_name_of_its_own() {
        for (number, step) in STEPS.iter().enumerate() {
            assert!(!STEPS[..number].iter().any(|other| other.name == step.name), "{}", step.name);
            assert!(step.name.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c)), "{}", step.name);
        }
    }

    #[test]
    fn every_program_is_run_and_has_a_name_of_its_own() {
        for (number, program) in PROGRAMS.iter().enumerate() {
            assert!(STEPS.iter().any(|step| step.runs(program)), "{}", program.target);
            assert!(!PROGRAMS[..number].iter().any(|other| other.target == program.target), "{}", program.target);
        }
        // What is no program of ours is one of the guest's.
        let known = |step: &Step| PROGRAMS.iter().any(|program| step.runs(program));
        let others: Vec<_> = STEPS.iter().filter(|step| !known(step)).map(|step| step.name).collect();
        assert_eq!(others, ["ibv_devinfo", "ib_send_lat", "ib_write_bw"]);
    }

    #[test]
    fn tests_must_have_run() {
        let result = |passed: &str| {
            let printed = format!("running it\n\ntest result: ok. {passed} passed; 0 failed; 3 filtered out\n");
            judged_alone("engine", &printed)
        };
        assert_eq!((result("1").as_deref(), result("44").as_deref()), (Ok("1 test"), Ok("44 tests")));
        assert!(result("0").is_err() && judged(&Outputs::new(), "engine").is_err());
    }

    #[test]
    fn a_demo_is_of_verbs_alone() {
        let demo = |links: &str, end: &str| judged_alone("demo", &format!("links between engines: {links}\n\n{end}\n"));
        let end = "every byte of 2528 tensors verified (224.31 MB); 7.5 s in all";
        assert_eq!(demo("2 verbs, 0 tcp", end).as_deref(), Ok(end));
        assert_eq!(demo("10 verbs, 0 tcp", end).as_deref(), Ok(end));
        assert!(demo("1 verbs, 1 tcp", end).is_err() && demo("0 verbs, 0 tcp", end).is_err());
        assert!(demo("1 verbs, 0 tcp", "").is_err());
    }

    #[test]
    fn output_is_judged() {
        let port = |printed| judged_alone("ibv_devinfo", printed);
        assert_eq!(port("state: PORT_ACTIVE (4)\n\tGID[  0]: fe80::1\n\n").unwrap(), "port active, 1 GIDs");
        assert!(port("PORT_DOWN").is_err());
        assert_eq!(judged_alone("verbs_probe", "ok  this\nok  that\n").unwrap(), "2 trials of the device");
        assert!(judged_alone("verbs_probe", "PORT_DOWN").is_err());
    }

    const SEND_LAT: &str = " TX depth        : 1
---------------------------------------------------------------------------------------
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]
 64      1000          9.68           153.20       10.00    \t       10.64       \t4.42   \t\t26.15   \t\t153.20
---------------------------------------------------------------------------------------
";
    const WRITE_BW: &str = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 1048576    200              63.35              62.50  \t\t   0.000061
";

    /// What the guest's `pair` prints of what perftest's client printed.
    fn paired(printed: &str) -> String {
        let script = include_str!("pair.sh");
        let figures = script[script.find("\nawk").unwrap()..].replace("/tmp/client.log", "");
        output(Command::new("sh").args(["-c", &format!("printf %s \"$1\" | {}", figures.trim()), "sh", printed]))
            .unwrap()
    }

    fn printed(rows: &str) -> String {
        format!("bar {{ \u{1b}[2K{{\n  \"schema\": \"sealane-bench/1\",\n  \"results\": [{rows}]\n}}\nand more\n")
    }

    fn outputs() -> Outputs {
        let latency =
            r#"{"system":"sealane","metric":"rtt_us","p50":25.0},{"system":"raw","metric":"rtt_us","p50":20.0}"#;
        let bandwidth = r#"{"system":"sealane","metric":"gigabytes_per_s","value":0.0625},
            {"system":"raw","metric":"gigabytes_per_s","value":0.07}"#;
        Outputs::from([
            ("bench_latency", printed(latency)),
            ("bench_write", printed(bandwidth)),
            ("bench_read", printed(r#"{"system":"sealane","metric":"gigabytes_per_s","value":0.0}"#)),
            ("ib_send_lat", paired(SEND_LAT)),
            ("ib_write_bw", paired(WRITE_BW)),
        ])
    }

    #[test]
    fn figures_stand_beside_perftests() {
        let mut outputs = outputs();
        let beside = "25.0 µs there and back, 1.25 x ib_send_lat; raw 20.0 µs there and back";
        assert_eq!(judged(&outputs, "bench_latency").unwrap(), beside);
        assert_eq!(judged(&outputs, "bench_write").unwrap(), "0.0625 GB/s, 0.95 x ib_write_bw; raw 0.0700 GB/s");
        assert_eq!(judged(&outputs, "ib_send_lat").unwrap(), "20.0 µs there and back");
        assert_eq!(judged(&outputs, "ib_write_bw").unwrap(), "0.0655 GB/s");
        outputs.remove("ib_write_bw");
        assert_eq!(judged(&outputs, "bench_write").unwrap(), "0.0625 GB/s; raw 0.0700 GB/s");
    }

    #[test]
    fn a_figure_that_is_missing_or_zero_is_a_fault() {
        let mut outputs = outputs();
        assert!(judged(&outputs, "bench_read").unwrap_err().contains("missing or zero"));
        assert!(judged(&outputs, "bench_window_1").is_err());
        outputs.insert("bench_latency", printed(r#"{"system":"sealane","metric":"rtt_us","p50":25.0}"#));
        assert!(judged(&outputs, "bench_latency").unwrap_err().contains("bare operation"));
        let heading = WRITE_BW.lines().next().unwrap();
        for printed in ["Couldn't connect to 10.9.0.1:18515\n", " #bytes #iterations t_other[usec]\n 64 1 2\n", heading]
        {
            assert!(judged_alone("ib_write_bw", &paired(printed)).is_err(), "{printed}");
        }
        assert!(judged_alone("ib_send_lat", &paired(WRITE_BW)).is_err());
    }

    #[test]
    fn perftests_figures_are_reported_as_ours_are() {
        let found = |printed: &str| report(printed).unwrap()["results"][0].clone();
        let expected = json!({ "system": "perftest", "variant": "", "metric": "rtt_us", "p50": 20 });
        assert_eq!(found(&paired(SEND_LAT)), expected);
        assert_eq!(found(&paired(WRITE_BW))["value"], 0.065_536);
        assert_eq!(report(&outputs()["bench_latency"]).unwrap()["results"][1]["system"], "raw");
        assert_eq!(report("nothing of { the kind }"), None);
    }

    #[test]
    fn every_variant_of_the_experiment_has_a_pace() {
        let row = |metric: &str, pace: f64| format!(r#"{{"system":"sealane","metric":"{metric}","value":{pace}}}"#);
        let trained = |paces: &[f64]| {
            let rows = paces.iter().flat_map(|pace| [row("steps_per_s", *pace), row("step_ms", 1.0)]);
            judged_alone("bench_ps", &printed(&rows.collect::<Vec<_>>().join(",")))
        };
        let expected =
            "2.00 steps/s with 1 request buffer, dynamic; static 1.50 x; 40 request buffers 2.00 x; both 2.50 x";
        assert_eq!(trained(&[2.0, 3.0, 4.0, 5.0]).unwrap(), expected);
        assert_eq!(trained(&[2.0, 3.0, 0.0, 5.0]).unwrap_err(), "3 of 4 variants have a pace");
        assert!(judged(&Outputs::new(), "bench_ps").is_err());
    }
}
