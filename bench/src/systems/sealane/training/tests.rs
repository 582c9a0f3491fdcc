//! Workers and parameter servers in this process, over fake devices of one fabric.

use sealane_transport::verbs::fake::{Fabric, FakeSettings, RequestKind};

use super::super::engine;
use super::*;
use crate::peer::Hosts;
use crate::plan::{Registration, Transfer};
use crate::system::Client;
use crate::systems::training::StepLog;

const WORKERS: usize = 3;

/// Three workers and two ps, and a step of small and large tensors: each ps gets a small gradient after a large one.
fn plan(mode: Mode, transfer: Transfer, variant: Variant) -> Plan {
    let (step, push) = (vec![64, 9_000, 1, 100_000, 70_000], vec![100_003, 8, 20_000, 70_000, 30_000, 9, 25_000, 10]);
    let whole = Plan { link: Link::Verbs, transfer: Some(transfer), step, ..Plan::new(Bench::Ps) };
    let size = Size { workers: WORKERS, ps: 2 };
    let training = Training { size, mode, push, ..training::of(&whole).clone() };
    Plan { training: Some(training), ..whole }.with_variant(variant)
}

#[test]
fn workers_train_over_verbs_in_every_way() {
    let fused = [Fuse::Off, Fuse::Turn, Fuse::Receive, Fuse::ReceiveWaitAll, Fuse::Plan];
    let ways =
        fused.into_iter().flat_map(|fuse| [(Mode::Async, Transfer::Write, fuse), (Mode::Sync, Transfer::Read, fuse)]);
    for (mode, transfer, fuse) in ways {
        let registrations = [Registration::Static, Registration::Dynamic].map(|registration| {
            let variant = Variant { fuse, request_buffers: 2, registration, ..Variant::default() };
            let plan = plan(mode, transfer, variant);
            let fabric = Fabric::new(11);
            let devices = fabric.clone();
            let open = move |_: &_| Ok(Box::new(devices.open(FakeSettings::default())) as _);
            let (verbs, opened) = engine::verbs_with(&plan, open).expect("the plan is over verbs");
            let ip = Hosts::default().producer;
            let (ps, _, addresses) = servers::host_peers(&plan, ip, Some(verbs.clone())).expect("they start");
            let mut workers = clients::hosted(&plan, &addresses, Some(verbs)).expect("they start");
            assert_eq!(opened.get().expect("it is known").name, "fake0");
            let mut log = StepLog::begin(WORKERS);
            workers.train(3, &mut log).expect("the steps are made");
            let moved = (workers.moved)().expect("it is counted").expect("it is counted");
            let payload = 3 * WORKERS * plan.step.iter().chain(&training::of(&plan).push).sum::<usize>();
            assert!(moved.bytes as usize >= payload && moved.messages > 0, "{mode} {fuse}: {moved:?} of {payload}");
            drop(workers);
            ps.stop().expect("they stop");
            assert_eq!(fabric.violations(), Vec::<String>::new());
            assert_eq!((fabric.receiver_not_ready(), fabric.completion_overruns()), (0, 0), "{mode} {fuse}");
            let counters = fabric.counters();
            let of = |kind| counters.of(kind).requests > 0;
            assert_eq!(of(RequestKind::WriteWithWord), transfer == Transfer::Write, "{counters:?}");
            assert_eq!(of(RequestKind::Read), transfer == Transfer::Read, "{counters:?}");
            counters.registrations
        });
        assert!(registrations[1] > registrations[0], "{mode} {fuse}: {registrations:?}");
    }
}
