//! Both engines in this process, over fake devices of one fabric.

use std::time::Duration;

use sealane_transport::verbs::fake::{Fabric, FakeSettings, RequestKind};

use super::between::request_timeout;
use super::consumer::{self, Lane};
use super::engine::{self, Links, NAME, PS, WORKER, map};
use super::producer;
use crate::figures::{Metric, Sample};
use crate::limits::STALL_LIMIT;
use crate::peer::Hosts;
use crate::plan::{Bench, Fuse, Link, Plan, Registration, Transfer};
use crate::systems::client::check_arrival;

const LENGTH: Duration = Duration::from_millis(20);

/// Two rounds of a plan over verbs, and the fabric that they used.
fn two_rounds(plan: &Plan) -> (Vec<Sample>, Fabric) {
    let fabric = Fabric::new(11);
    let start = |task, listener, map| {
        let fabric = fabric.clone();
        let open = move |_: &_| Ok(Box::new(fabric.open(FakeSettings::default())) as _);
        let (verbs, opened) = engine::verbs_with(plan, open).expect("the plan is over verbs");
        let links = Links { listener, verbs: Some(verbs), keys: None };
        let engine = engine::start_pair(plan, map, &[task], links, STALL_LIMIT).expect("it starts");
        assert_eq!(opened.get().expect("it has opened one").name, "fake0");
        engine
    };
    let listener = || engine::listener(plan, Hosts::default().producer).expect("a port is free");
    let ((ps_listener, ps_address), (worker_listener, worker_address)) = (listener(), listener());
    let ps = start(PS, ps_listener, map(ps_address, worker_address));
    producer::start(&ps, plan).expect("it starts");
    let worker = start(WORKER, worker_listener, map(ps_address, worker_address));
    let mut lanes = consumer::lanes(&worker, plan).expect("there is memory");
    let mut samples = Vec::new();
    for _ in 0..2 {
        lanes.iter_mut().for_each(Lane::wipe);
        let (sample, filled) = consumer::round(&worker, plan, lanes, LENGTH).expect("tensors move");
        // Latency and rate benchmarks send whatever the slab holds.
        if matches!(plan.bench, Bench::Bandwidth | Bench::Fuse) {
            check_arrival(NAME, filled.iter().map(Lane::bytes)).expect("all of them, whole");
        }
        samples.push(sample);
        lanes = filled;
    }
    worker.stop().expect("it stops");
    ps.stop().expect("it stops");
    drop(lanes);
    (samples, fabric)
}

#[test]
fn large_tensors_move_both_ways_in_memory_that_is_registered_either_way() {
    for transfer in [Transfer::Write, Transfer::Read] {
        for registration in [Registration::Static, Registration::Dynamic] {
            let plan = Plan {
                link: Link::Verbs,
                transfer: Some(transfer),
                registration: vec![registration],
                size_bytes: 100_003,
                window: 3,
                ..Plan::new(Bench::Bandwidth)
            };
            let (samples, fabric) = two_rounds(&plan);
            for sample in samples {
                // On a busy machine nothing may arrive in so short a round.
                assert!(matches!(sample.figures[..], [(Metric::GigabytesPerSecond, value)] if value >= 0.0));
            }
            assert_eq!(fabric.violations(), Vec::<String>::new());
            assert_eq!((fabric.receiver_not_ready(), fabric.completion_overruns()), (0, 0));
            let counters = fabric.counters();
            let [written, read] =
                [RequestKind::WriteWithWord, RequestKind::Read].map(|kind| counters.of(kind).requests);
            match transfer {
                Transfer::Write => assert!(written > 0 && read == 0, "{counters:?}"),
                Transfer::Read => assert!(read > 0 && written == 0, "{counters:?}"),
            }
            // Per side: the messages and both slabs.
            let at_start = 2 * 3;
            match registration {
                Registration::Static => assert_eq!(counters.registrations, at_start),
                Registration::Dynamic => assert!(counters.registrations > at_start, "{counters:?}"),
            }
        }
    }
}

#[test]
fn a_window_of_large_tensors_may_take_its_time() {
    assert_eq!(request_timeout(&Plan::new(Bench::Latency)), STALL_LIMIT);
    let plan = Plan { size_bytes: 200 << 20, window: 2, ..Plan::new(Bench::Bandwidth) };
    assert_eq!(request_timeout(&plan), STALL_LIMIT + Duration::from_secs(200));
}

#[test]
fn small_tensors_and_steps_move_over_verbs() {
    let latency = Plan { link: Link::Verbs, ..Plan::new(Bench::Latency) };
    let rate = Plan { bench: Bench::Rate, window: 7, ..latency.clone() };
    let step = Plan { bench: Bench::Fuse, step: vec![64, 9_000, 1, 100_000], ..latency.clone() };
    let fused = [Fuse::Off, Fuse::Turn, Fuse::Receive, Fuse::Plan];
    let rates = fused.map(|fuse| Plan { fuse, ..rate.clone() });
    let steps = fused.map(|fuse| Plan { fuse, ..step.clone() });
    for plan in rates.into_iter().chain(steps).chain([latency]) {
        let (samples, fabric) = two_rounds(&plan);
        assert_eq!(samples.len(), 2);
        assert_eq!(fabric.violations(), Vec::<String>::new());
        assert_eq!((fabric.receiver_not_ready(), fabric.completion_overruns()), (0, 0), "{plan:?}");
        let large = fabric.counters().registrations;
        assert_eq!(large, 2 * 3, "{plan:?}");
    }
}
