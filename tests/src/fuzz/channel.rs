//! A half of a channel whose peer writes anything into the shared rings, at any time. Between the forged words, a correct half writes the same
//! ring, and another correct pair of halves shows that the victim's tensors have one fate each while the peer keeps the rules. Both also with
//! splices between the two sides.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sealane_transport::channel::{
    Accepts, ChannelMemory, HELD_MAX, Half, Outgoing, Posting, Recv, RingMemory, SLOTS_MAX, Seed, Sent, Splice, Steps,
    Why,
};

use super::assert_says;
use super::script::Script;

/// Words of a ring: few, so that laps are short.
const WORDS: usize = 256;
/// Steps and keys of all tensors.
const STEPS: usize = 3;
const KEYS: usize = 5;
const PAYLOAD_BYTES_MAX: usize = 200;
/// Exchanges after which everything that can arrive has arrived.
const LAST_ROUNDS: usize = 40;

#[derive(Clone)]
struct Heap(Arc<(Vec<AtomicU64>, [AtomicU64; 3])>);

impl Heap {
    fn new() -> Heap {
        Heap(Arc::new(((0..WORDS).map(|_| AtomicU64::new(0)).collect(), [0; 3].map(AtomicU64::new))))
    }
}

impl RingMemory for Heap {
    const WORDS: u64 = WORDS as u64;

    fn word(&self, position: u64) -> &AtomicU64 {
        &self.0.0[position as usize % WORDS]
    }

    fn words(&self, position: u64, count: u64) -> &[AtomicU64] {
        let at = position as usize % WORDS;
        &self.0.0[at..at + count as usize]
    }

    fn read(&self) -> &AtomicU64 {
        &self.0.1[0]
    }
}

impl ChannelMemory for Heap {
    fn took(&self) -> &AtomicU64 {
        &self.0.1[1]
    }

    fn returned(&self) -> &AtomicU64 {
        &self.0.1[2]
    }
}

/// Most bytes that a recv accepts.
struct Room(u64);

impl Accepts for Room {
    fn accepts(&self, _: &[u8], bytes: u64) -> bool {
        bytes <= self.0
    }
}

type Side = Half<Heap, Room>;

/// A half, and the calls that its owner has made.
struct Task {
    half: Side,
    sends: Vec<(u64, u64)>,
    recvs: Vec<u32>,
    received: Vec<u64>,
    fates: HashMap<u64, Sent>,
}

impl Task {
    fn new(outgoing: &Heap, incoming: &Heap) -> Task {
        let half = Half::new(outgoing.clone(), incoming.clone(), Seed::random(), Steps::default());
        Task { half, sends: Vec::new(), recvs: Vec::new(), received: Vec::new(), fates: HashMap::new() }
    }

    fn send(&mut self, script: &mut Script<'_>, id: u64) {
        let payload: Vec<u8> = id.to_le_bytes().into_iter().cycle().take(8 + script.below(PAYLOAD_BYTES_MAX)).collect();
        let mut meta = [0; 16];
        meta[5] = 1;
        let (step, key) = name(script);
        let outgoing = Outgoing { meta: &meta, payload: &payload };
        if !Side::is_small(key.as_bytes(), &outgoing) {
            return;
        }
        if let Ok(handle) = self.half.send((step, key.as_bytes()), outgoing, script.number()) {
            self.sends.push((handle, id));
        }
    }

    fn act(&mut self, script: &mut Script<'_>, id: u64) {
        let (step, key) = name(script);
        match script.below(12) {
            0..3 => self.send(script, id),
            3..5 if self.half.takes_recvs(step) => {
                let (deadline, data) = (script.number(), &mut Some(Room(script.number())));
                let posting = Posting { step, key: key.as_bytes(), deadline, fails_if_gone: false, data };
                self.recvs.extend(self.half.post(posting));
            }
            5 if !self.recvs.is_empty() => {
                let slot = self.recvs.swap_remove(script.below(self.recvs.len()));
                self.half.take_data(slot);
                self.half.cancel(slot);
            }
            6 => {
                self.half.sweep(script.number());
            }
            7 => drop(self.half.announce(step, key.as_bytes())),
            8 if script.byte() == 7 => self.half.end_step(step, "a reason", script.yes()),
            9 => self.half.sweep(script.number()),
            10 => self.half.clear(),
            _ => {}
        }
        self.half.check_invariants();
    }

