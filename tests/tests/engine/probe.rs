//! Callers that only want to know who is there: they get an answer, and no session begins or changes.

use std::net::SocketAddr;

use sealane_fusion::{Engine, EngineSettings};
use sealane_transport::authentication::Authentication;
use sealane_transport::tcp::{Dial, DialError, Dialed, Progress, TcpSettings};
use sealane_transport::wire::{Hello, RejectCode};

use crate::fixture::{assert_empty, carry, engines, hello, listener, map, port, settings, task};

/// Calls an engine with `hello` until it answers.
fn call(port: u16, hello: Hello, authentication: &Authentication) -> Result<Dialed, DialError> {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let peer = address.to_string().parse().unwrap();
    let mut dial = Dial::start(address, (&peer, hello), &TcpSettings::default(), authentication).unwrap();
    loop {
        match dial.poll()? {
            Progress::Done(dialed) => return Ok(dialed),
            Progress::Pending(pending) => dial = pending,
        }
        std::thread::yield_now();
    }
}

/// An engine of two tasks, and its port.
fn of_two_tasks(tweak: impl FnOnce(&mut EngineSettings)) -> (Engine, u16) {
    let listener = listener();
    let port = port(&listener);
    let mut settings = settings(map(&[port, port]), 0, listener);
    settings.tasks.push(task(1).parse().unwrap());
    settings.runtime.shards = 2;
    tweak(&mut settings);
    (Engine::start(settings).unwrap(), port)
}

#[test]
fn a_probe_is_told_who_is_there_and_no_session_begins() {
    let (engine, port) = of_two_tasks(|_| {});
    let open = Authentication::default();
    for _ in 0..3 {
        let welcome = call(port, Hello::probe(), &open).unwrap_or_else(|error| panic!("{error}")).welcome;
        assert_eq!((welcome.shards, welcome.tasks), (2, vec![task(0), task(1)]));
        assert_eq!(welcome.address, format!("127.0.0.1:{port}"));
        assert_eq!((welcome.incarnation, welcome.remembers, welcome.epoch), (0, 0, 0));
    }
    assert!(engine.counters().unwrap().iter().all(|shard| shard.links == 0));
    assert_empty(&engine);
    // A caller that is not a probe is refused because it gives no address.
    let no_probe = hello("", vec![]);
    let Err(DialError::Rejected(reject)) = call(port, no_probe, &open) else { panic!("not refused") };
    assert_eq!((reject.code, reject.reason.as_str()), (RejectCode::Refused, "'' is not a transport address"));
}

#[test]
fn a_probe_that_claims_a_peers_address_does_not_touch_its_session() {
    let [ps, worker]: [Engine; 2] = engines(2, |_, _| {}).try_into().ok().expect("two");
    carry((&ps, 0), (&worker, 1), 1, 64);
    let before: Vec<_> = ps.counters().unwrap().iter().map(|shard| (shard.links, shard.links_lost)).collect();
    let ours = ps.addresses()[0].port;
    let theirs = worker.addresses()[0].to_string();
    let claim = Hello { address: theirs, ..Hello::probe() };
    assert!(call(ours, claim, &Authentication::default()).is_ok());
    carry((&ps, 0), (&worker, 1), 2, 64);
    let after: Vec<_> = ps.counters().unwrap().iter().map(|shard| (shard.links, shard.links_lost)).collect();
    assert_eq!(before, after);
}

#[test]
fn a_probe_must_show_what_every_caller_must() {
    let secret = |text: &str| Authentication::secret_bytes(text.repeat(8).as_bytes()).unwrap();
    let (_engine, port) = of_two_tasks(|settings| settings.authentication = secret("this"));
    assert_eq!(call(port, Hello::probe(), &secret("this")).ok().unwrap().welcome.shards, 2);
    for wrong in [secret("that"), Authentication::default()] {
        let Err(error) = call(port, Hello::probe(), &wrong) else { panic!("told") };
        assert!(error.to_string().contains("security.secret_file"), "{error}");
    }
}

#[test]
fn a_probe_is_told_of_as_many_tasks_as_fit() {
    let listener = listener();
    let port = port(&listener);
    let ports = vec![port; 1000];
    let mut settings = settings(map(&ports), 0, listener);
    settings.tasks = (0..1000).map(|index| task(index).parse().unwrap()).collect();
    let _engine = Engine::start(settings).unwrap();
    let tasks = call(port, Hello::probe(), &Authentication::default()).ok().unwrap().welcome.tasks;
    let bytes: usize = tasks.iter().map(String::len).sum();
    assert!(tasks.len() < 1000 && bytes <= 8192 && bytes > 8192 - 16, "{bytes} bytes");
}
