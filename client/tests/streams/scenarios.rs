//! What holds for streams whatever carries them: `ps` listens, and `worker` dials.

use std::{
    io::{Read, Write},
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};

use sealane::{Buffer, Code, DType, Stream, StreamListener, StreamOptions, Streams, Task, Tensor, TensorMeta};

/// Too narrow for a ring in shared memory, and a window wide enough for one where rings are available.
pub const NARROW: StreamOptions = StreamOptions { window_bytes: 64 << 10, timeout: None, polling: None };
#[allow(dead_code, reason = "where there are none")]
pub const WIDE: StreamOptions = StreamOptions { window_bytes: 1 << 20, timeout: None, polling: None };

/// Bytes that occur only once in the stream, and in no stream of another seed.
fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31) ^ (at >> 8) as u8 ^ (at >> 16) as u8 ^ seed).collect()
}

struct Ends {
    ps: Streams,
    worker: Streams,
    listener: StreamListener,
    name: String,
    window: StreamOptions,
}

impl Ends {
    fn new(ps: &Task, worker: &Task, window: StreamOptions) -> Ends {
        let (name, ps, worker) = (ps.name().to_owned(), Streams::of(ps), Streams::of(worker));
        let listener = ps.listen("bytes", window).unwrap();
        Ends { ps, worker, listener, name, window }
    }

    /// A stream's dialer end and listener end.
    fn stream(&self) -> (Stream, Stream) {
        let dialed = self.worker.connect(&self.name, "bytes", self.window).wait().unwrap();
        (dialed, self.listener.accept().wait().unwrap())
    }
}

fn is_pending<T>(poll: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> bool {
    poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

/// Writes until the stream takes no more; the number of bytes written.
fn fill(stream: &Stream, from: &[u8]) -> usize {
    let mut count = 0;
    while let Poll::Ready(written) = stream.poll_write(&from[count..], &mut Context::from_waker(Waker::noop())) {
        count += written.unwrap();
    }
    count
}

/// Any number of bytes pass both ways at once, and each direction ends separately.
pub fn both_ways_end_by_themselves(ps: &Task, worker: &Task, window: StreamOptions) {
    let ends = Ends::new(ps, worker, window);
    for (round, len) in [0, 1, 64, 4000, 70_000, 3 << 20].into_iter().enumerate() {
        let (dialed, accepted) = ends.stream();
        assert_eq!((dialed.peer(), accepted.peer()), (&*ends.name, worker.name()));
        let (there, back) = (bytes(len, round as u8), bytes(len / 2, !round as u8));
        thread::scope(|scope| {
            scope.spawn(|| {
                (&accepted).write_all(&back).unwrap();
                accepted.finish().wait().unwrap();
            });
            scope.spawn(|| {
                (&dialed).write_all(&there).unwrap();
                dialed.finish().wait().unwrap();
            });
            let mut came = Vec::new();
            (&accepted).read_to_end(&mut came).unwrap();
            assert!(came == there, "{} of {len} bytes came, or others", came.len());
            came.clear();
            (&dialed).read_to_end(&mut came).unwrap();
            assert!(came == back);
        });
        // Long transfers had to wait for room and may have switched; short ones may be written before the window is known.
        assert!(dialed.is_direct() == (window != NARROW) || len < 3 << 20);
        assert_eq!((&dialed).write(&[1]).unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
        assert_eq!((&accepted).read(&mut [0]).unwrap(), 0, "the end stays");
    }
}

/// An unread stream fills its window while others go on; later all of its bytes can be read.
pub fn a_stream_that_is_not_read_holds_up_itself_alone(ps: &Task, worker: &Task, window: StreamOptions) {
    let ends = Ends::new(ps, worker, window);
    let (slow, unread) = ends.stream();
    let sent = bytes(10 << 20, 3);
    // The window bounds the bytes in flight and those waiting to be sent.
    let written = fill(&slow, &sent);
    // Plus a ring's size, if it uses one.
    const RING_BYTES: u64 = 256 << 10;
    match slow.is_direct() {
        true => assert!((RING_BYTES..=window.window_bytes + RING_BYTES).contains(&(written as u64)), "{written}"),
        // Before the stream is accepted, a separate window applies.
        false => assert!([NARROW.window_bytes, window.window_bytes].contains(&(written as u64)), "{written}"),
    }
    let (mut fast, mut read) = ends.stream();
    thread::scope(|scope| {
        scope.spawn(|| {
            fast.write_all(&sent).unwrap();
            fast.finish().wait().unwrap();
        });
        let mut came = Vec::new();
        read.read_to_end(&mut came).unwrap();
        assert!(came == sent);
    });
    assert_eq!(fill(&slow, &sent[written..]), 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            (&slow).write_all(&sent[written..]).unwrap();
            slow.finish().wait().unwrap();
        });
        let mut came = Vec::new();
        (&unread).read_to_end(&mut came).unwrap();
        assert!(came == sent);
    });
}