    /// Takes in what has arrived; false if the peer broke the channel.
    fn drain(&mut self) -> bool {
        let drained = self.half.drain();
        if let Err(broken) = &drained {
            assert_says(broken);
        } else {
            self.half.check_invariants();
        }
        // The switch serves no recv here.
        for slot in std::mem::take(&mut self.half.news.asks) {
            self.half.is_refused(slot);
        }
        while let Some(slot) = self.half.news.arrived.pop() {
            self.half.is_served(slot, false);
        }
        self.recvs.retain(|slot| match self.half.recv(*slot) {
            Recv::Waiting => true,
            Recv::Done => {
                self.received
                    .extend(self.half.content(*slot).payload().first_chunk().map(|id| u64::from_le_bytes(*id)));
                self.half.free(*slot);
                false
            }
            Recv::Failed(_) | Recv::Moved(_) => {
                self.half.free(*slot);
                false
            }
        });
        self.sends.retain(|(handle, id)| match self.half.sent(*handle) {
            Sent::Open => true,
            fate => {
                self.half.forget_send(*handle);
                self.fates.insert(*id, fate);
                false
            }
        });
        drained.is_ok()
    }
}

fn name(script: &mut Script<'_>) -> (i64, String) {
    let (step, key) = (script.below(STEPS), script.below(KEYS));
    // Short keys and long ones.
    (step as i64, format!("{key:0width$}", width = 1 + 9 * key))
}

/// A header that is nearly right.
fn header(script: &mut Script<'_>) -> u64 {
    let (kind, words) = (script.below(14) as u64, 8 * script.below(6) as u64);
    let (key, payload, rank) = (script.below(60) as u64, script.below(100) as u64, script.below(4) as u64);
    kind | words << 8 | key << 24 | payload << 40 | rank << 56
}

pub(super) fn run(input: &[u8]) {
    let mut script = Script::new(input);
    match script.below(4) {
        0 => honest(&mut script, false),
        1 => hostile(&mut script, false),
        2 => honest(&mut script, true),
        _ => hostile(&mut script, true),
    }
}

/// The rings of two sides, each what it writes and what it reads, and the splices between them if they share none.
fn rings(are_spliced: bool) -> ([[Heap; 2]; 2], Vec<Splice<Heap>>) {
    let [one, other] = [(); 2].map(|()| [Heap::new(), Heap::new()]);
    if !are_spliced {
        return ([one.clone(), [one[1].clone(), one[0].clone()]], Vec::new());
    }
    let splices = vec![Splice::new(one[0].clone(), other[1].clone()), Splice::new(other[0].clone(), one[1].clone())];
    ([one, other], splices)
}

/// Both sides keep the rules.
fn honest(script: &mut Script<'_>, are_spliced: bool) {
    let (rings, mut splices) = rings(are_spliced);
    let mut tasks = rings.each_ref().map(|[outgoing, incoming]| Task::new(outgoing, incoming));
    let mut turn = |side: usize| {
        if let Some(splice) = splices.get_mut(side) {
            splice.turn().expect("a correct half breaks nothing");
        }
    };
    let mut id = 0;
    while !script.is_over() {
        let side = usize::from(script.yes());
        id += 1;
        if are_spliced && script.yes() {
            turn(side);
        }
        match script.yes() {
            true => assert!(tasks[side].drain(), "a correct half breaks nothing"),
            false => tasks[side].act(script, 2 * id + side as u64),
        }
    }
    for _ in 0..LAST_ROUNDS {
        (0..2).for_each(&mut turn);
        tasks.iter_mut().for_each(|task| assert!(task.drain(), "a correct half breaks nothing"));
    }
    for side in 0..2 {
        let received = &tasks[1 - side].received;
        for (id, fate) in &tasks[side].fates {
            let times = received.iter().filter(|other| *other == id).count();
            match fate {
                Sent::Returned(Why::Aborted | Why::Silent) => assert!(times <= 1),
                Sent::Returned(why) => assert_eq!(times, 0, "tensor {id} was returned: {why:?}"),
                _ => assert!(times <= 1, "tensor {id} was taken"),
            }
        }
    }
}

