//! One daemon takes the place of another, or fails to: afterwards one serves, and nobody was refused in between.

use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::sys::socket::{MsgFlags, recv, send};
use sealane_transport::Code;
use sealane_transport::shm::attach::{AttachError, Successor, VERSION};

use crate::fixture::{Daemon, PS, Place, STUCK, WORKER, connection};
use crate::life::waiting_send;

/// For what is to fail because its time is over.
const SHORT: Duration = Duration::from_millis(50);

fn soon() -> Instant {
    Instant::now() + STUCK
}

fn announce(place: &Place) -> Successor {
    Successor::announce(&place.socket(), None, soon()).unwrap().0
}

/// The daemon serves clients and peers, ends when it is told to, and leaves nothing.
fn serves_to_the_end(place: &Place, daemon: Daemon) {
    let attached = place.attach(PS).unwrap();
    assert_eq!(attached.welcome.daemon_pid, daemon.pid().as_raw() as u32);
    TcpStream::connect(&place.address).unwrap();
    drop(attached);
    let ended = daemon.stop();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(!place.socket().exists() && !place.path("sealane.sock.lock").exists());
}

#[test]
fn the_next_daemon_takes_over_and_nobody_is_refused() {
    let (place, mut first) = Daemon::start(&["--metrics", "127.0.0.1:0"]);
    let _attached = place.attach(PS).unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let calling = |call: Box<dyn Fn() -> Result<(), String> + Send>| {
        let over = over.clone();
        thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                call()?;
            }
            Ok::<_, String>(())
        })
    };
    let (address, socket) = (place.address.clone(), place.socket());
    let callers = [
        calling(Box::new(move || TcpStream::connect(&address).map(drop).map_err(|error| error.to_string()))),
        calling(Box::new(move || {
            let shown = sealane_transport::shm::attach::show(&socket, soon());
            shown.map(drop).map_err(|error| error.to_string())
        })),
    ];
    let next = Daemon::spawn_at(&place, "next", &["--take-over", "--metrics", "127.0.0.1:0"]);
    let next = next.serving().unwrap_or_else(|ended| panic!("{}", ended.stderr));
    assert!(first.wait_for("MAINPID=").contains(&next.pid().to_string()));
    let ended = first.ended();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("another daemon has taken over"), "{}", ended.stderr);
    over.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.join().unwrap().unwrap();
    }
    let third = place.fail(1, &["daemon"]);
    assert!(third.contains(&format!("a daemon (process {}) already serves ", next.pid())), "{third}");
    serves_to_the_end(&place, next);
}

#[test]
fn without_a_daemon_there_is_none_to_take_over_from() {
    let (place, daemon) = Daemon::start(&["--take-over"]);
    assert!(daemon.log().contains("there is none to take over from"), "{}", daemon.log());
    serves_to_the_end(&place, daemon);
}

#[test]
fn a_successor_that_fails_before_it_is_prepared_changes_nothing() {
    let (place, daemon) = Daemon::start(&[]);
    let attached = place.attach(WORKER).unwrap();
    drop(announce(&place));
    // Its own mistake is found before the first daemon is asked to drain.
    let (other, taken) = (place.path("other"), TcpListener::bind("127.0.0.1:0").unwrap());
    std::fs::write(&other, format!("{PS}={}\n", taken.local_addr().unwrap())).unwrap();
    let failed =
        place.fail(1, &["daemon", "--take-over", "--metrics", "off", "--endpoint-map", other.to_str().unwrap()]);
    assert!(failed.contains("cannot listen on"), "{failed}");
    assert!(!daemon.log().contains("drains"), "{}", daemon.log());
    drop(attached);
    serves_to_the_end(&place, daemon);
}

#[test]
fn a_successor_that_fails_during_the_drain_leaves_a_daemon_that_serves() {
    let (place, mut daemon) = Daemon::start(&["--set", "daemon.drain_timeout_ms=86400000"]);
    let (mut ps, worker) = waiting_send(&place);
    let mut successor = announce(&place);
    let late = successor.inherit(Instant::now() + SHORT).unwrap_err();
    assert!(matches!(late, AttachError::TimedOut), "{late}");
    daemon.wait_for("STATUS=hands over");
    drop(successor);
    daemon.wait_for("READY=1");
    // Its clients were told, and attach again.
    assert_eq!(ps.next_before_the_end().as_deref(), Some("Draining"));
    drop((ps, worker));
    assert!(daemon.log().contains("the daemon that was to take over has failed"), "{}", daemon.log());
    daemon.wait_for("; 0 clients attached;");
    let (_ps, mut worker) = waiting_send(&place);
    worker.recv(2, "never");
    assert!(worker.next().starts_with("ArrivedAlone { call: 2, "));
    drop((_ps, worker));
    daemon.wait_for("; 0 clients attached;");
    serves_to_the_end(&place, daemon);
}

#[test]
fn what_is_asked_while_a_successor_fails_is_done_after_it() {
    let (place, mut daemon) = Daemon::start(&["--set", "daemon.drain_timeout_ms=86400000"]);
    let clients = waiting_send(&place);
    let hand_over = |daemon: &mut Daemon| {
        let mut successor = announce(&place);
        successor.inherit(Instant::now() + SHORT).unwrap_err();
        daemon.wait_for("STATUS=hands over");
        successor
    };
    let successor = hand_over(&mut daemon);
    // Both are taken in their order: a daemon that has said how it stands has seen the file change.
    place.replace_map(&format!("{}worker1:2222={}\n", place.map(), place.address));
    daemon.signal(Signal::SIGHUP);
    drop(successor);
    let status = daemon.wait_for("serves 3 tasks at ");
    drop(clients);
    // The clients leave a drained daemon by themselves, perhaps before the map is read.
    if !status.contains("; 0 clients attached;") {
        daemon.wait_for("; 0 clients attached;");
    }
    let clients = waiting_send(&place);
    let successor = hand_over(&mut daemon);
    daemon.signal(Signal::SIGTERM);
    daemon.signal(Signal::SIGHUP);
    drop(successor);
    daemon.wait_for("STATUS=drains");
    drop(clients);
    assert_eq!(daemon.ended().code, Some(0));
}

