//! What tasks do: exchange tensors at random, give calls up, abort and clean up steps. And the tensors' bytes.

mod fused;
mod published;
mod pushed;
mod tables;

use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;
use sealane_fusion::{AcceptOptions, DType, Tensor, TensorMeta};

use super::agenda::{Agenda, Ending, Event};
use super::climate::{Climate, DEADLINE_MAX, STORM, TENSOR_BYTES_MAX, Weather};
use super::lies;
use super::pushes::QueueId;

/// Steps that tasks work on.
pub(super) const STEPS: i64 = 6;
/// Keys that several exchanges share, so that they interfere with each other.
const SHARED_KEYS: u32 = 4;
/// First step of the last exchanges, all of which must succeed.
pub(super) const PROBE_STEP: i64 = 1000;

/// `ahead` of a pull that takes any version.
pub(super) const ANY_AGE: i64 = i64::MIN;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Spot {
    pub(super) producer: usize,
    pub(super) consumer: usize,
    pub(super) step: i64,
    pub(super) key: u32,
}

/// How a fused receive's outcomes are told to its task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    /// Each as it comes.
    OneByOne,
    /// All together, when the last has come.
    Together,
    /// As `Together`, as views of where the tensors lie.
    InViews,
}

impl Told {
    /// True if early outcomes are told late.
    pub(super) fn is_together(self) -> bool {
        self != Told::OneByOne
    }
}

#[derive(Debug)]
pub(super) enum Deed {
    Send {
        at: Spot,
        bytes: usize,
        timeout: Duration,
    },
    /// In one call: tensors of one producer for one consumer, in one step, with their lengths.
    SendMany {
        tensors: Vec<(Spot, usize)>,
        timeout: Duration,
    },
    /// `room`: the length of the memory that the consumer provides.
    Recv {
        at: Spot,
        room: Option<usize>,
        timeout: Duration,
    },
    /// The latest recv of a spot is given up.
    Cancel(Spot),
    /// The receiver of a spot's latest recv is dropped.
    Deafen(Spot),
    Abort {
        task: usize,
        step: i64,
    },
    Cleanup {
        task: usize,
        step: i64,
    },
    /// Tensors received so far are dropped.
    Consume,
    /// `rooms`: for so many keys, from the first on, the consumer provides memory that fits any tensor.
    Fuse {
        batch: usize,
        producer: usize,
        consumer: usize,
        step: i64,
        keys: Vec<u32>,
        rooms: usize,
        told: Told,
        timeout: Duration,
    },
    GiveUpFused {
        batch: usize,
    },
    /// `rise`: by how much the version exceeds the last one.
    Publish {
        task: usize,
        keys: Vec<u32>,
        rise: i64,
        bytes: usize,
    },
    Withdraw {
        task: usize,
        key: u32,
    },
    Open {
        plan: usize,
        producer: usize,
        consumer: usize,
        keys: Vec<u32>,
    },
    /// `ahead`: by how much the tensors' versions must exceed the newest now. `room`: the consumer provides memory for the first.
    Pull {
        plan: usize,
        ahead: i64,
        room: Option<usize>,
        timeout: Duration,
    },
    /// The latest pull of a plan is given up.
    GiveUpPull {
        plan: usize,
    },
    /// The receiver of a plan's latest pull is dropped.
    DeafenPull {
        plan: usize,
    },
    Close {
        plan: usize,
    },
    /// A plan is closed, and another one opened in its place.
    Reopen {
        plan: usize,
        keys: Vec<u32>,
    },
    OpenQueue {
        id: QueueId,
        options: AcceptOptions,
    },
    /// Up to `most` tensors are taken out of a queue.
    Take {
        id: QueueId,
        most: usize,
    },
    CloseQueue(QueueId),
    Push {
        pusher: usize,
        to: QueueId,
        lengths: Vec<usize>,
        timeout: Duration,
    },
    /// A table is published, or its next version.
    PublishTable {
        task: usize,
        key: u32,
    },
    WithdrawTable {
        task: usize,
        key: u32,
    },
    WriteRows {
        task: usize,
        key: u32,
        rows: Vec<u64>,
    },
    /// A row is half written until `EndRow`.
    BeginRow {
        task: usize,
        key: u32,
        row: u64,
    },
    EndRow {
        task: usize,
        key: u32,
    },
    /// `tables`: their keys, and the rows of each. `ahead`: by how much all versions must exceed that of the first table now.
    PullRows {
        ask: usize,
        producer: usize,
        consumer: usize,
        tables: Vec<(u32, Vec<u64>)>,
        ahead: i64,
        timeout: Duration,
    },
    GiveUpRows {
        ask: usize,
    },
    DeafenRows {
        ask: usize,
    },
}

