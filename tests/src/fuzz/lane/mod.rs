//! A task with two direct lanes. One of its neighbours writes anything into the memory that it shares with the task, at any time: records
//! that were never sent, impossible lengths, numbers and fates, entries that change between two looks. The task goes on with its calls by
//! that lane, by the other one and by its shard. It takes no harm, gives nobody what is not theirs, and all its calls end.

mod ends;
mod hostile;

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use oneshot::Receiver as Outcome;
use sealane::{Attach, Buffer, LaneDriver, Receiving, RecvOptions, Sending, Task};
use sealane_fusion::fuzzing::Attachment;
use sealane_fusion::node::{RecvRequest, RecvWaiter, SendWaiter};
use sealane_fusion::{RecvOutcome, SendOutcome, Tensor};
use sealane_transport::Unreceived;
use sealane_transport::shm::attach::GivenLane;
use sealane_transport::shm::limits::INLINE_BYTES_MAX;
use sealane_transport::shm::{ClientBell, DirectLane, Fate, LaneCopy, LaneKeeper, LaneRecord, Note, Side, Standing};

use self::hostile::{HONEST, Hostile, SECRET};
use super::assert_says;
use super::forge::{KEYS, vector};
use super::node::{LAST_TURNS, PEERS, STEPS, TASKS, shard};
use super::script::Script;

/// The task, its hostile neighbour, and the friendly one, which no shard reaches.
const TASK: &str = TASKS[0];
const HOSTILE: &str = TASKS[1];
const HOSTILE_NUMBER: u16 = 1;
const FRIEND: &str = PEERS[0];
const MEMORY_BYTES: u64 = 128 * 1024;
/// Sizes of tensors and destinations, in bytes: for lanes, for rings, and larger.
const SIZES: [usize; 5] = [0, 8, 40, 500, 9_000];
/// First step of the calls with the friend, one tensor each; these steps are never ended.
const FRIENDS_STEPS: i64 = 1_000;
/// A step after all others.
const LAST_STEP: i64 = 2_000;
const FRIENDS_BYTES: usize = 40;
/// Milliseconds that may pass; after the longer ones, everything that waited in a lane goes another way.
const AGES: [u64; 3] = [0, 300, 100_000];

struct World {
    shard: Attachment,
    task: Option<Task>,
    driver: LaneDriver,
    hostile: Hostile,
    friend: DirectLane,
    loaded: LaneCopy,
    now: Instant,
    sends: Vec<Sending>,
    recvs: Vec<Receiving>,
    /// Recvs with destinations: giving one up waits until the shard lets go of the destination.
    lent: Vec<Receiving>,
    /// Some calls have lent their memory to the shard.
    has_lent: bool,
    /// By step: sends to the friend, and the steps it took; recvs from the friend, and how many it has sent.
    to_friend: Vec<Option<Sending>>,
    taken: Vec<i64>,
    from_friend: Vec<Receiving>,
    friend_sent: i64,
    /// Calls that the hostile neighbour has made at the shard, where it keeps the rules.
    pending_sends: Vec<Outcome<SendOutcome>>,
    wants: Vec<Outcome<RecvOutcome>>,
}

/// Runs the script in the input, word by word.
pub(super) fn run(input: &[u8]) {
    let mut script = Script::new(input);
    if script.yes() {
        return ends::run(&mut script);
    }
    let mut world = World::new();
    while !script.is_over() {
        world.go_on(&mut script);
    }
    world.finish();
}

fn tensor(len: usize, byte: u8) -> Tensor {
    Tensor::from_elements(&[len as u64], &vec![byte; len]).expect("it fits")
}

fn open_lane(task: &Task, peer: &str, lane: DirectLane) {
    let (bell, ear) = ClientBell::between_clients().expect("a bell");
    task.open_lane(peer, GivenLane { lane, ear, bell });
}

impl World {
    fn new() -> World {
        let (shard, attached) = Attachment::new(shard(), 0, MEMORY_BYTES, MEMORY_BYTES).expect("memory for a client");
        let (task, driver) = Attach::new(TASK).attach_and_drive(attached).expect("a page and an eventfd");
        let (hostile, lane) = Hostile::new();
        open_lane(&task, HOSTILE, lane);
        let keeper = LaneKeeper::create().expect("memory for a lane");
        let [lane, friend] = [Side::First, Side::Second].map(|side| {
            let memory = keeper.as_fd().try_clone_to_owned().expect("a descriptor");
            DirectLane::open(&memory, side).expect("a lane's end")
        });
        open_lane(&task, FRIEND, lane);
        friend.arrive();
        World {
            shard,
            task: Some(task),
            driver,
            hostile,
            friend,
            loaded: LaneCopy::new(),
            now: Instant::now(),
            sends: Vec::new(),
            recvs: Vec::new(),
            lent: Vec::new(),
            has_lent: false,
            to_friend: Vec::new(),
            taken: Vec::new(),
            from_friend: Vec::new(),
            friend_sent: 0,
            pending_sends: Vec::new(),
            wants: Vec::new(),
        }
    }

