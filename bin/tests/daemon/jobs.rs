//! Jobs that use the same socket or the same addresses, and processes that are left over from one of them.

use std::time::Instant;

use sealane::{Code, Error, JobName, Task, Tensor};
use sealane_transport::shm::attach::{Attach, AttachError, RequiredJob, attach};

use crate::figures::words;
use crate::fixture::{ARENA_BYTES, Daemon, PS, Place, STUCK, WORKER};
use crate::rings::Client;

fn job(name: &str) -> JobName {
    name.parse().unwrap()
}

fn options(place: &Place, task: &str) -> sealane::Attach {
    sealane::Attach::new(task).socket(place.socket()).arena_bytes(ARENA_BYTES).timeout(STUCK)
}

fn tensor(value: u8) -> Tensor {
    Tensor::from_elements(&[4], &[value; 4]).unwrap()
}

/// The error with which the task's calls end once it has noticed that its daemon does not serve it any more.
fn final_error(task: &Task) -> Error {
    let stuck = Instant::now() + STUCK;
    loop {
        match task.publish("noticed", 1, tensor(0)).wait() {
            Err(error) if error.code() != Code::Unavailable || error.to_string().contains("replaced") => return error,
            ended => assert!(Instant::now() < stuck, "it is still served: {ended:?}"),
        }
        std::thread::yield_now();
    }
}

/// The daemon is killed, so that it leaves its socket, and another one serves there.
fn succeed(place: &Place, daemon: Daemon, arguments: &[&str]) -> Daemon {
    drop(daemon);
    Daemon::start_at(place, arguments).unwrap_or_else(|ended| panic!("{}", ended.stderr))
}

#[test]
fn process_of_an_old_job_does_not_enter_the_next() {
    let (place, daemon) = Daemon::start(&["--job", "first"]);
    // Neither process names its job: each joins that of the daemon it finds.
    let old = options(&place, PS).attach().unwrap();
    old.publish("w", 1, tensor(1)).wait().unwrap();
    let _daemon = succeed(&place, daemon, &["--job", "second"]);
    let worker = options(&place, WORKER).attach().unwrap();
    let pulling = worker.pull(PS, "w", 1);
    let refused = final_error(&old);
    assert_eq!(refused.code(), Code::PermissionDenied);
    let text = refused.to_string();
    assert!(text.contains("serves job 'second', and this process belongs to job 'first'"), "{text}");
    let new = options(&place, PS).attach().unwrap();
    new.publish("w", 1, tensor(2)).wait().unwrap();
    assert_eq!(pulling.wait().unwrap().tensor.bytes(), [2; 4]);
    // The old process stays away, even when its own job's daemon serves there again.
    assert_eq!(final_error(&old).to_string(), text);
}

#[test]
fn process_of_the_same_job_attaches_again() {
    for arguments in [&["--job", "same"][..], &[]] {
        let (place, daemon) = Daemon::start(arguments);
        let ps = options(&place, PS).attach().unwrap();
        ps.publish("w", 1, tensor(1)).wait().unwrap();
        let _daemon = succeed(&place, daemon, arguments);
        let worker = options(&place, WORKER).attach().unwrap();
        assert_eq!(worker.pull(PS, "w", 1).wait().unwrap().tensor.bytes(), [1; 4]);
    }
}

#[test]
fn client_of_another_job_is_refused_by_name() {
    let (place, daemon) = Daemon::start(&["--job", "here"]);
    let refused = |required: &str| {
        let error = options(&place, PS).job(job(required)).attach().unwrap_err();
        assert_eq!(error.code(), Code::PermissionDenied);
        error.to_string()
    };
    let text = refused("there");
    assert!(text.contains("serves job 'here', and this process belongs to job 'there'"), "{text}");
    let unnamed = Attach { job: RequiredJob::Unnamed, ..Attach::new(PS, ARENA_BYTES) };
    let error = attach(&place.socket(), &unnamed, false, Instant::now() + STUCK).unwrap_err();
    assert!(matches!(&error, AttachError::OtherJob { job: Some(name) } if *name == job("here")), "{error}");
    options(&place, PS).job(job("here")).attach().unwrap();
    let log = daemon.stop().stderr;
    let line = log.lines().find(|line| line.contains("a client was refused")).unwrap_or_else(|| panic!("{log}"));
    assert!(
        line.contains("this daemon serves job 'here', and the client that wants to be ps0:2222 job 'there'"),
        "{line}"
    );

    let (place, _daemon) = Daemon::start(&[]);
    let text = options(&place, PS).job(job("there")).attach().unwrap_err().to_string();
    assert!(text.contains("serves no named job, and this process belongs to job 'there'"), "{text}");
}

