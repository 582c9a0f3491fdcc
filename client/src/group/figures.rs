//! What a rank counts of its group, and how others on this host find it: in a page of memory of its process, without a daemon.

use std::{
    cmp::Reverse,
    collections::{HashMap, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
    sync::atomic::Ordering,
    time::Duration,
};

use sealane_transport::{
    Error,
    shm::{
        ShmError,
        group::{COUNTERS, CounterPage, FoundPage},
    },
};

use super::{
    call::{Kind, NAMES},
    hosts::layout::Layout,
};
use crate::clock::Tick;

const PAGE: &str = "sealane-group-figures";

/// The format of the page: another format has another number.
const FORM: u64 = 0x7365_616c_616e_0002;

/// Indices of the counters.
mod at {
    pub(super) const FORM: usize = 0;
    pub(super) const GROUP: usize = 1;
    pub(super) const RANK: usize = 2;
    pub(super) const SIZE: usize = 3;
    pub(super) const HOSTS: usize = 4;
    /// Milliseconds of the monotonic clock.
    pub(super) const BEGAN: usize = 5;
    /// The rank's place in the order of collectives: see [`Place`](super::Place).
    pub(super) const PLACE: usize = 6;
    /// Three for each kind of call: how many, their bytes, and their nanoseconds.
    pub(super) const CALLS: usize = 8;
}

/// Everything counted: collectives by kind, and behind them the messages.
const COUNTED: usize = NAMES.len() + 2;
const SENDS: usize = NAMES.len();
const RECVS: usize = SENDS + 1;

const _: () = assert!(at::CALLS + 3 * COUNTED <= COUNTERS);

/// What one rank of a group has done, on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RankFigures {
    /// Its process.
    pub process: u32,
    /// The same for all ranks of a group, and different for other groups.
    pub group: u64,
    /// Its number in the group.
    pub rank: usize,
    /// How many ranks the group has.
    pub size: usize,
    /// How many hosts they are on.
    pub hosts: usize,
    /// How long ago it joined, to a few milliseconds.
    pub uptime: Duration,
    /// Its calls by kind, in no order of time.
    pub calls: Vec<CallFigures>,
    /// The name of the collective in progress.
    pub in_progress: Option<&'static str>,
    /// How long that collective has been in progress; if there is none, how long ago the last one ended, or the rank joined.
    pub since: Duration,
    /// Number of collectives that it has begun, modulo 2^20.
    pub begun: u32,
}

impl RankFigures {
    /// How many steps this rank is ahead of `other` in the order of collectives, in which the begin and the end of each is a step. The
    /// ranks with the fewest steps are those that the others wait for.
    pub fn steps_ahead_of(&self, other: &RankFigures) -> i32 {
        let unused = u32::BITS - NUMBER_BITS;
        // The numbers wrap around.
        let calls = (self.begun.wrapping_sub(other.begun) << unused).cast_signed() >> unused;
        2 * calls + i32::from(self.in_progress.is_none()) - i32::from(other.in_progress.is_none())
    }
}

/// Where a rank is in the order of collectives, in one word, so that readers never see a part: milliseconds of the monotonic clock since
/// which it is there, the number of the last collective that it has begun, and the kind of that, or 0 once it has ended.
#[derive(Clone, Copy)]
struct Place {
    since: u64,
    number: u32,
    kind: usize,
}

const KIND_BITS: u32 = 4;
const NUMBER_BITS: u32 = 20;

const _: () = assert!(NAMES.len() < 1 << KIND_BITS);

impl Place {
    fn new(number: u32, kind: usize) -> Place {
        Place { since: Tick::now().milliseconds(), number: number & ((1 << NUMBER_BITS) - 1), kind }
    }

    fn of(word: u64) -> Place {
        let number = (word >> KIND_BITS) as u32 & ((1 << NUMBER_BITS) - 1);
        Place { since: word >> (KIND_BITS + NUMBER_BITS), number, kind: word as usize & ((1 << KIND_BITS) - 1) }
    }

