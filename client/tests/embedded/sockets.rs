//! Streams between two engines over TCP connections of their own, and what happens when those break.

use std::{
    io::{self, Read, Write},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};

use sealane::{Code, Error, Stream, StreamListener, StreamOptions, Streams, Task};

use crate::{two, two_with};

/// A wait that takes longer has failed.
const LONG: Duration = Duration::from_secs(20);
const PATIENT: StreamOptions = StreamOptions { window_bytes: 1 << 20, timeout: Some(LONG), polling: None };

struct Ends {
    tasks: [Task; 2],
    streams: [Streams; 2],
    listener: StreamListener,
}

impl Ends {
    fn new() -> Ends {
        Ends::of(two())
    }

    fn of((ps, worker): (Task, Task)) -> Ends {
        let tasks = [worker, ps];
        let streams = tasks.each_ref().map(Streams::of);
        let listener = streams[1].listen("bytes", PATIENT).unwrap();
        Ends { tasks, streams, listener }
    }

    /// Both ends of a stream that still uses pushes: the dialer's end comes first.
    fn stream(&self) -> [Stream; 2] {
        let dialed = self.streams[0].connect(self.tasks[1].name(), "bytes", PATIENT).wait().unwrap();
        [dialed, self.listener.accept().wait().unwrap()]
    }

    fn direct_stream(&self) -> [Stream; 2] {
        let mut ends = self.stream();
        until_direct(&mut ends);
        ends
    }
}

/// Sends bytes both ways until both ends use a connection.
fn until_direct([one, other]: &mut [Stream; 2]) {
    let deadline = Instant::now() + LONG;
    while !(one.is_direct() && other.is_direct()) {
        assert!(Instant::now() < deadline, "there is no connection");
        there_and_back(one, other);
    }
    there_and_back(one, other);
}

fn there_and_back(one: &Stream, other: &Stream) {
    for (mut from, mut to) in [(one, other), (other, one)] {
        from.write_all(b"there").unwrap();
        let mut came = [0; 5];
        to.read_exact(&mut came).unwrap();
        assert_eq!(&came, b"there");
    }
}

/// The byte at a position of the stream.
fn byte(at: u64, seed: u64) -> u8 {
    (at.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(seed) >> 29) as u8
}

/// Writes `len` bytes in pieces of many sizes.
fn write_all(mut stream: &Stream, len: u64, seed: u64, at: &AtomicU64) {
    let (mut done, mut piece) = (0, 1_u64);
    while done < len {
        piece = piece * 7 % 300_007 + 1;
        let bytes: Vec<u8> = (done..len.min(done + piece)).map(|at| byte(at, seed)).collect();
        stream.write_all(&bytes).unwrap();
        done += bytes.len() as u64;
        at.store(done, Ordering::Relaxed);
    }
    stream.finish().wait().unwrap();
}

/// Reads to the end and checks every byte.
fn read_all(mut stream: &Stream, len: u64, seed: u64) {
    let (mut done, mut into) = (0, vec![0; 200_000]);
    loop {
        let room = 1 + (done * 31 % 199_999) as usize;
        let count = stream.read(&mut into[..room]).unwrap();
        for (at, found) in (done..).zip(&into[..count]) {
            assert_eq!(*found, byte(at, seed), "byte {at} of {len}");
        }
        done += count as u64;
        if count == 0 {
            return assert_eq!(done, len);
        }
    }
}

/// Each end writes `len` bytes and reads the other's, while `meanwhile` runs with the number of bytes each has written so far.
fn both_ways([one, other]: &[Stream; 2], len: u64, meanwhile: impl FnOnce([&AtomicU64; 2])) {
    let written = [const { AtomicU64::new(0) }; 2];
    thread::scope(|scope| {
        scope.spawn(|| write_all(one, len, 1, &written[0]));
        scope.spawn(|| write_all(other, len, 2, &written[1]));
        scope.spawn(|| read_all(one, len, 2));
        scope.spawn(|| read_all(other, len, 1));
        meanwhile(written.each_ref());
    });
}

#[test]
fn all_bytes_pass_and_are_counted() {
    let ends = Ends::new();
    let streams = ends.direct_stream();
    let before = ends.streams.each_ref().map(|streams| streams.figures()[0].1);
    both_ways(&streams, 20 << 20, |_| {});
    assert!(streams.iter().all(Stream::is_direct));
    for (streams, before) in ends.streams.iter().zip(before) {
        let now = streams.figures()[0].1;
        let moved = (now.bytes_sent - before.bytes_sent, now.bytes_received - before.bytes_received);
        assert_eq!(moved, (20 << 20, 20 << 20));
    }
}

#[test]
fn a_connection_that_breaks_loses_nothing_and_another_takes_its_place() {
    until_it_has_broken_often(&Ends::new());
}

