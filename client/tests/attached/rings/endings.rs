//! How streams end while their rings hold unread bytes.

use std::{
    io::Write,
    task::{Context, Waker},
};

use sealane::{Code, Stream};

use super::{Neighbours, code, read_all};
use crate::fixture::bytes;

/// How an end's owner gives it up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Parting {
    Finishes,
    FinishesAndGoes,
    Resets,
    Goes,
}

use Parting::{Finishes, FinishesAndGoes, Goes, Resets};

const PARTINGS: [Parting; 4] = [Finishes, FinishesAndGoes, Resets, Goes];
const UNREAD: usize = 150_000;

/// Ends this end as told; returns it unless it is dropped.
fn part(end: Stream, parting: Parting, reason: &str) -> Option<Stream> {
    match parting {
        Finishes | FinishesAndGoes => {
            let _polled = end.poll_finish(&mut Context::from_waker(Waker::noop()));
        }
        Resets => end.reset(reason),
        Goes => {}
    }
    matches!(parting, Finishes | Resets).then_some(end)
}

/// Reads what the other end left, after both have been given up.
fn check(end: &Stream, own: Parting, there: Parting, reason: &str, sent: &[u8]) {
    let (came, error) = read_all(end);
    assert!(came == sent, "{} of {} bytes came: {own:?} {there:?}", came.len(), sent.len());
    let said = error.as_ref().map(ToString::to_string).unwrap_or_default();
    assert!(error.as_ref().is_none_or(|error| code(error) == Code::Unavailable), "{said}");
    match (own, there) {
        (Finishes, Finishes | FinishesAndGoes) => assert_eq!(said, "", "{there:?}"),
        (Finishes, Resets) => assert!(said.contains(reason), "{said}"),
        (Finishes, Goes) => assert!(said.contains("dropped unfinished"), "{said}"),
        // It may or may not have heard of the other's end.
        _ => {}
    }
    assert!(own != Finishes || there != Finishes || end.finish().wait().is_ok(), "the other end has all");
}

#[test]
fn what_a_ring_holds_is_read_however_both_ends_part_and_then_the_reason_is_told() {
    let neighbours = Neighbours::new();
    for (own, there) in PARTINGS.into_iter().flat_map(|own| PARTINGS.map(|there| (own, there))) {
        for is_first in [true, false] {
            let [mut one, mut other] = neighbours.direct_stream();
            let sent = [1, 2].map(|seed| bytes(UNREAD, seed));
            one.write_all(&sent[0]).unwrap();
            other.write_all(&sent[1]).unwrap();
            let (one, other) = if is_first {
                let one = part(one, own, "by the one");
                (one, part(other, there, "by the other"))
            } else {
                let other = part(other, there, "by the other");
                (part(one, own, "by the one"), other)
            };
            if let Some(one) = &one {
                check(one, own, there, "by the other", &sent[1]);
            }
            if let Some(other) = &other {
                check(other, there, own, "by the one", &sent[0]);
            }
        }
    }
}

#[test]
fn what_was_delivered_is_read_after_its_writer_has_gone_and_others_have_taken_rings() {
    let neighbours = Neighbours::new();
    let sent = bytes(UNREAD, 3);
    let [one, mut other] = neighbours.direct_stream();
    other.write_all(&sent).unwrap();
    other.finish().wait().unwrap();
    drop(other);
    for seed in 0..40 {
        let mut more = neighbours.direct_stream();
        super::echo(&mut more, &bytes(UNREAD, seed));
        more.swap(0, 1);
        super::echo(&mut more, &bytes(UNREAD, seed));
    }
    let (came, error) = read_all(&one);
    assert!(came == sent && error.is_none(), "{} bytes came, then {error:?}", came.len());
    one.finish().wait().unwrap();
}
