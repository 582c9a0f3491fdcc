//! Clients that attach, are refused, misbehave and die.

use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{MsgFlags, recv, send};
use nix::unistd::{Pid, dup};
use sealane_transport::Code;
use sealane_transport::shm::attach::{Attach, attach};

use crate::fixture::{ARENA_BYTES, Daemon, IDLE_CONNECTIONS, PS, Place, STUCK, WORKER, connection};

/// More bytes than a message may have.
const LONG_BYTES: usize = 70 * 1024;

/// The environment variable that gives a process of this test binary the socket to attach at.
const CLIENT_VARIABLE: &str = "SEALANE_TEST_CLIENT";

#[test]
fn a_task_is_served_once_and_only_if_it_is_served_here() {
    let (place, mut daemon) = Daemon::start(&["--set", "daemon.clients_max=1"]);
    let unknown = place.refused(&Attach::new("ps9:2222", ARENA_BYTES));
    assert_eq!(unknown.code(), Code::NotFound);
    assert!(unknown.to_string().contains("this daemon serves ps0:2222, worker0:2222"), "{unknown}");
    let first = place.attach(PS).unwrap();
    let full = place.refused(&Attach::new(WORKER, ARENA_BYTES));
    assert_eq!(full.to_string(), "daemon.clients_max is full: 1 client attached");
    drop(first);
    daemon.wait_for("; 0 clients attached;");
    place.attach(PS).unwrap();
}

#[test]
fn a_second_attach_names_the_process_of_the_first() {
    let (place, _daemon) = Daemon::start(&["--set", "daemon.arena_bytes_max=1MiB"]);
    let _first = place.attach(PS).unwrap();
    let second = place.refused(&Attach::new(PS, ARENA_BYTES));
    assert_eq!(second.code(), Code::Unavailable);
    assert!(second.to_string().contains(&format!("process {} is already attached", std::process::id())), "{second}");
    let large = place.refused(&Attach::new(WORKER, (1 << 20) + 1));
    assert_eq!(large.code(), Code::ResourceExhausted);
    assert!(large.to_string().starts_with("daemon.arena_bytes_max is full"), "{large}");
    let version = place.refused(&Attach { version: 999, ..Attach::new(WORKER, ARENA_BYTES) });
    assert!(version.to_string().contains("version 999"), "{version}");
    assert_eq!(place.attach(WORKER).unwrap().welcome.arena_bytes, ARENA_BYTES);
}

/// The daemon's answer before it hangs up.
fn answers(socket: &OwnedFd) -> String {
    let mut all = String::new();
    let mut buffer = [0; 4096];
    loop {
        match recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
            Ok(0) | Err(_) => return all,
            Ok(len) => all += std::str::from_utf8(&buffer[..len]).unwrap(),
        }
    }
}

#[test]
fn garbage_ends_a_connection_and_nothing_else() {
    let (place, daemon) = Daemon::start(&[]);
    let _attached = place.attach(PS).unwrap();
    let half = br#"{"request":"attach","version":1,"task":"#;
    let long = vec![b' '; LONG_BYTES];
    for garbage in [b"garbage".as_slice(), b"{}", &[0xff; 100], half, &long] {
        let socket = connection(&place.socket());
        send(socket.as_raw_fd(), garbage, MsgFlags::MSG_NOSIGNAL).unwrap();
        let answers = answers(&socket);
        assert!(answers.contains("refused"), "{answers}");
    }
    // An empty message is read like the end of the connection.
    let socket = connection(&place.socket());
    send(socket.as_raw_fd(), b"", MsgFlags::MSG_NOSIGNAL).unwrap();
    assert_eq!(answers(&socket), "");
    drop(connection(&place.socket()));
    place.attach(WORKER).unwrap();
    assert_eq!(daemon.stop().code, Some(0));
}

#[test]
fn a_client_that_talks_again_is_let_go() {
    let (place, mut daemon) = Daemon::start(&[]);
    let attached = place.attach(PS).unwrap();
    send(attached.socket.as_raw_fd(), b"and another thing", MsgFlags::MSG_NOSIGNAL).unwrap();
    daemon.wait_for("; 0 clients attached;");
    assert_eq!(answers(&attached.socket), "");
    place.attach(PS).unwrap();
}

