//! What the ranks of several hosts send each other in collectives: bytes in order, which the receiver expects. One thread at a time.
//!
//! Before its first bytes to another rank in a call, a rank announces the call, and the receiver compares it. All ranks send and receive
//! in the same order, and a rank that waits, for another host or in memory of this one, keeps sending meanwhile: so the rank that
//! is furthest behind can always go on.

pub(super) mod address;
pub(super) mod collectives;
pub(super) mod layout;
pub(super) mod network;
mod outbox;

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use sealane_transport::{Error, LinkError, shm::group::CALL_WORDS};

use self::{
    layout::Layout,
    network::{Network, Purpose, Shared, lock},
};
use super::{
    call::{Told, differs},
    members::Members,
};
use crate::group::limits::{GROUP_LAST_BYTES, GROUP_LOOK};

const CALL_BYTES: usize = CALL_WORDS * 8;

pub(super) struct Hosts {
    network: Arc<Network>,
    members: Arc<Members>,
    incoming: HashMap<usize, Incoming>,
    /// The current call, its number, and its deadline.
    call: [u64; CALL_WORDS],
    number: u32,
    until: Option<Instant>,
}

/// The connection on which a rank's bytes come.
struct Incoming {
    pipe: Shared,
    /// The number of the last call that it has announced.
    heard: Option<u32>,
    /// Something has come on it.
    is_used: bool,
}

impl Hosts {
    pub(super) fn new(network: Arc<Network>, members: Arc<Members>) -> Hosts {
        Hosts { network, members, incoming: HashMap::new(), call: [0; CALL_WORDS], number: 0, until: None }
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.network.layout
    }

    /// Begins a call with these words.
    pub(super) fn begin(&mut self, call: [u64; CALL_WORDS], until: Option<Instant>) {
        (self.call, self.until) = (call, until);
        self.number = self.number.wrapping_add(1);
    }

    /// Sends bytes to a rank, which may leave later; waits while too many wait.
    pub(super) fn send(&mut self, rank: usize, bytes: &[u8]) -> Result<(), Error> {
        let (network, call) = (&self.network, self.call);
        let words = || call.map(u64::to_le_bytes).concat();
        let is_full = network.outbox.send(network, (rank, self.number), words, bytes);
        if is_full.map_err(|error| self.members.lose(rank, &error))? {
            let mut idle = Idle::new(&self.members);
            while !self.network.outbox.has_room(rank) {
                self.idle(&mut idle, None)?;
            }
        }
        Ok(())
    }

    /// Receives as many bytes from a rank; waits for them.
    pub(super) fn recv(&mut self, rank: usize, into: &mut [u8]) -> Result<(), Error> {
        if self.incoming.get(&rank).is_none_or(|incoming| incoming.heard != Some(self.number)) {
            let mut words = [0; CALL_BYTES];
            self.fill(rank, &mut words)?;
            let words: &[[u8; 8]] = words.as_chunks().0;
            let theirs: [u64; CALL_WORDS] = std::array::from_fn(|index| u64::from_le_bytes(words[index]));
            if theirs != self.call {
                let own = self.network.layout.rank();
                return Err(self.members.fail(differs((own, Told(self.call)), (rank, Told(theirs)))));
            }
            if let Some(incoming) = self.incoming.get_mut(&rank) {
                incoming.heard = Some(self.number);
            }
        }
        self.fill(rank, into)
    }

    fn fill(&mut self, rank: usize, into: &mut [u8]) -> Result<(), Error> {
        let (mut filled, mut idle) = (0, None);
        while filled < into.len() {
            match self.read(rank, &mut into[filled..]) {
                Ok(0) => {
                    let mut waiting = idle.take().unwrap_or_else(|| Idle::new(&self.members));
                    self.idle(&mut waiting, Some(rank))?;
                    idle = Some(waiting);
                }
                Ok(count) => {
                    filled += count;
                    idle = None;
                }
                Err(error) => return Err(self.members.lose(rank, &error)),
            }
        }
        Ok(())
    }

    fn read(&mut self, rank: usize, into: &mut [u8]) -> Result<usize, LinkError> {
        let Some(incoming) = self.incoming.get_mut(&rank) else {
            match self.network.incoming(rank, Purpose::Collectives) {
                Some(pipe) => drop(self.incoming.insert(rank, Incoming { pipe, heard: None, is_used: false })),
                None => self.network.accept(),
            }
            return Ok(0);
        };
        let read = lock(&incoming.pipe).read(into);
        if read.is_err() && !incoming.is_used {
            // Its caller may have given it up while it was answered, and calls again; or is gone, which is noticed elsewhere.
            self.network.forget(rank, Purpose::Collectives, &incoming.pipe);
            self.incoming.remove(&rank);
            return Ok(0);
        }
        incoming.is_used |= matches!(read, Ok(1..));
        read
    }

    /// Waits until everything was sent.
    pub(super) fn flush(&mut self) -> Result<(), Error> {
        let mut idle = Idle::new(&self.members);
        self.members.push_out()?;
        while self.network.outbox.waits() {
            self.idle(&mut idle, None)?;
        }
        Ok(())
    }

    /// Nothing has come from the awaited rank: spins for a moment, then sleeps.
    fn idle(&mut self, idle: &mut Idle, awaited: Option<usize>) -> Result<(), Error> {
        self.members.push_out()?;
        if Instant::now() < idle.spin_until {
            std::hint::spin_loop();
            return Ok(());
        }
        if let Some(rank) = awaited {
            // So this rank hears of its end.
            self.network.outbox.connect(&self.network, rank);
        }
        let left = self.until.map_or(GROUP_LOOK, |until| until.saturating_duration_since(Instant::now()));
        self.network.wait(Purpose::Collectives, left.min(GROUP_LOOK));
        self.network.accept();
        self.members.check()?;
        self.members.check_interrupt()?;
        self.members.check_others()?;
        self.members.check_far()?;
        if awaited.is_none()
            && let Some(error) = self.network.outbox.owed().into_iter().find_map(|rank| self.network.has_gone(rank))
        {
            // A rank that has finished this call takes in what it was sent before.
            return Err(self.members.fail(error));
        }
        if let Some(error) = awaited.and_then(|rank| self.network.has_gone(rank)) {
            // What it sent before it went may still be on its way; the end of its connection tells.
            let is_over = idle.gone_since.get_or_insert_with(Instant::now).elapsed() > GROUP_LAST_BYTES;
            if is_over || awaited.is_none_or(|rank| self.network.incoming(rank, Purpose::Collectives).is_none()) {
                return Err(self.members.fail(error));
            }
        }
        if self.until.is_some_and(|until| until <= Instant::now()) {
            return Err(self.members.fail(self.late(awaited)));
        }
        Ok(())
    }

    fn late(&self, awaited: Option<usize>) -> Error {
        let late = match awaited {
            Some(rank) if self.layout().is_alone(rank) => format!("rank {rank}, which has not arrived"),
            Some(rank) => format!("rank {rank}, which has not arrived or waits for another of its host"),
            None => "ranks of other hosts, which have not taken what they were given".into(),
        };
        Error::TimedOut { reason: format!("the call has Timed out waiting for {late}").into() }
    }
}

/// How long a wait spins, and since when its rank is known to be gone.
struct Idle {
    spin_until: Instant,
    gone_since: Option<Instant>,
}

impl Idle {
    fn new(members: &Members) -> Idle {
        let spin: Duration = members.far_spin();
        Idle { spin_until: Instant::now() + spin, gone_since: None }
    }
}