    /// Carries out one word of the script.
    fn go_on(&mut self, script: &mut Script<'_>) {
        match script.byte() {
            0..=79 => self.hostile.forge(script),
            80..=119 => self.hostile.behave(script),
            120..=179 => self.call(script),
            180..=199 => self.look(),
            200..=214 => self.speak_with_the_friend(script),
            215..=224 => self.act(script),
            225..=229 => self.hostile.keep(script),
            230..=239 => self.age(script.one_of(&AGES)),
            240 => self.leave(),
            _ => self.shard.turn(self.now),
        }
    }

    /// The task makes a call, or ends one.
    fn call(&mut self, script: &mut Script<'_>) {
        let Some(task) = &self.task else { return };
        let (step, key, len) = (script.below(STEPS) as i64, script.one_of(&KEYS), script.one_of(&SIZES));
        match script.below(10) {
            0 | 1 => {
                self.sends.push(task.send(HOSTILE, step, key, tensor(len, SECRET)));
                self.has_lent |= len > INLINE_BYTES_MAX;
            }
            2 | 3 => self.recvs.push(task.recv(HOSTILE, step, key)),
            4 => {
                let destination = Buffer::from_vec(vec![SECRET; len]);
                self.lent.push(task.recv_into(HOSTILE, step, key, destination));
                self.has_lent = true;
            }
            5 => {
                let Ok(mut destination) = task.alloc(len) else { return };
                destination.fill(SECRET);
                self.lent.push(task.recv_into(HOSTILE, step, key, destination));
                self.has_lent = true;
            }
            6 => {
                let keys = || KEYS.into_iter().take(1 + len % KEYS.len());
                match script.yes() {
                    true => {
                        self.sends.extend(task.send_all(HOSTILE, step, keys().map(|key| (key, tensor(40, SECRET)))))
                    }
                    false => {
                        let wanted = keys().map(|key| (key, RecvOptions::default()));
                        self.recvs.extend(task.recv_all(HOSTILE, step, wanted));
                    }
                }
            }
            // Given up.
            7 => drop(self.recvs.pop()),
            8 => task.cleanup(step).expect("the shard's ring has room"),
            _ => task.abort(step, key).expect("the shard's ring has room"),
        }
    }

    /// Checks the calls that have ended.
    fn look(&mut self) {
        self.sends.retain_mut(|sending| match sending.try_outcome() {
            None => true,
            Some(outcome) => {
                outcome.unwrap_or_else(|error| assert_says(&error));
                false
            }
        });
        for recvs in [&mut self.recvs, &mut self.lent] {
            recvs.retain_mut(|receiving| match receiving.try_outcome() {
                None => true,
                Some(outcome) => {
                    check(outcome);
                    false
                }
            });
        }
        let taken = &self.taken;
        for (step, sending) in (FRIENDS_STEPS..).zip(&mut self.to_friend) {
            if let Some(outcome) = sending.as_mut().and_then(Sending::try_outcome) {
                assert_eq!(outcome.is_ok(), taken.contains(&step), "of step {step}: {outcome:?}");
                *sending = None;
            }
        }
    }

    /// Sends a tensor to the friend or asks for one from it, and the friend takes what has come.
    fn speak_with_the_friend(&mut self, script: &mut Script<'_>) {
        if let Some(task) = &self.task {
            if script.yes() {
                let step = FRIENDS_STEPS + self.to_friend.len() as i64;
                self.to_friend.push(Some(task.send(FRIEND, step, "w", tensor(FRIENDS_BYTES, SECRET))));
            } else {
                let step = FRIENDS_STEPS + self.from_friend.len() as i64;
                self.from_friend.push(task.recv(FRIEND, step, "w"));
            }
        }
        if script.yes() {
            self.friend_takes();
        }
        if script.yes() {
            self.friend_sends();
        }
    }

