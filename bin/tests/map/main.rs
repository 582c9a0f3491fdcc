//! `sealane map generate` on files as TensorFlow, Kubeflow, Slurm and MPI write them: each example lies here beside its
//! expected map, and every map passes `sealane map lint`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The examples of one source.
fn examples(source: &str, extension: &str) -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/map").join(source);
    let files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.filter(|file| file.extension().is_some_and(|has| has == extension)).collect();
    files.sort();
    assert!(!files.is_empty(), "no example of {source}");
    files
}

fn sealane(directory: &Path, variables: &[(String, String)], arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sealane"));
    command.current_dir(directory).env_clear().envs(variables.iter().cloned()).arg("map").args(arguments);
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The map generated from `example` is the one beside it, on standard output and in a file, every time, and passes the lint.
fn check(example: &Path, variables: &[(String, String)], arguments: &[&str]) {
    let shown = example.display();
    let expected = fs::read_to_string(example.with_extension("map")).unwrap();
    let place = tempfile::tempdir().unwrap();
    let arguments = [&["generate"], arguments].concat();
    let output = sealane(place.path(), variables, &arguments);
    assert_eq!(text(&output.stderr), "", "{shown}");
    assert_eq!(text(&output.stdout), expected, "{shown}");

    fs::write(place.path().join("made.map"), "what was there").unwrap();
    let output = sealane(place.path(), variables, &[&arguments[..], &["--out", "made.map"]].concat());
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("", ""), "{shown}");
    assert_eq!(fs::read_to_string(place.path().join("made.map")).unwrap(), expected);
    let output = sealane(place.path(), &[], &["lint", "made.map"]);
    assert!(text(&output.stdout).starts_with("ok: ") && output.stderr.is_empty(), "{shown}: {output:?}");
}

fn refuse(variables: &[(&str, &str)], arguments: &[&str]) -> String {
    let place = tempfile::tempdir().unwrap();
    let variables: Vec<_> = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let output = sealane(place.path(), &variables, &[&["generate"], arguments].concat());
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), ""), "{output:?}");
    let error = text(&output.stderr);
    assert_eq!(error.lines().count(), 1, "{error}");
    error.trim_end().strip_prefix("error: ").unwrap_or_else(|| panic!("{error}")).to_owned()
}

#[test]
fn tf_config() {
    for example in examples("tf_config", "json") {
        let json = fs::read_to_string(&example).unwrap();
        check(&example, &[("TF_CONFIG".to_owned(), json)], &["--from", "tf-config"]);
        // The flag wins over the variable.
        let variable = [("TF_CONFIG".to_owned(), "not JSON".to_owned())];
        check(&example, &variable, &["--from", "tf-config", "--tf-config", example.to_str().unwrap()]);
    }
}

#[test]
fn slurm() {
    for example in examples("slurm", "env") {
        let lines = fs::read_to_string(&example).unwrap();
        let pair = |line: &str| line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned())).unwrap();
        let variables: Vec<_> = lines.lines().map(pair).collect();
        check(&example, &variables, &["--from", "slurm", "--ps", "2"]);
    }
    let flags = ["--from", "slurm", "--ps", "2", "--nodelist", "node64-[17-20]", "--tasks-per-node", "2(x3),1"];
    check(&examples("slurm", "env")[0], &[("SLURM_JOB_NODELIST".to_owned(), "other".to_owned())], &flags);
}

#[test]
fn hostfile() {
    for example in examples("hostfile", "hosts") {
        check(&example, &[], &["--from", "hostfile", "--hostfile", example.to_str().unwrap(), "--ps", "1"]);
    }
}

#[test]
fn statefulset() {
    let [example] = &examples("statefulset", "map")[..] else { panic!("one example") };
    let flags = ["--from", "statefulset", "--ps", "ps:2", "--worker", "worker:2", "--service", "train"];
    check(example, &[("POD_NAMESPACE".to_owned(), "other".to_owned())], &[&flags[..], &["--namespace", "ml"]].concat());
    let domain = ["--cluster-domain", "cluster.local"];
    check(example, &[("POD_NAMESPACE".to_owned(), "ml".to_owned())], &[&flags[..], &domain].concat());
}

