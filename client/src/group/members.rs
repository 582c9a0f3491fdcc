//! The ranks of a group on this host as one of them sees them, by their places there: their words, whether they live, and how the group
//! ended. Any thread.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{Ordering, fence},
    },
    thread,
    time::{Duration, Instant},
};

use sealane_transport::{
    Error, LinkError,
    interrupt::is_interrupted,
    shm::group::{GroupWords, Joined, Mailboxes, OthersSegment, OwnSegment, OwnWords, PeerProcess, Slots, Word, state},
};

use super::hosts::{
    layout::Layout,
    network::{Network, Notice, Purpose},
};
use crate::{
    group::limits::{
        GROUP_FAR_SPIN, GROUP_FAR_SPIN_CROWDED, GROUP_LOOK, GROUP_NOTICE, GROUP_PUSH, GROUP_SPINS, GROUP_SPINS_CROWDED,
    },
    memory::ForkMark,
};

pub(super) struct Members {
    /// This rank's place.
    pub(super) rank: usize,
    layout: Layout,
    own: OwnWords,
    others: Vec<Option<(OthersSegment, PeerProcess)>>,
    /// Why this rank can do no more in its group.
    ended: Mutex<Option<Error>>,
    /// The ranks of other hosts, if there are any.
    network: Option<Arc<Network>>,
    /// Ranks outnumber CPUs: a spinning rank may keep the rank from running that it waits for.
    is_crowded: bool,
    mark: ForkMark,
}

/// What a rank waits for.
#[derive(Clone, Copy)]
pub(super) struct Awaited {
    pub(super) rank: usize,
    pub(super) word: Word,
    /// That value, or one that follows it, wrapping around.
    pub(super) least: u32,
}

/// True if `word` is `least` or follows it, both wrapping around.
#[inline]
pub(super) fn reaches(word: u32, least: u32) -> bool {
    word.wrapping_sub(least) < 1 << 31
}

impl Members {
    pub(super) fn new(
        layout: Layout,
        joined: Joined,
        network: Option<Arc<Network>>,
        mark: ForkMark,
    ) -> (Members, Slots, Mailboxes) {
        let Joined { segment: OwnSegment { words, slots, mailboxes }, others } = joined;
        let is_crowded = others.len() > thread::available_parallelism().map_or(usize::MAX, usize::from);
        let ended = Mutex::new(None);
        let rank = layout.own_index();
        let members = Members { rank, layout, own: words, others, ended, network, is_crowded, mark };
        (members, slots, mailboxes)
    }

    /// How often to poll a word before sleeping.
    pub(super) fn spins(&self) -> u32 {
        if self.is_crowded { GROUP_SPINS_CROWDED } else { GROUP_SPINS }
    }

    /// How long to poll connections before sleeping.
    pub(super) fn far_spin(&self) -> Duration {
        if self.is_crowded { GROUP_FAR_SPIN_CROWDED } else { GROUP_FAR_SPIN }
    }

    /// Which rank is on which host.
    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// This rank's number in the group.
    pub(super) fn number(&self) -> usize {
        self.layout.rank()
    }

    /// The number of the rank at a place.
    pub(super) fn number_of(&self, rank: usize) -> usize {
        self.layout.neighbours()[rank]
    }

    /// The ranks of other hosts, if there are any.
    pub(super) fn network(&self) -> Option<&Arc<Network>> {
        self.network.as_ref()
    }

    pub(super) fn size(&self) -> usize {
        self.others.len()
    }