/// The dialer may look only after the other end has come and gone: all bytes are there.
pub fn a_stream_may_end_before_its_dialer_looks(ps: &Task, worker: &Task, window: StreamOptions) {
    let ends = Ends::new(ps, worker, window);
    for is_finished in [true, false] {
        let dialing = ends.worker.connect(&ends.name, "bytes", window);
        let mut accepted = ends.listener.accept().wait().unwrap();
        accepted.write_all(b"all").unwrap();
        if is_finished {
            accepted.finish().wait().unwrap();
        }
        drop(accepted);
        // The next stream by the same path shows that the end has arrived.
        let (mut dialed, mut next) = ends.stream();
        next.write_all(b"a").unwrap();
        dialed.read_exact(&mut [0]).unwrap();
        let mut dialed = dialing.wait().unwrap();
        let mut came = [0; 3];
        dialed.read_exact(&mut came).unwrap();
        assert_eq!(&came, b"all");
        assert_eq!(dialed.read(&mut came).is_ok(), is_finished);
        assert_eq!(dialed.finish().wait().is_ok(), is_finished);
    }
}

/// An end that is dropped midway resets the stream; the other end can still read what came before.
pub fn a_stream_that_is_dropped_unfinished_is_reset(ps: &Task, worker: &Task, window: StreamOptions) {
    let ends = Ends::new(ps, worker, window);
    let (mut dialed, mut accepted) = ends.stream();
    dialed.write_all(b"half").unwrap();
    drop(dialed);
    let mut came = [0; 4];
    accepted.read_exact(&mut came).unwrap();
    assert_eq!(&came, b"half");
    let error = accepted.read(&mut came).unwrap_err();
    assert!(error.to_string().contains("was reset by its other end: it was dropped unfinished"), "{error}");
    assert!(accepted.write(b"more").is_err());

    let (dialed, mut accepted) = ends.stream();
    dialed.reset("enough");
    assert!(accepted.read(&mut came).unwrap_err().to_string().contains("enough"));

    // An end that has read everything may go: the other end then writes to nobody.
    let (mut dialed, mut accepted) = ends.stream();
    dialed.write_all(b"all").unwrap();
    dialed.finish().wait().unwrap();
    drop(dialed);
    let mut all = String::new();
    accepted.read_to_string(&mut all).unwrap();
    assert_eq!(all, "all");
    let error = loop {
        if let Err(error) = accepted.write(b"unwanted") {
            break error;
        }
        assert!(accepted.flush().is_ok() || accepted.write(b"").is_err());
    };
    assert!(error.to_string().contains("closed the stream"), "{error}");

    // If the other end writes nothing, it ends cleanly too.
    let (dialed, mut accepted) = ends.stream();
    dialed.finish().wait().unwrap();
    drop(dialed);
    assert_eq!(accepted.read(&mut came).unwrap(), 0);
    accepted.finish().wait().unwrap();
    let (dialed, accepted) = ends.stream();
    dialed.finish().wait().unwrap();
    drop(dialed);
    while let Poll::Ready(Ok(_)) = accepted.poll_write(b"", &mut Context::from_waker(Waker::noop())) {}
    accepted.finish().wait().unwrap();
}

