//! Tasks whose process is killed: calls that wait for them are told, and so are later calls, unless they wait for the task's return.

use std::time::{Duration, Instant};

use sealane::{
    AcceptOptions, Code, Error, PullOptions, RecvOptions, RowsOptions, ShardedTable, StreamOptions, Streams, Task,
};

use crate::fixture::{PS, WORKER};
use crate::hosts::{Hosts, NEAR_AND_FAR};
use crate::processes::Process;
use crate::roles::LISTENER;
use crate::tensors::STEP;

/// Longer than anything here takes, and shorter than the wait of a call that nobody ends.
const LONG: Duration = Duration::from_secs(60);
/// How soon waiting calls must hear that a task has left, including the delay of a busy machine.
const HEARD_WITHIN: Duration = Duration::from_secs(1);
const LOADED_MACHINE: Duration = Duration::from_secs(9);
/// A wait that should find that nothing comes.
const SHORT: Duration = Duration::from_millis(200);

fn recv_or_fail(task: &Task, key: &str) -> sealane::Receiving {
    let options = RecvOptions { timeout: Some(LONG), fail_if_gone: true, ..RecvOptions::default() };
    task.recv_with(PS, STEP, key, options)
}

/// Whether the error says that the process of the ps has ended.
fn is_left(error: &Error, process: &Process) -> bool {
    let pid = format!("process {} was attached as this task", process.pid());
    matches!(error, Error::Left { task, reason } if &**task == PS && reason.contains(&pid))
        && error.code() == Code::Unavailable
}

fn a_ps_is_killed(mut hosts: Hosts) {
    let beside = usize::from(hosts.socket(PS) == hosts.socket(WORKER));
    let worker = hosts.attach(WORKER);
    let gradients = worker.acceptor("gradients", AcceptOptions::default());
    let users = ShardedTable::of(PS, "user").unwrap();
    // The task has not attached yet: the recv waits for it.
    let first = recv_or_fail(&worker, "before anybody came");
    for _ in 0..2 {
        let mut ps = Process::start(&format!("hold {PS}"), &hosts.socket(PS));
        ps.hear("attached");
        let waiting = recv_or_fail(&worker, "w");
        let streams = Streams::of(&worker);
        let pull = || {
            let options = PullOptions { timeout: Some(LONG), fail_if_gone: true };
            worker.pull_many_with(PS, sealane::Keys::new(["w"]).unwrap(), 0, options)
        };
        let rows = || {
            let options = RowsOptions { timeout: Some(LONG), ..RowsOptions::default() };
            worker.pull_rows(&users, &[1], &options)
        };
        let dial = || streams.connect(PS, LISTENER, StreamOptions::default());
        let (pulling, gathering, dialing) = (pull(), rows(), dial());
        let accepted = gradients.accept().fail_if_gone([PS]).wait_within(SHORT).unwrap();
        assert!(accepted.is_none(), "nothing came, and nobody has left");
        let begun = Instant::now();
        ps.kill();
        let hears = |who: &str, begun: Instant, error: Error| {
            assert!(is_left(&error, &ps), "{who}: {error}");
            let heard = begun.elapsed();
            assert!(heard < HEARD_WITHIN + LOADED_MACHINE, "{who}: after {heard:?}");
        };
        hears("recv", begun, waiting.wait().unwrap_err().error);
        hears("pull", begun, pulling.wait().remove(0).unwrap_err());
        hears("rows", begun, gathering.wait().unwrap_err().error);
        hears("accept", begun, gradients.accept().fail_if_gone([PS]).wait().unwrap_err());
        hears("stream", begun, dialing.wait().unwrap_err());
        hosts.until_clients(PS, beside);
        // These calls are made after it has left.
        let asked = Instant::now();
        hears("recv", asked, recv_or_fail(&worker, "w").wait().unwrap_err().error);
        hears("pull", asked, pull().wait().remove(0).unwrap_err());
        hears("rows", asked, rows().wait().unwrap_err().error);
        hears("stream", asked, dial().wait().unwrap_err());
        // Calls that do not ask for this failure wait for the next process.
        let options = RecvOptions { timeout: Some(SHORT), ..RecvOptions::default() };
        let error = worker.recv_with(PS, STEP, "w", options).wait().unwrap_err().error;
        assert_eq!(error.code(), Code::DeadlineExceeded);
        let options = RowsOptions { timeout: Some(SHORT), fail_if_gone: false, ..RowsOptions::default() };
        let error = worker.pull_rows(&users, &[1], &options).wait().unwrap_err().error;
        assert_eq!(error.code(), Code::DeadlineExceeded);
    }
    assert!(matches!(first.wait().unwrap_err().error, Error::Left { .. }), "it waited for the first of them");
    drop((gradients, worker));
    hosts.drain();
}

#[test]
fn who_waits_for_a_task_hears_that_its_process_was_killed() {
    NEAR_AND_FAR.into_iter().map(Hosts::start).for_each(a_ps_is_killed);
}

#[test]
fn a_task_whose_daemon_is_restarted_has_not_left() {
    let mut hosts = Hosts::start(&[&[PS], &[WORKER]]);
    let (ps, worker) = (hosts.attach(PS), hosts.attach(WORKER));
    let table = vec![7_u8; 64];
    let publish =
        || ps.publish_table("user", sealane::Tensor::from_elements(&[8, 8], &table).unwrap(), Default::default());
    let _table = publish().unwrap();
    let users = ShardedTable::of(PS, "user").unwrap();
    let options = || RowsOptions { timeout: Some(LONG), ..RowsOptions::default() };
    worker.pull_rows(&users, &[1], &options()).wait().unwrap();
    hosts.kill(PS);
    hosts.restart(PS);
    // Its process is alive and publishes again; until then the pull waits.
    let pulled = loop {
        match worker.pull_rows(&users, &[1], &options()).wait() {
            Ok(pulled) => break pulled,
            // The killed daemon's error.
            Err(unreceived) => assert!(!matches!(unreceived.error, Error::Left { .. }), "{unreceived}"),
        }
    };
    assert_eq!(pulled.rows.bytes(), [7; 8]);
    drop((ps, worker));
    hosts.drain();
}
