//! A process that stops midway, which leaves its direct lane as it was at that moment: its peer goes on by its own deadlines, and is told
//! when the process has ended.

use std::{
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::{
        signal::{Signal, kill, raise},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};
use sealane::{Attach, Code, Receiving, RecvOptions, SendOptions, Sending, Task};

use crate::{
    daemon::{Daemon, LONG},
    fixture::{TASK, attached, bytes, peers, tensor, to_as},
};

/// Environment variables that tell a process of this program which socket to attach at, and what to do.
pub const SOCKET: &str = "SEALANE_STOPPED_SOCKET";
const STOPS: &str = "SEALANE_STOPPED_STOPS";
/// The test that the other process runs.
const ANSWERS: &str = "stopped::what_the_other_process_does";
/// More than a lane has entries for.
const MANY: u64 = 1500;
const SHORT: Duration = Duration::from_millis(30);

/// Another process of this program that attaches as a peer and runs one of its tests. It never outlives the test.
pub struct Other {
    child: Child,
    pub name: String,
}

impl Other {
    pub fn start(daemon: &Daemon, test: &str, stops: bool) -> Other {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "--ignored", test]).stdout(Stdio::null());
        command.env(SOCKET, &daemon.socket).env(STOPS, if stops { "yes" } else { "no" });
        Other { child: command.spawn().unwrap(), name: peers().swap_remove(0) }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    pub fn until_it_has_stopped(&self) {
        let stopped = WaitStatus::Stopped(self.pid(), Signal::SIGSTOP);
        assert_eq!(waitpid(self.pid(), Some(WaitPidFlag::WUNTRACED)).unwrap(), stopped);
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // Fails if the process has already ended and was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the other process does: it answers until it is told that there is a lane, and reports whether it has one too. Then it fills the
/// lane and stops, or goes on answering until it is told to end.
#[test]
#[ignore = "it is the other process of the tests here"]
fn what_the_other_process_does() {
    let Ok(socket) = std::env::var(SOCKET) else { return };
    let stops = std::env::var(STOPS).unwrap() == "yes";
    let own = Attach::new(&peers().swap_remove(0)).socket(socket).arena_bytes(4 << 20).timeout(LONG).attach().unwrap();
    for step in 0.. {
        let asked = own.recv(TASK, step, "ask").wait().unwrap();
        let has_lane = own.direct_peers() == [TASK];
        own.send(TASK, step, "answer", tensor(10 + usize::from(has_lane), step as u64)).wait().unwrap();
        match asked.bytes().len() {
            10 => {}
            11 if stops => break,
            11 => {}
            _ => return,
        }
    }
    let sendings = own.send_all(TASK, 1, (0..MANY).map(|key| (key.to_string(), tensor(64, key))));
    raise(Signal::SIGSTOP).unwrap();
    drop(sendings);
}

/// Asks once and waits for the answer, each with a timeout; the number of bytes in the answer, or `None` after a timeout.
fn ask(task: &Task, peer: &str, step: i64, len: usize, timeout: Duration) -> Option<usize> {
    let options = SendOptions { timeout: Some(timeout) };
    let sending = task.send_with(peer, step, "ask", tensor(len, step as u64), options);
    match sending.wait() {
        Ok(()) => answer(task, peer, step, timeout),
        Err(error) => {
            assert_eq!(error.code(), Code::DeadlineExceeded, "{error}");
            None
        }
    }
}

fn answer(task: &Task, peer: &str, step: i64, timeout: Duration) -> Option<usize> {
    let options = RecvOptions { timeout: Some(timeout), ..RecvOptions::default() };
    match task.recv_with(peer, step, "answer", options).wait() {
        Ok(answer) => {
            assert_eq!(answer.bytes(), bytes(answer.bytes().len(), step as u64));
            Some(answer.bytes().len())
        }
        Err(unreceived) => {
            assert_eq!(unreceived.error.code(), Code::DeadlineExceeded, "{}", unreceived.error);
            None
        }
    }
}

/// Asks until both have a lane; returns the next step.
fn until_there_is_a_lane(task: &Task, peer: &str) -> i64 {
    let deadline = Instant::now() + LONG;
    for step in 0.. {
        assert!(Instant::now() < deadline, "{:?}", task.direct_peers());
        let answered = ask(task, peer, step, 10, LONG).unwrap();
        if answered == 11 && task.direct_peers() == [peer] {
            return step + 1;
        }
    }
    unreachable!("steps do not end")
}

#[test]
fn one_that_fills_a_lane_and_stops_holds_nobody_up_and_its_end_is_told() {
    let (_directory, daemon, task) = attached();
    let other = Other::start(&daemon, ANSWERS, true);
    let peer = other.name.clone();
    let step = until_there_is_a_lane(&task, &peer);
    assert!(ask(&task, &peer, step, 11, LONG).is_some());
    other.until_it_has_stopped();

    // What it had written arrives; what found no room is held in its process, until it goes on.
    let briefly = || RecvOptions { timeout: Some(SHORT), ..RecvOptions::default() };
    let receivings = task.recv_all(&peer, 1, (0..MANY).map(|key| (key.to_string(), briefly())));
    let received = Receiving::wait_all(receivings);
    let written = received.iter().take_while(|received| received.is_ok()).count();
    assert!((1..MANY as usize).contains(&written), "{written} of {MANY} arrived");
    for (received, key) in received.into_iter().zip(0..) {
        match received {
            Ok(tensor) => assert_eq!(tensor.bytes(), bytes(64, key)),
            Err(unreceived) => {
                assert!(key as usize >= written);
                assert_eq!(unreceived.error.code(), Code::DeadlineExceeded);
            }
        }
    }
    // Calls that need its help end at their deadlines.
    assert_eq!(ask(&task, &peer, step + 1, 10, SHORT), None);
    assert_eq!(answer(&task, &peer, step + 1, SHORT), None);
    // Sends to it find a full lane, too.
    let sendings = task.send_all(&peer, 2, (0..MANY).map(|key| (key.to_string(), tensor(64, key))));
    let receiving = task.recv(&peer, 2, "never");
    let late = task.send_with(&peer, 3, "late", tensor(64, 1), SendOptions { timeout: Some(SHORT) });
    assert_eq!(late.wait().unwrap_err().code(), Code::DeadlineExceeded);

    other.signal(Signal::SIGKILL);
    assert_eq!(receiving.wait().unwrap_err().error.code(), Code::Unavailable);
    daemon.until_detached(&peer);
    // The next process of that task gets what was left for this one.
    let next = to_as(&daemon, &peer).attach().unwrap();
    let receivings = next.recv_all(TASK, 2, (0..MANY).map(|key| (key.to_string(), RecvOptions::default())));
    for (received, key) in Receiving::wait_all(receivings).into_iter().zip(0..) {
        assert_eq!(received.unwrap().bytes(), bytes(64, key));
    }
    assert!(Sending::wait_all(sendings).into_iter().all(|outcome| outcome.is_ok()));
}

#[test]
fn one_that_stops_at_any_moment_and_goes_on_later_has_lost_nothing() {
    let (_directory, daemon, task) = attached();
    let other = Other::start(&daemon, ANSWERS, false);
    let peer = other.name.clone();
    let mut step = until_there_is_a_lane(&task, &peer);
    for _ in 0..10 {
        // The signal comes while the two exchange tensors.
        let stopping = std::thread::scope(|scope| {
            scope.spawn(|| {
                other.signal(Signal::SIGSTOP);
                other.until_it_has_stopped();
            });
            while ask(&task, &peer, step, 10, SHORT).is_some() {
                step += 1;
            }
            step
        });
        other.signal(Signal::SIGCONT);
        // The question's deadline passed before the other received it, or after; in that case the answer comes.
        let deadline = Instant::now() + LONG;
        while answer(&task, &peer, stopping, SHORT).is_none() && ask(&task, &peer, stopping, 10, SHORT).is_none() {
            assert!(Instant::now() < deadline, "it does not go on");
        }
        step = stopping + 1;
    }
    // A question of this length ends the other process.
    assert!(ask(&task, &peer, step, 12, LONG).is_some());
    daemon.until_detached(&peer);
}
