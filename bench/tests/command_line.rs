//! The command line of benchmarks as a script sees it: standard output, standard error, exit code.

use std::process::{Command, Output};

use itertools::iproduct;
use serde_json::Value as Json;
use tempfile::TempDir;

const LATENCY: [&str; 9] = ["latency", "--link", "loopback", "--baseline", "raw", "--rounds", "2", "--seconds", "0.01"];

fn run(directory: &TempDir, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sealane-bench"));
    command.current_dir(directory).env_clear().args(LATENCY).args(arguments).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn a_benchmark_has_a_picture_or_is_refused_before_it_begins() {
    let place = tempfile::tempdir().unwrap();
    let output = run(&place, &["--plot", "a <b>.svg"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let svg = std::fs::read_to_string(place.path().join("a <b>.svg")).unwrap();
    let document = roxmltree::Document::parse(&svg).unwrap();
    let texts: Vec<_> = document.descendants().filter_map(|node| node.text().map(str::trim)).collect();
    let command = format!("sealane bench {} --plot 'a <b>.svg'", LATENCY.join(" "));
    for expected in [command.as_str(), "round trip, µs"] {
        assert!(texts.contains(&expected), "{expected} in {texts:?}");
    }
    for flag in ["--json", "--plot"] {
        let refused = run(&place, &[flag, "none/file"]);
        assert_eq!((refused.status.code(), stdout(&refused).as_str()), (Some(2), ""));
        let refused = stderr(&refused);
        assert!(refused.starts_with(&format!("error: {flag} none/file cannot be written (")), "{refused}");
        assert_eq!(refused.lines().count(), 1, "nothing was measured: {refused}");
    }
    // On a disk that is full by then the table is printed, and the remedy is one that helps.
    let output = run(&place, &["--json", "/dev/full"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stdout(&output).lines().count() > 3, "{}", stdout(&output));
    let last = stderr(&output).lines().last().unwrap().to_owned();
    let expected = "error: --json /dev/full cannot be written (No space left on device (os error 28)); ";
    assert!(last.starts_with(expected) && last.contains("free space"), "{last}");
}

#[test]
fn a_benchmark_of_several_sizes_has_a_line_for_each() {
    let place = tempfile::tempdir().unwrap();
    let output = run(&place, &["--size", "64..256", "--json", "sizes.json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    for (size, system) in iproduct!(["64", "128", "256"], ["sealane", "raw"]) {
        let is_its = |row: &&Vec<&str>| row.starts_with(&[system]) && row.windows(2).any(|two| two == [size, "B"]);
        assert!(rows.iter().any(|row| is_its(&row) && row.len() == 3 + 1 + 6), "{text}");
    }
    assert!(text.starts_with("latency over loopback: 2 rounds of 0.01 s"), "{text}");
    let json = std::fs::read_to_string(place.path().join("sizes.json")).unwrap();
    let reports: Vec<Json> = serde_json::from_str(&json).unwrap();
    let sizes: Vec<_> = reports.iter().map(|report| report["parameters"]["size_bytes"].as_u64().unwrap()).collect();
    assert_eq!(sizes, [64, 128, 256]);
    assert!(reports.iter().all(|report| report["schema"] == "sealane-bench/1"), "{json}");
}

#[test]
fn a_benchmark_of_several_sizes_reports_those_before_one_that_fails() {
    let place = tempfile::tempdir().unwrap();
    // With at most 30 MiB of shared memory in one piece, in blocks of 512 bytes: the arena of the last size has more.
    let limited = ["-c", "ulimit -f 61440; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_sealane-bench")];
    let bench = ["latency", "--link", "shm", "--rounds", "1", "--seconds", "0.01", "--size", "8MiB..32MiB"];
    let mut command = Command::new("sh");
    command.current_dir(&place).args(limited).args(bench).args(["--json", "sizes.json"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).lines().last().unwrap().contains("exceed the limit on file sizes"), "{}", stderr(&output));
    let text = stdout(&output);
    let words: Vec<&str> = text.split_whitespace().collect();
    let has = |size: &str| words.windows(2).any(|words| words == [size, "MiB"]);
    assert_eq!(["8", "16", "32"].map(has), [true, true, false], "{text}");
    let reports: Json =
        serde_json::from_str(&std::fs::read_to_string(place.path().join("sizes.json")).unwrap()).unwrap();
    assert_eq!(reports.as_array().unwrap().len(), 2);
}

#[test]
fn the_help_of_every_command_ends_with_an_example() {
    let mut command = <sealane_bench::commands::Cli as clap::CommandFactory>::command();
    command.clone().debug_assert();
    // The command `help` is made by the parser.
    for command in command.get_subcommands_mut().filter(|command| command.get_name() != "help") {
        let help = command.render_long_help().to_string();
        let (_, example) = help.rsplit_once("Example:").unwrap_or_else(|| panic!("{help}"));
        assert!(
            example.lines().filter(|line| !line.is_empty()).all(|line| line.starts_with("  sealane bench ")),
            "{help}"
        );
    }
}
