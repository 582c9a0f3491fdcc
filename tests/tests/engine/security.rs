//! Who may talk to an engine, in whose name, and what callers cost that may not: the claims of the threat model in docs/security.md.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sealane_fusion::{Code, Counters, EndpointMap, Engine, EngineSettings, Error, StartError, loopback_addresses};
use sealane_transport::authentication::{Authentication, Authority};
use sealane_transport::wire::{Greeting, PROOF_BYTES};

use crate::fixture::{
    LONG, assert_empty, bytes, carry, engines, hello, listener, map, port, settings, task, tensor, until,
};

const DAY: Duration = Duration::from_secs(86_400);

fn secret(text: &str) -> Authentication {
    Authentication::secret_bytes(text.repeat(8).as_bytes()).unwrap()
}

/// Credentials that are certified for these tasks.
fn certified(authority: &Authority, tasks: &[usize]) -> Authentication {
    let tasks: Vec<_> = tasks.iter().map(|&index| task(index).parse().unwrap()).collect();
    let certified = authority.certify(&tasks, SystemTime::now() + DAY).unwrap();
    Authentication::certified(&authority.certificate(), &certified).unwrap()
}

/// Two engines with these credentials.
fn two_that_show(shown: [Authentication; 2]) -> [Engine; 2] {
    let two = engines(2, |index, settings| settings.authentication = shown[index].clone());
    two.try_into().ok().expect("two")
}

/// Tensors of all sizes move both ways.
fn assert_they_talk([ps, worker]: &[Engine; 2]) {
    let (ps_task, worker_task) = (ps.task(&task(0)).unwrap(), worker.task(&task(1)).unwrap());
    for (step, len) in [0, 1, 64, 8192, 8193, 100_000, 9 << 20].into_iter().enumerate() {
        let step = step as i64;
        let sending = ps_task.send(&task(1), step, "w", tensor(len, 1));
        assert_eq!(worker_task.recv(&task(0), step, "w").wait().unwrap().bytes(), bytes(len, 1));
        sending.wait().unwrap();
        let sending = worker_task.send(&task(0), step, "g", tensor(len, 2));
        assert_eq!(ps_task.recv(&task(1), step, "g").wait().unwrap().bytes(), bytes(len, 2));
        sending.wait().unwrap();
    }
    assert_empty(ps);
    assert_empty(worker);
}

/// The error that the worker gets when it is refused.
fn denied(worker: &Engine) -> String {
    let error = worker.task(&task(1)).unwrap().recv(&task(0), 1, "w").wait().unwrap_err().error;
    let Error::PermissionDenied { reason } = &error else { panic!("not denied: {error}") };
    assert_eq!(error.code(), Code::PermissionDenied);
    reason.to_string()
}

#[test]
fn engines_of_different_jobs_do_not_talk() {
    let of_jobs = |jobs: [Option<&str>; 2]| -> [Engine; 2] {
        let set = |index: usize, settings: &mut EngineSettings| {
            settings.job = jobs[index].map(|name: &str| name.parse().unwrap());
        };
        engines(2, set).try_into().ok().expect("two")
    };
    for jobs in [[Some("a"), Some("b")], [Some("a"), None], [None, Some("b")]] {
        let [_ps, worker] = of_jobs(jobs);
        let reason = denied(&worker);
        let shown = jobs.map(|job| job.map_or("no named job".into(), |name| format!("job '{name}'")));
        assert!(reason.contains(&format!("serves {}, and its peer {}", shown[0], shown[1])), "{reason}");
    }
    assert_they_talk(&of_jobs([Some("a"), Some("a")]));
}

fn callers(engine: &Engine) -> sealane_fusion::CallerCounters {
    // The first shard listens for all shards.
    engine.counters().unwrap()[0].callers
}

