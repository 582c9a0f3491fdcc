//! The trace of a daemon: a file for timeline viewers.

use std::time::Instant;

use serde_json::Value;

use crate::figures::words;
use crate::fixture::{Daemon, PS, Place, STUCK, WORKER};

/// Waits until `counter` of the daemon's shard is `of`.
fn until_waiting(place: &Place, counter: &str, of: u64) {
    let stuck = Instant::now() + STUCK;
    loop {
        let figures: Value = serde_json::from_str(&words(place, &["stat", "--json"])).unwrap();
        if figures["shards"][0]["counters"][counter] == of {
            return;
        }
        assert!(Instant::now() < stuck, "{counter} is never {of}: {figures}");
    }
}

#[test]
fn trace_and_counts_have_every_call() {
    let (place, daemon) = Daemon::start(&["--trace", "trace.json"]);
    let attach =
        |task| sealane::Attach::new(task).socket(place.socket()).arena_bytes(1 << 20).timeout(STUCK).attach().unwrap();
    let (ps, worker) = (attach(PS), attach(WORKER));
    let tensor = || sealane::Tensor::from_elements(&[2048], &[1.0_f32; 2048]).unwrap();
    for step in 0..3 {
        let asked = worker.recv(PS, step, "first");
        until_waiting(&place, "parked", 1);
        ps.send(WORKER, step, "first", tensor()).wait().unwrap();
        asked.wait().unwrap();
    }
    for step in 0..3 {
        let sending = ps.send(WORKER, step, "later", tensor());
        until_waiting(&place, "pending_sends", 1);
        worker.recv(PS, step, "later").wait().unwrap();
        sending.wait().unwrap();
    }
    // No task asks for this tensor.
    let unsent = ps.send(WORKER, 9, "unsent", tensor());
    until_waiting(&place, "pending_sends", 1);
    ps.abort(9, "it is not wanted").unwrap();
    unsent.wait().unwrap_err();
    let figures: Value = serde_json::from_str(&words(&place, &["stat", "--json"])).unwrap();
    let calls = figures["shards"][0]["calls"].as_array().unwrap();
    for operation in ["send", "recv"] {
        let of = calls.iter().find(|of| of["operation"] == operation).unwrap();
        assert_eq!((&of["took"]["count"], &of["link"]), (&6.into(), &"memory".into()), "{operation}: {figures}");
    }
    drop((ps, worker));
    assert_eq!(daemon.stop().code, Some(0));
    let text = std::fs::read_to_string(place.path("trace.json")).unwrap();
    let events: Vec<Value> = serde_json::from_str(&text).unwrap();
    let of = |phase: &str| {
        let spans = events.iter().filter(|event| event["ph"] == phase);
        let mut spans: Vec<_> = spans.map(|event| format!("{} {}", event["id"], event["name"])).collect();
        spans.sort();
        spans
    };
    assert_eq!(of("b"), of("e"), "{text}");
    let named = |name: &str| events.iter().filter(|event| event["ph"] == "b" && event["name"] == name).count();
    let names = ["send first", "recv first", "send later", "recv later", "send unsent"];
    assert_eq!(names.map(named), [3, 3, 3, 3, 1], "{text}");
}

#[test]
fn a_trace_follows_a_tensor_from_its_send_to_its_release() {
    let (place, daemon) = Daemon::start(&["--trace", "trace.json"]);
    let attach =
        |task| sealane::Attach::new(task).socket(place.socket()).arena_bytes(1 << 16).timeout(STUCK).attach().unwrap();
    let (ps, worker) = (attach(PS), attach(WORKER));
    let asked = worker.recv(PS, 7, "dense/kernel");
    ps.send(WORKER, 7, "dense/kernel", sealane::Tensor::from_elements(&[2], &[1.0_f32, 2.0]).unwrap()).wait().unwrap();
    asked.wait().unwrap();
    assert_eq!(daemon.stop().code, Some(0));
    let text = std::fs::read_to_string(place.path("trace.json")).unwrap();
    let events: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    let of = |phase: &str| {
        let spans = events.iter().filter(|event| event["ph"] == phase && event["cat"] == "recv");
        spans.map(|event| event["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(
        (of("b"), of("e")),
        (vec!["recv dense/kernel".to_owned()], vec!["recv dense/kernel".to_owned()]),
        "{text}"
    );
    let process = events.iter().find(|event| event["name"] == "process_name").unwrap();
    assert!(process["args"]["name"].as_str().unwrap().contains(PS), "{text}");
    let error = place.fail(2, &["daemon", "--trace", "no/such/directory/trace.json"]);
    assert!(error.starts_with("the trace no/such/directory/trace.json cannot be written"), "{error}");
}
