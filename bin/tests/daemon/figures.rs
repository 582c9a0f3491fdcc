//! What a daemon shows about itself: over HTTP, and to `sealane stat`.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;

use crate::fixture::{Daemon, PS, Place, STUCK, WORKER};

/// A daemon with metrics at a port that the system picked; the address is the last value.
fn start() -> (Place, Daemon, String) {
    let (place, daemon) = Daemon::start(&["--metrics", "127.0.0.1:0"]);
    let log = daemon.log();
    let (_, url) = log.split_once("metrics at http://").expect("the daemon says where");
    let address = url.split('/').next().expect("it has a path").to_owned();
    (place, daemon, address)
}

/// The status and the body of a response.
pub fn ask(address: &str, method: &str, path: &str) -> (u16, String) {
    let (status, _, body) = ask_as(address, method, path, "");
    (status, body)
}

/// The status, the head and the body of a response to a request with these further headers.
fn ask_as(address: &str, method: &str, path: &str, headers: &str) -> (u16, String, String) {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(STUCK)).unwrap();
    write!(socket, "{method} {path} HTTP/1.1\r\nHost: {address}\r\n{headers}Connection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    (head.split(' ').nth(1).unwrap().parse().unwrap(), head.to_owned(), body.to_owned())
}

/// The samples of a scrape by name and labels.
pub fn samples(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(name, value)| (name.into(), value.parse().unwrap()))
        .collect()
}

