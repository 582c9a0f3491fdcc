//! A neighbour that writes anything into the rings it shares with a task, and announces anything about them: at most the affected
//! stream ends, and nothing else of the task is harmed.

use std::{
    io::Read,
    sync::atomic::Ordering,
    task::{Context, Poll, Waker},
    time::Instant,
};

use sealane::{AcceptOptions, Accepted, Acceptor, Code, Error, Stream, StreamListener, Streams, Task, Tensor};
use sealane_transport::shm::{
    BytesMemory, LaneBytes,
    attach::{self, GivenLane},
    limits::{LANE_RING_BYTES, LANE_RINGS},
};
use tempfile::TempDir;

use super::{PATIENT, Random, echo, until_direct};
use crate::{
    daemon::{Daemon, LONG, Settings},
    fixture::{TASK, bytes, directory, peers, to, to_as},
};

const QUEUE: &str = "sealane.streams";
/// Kinds of frames.
const OPEN: u8 = 0;
const DATA: u8 = 2;
const FINISH: u8 = 4;
const RING: u8 = 7;
const SIZE: u64 = LANE_RING_BYTES as u64;

/// A task with streams, its hostile neighbour, and an honest one.
struct Besieged {
    own: Streams,
    listener: StreamListener,
    /// Uses rings both ways.
    honest: [Stream; 2],
    hostile: Task,
    acceptor: Acceptor,
    lane: GivenLane,
    last: u64,
    task: Task,
    _third: Task,
    _daemon: Daemon,
    _directory: TempDir,
}

/// A stream dialed by the hostile neighbour.
struct Attacked {
    stream: Stream,
    number: u64,
    /// Bytes pushed so far.
    pushed: u64,
}

impl Besieged {
    fn new() -> Besieged {
        let (directory, peer, third) = (directory(), &peers()[0], &peers()[1]);
        let daemon = Daemon::start(&directory, Settings::default());
        let (task, hostile) = (to(&daemon).attach().unwrap(), to_as(&daemon, peer).attach().unwrap());
        let third = to_as(&daemon, third).attach().unwrap();
        let own = Streams::of(&task);
        let listener = own.listen("bytes", PATIENT).unwrap();
        let thirds = Streams::of(&third);
        let dialed = thirds.connect(TASK, "bytes", PATIENT).wait().unwrap();
        let mut honest = [dialed, listener.accept().wait().unwrap()];
        until_direct(&mut honest);
        // The lane is requested once, and only here.
        let lane = attach::lane(&daemon.socket, peer, TASK, Instant::now() + LONG).unwrap();
        lane.lane.arrive();
        let acceptor = hostile.acceptor(QUEUE, AcceptOptions::default());
        let besieged = Besieged {
            own,
            listener,
            honest,
            hostile,
            acceptor,
            lane,
            last: 0,
            task,
            _third: third,
            _daemon: daemon,
            _directory: directory,
        };
        besieged.has_lane()
    }

    /// Sends enough bytes for the task to ask for its end of the lane.
    fn has_lane(mut self) -> Besieged {
        let mut first = self.dial();
        let deadline = Instant::now() + LONG;
        while !self.task.direct_peers().iter().any(|peer| *peer == *self.hostile.name()) {
            assert!(Instant::now() < deadline, "{:?}", self.task.direct_peers());
            self.push_data(&mut first, &[7; 5000]);
            (&first.stream).read_exact(&mut [0; 5000]).unwrap();
        }
        self
    }

    fn push(&self, kind: u8, stream: u64, value: u64, rest: &[u8]) {
        let mut frame = vec![kind, 1, 0, 0, 0, 0, 0, 0];
        [&stream.to_le_bytes()[..], &value.to_le_bytes(), rest].into_iter().for_each(|part| frame.extend(part));
        let tensor = Tensor::from_elements(&[frame.len() as u64], &frame).unwrap();
        self.hostile.push(TASK, QUEUE, tensor).wait().unwrap();
    }

    fn push_data(&self, attacked: &mut Attacked, bytes: &[u8]) {
        self.push(DATA, attacked.number, attacked.pushed, bytes);
        attacked.pushed += bytes.len() as u64;
    }

