//! The trace of a daemon: a file for timeline viewers.

use crate::fixture::{Daemon, PS, STUCK, WORKER};

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
