//! `sealane check --measure`: daemons that measure their links while clients use them.

use std::process::{Child, Stdio};
use std::time::Instant;

use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use sealane::Tensor;
use sealane_transport::shm::attach::measure;
use serde_json::Value;

use crate::fixture::{ARENA_BYTES, Daemon, PS, Place, STUCK, WORKER};

/// Two daemons with one task each, as on two hosts.
fn two_daemons() -> ([Place; 2], [Daemon; 2]) {
    let make = || {
        let places = [Place::new(), Place::new()];
        let map = format!("{PS}={}\n{WORKER}={}\n", places[0].address, places[1].address);
        places.iter().for_each(|place| place.replace_map(&map));
        places
    };
    Daemon::start_in(make, |places| {
        let start = |place, task| Daemon::start_at(place, &["--task", task]);
        Ok([start(&places[0], PS)?, start(&places[1], WORKER)?])
    })
}

fn report(place: &Place, task: &str) -> Value {
    // A peer that is stopped does not answer the probe, either.
    let quickly = "transport.handshake_timeout_ms=100";
    let output = place.run(&["check", "--probe", "--measure", "--json", "--task", task, "--set", quickly]);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn links_are_measured_while_a_client_uses_them() {
    let (places, daemons) = two_daemons();
    let attach = |place: &Place, task| {
        sealane::Attach::new(task).socket(place.socket()).arena_bytes(ARENA_BYTES).timeout(STUCK).attach().unwrap()
    };
    let (ps, worker) = (attach(&places[0], PS), attach(&places[1], WORKER));
    let mut check: Child = places[1]
        .command(&["check", "--probe", "--measure", "--json", "--task", WORKER])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut step = 0;
    while check.try_wait().unwrap().is_none() {
        step += 1;
        let sending = ps.send(WORKER, step, "w", Tensor::from_elements(&[1000], &[step as f32; 1000]).unwrap());
        let tensor = worker.recv(PS, step, "w").wait().unwrap();
        assert_eq!(tensor.elements::<f32>().unwrap()[999], step as f32);
        sending.wait().unwrap();
    }
    let report: Value = serde_json::from_slice(&check.wait_with_output().unwrap().stdout).unwrap();
    let measured = report["measured"].as_array().unwrap();
    let [peer] = &measured[..] else { panic!("{measured:?}") };
    let texts = ["transport_address", "task", "link", "limit", "verdict"].map(|name| peer[name].as_str().unwrap());
    assert_eq!(texts, [places[0].address.as_str(), PS, "tcp", "same_host", "ok"], "{peer}");
    let number = |name: &str| peer[name].as_f64().unwrap_or_else(|| panic!("{name} of {peer}"));
    assert!(number("rtt_p50_us") > 0.0 && number("rtt_p99_us") >= number("rtt_p50_us"), "{peer}");
    assert!(number("sent_gigabytes_per_s") > 0.0 && number("bursts") >= 1.0, "{peer}");
    assert!(number("mtu_bytes") > 1500.0 && peer["congestion"].is_string(), "{peer}");
    // Nothing is left for which a drain would wait.
    drop((ps, worker));
    for daemon in daemons {
        assert_eq!(daemon.stop().code, Some(0));
    }
}

#[test]
fn measurement_names_peers_that_do_not_answer() {
    let (places, [ps, _worker]) = two_daemons();
    // Connects the two.
    measure(&places[1].socket(), Instant::now() + STUCK).unwrap();
    ps.signal(Signal::SIGSTOP);
    let stopped = WaitStatus::Stopped(ps.pid(), Signal::SIGSTOP);
    assert_eq!(waitpid(ps.pid(), Some(WaitPidFlag::WUNTRACED)), Ok(stopped));
    let report = report(&places[1], WORKER);
    let peer = &report["measured"][0];
    assert_eq!((&peer["verdict"], &peer["limit"]), (&"ok".into(), &Value::Null), "{peer}");
    let says = peer["says"].as_str().unwrap();
    assert!(says.contains("is connected and did not answer a measurement within 1.5s"), "{says}");
    ps.signal(Signal::SIGCONT);
}

#[test]
fn second_measurement_at_once_is_refused() {
    let (places, _daemons) = two_daemons();
    let stuck = Instant::now() + STUCK;
    // The second request may be delayed until the first measurement has ended.
    let refused = loop {
        let socket = places[1].socket();
        let both = [socket.clone(), socket].map(|socket| std::thread::spawn(move || measure(&socket, stuck)));
        let answers = both.map(|one| one.join().unwrap());
        if let Some(refused) = answers.iter().find_map(|answer| answer.as_ref().err()) {
            break refused.to_string();
        }
        assert!(Instant::now() < stuck, "both measured: {answers:?}");
    };
    assert!(refused.contains("one is in progress; try again in ten seconds"), "{refused}");
}

#[test]
fn measuring_without_a_daemon_names_the_remedy() {
    let place = Place::new();
    let report = report(&place, PS);
    assert_eq!(report["measured"], Value::Null);
    let findings = report["findings"].as_array().unwrap();
    let finding = findings.iter().find(|finding| finding["name"] == "measurement").unwrap();
    assert_eq!(
        (&finding["verdict"], &finding["remedy"]["command"]),
        (&"will_not_work".into(), &"sealane daemon".into())
    );
}
