//! Engines that reach each other over a kind of link that is unknown to them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sealane_fusion::Engine;
use sealane_tests::delayed::{Delayed, KIND};

use crate::fixture::{assert_empty, bytes, engines, task, tensor, total};

const DELAY: Duration = Duration::from_millis(2);

fn two() -> [Engine; 2] {
    let two = engines(2, |_, settings| settings.links = vec![Arc::new(Delayed { delay: DELAY })]);
    two.try_into().ok().expect("two")
}

#[test]
fn every_size_arrives_whole_and_late() {
    let [ps, worker] = two();
    let (ps_task, worker_task) = (ps.task(&task(0)).unwrap(), worker.task(&task(1)).unwrap());
    for (step, len) in [0, 1, 64, 8192, 8193, 65_537, 3_000_001].into_iter().enumerate() {
        let begun = Instant::now();
        let sending = ps_task.send(&task(1), step as i64, "w", tensor(len, 7));
        assert!(worker_task.recv(&task(0), step as i64, "w").wait().unwrap().bytes() == bytes(len, 7));
        // The first tensor and large ones are requested; others are sent ahead.
        let times = if step == 0 || len > 4096 { 2 } else { 1 };
        assert!(begun.elapsed() >= times * DELAY, "{len} bytes arrived before they, or their request, could");
        sending.wait().unwrap();
    }
    assert_empty(&ps);
    assert_empty(&worker);
}

#[test]
fn counters_show_the_kind_by_its_name() {
    let [ps, worker] = two();
    let receiving = worker.task(&task(1)).unwrap().recv(&task(0), 1, "w");
    ps.task(&task(0)).unwrap().send(&task(1), 1, "w", tensor(100, 1)).wait().unwrap();
    receiving.wait().unwrap();
    for engine in [&ps, &worker] {
        let kind = total(engine).kinds[0];
        assert_eq!((kind.links, kind.figures[0]), (1, 1));
        let paths: Vec<_> = engine.figures().iter().flat_map(|shard| &shard.peers).map(|peer| peer.path.link).collect();
        assert_eq!(paths, [Some(KIND)]);
    }
}