    fn dial(&mut self) -> Attacked {
        self.last += 1;
        self.push(OPEN, self.last, 1 << 20, b"bytes");
        let stream = self.listener.accept().wait().unwrap();
        assert_eq!(stream.peer(), self.hostile.name());
        Attacked { stream, number: self.last, pushed: 0 }
    }

    /// The payload that announces a stream's ring.
    fn place(&self, lane: u64, ring: u8) -> Vec<u8> {
        // The ring's first use.
        [&lane.to_le_bytes()[..], &1_u64.to_le_bytes(), &[ring]].concat()
    }

    /// Switches the stream to that ring, whose words are reset.
    fn goes_on_by(&self, attacked: &Attacked, ring: usize) -> LaneBytes {
        let words = self.lane.lane.bytes_to(ring);
        for word in
            [words.written(), words.read(), words.writer_waits(), words.reader_waits(), words.used(), words.left()]
        {
            word.store(0, Ordering::SeqCst);
        }
        words.used().store(1, Ordering::SeqCst);
        let place = self.place(self.lane.lane.number(), ring as u8);
        self.push(RING, attacked.number, attacked.pushed, &place);
        words
    }

    fn tell(&self) {
        self.lane.bells.as_ref().unwrap().bell.ring();
    }

    /// What the task has pushed to the hostile neighbour.
    fn accept(&self) -> Vec<Accepted> {
        let mut all = Vec::new();
        self.acceptor.try_accept(64, &mut all).unwrap();
        all
    }

    /// The task still serves the honest neighbour, and the hostile one where that keeps the rules.
    fn check(&mut self) {
        echo(&mut self.honest, &bytes(300_000, 1));
        self.honest.swap(0, 1);
        let mut other = self.dial();
        self.push_data(&mut other, b"by the daemon");
        let mut came = [0; 13];
        (&other.stream).read_exact(&mut came).unwrap();
        assert_eq!(&came, b"by the daemon");
        self.accept();
    }
}

/// Polls until it is ready, without being woken.
fn until_ready<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<Result<T, Error>>) -> Result<T, Error> {
    let deadline = Instant::now() + LONG;
    loop {
        if let Poll::Ready(outcome) = poll(&mut Context::from_waker(Waker::noop())) {
            return outcome;
        }
        assert!(Instant::now() < deadline, "it waits");
        std::thread::yield_now();
    }
}

/// Reads to the end, which must be an error that contains `why`; how many bytes came.
fn ends(stream: &Stream, why: &str) -> usize {
    let (mut into, mut count) = (vec![0; 100_000], 0);
    loop {
        match until_ready(|context| stream.poll_read(&mut into, context)) {
            Ok(0) => panic!("it has ended well: {why}"),
            Ok(more) => count += more,
            Err(error) => {
                assert!(error.code() == Code::Unavailable && error.to_string().contains(why), "{error}");
                return count;
            }
        }
    }
}

#[test]
fn a_writer_whose_ring_is_written_as_cannot_be_loses_its_stream() {
    let mut besieged = Besieged::new();
    let why = "written beyond its end, or backwards";
    for (ring, first, then) in [(0, 100, 50), (1, 100, 0), (2, 0, SIZE + 1), (3, SIZE, u64::MAX), (15, 1, 1 << 63)] {
        let attacked = besieged.dial();
        let words = besieged.goes_on_by(&attacked, ring);
        words.copy_in(0, &bytes(1000, 1));
        // Words that only the reader writes, or that are mere hints to it.
        [words.writer_waits(), words.left()].into_iter().for_each(|word| word.store(u64::MAX, Ordering::SeqCst));
        words.written().store(first, Ordering::SeqCst);
        words.tell_reader();
        besieged.tell();
        let mut came = vec![0; first as usize];
        (&attacked.stream).read_exact(&mut came).unwrap();
        let shown = came.len().min(1000);
        assert!(came[..shown] == bytes(1000, 1)[..shown]);
        words.read().store(u64::MAX, Ordering::SeqCst);
        words.written().store(then, Ordering::SeqCst);
        assert_eq!(ends(&attacked.stream, why), 0);
        assert!(until_ready(|context| attacked.stream.poll_write(&[1], context)).is_err());
        besieged.check();
    }
}

