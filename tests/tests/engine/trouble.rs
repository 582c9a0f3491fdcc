//! Calls that name something that does not exist.

use sealane_fusion::{Code, Engine, EngineSettings};

use crate::fixture::{carry, listener, map, port, settings, task, tensor, two};

#[test]
fn unknown_tasks_are_an_error_to_their_caller_alone() {
    let (ps, worker) = two();
    let error = ps.task("nobody:1").err().expect("not a task of this engine");
    assert_eq!(error.code(), Code::NotFound);
    let ps_task = ps.task(&task(0)).unwrap();
    let error = ps_task.recv("nobody:1", 1, "w").wait().unwrap_err().error;
    assert_eq!(error.code(), Code::NotFound);
    assert!(error.to_string().contains("nobody:1") && error.to_string().contains("endpoint map"), "{error}");
    let error = ps_task.send("nobody:1", 1, "w", tensor(1, 0)).wait().unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
    carry((&ps, 0), (&worker, 1), 1, 10);
}

#[test]
fn a_task_that_is_not_where_the_map_says_is_not_found() {
    let (one, other) = (listener(), listener());
    // The worker's map has a task 2 at the ps's address, which the ps does not know.
    let ports = [port(&one), port(&other)];
    let ps = Engine::start(settings(map(&ports), 0, one)).unwrap();
    let worker = Engine::start(settings(map(&[ports[0], ports[1], ports[0]]), 1, other)).unwrap();
    let error = worker.task(&task(1)).unwrap().recv(&task(2), 1, "w").wait().unwrap_err().error;
    assert_eq!(error.code(), Code::NotFound, "{error}");
    carry((&ps, 0), (&worker, 1), 1, 10);
}

#[test]
fn a_host_that_the_producers_map_does_not_have_is_told_so() {
    let (one, other) = (listener(), listener());
    let ports = [port(&one), port(&other)];
    // Only the worker's map has both tasks.
    let ps = Engine::start(settings(map(&ports[..1]), 0, one)).unwrap();
    let worker = Engine::start(settings(map(&ports), 1, other)).unwrap();
    let error = worker.task(&task(1)).unwrap().recv(&task(0), 1, "w").wait().unwrap_err().error;
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    assert!(error.to_string().contains(&format!("has no task at 127.0.0.1:{}", ports[1])), "{error}");
    drop(ps);
}

#[test]
fn a_task_that_the_producers_map_does_not_have_is_told_so_until_the_map_has_it() {
    let (one, other) = (listener(), listener());
    let ports = [port(&one), port(&other), port(&other)];
    // The ps knows the worker's host by one of its tasks, but not the second one yet.
    let ps = Engine::start(settings(map(&ports[..2]), 0, one)).unwrap();
    let mut on_worker = settings(map(&ports), 1, other);
    on_worker.tasks.push(task(2).parse().unwrap());
    let worker = Engine::start(on_worker).unwrap();
    let second = worker.task(&task(2)).unwrap();
    let error = second.recv(&task(0), 1, "w").wait().unwrap_err().error;
    assert_eq!(error.code(), Code::NotFound, "{error}");
    assert!(error.to_string().contains("endpoint map of the producer's host"), "{error}");
    ps.set_map(std::sync::Arc::new(map(&ports)), &[]).unwrap();
    carry((&ps, 0), (&worker, 2), 2, 10);
}

#[test]
fn settings_that_cannot_work_are_refused_at_start() {
    let refused = |settings: EngineSettings| Engine::start(settings).err().expect("refused").to_string();
    let own = listener();
    let mut without_tasks = settings(map(&[port(&own)]), 0, own);
    without_tasks.tasks.clear();
    assert!(refused(without_tasks).contains("no task"));
    let own = listener();
    let stranger = settings(map(&[port(&own)]), 7, own);
    let error = refused(stranger);
    assert!(error.contains("task7:2222") && error.contains("add a line"), "{error}");
    let (own, other) = (listener(), listener());
    let mut two_homes = settings(map(&[port(&own), port(&other)]), 0, own);
    two_homes.tasks.push(task(1).parse().unwrap());
    assert!(refused(two_homes).contains("1 listeners for 2 transport addresses"));
}
