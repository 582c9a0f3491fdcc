//! Probes of sockets that the test itself answers.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::thread::{self, JoinHandle};
use std::time::SystemTime;

use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, bind, getsockname, listen, socket};
use sealane_transport::authentication::Authority;
use sealane_transport::tcp::{Answering, Progress};
use sealane_transport::wire::{FEATURE_PROBE, Greeting, Reject};

use super::super::verdict::{Remedy, Verdict};
use super::*;

/// Longer than any answer takes here.
const LONG: Duration = Duration::from_secs(60);

fn prober(ours: &HashSet<TransportAddress>, patience: Duration) -> Prober<'_> {
    Prober {
        tcp: TcpSettings::default(),
        authentication: Authentication::default(),
        patience,
        ours,
        job: None,
        has_verbs: false,
        requires_verbs: false,
    }
}

fn map_of(port: u16) -> EndpointMap {
    EndpointMap::parse(&format!("ps0:2222=127.0.0.1:{port}\nps1:2222=127.0.0.1:{port}\n"), "test").unwrap()
}

/// A peer that answers one call with these bytes once it has read the hello.
fn peer(answer: Vec<u8>) -> (u16, JoinHandle<Hello>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let served = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let hello = hear(&mut stream);
        stream.write_all(&answer).unwrap();
        hello
    });
    (port, served)
}

fn hear(stream: &mut TcpStream) -> Hello {
    let mut input = Vec::new();
    loop {
        if let Some((Greeting::Hello(hello), _)) = Greeting::parse(&input).unwrap() {
            return hello;
        }
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        input.push(byte[0]);
    }
}

fn welcome(tasks: &[&str]) -> Hello {
    let tasks = tasks.iter().map(|task| (*task).to_owned()).collect();
    Hello { features: FEATURE_PROBE | FEATURE_VERBS, shards: 4, address: "127.0.0.1:1".into(), tasks, ..Hello::probe() }
}

fn probe_with(answer: Greeting, change: impl FnOnce(&mut Prober<'_>)) -> Probe {
    let (port, served) = peer(answer.to_bytes());
    let ours = HashSet::new();
    let mut prober = prober(&ours, LONG);
    change(&mut prober);
    let probe = prober.probe(&map_of(port)).remove(0);
    assert!(served.join().unwrap().is_probe());
    probe
}

fn told(probe: &Probe) -> (&str, u16) {
    let peer = probe.peer.as_ref().unwrap();
    (peer.link, peer.shards)
}

#[test]
fn a_peer_that_answers_is_described() {
    let both = welcome(&["ps0:2222", "ps1:2222"]);
    let probe = probe_with(Greeting::Welcome(both.clone()), |_| {});
    assert!(probe.reachable);
    assert_eq!((probe.finding.verdict, told(&probe)), (Verdict::Ok, ("tcp", 4)));
    let says = format!("tcp, wire version {VERSION_MAX}, 4 shards, 2 tasks; ");
    assert!(probe.finding.says.starts_with(&says), "{}", probe.finding.says);
    let probe = probe_with(Greeting::Welcome(both), |prober| prober.has_verbs = true);
    assert_eq!(told(&probe).0, "verbs");
}

#[test]
fn every_answer_has_a_verdict() {
    let reject = |code| Greeting::Reject(Reject { code, reason: "no".into() });
    let plain = Hello { features: 0, ..welcome(&["ps0:2222", "ps1:2222"]) };
    for (answer, requires_verbs, reachable, verdict, says) in [
        (
            Greeting::Welcome(welcome(&["ps0:2222"])),
            false,
            true,
            Verdict::CouldBeBetter,
            "does not serve task ps1:2222",
        ),
        (Greeting::Welcome(plain), true, true, Verdict::WillNotWork, "verbs are required"),
        (reject(RejectCode::Refused), false, true, Verdict::Ok, "an older version"),
        (reject(RejectCode::Version), false, false, Verdict::WillNotWork, "no"),
        (reject(RejectCode::Unauthenticated), false, false, Verdict::WillNotWork, "no"),
        (reject(RejectCode::Full), false, false, Verdict::CouldBeBetter, "no"),
    ] {
        let probe = probe_with(answer, |prober| {
            (prober.has_verbs, prober.requires_verbs) = (requires_verbs, requires_verbs);
        });
        assert_eq!((probe.reachable, probe.finding.verdict), (reachable, verdict), "{probe:?}");
        assert!(probe.finding.says.contains(says), "{probe:?}");
        assert_eq!(probe.finding.remedy.is_some(), verdict != Verdict::Ok, "{probe:?}");
    }
    // A truncated task list proves nothing about tasks that are not in it.
    let cut = Hello { tasks: vec!["n".repeat(100); 82], ..welcome(&[]) };
    let task: TaskName = "ps0:2222".parse().unwrap();
    assert_eq!(first_missing(&cut, std::iter::once(&task)), None);
}

/// Probes a peer that authenticates by `theirs`, from a side that uses `ours`.
fn probe_shown(theirs: Authentication, ours: Authentication) -> Probe {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let here = format!("127.0.0.1:{port}").parse().unwrap();
    let served = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut answering = Answering::new(stream.into(), &here, &TcpSettings::default(), &theirs).unwrap();
        loop {
            match answering.poll() {
                Ok(Progress::Pending(pending)) => answering = pending,
                Ok(Progress::Done(call)) => return call.describe(welcome(&["ps0:2222", "ps1:2222"])),
                // The caller has been told.
                Err(_) => return,
            }
            thread::yield_now();
        }
    });
    let nobody = HashSet::new();
    let prober = Prober { authentication: ours, ..prober(&nobody, LONG) };
    let probe = prober.probe(&map_of(port)).remove(0);
    served.join().unwrap();
    probe
}