#[test]
fn what_is_missing_or_wrong_is_one_sentence_with_the_remedy() {
    let not_set = "is not set; run this where";
    for (variables, arguments, says) in [
        (&[][..], &["--from", "tf-config"][..], format!("TF_CONFIG {not_set} TensorFlow's launcher sets it")),
        (&[("TF_CONFIG", " ")], &["--from", "tf-config"], format!("TF_CONFIG {not_set}")),
        (&[("TF_CONFIG", "{")], &["--from", "tf-config"], "TF_CONFIG: it is not JSON (".to_owned()),
        (&[], &["--from", "tf-config", "--tf-config", "none"], "none: cannot be read (No such file".to_owned()),
        (&[], &["--from", "slurm"], format!("SLURM_JOB_NODELIST {not_set} Slurm sets it, or give --nodelist")),
        (&[("SLURM_JOB_NODELIST", "a")], &["--from", "slurm"], format!("SLURM_TASKS_PER_NODE {not_set} Slurm sets it")),
        (&[], &["--from", "hostfile"], "--from hostfile needs --hostfile FILE; add it".to_owned()),
        (&[], &["--from", "hostfile", "--hostfile", "/"], "/: cannot be read (".to_owned()),
        (&[], &["--from", "statefulset"], "--from statefulset needs --service NAME; add it".to_owned()),
        (&[], &["--from", "slurm", "--service", "s"], "--from slurm does not read --service; leave it out".to_owned()),
        (&[], &["--from", "tf-config", "--ps", "1"], "--from tf-config does not read --ps; leave it out".to_owned()),
        (&[], &["--from", "hosts"], "invalid value 'hosts' for '--from <SOURCE>'".to_owned()),
        (&[], &["--from", "slurm", "--port", "0"], "invalid value '0' for '--port <PORT>'".to_owned()),
    ] {
        let error = refuse(variables, arguments);
        assert!(error.starts_with(&says), "{arguments:?}: {error}");
    }
    let slurm = [("SLURM_JOB_NODELIST", "a[1-2]"), ("SLURM_TASKS_PER_NODE", "2(x2)")];
    for (flags, says) in [
        (&["--ps", "x"][..], "--ps \"x\" is not a number of tasks; write how many of the tasks are ps"),
        (&["--ps", "1", "--ps", "2"], "--ps \"1 --ps 2\" is not a number of tasks"),
        (&["--ps", "5"], "--ps 5 is more than the number of tasks (4)"),
        (&["--task-port", "65535"], "a1 has too few ports"),
        (
            &["--port", "2223"],
            "a1:2223 is both the transport address and the address of worker 1; choose another \
             --port",
        ),
    ] {
        let error = refuse(&slurm, &[&["--from", "slurm"], flags].concat());
        assert!(error.starts_with(says), "{flags:?}: {error}");
    }
}

#[test]
fn a_file_that_cannot_be_written_is_failed_work() {
    let place = tempfile::tempdir().unwrap();
    let variables = [("TF_CONFIG".to_owned(), r#"{"cluster":{"ps":["a:1"]}}"#.to_owned())];
    let output = sealane(place.path(), &variables, &["generate", "--from", "tf-config", "--out", "none/map"]);
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    assert!(error.starts_with("error: none/map: cannot be written ("), "{error}");
}

#[test]
fn an_engine_for_each_task_has_a_port_of_its_own() {
    let place = tempfile::tempdir().unwrap();
    let flags = ["--nodelist", "a", "--tasks-per-node", "2", "--embedded", "--port", "7100", "--task-port", "3000"];
    let output = sealane(place.path(), &[], &[&["generate", "--from", "slurm"], &flags[..]].concat());
    let made = text(&output.stdout);
    assert!(made.ends_with("a:3000=a:7100  # worker 0\na:3001=a:7101  # worker 1\n"), "{made}");
}

/// The page shows what the program does: every example in it is run.
#[test]
fn the_page_tells_the_truth() {
    let page = include_str!("../../../docs/endpoint_map.md");
    let place = tempfile::tempdir().unwrap();
    let mut examples = 0;
    for block in page.split("```sh\n").skip(1) {
        let (script, rest) = block.split_once("```").unwrap();
        let (_, expected) = rest.split_once("```text\n").unwrap_or_else(|| panic!("no output: {script}"));
        let (expected, _) = expected.split_once("```").unwrap();
        let program = Path::new(env!("CARGO_BIN_EXE_sealane"));
        let path = format!("{}:/usr/bin:/bin", program.parent().unwrap().display());
        let mut shell = Command::new("sh");
        shell.current_dir(&place).env_clear().env("PATH", path).args(["-e", "-c", script]);
        let output = shell.output().unwrap();
        let printed = format!("{}{}", text(&output.stdout), text(&output.stderr));
        assert_eq!(printed, expected, "{script}");
        examples += 1;
    }
    assert!(examples >= 6, "{examples} examples");
}
