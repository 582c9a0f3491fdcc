//! What a rank counts of its group, and how others on this host find it: in a page of memory of its process, without a daemon.

use std::{
    collections::{HashMap, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
    sync::atomic::Ordering,
    time::{Duration, SystemTime, UNIX_EPOCH},
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

const PAGE: &str = "sealane-group-figures";

/// The format of the page: another format has another number.
const FORM: u64 = 0x7365_616c_616e_0001;

/// Indices of the counters.
mod at {
    pub(super) const FORM: usize = 0;
    pub(super) const GROUP: usize = 1;
    pub(super) const RANK: usize = 2;
    pub(super) const SIZE: usize = 3;
    pub(super) const HOSTS: usize = 4;
    /// Seconds of Unix time.
    pub(super) const BEGAN: usize = 5;
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
    /// When the ranks had met, to the second.
    pub began: SystemTime,
    /// Its calls by kind, in no order of time.
    pub calls: Vec<CallFigures>,
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
        let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        for (number, value) in [
            (at::GROUP, group.finish()),
            (at::RANK, layout.rank() as u64),
            (at::SIZE, layout.size() as u64),
            (at::HOSTS, layout.hosts() as u64),
            (at::BEGAN, began),
            (at::FORM, FORM),
        ] {
            page.counter(number).store(value, Ordering::Relaxed);
        }
        Ok(Counters(page))
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

/// Sorts groups by their beginning, which each rank knows only to the second, with each group's ranks together.
fn order(ranks: &mut [RankFigures]) {
    let mut first: HashMap<u64, SystemTime> = HashMap::new();
    for RankFigures { group, began, .. } in &*ranks {
        first.entry(*group).and_modify(|first| *first = (*first).min(*began)).or_insert(*began);
    }
    ranks.sort_by_key(|figures| (first[&figures.group], figures.group, figures.rank));
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
    Some(RankFigures {
        process: page.process,
        group: counters[at::GROUP],
        rank: counters[at::RANK] as usize,
        size: counters[at::SIZE] as usize,
        hosts: counters[at::HOSTS] as usize,
        began: UNIX_EPOCH.checked_add(Duration::from_secs(counters[at::BEGAN]))?,
        calls: (0..COUNTED).map(of_kind).filter(|calls| calls.count > 0).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ranks_of_a_group_are_together_whenever_they_began() {
        let of = |group, rank, began| RankFigures {
            process: 1,
            group,
            rank,
            size: 3,
            hosts: 1,
            began: UNIX_EPOCH + Duration::from_secs(began),
            calls: Vec::new(),
        };
        let mut ranks = vec![of(7, 1, 100), of(5, 0, 100), of(7, 0, 101), of(9, 0, 99), of(7, 2, 100), of(5, 1, 102)];
        order(&mut ranks);
        let found: Vec<(u64, usize)> = ranks.iter().map(|figures| (figures.group, figures.rank)).collect();
        assert_eq!(found, [(9, 0), (5, 0), (5, 1), (7, 0), (7, 1), (7, 2)]);
    }
}