    fn friend_takes(&mut self) {
        while let Some(note) = self.friend.receiver.next_note().expect("the task keeps the rules") {
            let Note::Sent(entry) = note else { continue };
            self.friend.receiver.load(entry, &mut self.loaded).expect("the task keeps the rules");
            let step = match self.loaded.record().expect("the task writes what can be read") {
                LaneRecord::Tensor { step, bytes, .. } => {
                    assert_eq!(bytes, [SECRET; FRIENDS_BYTES]);
                    Some(step)
                }
                _ => None,
            };
            if self.friend.receiver.settle(entry, Fate::Taken) {
                self.taken.extend(step);
            }
        }
        self.friend.receiver.publish();
        while self.friend.sender.next_returned().expect("the task keeps the rules").is_some() {}
    }

    fn friend_sends(&mut self) {
        let (step, bytes) = (FRIENDS_STEPS + self.friend_sent, [HONEST; FRIENDS_BYTES]);
        let tensor = LaneRecord::Tensor { step, key: "w", meta: &vector(FRIENDS_BYTES as u64), bytes: &bytes };
        self.friend_sent += i64::from(self.friend.sender.send(&tensor).is_some());
        self.friend.sender.publish();
    }

    /// The hostile neighbour makes a call at its shard, as it may.
    fn act(&mut self, script: &mut Script<'_>) {
        let (step, key, len) = (script.below(STEPS) as i64, script.one_of(&KEYS), script.one_of(&SIZES));
        match script.yes() {
            true => self.pending(step, key, len),
            false => self.want(step, key),
        }
    }

    fn pending(&mut self, step: i64, key: &str, len: usize) {
        let node = self.shard.node();
        let pair = node.pair(HOSTILE_NUMBER, TASK).expect("both are on the map");
        let (sender, outcome) = oneshot::channel();
        self.pending_sends.push(outcome);
        let deadline = self.now + Duration::from_secs(5);
        node.send(pair, step, key, tensor(len, HONEST), deadline, SendWaiter::Channel(sender));
    }

    fn want(&mut self, step: i64, key: &str) {
        let node = self.shard.node();
        let pair = node.pair(HOSTILE_NUMBER, TASK).expect("both are on the map");
        let (sender, outcome) = oneshot::channel();
        self.wants.push(outcome);
        let (deadline, waiter) = (self.now + Duration::from_secs(5), RecvWaiter::Channel(sender));
        let request =
            RecvRequest { pair, step, key, deadline, destination: None, waiter, fused: false, fail_if_gone: false };
        node.recv(self.now, request);
    }

    /// Time passes without a look at the lanes.
    fn age(&mut self, milliseconds: u64) {
        self.driver.look(milliseconds);
    }

    /// Drops the task, which ends all of its calls. (A call whose memory the shard may write would wait for the shard.)
    fn leave(&mut self) {
        if self.has_lent || self.task.is_none() {
            return;
        }
        let was_there = self.friend.other() == Standing::Here;
        self.task = None;
        assert!(was_there && self.friend.other() == Standing::Gone);
        self.friend_takes();
        self.look();
        assert!(self.sends.is_empty() && self.recvs.is_empty() && self.to_friend.iter().all(Option::is_none));
    }

    /// All calls end, the task goes on with its shard, and nothing may be left.
    fn finish(mut self) {
        if let Some(task) = self.task.take() {
            // Whatever the memory held before, this is the daemon's last word on that lane.
            self.hostile.keeper.end(Side::Second);
            self.driver.look(0);
            assert!(!task.direct_peers().contains(&HOSTILE.to_owned()));
            (0..STEPS as i64).for_each(|step| task.cleanup(step).expect("the shard's ring has room"));
            self.part_from_the_friend(&task);
            self.go_on_without(&task);
            assert_eq!(self.shard.under_way(), 0);
        }
        self.shard.turn(self.now);
        let mut node = self.shard.dismiss("it is gone");
        node.shut_down(self.now, "it is over");
        for _ in 0..LAST_TURNS {
            self.now += Duration::from_secs(5);
            node.turn(self.now);
        }
        assert!(self.pending_sends.iter().all(|outcome| outcome.try_recv().is_ok()), "a send stands");
        assert!(self.wants.iter().all(|outcome| outcome.try_recv().is_ok()), "a recv stands");
        let counters = node.counters();
        assert_eq!((counters.pending_sends, counters.parked, counters.slab_receive_bytes), (0, 0, 0), "{counters:?}");
        assert_eq!(node.under_way(), 0);
    }

