//! Rounds in all orders: a small model with the rules of `rounds.rs`. No slot is written while another rank may read it, each rank reads
//! what was written for its round, and no order deadlocks.

use std::collections::HashSet;

use crate::group::members::reaches;

const RANKS: usize = 3;
const ROUNDS: u32 = 5;

/// Round numbers wrap around 32 bits during the test.
const FIRST: u32 = u32::MAX - 1;

/// One rank: its words, its slots with the round that each was written for, and its next actions.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Rank {
    posted: u32,
    read: u32,
    slots: [u32; 2],
    /// The round that it writes next.
    writes: u32,
    /// The ranks that it still has to read in its current round, which is `reads`.
    unread: Vec<usize>,
    reads: u32,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct All(Vec<Rank>);

#[derive(Clone, Copy)]
enum Step {
    /// Write the slot and post it.
    Write,
    /// Read what another rank has posted.
    Read(usize),
    /// Report that the round is read.
    Done,
}

impl All {
    fn new() -> All {
        let before = FIRST.wrapping_sub(1);
        let rank = |own: usize| Rank {
            posted: before,
            read: before,
            slots: [0; 2],
            writes: FIRST,
            unread: (0..RANKS).filter(|rank| *rank != own).collect(),
            reads: FIRST,
        };
        All((0..RANKS).map(rank).collect())
    }

    fn steps(&self, own: usize) -> Vec<Step> {
        let rank = &self.0[own];
        let end = FIRST.wrapping_add(ROUNDS);
        let mut steps = Vec::new();
        // A rank may be one round ahead of its reads, and only once all have read the slot's former content.
        let least = rank.writes.wrapping_sub(2);
        let is_free = (0..RANKS).filter(|other| *other != own).all(|other| reaches(self.0[other].read, least));
        if rank.writes != end && rank.writes.wrapping_sub(rank.reads) < 2 && is_free {
            steps.push(Step::Write);
        }
        if rank.reads != end && reaches(rank.posted, rank.reads) {
            let reachable = rank.unread.iter().filter(|other| reaches(self.0[**other].posted, rank.reads));
            steps.extend(reachable.map(|other| Step::Read(*other)));
            if rank.unread.is_empty() {
                steps.push(Step::Done);
            }
        }
        steps
    }

    fn take(&self, own: usize, step: Step) -> All {
        let mut all = self.clone();
        match step {
            Step::Write => {
                let round = all.0[own].writes;
                let had = all.0[own].slots[round as usize & 1];
                // No other rank still has to read what is overwritten.
                for (other, rank) in all.0.iter().enumerate() {
                    let reads_it = rank.reads == had && rank.unread.contains(&own);
                    assert!(other == own || had == 0 || !reads_it, "rank {own} writes over what rank {other} reads");
                }
                let rank = &mut all.0[own];
                rank.slots[round as usize & 1] = round;
                (rank.posted, rank.writes) = (round, round.wrapping_add(1));
            }
            Step::Read(other) => {
                let round = all.0[own].reads;
                assert_eq!(all.0[other].slots[round as usize & 1], round, "rank {own} reads rank {other}");
                all.0[own].unread.retain(|rank| *rank != other);
            }
            Step::Done => {
                let rank = &mut all.0[own];
                (rank.read, rank.reads) = (rank.reads, rank.reads.wrapping_add(1));
                rank.unread = (0..RANKS).filter(|rank| *rank != own).collect();
            }
        }
        all
    }
}

#[test]
fn in_no_order_is_a_slot_written_too_early_or_a_rank_stuck() {
    let (mut seen, mut open) = (HashSet::new(), vec![All::new()]);
    let end = FIRST.wrapping_add(ROUNDS);
    while let Some(all) = open.pop() {
        if !seen.insert(all.clone()) {
            continue;
        }
        let steps: Vec<(usize, Step)> =
            (0..RANKS).flat_map(|rank| all.steps(rank).into_iter().map(move |step| (rank, step))).collect();
        let is_over = all.0.iter().all(|rank| rank.reads == end);
        assert_eq!(steps.is_empty(), is_over, "stuck");
        open.extend(steps.into_iter().map(|(rank, step)| all.take(rank, step)));
    }
    assert!(seen.len() > 1000, "{} states", seen.len());
}
