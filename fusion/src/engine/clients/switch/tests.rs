use std::os::fd::AsFd;
use std::time::Duration;

use sealane_transport::channel::{Half, Outgoing, Posting, Recv, Seed, Sent, Steps, Why};
use sealane_transport::shm::{LaneKeeper, Side};
use sealane_transport::tensor::DType;
use sealane_transport::{Destination, TensorMeta};

use super::*;

const BYTES: [u8; 64] = [7; 64];

fn handle(number: u64) -> Handle {
    Handle::from_bits(1 << 32 | number)
}

/// A client's end of its lane, and its half of the channel.
struct Client {
    handle: Handle,
    lane: DirectLane,
    half: Half<Way, Destination>,
    keeper: LaneKeeper,
}

impl Client {
    fn new(number: u64) -> Client {
        let keeper = LaneKeeper::create().unwrap();
        let lane = DirectLane::open(&keeper.as_fd().try_clone_to_owned().unwrap(), Side::First).unwrap();
        let mut half = Half::new(lane.outgoing(), lane.incoming(), Seed::random(), Steps::default());
        half.clear();
        Client { handle: handle(number), lane, half, keeper }
    }

    fn send(&mut self, step: i64) -> u64 {
        let meta = TensorMeta::new(DType::U8, &[64]).unwrap();
        self.half.send((step, b"w"), Outgoing { meta: meta.as_wire(), payload: &BYTES }, u64::MAX).unwrap()
    }

    fn post(&mut self, step: i64) -> u32 {
        let (deadline, data) = (u64::MAX, &mut None);
        self.half.post(Posting { step, key: b"w", deadline, fails_if_gone: false, data }).unwrap()
    }
}

/// Two clients whose halves know that both read.
fn pair(switch: &mut Switch, numbers: [u64; 2]) -> [Client; 2] {
    let mut clients = numbers.map(Client::new);
    switch.connect(
        clients.each_ref().map(|client| client.handle),
        clients.each_ref().map(|client| client.keeper.open(Side::Second)),
        Instant::now(),
    );
    clients.iter().for_each(|client| client.lane.arrive());
    for _ in 0..2 {
        turn(switch);
        clients.iter_mut().for_each(|client| client.half.drain().unwrap());
    }
    turn(switch);
    clients
}

/// A turn; returns the clients that were woken.
fn turn(switch: &mut Switch) -> Vec<Handle> {
    turn_at(switch, Instant::now())
}

fn turn_at(switch: &mut Switch, now: Instant) -> Vec<Handle> {
    let mut woken = Vec::new();
    switch.turn(now, |client| woken.push(client));
    woken
}

#[test]
fn clients_learn_of_each_other_and_who_sleeps_is_woken_as_deeply_as_it_sleeps() {
    let mut switch = Switch::default();
    let [mut one, mut other] = pair(&mut switch, [1, 2]);
    assert_eq!([one.lane.other(), other.lane.other()], [Standing::Here; 2]);
    assert!(!switch.has_work());
    let slot = other.post(1);
    other.lane.own_sleep().announce_deep();
    let sent = one.send(1);
    assert!(switch.has_work());
    assert_eq!(turn(&mut switch), [other.handle]);
    other.half.drain().unwrap();
    assert_eq!(other.half.recv(slot), Recv::Done);
    other.half.free(slot);
    // An acknowledgement does not wake from a deep sleep.
    one.lane.own_sleep().announce_deep();
    assert_eq!(turn(&mut switch), []);
    one.half.drain().unwrap();
    assert_eq!(one.half.sent(sent), Sent::Taken);
    // A tensor does not wake who waits for nothing, until its sender asks for that.
    other.lane.own_sleep().announce_idle();
    one.send(2);
    assert_eq!(turn(&mut switch), []);
    one.lane.poke();
    assert!(switch.has_work());
    assert_eq!(turn(&mut switch), [other.handle]);
    assert!(!switch.has_work());
}

#[test]
fn sleeping_shard_is_rung_for() {
    let mut switch = Switch::default();
    let [mut one, _other] = pair(&mut switch, [1, 2]);
    assert!(switch.try_sleep());
    assert!(one.lane.other_sleep().must_ring_for(Urgency::Low));
    switch.wake();
    assert!(!one.lane.other_sleep().must_ring_for(Urgency::High));
    one.send(1);
    assert!(!switch.try_sleep(), "there is work");
}