fn length(random: &mut SmallRng) -> usize {
    match random.random_range(0..10) {
        0 | 1 => 0,
        2..=6 => random.random_range(8..600),
        7 | 8 => random.random_range(600..9_500),
        _ => random.random_range(9_500..=TENSOR_BYTES_MAX),
    }
}

fn timeout(random: &mut SmallRng, least: Duration) -> Duration {
    let most = DEADLINE_MAX.as_micros() as f64 / least.as_micros() as f64;
    least.mul_f64(most.powf(random.random_range(0.0..1.0)))
}

fn moment(random: &mut SmallRng) -> Duration {
    random.random_range(Duration::ZERO..STORM)
}

fn soon(random: &mut SmallRng) -> Duration {
    random.random_range(Duration::ZERO..Duration::from_millis(200))
}

/// A recv is given up while its tensor is on its way, the step is cleaned up, and the step's number is used again.
fn once_more(at: Spot, start: Duration, random: &mut SmallRng, agenda: &mut Agenda) {
    let timeout = DEADLINE_MAX / 2;
    let instant = |random: &mut SmallRng| random.random_range(Duration::ZERO..Duration::from_micros(600));
    let cancelled = start + instant(random);
    let cleaned = start + instant(random);
    let again = cancelled.max(cleaned) + instant(random);
    agenda.add(start, Event::Deed(Deed::Send { at, bytes: length(random), timeout }));
    agenda.add(start, Event::Deed(Deed::Recv { at, room: None, timeout }));
    agenda.add(cancelled, Event::Deed(Deed::Cancel(at)));
    agenda.add(cleaned, Event::Deed(Deed::Cleanup { task: at.producer, step: at.step }));
    agenda.add(again, Event::Deed(Deed::Recv { at, room: None, timeout }));
    agenda.add(again + instant(random), Event::Deed(Deed::Send { at, bytes: length(random), timeout }));
}

/// Schedules everything that tasks will do and everything that will happen to them.
pub(super) fn plan(climate: &Climate, random: &mut SmallRng, agenda: &mut Agenda) {
    let tasks = climate.hosts * climate.tasks_per_host;
    for number in 0..climate.exchanges {
        let shared = random.random_bool(0.25);
        let key = if shared { random.random_range(0..SHARED_KEYS) } else { SHARED_KEYS + number as u32 };
        let at = Spot {
            producer: random.random_range(0..tasks),
            consumer: random.random_range(0..tasks),
            step: random.random_range(0..STEPS),
            key,
        };
        let start = moment(random);
        if random.random_bool(0.06) {
            once_more(at, start, random, agenda);
            continue;
        }
        if random.random_bool(0.92) {
            let timeout = timeout(random, Duration::from_millis(30));
            agenda.add(start + soon(random), Event::Deed(Deed::Send { at, bytes: length(random), timeout }));
        }
        if random.random_bool(0.92) {
            let room = random.random_bool(0.3).then(|| match random.random_bool(0.8) {
                true => TENSOR_BYTES_MAX,
                false => length(random),
            });
            let asked = start + soon(random);
            let timeout = timeout(random, Duration::from_millis(3));
            agenda.add(asked, Event::Deed(Deed::Recv { at, room, timeout }));
            match random.random_range(0..100) {
                0..8 => agenda.add(asked + soon(random), Event::Deed(Deed::Cancel(at))),
                8..10 => agenda.add(asked + soon(random), Event::Deed(Deed::Deafen(at))),
                10..16 => {
                    // Given up and wanted again at once.
                    let again = asked + soon(random);
                    agenda.add(again, Event::Deed(Deed::Cancel(at)));
                    agenda.add(again, Event::Deed(Deed::Recv { at, room: None, timeout }));
                }
                _ => {}
            }
        }
    }
    for _ in 0..random.random_range(0..5) {
        let (task, step) = (random.random_range(0..tasks), random.random_range(0..STEPS));
        let when = moment(random);
        agenda.add(when, Event::Deed(Deed::Abort { task, step }));
        agenda.add(when + soon(random), Event::Deed(Deed::Cleanup { task, step }));
    }
    for _ in 0..random.random_range(0..4) {
        let (task, step) = (random.random_range(0..tasks), random.random_range(0..STEPS));
        agenda.add(moment(random), Event::Deed(Deed::Cleanup { task, step }));
    }
    fused::plan(climate, random, agenda);
    published::plan(climate, random, agenda);
    pushed::plan(climate, random, agenda);
    tables::plan(climate, random, agenda);
    lies::plan(climate, random, agenda);
    let mut when = Duration::ZERO;
    while when < STORM {
        when += soon(random);
        agenda.add(when, Event::Deed(Deed::Consume));
    }
    for host in 0..climate.hosts {
        for _ in 0..random.random_range(0..3) {
            agenda.add(moment(random), Event::Learn(host));
        }
    }
    if climate.slow {
        for _ in 0..random.random_range(1..4) {
            let (host, shard) = (random.random_range(0..climate.hosts), random.random_range(0..climate.shards_max));
            let from = moment(random);
            let until = from + moment(random) / 3;
            agenda.add(from, Event::Slow { host, shard, until });
        }
    }
    if climate.weather == Weather::Storm {
        misfortunes(climate, random, agenda);
    }
}

