use std::{
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Waker,
    time::Duration,
};

use sealane_transport::{
    RecvOptions, SendOptions, Tensor,
    channel::RingMemory,
    shm::{
        ClientBell, DirectLane, LaneKeeper, Record, Side, Submission, Woken,
        attach::{GivenLane, LaneBells},
        limits::INLINE_BYTES_MAX,
    },
};

use super::{
    super::{
        Line, Purpose, State, To, With,
        nudge::{self, Others},
        rig::Rig,
        wait::Waiter,
    },
    Sleep,
};
use crate::{
    Code,
    clock::Tick,
    under_way::{Handle, Receiving, Sending},
};

const SENDER: &str = "sender";
const RECEIVER: &str = "receiver";
const LARGE: usize = INLINE_BYTES_MAX + 1;

/// A sender and a receiver with an active channel between them, and no threads.
struct Two {
    sender: Rig,
    receiver: Rig,
    lane: LaneKeeper,
}

impl Two {
    fn new() -> Two {
        let two = Two::opened();
        two.settle();
        two
    }

    /// Neither side has found the other's end open.
    fn opened() -> Two {
        let (sender, receiver) = (Rig::new(SENDER), Rig::new(RECEIVER));
        let lane = Two::open_lane(&sender, &receiver);
        Two { sender, receiver, lane }
    }

    /// Gives both sides the ends of a lane.
    fn open_lane(sender: &Rig, receiver: &Rig) -> LaneKeeper {
        let lane = LaneKeeper::create().unwrap();
        let bell = || ClientBell::between_clients().unwrap();
        let ((to_sender, sender_ear), (to_receiver, receiver_ear)) = (bell(), bell());
        let ends = [
            (sender, RECEIVER, Side::First, sender_ear, to_receiver),
            (receiver, SENDER, Side::Second, receiver_ear, to_sender),
        ];
        for (rig, peer, side, ear, bell) in ends {
            let lane = DirectLane::open(&lane.as_fd().try_clone_to_owned().unwrap(), side).unwrap();
            rig.attachment.open_lane(peer, GivenLane { lane, bells: Some(LaneBells { ear, bell }) });
        }
        lane
    }

    /// Pumps both sides twice, so that each has answered what the other did.
    fn settle(&self) {
        (0..2).for_each(|_| [&self.sender, &self.receiver].iter().for_each(|rig| rig.attachment.lock().pump()));
    }

    fn send_within(&self, key: &str, bytes: usize, timeout: Option<Duration>) -> Sending {
        let tensor = Tensor::from_elements(&[bytes as u64], &vec![7_u8; bytes]).unwrap();
        let to = To { peer: RECEIVER, purpose: Purpose::Send { step: 1 } };
        let attachment = &self.sender.attachment;
        Sending::of(attachment, attachment.send(to, key, tensor, &SendOptions { timeout }))
    }

    fn send(&self, key: &str, bytes: usize) -> Sending {
        self.send_within(key, bytes, None)
    }

    fn recv(&self, key: &str) -> Receiving {
        let (attachment, from) = (&self.receiver.attachment, With { peer: SENDER, step: 1 });
        Receiving::of(attachment, attachment.recv(from, key, RecvOptions::default()))
    }

    /// The receiver takes in what has arrived.
    fn look(&self) {
        self.receiver.attachment.lock().pump();
    }

    /// Puts the receiver to sleep as others see it; returns where others ring for it.
    fn sleeps(&self, sleep: Sleep) -> Arc<Others> {
        let mut held = self.receiver.attachment.lock();
        let State { line: Line::Up(link), .. } = &mut *held else { panic!("no daemon") };
        let ear = link.direct.ear().unwrap();
        // What rang before counts no more.
        nudge::now(&ear.ear);
        assert!(link.may_sleep(sleep));
        ear
    }
}

fn has_rung(ear: &Others) -> bool {
    nudge::now(&ear.ear) == Woken::Rung
}

#[test]
fn small_tensor_goes_past_the_daemon() {
    let mut two = Two::new();
    let (mut sending, mut receiving) = (two.send("w", 64), two.recv("w"));
    assert_eq!(receiving.try_outcome().unwrap().unwrap().bytes(), [7; 64]);
    sending.try_outcome().unwrap().unwrap();
    assert_eq!((two.sender.told(), two.receiver.told()), (vec![], vec![]));
}

#[test]
fn announced_tensor_is_asked_for_at_the_daemon() {
    for is_early in [false, true] {
        let mut two = Two::new();
        let early = is_early.then(|| two.recv("w"));
        let _sending = two.send("w", LARGE);
        two.look();
        let _receiving = early.unwrap_or_else(|| two.recv("w"));
        two.look();
        assert_eq!((two.sender.told(), two.receiver.told()), (vec!["send w".into()], vec!["recv w".into()]));
        let _other = two.recv("v");
        assert_eq!(two.receiver.told(), [""; 0], "no other recv");
    }
}