#[test]
fn peer_reads_what_a_client_had_written_before_it_went() {
    for is_closed in [true, false] {
        let mut switch = Switch::default();
        let [mut one, mut other] = pair(&mut switch, [1, 2]);
        let (taken, left) = (other.send(1), other.send(2));
        turn(&mut switch);
        one.half.drain().unwrap();
        let slot = one.post(1);
        assert_eq!(one.half.recv(slot), Recv::Done);
        one.send(3);
        let end = if is_closed {
            one.half.close(Why::Closed);
            one.lane.close();
            Standing::Closed
        } else {
            switch.client_gone(one.handle);
            Standing::Gone
        };
        assert!(turn(&mut switch).contains(&other.handle));
        assert_eq!(other.lane.other(), end);
        other.half.drain().unwrap();
        let slot = other.post(3);
        assert_eq!(other.half.recv(slot), Recv::Done);
        other.half.free(slot);
        let pairs = switch.pairs.len();
        assert_eq!(pairs, usize::from(is_closed), "who is gone need not hear that the other closes its lane");
        // It knows what was taken and what was not.
        other.half.close(Why::Gone);
        assert_eq!(other.half.sent(taken), Sent::Taken);
        let unsettled = other.half.reclaim();
        assert_eq!(unsettled.iter().map(|tensor| tensor.step).collect::<Vec<_>>(), [2]);
        assert_eq!(unsettled[0].handle, Some(left));
        other.lane.close();
        turn(&mut switch);
        assert!(switch.pairs.is_empty(), "nobody has anything to hear");
    }
}

#[test]
fn what_a_client_leaves_for_one_that_does_not_read_is_dropped_after_a_while() {
    let mut switch = Switch::default();
    let [mut one, other] = pair(&mut switch, [1, 2]);
    let now = Instant::now();
    // More than fits into both rings: notes need no credit.
    for step in 0..4000 {
        one.half.announce(step, b"a key of some length, so that a record of it takes two lines");
        if step % 100 == 0 {
            turn_at(&mut switch, now);
            one.half.drain().unwrap();
        }
    }
    assert!(switch.next_look(now).is_some_and(|at| at > now));
    switch.client_gone(one.handle);
    for (after, standing) in
        [(Duration::ZERO, Standing::Here), (LANE_END_MAX / 2, Standing::Here), (LANE_END_MAX, Standing::Gone)]
    {
        turn_at(&mut switch, now + after);
        assert_eq!(other.lane.other(), standing, "{after:?}");
    }
}

#[test]
fn client_that_does_not_read_or_writes_anything_harms_its_own_pairs_alone() {
    let mut switch = Switch::default();
    let [mut sleeper, _idle] = pair(&mut switch, [1, 2]);
    let [villain, victim] = pair(&mut switch, [3, 4]);
    let [mut one, mut other] = pair(&mut switch, [5, 6]);
    use sealane_transport::channel::RingMemory;
    (0..8192).for_each(|word| villain.lane.outgoing().word(word).store(u64::MAX, std::sync::atomic::Ordering::SeqCst));
    for step in 0..2000 {
        sleeper.send(step);
        let (sent, slot) = (one.send(step), other.post(step));
        turn(&mut switch);
        other.half.drain().unwrap();
        assert_eq!(other.half.recv(slot), Recv::Done);
        other.half.free(slot);
        turn(&mut switch);
        one.half.drain().unwrap();
        assert_eq!(one.half.sent(sent), Sent::Taken);
    }
    assert!(villain.lane.has_ended() && victim.lane.has_ended());
    assert!(!one.lane.has_ended() && !sleeper.lane.has_ended());
    assert_eq!(switch.pairs.len(), 2);
}

#[test]
fn client_that_was_gone_before_the_lanes_were_made_is_reported_as_gone() {
    let mut switch = Switch::default();
    let clients = [1, 2].map(Client::new);
    let lanes = clients.each_ref().map(|client| client.keeper.open(Side::Second));
    switch.connect([Handle::NONE, clients[1].handle], lanes, Instant::now());
    assert_eq!(turn(&mut switch), [clients[1].handle]);
    assert_eq!(clients[1].lane.other(), Standing::Gone);
}

#[test]
fn clients_that_get_lanes_again_and_again_have_few() {
    let mut switch = Switch::default();
    let mut all: Vec<Client> = Vec::new();
    for count in 1..10 {
        all.extend(pair(&mut switch, [1, 2]));
        assert_eq!(switch.pairs.len(), count.min(1 + FORMER_LANES_MAX));
    }
    let now = Instant::now();
    assert!(switch.next_look(now).is_some());
    turn_at(&mut switch, now + LANE_END_MAX);
    assert_eq!((switch.pairs.len(), switch.next_look(now)), (1, None));
    let (former, last) = all.split_at(all.len() - 2);
    assert!(former.iter().all(|client| client.lane.has_ended() && client.lane.is_left()));
    assert!(last.iter().all(|client| !client.lane.has_ended()));
}
