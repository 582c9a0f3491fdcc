//! Engines that reach each other by verbs: over the fake device, or over a real one if `SEALANE_TEST_RDMA` is set (as in the RDMA lab).

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sealane_fusion::{AcceptOptions, Authentication, Buffer, Code, Engine, EngineSettings, Keys};
use sealane_transport::authentication::Authority;
use sealane_transport::verbs::device::{Device, Status, VerbsError};
use sealane_transport::verbs::fake::{Fabric, FakeSettings, Fault, RequestKind, Strike, Weather};
use sealane_transport::verbs::{Depths, KIND, PortCounters, Registration, Transfer, Verbs, VerbsSettings};
use sealane_transport::{LinkKind, PullOptions, RecvOptions};

use crate::fixture::{LONG, assert_empty, bytes, carry, engines, task, tensor, total, until};

/// Set if the tests are to use the machine's own device.
const REAL: &str = "SEALANE_TEST_RDMA";

fn is_real() -> bool {
    std::env::var_os(REAL).is_some()
}

/// Verbs settings of engine number `index`: required, with a fake device of its own on the fabric.
fn fake_verbs(fabric: &Fabric, index: usize, settings: VerbsSettings) -> Verbs {
    let fabric = fabric.clone();
    let open = move |settings: &VerbsSettings| {
        let Depths { completions, sends } = Depths::of(settings);
        Ok(Box::new(fabric.open(FakeSettings {
            name: format!("fake{index}"),
            receive_depth: settings.queue_depth,
            completion_depth: completions,
            send_depth: sends,
            ..FakeSettings::default()
        })) as Box<dyn Device>)
    };
    Verbs { is_required: true, open: Arc::new(open), ..Verbs::new(settings) }
}

/// As `fake_verbs`, or with the machine's device.
fn verbs(fabric: &Fabric, index: usize, settings: VerbsSettings) -> Verbs {
    if is_real() {
        return Verbs { is_required: true, ..Verbs::new(settings) };
    }
    fake_verbs(fabric, index, settings)
}

fn use_verbs(settings: &mut EngineSettings, fabric: &Fabric, index: usize, verbs_settings: &VerbsSettings) {
    settings.links = vec![Arc::new(verbs(fabric, index, verbs_settings.clone()))];
}

/// As `use_verbs`, where links may also be TCP.
fn may_use_verbs(settings: &mut EngineSettings, fabric: &Fabric, index: usize, verbs_settings: &VerbsSettings) {
    let verbs = fake_verbs(fabric, index, verbs_settings.clone());
    settings.links = vec![Arc::new(Verbs { is_required: false, ..verbs })];
}

/// Two engines joined by verbs; `tweak` changes the settings of each.
pub(crate) fn two_with(tweak: impl Fn(usize, &mut EngineSettings)) -> Vec<Engine> {
    let fabric = Fabric::new(1);
    engines(2, |index, settings| {
        use_verbs(settings, &fabric, index, &VerbsSettings::default());
        tweak(index, settings);
    })
}

/// As `two_with`, always on fake devices.
pub(crate) fn two_in_memory(tweak: impl Fn(&mut EngineSettings)) -> Vec<Engine> {
    let fabric = Fabric::new(1);
    engines(2, |index, settings| {
        settings.links = vec![Arc::new(fake_verbs(&fabric, index, VerbsSettings::default()))];
        tweak(settings);
    })
}

/// Two engines joined by verbs, and their fabric.
fn two(verbs_settings: &VerbsSettings) -> (Engine, Engine, Fabric) {
    let fabric = Fabric::new(1);
    let engines = engines(2, |index, settings| use_verbs(settings, &fabric, index, verbs_settings));
    let [one, other] = <[Engine; 2]>::try_from(engines).ok().expect("two");
    (one, other, fabric)
}

fn ways() -> impl Iterator<Item = VerbsSettings> {
    let transfers = [Transfer::Write, Transfer::Read];
    transfers.into_iter().flat_map(|transfer| {
        [Registration::Static, Registration::Dynamic].map(|registration| VerbsSettings {
            transfer,
            registration,
            ..VerbsSettings::default()
        })
    })
}

