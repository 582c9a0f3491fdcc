//! A model of the switch: several clients with one trunk each, and a channel between every two of them. The halves are the real ones. A half
//! writes a ring in its own process (its *port*). The client copies the records from there into its trunk, the switch from trunk to trunk,
//! and the peer's client into the ring that the peer's half reads. The switch never looks at a key.
//!
//! What the model shows:
//! - A record is *delivered* when it is in the trunk of its consumer. Only then does the producer's client free its place in the port. So the
//!   overflow of a pair never exceeds a port. That is the pair's credit, and a consumer's quota is known when its pairs are opened.
//! - The switch always reads all trunks. A client that does not read stops only its own pairs.
//! - What a consumer has settled travels as a record. At most one such record of a pair is in flight.
//! - A client that writes garbage into its trunk harms only its own pairs.

use std::collections::VecDeque;

use rand::{Rng, SeedableRng, rngs::SmallRng};

use super::*;
use crate::{
    channel::record::Kind,
    ring::{self, Header, PAD, index, lines},
};

const CLIENTS: usize = 3;
/// Words of a port and of a trunk in each direction: so few that two ports fill a trunk.
const PORT: u64 = 128;
const TRUNK: u64 = 128;

/// Kinds of records that only trunks have: what the consumer has settled, and how many records of a pair were delivered.
const SETTLED: u8 = 30;
const DELIVERED: u8 = 31;
/// Words of either.
const NUMBERS_WORDS: u64 = 8;

/// The bits of a record's second word that are the number of its channel, which is that of the other client.
const CHANNEL_SHIFT: u32 = 48;
const VALUE: u64 = (1 << CHANNEL_SHIFT) - 1;

/// A record in private memory.
type Copied = Vec<u64>;

fn header(record: &Copied) -> Header {
    Header(record[0])
}

fn channel(record: &Copied) -> usize {
    (record[1] >> CHANNEL_SHIFT) as usize
}

fn address(record: &mut Copied, to: usize) {
    record[1] = record[1] & VALUE | (to as u64) << CHANNEL_SHIFT;
}

fn numbers(kind: u8, numbers: [u64; 2]) -> Copied {
    let mut record = vec![0; NUMBERS_WORDS as usize];
    record[0] = Header::new(kind, NUMBERS_WORDS, 0).0;
    record[2..4].copy_from_slice(&numbers);
    record
}

/// Appends a record; false if there is no room.
fn append<const N: u64>(writer: &mut ring::Writer<Heap<N>>, record: &Copied) -> bool {
    let words = record.len() as u64;
    if !writer.fits(words) {
        let read = writer.memory.read().load(Ordering::Acquire);
        assert!(read <= writer.tail && writer.tail - read <= N, "the reader is honest here");
        let pads = index::<Heap<N>>(writer.tail) + words > N;
        let padding = if pads { N - index::<Heap<N>>(writer.tail) } else { 0 };
        if writer.tail + padding + words >= read + N {
            return false;
        }
        if pads {
            writer.pad();
        }
        writer.limit = read + N;
    }
    let at = writer.record(words);
    (1..record.len()).for_each(|word| at[word].store(record[word], Ordering::Relaxed));
    writer.commit(words, header(record));
    true
}

/// Looks at the next record, behind a pad.
///
/// # Errors
/// Its length is impossible.
fn look<const N: u64>(reader: &mut ring::Reader<Heap<N>>) -> Result<Option<Copied>, ()> {
    let Some(mut header) = reader.peek() else { return Ok(None) };
    if header.number() == PAD {
        if index::<Heap<N>>(reader.head) + header.words() != N {
            return Err(());
        }
        reader.head += header.words();
        match reader.peek() {
            Some(next) => header = next,
            None => return Ok(None),
        }
    }
    let record = reader.record(header.words()).ok_or(())?;
    let mut copied: Copied = record.iter().map(|word| word.load(Ordering::Relaxed)).collect();
    copied[0] = header.0;
    Ok(Some(copied))
}

/// A channel at its client.
struct Port {
    half: Side<PORT>,
    /// What the half writes, and how far it was forwarded.
    out: Heap<PORT>,
    forwarded: ring::Reader<Heap<PORT>>,
    /// Where the records end that are forwarded and not delivered; none for one that has no place in the port.
    on_the_way: VecDeque<Option<u64>>,
    /// What the half reads.
    into: ring::Writer<Heap<PORT>>,
    /// The reader's words in the last `SETTLED` record, and whether that record is in flight.
    told: [u64; 2],
    is_telling: bool,
}

