//! Small tensors sent ahead: what a peer, honest or not, says of them.

use super::*;
use crate::limits::{AHEAD_BYTES_MAX, CONTROL_QUEUE_MAX};
use crate::session::AheadParams;
use crate::wire::{Ahead, AheadEnd, AheadRecordsBuf, Ends, Fate};

const ENDS: Ends = Ends { step: 1, producer: 0, consumer: 0 };

impl End {
    fn send_ahead(&mut self, key: &str, alone: bool) -> u64 {
        let params = AheadParams { key, meta: b"meta", payload: (&b"bytes"[..]).into(), pending: "ahead" };
        let mut sending = self.session.send_ahead((0, PEER_TASK), 1, alone).expect("there is a link");
        let number = sending.next();
        assert!(sending.has_room(key.len() + 4, 5), "it is small, and there is credit");
        sending.add(params);
        number
    }

    fn hear_ends(&mut self, ends: &[(u64, u32, Fate)]) -> Result<(), WireError> {
        let sequence = self.session.producer.release_seen();
        let ends = ends.iter().map(|&(first, count, fate)| AheadEnd { first, count, fate });
        self.hear(&frames(|w| w.ahead_release(sequence, ends)))
    }

    /// Tensors that have ended: how many were taken, and the keys of those that came back.
    fn ended(&mut self) -> (usize, Vec<String>) {
        let (mut taken, mut back) = (0, Vec::new());
        while let Some(event) = self.session.poll_event() {
            match event {
                super::super::Event::TakenAhead { count, .. } => taken += count as usize,
                super::super::Event::BackFromAhead(one) => {
                    assert_eq!((&one.meta[..], &one.buffer[..]), (&b"meta"[..], &b"bytes"[..]));
                    back.push(one.key.into());
                }
                other => panic!("{other:?}"),
            }
        }
        (taken, back)
    }
}

fn ahead(first: u64) -> Vec<u8> {
    let mut records = AheadRecordsBuf::default();
    records.push("w", b"meta", b"bytes".into());
    frames(|w| w.ahead(&Ahead { first, ends: ENDS, records: records.records() }))
}

#[test]
fn each_ends_once_in_whatever_order_and_frames_go_with_their_last() {
    for alone in [false, true] {
        let mut end = End::new();
        (0..100).for_each(|number| assert_eq!(end.send_ahead(&format!("w{number}"), alone), number));
        end.speak();
        // The last ones first, one by one; then the others in order, across the bounds of frames.
        for number in (60..100).rev() {
            end.hear_ends(&[(number, 1, if number % 2 == 0 { Fate::Taken } else { Fate::Returned })]).unwrap();
        }
        let odd: Vec<_> = (60..100).rev().filter(|number| number % 2 == 1).map(|number| format!("w{number}")).collect();
        assert_eq!(end.ended(), (20, odd));
        end.hear_ends(&[(0, 30, Fate::Taken), (30, 30, Fate::Returned)]).unwrap();
        assert_eq!(end.ended(), (30, (30..60).map(|number| format!("w{number}")).collect()));
        assert_eq!(end.session.unreleased(), 0);
        assert_eq!(end.session.ahead.bytes(), 0, "credit would be lost");
    }
}

#[test]
fn what_cannot_be_ends_the_link() {
    let sent = || {
        let mut end = End::new();
        (0..3).for_each(|number| _ = end.send_ahead(&format!("w{number}"), false));
        end.speak();
        end.send_ahead("not sent", true);
        end
    };
    let cases: [&[(u64, u32, Fate)]; 6] = [
        &[(3, 1, Fate::Taken)],
        &[(0, 4, Fate::Taken)],
        &[(0, u32::MAX, Fate::Returned)],
        &[(u64::MAX, 1, Fate::Taken)],
        &[(1, 1, Fate::Returned), (1, 1, Fate::Returned)],
        &[(0, 2, Fate::Taken), (0, 3, Fate::Taken)],
    ];
    for case in cases {
        let error = sent().hear_ends(case).unwrap_err();
        assert!(error.to_string().starts_with("number of a tensor sent ahead is "), "{case:?}: {error}");
    }
    // A link that ended this way leaves nothing behind, whatever was said of a frame's tensors before.
    for before in 1..8_u32 {
        let mut end = sent();
        let told: Vec<_> = (0..3).filter(|number| before >> number & 1 == 1).collect();
        told.iter().for_each(|&number| end.hear_ends(&[(number, 1, Fate::Taken)]).unwrap());
        assert!(end.hear_ends(&[(0, 3, Fate::Taken)]).is_err());
        end.session.detach([]);
        end.session.start_anew();
        let (taken, back) = end.ended();
        assert_eq!((taken + back.len(), end.session.ahead.bytes()), (4, 0), "{told:?}");
    }
    for number in [u64::MAX, 1 << 63] {
        assert!(End::new().hear(&ahead(number)).is_err());
    }
    let mut end = End::new();
    end.hear(&ahead(5)).unwrap();
    assert!(end.hear(&ahead(5)).is_err(), "numbers do not go back");
}

#[test]
fn a_peer_that_does_not_read_is_told_of_no_more_than_a_queue_holds() {
    let mut end = End::new();
    for number in 0..2 * CONTROL_QUEUE_MAX {
        end.session.hold((0, PEER_TASK), 1, &format!("w{number}"));
        end.session.abort(number as i64, 0, "enough");
    }
    assert!(words(&end.speak()).len() <= CONTROL_QUEUE_MAX + 1);
}

#[test]
fn a_number_is_found_after_the_frame_before_it_was_taken_back_unsent() {
    let mut end = End::new();
    assert_eq!(end.send_ahead("first", false), 0);
    // In a frame of its own.
    assert_eq!(end.send_ahead("revoked", true), 1);
    end.session.revoke_ahead(1);
    assert_eq!(end.send_ahead("last", false), 2);
    assert_eq!(
        (end.session.key_ahead(0).as_deref(), end.session.key_ahead(2).as_deref()),
        (Some("first"), Some("last"))
    );
    end.session.revoke_ahead(2);
    assert_eq!(end.ended(), (0, vec!["revoked".to_owned(), "last".to_owned()]));
}

#[test]
fn credit_is_a_bound_for_what_may_be_on_its_way() {
    let mut end = End::new();
    let payload = [7; 4096];
    let params = || AheadParams { key: "w", meta: b"meta", payload: (&payload[..]).into(), pending: "ahead" };
    let mut sending = end.session.send_ahead((0, PEER_TASK), 1, false).expect("there is a link");
    let mut count = 0;
    while sending.has_room(5, payload.len()) {
        sending.add(params());
        count += 1;
    }
    assert_eq!(count, AHEAD_BYTES_MAX / (4096 + 4 + 1 + 64));
    end.speak();
    end.hear_ends(&[(0, count as u32, Fate::Taken)]).unwrap();
    assert_eq!((end.ended().0, end.session.ahead.bytes()), (count, 0));
    end.send_ahead("w", false);
}