#[test]
fn whoever_shows_the_wrong_thing_or_nothing_is_denied_and_counted() {
    let (authority, other) = (Authority::new().unwrap(), Authority::new().unwrap());
    let good = certified(&authority, &[0]);
    let foreign = certified(&other, &[1]);
    let cases = [
        (secret("this"), secret("that")),
        (secret("this"), Authentication::default()),
        (Authentication::default(), secret("that")),
        (good.clone(), Authentication::default()),
        (good.clone(), secret("that")),
        (good, foreign),
    ];
    for (number, (ps, worker)) in cases.into_iter().enumerate() {
        let [ps, worker] = two_that_show([ps, worker]);
        let reason = denied(&worker);
        assert!(reason.contains("security.") || reason.contains("certificate"), "case {number}: {reason}");
        // A caller with a foreign authority notices it by itself.
        if number != 5 {
            assert!(callers(&ps).unauthenticated > 0, "case {number}");
        }
    }
}

#[test]
fn a_certificate_opens_no_other_tasks_name() {
    let authority = Authority::new().unwrap();
    // The worker is certified, but for task 7.
    let [ps, worker] = two_that_show([certified(&authority, &[0]), certified(&authority, &[7])]);
    let reason = denied(&worker);
    assert!(reason.contains("does not cover task task1:2222"), "{reason}");
    assert!(callers(&ps).unauthenticated > 0);
    // Nor does the ps accept it as the called side.
    let error = ps.task(&task(0)).unwrap().recv(&task(1), 1, "g").wait().unwrap_err().error;
    assert_eq!(error.code(), Code::PermissionDenied, "{error}");
    assert!(error.to_string().contains("does not cover task task1:2222"), "{error}");
}

#[test]
fn a_certified_task_cannot_take_anothers_address() {
    let authority = Authority::new().unwrap();
    let (ps, thief) = (listener(), listener());
    let ports = [port(&ps), port(&thief)];
    let mut on_ps = settings(map(&ports), 0, ps);
    on_ps.authentication = certified(&authority, &[0]);
    let _ps = Engine::start(on_ps).unwrap();
    // Task 2 gives its true name, but claims the address where the ps's map has task 1.
    let mut on_thief = settings(map(&[ports[0], port(&listener()), ports[1]]), 2, thief);
    on_thief.authentication = certified(&authority, &[2]);
    let thief = Engine::start(on_thief).unwrap();
    let error = thief.task(&task(2)).unwrap().recv(&task(0), 1, "w").wait().unwrap_err().error;
    assert_eq!(error.code(), Code::PermissionDenied, "{error}");
    assert!(error.to_string().contains("does not cover task task1:2222"), "{error}");
}

#[test]
fn a_task_that_a_new_map_adds_at_an_address_has_to_be_shown_anew() {
    let authority = Authority::new().unwrap();
    let (one, other) = (listener(), listener());
    let ports = [port(&one), port(&other)];
    let start = |index: usize, listener| {
        let mut settings = settings(map(&ports), index, listener);
        settings.authentication = certified(&authority, &[index]);
        Engine::start(settings).unwrap()
    };
    let engines = [start(0, one), start(1, other)];
    assert_they_talk(&engines);
    // The map now has task 2 at the address of task 1, which is not certified for it.
    let [ps, _worker] = &engines;
    ps.set_map(Arc::new(map(&[ports[0], ports[1], ports[1]])), &[]).unwrap();
    let error = ps.task(&task(0)).unwrap().recv(&task(2), 9, "w").wait().unwrap_err().error;
    assert_eq!(error.code(), Code::PermissionDenied, "{error}");
}

#[test]
fn without_authentication_only_loopback_is_listened_on_unless_told_otherwise() {
    let open = || TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let with = |tweak: &dyn Fn(&mut EngineSettings)| {
        let socket = open();
        let mut settings = settings(map(&[port(&socket)]), 0, socket);
        tweak(&mut settings);
        Engine::start(settings)
    };
    let error = with(&|_| {}).err().expect("refused");
    assert!(matches!(error, StartError::Insecure { .. }), "{error}");
    for remedy in ["security.secret_file", "security.tls_certificate", "security.insecure = true"] {
        assert!(error.to_string().contains(remedy), "{error}");
    }
    with(&|settings| settings.insecure = true).unwrap();
    with(&|settings| settings.authentication = secret("four")).unwrap();
}

