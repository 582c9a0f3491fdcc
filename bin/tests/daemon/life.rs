//! Start, stop, drain, and what is left behind.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::Signal;

use sealane_transport::Code;
use sealane_transport::shm::attach::Attach;

use crate::fixture::{ARENA_BYTES, Daemon, PS, Place, WORKER};
use crate::rings::Client;

#[test]
fn a_daemon_serves_until_a_signal_and_leaves_no_socket() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let (place, mut daemon) = Daemon::start(&[]);
        assert_eq!(fs::metadata(place.socket()).unwrap().permissions().mode() & 0o777, 0o600);
        let attached = place.attach(PS).unwrap();
        assert_eq!((attached.welcome.shards, attached.welcome.daemon_pid), (1, daemon.pid().as_raw() as u32));
        daemon.wait_for("; 1 client attached;");
        daemon.signal(signal);
        daemon.wait_for("STOPPING=1");
        let ended = daemon.ended();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert!(!place.socket().exists() && !place.path("sealane.sock.lock").exists());
        let (address, socket) = (&place.address, place.socket());
        let line =
            format!("sealane daemon: serves {PS}, {WORKER} at {address}; clients attach at {}", socket.display());
        assert!(ended.stderr.lines().any(|told| told == line), "{}", ended.stderr);
        // A log for people has no colours here, and names no part of the program.
        assert!(!["\u{1b}", "::"].iter().any(|part| ended.stderr.contains(part)), "{}", ended.stderr);
    }
}

#[test]
fn daemon_serves_while_nobody_reads_its_log() {
    let (_reader, mut writer) = std::io::pipe().unwrap();
    let room = fcntl(&writer, FcntlArg::F_GETPIPE_SZ).unwrap() as usize;
    writer.write_all(&vec![b'.'; room]).unwrap();
    let (place, daemon) = Daemon::start_in(Place::new, |place| {
        let log = writer.try_clone().unwrap().into();
        Daemon::spawn_with_log(place, "first", &["--log", "trace"], log).serving()
    });
    let attached = place.attach(PS).unwrap();
    drop((attached, place.attach(WORKER).unwrap()));
    assert_eq!(daemon.stop().code, Some(0));
}

#[test]
fn a_second_daemon_is_told_of_the_first() {
    let (place, daemon) = Daemon::start(&[]);
    let second = place.fail(1, &["daemon"]);
    let begin = format!("a daemon (process {}) already serves {}; ", daemon.pid(), place.socket().display());
    assert!(second.starts_with(&begin), "{second}");
    place.attach(PS).unwrap();
    // At another socket it finds the port in use, and takes that socket away again.
    let other = place.path("other.sock");
    let port = place.fail(1, &["daemon", "--socket", other.to_str().unwrap()]);
    assert!(port.contains("cannot listen on"), "{port}");
    assert!(!other.exists() && !place.path("other.sock.lock").exists());
}

/// A send that nobody asks for, known to be in flight: a later one of the same client has arrived.
pub fn waiting_send(place: &Place) -> (Client, Client) {
    let mut ps = Client::attach(place, PS, WORKER);
    let mut worker = Client::attach(place, WORKER, PS);
    ps.send(1, "never");
    ps.send(2, "soon");
    worker.recv(1, "soon");
    assert!(worker.next().starts_with("ArrivedAlone { call: 1, "));
    assert_eq!(ps.next(), "Sent { calls: [2] }");
    (ps, worker)
}

#[test]
fn a_drain_waits_for_calls_that_are_under_way_and_takes_no_new_ones() {
    let (place, mut daemon) = Daemon::start(&["--set", "daemon.drain_timeout_ms=86400000"]);
    let (ps, mut worker) = waiting_send(&place);
    daemon.signal(Signal::SIGTERM);
    daemon.wait_for("STOPPING=1");
    assert_eq!(worker.next(), "Draining");
    worker.recv(2, "late");
    let late = worker.next();
    assert!(late.starts_with("Failed { call: 2, ") && late.contains("Unavailable"), "{late}");
    // With its client the call ends.
    drop(ps);
    let ended = daemon.ended();
    assert_eq!(ended.code, Some(0));
    assert!(ended.stderr.contains("the daemon is drained"), "{}", ended.stderr);
}

#[test]
fn a_drain_ends_calls_that_take_too_long() {
    let (place, daemon) = Daemon::start(&["--set", "daemon.drain_timeout_ms=1"]);
    let (mut ps, _worker) = waiting_send(&place);
    let ended = daemon.stop();
    assert_eq!(ended.code, Some(0));
    assert!(
        ended.stderr.contains(
            "the drain timeout has passed: calls in progress end, and what nobody has accepted is lost left=1 "
        ),
        "{}",
        ended.stderr
    );
    assert_eq!(ps.next_before_the_end().as_deref(), Some("Draining"));
    let told = ps.next_before_the_end();
    assert!(told.as_ref().is_none_or(|told| told.starts_with("Failed { call: 1, ")), "{told:?}");
}

#[test]
fn signals_that_come_together_are_one_request_to_drain() {
    let (place, mut daemon) = Daemon::start(&["--set", "daemon.drain_timeout_ms=86400000"]);
    let (_ps, mut worker) = waiting_send(&place);
    // `timeout` and a terminal signal a process and its group. Stopped, it sees both at once, however busy this machine is.
    for signal in [Signal::SIGSTOP, Signal::SIGTERM, Signal::SIGINT, Signal::SIGCONT] {
        daemon.signal(signal);
    }
    daemon.wait_for("STOPPING=1");
    assert_eq!(worker.next(), "Draining");
    let refused = place.refused(&Attach::new("worker1:2222", ARENA_BYTES));
    assert!(refused.to_string().contains("it is draining"), "{refused}");
}

#[test]
fn a_log_in_json_has_nothing_else() {
    let (place, daemon) = Daemon::start(&["--log-format", "json"]);
    let second = place.run(&["daemon", "--log-format", "json"]);
    let first = daemon.stop().stderr;
    let second = String::from_utf8(second.stderr).unwrap();
    for line in first.lines().chain(second.lines()) {
        let line: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(line["level"].is_string() && line["message"].is_string(), "{line}");
        let drains = line["message"] == "the daemon drains";
        assert!(!drains || (&line["level"], &line["asked_by"]) == (&"INFO".into(), &"a signal".into()), "{line}");
    }
    assert!(first.contains("the daemon drains"), "{first}");
    assert!(first.contains(&format!("serves {PS}, {WORKER} at ")), "{first}");
    assert!(second.contains("already serves"), "{second}");
}

#[test]
fn a_draining_daemon_refuses_clients_and_a_second_signal_ends_it() {
    let (place, mut daemon) = Daemon::start(&["--set", "daemon.drain_timeout_ms=86400000"]);
    let (_ps, worker) = waiting_send(&place);
    daemon.signal(Signal::SIGTERM);
    daemon.wait_for("STOPPING=1");
    drop(worker);
    let refused = place.refused(&Attach::new(WORKER, ARENA_BYTES));
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.to_string().contains("it is draining"), "{refused}");
    let slow = place.fail(1, &["drain", "--timeout-s", "5"]);
    assert!(slow.contains("was asked to drain, but it has not exited in time"), "{slow}");
    let ended = daemon.stop();
    assert_eq!(ended.code, Some(0));
    assert!(ended.stderr.contains("second signal: the daemon exits without waiting"), "{}", ended.stderr);
}
