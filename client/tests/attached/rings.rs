//! Streams between two tasks of one host: their bytes go past the daemon, and everything else is as if they had not.

use std::{
    io::{Read, Write},
    task::{Context, Waker},
    thread,
    time::Instant,
};

use nix::unistd;
use sealane::{Stream, StreamOptions, Streams, Task};
use sealane_transport::shm::attach::Credentials;
use tempfile::TempDir;

use crate::{
    daemon::{Daemon, LONG, Settings},
    direct::open_lane,
    fixture::{directory, peers, to, to_as},
};

/// A stream between two tasks, and what both ends have of each other.
struct Joined {
    tasks: [Task; 2],
    streams: [Streams; 2],
    ends: [Stream; 2],
    daemon: Daemon,
    _directory: TempDir,
}

impl Joined {
    fn new() -> Joined {
        let (directory, peer) = (directory(), peers().swap_remove(0));
        let daemon = Daemon::start(&directory, Settings::default());
        let tasks = [to(&daemon).attach().unwrap(), to_as(&daemon, &peer).attach().unwrap()];
        let streams = tasks.each_ref().map(Streams::of);
        let ends = join(&streams, &peer, "first");
        Joined { tasks, streams, ends, daemon, _directory: directory }
    }

    /// Until what both write goes by a ring.
    fn until_direct(&mut self) {
        let deadline = Instant::now() + LONG;
        while !self.ends.iter().all(Stream::is_direct) {
            assert!(Instant::now() < deadline, "{:?} {:?}", self.tasks[0].direct_peers(), self.tasks[1].direct_peers());
            for _ in 0..2 {
                echo(&mut self.ends, &[7; 100]);
                self.ends.swap(0, 1);
            }
        }
    }
}

fn join(streams: &[Streams; 2], peer: &str, name: &str) -> [Stream; 2] {
    let options = StreamOptions { timeout: Some(LONG), ..StreamOptions::default() };
    let listener = streams[1].listen(name, options).unwrap();
    let dialed = streams[0].connect(peer, name, options);
    let accepted = thread::scope(|scope| {
        let accepting = scope.spawn(|| listener.accept().wait().unwrap());
        (dialed.wait().unwrap(), accepting.join().unwrap())
    });
    accepted.into()
}

/// The first writes, and the second reads.
fn echo(ends: &mut [Stream; 2], bytes: &[u8]) {
    let [one, other] = ends;
    let mut read = vec![0; bytes.len()];
    thread::scope(|scope| {
        scope.spawn(|| one.write_all(bytes).unwrap());
        other.read_exact(&mut read).unwrap();
    });
    assert!(read == bytes);
}

#[test]
fn bytes_between_two_tasks_of_a_host_go_past_the_daemon() {
    let mut joined = Joined::new();
    joined.until_direct();
    let bytes: Vec<u8> = (0..5_000_000).map(|at: u32| ((at * 31) >> 3) as u8).collect();
    for _ in 0..4 {
        echo(&mut joined.ends, &bytes);
        joined.ends.swap(0, 1);
    }
}

/// What came by the daemon, and was not read, comes before what the ring has.
#[test]
fn what_was_pushed_before_is_read_before() {
    let mut joined = Joined::new();
    let [one, other] = &mut joined.ends;
    // It has waited when there was nothing.
    assert!(other.poll_read(&mut [0], &mut Context::from_waker(Waker::noop())).is_pending());
    let (deadline, mut written) = (Instant::now() + LONG, 0_u32);
    let mut write = |one: &mut Stream| {
        one.write_all(&written.to_le_bytes()).unwrap();
        written += 1;
    };
    while !one.is_direct() {
        assert!(Instant::now() < deadline);
        write(one);
    }
    (0..100).for_each(|_| write(one));
    for expected in 0..written {
        let mut number = [0; 4];
        other.read_exact(&mut number).unwrap();
        assert_eq!(u32::from_le_bytes(number), expected);
    }
}

/// The two have another lane, as when one has lost its end of the first: streams go on by that, and new ones by the other.
#[test]
fn streams_outlive_their_lane() {
    let mut joined = Joined::new();
    joined.until_direct();
    let Joined { daemon, tasks: [one, other], streams, ends, .. } = &mut joined;
    let own = Credentials { pid: std::process::id() as i32, uid: unistd::getuid().as_raw() };
    daemon.engine.direct_lane(one.name(), other.name(), own).unwrap();
    daemon.until("it has ended", |_| one.direct_peers().is_empty() || other.direct_peers().is_empty());
    let bytes = vec![5; 3_000_000];
    for _ in 0..4 {
        echo(ends, &bytes);
        ends.swap(0, 1);
    }
    assert!(ends.iter().all(Stream::is_direct));
    open_lane(one, other, other.name());
    let mut next = join(streams, other.name(), "next");
    for _ in 0..4 {
        for ends in [&mut *ends, &mut next] {
            echo(ends, &bytes);
            ends.swap(0, 1);
        }
    }
    assert!(next.iter().all(Stream::is_direct));
}