#[test]
fn a_reader_whose_ring_is_read_as_cannot_be_loses_its_stream() {
    let mut besieged = Besieged::new();
    for (first, then) in [(0, u64::MAX), (0, SIZE + 1), (5000, 4999), (SIZE, SIZE - 1)] {
        let attacked = besieged.dial();
        let (sent, mut written) = (bytes(1 << 20, 2), 0);
        let deadline = Instant::now() + LONG;
        while !attacked.stream.is_direct() {
            assert!(Instant::now() < deadline, "it gets no ring");
            written += until_ready(|context| attacked.stream.poll_write(&sent[..1], context)).unwrap();
        }
        super::fill(&attacked.stream, &sent);
        // The number of the announced ring: the last byte of the frame.
        let mut ring = None;
        while ring.is_none() {
            assert!(Instant::now() < deadline, "it is not announced");
            let announced = |accepted: Accepted| {
                let bytes = accepted.tensor.bytes();
                let is_one = bytes[0] == RING && bytes[8..16] == attacked.number.to_le_bytes();
                is_one.then(|| usize::from(bytes[bytes.len() - 1]))
            };
            ring = besieged.accept().into_iter().find_map(announced);
        }
        let words = besieged.lane.lane.bytes_from(ring.unwrap());
        assert_eq!(words.written().load(Ordering::SeqCst), SIZE, "it is full, behind {written} bytes");
        words.read().store(first, Ordering::SeqCst);
        let more = super::fill(&attacked.stream, &sent) as u64;
        assert_eq!(more, first);
        words.read().store(then, Ordering::SeqCst);
        words.reader_waits().store(u64::MAX, Ordering::SeqCst);
        let error = until_ready(|context| attacked.stream.poll_write(&sent, context)).unwrap_err();
        assert!(error.to_string().contains("read beyond what was written, or backwards"), "{error}");
        // Frees the ring for another stream.
        words.left().store(1, Ordering::SeqCst);
        drop(attacked);
        besieged.check();
    }
}

#[test]
fn rings_that_do_not_exist_or_are_announced_where_none_can_be_end_their_stream() {
    let mut besieged = Besieged::new();
    let lane = besieged.lane.lane.number();
    let none = "a direct lane that this process does not have";
    let places = [
        besieged.place(lane ^ 1, 0),
        besieged.place(lane, LANE_RINGS as u8),
        besieged.place(lane, 255),
        besieged.place(lane, 0)[..16].to_vec(),
        [&lane.to_le_bytes()[..], &2_u64.to_le_bytes(), &[0]].concat(),
        [besieged.place(lane, 0), vec![0]].concat(),
        Vec::new(),
    ];
    for place in places {
        let attacked = besieged.dial();
        besieged.push(RING, attacked.number, 0, &place);
        assert_eq!(ends(&attacked.stream, none), 0);
        besieged.check();
    }
    // Announced in the middle of bytes that have arrived: these are read.
    let mut attacked = besieged.dial();
    besieged.push_data(&mut attacked, &[1; 10]);
    besieged.push(RING, attacked.number, 9, &besieged.place(lane, 0));
    assert_eq!(ends(&attacked.stream, "in the middle of bytes"), 10);
    // Announced behind bytes that have not arrived yet: it is announced again once they have.
    let mut attacked = besieged.dial();
    for from in [1, 10, u64::MAX] {
        besieged.push(RING, attacked.number, from, &besieged.place(lane, 1));
    }
    besieged.push_data(&mut attacked, &[1; 10]);
    let words = besieged.goes_on_by(&attacked, 1);
    words.written().store(1, Ordering::SeqCst);
    (&attacked.stream).read_exact(&mut [0; 11]).unwrap();
    // Announced again, as after an earlier frame was refused.
    besieged.push(RING, attacked.number, 10, &besieged.place(lane, 1));
    // A ring that another stream uses; that stream goes on.
    let other = besieged.dial();
    besieged.push(RING, other.number, 0, &besieged.place(lane, 1));
    assert_eq!(ends(&other.stream, none), 0);
    words.written().store(2, Ordering::SeqCst);
    (&attacked.stream).read_exact(&mut [0; 1]).unwrap();
    // Two rings for one stream.
    besieged.lane.lane.bytes_to(2).used().store(1, Ordering::SeqCst);
    besieged.push(RING, attacked.number, 10, &besieged.place(lane, 2));
    assert_eq!(ends(&attacked.stream, "two rings"), 0);
    // For a stream that does not exist.
    besieged.push(RING, u64::MAX, 0, &besieged.place(lane, 3));
    besieged.check();
}

