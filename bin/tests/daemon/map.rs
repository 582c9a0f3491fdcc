//! The endpoint map of a running daemon.

use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::fixture::{Daemon, PS, free_address};

#[test]
fn a_new_map_is_taken_when_its_file_is_replaced_and_new_tasks_are_served() {
    let (place, mut daemon) = Daemon::start(&[]);
    assert!(place.attach("worker1:2222").is_err());
    place.replace_map(&format!("{}worker1:2222={}\n", place.map(), place.address));
    daemon.wait_for("RELOADING=1\nMONOTONIC_USEC=");
    daemon.wait_for("serves 3 tasks at ");
    place.attach("worker1:2222").unwrap();
    place.attach(PS).unwrap();
}

#[test]
fn a_new_map_is_taken_at_a_signal() {
    let (place, daemon) = Daemon::start(&[]);
    daemon.stop();
    // The map's file is elsewhere, where nothing is watched.
    std::fs::create_dir(place.path("elsewhere")).unwrap();
    std::fs::rename(place.path(".endpoint_map"), place.path("elsewhere/map")).unwrap();
    std::os::unix::fs::symlink("elsewhere/map", place.path(".endpoint_map")).unwrap();
    let mut daemon = Daemon::start_at(&place, &["--task", PS]).unwrap_or_else(|ended| panic!("{}", ended.stderr));
    let map = format!("{}worker1:2222={}\n", place.map(), place.address);
    std::fs::write(place.path("elsewhere/map"), map).unwrap();
    daemon.signal(Signal::SIGHUP);
    // Tasks that were named on the command line are not joined by others.
    let told = daemon.wait_for("; 3 tasks in the endpoint map");
    assert!(told.contains("serves 1 task at "), "{told}");
}

#[test]
fn a_bad_map_is_shown_and_the_old_one_stays() {
    let (place, mut daemon) = Daemon::start(&[]);
    // The second is a file at the moment after an editor truncates it and before it writes.
    for bad in ["ps0:2222=127.0.0.1:0\n", ""] {
        place.replace_map(bad);
        daemon.wait_for("RELOADING=1");
        let told = daemon.wait_for("READY=1");
        assert!(told.contains("; 2 tasks in the endpoint map"), "{told}");
    }
    place.attach(PS).unwrap();
    let ended = daemon.stop();
    let stays = |line: &&str| line.contains("the previous endpoint map stays in use");
    let lines: Vec<_> = ended.stderr.lines().filter(stays).collect();
    for (line, why) in lines.iter().zip([".endpoint_map:1:20: the port is 0", ".endpoint_map:1:1: there is no task"]) {
        assert!(line.contains(why), "{line}");
    }
    assert_eq!(lines.len(), 2, "{}", ended.stderr);
}

#[test]
fn named_pipe_in_place_of_the_map_is_refused() {
    let (place, mut daemon) = Daemon::start(&[]);
    mkfifo(&place.path("pipe"), Mode::S_IRWXU).unwrap();
    std::fs::rename(place.path("pipe"), place.path(".endpoint_map")).unwrap();
    daemon.wait_for("RELOADING=1");
    let ready = daemon.wait_for("READY=1");
    assert!(ready.contains("; 2 tasks in the endpoint map"), "{ready}");
    assert!(daemon.log().contains("it is not a regular file"), "{}", daemon.log());
    place.attach(PS).unwrap();
    assert_eq!(daemon.stop().code, Some(0));
}

#[test]
fn what_a_running_daemon_cannot_take_from_a_new_map_is_warned_of() {
    let (place, mut daemon) = Daemon::start(&[]);
    let elsewhere = free_address();
    place.replace_map(&format!("{PS}={}\nps1:2222={elsewhere}\n", place.address));
    daemon.wait_for("RELOADING=1");
    let told = daemon.wait_for("READY=1");
    assert!(told.contains("serves 2 tasks at "), "{told}");
    let ended = daemon.stop();
    let has = |text: &str| ended.stderr.lines().any(|line| line.contains("WARN") && line.contains(text));
    assert!(has("worker0:2222") && has(&elsewhere), "{}", ended.stderr);
}

#[test]
fn a_running_daemon_answers_a_probe() {
    let (place, daemon) = Daemon::start(&[]);
    let output = place.run(&["check", "--probe", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let probe = &report["probes"][0];
    assert_eq!(probe["transport_address"], place.address.as_str());
    assert_eq!((&probe["verdict"], &probe["link"], &probe["shards"]), (&"ok".into(), &"loopback".into(), &1.into()));
    assert_eq!(probe["tasks"], serde_json::json!([PS, crate::fixture::WORKER]));
    assert!(probe["connect_us"].is_u64() && probe["greet_us"].is_u64());
    daemon.stop();
}
