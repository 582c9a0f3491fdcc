use super::*;

const LENT_MAX: usize = 256 << 10;

fn frame(bytes: &[u8]) -> Buffer {
    Buffer::from_vec([&[0; Frame::BYTES], bytes].concat())
}

fn incoming(window: u64) -> Incoming {
    Connection::new(window, Lent::new(LENT_MAX)).incoming
}

fn lent(incoming: &Incoming) -> usize {
    incoming.lent.bytes.load(Ordering::Relaxed)
}

#[test]
fn bytes_are_read_in_order_whatever_the_pieces() {
    let mut incoming = incoming(100);
    incoming.take_in(0, frame(b"abc")).unwrap();
    incoming.take_in(3, frame(b"")).unwrap();
    incoming.take_in(3, frame(b"defg")).unwrap();
    let mut into = [0; 5];
    assert_eq!((incoming.read(&mut into).unwrap(), &into), (5, b"abcde"));
    assert_eq!((incoming.read(&mut into).unwrap(), &into[..2]), (2, &b"fg"[..]));
    assert_eq!((incoming.read(&mut into).unwrap(), lent(&incoming)), (0, 0));
}

#[test]
fn what_was_not_expected_is_an_error() {
    let mut incoming = incoming(4);
    assert!(incoming.take_in(0, frame(b"abcde")).is_err(), "more than the window");
    incoming.take_in(0, frame(b"abc")).unwrap();
    assert!(incoming.take_in(2, frame(b"cd")).is_err(), "in part once more");
    assert!(incoming.take_in(u64::MAX, frame(b"abc")).is_err());
    assert!(incoming.finish(2, 0).is_err());
    incoming.finish(3, 0).unwrap();
    assert!(incoming.take_in(3, frame(b"d")).is_err(), "after the end");
}

#[test]
fn what_is_behind_a_refused_push_is_not_kept_and_comes_again() {
    let mut incoming = incoming(6);
    incoming.take_in(0, frame(b"ab")).unwrap();
    incoming.take_in(4, frame(b"ef")).unwrap();
    incoming.finish(6, 0).unwrap();
    assert!(!incoming.is_finished);
    for (from, bytes) in [(2, b"cd"), (4, b"ef"), (4, b"ef"), (0, b"ab")] {
        incoming.take_in(from, frame(bytes)).unwrap();
    }
    incoming.finish(6, 0).unwrap();
    let mut into = [0; 9];
    assert_eq!((incoming.read(&mut into).unwrap(), &into[..6], incoming.is_finished), (6, &b"abcdef"[..], true));
}

#[test]
fn the_other_end_is_told_of_room_by_halves_of_the_window() {
    let mut incoming = incoming(4);
    incoming.take_in(0, frame(b"abcd")).unwrap();
    let mut read = |count: usize| {
        incoming.read(&mut vec![0; count]).unwrap();
        incoming.news()
    };
    assert_eq!([read(1), read(1), read(1), read(1)], [None, Some(6), None, Some(8)]);
}

#[test]
fn what_nobody_reads_leaves_lent_memory() {
    let shared = Lent::new(LENT_MAX);
    let mut streams = [(); 3].map(|()| Connection::new(u64::MAX, shared.clone()).incoming);
    let piece = vec![7; LENT_MAX / 4];
    for at in 0..5 {
        for incoming in &mut streams {
            incoming.take_in((at * piece.len()) as u64, frame(&piece)).unwrap();
            assert!(lent(incoming) <= LENT_MAX);
        }
    }
    let [mut first, second, third] = streams;
    let mut all = vec![0; 5 * piece.len()];
    assert_eq!(first.read(&mut all).unwrap(), all.len());
    assert!(all.iter().all(|byte| *byte == 7) && lent(&second) < LENT_MAX);
    drop((second, third));
    assert_eq!(lent(&first), 0);
}

#[test]
fn bytes_that_come_one_by_one_cost_no_memory_each() {
    let mut incoming = incoming(10_000);
    (0..10_000).for_each(|at| incoming.take_in(at, frame(b"a")).unwrap());
    assert_eq!((incoming.chunks.len(), lent(&incoming)), (1, 0));
    assert_eq!(incoming.read(&mut [0; 20_000]).unwrap(), 10_000);
}

#[test]
fn no_more_is_written_than_the_other_end_allows_or_than_one_push_holds() {
    let mut outgoing = Outgoing { chunk_max: usize::MAX, ..Outgoing::default() };
    assert_eq!(outgoing.room(), 0);
    outgoing.allow(1);
    assert_eq!(outgoing.room(), 1);
    let least = *STREAM_CHUNK_BYTES.start();
    outgoing.allow(1 << 20);
    assert_eq!(outgoing.room(), (1 << 20) / STREAM_CHUNKS_AHEAD as usize);
    outgoing.chunk_max = 0;
    assert_eq!(outgoing.room(), least, "however little memory there is");
    outgoing.chunk_max = usize::MAX;
    outgoing.allow(u64::MAX);
    assert_eq!(outgoing.room(), *STREAM_CHUNK_BYTES.end());
    outgoing.waiting = vec![0; 10];
    assert_eq!(outgoing.room(), *STREAM_CHUNK_BYTES.end() - 10);
    outgoing.allow(5);
    assert_eq!(outgoing.allowed, u64::MAX, "what was allowed once stays so");
}

#[test]
fn an_end_that_waits_for_the_other_is_late_at_the_second_request_timeout() {
    let mut dialed = Connection::new(1, Lent::new(LENT_MAX));
    assert!(!dialed.has_waited());
    dialed.end.open();
    assert!(!dialed.has_waited() && !dialed.has_waited(), "its owner has it");
    dialed.end.finish();
    dialed.end.told();
    dialed.end.leave();
    dialed.discard();
    assert_eq!([dialed.has_waited(), dialed.has_waited()], [false, true], "nobody has it");
    let mut unanswered = Connection::new(1, Lent::new(LENT_MAX));
    assert_eq!([unanswered.has_waited(), unanswered.has_waited()], [false, true]);
}