#[test]
fn idle_connections_do_not_keep_clients_out() {
    let (place, daemon) = Daemon::start(&[]);
    let idle: Vec<OwnedFd> = (0..IDLE_CONNECTIONS).map(|_| connection(&place.socket())).collect();
    place.attach(PS).unwrap();
    drop(idle);
    let ended = daemon.stop();
    assert_eq!(ended.code, Some(0));
    assert!(ended.stderr.contains("dropped connection"), "{}", ended.stderr);
}

/// Clients that attach, each with an arena of [`CROWD_ARENA_BYTES`], and how many of them at the same time.
const CROWD: usize = 300;
const CROWD_AT_ONCE: usize = 100;

/// Bytes of such an arena. If the daemon allocated them, the crowd would take seconds of its control thread and 19 GB.
const CROWD_ARENA_BYTES: u64 = 64 << 20;

#[test]
fn crowd_of_clients_attaches_at_once() {
    let names: Vec<String> = (0..CROWD).map(|number| format!("worker{number}:2222")).collect();
    let make = || {
        let place = Place::new();
        place.replace_map(&names.iter().map(|name| format!("{name}={}\n", place.address)).collect::<String>());
        place
    };
    let (place, daemon) =
        Daemon::start_in(make, |place| Daemon::start_at(place, &["--set", "daemon.clients_max=1000"]));
    // The transport function does not retry: each connection must be served.
    let attach = |name: &str| {
        let wish = Attach::new(name, CROWD_ARENA_BYTES);
        attach(&place.socket(), &wish, false, Instant::now() + STUCK)
    };
    let attached: Vec<_> = thread::scope(|scope| {
        let parts = names.chunks(CROWD / CROWD_AT_ONCE);
        let attach_part = |part: &[String]| part.iter().map(|name| attach(name)).collect::<Vec<_>>();
        let threads: Vec<_> = parts.map(|part| scope.spawn(move || attach_part(part))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let failed: Vec<_> = attached.iter().filter_map(|attached| attached.as_ref().err()).collect();
    assert!(failed.is_empty(), "{failed:?}");
    drop(attached);
    assert_eq!(daemon.stop().code, Some(0));
}

/// The process that other tests start, which attaches and is killed.
#[test]
#[ignore = "it is a process of other tests"]
fn the_client_process_of_other_tests() {
    let socket = std::env::var_os(CLIENT_VARIABLE).expect("the socket is given");
    let wish = Attach::new(PS, ARENA_BYTES);
    let attached = attach(Path::new(&socket), &wish, false, Instant::now() + STUCK).unwrap();
    // The child inherits a copy of the socket, and lives as long as its standard input is open.
    let _inherited = dup(&attached.socket).unwrap();
    let mut child = Command::new("cat").stdin(Stdio::inherit()).stdout(Stdio::null()).spawn().unwrap();
    // The test harness captures standard output.
    eprintln!("attached");
    child.wait().unwrap();
}

/// An attached process whose child holds the socket open until standard input ends.
fn client_process(socket: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "clients::the_client_process_of_other_tests", "--ignored", "--nocapture"]);
    command.env(CLIENT_VARIABLE, socket).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut process = command.spawn().unwrap();
    let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "attached"));
    process
}

#[test]
fn a_client_that_is_killed_is_let_go_even_if_a_child_holds_its_socket() {
    let (place, mut daemon) = Daemon::start(&[]);
    let mut process = client_process(&place.socket());
    daemon.wait_for("; 1 client attached;");
    let taken = place.refused(&Attach::new(PS, ARENA_BYTES));
    assert!(taken.to_string().contains(&format!("process {} is already attached", process.id())), "{taken}");
    kill(Pid::from_raw(process.id() as i32), Signal::SIGKILL).unwrap();
    daemon.wait_for("; 0 clients attached;");
    place.attach(PS).unwrap();
    process.wait().unwrap();
    let ended = daemon.stop();
    let line = ended.stderr.lines().find(|line| line.contains("client detached")).unwrap();
    let pid = process.id();
    assert!(line.contains(&format!("pid={pid} ")) && line.contains("its process is gone"), "{line}");
}