#[test]
fn a_successor_that_fails_with_the_sockets_in_its_hands_leaves_a_daemon_that_serves() {
    let (place, mut daemon) = Daemon::start(&["--metrics", "127.0.0.1:0"]);
    let mut successor = announce(&place);
    let inherited = successor.inherit(soon()).unwrap();
    assert_eq!(inherited.listeners.len(), 1);
    assert!(inherited.metrics.is_some());
    // Whoever calls now waits in the sockets.
    let caller = TcpStream::connect(&place.address).unwrap();
    let waiting = connection(&place.socket());
    drop((inherited, successor));
    daemon.wait_for("READY=1");
    let request = format!(r#"{{"request":"show","version":{VERSION}}}"#);
    send(waiting.as_raw_fd(), request.as_bytes(), MsgFlags::empty()).unwrap();
    let mut answer = [0; 4096];
    let len = recv(waiting.as_raw_fd(), &mut answer, MsgFlags::empty()).unwrap();
    assert!(answer[..len].starts_with(br#"{"answer":"figures""#), "{}", String::from_utf8_lossy(&answer[..len]));
    drop((caller, waiting));
    serves_to_the_end(&place, daemon);
}

#[test]
fn of_two_successors_one_takes_over() {
    let (place, daemon) = Daemon::start(&[]);
    let (mut first, mut second) = (announce(&place), announce(&place));
    let _inherited = first.inherit(soon()).unwrap();
    let refused = second.inherit(soon()).unwrap_err();
    let AttachError::Refused(error) = &refused else { panic!("{refused}") };
    assert_eq!(error.code(), Code::Unavailable);
    assert!(refused.to_string().contains("takes over from it already"), "{refused}");
    drop((first, second, _inherited));
    // Two that are started at once: whoever wins, one serves in the end.
    let both = ["second", "third"].map(|name| Daemon::spawn_at(&place, name, &["--take-over"]));
    let ended = daemon.ended();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let served = both.map(Daemon::serving);
    let serving = place.attach(PS).unwrap().welcome.daemon_pid;
    let winner = served.into_iter().flatten().find(|daemon| daemon.pid().as_raw() as u32 == serving);
    serves_to_the_end(&place, winner.expect("it is one of the two"));
}

#[test]
fn a_predecessor_that_dies_while_it_drains_is_replaced() {
    let (place, mut first) = Daemon::start(&["--set", "daemon.drain_timeout_ms=86400000"]);
    let _clients = waiting_send(&place);
    let next = Daemon::spawn_at(&place, "next", &["--take-over"]);
    first.wait_for("STATUS=hands over");
    first.signal(Signal::SIGKILL);
    assert_eq!(first.ended().code, None);
    let next = next.serving().unwrap_or_else(|ended| panic!("{}", ended.stderr));
    assert!(next.log().contains("the daemon that was to hand over has ended"), "{}", next.log());
    serves_to_the_end(&place, next);
}

#[test]
fn a_signal_ends_a_successor_before_it_takes_over() {
    let (place, mut first) = Daemon::start(&["--set", "daemon.drain_timeout_ms=86400000"]);
    let clients = waiting_send(&place);
    let next = Daemon::spawn_at(&place, "next", &["--take-over"]);
    first.wait_for("STATUS=hands over");
    next.signal(Signal::SIGTERM);
    // The drain ends with the call.
    drop(clients);
    let ended = next.ended();
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("stopped by a signal before it took over"), "{}", ended.stderr);
    first.wait_for("READY=1");
    serves_to_the_end(&place, first);
}

#[test]
fn another_version_of_the_hand_over_is_refused_with_what_to_do() {
    let (place, daemon) = Daemon::start(&[]);
    let other = connection(&place.socket());
    send(other.as_raw_fd(), br#"{"request":"take_over","version":99,"more":1}"#, MsgFlags::empty()).unwrap();
    let mut answer = [0; 4096];
    let len = recv(other.as_raw_fd(), &mut answer, MsgFlags::empty()).unwrap();
    let answer = String::from_utf8_lossy(&answer[..len]);
    assert!(answer.starts_with(r#"{"answer":"refused""#), "{answer}");
    assert!(
        answer.contains("the new daemon speaks version 99 of the hand-over, this one 1; stop this one"),
        "{answer}"
    );
    drop(other);
    serves_to_the_end(&place, daemon);
}

#[test]
fn a_signal_has_a_daemon_start_the_next_one() {
    let (place, mut first) = Daemon::start(&[]);
    first.signal(Signal::SIGUSR2);
    let told = first.wait_for("MAINPID=");
    let next = told.split_once("MAINPID=").and_then(|(_, pid)| pid.lines().next()?.parse().ok());
    let ended = first.ended();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("the next daemon is started, to take over"), "{}", ended.stderr);
    assert_eq!(Some(place.attach(PS).unwrap().welcome.daemon_pid), next);
    let drained = place.run(&["drain"]);
    assert!(drained.status.success(), "{}", String::from_utf8_lossy(&drained.stderr));
    assert!(!place.socket().exists() && !place.path("sealane.sock.lock").exists());
}