fn misfortunes(climate: &Climate, random: &mut SmallRng, agenda: &mut Agenda) {
    for _ in 0..random.random_range(0..4) {
        let host = random.random_range(0..climate.hosts);
        let ending = match random.random_range(0..3) {
            0 => Ending::Graceful,
            1 => Ending::Crash,
            _ => Ending::PowerLoss,
        };
        let when = random.random_range(Duration::ZERO..STORM);
        agenda.add(when, Event::Stop(host, ending));
        agenda.add(when + random.random_range(Duration::ZERO..STORM / 2), Event::Start(host));
    }
    for _ in 0..random.random_range(0..3) {
        let (one, other) = (random.random_range(0..climate.hosts), random.random_range(0..climate.hosts));
        if one != other {
            let when = random.random_range(Duration::ZERO..STORM);
            agenda.add(when, Event::Part(one, other));
            agenda.add(when + random.random_range(Duration::ZERO..STORM), Event::Heal(one, other));
        }
    }
    for _ in 0..random.random_range(0..3) {
        let (one, other) = (random.random_range(0..climate.hosts), random.random_range(0..climate.hosts));
        if one != other {
            let when = random.random_range(Duration::ZERO..STORM);
            agenda.add(when, Event::Deny(one, other));
            agenda.add(when + random.random_range(Duration::ZERO..STORM / 2), Event::Trust(one, other));
        }
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014).
fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// The seed of the bytes of a tensor sent to a spot.
pub(super) fn seed_of(at: Spot, send: usize) -> u64 {
    mixed(send as u64 ^ (at.step as u64) << 40)
        ^ mixed((at.producer << 32 | at.consumer) as u64)
        ^ u64::from(at.key) << 17
}

/// The seed of the bytes of a published tensor.
pub(super) fn seed_of_published(task: usize, key: u32, version: i64) -> u64 {
    mixed((task as u64) << 32 | u64::from(key)) ^ mixed(version as u64)
}

/// The seed of the bytes of a pushed tensor.
pub(super) fn seed_of_pushed(pusher: usize, to: QueueId, number: usize) -> u64 {
    mixed((pusher as u64) << 32 | to.task as u64) ^ mixed(u64::from(to.queue) << 48 ^ number as u64)
}

/// The seed of the bytes of a table's row.
pub(super) fn seed_of_row(task: usize, key: u32, row: u64) -> u64 {
    mixed((task as u64) << 32 | u64::from(key)) ^ mixed(row)
}

/// Writes the bytes of a tensor: its number, then bytes that follow from the seed.
pub(super) fn fill(mut seed: u64, number: usize, bytes: &mut [u8]) {
    let mut chunks = bytes.chunks_mut(8);
    if let Some(first) = chunks.next() {
        first.copy_from_slice(&(number as u64).to_le_bytes()[..first.len()]);
    }
    for chunk in chunks {
        seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        chunk.copy_from_slice(&mixed(seed).to_le_bytes()[..chunk.len()]);
    }
}

/// True if a tensor has exactly the bytes of that number and seed.
pub(super) fn is_of(tensor: &Tensor, seed: u64, number: usize, bytes: usize) -> bool {
    let mut expected = vec![0; bytes];
    fill(seed, number, &mut expected);
    *tensor.meta() == meta(number, bytes) && tensor.bytes() == expected
}

/// The metadata of such a tensor; without bytes, its number is in its shape.
pub(super) fn meta(number: usize, bytes: usize) -> TensorMeta {
    let shape: &[u64] = if bytes == 0 { &[number as u64, 0] } else { &[bytes as u64] };
    TensorMeta::new(DType::U8, shape).expect("few dimensions")
}

/// The number of the send, publication or push that a tensor says it comes from.
pub(super) fn number_of(tensor: &Tensor) -> Option<usize> {
    match tensor.bytes().first_chunk::<8>() {
        Some(first) => Some(u64::from_le_bytes(*first) as usize),
        None => Some(*tensor.shape().first()? as usize),
    }
}