/// Calls that cannot succeed say why.
pub fn what_cannot_be_dialed_says_why(ps: &Task, worker: &Task, window: StreamOptions) {
    let ends = Ends::new(ps, worker, window);
    let unheard = ends.worker.connect(&ends.name, "nothing", window).wait().unwrap_err();
    assert_eq!(unheard.code(), Code::NotFound);
    assert!(unheard.to_string().contains("nobody listens for 'nothing'"), "{unheard}");
    assert_eq!(ends.worker.connect("nobody:1", "bytes", window).wait().unwrap_err().code(), Code::NotFound);
    let wide = StreamOptions { window_bytes: u64::MAX, ..window };
    assert_eq!(ends.worker.connect(&ends.name, "bytes", wide).wait().unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(ends.ps.listen("bytes", window).err().unwrap().code(), Code::InvalidArgument);
    // If the listener closes, a stream waiting to be accepted is reset, and the name is free again.
    let mut waiting = ends.worker.connect(&ends.name, "bytes", window).wait().unwrap();
    drop(ends.listener);
    assert!(waiting.read(&mut [0]).unwrap_err().to_string().contains("the listener was closed"));
    ends.ps.listen("bytes", window).unwrap();
}

/// A blocking call returns at its timeout and may be repeated.
pub fn what_blocks_does_so_no_longer_than_it_was_told(ps: &Task, worker: &Task, window: StreamOptions) {
    let ends = Ends::new(ps, worker, window);
    let options = StreamOptions { timeout: Some(Duration::from_millis(1)), ..window };
    let listener = ends.ps.listen("patient", options).unwrap();
    let late = |error: std::io::Error| assert_eq!(error.kind(), std::io::ErrorKind::TimedOut, "{error}");
    assert_eq!(listener.accept().wait().unwrap_err().code(), Code::DeadlineExceeded);
    let mut dialed = ends.worker.connect(&ends.name, "patient", window).wait().unwrap();
    let mut accepted = loop {
        match listener.accept().wait() {
            Ok(accepted) => break accepted,
            Err(error) => assert_eq!(error.code(), Code::DeadlineExceeded),
        }
    };
    late(accepted.read(&mut [0]).unwrap_err());
    dialed.write_all(b"a").unwrap();
    while let Err(error) = accepted.read_exact(&mut [0]) {
        late(error);
    }
    let full = bytes(1 << 20, 0);
    late(accepted.write_all(&full).unwrap_err());
}

/// Several threads accept from one listener: each stream wakes one of them, and a close wakes all.
pub fn several_accept_at_once(ps: &Task, worker: &Task, window: StreamOptions) {
    let ends = Ends::new(ps, worker, window);
    thread::scope(|scope| {
        let accepting: Vec<_> = (0..4).map(|_| scope.spawn(|| ends.listener.accept().wait())).collect();
        let dialed = [(); 3].map(|()| ends.worker.connect(&ends.name, "bytes", window).wait().unwrap());
        while accepting.iter().filter(|accept| accept.is_finished()).count() < dialed.len() {
            thread::yield_now();
        }
        ends.listener.close();
        let accepted: Vec<_> = accepting.into_iter().map(|accept| accept.join().unwrap()).collect();
        assert_eq!(accepted.iter().filter(|accepted| accepted.is_ok()).count(), dialed.len());
        let told = accepted.iter().find_map(|accepted| accepted.as_ref().err()).unwrap();
        assert_eq!(told.code(), Code::InvalidArgument);
    });
    ends.ps.listen("bytes", window).unwrap();
}

/// A peer cannot claim a stream number that this side has not dialed.
pub fn who_is_dialed_does_not_choose_the_number(ps: &Task, worker: &Task, window: StreamOptions) {
    let ends = Ends::new(ps, worker, window);
    // A forged dial to the listener's name, in the name of the other end.
    let mut forged = vec![0; 24];
    forged[8] = 7;
    forged[16] = 100;
    forged.extend(b"bytes");
    let tensor = Tensor::new(TensorMeta::new(DType::U8, &[forged.len() as u64]).unwrap(), Buffer::from_vec(forged));
    worker.push(&ends.name, "sealane.streams", tensor.unwrap()).wait().unwrap();
    let (mut dialed, mut accepted) = ends.stream();
    dialed.write_all(b"a").unwrap();
    dialed.finish().wait().unwrap();
    assert_eq!(accepted.read(&mut [0; 2]).unwrap(), 1);
    assert!(is_pending(|context| ends.listener.poll_accept(context)));
}

/// A thousand streams at once, each with its own bytes.
pub fn a_thousand_pass_at_once(ps: &Task, worker: &Task, window: StreamOptions) {
    const STREAMS: usize = 1000;
    let ends = Ends::new(ps, worker, window);
    let dialing: Vec<_> = (0..STREAMS).map(|_| ends.worker.connect(&ends.name, "bytes", window)).collect();
    let mut dialed: Vec<_> = dialing.into_iter().map(|dialing| dialing.wait().unwrap()).collect();
    for (at, stream) in dialed.iter_mut().enumerate() {
        stream.write_all(&(at as u64).to_le_bytes()).unwrap();
        stream.write_all(&bytes(3000 + at, at as u8)).unwrap();
    }
    let mut accepted: Vec<_> = (0..STREAMS).map(|_| ends.listener.accept().wait().unwrap()).collect();
    dialed.iter().for_each(|stream| stream.finish().wait().unwrap());
    for stream in &mut accepted {
        let (mut number, mut came) = ([0; 8], Vec::new());
        stream.read_exact(&mut number).unwrap();
        stream.read_to_end(&mut came).unwrap();
        let at = u64::from_le_bytes(number) as usize;
        assert!(came == bytes(3000 + at, at as u8));
        stream.finish().wait().unwrap();
    }
}

/// Calls a macro with the name of each scenario, to make a test of it.
macro_rules! all {
    ($make:ident) => {
        $make!(
            both_ways_end_by_themselves,
            a_stream_that_is_not_read_holds_up_itself_alone,
            a_stream_that_is_dropped_unfinished_is_reset,
            what_cannot_be_dialed_says_why,
            a_stream_may_end_before_its_dialer_looks,
            several_accept_at_once,
            who_is_dialed_does_not_choose_the_number,
            a_thousand_pass_at_once,
            what_blocks_does_so_no_longer_than_it_was_told,
        );
    };
}
pub(crate) use all;
