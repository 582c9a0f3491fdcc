//! Workers and parameter servers in this process, over fake devices of one fabric.

use std::collections::HashSet;

use sealane_transport::verbs::fake::{Fabric, FakeSettings, RequestKind};

use super::*;
use crate::plan::{Bench, Fuse, Link, Mode, Registration, Size, Training, Transfer, Variant};

const WORKERS: usize = 3;

/// Three workers with two ps, and a step of small and large tensors: to each ps a small gradient follows a large one.
fn plan(mode: Mode, transfer: Transfer, variant: Variant) -> Plan {
    let (step, push) = (vec![64, 9_000, 1, 100_000, 70_000], vec![100_003, 8, 20_000, 70_000, 30_000, 9, 25_000, 10]);
    let whole = Plan { link: Link::Verbs, transfer: Some(transfer), step, ..Plan::new(Bench::Ps) };
    let size = Size { workers: WORKERS, ps: 2 };
    let training = Training { size, mode, push, ..training::of(&whole).clone() };
    Plan { training: Some(training), ..whole }.with_variant(variant)
}

/// Some steps of a plan over a fabric, and what they moved.
fn train(plan: &Plan, steps: u64) -> (Vec<Times>, Moved, Fabric) {
    let fabric = Fabric::new(11);
    let devices = fabric.clone();
    let open = move |_: &_| Ok(Box::new(devices.open(FakeSettings::default())) as _);
    let (verbs, opened) = engine::verbs_with(plan, open).expect("the plan is over verbs");
    let (ps, ports) = servers::host_peers(plan, Some(verbs.clone())).expect("they start");
    let map = servers::map(training::of(plan), &ports);
    let mut engines = Engines::start(plan, &map, &verbs, opened).expect("they start");
    assert_eq!(engines.opened.get().expect("it is known").name, "fake0");
    engines.make_steps(1).expect("a first step");
    engines.rest();
    engines.resume();
    let times = engines.make_steps(steps).expect("the steps are made");
    let moved = engines.moved().expect("it is counted").expect("it is counted");
    for (engine, _) in &engines.workers {
        let lost = engine.counters().expect("it runs").iter().map(|shard| shard.links_lost).sum::<u64>();
        assert_eq!(lost, 0, "{plan:?}");
    }
    drop(engines);
    ps.stop().expect("they stop");
    assert_eq!(fabric.violations(), Vec::<String>::new());
    assert_eq!((fabric.receiver_not_ready(), fabric.completion_overruns()), (0, 0), "{plan:?}");
    (times, moved, fabric)
}

#[test]
fn engines_train_in_every_way() {
    for mode in [Mode::Async, Mode::Sync] {
        for fuse in [Fuse::Off, Fuse::Turn, Fuse::Receive, Fuse::ReceiveWaitAll, Fuse::Plan] {
            let plan = plan(mode, Transfer::Write, Variant { fuse, request_buffers: 2, ..Variant::default() });
            let (times, moved, _) = train(&plan, 3);
            assert_eq!(times.iter().map(Vec::len).collect::<Vec<_>>(), [3; WORKERS], "{mode} {fuse}");
            // Two may begin at the same moment.
            let workers: HashSet<_> = times.iter().collect();
            assert_eq!(workers.len(), WORKERS, "each worker has its own times");
            // A request and an answer a ps and step, a push and its end at the least.
            assert!(moved.messages >= (4 * 2 * 4 * WORKERS) as u64, "{mode} {fuse}: {moved:?}");
            let payload = 4 * WORKERS * plan.step.iter().chain(&training::of(&plan).push).sum::<usize>();
            // Frames and metadata are a few hundred bytes a tensor.
            let most = payload + 4 * WORKERS * 1_000 * (plan.step.len() + training::of(&plan).push.len());
            assert!((payload..most).contains(&(moved.bytes as usize)), "{mode} {fuse}: {moved:?} of {payload}");
        }
    }
}

#[test]
fn memory_is_registered_and_moved_as_the_plan_says() {
    for transfer in [Transfer::Write, Transfer::Read] {
        let registrations = [Registration::Static, Registration::Dynamic].map(|registration| {
            let variant = Variant { registration, fuse: Fuse::Turn, copies: true, ..Variant::default() };
            let (_, _, fabric) = train(&plan(Mode::Async, transfer, variant), 2);
            let counters = fabric.counters();
            let of = |kind| counters.of(kind).requests > 0;
            assert_eq!(of(RequestKind::WriteWithWord), transfer == Transfer::Write, "{counters:?}");
            assert_eq!(of(RequestKind::Read), transfer == Transfer::Read, "{counters:?}");
            counters.registrations
        });
        // Of each engine: the messages, and both slabs.
        assert_eq!(registrations[0], (WORKERS as u64 + 1) * 3);
        assert!(registrations[1] > registrations[0], "{registrations:?}");
    }
}

#[test]
fn a_ps_that_is_not_there_ends_the_steps_with_its_name() {
    let plan = plan(Mode::Async, Transfer::Write, Variant::default());
    let fabric = Fabric::new(3);
    let open = move |_: &_| Ok(Box::new(fabric.open(FakeSettings::default())) as _);
    let (verbs, opened) = engine::verbs_with(&plan, open).expect("the plan is over verbs");
    let alone = plan.with_variant(Variant { size: Some(Size { workers: WORKERS, ps: 1 }), ..Variant::default() });
    let (ps, ports) = servers::host_peers(&alone, Some(verbs.clone())).expect("it starts");
    let map = servers::map(training::of(&alone), &ports);
    let mut engines = Engines::start(&plan, &map, &verbs, opened).expect("they start");
    let error = engines.make_steps(1).expect_err("the map has one ps");
    assert!(error.to_string().contains("ps001:1"), "{error}");
    ps.stop().expect("it stops");
}

#[test]
fn a_variant_says_how_it_moves_and_that_workers_park() {
    let spinning = plan(Mode::Async, Transfer::Read, Variant::default());
    assert_eq!(described(&spinning), "async, fuse plan, 40 request buffers, static, polling, read, workers parking");
    let parking = plan(Mode::Sync, Transfer::Write, Variant { polling: false, ..Variant::default() });
    assert_eq!(described(&parking), "sync, fuse plan, 40 request buffers, static, parking, write");
}

#[test]
fn in_step_with_all_a_worker_may_wait_longer() {
    let plan = plan(Mode::Sync, Transfer::Write, Variant::default());
    assert_eq!(request_timeout(&plan), STALL_LIMIT);
    let large = Plan { step: vec![200 << 20], ..plan };
    assert_eq!(request_timeout(&large), STALL_LIMIT + Duration::from_secs(300));
}