fn assert_kept_its_limits(fabric: &Fabric) {
    assert_eq!(fabric.violations(), Vec::<String>::new());
    assert_eq!((fabric.receiver_not_ready(), fabric.completion_overruns()), (0, 0));
}

/// How many links of all shards are verbs links.
pub fn counters_verbs(engine: &Engine) -> u64 {
    total(engine).kinds[0].links
}

#[test]
fn many_tensors_both_ways_and_in_one_call() {
    const COUNT: usize = 500;
    for way in ways() {
        let (one, other, fabric) = two(&way);
        let (one_task, other_task) = (one.task(&task(0)).unwrap(), other.task(&task(1)).unwrap());
        let len = |at: usize| [64, 200, 9_000, 40_000][at % 4];
        let keys: Vec<String> = (0..COUNT).map(|at| format!("layer{at}")).collect();
        for step in 0..3 {
            let seed = |at: usize| (at as u64) << 8 | step as u64;
            let sent: Vec<_> = keys
                .iter()
                .enumerate()
                .flat_map(|(at, key)| {
                    [
                        one_task.send(&task(1), step, key, tensor(len(at), seed(at))),
                        other_task.send(&task(0), step, key, tensor(len(at), seed(at) + 1)),
                    ]
                })
                .collect();
            let wanted = || keys.iter().map(|key| (key, RecvOptions::default()));
            let there = other_task.recv_all(&task(0), step, wanted());
            let back = one_task.recv_all(&task(1), step, wanted());
            for (receivings, plus) in [(there, 0), (back, 1)] {
                for (at, receiving) in receivings.into_iter().enumerate() {
                    assert!(
                        receiving.wait().unwrap().bytes() == bytes(len(at), seed(at) + plus),
                        "tensor {at} differs"
                    );
                }
            }
            sent.into_iter().for_each(|sending| sending.wait().unwrap());
        }
        assert_empty(&one);
        assert_empty(&other);
        assert_kept_its_limits(&fabric);
    }
}

#[test]
fn published_tensors_are_pulled_by_plan_and_pushes_are_accepted_once() {
    for way in ways() {
        let (ps, worker, fabric) = two(&way);
        let (ps_task, worker_task) = (ps.task(&task(0)).unwrap(), worker.task(&task(1)).unwrap());
        let keys = Keys::new(["a", "b", "c"]).unwrap();
        let len = |at: usize| [100, 20_000, 2_000_000][at];
        let mut plan = worker_task.plan(&task(0), keys.clone());
        let acceptor = ps_task.acceptor("gradients", AcceptOptions::default());
        for version in 1..20 {
            let tensors = ["a", "b", "c"].into_iter().enumerate();
            let tensors = tensors.map(|(at, key)| (key.to_owned(), tensor(len(at), version as u64 + at as u64)));
            ps_task.publish_many(version, tensors).wait().unwrap();
            plan.pull(version, PullOptions::default()).unwrap();
            for at in 0..3 {
                let tensor = plan.pull_buffer().get(at).expect("pulled");
                assert!(tensor.bytes() == bytes(len(at), version as u64 + at as u64), "tensor {at} of {version}");
            }
            let pushed: Vec<_> = (0..3)
                .map(|at| worker_task.push(&task(0), "gradients", tensor(len(at), version as u64 + 50 + at as u64)))
                .collect();
            let mut accepted = Vec::new();
            while accepted.len() < 3 {
                accepted.extend(acceptor.wait_many(3, Some(LONG)).unwrap());
            }
            for (at, accepted) in accepted.iter().enumerate() {
                assert!(accepted.tensor.bytes() == bytes(len(at), version as u64 + 50 + at as u64), "push {at}");
            }
            pushed.into_iter().for_each(|pushing| pushing.wait().unwrap());
        }
        assert_kept_its_limits(&fabric);
    }
}