impl Port {
    fn new() -> Port {
        let (out, into) = (Heap::new(), Heap::new());
        let half = Half::new(out.clone(), into.clone(), Seed::random(), Steps::default());
        let (forwarded, into) = (ring::Reader::new(out.clone()), ring::Writer::new(into));
        Port { half, out, forwarded, on_the_way: VecDeque::new(), into, told: [0; 2], is_telling: false }
    }

    /// Forwards what the half has written; false if the trunk is full.
    fn forward(&mut self, to: usize, trunk: &mut ring::Writer<Heap<TRUNK>>) -> bool {
        // First: whatever they acknowledge was written before.
        let settled = [self.into.memory.took(), self.into.memory.returned()].map(|word| word.load(Ordering::Acquire));
        while let Some(mut record) = look(&mut self.forwarded).unwrap() {
            address(&mut record, to);
            if !append(trunk, &record) {
                return false;
            }
            self.forwarded.head += record.len() as u64;
            self.on_the_way.push_back(Some(self.forwarded.head));
        }
        if settled == self.told || self.is_telling {
            return true;
        }
        let mut record = numbers(SETTLED, settled);
        address(&mut record, to);
        if !append(trunk, &record) {
            return false;
        }
        (self.told, self.is_telling) = (settled, true);
        self.on_the_way.push_back(None);
        true
    }

    /// A record has arrived for the half.
    fn arrives(&mut self, mut record: Copied) {
        match header(&record).number() {
            SETTLED => {
                // The returns first: see `Producer`.
                self.out.returned().store(record[3], Ordering::Release);
                self.out.took().store(record[2], Ordering::Release);
            }
            DELIVERED => {
                for _ in 0..record[2] {
                    match self.on_the_way.pop_front().expect("no more than were forwarded") {
                        Some(end) => self.out.read().store(end, Ordering::Release),
                        None => self.is_telling = false,
                    }
                }
            }
            _ => {
                address(&mut record, 0);
                if !append(&mut self.into, &record) {
                    drain(&mut self.half);
                    assert!(append(&mut self.into, &record), "a half reads whatever happens");
                }
            }
        }
        drain(&mut self.half);
    }
}

/// A client's process.
struct Client {
    ports: Vec<Port>,
    to_switch: ring::Writer<Heap<TRUNK>>,
    from_switch: ring::Reader<Heap<TRUNK>>,
}

impl Client {
    fn forward(&mut self) {
        for (to, port) in self.ports.iter_mut().enumerate() {
            port.forward(to, &mut self.to_switch);
        }
    }

    fn receive(&mut self) {
        while let Some(record) = look(&mut self.from_switch).unwrap() {
            self.from_switch.head += record.len() as u64;
            self.ports[channel(&record)].arrives(record);
        }
        self.from_switch.tell();
    }
}

/// What the switch knows of an ordered pair.
#[derive(Default)]
struct Pair {
    /// Records for which the consumer's trunk has no room, and their words.
    overflow: VecDeque<Copied>,
    overflow_words: u64,
    /// Records that were delivered and not reported.
    delivered: u64,
}

struct Trunk {
    from_client: ring::Reader<Heap<TRUNK>>,
    to_client: ring::Writer<Heap<TRUNK>>,
    is_closed: bool,
}

struct Switch {
    trunks: Vec<Trunk>,
    /// By producer and consumer.
    pairs: Vec<Vec<Pair>>,
    most_overflow: u64,
}

impl Switch {
    fn turn(&mut self) {
        for from in 0..self.trunks.len() {
            while !self.trunks[from].is_closed {
                let passed = match look(&mut self.trunks[from].from_client) {
                    Ok(None) => break,
                    Ok(Some(record)) => self.pass(from, record),
                    Err(()) => Err(()),
                };
                self.trunks[from].is_closed = passed.is_err();
            }
            self.trunks[from].from_client.tell();
        }
        for (from, to) in self.all() {
            let (pair, trunk) = (&mut self.pairs[from][to], &mut self.trunks[to]);
            while pair.overflow.front().is_some_and(|record| trunk.is_closed || append(&mut trunk.to_client, record)) {
                pair.overflow_words -= pair.overflow.pop_front().map_or(0, |record| record.len() as u64);
                pair.delivered += 1;
            }
            let (pair, trunk) = (&mut self.pairs[from][to], &mut self.trunks[from]);
            let mut report = numbers(DELIVERED, [pair.delivered, 0]);
            address(&mut report, to);
            if pair.delivered > 0 && (trunk.is_closed || append(&mut trunk.to_client, &report)) {
                pair.delivered = 0;
            }
        }
    }

    fn all(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let clients = self.trunks.len();
        (0..clients).flat_map(move |from| (0..clients).map(move |to| (from, to)))
    }

