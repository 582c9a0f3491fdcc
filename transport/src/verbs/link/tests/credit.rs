//! A peer that sends beyond its credit, or asks and never reads; and what an owner must be told when it has nothing else to do.

use super::harness::{Into, Manner};
use super::stage::{Fixture, WILD, request};
use crate::arena::Handle;
use crate::error::LinkError;
use crate::link::Link;
use crate::verbs::limits::WINDOW_MAX;
use crate::verbs::message::{Answer, Part};
use crate::verbs::settings::Transfer;

#[test]
fn messages_past_all_credit_end_the_link() {
    let mut stage = Fixture::new(Transfer::Write);
    for _ in 0..6 {
        stage.say_with(0, &[]);
    }
    stage.ends("beyond all credit");
}

/// The port reuses a word's buffer at once: still it must not keep words without a limit.
#[test]
fn words_without_end_are_not_kept_without_end() {
    let mut stage = Fixture::new(Transfer::Write);
    for _ in 0..3 * WINDOW_MAX {
        stage.write(WILD, &[], Some(7));
        stage.outcomes();
        stage.side.poll();
    }
    assert!(stage.kept() <= WINDOW_MAX as usize, "{} arrivals are kept", stage.kept());
    stage.error();
    stage.check();
}

#[test]
fn a_peer_that_asks_and_never_reads_is_not_answered_without_end() {
    let mut stage = Fixture::new(Transfer::Write);
    let asks: Vec<_> = (0..400).map(|request| Part::Revoke { request, reply: true }).collect();
    let error = (0..40).find_map(|round| {
        // Just enough credit for this side to return buffers and to say nothing else.
        stage.say_with(round % 2, &asks);
        stage.turn().err()
    });
    let error = error.expect("the link ends");
    assert!(matches!(error, LinkError::Protocol(_)) && error.to_string().contains("wait to leave"), "{error}");
    stage.check();
}

/// A session that receives nothing because too much waits to be sent still hears of credit: otherwise it would wait forever.
#[test]
fn credit_is_heard_by_a_side_that_does_not_listen() {
    let name = Handle::from_bits(1 << 32 | 9);
    for manner in [Manner::default(), Manner::default().tiny()] {
        let mut stage = Fixture::with(&manner);
        stage.side.link.as_mut().expect("it stands").adopt(name);
        for number in 0..10 {
            stage.side.ask(stage.now, number, 100, Into::Anywhere);
            stage.side.poll();
            stage.side.transmit(stage.now).expect("a healthy link");
        }
        assert!(!stage.side.session.outbox().is_empty(), "there is no credit for the last");
        stage.side.port.poll(&mut stage.side.told);
        stage.side.told.clear();
        stage.hear();
        stage.say(&[]);
        let mut told = Vec::new();
        stage.side.port.poll(&mut told);
        assert!(told.iter().any(|told| told.link == name && told.has_room), "{told:?}");
        stage.side.transmit(stage.now).expect("a healthy link");
        assert!(stage.side.session.outbox().is_empty());
        stage.check();
    }
}

/// A payload comes home through the outbox: its owner is told to transmit although it has nothing to say.
#[test]
fn a_payload_that_nobody_wants_comes_home_without_another_word() {
    let name = Handle::from_bits(1 << 32 | 9);
    let mut stage = Fixture::new(Transfer::Write);
    stage.side.link.as_mut().expect("it stands").adopt(name);
    stage.say(&[Part::Frames(&request(5).1)]);
    stage.turns();
    stage.hear();
    stage.say(&[Part::Clear { transfer: 0, answer: Answer::Drop }]);
    stage.side.poll();
    stage.side.receive(stage.now).expect("a healthy link");
    let mut told = Vec::new();
    stage.side.port.poll(&mut told);
    assert!(told.iter().any(|told| told.link == name && told.has_room), "{told:?}");
    stage.check();
}