    /// All ranks but this one.
    pub(super) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.rank;
        (0..self.size()).filter(move |rank| *rank != own)
    }

    /// The segment of another rank.
    ///
    /// # Panics
    /// If it is this one, or none.
    #[inline]
    pub(super) fn other(&self, rank: usize) -> &OthersSegment {
        &self.others[rank].as_ref().expect("it is another rank").0
    }

    #[inline]
    pub(super) fn own(&self) -> &OwnWords {
        &self.own
    }

    /// # Errors
    /// Why the group can do no more, or that this is a child of the process which joined it.
    pub(super) fn check(&self) -> Result<(), Error> {
        if self.mark.forked() {
            return Err(Error::invalid(
                "this process was forked after its parent joined the group: make a group of its own in the child",
            ));
        }
        match &*self.ended.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// # Errors
    /// The error with which a signal to this thread ends the group.
    pub(super) fn check_interrupt(&self) -> Result<(), Error> {
        if is_interrupted() {
            let reason = format!("a signal interrupted a call of rank {}", self.number());
            return Err(self.fail(Error::unavailable("the group", reason)));
        }
        Ok(())
    }

    pub(super) fn is_forked(&self) -> bool {
        self.mark.forked()
    }

    /// Sets a word, and wakes sleepers.
    #[inline]
    pub(super) fn tell(&self, word: Word, value: u32) {
        self.own.store(word, value);
        // SLEEP: a sleeper announces itself before it looks at the word, with the same fence between; so one of the two is seen.
        fence(Ordering::SeqCst);
        if self.others.iter().flatten().any(|(segment, _)| segment.words.load(Word::Sleeps) != 0) {
            self.own.wake(word);
        }
    }

    /// Waits until a word of another rank has the awaited value.
    ///
    /// # Errors
    /// The group has ended: by this rank, by another that says why, or because that rank has gone. DeadlineExceeded at `until`. In all
    /// cases the group is over.
    #[inline]
    pub(super) fn wait(&self, awaited: Awaited, until: Option<Instant>) -> Result<(), Error> {
        let words = &self.other(awaited.rank).words;
        for _ in 0..self.spins() {
            if reaches(words.load(awaited.word), awaited.least) {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        self.sleep(words, awaited, until)
    }

    #[cold]
    fn sleep(&self, words: &GroupWords, awaited: Awaited, until: Option<Instant>) -> Result<(), Error> {
        loop {
            self.own.store(Word::Sleeps, 1);
            // SLEEP: see `tell`.
            fence(Ordering::SeqCst);
            let seen = words.load(awaited.word);
            if !reaches(seen, awaited.least) {
                let left = until.map_or(GROUP_LOOK, |until| until.saturating_duration_since(Instant::now()));
                // That rank may wait for what this one has not sent yet.
                let unsent = self.network.as_ref().is_some_and(|network| network.outbox.waits());
                let look = if unsent { GROUP_PUSH } else { GROUP_LOOK };
                words.wait(awaited.word, seen, left.min(look).max(Duration::from_micros(1)));
            }
            self.own.store(Word::Sleeps, 0);
            if reaches(words.load(awaited.word), awaited.least) {
                return Ok(());
            }
            self.push_out()?;
            self.check()?;
            self.check_interrupt()?;
            self.check_others()?;
            self.check_far()?;
            if let Some(error) = self.has_gone(awaited.rank)
                // What it said before it went counts.
                && !reaches(words.load(awaited.word), awaited.least)
            {
                return Err(self.fail(error));
            }
            if until.is_some_and(|until| until <= Instant::now()) && !reaches(words.load(awaited.word), awaited.least) {
                return Err(self.fail(self.late(awaited)));
            }
        }
    }

    /// # Errors
    /// The error of the first rank that says that the group is over.
    pub(super) fn check_others(&self) -> Result<(), Error> {
        let failed = |(_, segment): &(usize, &OthersSegment)| segment.words.load(Word::State) == state::FAILED;
        let segments = self.others.iter().enumerate().filter_map(|(rank, other)| Some((rank, &other.as_ref()?.0)));
        match { segments }.find(failed) {
            Some((rank, segment)) => {
                let reason = format!("it has ended the group: {}", segment.words.reason());
                Err(self.fail(Error::unavailable(&format!("rank {}", self.number_of(rank)), reason)))
            }
            None => Ok(()),
        }
    }

    /// # Errors
    /// The same for ranks of other hosts.
    pub(super) fn check_far(&self) -> Result<(), Error> {
        let looked = self.network.as_ref().map_or(Ok(()), |network| network.look());
        looked.map_err(|error| self.fail(error))
    }

    /// # Errors
    /// A rank of this host whose process has ended, or a rank that has ended the group; while ranks still meet. One that has met all may
    /// have left already.
    pub(super) fn check_all(&self) -> Result<(), Error> {
        self.check_interrupt()?;
        self.check_others()?;
        self.check_far()?;
        let has_left = |rank: usize| self.other(rank).words.load(Word::State) == state::LEFT;
        self.others().find_map(|rank| self.has_gone(rank).filter(|_| !has_left(rank))).map_or(Ok(()), Err)
    }

    /// Sends what waits for ranks of other hosts.
    pub(super) fn push_out(&self) -> Result<(), Error> {
        match &self.network {
            Some(network) => network.outbox.push_out(network).map_err(|(rank, error)| self.lose(rank, &error)),
            None => Ok(()),
        }
    }

    /// Ends the group after a connection with a rank has ended, for a reason that the rank may have given.
    #[cold]
    pub(super) fn lose(&self, rank: usize, error: &LinkError) -> Error {
        let Some(network) = &self.network else {
            return Error::unavailable(&format!("rank {rank}"), error.to_string());
        };
        let until = Instant::now() + GROUP_NOTICE;
        loop {
            if let Err(error) = self.check().and_then(|()| self.check_far()) {
                return error;
            }
            if let Some(error) = network.has_gone(rank) {
                return self.fail(error);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                network.has_ended(rank, error);
            } else {
                network.wait(Purpose::Collectives, left);
            }
        }
    }

    /// The error of a call that needs a rank which has left, or whose process has ended.
    pub(super) fn has_gone(&self, rank: usize) -> Option<Error> {
        let (segment, process) = self.others[rank].as_ref()?;
        let reason = if segment.words.load(Word::State) == state::LEFT {
            "it has left the group".to_owned()
        } else {
            PeerProcess::first_gone(std::iter::once((rank, process)))?;
            match process.pid() {
                0 => "its process has ended".to_owned(),
                process => format!("its process {process} has ended"),
            }
        };
        Some(Error::Left { task: format!("rank {}", self.number_of(rank)).into(), reason: reason.into() })
    }

    /// The error of a call that has timed out: which rank is late.
    fn late(&self, awaited: Awaited) -> Error {
        let is_late =
            |rank: &usize| *rank == awaited.rank || !reaches(self.other(*rank).words.load(awaited.word), awaited.least);
        let late: Vec<String> = self.others().filter(is_late).map(|rank| self.number_of(rank).to_string()).collect();
        let (ranks, have) = if late.len() == 1 { ("rank", "has") } else { ("ranks", "have") };
        let reason =
            format!("the call has Timed out waiting for {ranks} {}, which {have} not arrived", late.join(", "));
        Error::TimedOut { reason: reason.into() }
    }

    /// Ends the group for all, unless it has ended; returns the error with which it ended.
    pub(super) fn fail(&self, error: Error) -> Error {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = &*ended {
            return error.clone();
        }
        let reason = error.to_string();
        self.own.fail(&reason);
        if let Some(network) = &self.network {
            network.tell(Notice::Failed, &reason);
        }
        *ended = Some(error.clone());
        error
    }

    /// This rank does no more.
    pub(super) fn leave(&self) {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if ended.is_none() {
            *ended = Some(Error::invalid("this rank has left the group"));
            self.own.store(Word::State, state::LEFT);
            if let Some(network) = &self.network {
                network.tell(Notice::Left, "");
            }
        }
    }
}
