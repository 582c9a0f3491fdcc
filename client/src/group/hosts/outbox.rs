//! What a rank sends to others in collectives, until it has left this process. Filled by the thread in a collective; also pushed out while
//! that waits in memory, since it may be waiting for ranks that wait for these bytes.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use sealane_transport::LinkError;

use super::network::{Connection, Network, Purpose, Shared, lock};
use crate::group::limits::{GROUP_COMPACT_BYTES, GROUP_UNSENT_BYTES_MAX};

pub(in crate::group) struct Outbox {
    /// `None` once this rank has ended: nothing more is sent.
    outgoing: Mutex<Option<HashMap<usize, Outgoing>>>,
    /// Something waits to be sent.
    waits: AtomicBool,
    /// Connections are being made.
    dials: AtomicBool,
}

/// The connection to a rank, and what waits for it.
struct Outgoing {
    connection: Connection,
    /// Bytes not yet sent, from `head` on.
    queue: Vec<u8>,
    head: usize,
    /// The number of the last call that was announced to it.
    told: Option<u32>,
    /// The rank cannot be reached. There was nothing to send to it.
    is_lost: bool,
}

impl Outbox {
    pub(in crate::group) fn new() -> Outbox {
        let (waits, dials) = (AtomicBool::new(false), AtomicBool::new(false));
        Outbox { outgoing: Mutex::new(Some(HashMap::new())), waits, dials }
    }

    fn outgoing(&self) -> MutexGuard<'_, Option<HashMap<usize, Outgoing>>> {
        self.outgoing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds open connections.
    pub(in crate::group) fn add(&self, open: HashMap<usize, Shared>) {
        let open = open.into_iter().map(|(rank, pipe)| (rank, Outgoing::new(Connection::Open(pipe))));
        if let Some(all) = self.outgoing().as_mut() {
            all.extend(open);
        }
    }

    /// Makes sure that there is a connection to a rank.
    pub(in crate::group) fn connect(&self, network: &Network, rank: usize) {
        if let Some(all) = self.outgoing().as_mut() {
            self.to(all, network, rank);
        }
    }

    fn to<'a>(&self, all: &'a mut HashMap<usize, Outgoing>, network: &Network, rank: usize) -> &'a mut Outgoing {
        let dial = || {
            self.dials.store(true, Ordering::Relaxed);
            Outgoing::new(Connection::begin(network, rank, Purpose::Collectives))
        };
        all.entry(rank).or_insert_with(dial)
    }

    /// Queues bytes for a rank, and before the first of the call of that number also `words`. True if so much waits that the caller is to
    /// wait too.
    ///
    /// # Errors
    /// The connection has ended.
    pub(in crate::group) fn send(
        &self,
        network: &Network,
        (rank, number): (usize, u32),
        words: impl FnOnce() -> Vec<u8>,
        bytes: &[u8],
    ) -> Result<bool, LinkError> {
        let mut all = self.outgoing();
        let Some(all) = all.as_mut() else { return Err(LinkError::Closed) };
        let outgoing = self.to(all, network, rank);
        if outgoing.is_lost {
            return Err(LinkError::Closed);
        }
        let words = if outgoing.told == Some(number) { Vec::new() } else { words() };
        outgoing.told = Some(number);
        let mut taken = 0;
        if outgoing.push_out(network)?
            && let Connection::Open(pipe) = &outgoing.connection
        {
            let mut pipe = lock(pipe);
            let len = words.len() + bytes.len();
            while taken < len {
                match pipe.write([&words[taken.min(words.len())..], &bytes[taken.saturating_sub(words.len())..]])? {
                    0 => break,
                    count => taken += count,
                }
            }
        }
        outgoing.queue.extend(&words[taken.min(words.len())..]);
        outgoing.queue.extend(&bytes[taken.saturating_sub(words.len())..]);
        if !outgoing.is_empty() {
            self.waits.store(true, Ordering::Relaxed);
        }
        Ok(outgoing.queue.len() - outgoing.head > GROUP_UNSENT_BYTES_MAX)
    }

    /// True if something waits to be sent.
    #[inline]
    pub(in crate::group) fn waits(&self) -> bool {
        self.waits.load(Ordering::Relaxed)
    }

    /// Sends what waits.
    ///
    /// # Errors
    /// A connection has ended, and with which rank.
    pub(in crate::group) fn push_out(&self, network: &Network) -> Result<(), (usize, LinkError)> {
        if !self.waits() && !self.dials.load(Ordering::Relaxed) {
            return Ok(());
        }
        let (mut waits, mut dials) = (false, false);
        let mut all = self.outgoing();
        for (rank, outgoing) in all.iter_mut().flatten().filter(|(_, outgoing)| !outgoing.is_lost) {
            match outgoing.push_out(network) {
                Ok(_) => {}
                // What it has sent may still be read.
                Err(error) if outgoing.is_empty() => {
                    outgoing.is_lost = true;
                    network.has_ended(*rank, &error);
                }
                Err(error) => return Err((*rank, error)),
            }
            waits |= !outgoing.is_empty();
            dials |= !outgoing.is_lost && matches!(outgoing.connection, Connection::Dialing(_));
        }
        self.waits.store(waits, Ordering::Relaxed);
        self.dials.store(dials, Ordering::Relaxed);
        Ok(())
    }

    /// True if less waits for a rank than may be left waiting.
    pub(in crate::group) fn has_room(&self, rank: usize) -> bool {
        let all = self.outgoing();
        let outgoing = all.as_ref().and_then(|all| all.get(&rank));
        outgoing.is_none_or(|outgoing| outgoing.queue.len() - outgoing.head <= GROUP_UNSENT_BYTES_MAX)
    }

    /// The ranks for which something waits.
    pub(in crate::group) fn owed(&self) -> Vec<usize> {
        let all = self.outgoing();
        let owed = all.iter().flatten().filter(|(_, outgoing)| !outgoing.is_empty());
        owed.map(|(rank, _)| *rank).collect()
    }

    /// Drops all connections: nothing more is sent.
    pub(in crate::group) fn close(&self) {
        *self.outgoing() = None;
        self.waits.store(false, Ordering::Relaxed);
        self.dials.store(false, Ordering::Relaxed);
    }
}

impl Outgoing {
    fn new(connection: Connection) -> Outgoing {
        Outgoing { connection, queue: Vec::new(), head: 0, told: None, is_lost: false }
    }

    fn is_empty(&self) -> bool {
        self.head == self.queue.len()
    }

    /// True once everything was sent, and the connection is open.
    fn push_out(&mut self, network: &Network) -> Result<bool, LinkError> {
        let Some(pipe) = self.connection.open(network)? else { return Ok(false) };
        while self.head < self.queue.len() {
            match lock(&pipe).write([&self.queue[self.head..], &[]])? {
                0 => {
                    if self.head >= GROUP_COMPACT_BYTES {
                        self.queue.drain(..self.head);
                        self.head = 0;
                    }
                    return Ok(false);
                }
                count => self.head += count,
            }
        }
        self.queue.clear();
        self.queue.shrink_to(GROUP_COMPACT_BYTES);
        self.head = 0;
        Ok(true)
    }
}