#[test]
fn nor_does_one_that_breaks_where_what_is_pushed_again_finds_no_room() {
    until_it_has_broken_often(&Ends::of(two_with(|settings| settings.slab_receive_bytes = 1 << 20)));
}

fn until_it_has_broken_often(ends: &Ends) {
    for round in 0..6 {
        let mut streams = ends.direct_stream();
        let before = ends.streams[0].figures()[0].1;
        let len = 24 << 20;
        let (mut breaks, mut rebuilt) = (0, 0);
        both_ways(&streams, len, |written| {
            let (mut next, deadline) = (1 << 18, Instant::now() + LONG);
            while written.iter().any(|written| written.load(Ordering::Relaxed) < len) {
                if written.iter().map(|written| written.load(Ordering::Relaxed)).sum::<u64>() < next {
                    assert!(Instant::now() < deadline, "it has come to a standstill");
                    thread::yield_now();
                    continue;
                }
                let end = &streams[(breaks + round) % 2];
                rebuilt += usize::from(breaks > 0 && end.is_direct());
                end.break_off();
                breaks += 1;
                next = next * 5 / 4 + (1 << 18);
            }
        });
        assert!(breaks > 3 && rebuilt > 0, "{breaks} {rebuilt}");
        let now = ends.streams[0].figures()[0].1;
        let moved = (now.bytes_sent - before.bytes_sent, now.bytes_received - before.bytes_received);
        assert_eq!(moved, (len, len));
        // Reads at the end keep returning the end.
        for stream in &mut streams {
            assert_eq!(stream.read(&mut [0]).unwrap(), 0);
        }
    }
}

#[test]
fn one_that_breaks_when_nothing_moves_is_replaced_when_something_does() {
    let ends = Ends::new();
    let mut streams = ends.direct_stream();
    for breaker in [0, 1, 1, 0] {
        streams[breaker].break_off();
        let [one, other] = &mut streams;
        there_and_back(one, other);
        until_direct(&mut streams);
    }
    let [one, mut other] = streams;
    one.break_off();
    (&one).write_all(b"the last").unwrap();
    one.finish().wait().unwrap();
    let mut came = String::new();
    other.read_to_string(&mut came).unwrap();
    assert_eq!(came, "the last");
}

#[test]
fn what_was_written_before_a_break_comes_though_nobody_writes_or_reads_meanwhile() {
    let ends = Ends::new();
    for breaker in [0, 1] {
        let streams = ends.direct_stream();
        (&streams[0]).write_all(&[7; 50_000]).unwrap();
        streams[breaker].break_off();
        // Ready once the other process has everything, even bytes not yet read by its program.
        streams[0].finish().wait().unwrap();
        let mut came = Vec::new();
        (&streams[1]).read_to_end(&mut came).unwrap();
        assert!(came == [7; 50_000]);
        (&streams[1]).write_all(b"back").unwrap();
        streams[1].finish().wait().unwrap();
        let mut back = String::new();
        (&streams[0]).read_to_string(&mut back).unwrap();
        assert_eq!(back, "back");
    }
}

#[test]
fn what_was_finished_and_let_go_comes_whole_though_its_connection_breaks() {
    // Less than a connection brings unread.
    let narrow = StreamOptions { window_bytes: 128 << 10, ..PATIENT };
    let ends = Ends::new();
    let listener = ends.streams[1].listen("narrow", narrow).unwrap();
    for breaker in [0, 1] {
        let dialed = ends.streams[0].connect(ends.tasks[1].name(), "narrow", narrow).wait().unwrap();
        let mut streams = [dialed, listener.accept().wait().unwrap()];
        until_direct(&mut streams);
        let [one, other] = streams;
        // As much as both kernels buffer.
        let (mut written, mut full) = (0, 0);
        while full < 1000 {
            let bytes: Vec<u8> = (written..written + 60_000).map(|at| byte(at, 5)).collect();
            match one.poll_write(&bytes, &mut Context::from_waker(Waker::noop())) {
                Poll::Ready(count) => (written, full) = (written + count.unwrap() as u64, 0),
                Poll::Pending => {
                    full += 1;
                    thread::yield_now();
                }
            }
        }
        assert!(one.poll_finish(&mut Context::from_waker(Waker::noop())).is_pending());
        match breaker {
            0 => one.break_off(),
            _ => other.break_off(),
        }
        drop(one);
        read_all(&other, written, 5);
        other.finish().wait().unwrap();
    }
}

