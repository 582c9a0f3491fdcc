//! What an engine shows of itself to other threads: figures that add up, and paths with their reasons, without asking a shard.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sealane_fusion::metrics::{Operation, PathState, PeerFigures, ShardFigures};
use sealane_fusion::{Engine, EngineSettings};
use sealane_transport::LinkKind;
use sealane_transport::verbs::device::VerbsError;
use sealane_transport::verbs::{Verbs, VerbsSettings};

use crate::fixture::{LONG, carry, engines, task, tensor, two};

/// Polls the figures of an engine's only shard until `done` holds: figures lag by some milliseconds.
pub fn until(engine: &Engine, what: &str, done: impl Fn(&ShardFigures) -> bool) -> ShardFigures {
    let deadline = Instant::now() + LONG;
    loop {
        let figures = engine.figures().remove(0);
        if done(&figures) {
            return figures;
        }
        assert!(Instant::now() < deadline, "{what}: still {figures:#?}");
        std::thread::yield_now();
    }
}

fn peer(figures: &ShardFigures) -> &PeerFigures {
    assert_eq!(figures.peers.len(), 1);
    &figures.peers[0]
}

fn calls(figures: &ShardFigures, operation: Operation) -> u64 {
    let of = figures.latencies.iter().filter(|one| (one.operation, one.way) == (operation, "tcp"));
    of.map(|one| one.nanoseconds.count()).sum()
}

#[test]
fn figures_show_the_path_to_a_peer_and_what_went_over_it() {
    const TENSORS: u64 = 20;
    const BYTES: u64 = 100_000;
    let (ps, worker) = two();
    for step in 0..TENSORS as i64 {
        carry((&ps, 0), (&worker, 1), step, BYTES as usize);
    }

    let here = until(&worker, "all has come", |figures| figures.counters.tensors_received == TENSORS);
    let path = &peer(&here).path;
    assert_eq!((path.state, path.link), (PathState::Up, Some(LinkKind::TCP)));
    assert_eq!(path.reason, "the only network link in this build");
    assert_eq!(peer(&here).address, ps.addresses()[0].to_string());
    assert_eq!(peer(&here).shard, Some(0));
    let counters = peer(&here).counters;
    assert!(counters.bytes_received > TENSORS * BYTES, "{counters:?}");
    assert_eq!((counters.tensors_received, counters.links_made, counters.in_flight), (TENSORS, 1, 0));
    assert!(counters.messages_received >= TENSORS && counters.messages_sent >= TENSORS, "{counters:?}");
    assert_eq!((calls(&here, Operation::Recv), here.counters.bytes_received), (TENSORS, TENSORS * BYTES));
    assert!(here.load.turns > 0 && here.load.busy.count() > 0);

    let there = until(&ps, "all was released", |figures| figures.counters.tensors_sent == TENSORS);
    let counters = peer(&there).counters;
    assert_eq!((counters.tensors_sent, counters.unreleased), (TENSORS, 0));
    assert!(counters.bytes_sent > TENSORS * BYTES, "{counters:?}");
    assert_eq!(calls(&there, Operation::Send), TENSORS);
    assert!(there.slab_receive_bytes_max > 0);
}

#[test]
fn a_peer_that_is_gone_shows_so_with_the_reason() {
    let (ps, worker) = two();
    carry((&ps, 0), (&worker, 1), 1, 10);
    until(&worker, "the link stands", |figures| !figures.peers.is_empty() && peer(figures).path.state == PathState::Up);
    ps.stop().unwrap();
    let figures = until(&worker, "the link is lost", |figures| peer(figures).counters.links_lost == 1);
    assert_eq!(peer(&figures).path.state, PathState::Idle);
    assert!(peer(&figures).path.last_error.contains("the engine stops"), "{figures:#?}");
    // A stopped engine still shows its last figures.
    assert_eq!(ps.figures()[0].counters.tensors_sent, 1);
}

#[test]
fn what_waits_shows_while_the_shard_sleeps() {
    let engines = engines(2, |_, settings| settings.connect_timeout = Duration::from_secs(3600));
    let (ps, worker) = (&engines[0], &engines[1]);
    let worker_task = worker.task(&task(1)).unwrap();
    let asked = worker_task.recv(&task(0), 1, "never sent");
    let kept = ps.task(&task(0)).unwrap().send(&task(1), 1, "never asked for", tensor(10, 0));
    let there = until(ps, "both wait", |figures| (figures.counters.parked, figures.counters.pending_sends) == (1, 1));
    assert_eq!(there.counters.links, 1);
    until(worker, "the request is out", |figures| figures.peers.iter().any(|peer| peer.counters.in_flight == 1));
    until(worker, "the shard sleeps", |figures| figures.load.asleep);
    drop((asked, kept));
}

#[test]
fn what_an_engine_sets_up_at_its_start_is_no_stall() {
    const LIMIT: Duration = Duration::from_millis(50);
    let opens_slowly = |settings: &mut EngineSettings| {
        let open = |_: &VerbsSettings| {
            std::thread::sleep(4 * LIMIT);
            Err(VerbsError::new("ibv_open_device", "it was slow, and then it failed"))
        };
        settings.links = vec![Arc::new(Verbs { open: Arc::new(open), ..Verbs::new(VerbsSettings::default()) })];
        settings.runtime.stall_report = LIMIT;
    };
    let populates_much = |settings: &mut EngineSettings| {
        (settings.slab_send_bytes, settings.slab_receive_bytes) = (64 << 20, 64 << 20);
        settings.runtime.stall_report = LIMIT / 10;
    };
    for set_up in [&opens_slowly as &dyn Fn(&mut EngineSettings), &populates_much] {
        let stalls = || {
            let engine = engines(1, |_, settings| set_up(settings)).remove(0);
            // Answered in a later turn than the one that starts.
            engine.counters().unwrap();
            engine.figures()[0].load.stalls
        };
        // Tries again if others had the CPU for so long that it counts as a stall.
        assert!((0..50).any(|_| stalls() == 0), "each of 50 starts was reported as a stall");
    }
}
