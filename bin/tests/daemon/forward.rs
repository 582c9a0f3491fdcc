//! `sealane forward` carries connections between two hosts, for programs that know nothing of Sealane.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Instant;

use crate::fixture::{Daemon, PS, Place, STUCK, WORKER};
use crate::pushed::{two_hosts, two_hosts_with};

/// More than the windows of a stream and its sockets hold.
const LARGE: usize = 20 << 20;

/// A forwarder and its output. Killed when dropped.
struct Forwarder {
    child: Child,
    says: String,
    then: BufReader<ChildStdout>,
}

impl Forwarder {
    fn start(place: &Place, arguments: &[&str]) -> Forwarder {
        Forwarder::of(&mut place.command(&[&["forward"], arguments].concat()))
    }

    fn of(command: &mut Command) -> Forwarder {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut says = String::new();
        let mut then = BufReader::new(child.stdout.take().unwrap());
        then.read_line(&mut says).unwrap();
        Forwarder { child, says, then }
    }

    /// Its metrics for that peer: open connections, all connections, broken ones, and bytes sent and received.
    fn metrics(&mut self, peer: &str) -> [u64; 5] {
        if !self.says.contains("metrics at") {
            self.then.read_line(&mut self.says).unwrap();
        }
        let address = self.says.split("metrics at http://").nth(1).and_then(|rest| rest.split('/').next()).unwrap();
        let mut connection = TcpStream::connect(address).unwrap();
        connection.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut page = String::new();
        connection.read_to_string(&mut page).unwrap();
        let value = |name: &str| {
            let start = format!("sealane_forward_{name}{{peer=\"{peer}\"}} ");
            let line = page.lines().find_map(|line| line.strip_prefix(&start));
            line.unwrap_or_else(|| panic!("no {name} in {page}")).parse().unwrap()
        };
        ["connections_open", "connections_total", "connections_reset_total", "sent_bytes_total", "received_bytes_total"]
            .map(value)
    }

    /// Connects to its listening address.
    fn connect(&self) -> TcpStream {
        let address = self.says.strip_prefix("connections to ").and_then(|rest| rest.split(' ').next());
        let connection = TcpStream::connect(address.expect(&self.says)).unwrap();
        connection.set_read_timeout(Some(STUCK)).unwrap();
        connection
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Accepts connections and echoes each until its end; the address.
fn echo() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for connection in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || std::io::copy(&mut &connection, &mut &connection));
        }
    });
    address
}

#[test]
fn connections_are_carried_between_hosts_and_end_as_they_would() {
    connections_are_carried(two_hosts());
}

#[test]
fn connections_are_carried_where_memory_for_what_comes_is_least() {
    connections_are_carried(two_hosts_with(&["--set", "daemon.area_bytes=1MiB"]));
}

fn connections_are_carried((places, daemons): (Vec<Place>, Vec<Daemon>)) {
    let inward = Forwarder::start(&places[0], &["--task", PS, "--target", &echo()]);
    assert!(inward.says.starts_with("connections that are carried to ps0:2222 are made to 127.0.0.1:"));
    let outward = Forwarder::start(&places[1], &["--task", WORKER, "--listen", "127.0.0.1:0", "--to", PS]);
    let bytes: Vec<u8> = (0..LARGE).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect();
    thread::scope(|scope| {
        for len in [0, 1, 5000, LARGE] {
            let (mut connection, sent) = (outward.connect(), &bytes[..len]);
            let mut writing = connection.try_clone().unwrap();
            scope.spawn(move || {
                writing.write_all(sent).unwrap();
                // One direction ends; bytes still come the other way.
                writing.shutdown(Shutdown::Write).unwrap();
            });
            let mut came = Vec::new();
            connection.read_to_end(&mut came).unwrap();
            assert!(came == sent, "{} of {len} bytes came back, or others", came.len());
        }
    });
    // A connection that is open when the other forwarder is killed breaks off instead of ending cleanly.
    let mut open = outward.connect();
    open.write_all(b"hello").unwrap();
    open.read_exact(&mut [0; 5]).unwrap();
    drop(inward);
    open.read_to_end(&mut Vec::new()).unwrap_err();
    // The next forwarder is used at once.
    let inward = Forwarder::start(&places[0], &["--task", PS, "--target", &echo()]);
    let mut open = outward.connect();
    open.write_all(b"hello").unwrap();
    open.read_exact(&mut [0; 5]).unwrap();
    drop(outward);
    open.read_to_end(&mut Vec::new()).unwrap_err();
    drop((open, inward));
    daemons.into_iter().for_each(|daemon| drop(daemon.stop()));
}