/// Returns settings of task 0 at a free port of `host`, and the text of an endpoint map that has task 1 on this host and task 2 on
/// another.
fn at_name(host: &str) -> (EngineSettings, String) {
    let (free, other) = (listener(), listener());
    let text = format!(
        "{}={host}:{}\n{}=127.0.0.1:{}\n{}=198.51.100.1:9\n",
        task(0),
        port(&free),
        task(1),
        port(&other),
        task(2)
    );
    let mut settings = settings(EndpointMap::parse(&text, "test").unwrap(), 0, other);
    settings.listeners.clear();
    (settings, text)
}

#[test]
fn loopback_name_demands_authentication() {
    // A name that resolves to 127.0.0.1 on every host without a name server, as `127.0.1.1 HOSTNAME` in /etc/hosts does.
    const NAME: &str = "0x7f000001";
    let error = Engine::start(at_name(NAME).0).err().expect("refused");
    assert!(matches!(error, StartError::Insecure { address } if address.ip().is_unspecified()), "{error}");
    let (mut settings, map) = at_name(NAME);
    settings.authentication = secret("four");
    let named = loopback_addresses(&settings.map, &[settings.map.resolve(&task(0)).unwrap().clone()], None);
    assert_eq!(named.len(), 1);
    assert!(named[0].to_string().contains("the engine listens on all interfaces; give 0x7f000001"), "{}", named[0]);
    let ps = Engine::start(settings).unwrap();
    assert!(ps.listening()[0].1.ip().is_unspecified(), "{:?}", ps.listening());
    // Peers find it by its name.
    let worker = listener();
    let mut on_worker = crate::fixture::settings(EndpointMap::parse(&map, "test").unwrap(), 1, worker);
    on_worker.authentication = secret("four");
    let worker = Engine::start(on_worker).unwrap();
    carry((&ps, 0), (&worker, 1), 1, 100_000);
}

#[test]
fn loopback_address_stays_where_it_is_and_is_named() {
    for host in ["127.0.0.1", "localhost"] {
        let (settings, _) = at_name(host);
        let named = loopback_addresses(&settings.map, &[settings.map.resolve(&task(0)).unwrap().clone()], None);
        assert!(named[0].to_string().ends_with("; write this host's name or network address in the endpoint map"));
        let engine = Engine::start(settings).unwrap();
        assert!(engine.listening()[0].1.ip().is_loopback());
    }
}

#[test]
fn listen_address_keeps_the_port() {
    let (mut settings, _) = at_name("198.51.100.7");
    let port = settings.map.resolve(&task(0)).unwrap().port;
    let error = Engine::bind(&mut settings).expect_err("it is of another host");
    assert!(error.to_string().contains("set transport.listen"), "{error}");
    settings.listen = Some(Ipv4Addr::LOCALHOST.into());
    let engine = Engine::start(settings).unwrap();
    assert_eq!(engine.listening()[0].1, (Ipv4Addr::LOCALHOST, port).into());
    assert_eq!(engine.addresses()[0].to_string(), format!("198.51.100.7:{port}"));
    // One port for two transport addresses would be two for one socket.
    let text = format!("{}=198.51.100.7:7\n{}=198.51.100.8:7\n", task(0), task(1));
    let mut both = EngineSettings::new(EndpointMap::parse(&text, "test").unwrap(), &[&task(0), &task(1)]).unwrap();
    both.listen = Some(Ipv4Addr::LOCALHOST.into());
    let error = Engine::bind(&mut both).expect_err("they share a port").to_string();
    assert!(error.contains("198.51.100.7:7 and 198.51.100.8:7 have one port"), "{error}");
}

/// Sends `words` to the engine on a new connection and reads until the engine closes it.
fn say(engine: &Engine, words: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(engine.addresses()[0].to_string()).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let mut told = Vec::new();
    // A refused caller may find the connection reset.
    let _ = stream.write_all(words).and_then(|()| stream.read_to_end(&mut told));
    told
}