/// The output of a command that must succeed.
pub fn words(place: &Place, arguments: &[&str]) -> String {
    let output = place.run(arguments);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Moves one tensor from one task of the place to the other.
fn move_a_tensor(place: &Place) {
    let attach =
        |task| sealane::Attach::new(task).socket(place.socket()).arena_bytes(1 << 16).timeout(STUCK).attach().unwrap();
    let (ps, worker) = (attach(PS), attach(WORKER));
    let tensor = sealane::Tensor::from_elements(&[1000], &[1.0_f32; 1000]).unwrap();
    let sending = ps.send(WORKER, 1, "w", tensor);
    worker.recv(PS, 1, "w").wait().unwrap();
    sending.wait().unwrap();
}

#[test]
fn metrics_tell_what_moved_and_for_whom() {
    let (place, daemon, address) = start();
    let (status, before) = ask(&address, "GET", "/metrics");
    assert_eq!((status, samples(&before)["sealane_tensors_total{shard=\"0\",direction=\"received\"}"]), (200, 0.0));
    move_a_tensor(&place);
    // Figures lag by some milliseconds.
    let until = std::time::Instant::now() + STUCK;
    let after = loop {
        let after = samples(&ask(&address, "GET", "/metrics").1);
        if after["sealane_tensors_total{shard=\"0\",direction=\"sent\"}"] == 1.0 {
            break after;
        }
        assert!(std::time::Instant::now() < until, "{after:#?}");
    };
    assert_eq!(after["sealane_tensor_bytes_total{shard=\"0\",direction=\"received\"}"], 4000.0);
    assert_eq!(after["sealane_call_seconds_count{shard=\"0\",operation=\"recv\",link=\"memory\"}"], 1.0);
    assert!(after["sealane_shard_turns_total{shard=\"0\"}"] > 0.0);
    assert_eq!(after["sealane_slab_size_bytes{shard=\"0\",pool=\"send\"}"], f64::from(1 << 20));
    daemon.stop();
}

#[test]
fn what_went_another_way_is_shown_beside_what_sealane_carried() {
    let (place, daemon, address) = start();
    let attach =
        |task| sealane::Attach::new(task).socket(place.socket()).arena_bytes(1 << 16).timeout(STUCK).attach().unwrap();
    let (ps, worker) = (attach(PS), attach(WORKER));
    let tensor = sealane::Tensor::from_elements(&[1000], &[1.0_f32; 1000]).unwrap();
    let sending = ps.send(WORKER, 1, "w", tensor);
    worker.recv(PS, 1, "w").wait().unwrap();
    sending.wait().unwrap();
    // The first report is sent at once, later ones after a second or when the task ends.
    worker.note_elsewhere("elsewhere:1", sealane::Direction::Received, 2, 10);
    ps.note_elsewhere(WORKER, sealane::Direction::Sent, 3, 12_000);
    let until = std::time::Instant::now() + STUCK;
    let of = |json: &serde_json::Value, task: &str, peer: &str| {
        let find = |list: &serde_json::Value, name: &str, wanted: &str| {
            list.as_array().and_then(|all| all.iter().find(|each| each[name] == wanted).cloned()).unwrap_or_default()
        };
        find(&find(&json["shards"][0]["clients"], "task", task)["peers"], "peer", peer)
    };
    let json = loop {
        let json: serde_json::Value = serde_json::from_str(&words(&place, &["stat", "--json"])).unwrap();
        let told = of(&json, PS, WORKER)["counters"]["elsewhere_bytes_sent"] == 12_000;
        if told && of(&json, WORKER, "elsewhere:1")["counters"]["elsewhere_tensors_received"] == 2 {
            break json;
        }
        assert!(std::time::Instant::now() < until, "{json:#}");
    };
    let shown = of(&json, PS, WORKER);
    assert_eq!((&shown["tensors_share"], &shown["bytes_share"]), (&0.25.into(), &0.25.into()), "{shown}");
    assert_eq!((&shown["counters"]["tensors_sent"], &shown["counters"]["bytes_sent"]), (&1.into(), &4000.into()));
    assert_eq!(of(&json, WORKER, PS)["counters"]["bytes_received"], 4000);
    assert_eq!(of(&json, WORKER, PS)["bytes_share"], 1.0);
    let text = words(&place, &["stat"]);
    let line = text.lines().find(|line| line.contains("12.0 kB")).expect("a line of that pair");
    assert!(line.starts_with(PS) && line.contains(WORKER) && line.contains("25%"), "{line}");
    let metrics = samples(&ask(&address, "GET", "/metrics").1);
    let sample = |name: &str| {
        metrics[&format!(
            "sealane_client_peer_{name}_total{{shard=\"0\",task=\"{PS}\",peer=\"{WORKER}\",direction=\"sent\"}}"
        )]
    };
    assert_eq!(["tensors", "bytes", "elsewhere_tensors", "elsewhere_bytes"].map(sample), [1.0, 4000.0, 3.0, 12_000.0]);
    daemon.stop();
}

#[test]
fn metrics_have_the_format_that_the_reader_accepts() {
    // As Prometheus asks.
    const OPEN_METRICS: &str =
        "Accept: application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.2\r\n";
    let (_place, daemon, address) = start();
    let (_, head, open) = ask_as(&address, "GET", "/metrics", OPEN_METRICS);
    assert!(head.contains("application/openmetrics-text; version=1.0.0"), "{head}");
    assert!(open.ends_with("# EOF\n") && open.contains("# TYPE sealane_tensors counter\n"), "{open}");
    let (_, head, text) = ask_as(&address, "GET", "/metrics", "Accept: */*\r\n");
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    assert!(!text.contains("# EOF") && text.contains("# TYPE sealane_tensors_total counter\n"), "{text}");
    let names = |page: &str| samples(page).into_keys().collect::<Vec<_>>();
    assert_eq!(names(&open), names(&text));
    daemon.stop();
}

#[test]
fn health_and_readiness_are_told_apart_from_what_is_not_there() {
    let (_place, daemon, address) = start();
    assert_eq!(ask(&address, "GET", "/healthz"), (200, "serving\n".into()));
    assert_eq!(ask(&address, "GET", "/readyz"), (200, "serving\n".into()));
    assert_eq!(ask(&address, "HEAD", "/readyz"), (200, String::new()));
    assert_eq!(ask(&address, "GET", "/secrets").0, 404);
    assert_eq!(ask(&address, "POST", "/metrics").0, 405);
    assert_eq!(ask(&address, "GET", "/").0, 200);
    daemon.stop();
}

#[test]
fn an_address_that_somebody_chose_must_be_free() {
    let (place, daemon, address) = start();
    let error = place.fail(1, &["daemon", "--socket", "other.sock", "--metrics", &address, "--task", PS]);
    assert!(error.contains(&format!("metrics cannot be served at {address}")), "{error}");
    assert!(place.fail(2, &["daemon", "--metrics", "everywhere"]).contains("an IP address with a port"), "{error}");
    daemon.stop();
}

#[test]
fn stat_shows_the_daemon_in_words_and_as_json() {
    let (place, daemon, _) = start();
    move_a_tensor(&place);
    // Figures lag by some milliseconds.
    let until = std::time::Instant::now() + STUCK;
    let json = loop {
        let json: serde_json::Value = serde_json::from_str(&words(&place, &["stat", "--json"])).unwrap();
        if json["shards"][0]["counters"]["tensors_received"] == 1 {
            break json;
        }
        assert!(std::time::Instant::now() < until, "{json:#}");
    };
    let text = words(&place, &["stat"]);
    for part in ["serving for", "2 tasks at", "Shards", "Calls", "recv  memory"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    assert_eq!(json["schema"], "sealane-stat/1");
    assert_eq!((&json["state"], json["tasks"].as_array().unwrap().len()), (&"serving".into(), 2));
    assert!(place.fail(2, &["stat", "--watch"]).contains("needs a terminal"));
    daemon.stop();
    let gone = place.fail(1, &["stat"]);
    assert!(gone.contains("start one with `sealane daemon`"), "{gone}");
}