#[test]
fn a_job_is_told_where_its_other_tasks_are() {
    let (places, daemons) = two_hosts();
    let inward = Forwarder::start(&places[0], &["--task", PS, "--target", &echo()]);
    let config =
        format!(r#"{{"cluster":{{"ps":["{PS}"],"worker":["{WORKER}"]}},"task":{{"type":"worker","index":0}}}}"#);
    let map = ["--task", WORKER, "--map", "--endpoint-map", ".endpoint_map"];
    let start =
        |config: &str| Forwarder::of(places[1].command(&[&["forward"], &map[..]].concat()).env("TF_CONFIG", config));
    let outward = start(&config);
    let told: serde_json::Value = serde_json::from_str(&outward.says).unwrap();
    assert_eq!(told["cluster"]["worker"][0], WORKER);
    assert_eq!(told["task"]["type"], "worker");
    let mut connection = TcpStream::connect(told["cluster"]["ps"][0].as_str().unwrap()).unwrap();
    connection.set_read_timeout(Some(STUCK)).unwrap();
    connection.write_all(b"hello").unwrap();
    connection.read_exact(&mut [0; 5]).unwrap();
    drop((connection, outward));
    // Without a job, the tasks and their addresses are printed.
    let outward = start("");
    let told: serde_json::Value = serde_json::from_str(&outward.says).unwrap();
    assert!(told.as_object().unwrap().keys().eq([PS]), "{told}");
    drop((inward, outward));
    daemons.into_iter().for_each(|daemon| drop(daemon.stop()));
}

#[test]
fn a_target_that_is_not_there_breaks_connections_off() {
    let (places, daemons) = two_hosts();
    // A target where nobody listens: only privileged programs may use that port.
    let inward = Forwarder::start(&places[0], &["--task", PS, "--target", "127.0.0.1:1"]);
    let outward = Forwarder::start(&places[1], &["--task", WORKER, "--listen", "127.0.0.1:0", "--to", PS]);
    outward.connect().read_to_end(&mut Vec::new()).unwrap_err();
    drop((inward, outward));
    daemons.into_iter().for_each(|daemon| drop(daemon.stop()));
}

#[test]
fn what_is_not_said_is_asked_for() {
    let place = Place::new();
    for (arguments, said) in [
        (&["--task", PS][..], "<--listen <ADDRESS>|--map|--target <ADDRESS>>"),
        (&["--task", PS, "--listen", "127.0.0.1:0"], "--to"),
        (&["--task", PS, "--to", WORKER, "--target", "127.0.0.1:1"], "--listen"),
        (&["--task", PS, "--map", "--listen", "127.0.0.1:0", "--to", WORKER], "--map"),
        (&["--target", "127.0.0.1:1"], "--task"),
    ] {
        let error = place.fail(2, &[&["forward"], arguments].concat());
        assert!(error.contains(said), "{error}");
    }
    let error = place.fail(1, &["forward", "--task", PS, "--target", "127.0.0.1:1"]);
    assert!(error.contains("sealane daemon"), "{error}");
}

#[test]
fn what_was_carried_is_in_the_forwarders_metrics() {
    let (places, daemons) = two_hosts();
    let inward = Forwarder::start(&places[0], &["--task", PS, "--target", &echo()]);
    let flags = ["--task", WORKER, "--listen", "127.0.0.1:0", "--to", PS, "--metrics", "127.0.0.1:0"];
    let mut outward = Forwarder::start(&places[1], &flags);
    let mut open = outward.connect();
    for len in [5_u64, 3000] {
        open.write_all(&vec![7; len as usize]).unwrap();
        open.read_exact(&mut vec![0; len as usize]).unwrap();
    }
    assert_eq!(outward.metrics(PS), [1, 1, 0, 3005, 3005]);
    drop(inward);
    open.read_to_end(&mut Vec::new()).unwrap_err();
    // The other forwarder has closed it by now, or is about to.
    let stuck = Instant::now() + STUCK;
    while outward.metrics(PS) != [0, 1, 1, 3005, 3005] {
        assert!(Instant::now() < stuck, "{:?}", outward.metrics(PS));
    }
    drop(outward);
    daemons.into_iter().for_each(|daemon| drop(daemon.stop()));
}
