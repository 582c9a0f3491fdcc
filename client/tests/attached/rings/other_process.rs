//! The process at the other end stops or is gone: what it has written can be read, nobody hangs, and other streams go on.

use std::{
    io::{Read, Write},
    thread,
};

use nix::sys::signal::{Signal, raise};
use sealane::{Attach, Code, Stream, Streams, Task};
use tempfile::TempDir;

use super::{NARROW, PATIENT, code, echo, fill, read_all, until_direct};
use crate::{
    daemon::{Daemon, LONG},
    fixture::{TASK, attached, bytes, peers, to_as},
    stopped::{Other, SOCKET},
};

/// What it leaves in its ring before it stops.
const LEFT: usize = 200_000;
const SEED: u64 = 77;

/// What the other process does: it dials, and answers each question whether it writes by a ring. Then it writes, stops, and echoes what
/// comes after it was continued.
#[test]
#[ignore = "it is the other process of the tests here"]
fn what_it_does() {
    let Ok(socket) = std::env::var(SOCKET) else { return };
    let own = Attach::new(&peers().swap_remove(0)).socket(socket).arena_bytes(4 << 20).timeout(LONG).attach().unwrap();
    let mut stream = Streams::of(&own).connect(TASK, "bytes", PATIENT).wait().unwrap();
    loop {
        let mut asked = [0];
        stream.read_exact(&mut asked).unwrap();
        match asked {
            [b'?'] => stream.write_all(&[stream.is_direct().into()]).unwrap(),
            _ => break,
        }
    }
    stream.write_all(&bytes(LEFT, SEED)).unwrap();
    raise(Signal::SIGSTOP).unwrap();
    let mut some = vec![0; 5000];
    loop {
        match stream.read(&mut some).unwrap() {
            0 => break,
            count => stream.write_all(&some[..count]).unwrap(),
        }
    }
    stream.finish().wait().unwrap();
}

/// A task whose neighbour has stopped, with bytes in the ring between the two.
struct WithStopped {
    stream: Stream,
    other: Other,
    streams: Streams,
    _task: Task,
    daemon: Daemon,
    _directory: TempDir,
}

impl WithStopped {
    fn new() -> WithStopped {
        let (directory, daemon, task) = attached();
        let streams = Streams::of(&task);
        let listener = streams.listen("bytes", PATIENT).unwrap();
        let other = Other::start(&daemon, "rings::other_process::what_it_does", true);
        let mut stream = listener.accept().wait().unwrap();
        let mut is_direct = [0];
        while !stream.is_direct() || is_direct == [0] {
            stream.write_all(b"?").unwrap();
            stream.read_exact(&mut is_direct).unwrap();
        }
        stream.write_all(b"!").unwrap();
        other.until_it_has_stopped();
        WithStopped { stream, other, streams, _task: task, daemon, _directory: directory }
    }
}

#[test]
fn what_a_killed_process_has_written_is_read_and_then_its_end_is_told() {
    let WithStopped { stream, other, daemon, .. } = &WithStopped::new();
    let sent = bytes(1 << 20, 1);
    let written = fill(stream, &sent);
    thread::scope(|scope| {
        let writing = scope.spawn(|| (&mut &*stream).write_all(&sent[written..]).unwrap_err());
        other.signal(Signal::SIGKILL);
        daemon.until_detached(&other.name);
        let (came, error) = read_all(stream);
        assert!(came == bytes(LEFT, SEED), "{} bytes came", came.len());
        assert_eq!(code(&error.unwrap()), Code::Unavailable);
        assert_eq!(code(&writing.join().unwrap()), Code::Unavailable);
    });
    assert_eq!(stream.finish().wait().unwrap_err().code(), Code::Unavailable);
}

#[test]
fn who_waits_for_a_process_hears_that_it_was_killed() {
    let WithStopped { stream, other, .. } = &WithStopped::new();
    let mut came = vec![0; LEFT];
    (&mut &*stream).read_exact(&mut came).unwrap();
    assert!(came == bytes(LEFT, SEED));
    let sent = bytes(1 << 20, 1);
    let written = fill(stream, &sent);
    thread::scope(|scope| {
        let writing = scope.spawn(|| (&mut &*stream).write_all(&sent[written..]).unwrap_err());
        let reading = scope.spawn(|| (&mut &*stream).read(&mut [0]).unwrap_err());
        other.signal(Signal::SIGKILL);
        assert_eq!(code(&reading.join().unwrap()), Code::Unavailable);
        assert_eq!(code(&writing.join().unwrap()), Code::Unavailable);
    });
}

#[test]
fn a_process_that_stops_holds_up_its_own_streams_alone_and_goes_on_where_it_was() {
    const MORE: usize = 3 << 20;
    let WithStopped { stream, other, streams, daemon, .. } = &WithStopped::new();
    let sent = bytes(MORE, 1);
    let written = fill(stream, &sent);
    assert!(written < MORE);

    // Streams with another task, over rings and over pushes.
    let third = to_as(daemon, &peers()[1]).attach().unwrap();
    let thirds = Streams::of(&third);
    for options in [PATIENT, NARROW] {
        let listener = thirds.listen("more", options).unwrap();
        let dialed = streams.connect(third.name(), "more", options).wait().unwrap();
        let mut ends = [dialed, listener.accept().wait().unwrap()];
        if options == PATIENT {
            until_direct(&mut ends);
        }
        for _ in 0..2 {
            echo(&mut ends, &bytes(1 << 20, 5));
            ends.swap(0, 1);
        }
    }
    assert_eq!(fill(stream, &sent[written..]), 0, "it waits");

    thread::scope(|scope| {
        let writing = scope.spawn(|| {
            (&mut &*stream).write_all(&sent[written..]).unwrap();
            stream.finish().wait().unwrap();
        });
        other.signal(Signal::SIGCONT);
        let (came, error) = read_all(stream);
        assert!(error.is_none(), "{error:?}");
        assert!(came == [bytes(LEFT, SEED), sent.clone()].concat(), "{} bytes came", came.len());
        writing.join().unwrap();
    });
}
