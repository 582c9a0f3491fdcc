use std::{
    os::fd::AsFd,
    sync::{Arc, atomic::Ordering},
};

use sealane_runtime::Buffer;
use sealane_transport::{
    RecvOptions, SendOptions, Tensor,
    shm::{
        ClientBell, DirectLane, Fate, LaneKeeper, LaneMemory, Note, Record, Side, Span, Submission, Woken,
        attach::GivenLane,
        limits::{INLINE_BYTES_MAX, LANE_ENTRIES},
    },
};

use super::super::{
    Calls, Line, Purpose, State, To, With,
    nudge::{self, Others},
    rig::Rig,
};
use crate::{clock::Tick, limits::ENTRIES_FOR_ENDS};

const SENDER: &str = "sender";
const RECEIVER: &str = "receiver";
const LARGE: usize = INLINE_BYTES_MAX + 1;

/// A sender and a receiver with a lane between them, and no threads.
struct Two {
    sender: Rig,
    receiver: Rig,
    _lane: LaneKeeper,
}

impl Two {
    fn new() -> Two {
        let (sender, receiver, lane) = (Rig::new(SENDER), Rig::new(RECEIVER), LaneKeeper::create().unwrap());
        let bell = || ClientBell::between_clients().unwrap();
        let ((to_sender, sender_ear), (to_receiver, receiver_ear)) = (bell(), bell());
        let ends = [
            (&sender, RECEIVER, Side::First, sender_ear, to_receiver),
            (&receiver, SENDER, Side::Second, receiver_ear, to_sender),
        ];
        for (rig, peer, side, ear, bell) in ends {
            let lane = DirectLane::open(&lane.as_fd().try_clone_to_owned().unwrap(), side).unwrap();
            rig.attachment.open_lane(peer, GivenLane { lane, ear, bell });
        }
        Two { sender, receiver, _lane: lane }
    }

    fn send(&self, key: &str, bytes: usize) -> u32 {
        let tensor = Tensor::from_elements(&[bytes as u64], &vec![7_u8; bytes]).unwrap();
        let to = To { peer: RECEIVER, purpose: Purpose::Send { step: 1 } };
        self.sender.attachment.send(to, key, tensor, &SendOptions::default()).unwrap()
    }

    fn recv(&self, key: &str) -> u32 {
        let from = With { peer: SENDER, step: 1 };
        self.receiver.attachment.recv(from, key, RecvOptions::default()).unwrap()
    }

    fn recv_all(&self, keys: &[&str]) {
        let wanted = keys.iter().map(|key| (key, RecvOptions::default())).collect();
        self.receiver.attachment.recv_all(With { peer: SENDER, step: 1 }, wanted, |asked| {
            asked.unwrap();
        });
    }

    /// The receiver processes what has come.
    fn look(&self) {
        self.receiver.attachment.lock().pump();
    }

    /// Puts the receiver to sleep as others see it; returns where others ring for it.
    fn sleeps(&self) -> Arc<Others> {
        let mut held = self.receiver.attachment.lock();
        let State { line: Line::Up(link), calls, .. } = &mut *held else { panic!("no daemon") };
        assert!(link.may_sleep(false, calls));
        link.direct.ear().unwrap()
    }

    /// Whether a tensor wakes the sleeping receiver.
    fn wakes(&self, key: &str, bytes: usize) -> bool {
        let ear = self.sleeps();
        self.send(key, bytes);
        nudge::now(&ear.ear) == Woken::Rung
    }

    /// The tensor of a recv, if it has arrived.
    fn arrived(&self, recv: u32) -> Option<Buffer> {
        let received = self.receiver.attachment.look(recv, Calls::take_received).unwrap()?;
        Some(received.finish().unwrap().into_buffer())
    }
}

#[test]
fn a_call_that_goes_by_a_lane_takes_along_what_waits_for_a_shard() {
    let mut two = Two::new();
    let drop_block = |rig: &Rig, token: u64| {
        let area = rig.attachment.lock().link().segments[0].area.clone();
        drop(area.lend(Span { offset: 64 * token, len: 64 }, token).unwrap());
    };
    // The shards learn the peers' names.
    two.recv("v");
    two.send("v", 8);
    drop_block(&two.receiver, 7);
    assert_eq!(two.receiver.told(), [""; 0], "one block is not worth a record of its own");
    two.recv("w");
    assert_eq!(two.receiver.told(), ["free [7]"], "a large tensor may need it");
    drop_block(&two.sender, 8);
    two.send("w", 8);
    assert_eq!(two.sender.told(), ["free [8]"]);
}

