//! Streams between tasks of two daemons: once the daemons have made a connection for a stream, they only carry its control messages and
//! count its bytes.

use std::{
    io::{Read, Write},
    sync::Arc,
    time::Instant,
};

use sealane::{Code, Error, Stream, StreamListener, StreamOptions, Streams, Task};
use sealane_fusion::{EndpointMap, metrics::ClientCounters};
use tempfile::TempDir;

use crate::{
    daemon::{Daemon, LONG, Settings},
    fixture::{TASK, bytes, directory, peers, to, to_as},
};

const PATIENT: StreamOptions = StreamOptions { window_bytes: 1 << 20, timeout: Some(LONG), polling: None };

/// A task on each of two hosts; the first dials the second.
struct Hosts {
    listener: StreamListener,
    streams: [Streams; 2],
    tasks: [Task; 2],
    daemons: [Daemon; 2],
    _directories: [TempDir; 2],
}

impl Hosts {
    fn new() -> Hosts {
        let (directories, peer) = ([directory(), directory()], peers().swap_remove(0));
        let start =
            |at: usize, task: &str| Daemon::start(&directories[at], Settings { shards: 1, tasks: vec![task.into()] });
        let daemons = [start(0, TASK), start(1, &peer)];
        let lines = daemons.each_ref().map(|daemon| {
            let address = daemon.engine.addresses()[0].to_string();
            format!("{}={address}\n", daemon.engine.tasks()[0])
        });
        for daemon in &daemons {
            daemon.engine.set_map(Arc::new(EndpointMap::parse(&lines.concat(), "test").unwrap()), &[]).unwrap();
        }
        let tasks = [to(&daemons[0]), to_as(&daemons[1], &peer)].map(|attach| attach.attach().unwrap());
        let streams = tasks.each_ref().map(Streams::of);
        let listener = streams[1].listen("bytes", PATIENT).unwrap();
        Hosts { listener, streams, tasks, daemons, _directories: directories }
    }

    fn stream(&self) -> [Stream; 2] {
        let dialed = self.streams[0].connect(self.tasks[1].name(), "bytes", PATIENT).wait().unwrap();
        [dialed, self.listener.accept().wait().unwrap()]
    }
}

fn there_and_back([one, other]: [&Stream; 2], bytes: &[u8]) {
    for (mut from, mut to) in [(one, other), (other, one)] {
        let mut came = vec![0; bytes.len()];
        std::thread::scope(|scope| {
            scope.spawn(|| from.write_all(bytes).unwrap());
            to.read_exact(&mut came).unwrap();
        });
        assert!(came == bytes);
    }
}

fn until_direct(ends: &[Stream; 2]) {
    let deadline = Instant::now() + LONG;
    while !ends.iter().all(Stream::is_direct) {
        assert!(Instant::now() < deadline, "there is no connection");
        there_and_back(ends.each_ref(), b"there");
    }
}

#[test]
fn bytes_between_two_hosts_go_past_the_daemons_which_count_them() {
    const LEN: usize = 3_000_000;
    let hosts = Hosts::new();
    let ends = hosts.stream();
    until_direct(&ends);
    let counted: [fn(&ClientCounters) -> u64; 2] = [|client| client.bytes_sent, |client| client.bytes_received];
    let known = hosts.daemons.each_ref().map(|daemon| counted.map(|counted| daemon.sum(counted)));
    for _ in 0..4 {
        there_and_back(ends.each_ref(), &bytes(LEN, 1));
    }
    // The streams are idle now, and have not ended.
    for (daemon, known) in hosts.daemons.iter().zip(known) {
        for (counted, known) in counted.into_iter().zip(known) {
            daemon.until("it has heard", |daemon| daemon.sum(counted) >= known + 4 * LEN as u64);
            // The first bytes in small pieces, and control messages of the stream.
            assert!(daemon.sum(counted) < known + 4 * LEN as u64 + 100_000);
        }
    }
    drop(ends);
}

#[test]
fn a_stream_ends_with_its_daemon_though_its_connection_stands() {
    let Hosts { listener, streams, tasks, daemons: [worker, ps], _directories } = Hosts::new();
    let dialed = streams[0].connect(tasks[1].name(), "bytes", PATIENT).wait().unwrap();
    let ends = [dialed, listener.accept().wait().unwrap()];
    until_direct(&ends);
    ps.kill();
    for mut end in &ends {
        let error = end.read(&mut [0]).unwrap_err();
        let inner = error.get_ref().and_then(|error| error.downcast_ref::<Error>());
        assert_eq!(inner.map(Error::code), Some(Code::Unavailable), "{error}");
    }
    drop(worker);
}

#[test]
fn another_process_is_given_no_connection_of_a_task() {
    let hosts = Hosts::new();
    let [worker, ps] = &hosts.daemons;
    let (from, to) = (hosts.tasks[0].name(), hosts.tasks[1].name());
    let asker = |pid: i32, uid: u32| sealane_transport::shm::attach::Credentials { pid, uid };
    let (pid, uid) = (std::process::id() as i32, nix::unistd::getuid().as_raw());
    worker.engine.check_attached(from, asker(pid, uid)).unwrap();
    for (task, asker) in [(from, asker(pid + 1, uid)), (from, asker(pid, uid + 1)), (to, asker(pid, uid))] {
        let error = worker.engine.check_attached(task, asker).unwrap_err();
        assert!(matches!(error.code(), Code::PermissionDenied | Code::NotFound), "{error}");
    }
    // Only the right number gets the connection, and only once.
    let (number, _socket) = worker.engine.connect_for_stream(from, to).unwrap();
    assert!(ps.engine.stream_connection(to, from, number ^ 1).is_err());
    assert!(ps.engine.stream_connection(from, to, number).is_err());
    ps.engine.stream_connection(to, from, number).unwrap();
    assert_eq!(ps.engine.stream_connection(to, from, number).unwrap_err().code(), Code::NotFound);
    // There is none to a task of the same daemon, nor to a task that is not in the map.
    assert_eq!(worker.engine.connect_for_stream(from, from).unwrap_err().code(), Code::PermissionDenied);
    assert_eq!(worker.engine.connect_for_stream(from, "nobody:1").unwrap_err().code(), Code::NotFound);
}
