//! Streams between two tasks of one host: their bytes bypass the daemon; everything else behaves as if they did not.

mod crowd;
mod endings;
mod forked;
mod hostile;
mod other_process;
mod pace;
mod pressed;
mod restarted;

use std::{
    io::{self, Read, Write},
    task::{Context, Poll, Waker},
    thread,
    time::Instant,
};

use sealane::{Attach, Code, Error, Stream, StreamListener, StreamOptions, Streams, Task};
use sealane_fusion::metrics::ClientCounters;
use tempfile::TempDir;

use crate::{
    daemon::{Daemon, LONG, Settings},
    direct::open_lane,
    fixture::{bytes, directory, peers, to, to_as},
};

/// A wait that takes longer has failed.
const PATIENT: StreamOptions = StreamOptions { window_bytes: 1 << 20, timeout: Some(LONG), polling: None };
/// Too narrow for a ring.
const NARROW: StreamOptions = StreamOptions { window_bytes: 64 << 10, timeout: Some(LONG), polling: None };

/// Two tasks with a direct lane; the first dials the second.
struct Neighbours {
    listener: StreamListener,
    streams: [Streams; 2],
    tasks: [Task; 2],
    daemon: Daemon,
    directory: TempDir,
}

impl Neighbours {
    fn new() -> Neighbours {
        Neighbours::attached_with(|attach| attach)
    }

    fn attached_with(how: impl Fn(Attach) -> Attach) -> Neighbours {
        let (directory, peer) = (directory(), peers().swap_remove(0));
        let daemon = Daemon::start(&directory, Settings::default());
        let tasks = [to(&daemon), to_as(&daemon, &peer)].map(|attach| how(attach).attach().unwrap());
        open_lane(&tasks[0], &tasks[1], &peer);
        let streams = tasks.each_ref().map(Streams::of);
        let listener = streams[1].listen("bytes", PATIENT).unwrap();
        Neighbours { listener, streams, tasks, daemon, directory }
    }

    /// A stream that still uses pushes: the dialer's end and the listener's end.
    fn stream(&self) -> [Stream; 2] {
        self.stream_as(PATIENT)
    }

    /// Like [`Neighbours::stream`], with other options for the dialer's end.
    fn stream_as(&self, options: StreamOptions) -> [Stream; 2] {
        let dialed = self.streams[0].connect(self.tasks[1].name(), "bytes", options).wait().unwrap();
        [dialed, self.listener.accept().wait().unwrap()]
    }

    /// A stream that uses rings both ways.
    fn direct_stream(&self) -> [Stream; 2] {
        let mut ends = self.stream();
        until_direct(&mut ends);
        ends
    }
}

/// Sends bytes both ways until both ends use rings.
fn until_direct(ends: &mut [Stream; 2]) {
    let deadline = Instant::now() + LONG;
    while !ends.iter().all(Stream::is_direct) {
        assert!(Instant::now() < deadline, "{:?}", ends.each_ref().map(Stream::is_direct));
        for _ in 0..2 {
            echo(ends, &[7; 100]);
            ends.swap(0, 1);
        }
    }
}

/// The first end writes, and the second reads.
fn echo(ends: &mut [Stream; 2], bytes: &[u8]) {
    let [one, other] = ends;
    let mut read = vec![0; bytes.len()];
    thread::scope(|scope| {
        scope.spawn(|| one.write_all(bytes).unwrap());
        other.read_exact(&mut read).unwrap();
    });
    assert!(read == bytes);
}

/// Writes until the stream takes no more; the number of bytes written.
fn fill(stream: &Stream, from: &[u8]) -> usize {
    let mut count = 0;
    while let Poll::Ready(written) = stream.poll_write(&from[count..], &mut Context::from_waker(Waker::noop())) {
        count += written.unwrap();
    }
    count
}

/// Reads to the end or to an error: the bytes, and the error if there was one.
fn read_all(mut stream: &Stream) -> (Vec<u8>, Option<io::Error>) {
    let mut came = Vec::new();
    let error = stream.read_to_end(&mut came).err();
    (came, error)
}

/// The library's error code behind a failed call of `std::io`.
fn code(error: &io::Error) -> Code {
    error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()).unwrap_or_else(|| panic!("{error:?}")).code()
}

/// A reproducible sequence of pseudorandom numbers.
struct Random(u64);

impl Random {
    /// A number in `0..end`.
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

#[test]
fn bytes_between_two_tasks_of_a_host_go_past_the_daemon() {
    let (directory, peer, options) = (directory(), peers().swap_remove(0), StreamOptions::default());
    let daemon = Daemon::start(&directory, Settings::default());
    let tasks = [to(&daemon).attach().unwrap(), to_as(&daemon, &peer).attach().unwrap()];
    let streams = tasks.each_ref().map(Streams::of);
    let listener = streams[1].listen("first", options).unwrap();
    let dialed = streams[0].connect(&peer, "first", options).wait().unwrap();
    let mut ends = [dialed, listener.accept().wait().unwrap()];
    // The two get a lane for these bytes alone.
    until_direct(&mut ends);
    let bytes: Vec<u8> = (0..5_000_000).map(|at: u32| ((at * 31) >> 3) as u8).collect();
    for _ in 0..4 {
        echo(&mut ends, &bytes);
        ends.swap(0, 1);
    }
}

#[test]
fn bytes_of_rings_are_counted_once_here_and_at_the_daemon() {
    const LEN: usize = 3_000_000;
    let neighbours = Neighbours::new();
    let mut ends = neighbours.direct_stream();
    let figures = |of: usize| {
        let figures = neighbours.streams[of].figures();
        let [(_, figures)] = figures.as_slice() else { panic!("{figures:?}") };
        (figures.bytes_sent, figures.bytes_received)
    };
    let (before, sent) = ([figures(0), figures(1)], bytes(LEN, 1));
    assert_eq!(before[0], (before[1].1, before[1].0));
    let counted: [fn(&ClientCounters) -> u64; 2] = [|client| client.bytes_sent, |client| client.bytes_received];
    let known = counted.map(|counted| neighbours.daemon.sum(counted));
    echo(&mut ends, &sent);
    // Written bytes count even if nobody has read them.
    ends[1].write_all(&sent[..1000]).unwrap();
    for _ in 0..2 {
        assert_eq!(figures(0), (before[0].0 + LEN as u64, before[0].1 + 1000));
        assert_eq!(figures(1), (before[1].0 + 1000, before[1].1 + LEN as u64));
    }
    ends[0].read_exact(&mut [0; 1000]).unwrap();
    for (counted, known) in counted.into_iter().zip(known) {
        neighbours.daemon.until("it has heard", |daemon| daemon.sum(counted) >= known + LEN as u64 + 1000);
    }
    drop(ends);
    for of in [0, 1] {
        let [sent, received] = if of == 0 { [LEN, 1000] } else { [1000, LEN] };
        assert_eq!(figures(of), (before[of].0 + sent as u64, before[of].1 + received as u64), "nor when it has gone");
    }
}
