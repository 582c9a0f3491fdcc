//! Messages of two ranks without threads: each rank advances when the test says so.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use sealane_transport::shm::group::{Bootstrap, Neighbour, Word};

use super::{LIMIT, bytes};
use crate::{
    group::{hosts::layout::Layout, mail::Mail, members::Members},
    memory::ForkMark,
};

fn two() -> [(Arc<Members>, Mail); 2] {
    let ranks = [0, 1].map(|rank| (rank, Bootstrap::new().unwrap()));
    let neighbours = ranks.each_ref().map(|(rank, met)| Neighbour { rank: *rank, name: met.name().to_owned() });
    std::thread::scope(|scope| {
        let join = |(rank, bootstrap): (usize, Bootstrap)| {
            let neighbours = &neighbours;
            (rank, scope.spawn(move || bootstrap.join(rank, neighbours, LIMIT.unwrap()).unwrap()))
        };
        ranks.map(join).map(|(rank, joined)| {
            let layout = Layout::new(rank, &["here"; 2]);
            let (members, _slots, boxes) = Members::new(layout, joined.join().unwrap(), None, ForkMark::new().unwrap());
            let members = Arc::new(members);
            (members.clone(), Mail::new(members, boxes))
        })
    })
}

/// Longer than a mailbox.
const LONG: usize = 200 << 10;

#[test]
fn a_recv_that_comes_while_its_message_is_moved_out_of_the_way_gets_it() {
    let [(_, mut sender), (_, mut receiver)] = two();
    let first = sender.send(Box::new(bytes(LONG, 0, 0)), 1, 1);
    sender.send(Box::new(bytes(8, 0, 1)), 1, 1);
    sender.send(Box::new(bytes(8, 0, 2)), 1, 2);
    sender.advance();
    // It waits for the third message, so the first is moved out of the mailbox.
    let other = receiver.recv(Box::new(vec![0; 8]), Some(0), 2);
    receiver.advance();
    let [long, short] = [LONG, 8].map(|len| receiver.recv(Box::new(vec![0; len]), None, 1));
    while sender.advance() | receiver.advance() {}
    for call in [long, short, other] {
        assert_eq!(receiver.take(call), Some(Ok(0)));
    }
    assert_eq!(sender.take(first), Some(Ok(1)));
    assert!(!receiver.is_busy());
}

#[test]
fn a_recv_that_is_given_up_while_it_arrives_is_written_to_no_more() {
    struct Room(Vec<u8>, Arc<AtomicUsize>);
    impl AsMut<[u8]> for Room {
        fn as_mut(&mut self) -> &mut [u8] {
            self.1.fetch_add(1, Ordering::Relaxed);
            &mut self.0
        }
    }
    let [(_, mut sender), (_, mut receiver)] = two();
    let writes = Arc::new(AtomicUsize::new(0));
    sender.send(Box::new(bytes(LONG, 0, 0)), 1, 1);
    let given_up = receiver.recv(Box::new(Room(vec![0; LONG], writes.clone())), Some(0), 1);
    assert!(sender.advance() && receiver.advance());
    receiver.forget(given_up);
    let before = writes.load(Ordering::Relaxed);
    while sender.advance() | receiver.advance() {}
    assert_eq!(writes.load(Ordering::Relaxed), before);
    // The next message passes as usual.
    sender.send(Box::new(bytes(9, 0, 0)), 1, 1);
    let next = receiver.recv(Box::new(vec![0; 9]), Some(0), 1);
    while sender.advance() | receiver.advance() {}
    assert_eq!(receiver.take(next), Some(Ok(0)));
}

#[test]
fn a_rank_that_says_what_cannot_be_ends_the_group_and_nothing_else() {
    for (word, value) in [(Word::Sent(1), u32::MAX), (Word::Sent(1), 5), (Word::Taken(1), 3)] {
        let [(hostile, _), (members, mut mail)] = two();
        let recv = mail.recv(Box::new(vec![0; 8]), Some(0), 1);
        let send = mail.send(Box::new(bytes(LONG, 0, 0)), 0, 1);
        hostile.own().store(word, value);
        for _ in 0..10 {
            mail.advance();
            mail.look_around();
        }
        if matches!(word, Word::Sent(_)) {
            let error = mail.take(recv).unwrap().unwrap_err().to_string();
            assert!(error.contains("it says that it has sent more than there is room for"), "{error}");
            assert!(members.check().is_err() && mail.take(send).unwrap().is_err());
        } else {
            assert!(members.check().is_ok());
        }
    }
    // Empty pieces.
    let [(hostile, _), (members, mut mail)] = two();
    let recv = mail.recv(Box::new(vec![0; 0]), Some(0), 0);
    hostile.own().store(Word::Sent(1), 1);
    mail.advance();
    assert_eq!(mail.take(recv), Some(Ok(0)), "a message of nothing, tagged 0");
    assert!(members.check().is_ok());
}
