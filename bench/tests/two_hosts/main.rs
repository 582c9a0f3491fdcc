//! Measurements between two hosts: network namespaces that are joined by a cable. Tests that need root are skipped without it.

mod cable;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::Duration;
use std::{fs, io};

use nix::unistd::geteuid;
use serde_json::Value as Json;
use tempfile::TempDir;

use cable::{Cable, HOSTS, Quality};

const PROGRAM: &str = env!("CARGO_BIN_EXE_sealane-bench");
const SHORT: [&str; 4] = ["--rounds", "1", "--seconds", "0.1"];
const GOOD: Quality = Quality { delay: Duration::from_micros(50), lost_per_mille: 0, mtu: 9000 };

/// `sealane bench serve`, and its address. Dropping it ends the process.
struct Server {
    process: Child,
    address: String,
    /// Kept open, since the process prints to it.
    _stdout: BufReader<ChildStdout>,
}

impl Server {
    fn start(mut command: Command, arguments: &[&str]) -> Server {
        let mut process =
            command.arg("serve").args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (mut stdout, mut line) = (BufReader::new(process.stdout.take().unwrap()), String::new());
        stdout.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ").unwrap_or_else(|| panic!("{line:?}")).to_owned();
        Server { process, address, _stdout: stdout }
    }

    /// On this host, at a port that the system chooses.
    fn here(arguments: &[&str]) -> Server {
        Server::start(Command::new(PROGRAM), &[&["--listen", "127.0.0.1:0"], arguments].concat())
    }

    fn measure(&self, command: Command, bench: &[&str]) -> Output {
        let connect = ["--connect", &self.address];
        measure(command, &[bench, &connect, &SHORT].concat())
    }

    /// The lines that it writes to standard error until it has served a consumer.
    fn log(mut self) -> Vec<String> {
        let mut lines = BufReader::new(self.process.stderr.take().unwrap()).lines().map(Result::unwrap);
        let mut log = Vec::new();
        while !log.last().is_some_and(|line: &String| line.starts_with("finished serving")) {
            log.push(lines.next().expect("it serves until it is killed"));
        }
        log
    }