#[test]
fn who_keeps_failing_is_turned_away_unheard_and_those_who_talk_go_on() {
    let engines = two_that_show([secret("four"), secret("four")]);
    let [ps, worker] = &engines;
    assert_they_talk(&engines);
    let guess =
        [Greeting::Challenge([1; PROOF_BYTES]).to_bytes(), Greeting::Proof([2; PROOF_BYTES]).to_bytes()].concat();
    let (mut heard, mut unheard) = (0, 0);
    while unheard < 10 {
        match say(ps, &guess).is_empty() {
            true => unheard += 1,
            false => heard += 1,
        }
        assert!(heard < 1000, "nobody is turned away");
    }
    let counted = callers(ps);
    assert!(counted.unauthenticated >= 16 && counted.turned_away >= 10, "{counted:?}");
    // A connection that became a link no longer counts as a caller.
    carry((ps, 0), (worker, 1), 100, 64);
}

#[test]
fn who_keeps_breaking_off_is_turned_away_and_those_who_talk_go_on() {
    let authority = Authority::new().unwrap();
    let engines = two_that_show([certified(&authority, &[0]), certified(&authority, &[1])]);
    assert_they_talk(&engines);
    let [ps, worker] = &engines;
    let mut calls = 0;
    while callers(ps).turned_away < 10 {
        // Each of them could have cost half a handshake.
        drop(TcpStream::connect(ps.addresses()[0].to_string()).unwrap());
        calls += 1;
        assert!(calls < 100_000, "nobody is turned away");
    }
    assert_eq!(callers(ps).unauthenticated, 0, "none of them has shown anything wrong");
    carry((ps, 0), (worker, 1), 100, 64);
}

#[test]
fn callers_of_one_host_have_a_share_of_the_greetings_and_time_for_them() {
    let socket = listener();
    let mut with = settings(map(&[port(&socket)]), 0, socket);
    with.handshake_timeout = Duration::from_secs(3);
    with.greetings_per_host_max = 20;
    let engine = Engine::start(with).unwrap();
    // Connections that say nothing.
    let mute: Vec<_> = (0..50).map(|_| TcpStream::connect(engine.addresses()[0].to_string()).unwrap()).collect();
    until(&engine, "all are let in", |counters: &Counters| counters.callers.turned_away >= 50 - 20);
    // Their time runs out, and then there is room again.
    let mut ended = 0;
    for mut stream in mute {
        stream.set_read_timeout(Some(LONG)).unwrap();
        ended += usize::from(!matches!(stream.read(&mut [0]), Ok(count) if count > 0));
    }
    assert_eq!(ended, 50);
    let hello = hello("127.0.0.1:1", Vec::new());
    assert!(!say(&engine, &Greeting::Hello(hello).to_bytes()).is_empty(), "it is answered");
}

#[test]
fn unfinished_greetings_hold_a_bounded_number_of_bytes() {
    let socket = listener();
    let mut with = settings(map(&[port(&socket)]), 0, socket);
    with.greeting_bytes_max = 5 << 20;
    let engine = Engine::start(with).unwrap();
    // Each announces the longest possible greeting and sends nearly all of it: 40 of them would take 10 MB.
    let tasks = (0..500).map(|index| format!("{}{index}:1", "x".repeat(480))).collect();
    let hello = hello("127.0.0.1:1", tasks);
    let long = Greeting::Hello(hello).to_bytes();
    assert!(long.len() > 240_000);
    let callers: Vec<_> = (0..40)
        .map(|_| {
            let mut stream = TcpStream::connect(engine.addresses()[0].to_string()).unwrap();
            // The engine closes connections that it turns away, which may fail the write.
            let _ = stream.write_all(&long[..long.len() - 1]);
            stream
        })
        .collect();
    until(&engine, "nobody is turned away", |counters| counters.callers.turned_away >= 10);
    drop(callers);
}