    /// Everything sent to the friend and by it arrives, except what has meanwhile gone to the shard, which does not reach the friend.
    fn part_from_the_friend(&mut self, task: &Task) {
        assert!(task.direct_peers().contains(&FRIEND.to_owned()), "its lane is another");
        while self.friend_sent < self.from_friend.len() as i64 {
            self.friend_takes();
            self.friend_sends();
        }
        self.friend_takes();
        self.look();
        for _ in 0..LAST_TURNS {
            self.driver.look(AGES[1]);
            self.now += Duration::from_secs(5);
            self.shard.turn(self.now);
        }
        self.look();
        assert!(self.to_friend.iter().all(Option::is_none), "a send stands");
        assert_eq!([self.sends.len(), self.recvs.len(), self.lent.len()], [0; 3], "calls stand");
        for mut receiving in self.from_friend.drain(..) {
            let received =
                receiving.try_outcome().expect("the friend has sent it").expect("nothing has ended its step");
            assert_eq!(received.bytes(), [HONEST; FRIENDS_BYTES]);
        }
    }

    /// Exchanges tensors by the shard, as before there were lanes.
    fn go_on_without(&mut self, task: &Task) {
        let (mut sending, mut receiving) =
            (task.send(HOSTILE, LAST_STEP, "w", tensor(40, HONEST)), task.recv(HOSTILE, LAST_STEP, "w"));
        self.pending(LAST_STEP, "w", 40);
        self.want(LAST_STEP, "w");
        for _ in 0..LAST_TURNS {
            self.driver.look(0);
            self.shard.turn(self.now);
        }
        assert_eq!(receiving.try_outcome().expect("it is there").expect("well").bytes(), [HONEST; 40]);
        sending.try_outcome().expect("it is wanted").expect("and received");
        let wanted = self.wants.pop().expect("it was just asked for").try_recv().expect("it has ended");
        assert_eq!(wanted.expect("well").bytes(), [HONEST; 40]);
    }
}

/// Checks that a tensor agrees with its metadata, and has none of the task's own bytes.
fn check(outcome: Result<Tensor, Unreceived>) {
    match outcome {
        Ok(tensor) => {
            let shown = tensor.bytes().windows(16).any(|bytes| bytes == [SECRET; 16]);
            assert!(!shown, "bytes of the task's own in {tensor:?}");
            let again = Tensor::new(tensor.meta().clone(), tensor.bytes().to_vec());
            assert!(again.is_ok(), "{again:?}");
        }
        Err(unreceived) => assert_says(&unreceived.error),
    }
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    const LOOK: u8 = 180;
    const TURN: u8 = 255;
    // A step, a key, a size, and the call.
    let call = |what: u8, size: u8| [120, 1, 1, size, what];
    // An action of a correct end, and the record it sends: step, key, size, good metadata, and the kind.
    let send = |kind: u8| [80, 0, 1, 1, 2, 1, kind, 80, 6];
    let (note, take) = ([80, 3], [80, 4, 0, 80, 6]);
    // A direction, an entry, and what is written there.
    let forge = |incoming: u8, entry: u8, what: &[u8]| [&[0, incoming, entry][..], what].concat();
    let age = |index: u8| [230, index];
    let world = |words: &[&[u8]]| [&[0][..], &words.concat()].concat();
    let mut seeds = vec![
        world(&[&call(0, 2), &note, &take, &[LOOK], &call(2, 0), &send(0), &[LOOK]]),
        world(&[&send(0), &[LOOK], &forge(1, 0, &[7, 1, 1, 2, 1, 0]), &call(2, 0), &[LOOK]]),
        world(&[&call(0, 2), &forge(0, 0, &[4, 2]), &age(1), &[LOOK], &forge(0, 0, &[2, 0, 2]), &[LOOK]]),
        world(&[&call(2, 0), &age(2), &[TURN], &send(0), &[LOOK, TURN, LOOK]]),
        world(&[&call(5, 3), &send(0), &[LOOK], &send(7), &call(2, 0), &send(9), &[LOOK]]),
        world(&[&call(0, 2), &forge(0, 0, &[7, 2, 1, 3, 1, 0]), &age(1), &[TURN, 215, 1, 1, 2, 0, TURN, LOOK]]),
        world(&[&[200, 1, 1, 1], &[200, 0, 1, 1], &forge(1, 0, &[0, 2, 0]), &[LOOK, 200, 1, 1, 1, LOOK]]),
        world(&[&call(6, 3), &[0], &[240]]),
        world(&[&send(9), &[LOOK], &call(8, 0), &call(9, 0), &[225, 0, LOOK, TURN]]),
    ];
    seeds.extend(ends::seeds().into_iter().map(|seed| [&[1][..], &seed].concat()));
    seeds
}
