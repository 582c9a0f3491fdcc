//! Who may attach: one process a task, and only users who are let in.

use nix::unistd::geteuid;
use sealane::{Attach, Code};

use crate::fixture::{Daemon, PS, WORKER};
use crate::hosts::{ARENA_BYTES, Hosts};
use crate::processes::Process;
use crate::tensors::{STEP, tensor, verify};
use crate::users::{STRANGER, as_user};

#[test]
fn a_task_in_use_is_free_as_soon_as_its_process_is_killed() {
    let mut hosts = Hosts::start(&[&[PS, WORKER]]);
    let mut first = Process::start(&format!("hold {PS}"), &hosts.socket(PS));
    first.hear("attached");
    let socket = hosts.socket(PS);
    let second = || Attach::new(PS).socket(&socket).arena_bytes(ARENA_BYTES).attach();
    let error = second().unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert!(error.to_string().contains(&format!("process {} is attached as it", first.pid())), "{error}");

    let consumer = hosts.attach(WORKER);
    let waiting = consumer.recv(PS, STEP, "key");
    // The shard knows of it when it has answered what was asked later.
    let probe = consumer.send(WORKER, STEP, "probe", tensor(1, 64));
    verify(&consumer.recv(WORKER, STEP, "probe").wait().unwrap(), 1, 64);
    probe.wait().unwrap();
    hosts.daemon(PS).wait_for("; 2 clients attached;");
    first.kill();
    hosts.daemon(PS).wait_for("; 1 clients attached;");
    let task = second().unwrap();
    let error = waiting.wait().unwrap_err().error;
    assert!(error.to_string().contains(&format!("process {} was attached as it", first.pid())), "{error}");
    let sending = task.send(WORKER, STEP, "key", tensor(3, 64));
    verify(&consumer.recv(PS, STEP, "key").wait().unwrap(), 3, 64);
    sending.wait().unwrap();
    drop((task, consumer));
    hosts.drain();
}

#[test]
fn a_stranger_is_told_what_to_do() {
    if !geteuid().is_root() {
        eprintln!("SKIPPED: only root can act as other users");
        return;
    }
    let attach = |socket| as_user(STRANGER, || Attach::new(PS).socket(socket).attach().unwrap_err());
    let (place, daemon) = Daemon::start(&[]);
    let error = attach(place.socket());
    assert_eq!(error.code(), Code::PermissionDenied);
    let text = error.to_string();
    assert!(text.contains("belongs to another user: run as the user of the daemon"), "{text}");
    daemon.stop();

    // Where some others may, the daemon itself looks at who comes.
    let (place, _daemon) = Daemon::start(&["--set", &format!("daemon.allowed_uids={}", STRANGER + 1)]);
    let error = attach(place.socket());
    assert_eq!(error.code(), Code::PermissionDenied);
    let text = error.to_string();
    assert!(text.contains(&format!("user id {STRANGER} may not attach")), "{text}");
    assert!(text.contains("add it to daemon.allowed_uids"), "{text}");
}
