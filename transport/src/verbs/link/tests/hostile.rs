//! A peer that says and writes anything: its link ends with an error that says why, and nothing else is harmed.

use std::io::Write as _;
use std::time::Duration;

use super::harness::{Into, LARGE, Manner, pattern};
use super::stage::{Fixture, TURNS, WILD, place_in, request, response};
use crate::error::LinkError;
use crate::link::{Frames, Landing, Link, Place, Receiver};
use crate::verbs::device::{Remote, Status, Work};
use crate::verbs::limits::PLACES_MAX;
use crate::verbs::message::{self, Answer, How, Part};
use crate::verbs::settings::Transfer;
use crate::wire::WireError;

#[test]
fn messages_that_make_no_sense_end_the_link() {
    let part = |kind: u8, how: u8, bytes: u8| vec![0, 0, 0, 0, kind, how, 0, 0, bytes, 0, 0, 0];
    let cases: [(Vec<u8>, &str); 6] = [
        (vec![1, 0], "length"),
        (part(9, 0, 0), "part"),
        (part(0, 0, 0), "part"),
        (part(1, 0, 77), "part's length"),
        (part(2, 9, 0), "place's length"),
        (vec![0, 0, 0, 0, 1, 1, 1], "last part"),
    ];
    for (bytes, what) in cases {
        let mut stage = Fixture::new(Transfer::Write);
        stage.send(&bytes);
        stage.ends(what);
    }
}

#[test]
fn parts_about_what_is_not_there_end_the_link() {
    let payload = |how| Part::Payload { transfer: 3, bytes: 9000, how };
    let clear = |transfer, answer| Part::Clear { transfer, answer };
    let nonsense = [0xee; 64];
    let cases = [
        (payload(How::Asked), "payload without a frame"),
        (payload(How::Announced), "payload without a frame"),
        (payload(How::Offered(WILD)), "payload without a frame"),
        (clear(3, Answer::Write(WILD)), "transfer that is answered"),
        (clear(u16::MAX, Answer::Stream), "transfer that is answered"),
        (clear(0, Answer::Drop), "transfer that is answered"),
        (Part::Done { transfer: 0 }, "transfer that was read"),
        (Part::Done { transfer: 64 }, "transfer that was read"),
        (Part::Bytes { transfer: 5, bytes: b"bytes" }, "transfer that comes in messages"),
        (Part::Bytes { transfer: 9999, bytes: b"" }, "transfer that comes in messages"),
        (Part::Revoked { request: 77 }, "revoked place"),
        (Part::Frames(&nonsense), "frame body"),
    ];
    for transfer in [Transfer::Write, Transfer::Read] {
        for (part, what) in cases {
            let mut stage = Fixture::new(transfer);
            stage.say(&[part]);
            stage.ends(what);
        }
    }
}

#[test]
fn payloads_that_do_not_fit_their_frames_end_the_link() {
    let payload = |transfer, bytes, how| Part::Payload { transfer, bytes, how };
    let large = LARGE as u64;
    let cases: Vec<(Vec<Part<'_>>, &str)> = vec![
        (vec![payload(0, large - 1, How::Asked)], "length of a payload"),
        (vec![payload(0, u64::MAX, How::Streamed)], "length of a payload"),
        (vec![payload(64, large, How::Asked)], "transfer that begins"),
        (vec![payload(u16::MAX, large, How::Streamed)], "transfer that begins"),
        (vec![payload(0, large, How::Announced)], "place that was not announced"),
        (vec![payload(0, large, How::Asked), Part::Bytes { transfer: 0, bytes: b"x" }], "comes in messages"),
        (vec![payload(0, large, How::Asked), payload(1, large, How::Asked)], "payload without a frame"),
        (vec![payload(0, large, How::Offered(WILD)), Part::Done { transfer: 0 }], "transfer that was read"),
    ];
    for (parts, what) in cases {
        let mut stage = Fixture::new(Transfer::Write);
        let (id, _) = stage.asked(LARGE, Into::Anywhere);
        let frame = response(id, LARGE);
        stage.say(&[&[Part::Frames(&frame)], &parts[..]].concat());
        let error = stage.error();
        assert!(matches!(error, LinkError::Protocol(_)) && error.to_string().contains(what), "{parts:?}: {error}");
        assert_eq!(stage.side.session.requests(), 1, "it waits on");
        stage.check();
    }
}

