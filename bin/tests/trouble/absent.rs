//! A peer whose daemon does not run: calls report it at their deadlines, and the log reports it once.

use std::time::Duration;

use sealane::{Attach, Code, RecvOptions};

use crate::fixture::{Daemon, PS, Place, STUCK, WORKER};
use crate::hosts::Hosts;
use crate::tensors::{STEP, tensor, verify};
use crate::traces::eventually;

/// Longer than it takes until the log calls a peer unreachable.
const PATIENCE: Duration = Duration::from_secs(2);

#[test]
fn a_peer_whose_name_has_no_address_is_named_with_what_its_resolver_says() {
    let address = "no-such-host.invalid:7000";
    let (place, daemon) = Daemon::start_in(
        || {
            let place = Place::new();
            place.replace_map(&format!("{PS}={address}\n{WORKER}={}\n", place.address));
            place
        },
        |place| Daemon::start_at(place, &["--task", WORKER]),
    );
    let worker = Attach::new(WORKER).socket(place.socket()).timeout(STUCK).attach().unwrap();
    let options = RecvOptions { timeout: Some(PATIENCE), ..RecvOptions::default() };
    let error = worker.recv_with(PS, STEP, "k", options).wait().unwrap_err().error;
    let told = error.to_string();
    assert_eq!(error.code(), Code::DeadlineExceeded, "{told}");
    // Where no resolver can be reached, the failure takes long.
    let [failed, waits] = ["resolve the host name: ", "its host name is being looked up, for "]
        .map(|why| told.contains(&format!("{PS} at {address}: {why}")));
    assert!(failed || waits, "{told}");
    drop(worker);
    daemon.stop();
}

#[test]
fn a_peer_that_is_absent_is_named_by_every_call_and_once_by_the_log() {
    let mut hosts = Hosts::start(&[&[PS], &[WORKER]]);
    let worker = hosts.attach(WORKER);
    let address = hosts.place(PS).address.clone();
    hosts.kill(PS);
    for key in ["one", "another"] {
        let options = RecvOptions { timeout: Some(PATIENCE), ..RecvOptions::default() };
        let error = worker.recv_with(PS, STEP, key, options).wait().unwrap_err().error;
        let told = error.to_string();
        assert_eq!(error.code(), Code::DeadlineExceeded, "{told}");
        let whom = format!("{PS} at {address}: connect: Connection refused");
        assert!(told.contains(&whom) && told.contains(" tries in "), "{told}");
    }
    let lines = |hosts: &mut Hosts, text: &str| hosts.daemon(WORKER).log().matches(text).count();
    assert_eq!(lines(&mut hosts, "a peer cannot be reached"), 1, "{}", hosts.daemon(WORKER).log());

    let waits = worker.recv(PS, STEP, "later");
    hosts.restart(PS);
    let ps = hosts.attach(PS);
    let sending = ps.send(WORKER, STEP, "later", tensor(1, 64));
    verify(&waits.wait().unwrap(), 1, 64);
    sending.wait().unwrap();
    eventually("the log tells that it is back", || lines(&mut hosts, "a peer can be reached again") == 1);
    assert_eq!(lines(&mut hosts, "a peer cannot be reached"), 1);
    drop((ps, worker));
    hosts.drain();
}

#[test]
fn recvs_from_a_killed_daemon_end_until_it_is_back() {
    let mut hosts = Hosts::start(&[&[PS], &[WORKER]]);
    let (ps, worker) = (hosts.attach(PS), hosts.attach(WORKER));
    let sending = ps.send(WORKER, STEP, "linked", tensor(1, 64));
    verify(&worker.recv(PS, STEP, "linked").wait().unwrap(), 1, 64);
    sending.wait().unwrap();
    let waits = |key| worker.recv_with(PS, STEP, key, RecvOptions { timeout: Some(STUCK), ..RecvOptions::default() });
    let before = waits("before");
    hosts.kill(PS);
    for receiving in [before, waits("after")] {
        let error = receiving.wait().unwrap_err().error;
        let told = error.to_string();
        assert_eq!(error.code(), Code::Unavailable, "{told}");
        assert!(told.contains("it was connected") && told.contains("Connection refused"), "{told}");
    }
    eventually("the outage is logged", || hosts.daemon(WORKER).log().contains("a peer cannot be reached"));
    hosts.restart(PS);
    let sending = ps.send(WORKER, STEP, "later", tensor(2, 64));
    verify(&waits("later").wait().unwrap(), 2, 64);
    sending.wait().unwrap();
    drop((ps, worker));
    hosts.drain();
}