#[test]
fn an_end_that_is_not_where_a_ring_ends_is_no_end() {
    let mut besieged = Besieged::new();
    for (ring, bytes) in [(0, 9), (1, 11), (2, u64::MAX)] {
        let attacked = besieged.dial();
        let words = besieged.goes_on_by(&attacked, ring);
        words.written().store(10, Ordering::SeqCst);
        besieged.push(FINISH, attacked.number, bytes, &[]);
        (&attacked.stream).read_exact(&mut [0; 10]).unwrap_or_else(|error| assert!(bytes < 10, "{error}"));
        match bytes < 10 {
            true => assert_eq!(ends(&attacked.stream, "more bytes came than there are"), 0),
            false => assert!(attacked.stream.poll_read(&mut [0], &mut Context::from_waker(Waker::noop())).is_pending()),
        }
        besieged.check();
    }
}

#[test]
fn figures_are_told_of_a_ring_that_was_written_backwards() {
    let mut besieged = Besieged::new();
    let attacked = besieged.dial();
    let words = besieged.goes_on_by(&attacked, 0);
    words.written().store(1000, Ordering::SeqCst);
    (&attacked.stream).read_exact(&mut [0; 1000]).unwrap();
    let received = |besieged: &Besieged| {
        let figures = besieged.own.figures();
        figures.iter().find(|(peer, _)| **peer == *besieged.hostile.name()).unwrap().1.bytes_received
    };
    let before = received(&besieged);
    words.written().store(0, Ordering::SeqCst);
    assert_eq!(received(&besieged), before);
    drop(attacked);
    assert_eq!(received(&besieged), before);
    besieged.check();
}

#[test]
fn whatever_is_written_into_rings_at_any_time_nothing_but_their_streams_ends() {
    let mut besieged = Besieged::new();
    for seed in 0..30 {
        let mut random = Random(seed);
        let mut attacked: Vec<Attacked> = (0..3).map(|_| besieged.dial()).collect();
        for (ring, attacked) in attacked.iter().enumerate() {
            besieged.goes_on_by(attacked, ring);
        }
        let (sent, mut into) = (bytes(30_000, seed), vec![0; 30_000]);
        for _ in 0..300 {
            let ring = if random.below(4) == 0 { random.below(LANE_RINGS) } else { random.below(3) };
            let end = &besieged.lane.lane;
            let words = if random.below(2) == 0 { end.bytes_to(ring) } else { end.bytes_from(ring) };
            let all =
                [words.written(), words.read(), words.writer_waits(), words.reader_waits(), words.used(), words.left()];
            let word = all[random.below(all.len())];
            let now = word.load(Ordering::SeqCst);
            let near = random.below(2 * LANE_RING_BYTES) as u64;
            let value = [0, 1, now.wrapping_add(1), now.wrapping_add(near), now.wrapping_sub(1), SIZE, u64::MAX]
                [random.below(7)];
            word.store(value, Ordering::SeqCst);
            match random.below(4) {
                0 => drop((words.tell_reader(), words.tell_writer())),
                1 => besieged.tell(),
                _ => {}
            }
            if attacked.is_empty() {
                continue;
            }
            let place = random.below(attacked.len());
            let context = &mut Context::from_waker(Waker::noop());
            let stream = &attacked[place].stream;
            match random.below(40) {
                0 => drop(attacked.swap_remove(place)),
                1 => drop(stream.poll_finish(context)),
                2 => stream.reset("enough"),
                3..15 => drop(stream.poll_write(&sent[..1 + random.below(sent.len())], context)),
                _ => drop(stream.poll_read(&mut into[..1 + random.below(30_000)], context)),
            }
        }
        drop(attacked);
        besieged.check();
    }
}