#[test]
fn more_streamed_bytes_than_the_payload_has_end_the_link() {
    let mut stage = Fixture::new(Transfer::Write);
    let (id, _) = stage.asked(10_000, Into::Heap);
    let (frame, bytes) = (response(id, 10_000), vec![1; 10_001]);
    let payload = Part::Payload { transfer: 0, bytes: 10_000, how: How::Streamed };
    stage.say(&[Part::Frames(&frame), payload, Part::Bytes { transfer: 0, bytes: &bytes }]);
    stage.ends("length of a payload in messages");
}

#[test]
fn a_number_in_use_begins_nothing_else() {
    let mut stage = Fixture::new(Transfer::Write);
    let (id, _) = stage.asked(LARGE, Into::Anywhere);
    let (other, _) = stage.side.ask(stage.now, 2, LARGE, Into::Anywhere);
    stage.turns();
    let payload = Part::Payload { transfer: 7, bytes: LARGE as u64, how: How::Asked };
    let frames = [response(id, LARGE), response(other, LARGE)];
    stage.say(&[Part::Frames(&frames[0]), payload, Part::Frames(&frames[1]), payload]);
    stage.ends("transfer that begins");
}

#[test]
fn words_out_of_nowhere_end_the_link() {
    for word in [0, 63, 64, u32::MAX] {
        let mut stage = Fixture::new(Transfer::Write);
        stage.write(WILD, &[], Some(word));
        stage.ends("was written");
    }
    // A word for a place that has not been named yet, and a word for a payload that comes in messages.
    for how in [How::Offered(WILD), How::Streamed] {
        let mut stage = Fixture::new(Transfer::Write);
        let (id, _) = stage.asked(LARGE, Into::Anywhere);
        let frame = response(id, LARGE);
        stage.fabric.pause();
        stage.say(&[Part::Frames(&frame), Part::Payload { transfer: 0, bytes: LARGE as u64, how }]);
        stage.write(WILD, &[], Some(0));
        stage.fabric.resume();
        stage.ends("was written");
    }
}

#[test]
fn more_credit_than_there_can_be_ends_the_link() {
    let mut stage = Fixture::new(Transfer::Write);
    stage.say_with(u16::MAX, &[]);
    stage.ends("credit");
}

#[test]
fn a_byte_beside_the_link_ends_it() {
    let stage = Fixture::new(Transfer::Write);
    (&stage.socket).write_all(b"x").expect("written");
    stage.ends("byte beside a verbs link");
}

/// The honest side writes or reads where it is told to; the peer's device refuses, and the honest side ends the link.
#[test]
fn wild_places_are_refused_by_the_device() {
    for transfer in [Transfer::Write, Transfer::Read] {
        let mut stage = Fixture::new(transfer);
        let (id, _) = stage.asked(LARGE, Into::Slab);
        let frame = response(id, LARGE);
        stage.say(&[Part::Frames(&frame), Part::Payload { transfer: 0, bytes: LARGE as u64, how: How::Offered(WILD) }]);
        let error = stage.error();
        assert!(error.to_string().contains(&Status::REMOTE_ACCESS.to_string()), "{error}");
        stage.check();
    }
    for announced in [true, false] {
        let mut stage = Fixture::new(Transfer::Write);
        let (id, frame) = request(5);
        if announced {
            stage.say(&[Part::Place { request: id.to_bits(), bytes: 1 << 40, place: WILD }, Part::Frames(&frame)]);
        } else {
            stage.say(&[Part::Frames(&frame)]);
            stage.turns();
            stage.say(&[Part::Clear { transfer: 0, answer: Answer::Write(WILD) }]);
        }
        let error = stage.error();
        assert!(error.to_string().contains(&Status::REMOTE_ACCESS.to_string()), "{error}");
        stage.check();
    }
}

#[derive(Default)]
struct Keeps(Vec<Landing>);

