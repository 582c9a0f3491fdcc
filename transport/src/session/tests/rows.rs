//! Requests for rows of tables: mixed with requests for tensors, and handled the same way.

use super::*;
use crate::error::Error;
use crate::named_rows::NamedRowsBuf;
use crate::session::PeerRowRequest;

fn ask(end: &mut End, key: &str, ids: &[u64], waiter: u32) -> Handle {
    let params = RequestParams { step: 7, ..end.wanting(key, waiter) };
    end.session.request_rows(end.now, params, named(key, ids).as_rows(), false).unwrap()
}

fn named(key: &str, ids: &[u64]) -> NamedRowsBuf {
    let mut named = NamedRowsBuf::default();
    assert_eq!(named.name(key, ids, |count| count as u32), Some(ids.len()));
    named
}

/// The requests for rows that came, with the rows named of their first table.
fn asked(end: &mut End) -> Vec<(PeerRowRequest, Vec<u64>)> {
    let of_rows = |event| match event {
        Event::RowsRequested(asked) => {
            let mut ids = Vec::new();
            asked.rows.as_rows().iter().next().unwrap().ids.decode(&mut ids);
            Some((*asked, ids))
        }
        Event::Released { taken: true, .. } => None,
        other => panic!("not a request for rows: {other:?}"),
    };
    end.events().into_iter().filter_map(of_rows).collect()
}

#[test]
fn rows_are_asked_for_in_frames_of_their_own_and_answered_as_tensors_are() {
    let mut pair = Pair::new();
    pair.talk();
    let requests: Vec<_> = ["a", "b"].map(|key| pair.asking.wanting(key, 0)).into_iter().collect();
    for request in requests {
        pair.asking.session.request_fused(pair.asking.now, request).unwrap();
    }
    ask(&mut pair.asking, "user", &[9, 1, 9], 3);
    ask(&mut pair.asking, "item", &[2], 4);
    let said = pair.asking.speak();
    assert_eq!(words(&said), ["request a", "request b", "rows 3 of user", "rows 1 of item"]);
    pair.answering.hear(&said).unwrap();
    let events = pair.answering.events();
    let [Event::Requested(_), Event::Requested(_), Event::RowsRequested(rows), Event::RowsRequested(_)] = &events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!((rows.consumer, rows.producer, rows.min_version), (PEER_TASK, 0, 7));
    assert_eq!(rows.rows, named("user", &[9, 1, 9]));
    assert_eq!(rows.timeout_ms, 60_000);
    pair.answering.answer(rows.id, pattern(48), "rows");
    pair.talk();
    assert_eq!(pair.asking.answers(), [(3, Ok(pattern(48)))]);
    assert_eq!(pair.answering.released(), [("rows", 48, true)]);
}

#[test]
fn rows_are_asked_for_again_on_the_next_link_unless_they_were_answered() {
    let mut pair = Pair::new();
    ask(&mut pair.asking, "user", &[1, 2], 1);
    ask(&mut pair.asking, "item", &[3], 2);
    pair.talk();
    let first = asked(&mut pair.answering);
    assert_eq!(first[1].1, [3]);
    pair.answering.answer(first[0].0.id, pattern(BYTES), "user");
    pair.answering.session.park(first[1].0.id);
    pair.answering.speak();
    pair.new_link();
    pair.talk();
    // The first has its answer, which is sent again; the other is requested again.
    let again = asked(&mut pair.answering);
    assert_eq!(again, first[1..]);
    assert_eq!(pair.asking.answers(), [(1, Ok(pattern(BYTES)))]);
    pair.answering.session.refuse(again[0].0.id, &Error::invalid("row 3 of 'item', which has 2"));
    pair.talk();
    let [(2, Err(why))] = &pair.asking.answers()[..] else { panic!("no answer") };
    assert!(why.contains("row 3 of 'item', which has 2"), "{why}");
}

const BYTES: usize = 100_000;

#[test]
fn rows_that_nobody_waits_for_are_cancelled_and_a_step_that_ends_is_not_theirs() {
    let mut pair = Pair::new();
    ask(&mut pair.asking, "user", &[1], 1);
    pair.talk();
    let id = asked(&mut pair.answering)[0].0.id;
    pair.answering.session.park(id);
    pair.talk();
    pair.asking.session.end_requests(7, 0, None, &Error::invalid("the step ended"));
    assert!(pair.asking.events().is_empty(), "7 is a version there, not a step");
    pair.asking.now += Duration::from_secs(61);
    pair.asking.session.handle_timeout(pair.asking.now).ok();
    let [(1, Err(why))] = &pair.asking.answers()[..] else { panic!("no answer") };
    assert!(why.contains("user"), "{why}");
    let said = pair.asking.speak();
    assert!(words(&said).contains(&"cancel".to_string()), "{:?}", words(&said));
    pair.answering.hear(&said).unwrap();
    assert!(matches!(pair.answering.events()[..], [Event::Cancelled(withdrawn)] if withdrawn == id));
}

#[test]
fn rows_move_to_another_session_and_a_place_is_used_again_for_a_tensor() {
    let mut asking = End::new();
    asking.lose_link();
    ask(&mut asking, "user", &[5, 8], 1);
    let mut moved = Vec::new();
    asking.session.take_requests(
        |_, _| true,
        |_, params, options, rows| {
            moved.push((params.key.to_owned(), options.fused, rows));
        },
    );
    assert_eq!(moved, [("user".to_owned(), true, Some(named("user", &[5, 8])))]);
    asking.ask("w", 2);
    asking.attach();
    assert_eq!(words(&asking.speak()), ["request w", "resumed"]);
}