#[test]
fn a_peer_that_has_no_device_is_reached_by_tcp_or_not_at_all() {
    let fabric = Fabric::new(1);
    for is_required in [false, true] {
        let engines = engines(2, |index, settings| {
            if index == 0 {
                let verbs = verbs(&fabric, index, VerbsSettings::default());
                settings.links = vec![Arc::new(Verbs { is_required, ..verbs })];
            }
        });
        let (ps_task, worker_task) = (engines[0].task(&task(0)).unwrap(), engines[1].task(&task(1)).unwrap());
        let sending = ps_task.send(&task(1), 1, "k", tensor(100, 1));
        let received = worker_task.recv(&task(0), 1, "k").wait();
        if is_required {
            let error = received.expect_err("verbs are required").error;
            assert!(error.code() == Code::Unavailable && error.to_string().contains("transport.require"), "{error}");
        } else {
            assert_eq!(received.unwrap().bytes(), bytes(100, 1));
            sending.wait().unwrap();
            assert_eq!(counters_verbs(&engines[0]), 0);
        }
    }
}

/// Credentials of engine number `index`, certified for its task alone.
fn certified(authority: &Authority, index: usize) -> Authentication {
    let until = SystemTime::now() + Duration::from_secs(86_400);
    let certified = authority.certify(&[task(index).parse().unwrap()], until).unwrap();
    Authentication::certified(&authority.certificate(), &certified).unwrap()
}

/// Moves a tensor; returns the kind of the link and the reason for it, as each side shows it.
fn talk_and_tell(engines: &[Engine]) -> Vec<(LinkKind, String)> {
    carry((&engines[0], 0), (&engines[1], 1), 1, 100_000);
    let shown = |engine: &Engine| {
        loop {
            let figures = engine.figures();
            let path = figures.iter().flat_map(|shard| &shard.peers).map(|peer| &peer.path).next();
            if let Some((link, path)) = path.and_then(|path| Some((path.link?, path))) {
                return (link, path.reason.clone());
            }
            std::thread::yield_now();
        }
    };
    engines.iter().map(shown).collect()
}

#[test]
fn under_tls_nothing_travels_by_verbs_in_plain_text_unless_told_to() {
    let authority = Authority::new().unwrap();
    let fabric = Fabric::new(1);
    // Each side decides on its own.
    let with = |plaintext: [bool; 2]| {
        let engines = engines(2, |index, settings| {
            let verbs = verbs(&fabric, index, VerbsSettings::default());
            settings.links = vec![Arc::new(Verbs { is_required: false, plaintext: plaintext[index], ..verbs })];
            settings.authentication = certified(&authority, index);
        });
        talk_and_tell(&engines)
    };
    for (plaintext, why) in [
        ([false, false], ["this side cannot: TLS is set", "this side cannot: TLS is set"]),
        ([true, false], ["the peer cannot: TLS is set", "this side cannot: TLS is set"]),
        ([false, true], ["this side cannot: TLS is set", "the peer cannot: TLS is set"]),
    ] {
        for ((link, reason), why) in with(plaintext).iter().zip(why) {
            assert_eq!(*link, LinkKind::TCP, "{reason}");
            assert!(reason.starts_with(why) && reason.contains("security.plaintext_rdma = true"), "{reason}");
        }
    }
    for (link, reason) in with([true, true]) {
        assert_eq!(link, KIND, "{reason}");
        assert!(reason.contains("in plain text (security.plaintext_rdma)"), "{reason}");
    }
}

#[test]
fn under_tls_an_engine_that_must_use_verbs_does_not_start_unless_told_to_and_a_secret_does_not_matter() {
    let (authority, fabric) = (Authority::new().unwrap(), Fabric::new(1));
    let with = |shown: Authentication, plaintext| {
        let listener = crate::fixture::listener();
        let mut settings =
            crate::fixture::settings(crate::fixture::map(&[crate::fixture::port(&listener)]), 0, listener);
        let verbs = verbs(&fabric, 0, VerbsSettings::default());
        settings.links = vec![Arc::new(Verbs { plaintext, ..verbs })];
        settings.authentication = shown;
        Engine::start(settings)
    };
    let error = with(certified(&authority, 0), false).err().expect("verbs are not encrypted").to_string();
    for word in ["transport.require", "TLS", "security.plaintext_rdma = true"] {
        assert!(error.contains(word), "{error}");
    }
    with(certified(&authority, 0), true).unwrap();
    with(Authentication::secret_bytes(&[7; 32]).unwrap(), false).unwrap();
}