    fn word(self) -> u64 {
        self.since << (KIND_BITS + NUMBER_BITS) | u64::from(self.number) << KIND_BITS | self.kind as u64
    }
}

/// A collective in progress, until it is dropped.
pub(super) struct InProgress<'c>(&'c Counters);

impl Drop for InProgress<'_> {
    fn drop(&mut self) {
        self.0.set_place(Place::new(self.0.place().number, 0));
    }
}

/// The calls of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallFigures {
    /// Such as `all_reduce` or `send`.
    pub name: &'static str,
    /// How many have ended; of messages, how many have begun.
    pub count: u64,
    /// The bytes of their tensors: of each rank, or of each part where all ranks have one.
    pub bytes: u64,
    /// How long they took, including the time that this rank waited for others: of calls in which all wait for all, the last rank to come
    /// has the least. None for messages.
    pub time: Duration,
}

impl CallFigures {
    /// True if each rank waits for all others in such calls.
    pub fn waits_for_all(&self) -> bool {
        const ROOTED: [&str; 4] = ["reduce", "gather", "scatter", "broadcast"];
        NAMES.contains(&self.name) && !ROOTED.contains(&self.name)
    }
}

/// This rank's counters. Any thread.
#[derive(Debug)]
pub(super) struct Counters(CounterPage);

impl Counters {
    /// For a group whose first rank has a name that is in no other group.
    pub(super) fn new(first: &str, layout: &Layout) -> Result<Counters, ShmError> {
        let page = CounterPage::create(PAGE)?;
        let mut group = DefaultHasher::new();
        first.hash(&mut group);
        for (number, value) in [
            (at::GROUP, group.finish()),
            (at::RANK, layout.rank() as u64),
            (at::SIZE, layout.size() as u64),
            (at::HOSTS, layout.hosts() as u64),
            (at::BEGAN, Tick::now().milliseconds()),
            (at::PLACE, Place::new(0, 0).word()),
            (at::FORM, FORM),
        ] {
            page.counter(number).store(value, Ordering::Relaxed);
        }
        Ok(Counters(page))
    }

