//! `sealane bench collectives`: ranks are processes, on one host or on several that they pretend to be.

use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sealane-bench"));
    command.args(["collectives", "--rounds", "1", "--seconds", "0.01", "--size", "1000", "--json", "-"]);
    let directory = tempfile::tempdir().unwrap();
    command.args(arguments).env_clear().current_dir(&directory).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn every_call_is_measured_on_one_host_and_on_several() {
    for call in ["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "barrier", "send"] {
        for (hosts, link) in [("1", "shm"), ("2", "tcp")] {
            let output = run(&["--call", call, "--ranks", "3", "--hosts", hosts]);
            assert!(output.status.success(), "{call}: {}", String::from_utf8_lossy(&output.stderr));
            let report: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!((&report["bench"], &report["link"]), (&"collectives".into(), &link.into()));
            assert_eq!((&report["parameters"]["call"], &report["parameters"]["ranks"]), (&call.into(), &3.into()));
            let result = &report["results"][0];
            assert_eq!((&result["system"], &result["metric"]), (&"sealane".into(), &"call_us".into()));
            assert!(result["value"].as_f64().unwrap() > 0.0, "{report}");
        }
    }
}

#[test]
fn a_python_without_pytorch_is_named() {
    let output = run(&["--baseline", "gloo", "--python", "/bin/false"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("/bin/false has ended; it needs PyTorch"), "{said}");
    for refused in [["--hosts", "3"], ["--ranks", "1"], ["--size", "1001"]] {
        let output =
            Command::new(env!("CARGO_BIN_EXE_sealane-bench")).arg("collectives").args(refused).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && said.contains(refused[0]), "{said}");
    }
}