/// A peer that requires verbs is told why the other side declines.
#[test]
fn a_peer_that_declines_for_tls_says_so_to_one_that_must_use_verbs() {
    let (authority, fabric) = (Authority::new().unwrap(), Fabric::new(1));
    let engines = engines(2, |index, settings| {
        let verbs = verbs(&fabric, index, VerbsSettings::default());
        settings.links = vec![Arc::new(Verbs { is_required: index == 1, plaintext: index == 1, ..verbs })];
        settings.authentication = certified(&authority, index);
        settings.connect_timeout = Duration::from_secs(4);
    });
    // It calls again and again, with growing pauses, until its time to connect runs out.
    let error = engines[1].task(&task(1)).unwrap().recv(&task(0), 1, "k").wait().unwrap_err().error;
    let said = error.to_string();
    assert!(said.contains("the peer cannot: TLS is set") && said.contains("connect_timeout_ms"), "{said}");
    let lost: u64 = engines[1].counters().unwrap().iter().map(|shard| shard.links_lost).sum();
    assert!((2..100).contains(&lost), "{lost} links");
}

#[test]
fn without_a_device_an_engine_uses_tcp_or_does_not_start() {
    let broken = |is_required| Verbs {
        is_required,
        open: Arc::new(|_| Err(VerbsError::new("open the device", "there is none"))),
        ..Verbs::new(VerbsSettings::default())
    };
    let engines = engines(2, |_, settings| settings.links = vec![Arc::new(broken(false))]);
    carry((&engines[0], 0), (&engines[1], 1), 1, 100);
    let listener = crate::fixture::listener();
    let map = crate::fixture::map(&[crate::fixture::port(&listener)]);
    let mut settings = crate::fixture::settings(map, 0, listener);
    settings.links = vec![Arc::new(broken(true))];
    let error = Engine::start(settings).err().expect("verbs are required").to_string();
    assert!(error.contains("there is none") && error.contains("transport.require"), "{error}");
}

/// Requests fail at random: links die again and again, and yet every tensor arrives exactly once.
#[test]
fn nothing_is_lost_when_queue_pairs_fail() {
    for way in ways() {
        let fabric = Fabric::new(7);
        let engines = engines(2, |index, settings| {
            // Links may become TCP for a while, when too many have failed in a row.
            may_use_verbs(settings, &fabric, index, &way);
        });
        let (ps_task, worker_task) = (engines[0].task(&task(0)).unwrap(), engines[1].task(&task(1)).unwrap());
        let strike = |kind, status| Strike { kind: Some(kind), status, carried_out: false };
        let weather = [
            Weather { strike: strike(RequestKind::Send, Status::RETRIES_EXCEEDED), per_million: 3_000 },
            Weather {
                strike: Strike { carried_out: true, ..strike(RequestKind::Send, Status::RETRIES_EXCEEDED) },
                per_million: 3_000,
            },
            Weather { strike: strike(RequestKind::Write, Status::REMOTE_ACCESS), per_million: 3_000 },
            Weather { strike: strike(RequestKind::WriteWithWord, Status::REMOTE_ACCESS), per_million: 3_000 },
            Weather { strike: strike(RequestKind::Read, Status::REMOTE_ACCESS), per_million: 3_000 },
        ];
        fabric.set_climate(&weather);
        let len = |at: usize| [64, 9_000, 100_000][at % 3];
        for step in 0..10 {
            let keys: Vec<String> = (0..60).map(|at| format!("k{at}")).collect();
            let sent: Vec<_> = keys
                .iter()
                .enumerate()
                .map(|(at, key)| ps_task.send(&task(1), step, key, tensor(len(at), (step as u64) << 8 | at as u64)))
                .collect();
            let received: Vec<_> = keys
                .iter()
                .enumerate()
                .map(|(at, key)| {
                    let own = Buffer::from_vec(vec![0; len(at)]);
                    if at % 2 == 0 {
                        worker_task.recv(&task(0), step, key)
                    } else {
                        worker_task.recv_into(&task(0), step, key, own)
                    }
                })
                .collect();
            for (at, receiving) in received.into_iter().enumerate() {
                let seed = (step as u64) << 8 | at as u64;
                assert!(receiving.wait().unwrap().bytes() == bytes(len(at), seed), "tensor {at} of step {step}");
            }
            sent.into_iter().for_each(|sending| sending.wait().unwrap());
        }
        let shards = engines.iter().flat_map(|engine| engine.counters().unwrap());
        let failed: u64 = shards.map(|shard| PortCounters::of_figures(&shard.kinds[0].figures).links_failed).sum();
        assert!(failed > 0, "no link has failed, so nothing was tried");
        assert_empty(&engines[0]);
        assert_empty(&engines[1]);
        assert_kept_its_limits(&fabric);
    }
}