    /// Notes that a collective has begun; one at a time.
    pub(super) fn begin(&self, kind: Kind) -> InProgress<'_> {
        self.set_place(Place::new(self.place().number.wrapping_add(1), kind as usize));
        InProgress(self)
    }

    fn place(&self) -> Place {
        Place::of(self.0.counter(at::PLACE).load(Ordering::Relaxed))
    }

    fn set_place(&self, place: Place) {
        self.0.counter(at::PLACE).store(place.word(), Ordering::Relaxed);
    }

    pub(super) fn collective(&self, kind: Kind, bytes: usize, took: Duration) {
        self.add(kind as usize - 1, [1, bytes as u64, u64::try_from(took.as_nanos()).unwrap_or(u64::MAX)]);
    }

    pub(super) fn send(&self, bytes: usize) {
        self.add(SENDS, [1, bytes as u64, 0]);
    }

    pub(super) fn recv(&self, bytes: usize) {
        self.add(RECVS, [1, bytes as u64, 0]);
    }

    fn add(&self, kind: usize, amounts: [u64; 3]) {
        for (place, amount) in amounts.into_iter().enumerate() {
            self.0.counter(at::CALLS + 3 * kind + place).fetch_add(amount, Ordering::Relaxed);
        }
    }

    /// Makes the page no rank's any more, even if a forked child still has it.
    pub(super) fn close(&self) {
        self.0.counter(at::FORM).store(0, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(super) fn group(&self) -> u64 {
        self.0.counter(at::GROUP).load(Ordering::Relaxed)
    }
}

/// The ranks whose processes are on this host, of all groups: those of this user, or of all for root.
pub(super) fn ranks_here() -> Result<Vec<RankFigures>, Error> {
    let pages =
        CounterPage::find(PAGE).map_err(|error| Error::unavailable("the list of processes", error.to_string()))?;
    let mut ranks: Vec<RankFigures> = pages.iter().filter_map(figures).collect();
    order(&mut ranks);
    Ok(ranks)
}

/// Sorts groups by age, oldest first, with each group's ranks together.
fn order(ranks: &mut [RankFigures]) {
    let mut ages: HashMap<u64, Duration> = HashMap::new();
    for RankFigures { group, uptime, .. } in &*ranks {
        ages.entry(*group).and_modify(|age| *age = (*age).max(*uptime)).or_insert(*uptime);
    }
    ranks.sort_by_key(|figures| (Reverse(ages[&figures.group]), figures.group, figures.rank));
}

/// The figures on a page, if it has this format.
fn figures(page: &FoundPage) -> Option<RankFigures> {
    let counters = &page.counters;
    if counters[at::FORM] != FORM {
        return None;
    }
    let of_kind = |kind: usize| {
        let name = NAMES.get(kind).copied().unwrap_or(if kind == SENDS { "send" } else { "recv" });
        let [count, bytes, nanoseconds] = std::array::from_fn(|place| counters[at::CALLS + 3 * kind + place]);
        CallFigures { name, count, bytes, time: Duration::from_nanos(nanoseconds) }
    };
    let now = Tick::now().milliseconds();
    let ago = |then: u64| Duration::from_millis(now.saturating_sub(then));
    let place = Place::of(counters[at::PLACE]);
    Some(RankFigures {
        process: page.process,
        group: counters[at::GROUP],
        rank: counters[at::RANK] as usize,
        size: counters[at::SIZE] as usize,
        hosts: counters[at::HOSTS] as usize,
        uptime: ago(counters[at::BEGAN]),
        calls: (0..COUNTED).map(of_kind).filter(|calls| calls.count > 0).collect(),
        in_progress: place.kind.checked_sub(1).and_then(|kind| NAMES.get(kind)).copied(),
        since: ago(place.since),
        begun: place.number,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ranks_of_a_group_are_together_whenever_they_began() {
        let of =
            |group, rank, uptime| RankFigures { uptime: Duration::from_secs(uptime), ..rank_at(group, rank, 0, false) };
        let mut ranks = vec![of(7, 1, 10), of(5, 0, 10), of(7, 0, 9), of(9, 0, 11), of(7, 2, 10), of(5, 1, 8)];
        order(&mut ranks);
        let found: Vec<(u64, usize)> = ranks.iter().map(|figures| (figures.group, figures.rank)).collect();
        assert_eq!(found, [(9, 0), (5, 0), (5, 1), (7, 0), (7, 1), (7, 2)]);
    }

    fn rank_at(group: u64, rank: usize, begun: u32, is_in_progress: bool) -> RankFigures {
        RankFigures {
            process: 1,
            group,
            rank,
            size: 3,
            hosts: 1,
            uptime: Duration::ZERO,
            calls: Vec::new(),
            in_progress: is_in_progress.then_some("barrier"),
            since: Duration::ZERO,
            begun,
        }
    }

    #[test]
    fn steps_are_counted_where_call_numbers_wrap_around() {
        let last = (1 << NUMBER_BITS) - 1;
        let steps = |one: (u32, bool), other: (u32, bool)| {
            rank_at(1, 0, one.0, one.1).steps_ahead_of(&rank_at(1, 1, other.0, other.1))
        };
        assert_eq!(steps((3, true), (3, true)), 0);
        assert_eq!(steps((3, false), (3, true)), 1);
        assert_eq!(steps((4, true), (3, false)), 1);
        assert_eq!(steps((0, true), (last, true)), 2);
        assert_eq!(steps((last, true), (0, false)), -3);
    }

    #[test]
    fn place_keeps_its_parts_in_one_word() {
        let place = Place { since: 1 << 39, number: (1 << NUMBER_BITS) - 1, kind: NAMES.len() };
        let read = Place::of(place.word());
        assert_eq!((read.since, read.number, read.kind), (place.since, place.number, place.kind));
    }
}