#[test]
fn links_that_are_made_after_credentials_were_replaced_use_the_new_and_those_that_stand_go_on() {
    let (old, new) = (Authority::new().unwrap(), Authority::new().unwrap());
    let engines = engines(3, |index, settings| {
        settings.authentication = certified(if index == 2 { &new } else { &old }, &[index]);
    });
    let [ps, worker, late] = &engines[..] else { unreachable!() };
    carry((ps, 0), (worker, 1), 1, 1000);
    let error = late.task(&task(2)).unwrap().recv(&task(0), 1, "w").wait().unwrap_err().error;
    assert_eq!(error.code(), Code::PermissionDenied, "{error}");
    for (index, engine) in [ps, worker].into_iter().enumerate() {
        let authentication = certified(&new, &[index]);
        engine.set_authentication(authentication.clone()).unwrap();
        assert!(engine.authentication().is_same(&authentication));
    }
    carry((ps, 0), (worker, 1), 2, 1000);
    assert_eq!(crate::fixture::total(ps).links_lost, 0);
    // As the called side, and as the caller.
    carry((ps, 0), (late, 2), 3, 1000);
    carry((late, 2), (worker, 1), 4, 1000);
}

#[test]
fn credentials_of_another_kind_do_not_take_the_place_of_those_in_use() {
    let authority = Authority::new().unwrap();
    let engines = two_that_show([certified(&authority, &[0]), certified(&authority, &[1])]);
    for other in [Authentication::default(), secret("four")] {
        let error = engines[0].set_authentication(other).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.to_string().contains("TLS 1.3"), "{error}");
    }
    assert_they_talk(&engines);
}

/// The secrets of an engine at a step of the change from one secret to another.
fn step_of_change(step: usize) -> Authentication {
    let (old, new) = ("old!".repeat(8), "new!".repeat(8));
    let lines = [old.clone(), format!("{old}\n{new}\n"), format!("{new}\n{old}\n"), new];
    Authentication::secret_bytes(lines[step].as_bytes()).unwrap()
}

#[test]
fn secrets_are_changed_host_by_host_without_a_refused_link() {
    const STEPS: usize = 4;
    // Two engines go through all steps, one behind the other. At each step, each of them meets new engines that are as far as the other:
    // one that it calls and one that calls it.
    let visitors_from = |step: usize| 2 + 4 * (step - 1);
    let listeners: Vec<_> = (0..visitors_from(STEPS)).map(|_| listener()).collect();
    let ports: Vec<_> = listeners.iter().map(port).collect();
    let mut listeners = listeners.into_iter().enumerate();
    let mut start = |step| {
        let (index, listener) = listeners.next().expect("enough");
        let mut settings = settings(map(&ports), index, listener);
        settings.authentication = step_of_change(step);
        (Engine::start(settings).unwrap(), index)
    };
    let (ahead, behind) = (start(0), start(0));
    carry((&ahead.0, 0), (&behind.0, 1), 1, 1000);
    let mut visitors = Vec::new();
    for step in 1..STEPS {
        ahead.0.set_authentication(step_of_change(step)).unwrap();
        for ((engine, index), theirs) in [(&ahead, step - 1), (&behind, step)] {
            let (caller, called) = (start(theirs), start(theirs));
            carry((engine, *index), (&caller.0, caller.1), 1, 1000);
            carry((&called.0, called.1), (engine, *index), 1, 1000);
            visitors.extend([caller.0, called.0]);
        }
        behind.0.set_authentication(step_of_change(step)).unwrap();
    }
    carry((&ahead.0, 0), (&behind.0, 1), 2, 1000);
    for engine in [&ahead.0, &behind.0].into_iter().chain(&visitors) {
        let total = crate::fixture::total(engine);
        assert_eq!((total.callers.unauthenticated, total.links_lost), (0, 0));
    }
}

#[test]
fn who_calls_with_a_secret_that_is_not_known_yet_is_refused_and_let_in_once_it_is() {
    // A step was skipped: the worker calls with the new secret, which the ps does not know.
    let [ps, worker] = two_that_show([step_of_change(0), step_of_change(2)]);
    assert!(denied(&worker).contains("security.secret_file"));
    ps.set_authentication(step_of_change(1)).unwrap();
    carry((&ps, 0), (&worker, 1), 2, 1000);
}