/// A link that became TCP because a port was down returns to verbs when the port is up, under traffic, and nothing is lost or doubled. Only
/// the side that had no port does that: the other side's links stay.
#[test]
fn links_go_back_to_verbs_when_the_port_is_up_again() {
    let fabric = Fabric::new(5);
    let engines = engines(3, |index, settings| {
        may_use_verbs(settings, &fabric, index, &VerbsSettings::default());
    });
    let tasks: Vec<_> = (0..3).map(|index| engines[index].task(&task(index)).unwrap()).collect();
    let acceptor = tasks[0].acceptor("gradients", AcceptOptions::default());
    let mut step = 0;
    // Sends in both directions and pushes, with some of each in flight at all times.
    let mut traffic = |is_over: &mut dyn FnMut() -> bool| {
        let mut pushes = 0;
        while !is_over() {
            step += 1;
            let len = |at: usize| [64, 9_000, 300_000][at % 3];
            let calls: Vec<_> = (0..6)
                .map(|at| {
                    let (from, to) = [(0, 1), (1, 0), (0, 2), (2, 0), (0, 1), (2, 0)][at];
                    let (key, seed) = (format!("k{at}"), (step as u64) << 8 | at as u64);
                    let sending = tasks[from].send(&task(to), step, &key, tensor(len(at), seed));
                    (sending, tasks[to].recv(&task(from), step, &key), len(at), seed)
                })
                .collect();
            let pushed: Vec<_> = (1..3)
                .map(|from| tasks[from].push(&task(0), "gradients", tensor(20_000, (step as u64) << 8 | from as u64)))
                .collect();
            pushes += pushed.len();
            for (sending, receiving, len, seed) in calls {
                assert!(receiving.wait().unwrap().bytes() == bytes(len, seed), "a tensor of step {step} differs");
                sending.wait().unwrap();
            }
            pushed.into_iter().for_each(|pushing| pushing.wait().unwrap());
            let mut accepted = Vec::new();
            while accepted.len() < 2 {
                accepted.extend(acceptor.wait_many(2, Some(LONG)).unwrap());
            }
            assert_eq!(accepted.len(), 2, "each push is accepted once");
            for from in 1..3 {
                let wanted = bytes(20_000, (step as u64) << 8 | from as u64);
                assert_eq!(accepted.iter().filter(|one| one.tensor.bytes() == wanted).count(), 1, "push of {from}");
            }
        }
        pushes
    };
    let mut rounds = 0;
    traffic(&mut || {
        rounds += 1;
        rounds > 3
    });
    assert_eq!(counters_verbs(&engines[0]), 2);
    for _ in 0..3 {
        assert!(fabric.inject("fake0", Fault::PortDown));
        traffic(&mut || counters_verbs(&engines[0]) == 0 && total(&engines[0]).links == 2);
        let lost = total(&engines[0]).links_lost;
        assert!(fabric.inject("fake0", Fault::PortUp));
        traffic(&mut || counters_verbs(&engines[0]) == 2);
        assert_eq!(total(&engines[0]).links_lost, lost + 2, "each link is given up once");
    }
    // Also where nothing is in flight: the next call finds a link.
    assert!(fabric.inject("fake0", Fault::PortDown));
    traffic(&mut || counters_verbs(&engines[0]) == 0 && total(&engines[0]).links == 2);
    assert!(fabric.inject("fake0", Fault::PortUp));
    until(&engines[0], "links by verbs", |counters| counters.kinds[0].links == 2);
    engines.iter().for_each(assert_empty);
    assert_kept_its_limits(&fabric);
}