#[test]
fn recvs_are_asked_for_until_older_sends_are_over() {
    let mut two = Two::opened();
    let _before = two.send("before", 8);
    two.settle();
    let [_recv, _other] = [two.recv("before"), two.recv("w")];
    assert_eq!((two.sender.told(), two.receiver.told().len()), (vec!["send before".into()], 2));
    // The sender knows no better, and its tensor is received over the channel all the same.
    let mut sending = two.send("w", 8);
    two.look();
    assert!(sending.try_outcome().is_some());
}

/// The producer may send the second tensor because the daemon's delivery of the first was acknowledged.
#[test]
fn tensor_that_the_daemon_has_delivered_goes_before_one_that_arrives_over_the_channel() {
    let mut two = Two::opened();
    let _before = two.send("before", 8);
    two.settle();
    let (mut first, mut second) = (two.recv("w"), two.recv("w"));
    let asked = two.receiver.recvs();
    two.receiver.delivers(asked[0], &[1; 8]);
    let _later = two.send("w", 8);
    // The channel is read by somebody who does not look at what the daemon has answered.
    two.receiver.attachment.lock().look_after_lanes(Tick::now());
    two.look();
    assert_eq!(first.try_outcome().unwrap().unwrap().bytes(), [1; 8]);
    assert!(second.try_outcome().is_none(), "the daemon has not given it up yet");
    assert_eq!(two.receiver.cancelled(), 1);
}

#[test]
fn announced_tensor_is_still_to_be_asked_for_when_its_recv_has_got_another() {
    let mut two = Two::new();
    let mut first = two.recv("w");
    {
        let mut held = two.receiver.attachment.lock();
        let State { calls, aftermath, .. } = &mut *held;
        let given_up = Tensor::from_elements(&[8], &[1_u8; 8]).unwrap();
        calls.keep_given_up((SENDER, 1, "w"), given_up, aftermath);
    }
    let _announced = two.send("w", LARGE);
    two.look();
    let asked = two.receiver.recvs();
    two.receiver.gives_up(asked[0]);
    two.look();
    assert_eq!(first.try_outcome().unwrap().unwrap().bytes(), [1; 8]);
    let _second = two.recv("w");
    assert_eq!(two.receiver.recvs().len(), 1);
}

#[test]
fn next_lane_is_blind_to_sends_announced_before() {
    let mut two = Two::new();
    let _announced = two.send("w", LARGE);
    two.settle();
    two.lane.abandon();
    two.settle();
    two.lane = Two::open_lane(&two.sender, &two.receiver);
    two.settle();
    assert_eq!((two.sender.told(), two.receiver.told()), (vec!["send w".into()], vec![]));
    // The tensor is still at the daemon, and the new channel has no announcement of it.
    let _recv = two.recv("w");
    assert_eq!(two.receiver.told(), ["recv w"]);
}

#[test]
fn calls_in_a_step_that_has_ended_are_the_daemons_to_refuse() {
    let mut two = Two::new();
    let mut waiting = two.recv("w");
    two.receiver.attachment.abort(1, "over").unwrap();
    assert_eq!(waiting.try_outcome().unwrap().unwrap_err().error.code(), Code::Aborted);
    let _later = two.recv("w");
    assert_eq!(two.receiver.told(), ["recv w"]);
    two.sender.attachment.lock().pump();
    let _sending = two.send("w", 8);
    assert_eq!(two.sender.told(), ["send w"]);
}

#[test]
fn idle_process_is_woken_only_for_what_it_must_answer() {
    let two = Two::new();
    let ear = two.sleeps(Sleep::Idle);
    let sending = two.send_within("w", 8, Some(Duration::ZERO));
    assert!(!has_rung(&ear), "no recv waits");
    two.sender.attachment.lock().look_after_lanes(Tick::now().later(1_000));
    assert!(has_rung(&ear), "the send is to be returned");
    two.look();
    assert_eq!(sending.wait().unwrap_err().code(), Code::DeadlineExceeded);
    let ear = two.sleeps(Sleep::Light);
    let _sending = two.send("w", 8);
    assert!(has_rung(&ear));
}

/// A host that sleeps idly stays so while other threads poll for calls over channels, and is rung for as soon as one parks.
#[test]
fn idle_host_is_not_rung_for_what_a_polling_thread_takes() {
    let two = Two::new();
    let ear = two.sleeps(Sleep::Idle);
    let channel = two.receiver.attachment.channel_to(SENDER).unwrap();
    let Ok(call) = channel.recv((1, "w"), &mut RecvOptions::default()) else { panic!("the channel takes recvs") };
    let mut held = two.receiver.attachment.lock();
    (held.listening.thread, held.listening.is_host, held.listening.is_idle) = (true, true, true);
    held.start_spinning(Waiter::OverChannel(&call));
    held.stop_spinning();
    drop(held);
    drop(two.send("w", 64));
    assert!(!has_rung(&ear));

    two.look();
    let mut held = two.receiver.attachment.lock();
    held.parked.push((0, Waker::noop().clone()));
    held.have_all_rung_for();
    drop(held);
    drop(two.send("v", 64));
    assert!(has_rung(&ear));
}

