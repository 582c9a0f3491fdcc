//! The table by itself: who meets whom, and what is returned.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use sealane_transport::{Error, Handle, Payload};

use super::{Ended, Found, Late, MatchKey, Parked, RawMatchKey, Released, Sent, Table};
use sealane_transport::tensor::{DType, TensorMeta};

const SOON: Duration = Duration::from_secs(1);

fn at(key: &str) -> MatchKey<'_> {
    MatchKey { pair: 0, step: 1, key }
}

fn tensor(byte: u8) -> (TensorMeta, Payload) {
    (TensorMeta::new(DType::U8, &[1]).unwrap(), vec![byte].into())
}

fn request(id: u64) -> Parked {
    Parked::Peer { session: Handle::from_bits(1 << 32), id: Handle::from_bits(1 << 32 | id) }
}

fn byte((_, payload): &(TensorMeta, Payload)) -> u8 {
    payload.as_ref()[0]
}

/// Adds a pending send, expecting that no request waits for it.
fn keep(table: &mut Table<&'static str>, key: &str, sender: &'static str, deadline: Instant) {
    let kept = table.send(at(key), tensor(sender.as_bytes()[0]), sender, deadline);
    assert!(matches!(kept, Ok(Sent::Kept(_))));
}

/// Asks for a tensor, expecting that it is there.
fn take(table: &mut Table<&'static str>, key: &str, id: u64) -> ((TensorMeta, Payload), Handle) {
    match table.request(at(key), request(id)) {
        Ok(Found::Tensor(tensor, pending)) => (tensor, pending),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_tensor_is_pending_until_it_is_released() {
    let now = Instant::now();
    let mut table = Table::new(10);
    keep(&mut table, "w", "a", now + SOON);
    let (matched, pending) = take(&mut table, "w", 1);
    assert_eq!((byte(&matched), table.pending_sends(), table.parked()), (b'a', 1, 0));
    assert!(matches!(table.release(pending, matched, true), Released::Taken("a")));
    assert_eq!(table.pending_sends(), 0);
    assert!(matches!(table.release(pending, tensor(0), true), Released::Gone), "once");
    assert!(matches!(table.release(pending, tensor(0), false), Released::Gone));
}

#[test]
fn pair_step_and_key_keep_tensors_apart() {
    let now = Instant::now();
    let mut table = Table::new(10);
    keep(&mut table, "w", "a", now);
    let others = [MatchKey { pair: 1, ..at("w") }, MatchKey { step: 2, ..at("w") }, at("v")];
    for (other, id) in others.into_iter().zip(1..) {
        assert!(matches!(table.request(other, request(id)), Ok(Found::Parked)));
    }
    assert_eq!((table.parked(), table.pending_sends()), (3, 1));
}

#[test]
fn a_tensor_that_is_barred_does_not_wait_again() {
    let now = Instant::now();
    let mut table = Table::new(10);
    for (key, sender) in [("w", "a"), ("v", "b")] {
        keep(&mut table, key, sender, now);
    }
    let (back, taken) = (take(&mut table, "w", 1), take(&mut table, "v", 2));
    let error = Error::Aborted { step: 1, reason: "over".into() };
    table.end_step(0, 1, &error);
    table.end_step(0, 2, &Error::invalid("another step"));
    keep(&mut table, "u", "c", now);
    let Released::Displaced(sender, found) = table.release(back.1, back.0, false) else { panic!("barred") };
    assert_eq!((sender, found), ("a", error));
    assert!(matches!(table.release(taken.1, taken.0, true), Released::Taken("b")), "taken is taken");
    assert_eq!(byte(&take(&mut table, "u", 3).0), b'c', "what came later is not meant");
}

#[test]
fn a_full_table_names_its_limit_and_counts_what_is_matched() {
    let now = Instant::now();
    let mut table = Table::new(1);
    keep(&mut table, "w", "a", now);
    let (matched, pending) = take(&mut table, "w", 1);
    let (error, sender) = table.send(at("v"), tensor(1), "b", now).unwrap_err();
    assert_eq!(sender, "b");
    assert!(matches!(error, Error::ResourceExhausted { limit, .. } if &*limit == "fusion.pending_sends_max"));
    assert!(matches!(table.release(pending, matched, false), Released::Kept(_)), "its own place is its own");
}

#[test]
fn cancelled_requests_are_forgotten() {
    let now = Instant::now();
    let mut table = Table::new(10);
    let other = Parked::Peer { session: Handle::from_bits(2 << 32), id: Handle::from_bits(1 << 32 | 3) };
    for (key, by) in [("u", request(1)), ("v", request(2)), ("w", other)] {
        assert!(matches!(table.request(at(key), by), Ok(Found::Parked)));
    }
    assert!(table.cancel(request(1)) && !table.cancel(request(1)));
    table.forget_session(Handle::from_bits(1 << 32));
    assert_eq!(table.parked(), 1);
    keep(&mut table, "u", "a", now);
    keep(&mut table, "v", "b", now);
    assert!(matches!(table.send(at("w"), tensor(1), "c", now), Ok(Sent::Requested { by, .. }) if by == other));
}

#[test]
fn a_steps_tensors_and_requests_are_taken_out_together() {
    let now = Instant::now();
    let mut table = Table::new(10);
    keep(&mut table, "w", "a", now + SOON);
    keep(&mut table, "matched", "b", now + SOON);
    let _matched = take(&mut table, "matched", 9);
    assert!(matches!(table.request(at("v"), request(1)), Ok(Found::Parked)));
    let error = Error::Aborted { step: 1, reason: "over".into() };
    for (pair, step) in [(0, 2), (1, 1)] {
        let ended = table.end_step(pair, step, &error);
        assert!(ended.unsent.is_empty() && ended.parked.is_empty());
    }
    let Ended { unsent, parked } = table.end_step(0, 1, &error);
    assert_eq!(
        unsent.iter().map(|unsent| (unsent.sender, &*unsent.key, unsent.step)).collect::<Vec<_>>(),
        [("a", "w", 1)]
    );
    assert_eq!(parked, [request(1)]);
    assert_eq!((table.pending_sends(), table.parked()), (1, 0), "what is matched stays");
}

#[test]
fn a_large_table_is_not_walked_for_each_of_many_deadlines() {
    const COUNT: u32 = 10_000;
    let (now, each) = (Instant::now(), Duration::from_micros(1));
    let mut table = Table::new(COUNT as usize);
    (0..COUNT).for_each(|number| keep(&mut table, &number.to_string(), "a", now + each * (number + 1)));
    let (mut walks, mut expired) = (0, 0);
    while let Some(at) = table.next_deadline() {
        expired += table.expire(at, |_, _| unreachable!("none is matched")).len();
        walks += 1;
    }
    assert_eq!((expired, table.pending_sends()), (COUNT as usize, 0));
    assert!(walks < 10, "{walks} walks in ten milliseconds");
}

#[test]
fn tensors_expire_in_time_and_those_that_are_matched_then_do_not_wait_again() {
    let now = Instant::now();
    let mut table = Table::new(10);
    assert_eq!(table.next_deadline(), None);
    for (key, sender, wait) in [("u", "a", 3), ("v", "b", 1), ("w", "c", 2)] {
        keep(&mut table, key, sender, now + SOON * wait);
    }
    assert_eq!(table.next_deadline(), Some(now + SOON));
    let (matched, pending) = take(&mut table, "v", 1);
    let mut told = Vec::new();
    let mut expire = |table: &mut Table<&'static str>, wait| {
        let late = table.expire(now + SOON * wait, |sender, Late { key, deadline, .. }| {
            told.push((*sender, key.to_owned(), deadline));
            Error::invalid("told")
        });
        (late.into_iter().map(|unsent| unsent.sender).collect::<Vec<_>>(), told.len())
    };
    assert_eq!(expire(&mut table, 1), (vec![], 1), "the first is matched");
    assert_eq!(table.next_deadline(), Some(now + SOON * 2));
    assert_eq!(expire(&mut table, 2), (vec!["c"], 1), "and told once");
    assert_eq!(told, [("b", "v".to_owned(), now + SOON)]);
    let Released::Displaced("b", error) = table.release(pending, matched, false) else { panic!("its sender was told") };
    assert_eq!((error, table.parked()), (Error::invalid("told"), 0));
    assert_eq!((table.next_deadline(), table.pending_sends()), (Some(now + SOON * 3), 1));
    let (matched, pending) = take(&mut table, "u", 2);
    assert!(matches!(table.release(pending, matched, false), Released::Kept(_)), "it is not late");
}

#[test]
fn a_tensor_that_is_matched_as_soon_as_it_is_sent_has_a_deadline_too() {
    let now = Instant::now();
    let mut table = Table::new(10);
    assert!(matches!(table.request(at("w"), request(1)), Ok(Found::Parked)));
    let sent = table.send(at("w"), tensor(7), "a", now + SOON);
    let Ok(Sent::Requested { tensor: matched, pending, .. }) = sent else { panic!("a request waits") };
    assert_eq!(table.next_deadline(), Some(now + SOON));
    assert!(table.expire(now + SOON, |_, _| Error::invalid("told")).is_empty());
    assert_eq!(table.next_deadline(), None);
    assert!(matches!(table.release(pending, matched, true), Released::Taken("a")), "it arrived after all");
}

proptest! {
    /// Compared with the simplest model: per key, a list of waiting tensors and a list of waiting requests.
    #[test]
    fn the_table_does_what_two_lists_do(deeds in proptest::collection::vec((0u8..4, 0u8..4), 1..200)) {
        let now = Instant::now();
        let mut table: Table<u64> = Table::new(usize::MAX);
        let mut waiting: Vec<(String, u64)> = Vec::new();
        let mut parked: Vec<(String, u64)> = Vec::new();
        let mut matched = Vec::new();
        for (number, (deed, key)) in deeds.into_iter().enumerate() {
            let (number, key) = (number as u64, format!("key{key}"));
            let find = |list: &[(String, u64)]| list.iter().position(|(other, _)| *other == key);
            match deed {
                0 => match (find(&waiting), find(&parked), table.send(at(&key), tensor(number as u8), number, now)) {
                    (Some(_), None, Err((_, sender))) => prop_assert_eq!(sender, number),
                    (None, Some(first), Ok(Sent::Requested { by, tensor, pending })) => {
                        prop_assert_eq!(by, request(parked.remove(first).1));
                        matched.push((key, number, tensor, pending));
                    }
                    (None, None, Ok(Sent::Kept(_))) => waiting.push((key, number)),
                    (_, _, found) => prop_assert!(false, "pending of {key}: {found:?}"),
                },
                1 => match (find(&waiting), find(&parked), table.request(at(&key), request(number))) {
                    (Some(first), None, Ok(Found::Tensor(tensor, pending))) => {
                        let (key, sender) = waiting.remove(first);
                        prop_assert_eq!(byte(&tensor), sender as u8);
                        matched.push((key, sender, tensor, pending));
                    }
                    (None, Some(_), Err(_)) => {}
                    (None, None, Ok(Found::Parked)) => parked.push((key, number)),
                    (_, _, found) => prop_assert!(false, "request of {key}: {found:?}"),
                },
                _ if matched.is_empty() => {}
                _ => {
                    let (key, sender, tensor, pending) = matched.remove(0);
                    let find = |list: &[(String, u64)]| list.iter().position(|(other, _)| *other == key);
                    match table.release(pending, tensor, deed == 2) {
                        Released::Taken(told) if deed == 2 => prop_assert_eq!(told, sender),
                        Released::Displaced(told, _) => prop_assert!(told == sender && find(&waiting).is_some()),
                        Released::Requested { by, tensor, pending } => {
                            let first = find(&parked).expect("a request waits");
                            prop_assert_eq!(by, request(parked.remove(first).1));
                            matched.push((key, sender, tensor, pending));
                        }
                        Released::Kept(_) => waiting.push((key, sender)),
                        found => prop_assert!(false, "released: {found:?}"),
                    }
                }
            }
            prop_assert_eq!((table.pending_sends(), table.parked()), (waiting.len() + matched.len(), parked.len()));
            table.check_invariants(|_| true);
        }
    }
}

#[test]
fn an_id_that_waits_already_cannot_wait_for_another_tensor() {
    let mut table = Table::<()>::new(4);
    let by = Parked::Peer { session: Handle::from_bits(1 << 32), id: Handle::from_bits(5 << 32) };
    assert!(matches!(table.request(at("a"), by), Ok(Found::Parked)));
    assert!(table.request(at("b"), by).unwrap_err().to_string().contains("id is that of another"));
    table.forget_session(Handle::from_bits(1 << 32));
    assert_eq!((table.parked(), table.entries.len()), (0, 0));
}

#[test]
fn a_key_that_is_no_text_finds_nothing_and_does_not_wait() {
    let mut table = Table::<&str>::new(8);
    assert!(matches!(table.send(at("w"), tensor(1), "a", Instant::now()), Ok(Sent::Kept(_))));
    let MatchKey { pair, step, .. } = at("w");
    let asked = |key| RawMatchKey { pair, step, key };
    assert!(matches!(table.request(asked(b"\xff"), request(1)), Ok(Found::NotText)));
    assert_eq!((table.parked(), table.pending_sends()), (0, 1));
    assert!(matches!(table.request(asked(b"w"), request(1)), Ok(Found::Tensor(..))), "its id is free");
}