impl Receiver for Keeps {
    fn frames(&mut self, _bytes: &[u8]) -> Result<Frames, WireError> {
        panic!("no frame");
    }

    fn landed(&mut self, landing: Landing) {
        self.0.push(landing);
    }
}

/// The peer can use a place only within its bytes and only for writing, until it says that the place is full.
#[test]
fn a_place_gives_no_more_than_itself() {
    for announced in [true, false] {
        let bytes = vec![9; 9000];
        let at = |place: Remote, offset: u64| Remote { address: place.address.wrapping_add(offset), ..place };
        let named = |stage: &mut Fixture| {
            let (id, address) = stage.asked(9000, if announced { Into::Slab } else { Into::Anywhere });
            let frame = response(id, 9000);
            let how = if announced { How::Announced } else { How::Asked };
            let mut messages = stage.hear();
            stage.say(&[Part::Frames(&frame), Part::Payload { transfer: 0, bytes: 9000, how }]);
            stage.turns();
            messages.extend(stage.hear());
            let (_, place) = place_in(&messages);
            assert!(!announced || place.address == address as u64);
            stage.outcomes();
            place
        };
        type Attempt = fn(Remote, &mut Fixture, &[u8]);
        let attempts: [(&str, Attempt); 4] = [
            ("before", |place, stage, bytes| {
                stage.write(Remote { address: place.address - 1, ..place }, bytes, Some(0))
            }),
            ("behind", |place, stage, bytes| {
                stage.write(Remote { address: place.address + 1, ..place }, bytes, Some(0))
            }),
            ("read", |place, stage, bytes| stage.post_bytes(bytes, |into| Work::Read { into, from: place })),
            ("another key", |place, stage, bytes| {
                stage.write(Remote { rkey: place.rkey ^ 1, ..place }, bytes, Some(0))
            }),
        ];
        for (what, attempt) in attempts {
            let mut stage = Fixture::new(Transfer::Write);
            let place = named(&mut stage);
            attempt(place, &mut stage, &bytes);
            assert_eq!(stage.outcomes(), [Status::REMOTE_ACCESS], "{what}");
            stage.check();
        }
        // A peer that behaves.
        let mut stage = Fixture::new(Transfer::Write);
        let place = named(&mut stage);
        stage.write(at(place, 100), &bytes[100..], None);
        stage.write(place, &bytes[..100], Some(0));
        assert_eq!(stage.outcomes(), [Status::SUCCESS; 2]);
        for _ in 0..TURNS {
            stage.side.poll();
            let link = stage.side.link.as_mut().expect("it stands");
            let mut keeps = Keeps::default();
            link.receive(&mut keeps, usize::MAX).expect("it stands");
            if let Some(landing) = keeps.0.pop() {
                let Place::Buffer(buffer) = &landing.place else { panic!("it has memory") };
                assert!(buffer[..9000] == bytes[..]);
                // A later owner of the memory is not written to.
                stage.write(place, &bytes, None);
                assert_eq!(stage.outcomes(), [Status::REMOTE_ACCESS]);
                stage.side.session.detach(Some(landing));
                check_detached(stage);
                break;
            }
        }
    }
}