#[test]
fn tensors_of_a_closed_channel_go_on_when_its_consumer_has_closed_it() {
    let mut two = Two::new();
    let (mut taken, _left) = (two.send("taken", 8), two.send("left", 8));
    let mut receiving = two.recv("taken");
    two.lane.abandon();
    two.sender.attachment.lock().pump();
    assert_eq!(two.sender.told(), [""; 0], "the receiver may be taking one");
    assert!(receiving.try_outcome().is_some());
    two.sender.attachment.lock().pump();
    taken.try_outcome().unwrap().unwrap();
    assert_eq!(two.sender.told(), ["send left"]);
}

#[test]
fn tensor_of_a_gone_producer_is_read_from_its_ring() {
    let two = Two::new();
    let (mut receiving, mut waiting) = (two.recv("w"), two.recv("v"));
    drop(two.send("w", 64));
    two.lane.end(Side::First);
    two.look();
    assert_eq!(receiving.try_outcome().unwrap().unwrap().bytes(), [7; 64]);
    assert_eq!(waiting.try_outcome().unwrap().unwrap_err().error.code(), Code::Unavailable);
}

#[test]
fn recv_at_the_daemon_ends_with_its_producer() {
    let mut two = Two::opened();
    // The channel is not active yet, so the recv is asked for at the daemon.
    let mut waiting = two.recv("w");
    assert_eq!(two.receiver.told(), ["recv w"]);
    two.lane.end(Side::First);
    two.look();
    assert!(waiting.try_outcome().is_none(), "the daemon has not cancelled the recv yet");
    assert_eq!(two.receiver.cancelled(), 1);
}

#[test]
fn recv_from_a_gone_producer_is_the_daemons() {
    let mut two = Two::new();
    two.lane.end(Side::First);
    let mut waiting = two.recv("w");
    assert!(waiting.try_outcome().is_none(), "the recv waits for the next process of that task");
    assert_eq!(two.receiver.told(), ["recv w"]);
}

#[test]
fn lost_daemon_ends_calls_and_drops_tensors() {
    let two = Two::new();
    let (mut sending, mut receiving) = (two.send("unexpected", 8), two.recv("w"));
    two.look();
    for rig in [&two.sender, &two.receiver] {
        rig.attachment.lock().lose("test");
    }
    assert_eq!(sending.try_outcome().unwrap().unwrap_err().code(), Code::Unavailable);
    assert_eq!(receiving.try_outcome().unwrap().unwrap_err().error.code(), Code::Unavailable);
    let later = two.recv("unexpected").try_outcome();
    assert_eq!(later.unwrap().unwrap_err().error.code(), Code::Unavailable);
}

#[test]
fn broken_channel_leaves_its_calls_to_the_daemon() {
    let mut two = Two::new();
    let (_sending, _receiving) = (two.send("sent", 8), two.recv("wanted"));
    // Every line that the receiver may read next holds a record of an unknown kind.
    (0..64).for_each(|line| two.lane.way(Side::First).word(8 * line).store(u64::MAX, Ordering::Relaxed));
    two.settle();
    assert_eq!((two.sender.told(), two.receiver.told()), (vec!["send sent".into()], vec!["recv wanted".into()]));
    let (_sending, _receiving) = (two.send("later", 8), two.recv("later"));
    assert_eq!((two.sender.told(), two.receiver.told()), (vec!["send later".into()], vec!["recv later".into()]));
}

#[test]
fn what_a_channel_has_carried_is_counted_by_both_sides_when_it_ends() {
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
    let mut two = Two::opened();
    // The shards learn the peers' names.
    drop((two.send("v", 8), two.recv("v")));
    two.settle();
    let _sending = two.send("w", 8);
    let mut receiving = two.recv("w");
    two.look();
    two.lane.abandon();
    let _ended = receiving.try_outcome();
    two.look();
    two.sender.attachment.lock().pump();
    assert_eq!((moved(&mut two.sender), moved(&mut two.receiver)), ((1, 0), (0, 1)));
}

#[test]
fn caller_that_sleeps_keeps_the_host_from_the_bell_for_a_moment() {
    let two = Two::new();
    let attachment = &two.receiver.attachment;
    assert!(!attachment.lock().listening.is_for_callers());
    struct Woken(AtomicBool);
    impl std::task::Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let host = Arc::new(Woken(AtomicBool::new(false)));
    attachment.lock().parked.push((u64::MAX, host.clone().into()));
    std::thread::scope(|scope| {
        let received = scope.spawn(|| two.recv("w").wait());
        while !attachment.lock().listening.is_there() {
            std::thread::yield_now();
        }
        let _sending = two.send("w", 8);
        assert_eq!(received.join().unwrap().unwrap().bytes(), [7; 8]);
    });
    let mut held = attachment.lock();
    assert!(!held.listening.is_there(), "nobody listens any more");
    assert!(host.0.load(Ordering::SeqCst), "the host, which had parked, may listen again");
    assert!(held.listening.is_for_callers(), "until the host has looked again");
    assert!(!held.listening.is_for_callers());
}
