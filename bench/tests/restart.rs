//! `sealane bench restart`: daemons hand over, or are drained and started anew, and the gap is told.

use std::process::{Command, Stdio};

use serde_json::Value;

/// Other programs may take the ports that a run has found free; so often it is made again.
const ATTEMPTS: usize = 5;

fn run() -> Result<Value, String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sealane-bench"));
    command.args(["restart", "--rounds", "2", "--seconds", "0.05", "--size", "4KiB", "--json", "-"]);
    let directory = tempfile::tempdir().unwrap();
    command.env_clear().current_dir(&directory).stdin(Stdio::null());
    let output = command.output().unwrap();
    match output.status.success() {
        true => Ok(serde_json::from_slice(&output.stdout).unwrap()),
        false => Err(String::from_utf8(output.stderr).unwrap()),
    }
}

#[test]
fn the_gap_of_both_hosts_is_measured() {
    let report =
        (0..ATTEMPTS).map(|_| run()).find(|run| !run.as_ref().is_err_and(|why| why.contains("cannot listen on")));
    let report = report.expect("a port stays free").unwrap_or_else(|why| panic!("{why}"));
    assert_eq!((&report["bench"], &report["link"]), (&"restart".into(), &"tcp".into()));
    for variant in ["handed over", "drained and started anew"] {
        let value = |metric: &str| {
            let is_it = |row: &&Value| row["metric"] == metric && row["variant"] == variant;
            let row = report["results"].as_array().unwrap().iter().find(is_it);
            row.unwrap_or_else(|| panic!("{variant} {metric}: {report}"))["value"].as_f64().unwrap()
        };
        assert!(value("gap_ms") > 0.0 && value("peer_gap_ms") > 0.0, "{report}");
        assert!(value("pull_gap_ms") > 0.0 && value("peer_pull_gap_ms") > 0.0, "{report}");
        assert!(value("failed_calls") >= 0.0, "{report}");
    }
}
