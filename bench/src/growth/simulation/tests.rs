use super::super::plan::Course;
use super::super::scene::{Costs, EndCosts, Machines, Variables};
use super::super::station::{TICKS_PER_SECOND, of_ns};
use super::*;
use crate::plan::Size;

const COSTS: Costs = Costs {
    worker: EndCosts { write_ns: 1_000.0, message_ns: 200.0, byte_ns: 0.1, row_ns: 0.0 },
    ps: EndCosts { write_ns: 3_000.0, message_ns: 500.0, byte_ns: 0.2, row_ns: 0.0 },
};

fn machines(workers: usize) -> Machines {
    Machines {
        size: Size { workers, ps: 1 },
        workers_per_host: 8,
        ps_per_host: 1,
        worker_shards: 1,
        ps_shards: 1,
        stripes: 1,
        worker_nic_gbit: 100.0,
        ps_nic_gbit: 100.0,
        propagation_us: 5.0,
    }
}

fn course(mode: Mode) -> Course {
    Course { mode, compute_us: 0.0, straggler_sigma: 0.0, seed: 3 }
}

/// The scene with other numbers of steps.
fn short(scene: Scene, warm_up: u64, counted: u64) -> Scene {
    Scene { warm_up, counted, ..scene }
}

fn scene(machines: Machines, course: Course, ps: usize) -> Scene {
    let variables = Variables { pull: vec![100_000, 20_000, 64, 64, 3_000], push: vec![100_000, 20_000, 64, 64] };
    short(Scene::new(machines, course, &COSTS, &variables.over(ps)), 40, 400)
}

#[test]
fn one_worker_and_one_ps_take_the_sum_of_all_costs() {
    let pulled = Variables { pull: vec![100_000], push: vec![50_000] };
    let course = Course { compute_us: 30.0, ..course(Mode::Async) };
    let scene = short(Scene::new(machines(1), course, &COSTS, &pulled.over(1)), 40, 400);
    let tally = simulate(&scene);
    // Request, answer, push, taken; each with a header of 32 bytes, and 0.08 ns a byte on a wire of 100 Gbit/s.
    let bytes = [32.0, 100_032.0, 50_032.0, 32.0];
    let of_one = |bytes: f64| (1_200.0 + 0.1 * bytes) + 0.08 * bytes + 5_000.0 + (3_500.0 + 0.2 * bytes);
    let expected = of_ns(30_000.0 + bytes.into_iter().map(of_one).sum::<f64>());
    for took in [tally.durations[0], tally.durations[399]] {
        // Each cost is rounded to a picosecond.
        assert!(took.abs_diff(expected) <= 16, "{took} and not {expected}");
    }
    assert_eq!(tally.durations.len(), 400);
    assert!((tally.steps_per_second() - TICKS_PER_SECOND / expected as f64).abs() < 0.1, "{tally:?}");
}

#[test]
fn a_pull_between_one_pair_is_as_fast_as_its_shards_together_and_a_push_as_one() {
    let steps = |pull: Vec<u64>, push: Vec<u64>, shards: u32, stripes: u32| {
        let machines =
            Machines { worker_shards: shards, ps_shards: shards, stripes, propagation_us: 0.0, ..machines(1) };
        let machines = Machines { worker_nic_gbit: f64::INFINITY, ps_nic_gbit: f64::INFINITY, ..machines };
        let loads = Variables { pull, push }.over(1);
        simulate(&short(Scene::new(machines, course(Mode::Async), &COSTS, &loads), 40, 400)).steps_per_second()
    };
    let pulls = |shards, stripes| steps(vec![64 << 20], vec![], shards, stripes);
    let pushes = |shards, stripes| steps(vec![], vec![64 << 20], shards, stripes);
    let one = pulls(1, 1);
    assert_eq!(pulls(4, 1), one, "a message is whole on one shard");
    for stripes in [2, 4] {
        let factor = pulls(4, stripes) / one;
        assert!((factor / f64::from(stripes) - 1.0).abs() < 0.01, "{stripes}: {factor}");
        assert!((pushes(4, stripes) / pushes(1, 1) - 1.0).abs() < 0.01);
    }
}

#[test]
fn a_ps_whose_core_is_busy_does_a_step_in_its_cost() {
    // So many workers that the ps never rests, and hosts with one each, so that theirs do.
    let machines = Machines { workers_per_host: 1, ..machines(200) };
    let scene = short(scene(machines, course(Mode::Async), 1), 1_000, 4_000);
    let legs = &scene.legs[0];
    let cost = legs[0].receive + legs[1].send + legs[2].receive + legs[3].send;
    let tally = simulate(&scene);
    let (found, expected) = (tally.steps_per_second(), TICKS_PER_SECOND / cost as f64);
    assert!((found / expected - 1.0).abs() < 0.01, "{found} and not {expected}");
    assert!(tally.busiest.ps_cpu > 0.99, "{tally:?}");
    assert!(tally.busiest.worker_cpu < 0.1, "{tally:?}");
}