#[test]
fn a_recv_waits_here_until_its_tensor_goes_by_the_daemon() {
    let mut two = Two::new();
    let recv = two.recv("w");
    assert!(two.arrived(recv).is_none());
    assert_eq!(two.receiver.told(), [""; 0]);
    two.send("w", LARGE);
    assert!(two.arrived(recv).is_none());
    assert_eq!((two.sender.told(), two.receiver.told()), (vec!["send w".into()], vec!["recv w".into()]));
}

#[test]
fn a_recv_whose_tensor_went_by_the_daemon_is_asked_for_at_once() {
    for together in [false, true] {
        let mut two = Two::new();
        two.send("w", LARGE);
        two.look();
        assert_eq!(two.receiver.told(), [""; 0]);
        match together {
            false => {
                two.recv("w");
            }
            true => two.recv_all(&["v", "w", "x"]),
        }
        assert_eq!(two.receiver.told(), ["recv w"]);
    }
}

#[test]
fn a_recv_of_a_step_that_has_ended_is_the_daemons_to_refuse() {
    let mut two = Two::new();
    let first = two.recv("w");
    two.receiver.attachment.abort(1, "over").unwrap();
    assert_eq!(two.receiver.told(), ["recv w"], "it is to end it");
    let second = two.recv("w");
    assert_eq!(two.receiver.told(), ["recv w"], "whether or not it has ended the first");
    assert_ne!(first, second);
}

#[test]
fn a_small_tensor_takes_the_place_of_what_was_said_of_a_large_one_before() {
    let mut two = Two::new();
    two.send("w", LARGE);
    two.send("w", 10);
    two.look();
    let recv = two.recv("w");
    assert_eq!(two.arrived(recv).unwrap()[..], [7; 10]);
    assert_eq!((two.sender.told(), two.receiver.told()), (vec!["send w".into()], vec![]));
}

#[test]
fn recvs_are_asked_for_at_once_while_there_is_more_than_a_lane_holds() {
    let mut two = Two::new();
    let recv = two.recv("last");
    for index in 0..LANE_ENTRIES - ENTRIES_FOR_ENDS {
        two.send(&index.to_string(), 10);
    }
    assert_eq!((two.sender.told(), two.receiver.told()), (vec![], vec![]));
    two.send("last", 10);
    assert!(two.arrived(recv).is_none());
    assert_eq!((two.sender.told(), two.receiver.told()), (vec!["send last".into()], vec!["recv last".into()]));
    two.recv("one more");
    assert_eq!(two.receiver.told(), ["recv one more"]);
    let first = two.recv("0");
    assert_eq!(two.arrived(first).unwrap().len(), 10, "what is in the lane comes by it all the same");
}

#[test]
fn entries_that_came_back_are_used_before_a_tensor_goes_by_the_daemon() {
    let mut two = Two::new();
    let keys: Vec<String> = (0..LANE_ENTRIES - ENTRIES_FOR_ENDS).map(|index| index.to_string()).collect();
    for key in &keys {
        two.send(key, 10);
    }
    for key in &keys {
        let recv = two.recv(key);
        assert!(two.arrived(recv).is_some());
    }
    two.send("one more", 10);
    assert_eq!((two.sender.told(), two.receiver.told()), (vec![], vec![]));
}

#[test]
fn a_tensor_is_sent_as_it_is_when_what_came_back_had_a_recv_asked_for() {
    let mut two = Two::new();
    let keys: Vec<String> = (0..LANE_ENTRIES - ENTRIES_FOR_ENDS).map(|index| index.to_string()).collect();
    for key in &keys {
        two.send(key, 10);
    }
    // The sender waits for a tensor from the receiver, which comes by the daemon.
    let from = With { peer: RECEIVER, step: 1 };
    two.sender.attachment.recv(from, "back", RecvOptions::default()).unwrap();
    for key in &keys {
        let recv = two.recv(key);
        assert!(two.arrived(recv).is_some());
    }
    let large = Tensor::from_elements(&[LARGE as u64], &[1_u8; LARGE]).unwrap();
    let to = To { peer: SENDER, purpose: Purpose::Send { step: 1 } };
    two.receiver.attachment.send(to, "back", large, &SendOptions::default()).unwrap();
    two.send("one more", 10);
    assert_eq!(two.sender.told(), ["recv back"]);
    let recv = two.recv("one more");
    assert_eq!(two.arrived(recv).unwrap().len(), 10);
}