    /// Passes on a record of a client.
    ///
    /// # Errors
    /// It is none that a client makes.
    fn pass(&mut self, from: usize, mut record: Copied) -> Result<(), ()> {
        let (header, to) = (header(&record), channel(&record));
        let is_known = header.number() == SETTLED || header.kind().is_some_and(|kind| kind != Kind::Pad);
        let is_possible = lines(record.len()) == record.len() as u64 && record.len() as u64 <= PORT / 4;
        if !is_known || !is_possible || to >= self.trunks.len() || to == from {
            return Err(());
        }
        self.trunks[from].from_client.head += record.len() as u64;
        address(&mut record, from);
        let (pair, trunk) = (&mut self.pairs[from][to], &mut self.trunks[to]);
        if trunk.is_closed || pair.overflow.is_empty() && append(&mut trunk.to_client, &record) {
            pair.delivered += 1;
            return Ok(());
        }
        pair.overflow_words += record.len() as u64;
        self.most_overflow = self.most_overflow.max(pair.overflow_words);
        pair.overflow.push_back(record);
        // A port, and the record of what is settled.
        if pair.overflow_words > PORT + NUMBERS_WORDS { Err(()) } else { Ok(()) }
    }
}

struct World {
    clients: Vec<Client>,
    switch: Switch,
    /// The direction of each client's trunk that the client writes.
    written: Vec<Heap<TRUNK>>,
}

impl World {
    fn new() -> World {
        let (mut clients, mut trunks, mut written) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..CLIENTS {
            let (up, down) = (Heap::new(), Heap::new());
            let ports = (0..CLIENTS).map(|_| Port::new()).collect();
            let (to_switch, from_switch) = (ring::Writer::new(up.clone()), ring::Reader::new(down.clone()));
            clients.push(Client { ports, to_switch, from_switch });
            let (from_client, to_client) = (ring::Reader::new(up.clone()), ring::Writer::new(down));
            trunks.push(Trunk { from_client, to_client, is_closed: false });
            written.push(up);
        }
        let pairs = (0..CLIENTS).map(|_| (0..CLIENTS).map(|_| Pair::default()).collect()).collect();
        let mut world = World { clients, switch: Switch { trunks, pairs, most_overflow: 0 }, written };
        for (from, to) in world.pairs() {
            world.half(from, to).clear();
        }
        world.rounds(4, &[]);
        world
    }

    fn pairs(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        self.switch.all().filter(|(from, to)| from != to)
    }

    /// A task's half of its channel with another.
    fn half(&mut self, of: usize, with: usize) -> &mut Side<PORT> {
        &mut self.clients[of].ports[with].half
    }

    /// Lets the switch and every client except the `idle` ones take turns.
    fn rounds(&mut self, rounds: usize, idle: &[usize]) {
        for _ in 0..rounds {
            for client in (0..CLIENTS).filter(|client| !idle.contains(client)) {
                self.clients[client].receive();
                self.clients[client].forward();
            }
            self.switch.turn();
        }
    }
}

/// Tensors of few names, in whatever order everybody gets to do something: all arrive once, those of one name in the order of sending.
#[test]
fn tensors_of_all_pairs_arrive_in_order_over_full_trunks() {
    const SEEDS: u64 = 200;
    const TENSORS: usize = 300;
    let mut most = 0;
    for seed in 0..SEEDS {
        let (mut world, mut random) = (World::new(), SmallRng::seed_from_u64(seed));
        let pairs: Vec<_> = world.pairs().collect();
        let mut sent = vec![Vec::new(); pairs.len()];
        let (mut recvs, mut sends) = (vec![Vec::new(); pairs.len()], Vec::new());
        let mut done = 0;
        while done < TENSORS {
            let at = random.random_range(0..pairs.len());
            let ((from, to), step) = (pairs[at], random.random_range(0..2));
            match random.random_range(0..10) {
                // A second unexpected tensor of a name would be returned, so its recv is posted first.
                0..4 => {
                    let id = (done as u64) << 8 | at as u64;
                    let slot = post(world.half(to, from), step, "w");
                    match send(world.half(from, to), (step, "w"), id, random.random_range(8..200)) {
                        Ok(handle) => {
                            sends.push((from, to, handle));
                            sent[at].push((step, id));
                            recvs[at].push((slot, step));
                            done += 1;
                        }
                        // One of that name is held.
                        Err(refusal) => {
                            assert_eq!(refusal, Refusal::Fails(Why::Duplicate));
                            world.half(to, from).cancel(slot);
                        }
                    }
                }
                4..7 => world.clients[from].forward(),
                7..9 => world.clients[from].receive(),
                _ => {
                    world.switch.turn();
                    assert!(world.switch.trunks.iter().all(|trunk| !trunk.is_closed), "all are honest");
                }
            }
        }
        world.rounds(200, &[]);
        for (at, (from, to)) in pairs.iter().copied().enumerate() {
            for step in 0..2 {
                let wanted: Vec<u64> = sent[at].iter().filter(|(of, _)| *of == step).map(|(_, id)| *id).collect();
                let slots = recvs[at].iter().filter(|(_, of)| *of == step).map(|(slot, _)| *slot);
                let got: Vec<u64> = slots.map(|slot| take(world.half(to, from), slot).unwrap()).collect();
                assert_eq!(got, wanted, "seed {seed}, {from} to {to}");
            }
        }
        world.rounds(4, &[]);
        for (from, to, handle) in sends {
            assert_eq!(world.half(from, to).sent(handle), Sent::Taken, "seed {seed}");
        }
        most = most.max(world.switch.most_overflow);
    }
    assert!(most > 0, "no trunk was ever full");
}