    /// The producers that run now.
    fn producers(&self) -> String {
        let id = self.process.id();
        let tasks = fs::read_dir(format!("/proc/{id}/task")).unwrap();
        let children = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("children")).unwrap_or_default());
        children.collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn measure(mut command: Command, arguments: &[&str]) -> Output {
    command.args(arguments).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn report(output: &Output) -> Json {
    assert!(output.status.success(), "{}", stderr(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The median round trip of each system.
fn medians(report: &Json) -> Vec<(String, f64)> {
    let rows = report["results"].as_array().unwrap();
    rows.iter().filter_map(|row| Some((row["system"].as_str()?.to_owned(), row["p50"].as_f64()?))).collect()
}

fn secret(place: &TempDir, name: &str, byte: char) -> PathBuf {
    let file = place.path().join(name);
    fs::write(&file, byte.to_string().repeat(40)).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    file
}

/// True if this process may make namespaces; says so otherwise.
fn is_root() -> bool {
    let is_root = geteuid().is_root();
    if !is_root {
        eprintln!("skipped: only root can join two network namespaces");
    }
    is_root
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn round_trips_take_the_cable_twice() {
    if !is_root() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let secret = secret(&place, "secret", 's');
    let access = ["--secret-file", text(&secret)];
    for (delay_us, lost_per_mille, mtu) in [(50_u32, 0, 1500), (50, 1, 9000), (5000, 0, 9000), (5000, 1, 1500)] {
        let cable = Cable::new(Quality { delay: Duration::from_micros(delay_us.into()), lost_per_mille, mtu });
        let listen = format!("{}:0", HOSTS[1]);
        let server = Server::start(cable.command(1, PROGRAM), &[&["--listen", &listen], &access[..]].concat());
        let bench = [&["latency", "--baseline", "raw", "--baseline", "grpc", "--json", "-"], &access[..]].concat();
        let report = report(&server.measure(cable.command(0, PROGRAM), &bench));
        let medians = medians(&report);
        let names: Vec<&str> = medians.iter().map(|(system, _)| &**system).collect();
        assert_eq!(names, ["sealane", "raw", "grpc"]);
        for (system, p50) in &medians {
            // Sealane's producer sends a small tensor when the last one was taken, which may be before it is requested.
            let ways = if system == "sealane" { 1.0 } else { 2.0 };
            assert!(*p50 >= ways * f64::from(delay_us), "{system} over {delay_us} µs: {p50}");
        }
        for machine in ["machine", "producer_machine"] {
            assert!(report[machine]["kernel"].is_string() && report[machine]["pinned"][0].is_number(), "{report}");
        }
    }
}

#[test]
fn every_bench_measures_between_two_hosts() {
    if !is_root() {
        return;
    }
    let cable = Cable::new(GOOD);
    let listen = format!("{}:0", HOSTS[1]);
    let server = Server::start(cable.command(1, PROGRAM), &["--listen", &listen, "--insecure"]);
    for (bench, metrics) in [
        ("rate --baseline raw --baseline grpc-stream", &["tensors_per_s"][..]),
        ("rate --fuse push", &["tensors_per_s"]),
        (
            "bandwidth --size 256KiB --baseline raw --baseline stream",
            &["gigabytes_per_s", "cpu_s_per_gigabyte", "producer_cpu_s_per_gigabyte"],
        ),
        ("latency --security tls --baseline open", &["rtt_us"]),
        ("fuse --tensors 20 --baseline raw --baseline grpc", &["step_ms"]),
        (
            "ps --workers 3 --ps 2 --workload dlrm_kaggle --baseline grpc",
            &["steps_per_s", "bytes_per_step", "ps_rss_mib"],
        ),
        ("collectives --ranks 4 --size 4KiB", &["call_us"]),
        ("collectives --call send --ranks 3", &["call_us"]),
        ("rows --rows 1000 --tables 2 --batch 10 --baseline raw --baseline grpc", &["rows_per_s"]),
    ] {
        let arguments: Vec<&str> = bench.split(' ').chain(["--json", "-"]).collect();
        let report = report(&server.measure(cable.command(0, PROGRAM), &arguments));
        let rows = report["results"].as_array().unwrap();
        for metric in metrics {
            let mut values = rows.iter().filter(|row| row["metric"] == *metric);
            let has_moved = |row: &Json| row["value"].as_f64().or(row["p50"].as_f64()).is_some_and(|value| value > 0.0);
            assert!(values.clone().count() > 0 && values.all(has_moved), "{bench}: {metric} in {rows:?}");
        }
    }
    let sweep = ["sweep", "--size", "64..256", "--json", "-"];
    let reports = report(&server.measure(cable.command(0, PROGRAM), &sweep));
    let benches: Vec<&str> =
        reports.as_array().unwrap().iter().map(|report| report["bench"].as_str().unwrap()).collect();
    assert_eq!(benches, ["latency", "bandwidth", "latency", "bandwidth"]);
    assert_eq!(server.producers(), "", "a producer stays");
}

/// A daemon on one of the hosts. Dropping it ends the process.
struct Daemon(Child);

impl Daemon {
    fn start(cable: &Cable, host: usize, place: &TempDir) -> Daemon {
        let program = Path::new(PROGRAM).with_file_name("sealane");
        let (map, socket) = (place.path().join("map"), place.path().join(host.to_string()));
        let mut command = cable.command(host, text(&program));
        command.args(["daemon", "--metrics", "off", "--set", "security.insecure=true"]);
        command.args(["--endpoint-map", text(&map), "--socket", text(&socket)]).stdout(Stdio::null());
        let mut daemon = command.stderr(Stdio::piped()).spawn().unwrap();
        let log = BufReader::new(daemon.stderr.as_mut().unwrap());
        let serves = log.lines().map(Result::unwrap).any(|line| line.contains("clients attach at"));
        assert!(serves, "{} does not serve; is it built?", program.display());
        Daemon(daemon)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn clients_of_two_daemons_are_measured() {
    if !is_root() {
        return;
    }
    let (cable, place) = (Cable::new(GOOD), tempfile::tempdir().unwrap());
    let [here, there] = HOSTS;
    fs::write(place.path().join("map"), format!("worker0:1={here}:7000\nps0:1={there}:7000\n")).unwrap();
    let _daemons = [0, 1].map(|host| Daemon::start(&cable, host, &place));
    let sockets = [0, 1].map(|host| place.path().join(host.to_string()));
    let listen = format!("{there}:0");
    let served = ["--listen", &listen, "--insecure", "--socket", text(&sockets[1])];
    let server = Server::start(cable.command(1, PROGRAM), &served);
    let measure = |bench: &str, tasks| {
        let daemon = ["--daemon", tasks, "--socket", text(&sockets[0]), "--json", "-"];
        let arguments: Vec<&str> = bench.split(' ').chain(daemon).collect();
        server.measure(cable.command(0, PROGRAM), &arguments)
    };
    for (bench, metric) in [
        ("latency --baseline raw", "rtt_us"),
        ("latency --size 64KiB --polling off --baseline raw", "rtt_us"),
        ("rate --baseline raw", "tensors_per_s"),
        ("bandwidth --size 1MiB --baseline raw", "gigabytes_per_s"),
        ("fuse --tensors 30 --baseline raw --baseline grpc", "step_ms"),
        ("fuse --workload dlrm_kaggle --fuse receive", "step_ms"),
        ("fuse --workload dlrm_kaggle --fuse off --window 3", "step_ms"),
        ("rows --rows 1000 --tables 2 --batch 10 --baseline raw --baseline grpc", "rows_per_s"),
        ("ps --workers 1 --ps 1 --workload dlrm_kaggle --baseline grpc", "steps_per_s"),
        ("ps --workers 1 --ps 1 --workload dlrm_kaggle --mode sync", "steps_per_s"),
        ("ps --workers 1 --ps 1 --workload dlrm_kaggle --mode sync --fuse receive --compute-us 100", "steps_per_s"),
        ("ps --workers 1 --ps 1 --workload dlrm_kaggle --fuse off --request-buffers 3", "steps_per_s"),
        ("ps --workers 1 --ps 1 --workload dlrm_kaggle --rows --table-rows-max 1000", "rows_per_s"),
    ] {
        let report = report(&measure(bench, "worker0:1,ps0:1"));
        let systems: BTreeSet<&str> = bench.split(" --baseline ").skip(1).chain(["sealane"]).collect();
        let rows = report["results"].as_array().unwrap().iter().filter(|row| row["metric"] == metric);
        assert!(
            rows.clone().map(|row| row["system"].as_str().unwrap()).collect::<BTreeSet<_>>() == systems,
            "{report}"
        );
        for row in rows {
            let is_through = row["variant"].as_str().unwrap().contains("through the daemons");
            assert_eq!(is_through, row["system"] == "sealane", "{bench}: {row}");
            assert!(row["value"].as_f64().or(row["p50"].as_f64()).unwrap() > 0.0, "{bench}: {row}");
        }
        assert_eq!(report["parameters"]["daemon"][1], "ps0:1");
    }
    // The daemon of this host does not serve ps0:1.
    let refused = measure("fuse", "ps0:1,worker0:1");
    assert!(!refused.status.success() && stderr(&refused).contains("ps0:1"), "{}", stderr(&refused));
}

#[test]
fn server_rejects_strangers_and_goes_on() {
    let place = tempfile::tempdir().unwrap();
    let [secret, other] = [secret(&place, "secret", 's'), secret(&place, "other", 'o')];
    let server = Server::here(&["--secret-file", text(&secret)]);
    let with = |more: &[&str]| server.measure(Command::new(PROGRAM), &[&["latency"], more].concat());
    // Three callers are silent, and three speak another protocol.
    let silent: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect(&server.address).unwrap()).collect();
    for garbage in [&b"GET / HTTP/1.1\r\nHost: bench\r\n\r\n"[..], &[0xff; 4096], &[0; 300]] {
        let mut stranger = TcpStream::connect(&server.address).unwrap();
        stranger.write_all(garbage).unwrap();
        match stranger.read_to_end(&mut Vec::new()) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionReset),
        }
    }
    for refused in [with(&[]), with(&["--secret-file", text(&other)])] {
        assert_eq!(refused.status.code(), Some(1), "{}", stderr(&refused));
        assert!(stderr(&refused).contains(&server.address), "{}", stderr(&refused));
    }
    let served = with(&["--secret-file", text(&secret)]);
    assert!(served.status.success(), "{}", stderr(&served));
    drop(silent);
    assert_eq!(server.producers(), "");
    let rejected = server.log().iter().filter(|line| line.starts_with("rejected a caller: ")).count();
    assert!(rejected >= 5, "{rejected}");
}

#[test]
fn second_consumer_is_told_that_the_first_is_served() {
    let server = Server::here(&[]);
    let mut first = Command::new(PROGRAM);
    first.args(["latency", "--connect", &server.address, "--seconds", "3600", "--rounds", "1"]);
    let mut first = first.stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    while server.producers().is_empty() {
        std::thread::yield_now();
    }
    let second = server.measure(Command::new(PROGRAM), &["latency"]);
    assert_eq!(second.status.code(), Some(1));
    assert!(stderr(&second).contains("serves another consumer"), "{}", stderr(&second));
    // A consumer that dies leaves nothing behind.
    first.kill().unwrap();
    first.wait().unwrap();
    while !server.producers().is_empty() {
        std::thread::yield_now();
    }
    let next = loop {
        let next = server.measure(Command::new(PROGRAM), &["latency"]);
        if next.status.success() || !stderr(&next).contains("serves another consumer") {
            break next;
        }
    };
    assert!(next.status.success(), "{}", stderr(&next));
}

#[test]
fn server_refuses_what_it_may_not_do() {
    let open = measure(Command::new(PROGRAM), &["serve", "--listen", "0.0.0.0:0"]);
    assert_eq!(open.status.code(), Some(2));
    for remedy in ["--secret-file", "--tls-certificate", "--insecure"] {
        assert!(stderr(&open).contains(remedy), "{}", stderr(&open));
    }
    let server = Server::here(&["--memory-max", "1MiB"]);
    for (bench, reason) in [
        ("bandwidth --size 1MiB", "at most 1048576 bytes"),
        ("collectives --ranks 64 --size 64KiB", "at most 1048576 bytes"),
        ("latency --link shm", "--link is shm"),
        ("fanin", "--connect is fanin"),
        ("latency --daemon w:1", "two different tasks"),
        ("fuse --daemon w:1,ps:1 --fuse turn", "give off or receive or plan with fuse and --daemon"),
        ("fanin --daemon w:1,ps:1", "--daemon is of fanin"),
        ("ps --daemon w:1,ps:1", "--workers is 50 with 5 ps; give 1 with 1 ps and --daemon"),
        ("rows --daemon w:1,ps:1 --baseline whole", "give raw or grpc with rows and --daemon"),
    ] {
        let arguments: Vec<&str> = bench.split(' ').collect();
        let refused = server.measure(Command::new(PROGRAM), &arguments);
        assert!(!refused.status.success() && stderr(&refused).contains(reason), "{bench}: {}", stderr(&refused));
    }
    let nobody = measure(Command::new(PROGRAM), &["latency", "--connect", "127.0.0.1:1"]);
    assert_eq!(nobody.status.code(), Some(1));
    assert!(stderr(&nobody).contains("127.0.0.1:1"), "{}", stderr(&nobody));
}