#[test]
fn a_thread_that_waits_for_bytes_or_room_is_woken_by_all_that_happens() {
    let ends = Ends::new();
    // Bytes.
    let [one, other] = ends.direct_stream();
    thread::scope(|scope| {
        scope.spawn(|| (&other).read_exact(&mut [0; 3]).unwrap());
        (&one).write_all(b"abc").unwrap();
    });
    // A broken connection; the bytes then come by the engines.
    thread::scope(|scope| {
        scope.spawn(|| (&other).read_exact(&mut [0; 3]).unwrap());
        one.break_off();
        (&one).write_all(b"abc").unwrap();
    });
    // A reset, for a reader and for a writer.
    let [one, other] = ends.direct_stream();
    thread::scope(|scope| {
        let reading = scope.spawn(|| (&one).read(&mut [0]).unwrap_err());
        let writing = scope.spawn(|| {
            loop {
                if let Err(error) = (&one).write_all(&[0; 100_000]) {
                    break error;
                }
            }
        });
        // Its room is used up.
        fill(&one);
        other.reset("enough");
        for error in [reading.join().unwrap(), writing.join().unwrap()] {
            assert!(error.to_string().contains("enough"), "{error}");
        }
    });
    // A timeout.
    let brief = StreamOptions { timeout: Some(Duration::from_millis(20)), ..PATIENT };
    let dialed = ends.streams[0].connect(ends.tasks[1].name(), "bytes", brief).wait().unwrap();
    let mut streams = [dialed, ends.listener.accept().wait().unwrap()];
    let deadline = Instant::now() + LONG;
    while !streams.iter().all(Stream::is_direct) {
        assert!(Instant::now() < deadline, "there is no connection");
        // A loaded machine may be late.
        let _ = streams[0].write(b"x");
        let _ = streams[1].read(&mut [0; 10]);
        let _ = streams[1].write(b"x");
        let _ = streams[0].read(&mut [0; 10]);
    }
    let deadline = Instant::now() + LONG;
    let error = loop {
        assert!(Instant::now() < deadline);
        if let Err(error) = streams[0].read_exact(&mut [0]) {
            break error;
        }
    };
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
}

/// Writes until the stream takes no more for a while.
fn fill(stream: &Stream) -> u64 {
    let (mut written, mut full) = (0, 0);
    while full < 1000 {
        match stream.poll_write(&[0; 100_000], &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(count) => (written, full) = (written + count.unwrap() as u64, 0),
            Poll::Pending => {
                full += 1;
                thread::yield_now();
            }
        }
    }
    written
}

#[test]
fn executors_are_woken_for_bytes_and_for_room() {
    let ends = Ends::new();
    let streams = ends.direct_stream();
    let (written, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                use tokio::io::AsyncReadExt;
                let (mut done, mut into) = (0, vec![0; 10_000]);
                let mut stream = Shared(&streams[1]);
                while done < 5 << 20 {
                    let count = stream.read(&mut into).await.unwrap();
                    assert!((done..).zip(&into[..count]).all(|(at, found)| *found == byte(at, 9)));
                    done += count as u64;
                }
            });
            is_over.store(true, Ordering::Relaxed);
        });
        write_all_async(&streams[0], 5 << 20, &written);
    });
    assert!(is_over.load(Ordering::Relaxed));
}

/// A stream shared by two.
struct Shared<'a>(&'a Stream);

impl tokio::io::AsyncRead for Shared<'_> {
    fn poll_read(
        self: std::pin::Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = std::task::ready!(self.0.poll_read(into.initialize_unfilled(), context));
        Poll::Ready(read.map(|count| into.advance(count)).map_err(io::Error::other))
    }
}

fn write_all_async(stream: &Stream, len: u64, written: &AtomicU64) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        while written.load(Ordering::Relaxed) < len {
            let done = written.load(Ordering::Relaxed);
            let bytes: Vec<u8> = (done..len.min(done + 70_000)).map(|at| byte(at, 9)).collect();
            let count: Result<usize, Error> = std::future::poll_fn(|context| stream.poll_write(&bytes, context)).await;
            written.fetch_add(count.unwrap() as u64, Ordering::Relaxed);
        }
    });
}

#[test]
fn who_is_gone_ends_its_streams_and_what_had_come_is_read() {
    let Ends { tasks, streams, listener } = Ends::new();
    let dialed = streams[0].connect(tasks[1].name(), "bytes", PATIENT).wait().unwrap();
    let mut ends = [dialed, listener.accept().wait().unwrap()];
    until_direct(&mut ends);
    let [mut one, other] = ends;
    (&other).write_all(b"farewell").unwrap();
    let mut came = [0; 8];
    one.read_exact(&mut came[..4]).unwrap();
    let [_worker, ps] = tasks;
    let [_of_worker, of_ps] = streams;
    drop((other, listener, of_ps, ps));
    one.read_exact(&mut came[4..]).unwrap();
    assert_eq!(&came, b"farewell");
    let error = one.read(&mut [0]).unwrap_err();
    let inner = error.get_ref().and_then(|error| error.downcast_ref::<Error>());
    assert_eq!(inner.map(Error::code), Some(Code::Unavailable), "{error}");
}