/// One side's ring, and the words that it should write for the other's, hold anything.
fn hostile(script: &mut Script<'_>, are_spliced: bool) {
    let ([own, forged], mut splices) = rings(are_spliced);
    let (mut victim, mut friend) = (Task::new(&own[0], &own[1]), Task::new(&forged[0], &forged[1]));
    let mut id = 0;
    while !script.is_over() {
        id += 1;
        match script.below(6) {
            0 => {
                let next = if are_spliced { forged[0].read().load(Ordering::Relaxed) } else { victim.half.head() };
                let at = next.wrapping_add(script.below(64) as u64);
                let word = if script.yes() { header(script) } else { script.number() };
                forged[0].word(at).store(word, Ordering::Relaxed);
            }
            1 => {
                let word = [forged[1].read(), forged[1].took(), forged[1].returned()][script.below(3)];
                word.store(script.number(), Ordering::Relaxed);
            }
            2 => {
                friend.half.clear();
                friend.send(script, id);
            }
            3 => {
                let turned = splices.iter_mut().try_for_each(|splice| splice.turn().map(|_| ()));
                if let Err(broken) = &turned {
                    assert_says(broken);
                }
                if turned.is_err() || !victim.drain() {
                    break;
                }
            }
            _ => victim.act(script, id),
        }
    }
    let [unsettled, held, posted, unexpected] = victim.half.counts();
    assert!(held <= HELD_MAX && unsettled <= HELD_MAX + WORDS && posted + unexpected <= SLOTS_MAX);
    victim.half.close(Why::Gone);
    for slot in victim.recvs {
        assert_ne!(victim.half.recv(slot), Recv::Waiting, "every recv ends");
    }
    victim.half.reclaim();
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let act = |side: u8, what: &[u8]| [&[side, 0], what].concat();
    let drain = |side: u8| vec![side, 1];
    let honest = |parts: &[Vec<u8>]| [&[0][..], &parts.concat()].concat();
    let hostile = |parts: &[&[u8]]| [&[1][..], &parts.concat()].concat();
    let turn_and_drain = |side: u8| vec![side, 1, 1];
    let spliced = |parts: &[Vec<u8>]| [&[2][..], &parts.concat()].concat();
    let spliced_act = |side: u8, what: &[u8]| [&[side, 1, 0], what].concat();
    // A name, the call, and what that needs: a size, a name and a deadline.
    let send = [1, 1, 0, 40, 1, 1, 200];
    let post = [1, 1, 3, 200];
    vec![
        honest(&[act(1, &[0, 0, 10]), drain(0), act(0, &post), act(1, &send), drain(0), drain(1)]),
        honest(&[act(1, &send), act(1, &send), drain(0), act(0, &[0, 0, 10]), drain(1), act(0, &post)]),
        honest(&[act(1, &[0, 0, 10]), drain(0), act(0, &post), act(1, &[1, 1, 7]), drain(0), act(0, &[1, 1, 5, 0])]),
        honest(&[act(1, &send), act(1, &[0, 0, 6]), drain(0), drain(1), act(0, &[1, 0, 8, 7, 1]), drain(1)]),
        spliced(&[
            spliced_act(1, &[0, 0, 10]),
            turn_and_drain(1),
            turn_and_drain(0),
            spliced_act(0, &post),
            spliced_act(1, &send),
            turn_and_drain(1),
            turn_and_drain(0),
        ]),
        [&[3][..], &[2, 30, 1, 1], &[3], &[0, 0, 1, 1, 2, 5, 8, 1], &[3], &[1, 1, 9], &[3]].concat(),
        hostile(&[&[2, 30, 1, 1], &[3], &[0, 0, 1, 1, 2, 5, 8, 1], &[3], &[1, 1, 9], &[5, 1, 1, 0, 8, 1, 1, 9]]),
        hostile(&[&[5, 1, 1, 0, 8, 1, 1, 9], &[0, 0, 1, 4, 1, 0, 0, 0], &[3], &[1, 1, 240, 0], &[1, 0, 250, 3], &[3]]),
    ]
}