/// A client that does not read: what is for it is held by its producers once the ports are full, and the others do not notice.
#[test]
fn client_that_does_not_read_stops_its_own_pairs_alone() {
    const SLEEPER: usize = 2;
    let mut world = World::new();
    let mut for_sleeper = Vec::new();
    for id in 0..500_u64 {
        for from in 0..2 {
            let slot = post(world.half(1 - from, from), 0, "w");
            send(world.half(from, 1 - from), (0, "w"), id, 64).unwrap();
            let handle = send(world.half(from, SLEEPER), (id as i64, "w"), id, 64).unwrap();
            for_sleeper.push((from, id, handle));
            world.rounds(3, &[SLEEPER]);
            assert_eq!(take(world.half(1 - from, from), slot), Some(id));
        }
        assert!(world.switch.pairs.iter().all(|of| of[SLEEPER].overflow_words <= PORT + NUMBERS_WORDS));
    }
    assert!(world.switch.most_overflow > 0, "the trunk of the sleeper is full");
    // It wakes.
    world.rounds(2000, &[]);
    for (from, id, handle) in for_sleeper {
        let slot = post(world.half(SLEEPER, from), id as i64, "w");
        world.rounds(3, &[]);
        assert_eq!(take(world.half(SLEEPER, from), slot), Some(id));
        world.rounds(3, &[]);
        assert_eq!(world.half(from, SLEEPER).sent(handle), Sent::Taken);
    }
    assert!(world.switch.pairs.iter().flatten().all(|pair| pair.overflow.is_empty()));
}

/// A client that writes anything anywhere into its trunk: the switch closes that, and the others go on.
#[test]
fn client_that_scribbles_over_its_trunk_harms_its_own_pairs_alone() {
    const VILLAIN: usize = 2;
    let mut closed = 0;
    for seed in 0..300 {
        let (mut world, mut random) = (World::new(), SmallRng::seed_from_u64(seed));
        for id in 0..20 {
            for _ in 0..4 {
                let line = 8 * random.random_range(0..TRUNK / 8);
                let (kind, words) = (random.random_range(0..34), 8 * random.random_range(0..5));
                let to = random.random_range(0..4_u64) << CHANNEL_SHIFT;
                let rest = random.random_range(0..40) | random.random_range(0..80) << 16;
                set(world.written[VILLAIN].word(line + 1), to | random.random_range(0..9));
                set(world.written[VILLAIN].word(line), Header::new(kind, words, rest).0);
            }
            let slot = post(world.half(1, 0), 0, "w");
            let handle = send(world.half(0, 1), (0, "w"), id, 64).unwrap();
            for _ in 0..3 {
                world.switch.turn();
                for one in 0..2 {
                    // What the villain has written for them is its halves' to check, which end that channel alone.
                    let other = 1 - one;
                    while let Some(record) = look(&mut world.clients[one].from_switch).unwrap() {
                        world.clients[one].from_switch.head += record.len() as u64;
                        if channel(&record) == other {
                            world.clients[one].ports[other].arrives(record);
                        }
                    }
                    world.clients[one].from_switch.tell();
                    let Client { ports, to_switch, .. } = &mut world.clients[one];
                    ports[other].forward(other, to_switch);
                }
            }
            assert_eq!(take(world.half(1, 0), slot), Some(id), "seed {seed}");
            world.rounds(0, &[]);
            assert!(matches!(world.half(0, 1).sent(handle), Sent::Taken | Sent::Open));
        }
        closed += usize::from(world.switch.trunks[VILLAIN].is_closed);
        assert!(!world.switch.trunks[0].is_closed && !world.switch.trunks[1].is_closed);
    }
    assert!(closed > 250, "{closed}");
}