#[test]
fn what_is_said_of_many_large_tensors_leaves_entries_to_small_ones() {
    let mut two = Two::new();
    for index in 0..LANE_ENTRIES {
        two.send(&index.to_string(), LARGE);
        two.look();
        assert_eq!(two.sender.told().len(), 1);
    }
    two.send("small", 10);
    let recv = two.recv("small");
    assert_eq!((two.arrived(recv).unwrap().len(), two.sender.told()), (10, vec![]));
    two.recv(&(LANE_ENTRIES - 1).to_string());
    assert_eq!(two.receiver.told().len(), 1, "the last are remembered");
}

#[test]
fn what_is_said_of_a_large_tensor_wakes_one_who_waits_for_it_and_nobody_else() {
    let mut two = Two::new();
    assert!(!two.wakes("early", LARGE));
    two.look();
    let recv = two.recv("w");
    assert!(two.wakes("w", LARGE));
    assert!(two.arrived(recv).is_none());
    assert_eq!(two.receiver.told(), ["recv w"]);
    // Having asked, the receiver waits for the daemon.
    assert!(!two.wakes("late", LARGE));
    two.look();
    assert!(two.wakes("small", 10));
}

#[test]
fn one_who_does_not_look_is_woken_before_what_is_said_of_large_tensors_takes_all_entries() {
    let mut two = Two::new();
    let ear = two.sleeps();
    for index in 0..LANE_ENTRIES - ENTRIES_FOR_ENDS {
        two.send(&index.to_string(), LARGE);
        two.sender.told();
    }
    assert_eq!(nudge::now(&ear.ear), Woken::Rung);
}

#[test]
fn what_a_lane_has_delivered_is_counted_by_both_sides_when_it_ends_at_once() {
    /// Tensors of which the daemon was told that they were sent and received over lanes.
    fn moved(rig: &mut Rig) -> (u64, u64) {
        let (mut record, mut moved) = (Record::new(), (0, 0));
        while rig.daemon.submissions.pop(&mut record).unwrap() {
            if let Submission::Direct { sent, received, .. } = Submission::decode(&record).unwrap() {
                moved = (moved.0 + sent.tensors, moved.1 + received.tensors);
            }
        }
        moved
    }
    let mut two = Two::new();
    two.send("w", 8);
    let recv = two.recv("w");
    two._lane.abandon();
    assert!(two.arrived(recv).is_some());
    two.sender.attachment.lock().pump();
    assert_eq!((moved(&mut two.sender), moved(&mut two.receiver)), ((1, 0), (0, 1)));
}

#[test]
fn an_entry_that_comes_back_when_its_send_has_long_ended_ends_no_other_send() {
    const THIRD: &str = "third";
    let (two, keeper) = (Two::new(), LaneKeeper::create().unwrap());
    let open = |side| DirectLane::open(&keeper.as_fd().try_clone_to_owned().unwrap(), side).unwrap();
    let (mut third, (bell, ear)) = (open(Side::Second), ClientBell::between_clients().unwrap());
    let sender = &two.sender.attachment;
    sender.open_lane(THIRD, GivenLane { lane: open(Side::First), ear, bell });
    third.arrive();
    let outcome = |call| sender.look(call, Calls::take_sent).unwrap();
    // The receiver marks the tensor as taken in the entry, but sends no notice: the sender finds the mark when it wants the entry back.
    let call = two.send("w", 8);
    let way = two._lane.way(Side::First);
    way.entry(0)[0].store(2, Ordering::Release);
    sender.lock().look_after_lanes(Tick::now().later(1000));
    assert_eq!(outcome(call), Some(Ok(())));
    // Until another send has the same call number.
    for index in 0.. {
        assert!(index < 10_000, "numbers of calls are not used again");
        let tensor = Tensor::from_elements(&[8], &[7_u8; 8]).unwrap();
        let to = To { peer: THIRD, purpose: Purpose::Send { step: 1 } };
        let later = sender.send(to, "w", tensor, &SendOptions::default()).unwrap();
        if later == call {
            break;
        }
        let Some(Note::Sent(entry)) = third.receiver.next_note().unwrap() else { panic!("nothing was sent") };
        assert!(third.receiver.settle(entry, Fate::Taken));
        third.receiver.publish();
        assert_eq!(outcome(later), Some(Ok(())));
    }
    // The first lane's memory reports its entry as taken.
    way.returned(0).store(1 << 32 | 2 << 16, Ordering::Release);
    assert_eq!(outcome(call), None, "the third has not received it");
}