#[test]
fn a_ps_whose_nic_is_busy_sends_as_much_as_it_can() {
    let machines = Machines { workers_per_host: 1, ps_nic_gbit: 1.0, ..machines(50) };
    let scene = short(scene(machines, course(Mode::Async), 1), 500, 2_000);
    let tally = simulate(&scene);
    let leaving = scene.legs[0][1].leave + scene.legs[0][3].leave;
    let expected = TICKS_PER_SECOND / leaving as f64;
    assert!(
        (tally.steps_per_second() / expected - 1.0).abs() < 0.02,
        "{} and not {expected}",
        tally.steps_per_second()
    );
    assert!(tally.busiest.ps_nic > 0.98 && tally.busiest.ps_cpu < 0.3, "{tally:?}");
}

#[test]
fn messages_are_neither_lost_nor_made() {
    for mode in [Mode::Async, Mode::Sync] {
        let scene = scene(machines(20), course(mode), 3);
        let mut simulation = Simulation::new(&scene);
        while !simulation.is_over() {
            simulation.advance();
            // What a worker waits for is in flight, or its request waits at a ps.
            let awaited: u32 = simulation.workers.iter().map(|worker| worker.awaited).sum();
            let under_way: usize = simulation.queues.iter().map(VecDeque::len).sum();
            let waiting: usize = simulation.barriers.iter().map(|barrier| barrier.waiting.len()).sum();
            assert_eq!(awaited as usize, under_way + waiting);
            assert!(under_way + waiting <= 20 * 3, "each worker has one message under way for each ps");
            // Each queue that is not empty has its head in the heap, and each worker that waits for nothing its clock.
            let queues = simulation.queues.iter().filter(|queue| !queue.is_empty()).count();
            let clocks = simulation.workers.iter().filter(|worker| worker.awaited == 0).count();
            assert_eq!(simulation.events.len(), queues + clocks);
        }
    }
}

#[test]
fn queues_are_in_the_order_of_time() {
    let scene = scene(Machines { worker_nic_gbit: 10.0, ..machines(20) }, course(Mode::Async), 3);
    let mut simulation = Simulation::new(&scene);
    while !simulation.is_over() {
        let before = simulation.now;
        simulation.advance();
        assert!(simulation.now >= before);
        for queue in &simulation.queues {
            assert!(queue.iter().is_sorted_by_key(|message| message.at));
        }
    }
}

#[test]
fn synchronous_workers_stay_within_a_step_of_each_other() {
    let course = Course { compute_us: 500.0, straggler_sigma: 0.6, ..course(Mode::Sync) };
    let scene = scene(machines(20), course, 3);
    let mut simulation = Simulation::new(&scene);
    while !simulation.is_over() {
        simulation.advance();
        let steps = || simulation.workers.iter().map(|worker| worker.steps);
        assert!(steps().max().unwrap() - steps().min().unwrap() <= 1);
    }
    let sync = simulation.into_tally();
    let other = Scene { course: Course { mode: Mode::Async, ..course }, ..scene.clone() };
    assert!(sync.steps_per_second() < simulate(&other).steps_per_second(), "the slowest of all decides");
}

#[test]
fn the_same_seed_gives_the_same_and_another_does_not() {
    let with_seed = |seed| {
        let course = Course { compute_us: 200.0, straggler_sigma: 0.4, seed, ..course(Mode::Async) };
        simulate(&scene(machines(30), course, 3))
    };
    assert_eq!(with_seed(5), with_seed(5));
    assert_ne!(with_seed(5).durations, with_seed(6).durations);
}

#[test]
fn more_of_anything_never_slows_a_busy_system() {
    for mode in [Mode::Async, Mode::Sync] {
        let speed = |change: fn(&mut Machines)| {
            let mut machines = machines(64);
            change(&mut machines);
            simulate(&scene(machines, course(mode), 2)).steps_per_second()
        };
        let plain = speed(|_| {});
        let changes: [fn(&mut Machines); 6] = [
            |machines| machines.ps_shards *= 2,
            |machines| machines.worker_shards *= 2,
            |machines| machines.ps_nic_gbit *= 2.0,
            |machines| machines.worker_nic_gbit *= 2.0,
            |machines| machines.workers_per_host /= 2,
            |machines| machines.propagation_us /= 2.0,
        ];
        for (index, change) in changes.into_iter().enumerate() {
            let changed = speed(change);
            assert!(changed >= plain * 0.99, "{mode} {index}: {changed} and {plain}");
        }
        assert!(speed(|machines| machines.ps_shards *= 2) > plain * 1.3, "{mode}: it is the ps that is busy");
    }
}
