//! Who may attach: one process per task.

use sealane::{Attach, Code};

use crate::fixture::{PS, STUCK, WORKER};
use crate::hosts::{ARENA_BYTES, Hosts};
use crate::processes::Process;
use crate::tensors::{STEP, tensor, verify};

#[test]
fn a_task_in_use_is_free_as_soon_as_its_process_is_killed() {
    let mut hosts = Hosts::start(&[&[PS, WORKER]]);
    let mut first = Process::start(&format!("hold {PS}"), &hosts.socket(PS));
    first.hear("attached");
    let socket = hosts.socket(PS);
    let second = || Attach::new(PS).socket(&socket).arena_bytes(ARENA_BYTES).timeout(STUCK).attach();
    let error = second().unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert!(
        error.to_string().contains(&format!("process {} is already attached as this task", first.pid())),
        "{error}"
    );

    let consumer = hosts.attach(WORKER);
    let waiting = consumer.recv(PS, STEP, "key");
    // Once the shard has answered this later call, it knows of the first.
    let probe = consumer.send(WORKER, STEP, "probe", tensor(1, 64));
    verify(&consumer.recv(WORKER, STEP, "probe").wait().unwrap(), 1, 64);
    probe.wait().unwrap();
    hosts.daemon(PS).wait_for("; 2 clients attached;");
    first.kill();
    hosts.daemon(PS).wait_for("; 1 client attached;");
    let task = second().unwrap();
    let error = waiting.wait().unwrap_err().error;
    assert!(error.to_string().contains(&format!("process {} was attached as this task", first.pid())), "{error}");
    let sending = task.send(WORKER, STEP, "key", tensor(3, 64));
    verify(&consumer.recv(PS, STEP, "key").wait().unwrap(), 3, 64);
    sending.wait().unwrap();
    drop((task, consumer));
    hosts.drain();
}