#[test]
fn a_probe_shows_the_secret_or_the_certificate_and_looks_at_the_peers() {
    let secret = |text: &str| Authentication::secret_bytes(text.repeat(8).as_bytes()).unwrap();
    assert_eq!(probe_shown(secret("this"), secret("this")).finding.verdict, Verdict::Ok);
    let wrong = probe_shown(secret("this"), secret("that"));
    assert_eq!((wrong.reachable, wrong.finding.verdict), (false, Verdict::WillNotWork));
    assert!(wrong.finding.says.contains("security.secret_file"), "{}", wrong.finding.says);
    assert!(matches!(wrong.finding.remedy, Some(Remedy::Advice(_))));

    let authority = Authority::new().unwrap();
    let certified = |tasks: &[&str]| {
        let tasks: Vec<TaskName> = tasks.iter().map(|task| task.parse().unwrap()).collect();
        let until = SystemTime::now() + Duration::from_secs(86_400);
        let certified = authority.certify(&tasks, until).unwrap();
        Authentication::certified(&authority.certificate(), &certified).unwrap()
    };
    let ours = || certified(&["worker0:2222"]);
    assert_eq!(probe_shown(certified(&["ps0:2222", "ps1:2222"]), ours()).finding.verdict, Verdict::Ok);
    let impostor = probe_shown(certified(&["ps0:2222"]), ours());
    assert_eq!((impostor.reachable, impostor.finding.verdict), (true, Verdict::WillNotWork));
    assert!(impostor.finding.says.ends_with("does not cover task ps1:2222"), "{}", impostor.finding.says);
}

#[test]
fn another_program_or_version_is_named() {
    for (answer, says) in [
        (b"HTTP/1.1 400 Bad Request\r\n".to_vec(), "not a Sealane peer"),
        (
            {
                let mut bytes = Greeting::Welcome(welcome(&[])).to_bytes();
                bytes[10..14].copy_from_slice(&[7, 0, 9, 0]);
                bytes
            },
            "wire versions 7 to 9",
        ),
        (Vec::new(), "the peer closed the connection"),
    ] {
        let (port, served) = peer(answer);
        let probe = prober(&HashSet::new(), LONG).probe(&map_of(port)).remove(0);
        served.join().unwrap();
        assert_eq!(probe.finding.verdict, Verdict::WillNotWork);
        assert!(probe.finding.says.contains(says), "{}", probe.finding.says);
    }
}

#[test]
fn nobody_there_is_said_and_our_own_may_start_later() {
    // Bound, so that no other program gets the port, but not listening.
    let held = socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), None).unwrap();
    bind(held.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0)).unwrap();
    let map = map_of(getsockname::<SockaddrIn>(held.as_raw_fd()).unwrap().port());
    let probe = prober(&HashSet::new(), LONG).probe(&map).remove(0);
    assert_eq!(
        (probe.finding.verdict, probe.finding.says.as_str()),
        (Verdict::WillNotWork, "nothing listens there (connection refused)")
    );
    let ours = map.addresses().cloned().collect();
    let probe = prober(&ours, LONG).probe(&map).remove(0);
    assert_eq!((probe.finding.verdict, probe.finding.remedy()), (Verdict::CouldBeBetter, "sealane daemon"));
    let nowhere = EndpointMap::parse("ps0:2222=sealane.invalid:7000\n", "test").unwrap();
    let probe = prober(&HashSet::new(), LONG).probe(&nowhere).remove(0);
    assert_eq!(probe.finding.remedy(), "getent hosts sealane.invalid");
}

#[test]
fn dropped_packets_are_blamed_on_a_firewall() {
    // The kernel drops further connection requests while the only place in the queue is taken, as a firewall does.
    let full = socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), None).unwrap();
    bind(full.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0)).unwrap();
    listen(&full, Backlog::new(0).unwrap()).unwrap();
    let port = getsockname::<SockaddrIn>(full.as_raw_fd()).unwrap().port();
    let _first = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    let probe = prober(&HashSet::new(), Duration::from_millis(20)).probe(&map_of(port)).remove(0);
    assert_eq!(
        (probe.finding.verdict, probe.finding.says.as_str()),
        (Verdict::WillNotWork, "no connection within 20ms")
    );
    let expected =
        format!("check that no firewall blocks TCP port {port} of 127.0.0.1, and the route: `nc -vz 127.0.0.1 {port}`");
    assert_eq!(probe.finding.remedy, Some(Remedy::Advice(expected)));
}

#[test]
fn silent_peers_are_given_up_all_at_once() {
    // The kernel accepts their connections, and nothing answers.
    let silent: Vec<_> = (0..2 * CALLS).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()).collect();
    let line = |(index, listener): (usize, &TcpListener)| {
        format!("ps{index}:2222=127.0.0.1:{}\n", listener.local_addr().unwrap().port())
    };
    let map = EndpointMap::parse(&silent.iter().enumerate().map(line).collect::<String>(), "test").unwrap();
    let probes = prober(&HashSet::new(), Duration::from_millis(20)).probe(&map);
    assert_eq!(probes.len(), silent.len());
    for probe in &probes {
        assert_eq!(probe.finding.verdict, Verdict::WillNotWork);
        assert!(
            probe.finding.says.starts_with("it accepted the connection but did not answer within 20ms"),
            "{}",
            probe.finding.says
        );
    }
}

/// Fewer than are probed at once, since each takes descriptors of the test process.
const CALLS: usize = 16;