#[test]
fn replaced_process_is_told_and_stays_away() {
    let (place, mut daemon) = Daemon::start(&[]);
    let stale = options(&place, PS).attach().unwrap();
    let pending = stale.recv(WORKER, 1, "never sent");
    let taken = options(&place, PS).attach().unwrap_err();
    assert!(taken.to_string().contains("attach with replace=True"), "{taken}");
    let new = options(&place, PS).replace(true).attach().unwrap();
    let pid = std::process::id();
    let ended = pending.wait().unwrap_err().error;
    assert_eq!(ended.code(), Code::Unavailable);
    let text = ended.to_string();
    assert!(text.contains(&format!("process {pid} has replaced this one as ps0:2222")), "{text}");
    assert_eq!(final_error(&stale).to_string(), text);
    daemon.wait_for("; 1 client attached;");
    let log = daemon.log();
    let line = log.lines().find(|line| line.contains("a process replaced the one")).unwrap_or_else(|| panic!("{log}"));
    assert!(line.contains(&format!("task=\"ps0:2222\" pid={pid} replaced_pid={pid}")), "{line}");
    // After a restart, too, only the new process attaches again.
    let _daemon = succeed(&place, daemon, &[]);
    assert_eq!(final_error(&stale).to_string(), text);
    let worker = options(&place, WORKER).attach().unwrap();
    let stuck = Instant::now() + STUCK;
    while let Err(error) = new.publish("w", 1, tensor(3)).wait() {
        assert!(error.code() == Code::Unavailable && Instant::now() < stuck, "{error}");
    }
    assert_eq!(worker.pull(PS, "w", 1).wait().unwrap().tensor.bytes(), [3; 4]);
    // Without a process to replace it is an ordinary attach.
    drop(worker);
    let stuck = Instant::now() + STUCK;
    while let Err(error) = options(&place, WORKER).replace(true).attach() {
        assert!(Instant::now() < stuck, "{error}");
    }
}

#[test]
fn successor_of_another_job_does_not_take_over() {
    let (place, first) = Daemon::start(&["--job", "here"]);
    for arguments in [&["--take-over", "--job", "there"][..], &["--take-over"]] {
        let ended = Daemon::spawn_at(&place, "next", arguments).serving().err().expect("it is refused");
        assert_eq!(ended.code, Some(1), "{}", ended.stderr);
        assert!(ended.stderr.contains("this daemon serves job 'here', and the new one "), "{}", ended.stderr);
    }
    options(&place, PS).attach().unwrap();
    let next = Daemon::spawn_at(&place, "next", &["--take-over", "--job", "here"]).serving();
    next.unwrap_or_else(|ended| panic!("{}", ended.stderr));
    drop(first);
}

#[test]
fn peer_of_another_job_is_refused_in_both_logs() {
    let make = || {
        let places = [Place::new(), Place::new()];
        let map = format!("{PS}={}\n{WORKER}={}\n", places[0].address, places[1].address);
        places.iter().for_each(|place| place.replace_map(&map));
        places
    };
    let (places, daemons) = Daemon::start_in(make, |places| {
        let start = |place, task, job| Daemon::start_at(place, &["--job", job, "--task", task]);
        Ok([start(&places[0], PS, "here")?, start(&places[1], WORKER, "there")?])
    });
    let mut worker = Client::attach(&places[1], WORKER, PS);
    worker.recv(1, "k");
    let failed = worker.next();
    assert!(failed.contains("PermissionDenied") && failed.contains("job 'here'"), "{failed}");
    let output = places[1].run(&["check", "--probe", "--json", "--job", "there"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let probes = report["probes"].as_array().unwrap();
    let probe = probes.iter().find(|probe| probe["transport_address"] == places[0].address.as_str()).unwrap();
    assert_eq!((&probe["job"], &probe["verdict"]), (&"here".into(), &"will_not_work".into()), "{probe}");
    assert_eq!(probe["says"], "it serves job 'here', and this host job 'there'");
    let own = probes.iter().find(|probe| probe["transport_address"] == places[1].address.as_str()).unwrap();
    assert_eq!((&own["job"], &own["verdict"]), (&"there".into(), &"ok".into()), "{own}");
    let says = ["rejected a caller of another job", "a peer rejects this side, or is rejected"];
    for (daemon, says) in daemons.into_iter().zip(says) {
        let log = daemon.stop().stderr;
        let line = log.lines().find(|line| line.contains(says)).unwrap_or_else(|| panic!("{log}"));
        assert!(line.contains("serves job 'here', and its peer job 'there'"), "{line}");
    }
}

#[test]
fn job_is_shown_and_comes_from_the_environment() {
    let (place, _daemon) = Daemon::start(&["--job", "a-7"]);
    assert!(words(&place, &["stat"]).lines().next().unwrap().contains(", serving job 'a-7' for "));
    let shown: serde_json::Value = serde_json::from_str(&words(&place, &["stat", "--json"])).unwrap();
    assert_eq!(shown["job"], "a-7");
    let checked = |job: &str| {
        let output = place.command(&["check", "--json"]).env("SEALANE_JOB", job).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    assert!(checked("b-8").1.contains("b-8"));
    assert!(!checked("").1.is_empty());
    let long = "x".repeat(65);
    for bad in ["a b", "é", long.as_str()] {
        let (code, _, stderr) = checked(bad);
        assert_eq!(code, Some(2), "{stderr}");
        assert!(stderr.contains("SEALANE_JOB") && stderr.contains("1 to 64 printable ASCII"), "{stderr}");
        let flag = place.fail(2, &["daemon", "--job", bad]);
        assert!(flag.contains("1 to 64 printable ASCII characters without spaces"), "{flag}");
    }
}