/// However an answer comes: once its waiter has it, its memory may be reused, so the peer must not reach it any more.
#[test]
fn no_answer_is_handed_on_while_its_place_is_open() {
    const SIZE: usize = 9000;
    type Answering = fn(&mut Fixture, &[u8], &[u8]);
    let ways: [(&str, usize, Answering); 5] = [
        ("in the frame", 100, |stage, frame, bytes| stage.say(&[Part::Frames(&[frame, bytes].concat())])),
        ("frame and payload apart", 100, |stage, frame, bytes| {
            stage.say(&[Part::Frames(frame), Part::Frames(bytes)]);
        }),
        ("a large one among the frames", SIZE, |stage, frame, bytes| {
            stage.say(&[Part::Frames(frame), Part::Frames(bytes)]);
        }),
        ("in messages", SIZE, |stage, frame, bytes| {
            let payload = Part::Payload { transfer: 0, bytes: SIZE as u64, how: How::Streamed };
            stage.say(&[Part::Frames(frame), payload, Part::Bytes { transfer: 0, bytes }]);
        }),
        ("when asked for", SIZE, |stage, frame, bytes| {
            let payload = Part::Payload { transfer: 0, bytes: SIZE as u64, how: How::Asked };
            stage.say(&[Part::Frames(frame), payload]);
            stage.turns();
            let (_, place) = place_in(&stage.hear());
            stage.write(place, bytes, Some(0));
        }),
    ];
    for manner in [Manner::default(), Manner::default().registering_each(), Manner::with(Transfer::Read)] {
        for (what, size, answering) in ways {
            for is_given_up in [false, true] {
                let mut stage = Fixture::with(&manner);
                let (id, _) = stage.asked(SIZE, Into::Slab);
                let announced = manner.settings.transfer == Transfer::Write;
                let place = announced.then(|| place_in(&stage.hear()).1);
                answering(&mut stage, &response(id, size), &pattern(1, size));
                stage.outcomes();
                stage.side.poll();
                stage.side.receive(stage.now).expect("the link stands");
                if is_given_up && stage.side.fates.is_empty() {
                    // The answer or the link has the request's memory.
                    assert!(stage.side.session.cancel(id).is_some_and(|(_, destination)| destination.is_none()));
                }
                let is_done = |stage: &Fixture| match is_given_up {
                    true => stage.side.slab.in_use_bytes() == 0,
                    false => !stage.side.fates.is_empty(),
                };
                for turn in 0.. {
                    assert!(turn < TURNS, "{what}: it never comes");
                    if is_done(&stage) || !stage.side.fates.is_empty() {
                        break;
                    }
                    stage.turn().expect("the link stands");
                }
                if let Some(place) = place {
                    stage.write(place, &[6; 64], None);
                    assert_eq!(stage.outcomes(), [Status::REMOTE_ACCESS], "{what}, given up: {is_given_up}");
                }
                stage.side.fates.clear();
                stage.check();
            }
        }
    }
}

/// Checks a fixture whose session is detached already.
fn check_detached(mut stage: Fixture) {
    let mut link = stage.side.link.take().expect("it stands");
    assert!(link.abandon(stage.side.session.outbox()).is_empty());
    drop(link);
    stage.check();
}

#[test]
fn places_without_end_are_forgotten() {
    let mut stage = Fixture::new(Transfer::Write);
    let mut request = 1 << 32;
    for _ in 0..PLACES_MAX / 300 + 2 {
        let parts: Vec<_> = (0..300).map(|at| Part::Place { request: request + at, bytes: 1, place: WILD }).collect();
        request += 300;
        stage.say_with(1, &parts);
        stage.turns();
        stage.hear();
    }
    stage.turns();
    // A revoke is answered whenever it asks for that, whether or not its request exists.
    let parts = [(7, true), (8, false), (1 << 32, true)].map(|(request, reply)| Part::Revoke { request, reply });
    stage.say(&parts);
    stage.turns();
    let mut revoked = Vec::new();
    for message in stage.hear() {
        let (_, mut parts) = message::open(&message).expect("an honest message");
        while let Some(part) = parts.next().expect("an honest message") {
            if let Part::Revoked { request } = part {
                revoked.push(request);
            }
        }
    }
    assert_eq!(revoked, [7, 1 << 32]);
    stage.check();
}

#[test]
fn a_peer_that_never_answers_leaves_nothing_behind() {
    for transfer in [Transfer::Write, Transfer::Read] {
        let mut stage = Fixture::new(transfer);
        stage.asked(LARGE, Into::Slab);
        let (cancelled, _) = stage.asked(LARGE, Into::Slab);
        stage.side.session.cancel(cancelled).expect("it waits");
        for number in 0..3 {
            stage.say(&[Part::Frames(&request(number).1)]);
            stage.turns();
        }
        assert!(stage.side.home.is_empty());
        stage.now += Duration::from_secs(3600);
        assert!(stage.side.session.handle_timeout(stage.now).is_ok(), "it asks whether the peer lives");
        stage.now += Duration::from_secs(3600);
        assert!(matches!(stage.side.session.handle_timeout(stage.now), Err(LinkError::Silent(_))));
        stage.check();
    }
}
