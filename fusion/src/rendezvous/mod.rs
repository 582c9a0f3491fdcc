//! The table where a send meets its recv. Pure: no clock, no I/O.
//!
//! One table a shard; bounded by `fusion.deposited_tensors_max` deposits and what sessions let their peers park.
//! `S` is what the owner wants back when a deposit ends (the sender's waiter). Entries keep their key while the tensor
//! is lent to a session, so that one which comes back can be asked for again.

mod ended;

use std::hash::BuildHasher;
use std::time::Instant;

use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use sealane_transport::{Arena, Error, Handle, Payload};

pub use ended::{EndedSteps, Scope};
use sealane_transport::tensor::TensorMeta;

/// The meeting point of one send and one recv.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meeting<'a> {
    /// Producer and consumer, by the owner's number of the pair.
    pub pair: u32,
    /// The step.
    pub step: i64,
    /// The tensor's name within the step.
    pub key: &'a str,
}

/// A request that waits in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Parked {
    /// A peer's.
    Peer {
        /// The session that brought it.
        session: Handle,
        /// Its id in that session.
        id: Handle,
    },
    /// A task's of this very node, by the node's name for it.
    Local(Handle),
}

/// What a send found.
#[derive(Debug)]
pub enum Deposited {
    /// Nobody waits yet: the table keeps the tensor.
    Kept(Handle),
    /// A request waits: lend it the tensor, and settle the deposit when it is released.
    Wanted {
        /// Who waits.
        by: Parked,
        /// The tensor back again.
        tensor: (TensorMeta, Payload),
        /// The deposit, now lent.
        deposit: Handle,
    },
}

/// What a request found.
#[derive(Debug)]
pub enum Found {
    /// The tensor, lent until it is settled.
    Tensor((TensorMeta, Payload), Handle),
    /// Nothing yet: the request waits in the table under this name.
    Parked(Parked),
}

/// A deposit that ended without being taken.
#[derive(Debug)]
pub struct Unsent<S> {
    /// The sender's waiter.
    pub sender: S,
    /// The key, for the message.
    pub key: String,
    /// The step, for the message.
    pub step: i64,
    /// Its deadline.
    pub deadline: Instant,
}

enum State<S> {
    Deposited {
        tensor: (TensorMeta, Payload),
        sender: S,
        deadline: Instant,
    },
    /// `barred`: what its sender hears if it comes back, instead of its waiting again.
    Lent {
        sender: S,
        deadline: Instant,
        barred: Option<Box<Error>>,
    },
    Wanted(Parked),
}

struct Entry<S> {
    pair: u32,
    step: i64,
    key: String,
    state: State<S>,
}

/// See the module.
pub struct Table<S> {
    entries: Arena<Entry<S>>,
    index: HashTable<Handle>,
    parked: HashMap<Parked, Handle>,
    hasher: DefaultHashBuilder,
    deposits: usize,
    deposits_max: usize,
    earliest: Option<Instant>,
    spare_keys: Vec<String>,
}

/// Keys kept for reuse, so that a deposit allocates nothing: at most this many.
const SPARE_KEYS: usize = 4096;

impl<S> Table<S> {
    /// An empty table for at most `deposits_max` tensors, lent ones included.
    pub fn new(deposits_max: usize) -> Self {
        Self {
            entries: Arena::new(usize::MAX),
            index: HashTable::new(),
            parked: HashMap::new(),
            hasher: DefaultHashBuilder::default(),
            deposits: 0,
            deposits_max,
            earliest: None,
            spare_keys: Vec::new(),
        }
    }

    /// Tensors that wait or are lent.
    pub fn deposits(&self) -> usize {
        self.deposits
    }

    /// Requests that wait.
    pub fn parked(&self) -> usize {
        self.parked.len()
    }

    #[inline]
    fn hash(&self, at: Meeting<'_>) -> u64 {
        self.hasher.hash_one((at.pair, at.step, at.key))
    }

    #[inline]
    fn find(&self, hash: u64, at: Meeting<'_>) -> Option<Handle> {
        let entries = &self.entries;
        let same = |handle: &Handle| {
            entries
                .get(*handle)
                .is_some_and(|entry| (entry.pair, entry.step, entry.key.as_str()) == (at.pair, at.step, at.key))
        };
        self.index.find(hash, same).copied()
    }

    #[inline]
    fn insert(&mut self, hash: u64, at: Meeting<'_>, state: State<S>) -> Handle {
        let mut key = self.spare_keys.pop().unwrap_or_default();
        key.clear();
        key.push_str(at.key);
        let entry = Entry { pair: at.pair, step: at.step, key, state };
        let Ok(handle) = self.entries.insert(entry) else { unreachable!("2^32 entries do not fit in memory") };
        self.link(hash, handle);
        handle
    }

    fn link(&mut self, hash: u64, handle: Handle) {
        let (entries, hasher) = (&self.entries, &self.hasher);
        self.index.insert_unique(hash, handle, |other| {
            let entry = entries.get(*other).expect("the index holds live entries");
            hasher.hash_one((entry.pair, entry.step, entry.key.as_str()))
        });
    }

    /// Takes an entry out of the index, so that its meeting point is free again.
    #[inline]
    fn unlink(&mut self, hash: u64, handle: Handle) {
        if let Ok(slot) = self.index.find_entry(hash, |other| *other == handle) {
            slot.remove();
        }
    }

    fn hash_of(&self, handle: Handle) -> u64 {
        let entry = self.entries.get(handle).expect("the caller holds a live entry");
        self.hasher.hash_one((entry.pair, entry.step, entry.key.as_str()))
    }

    fn remove(&mut self, handle: Handle) -> Option<Entry<S>> {
        let mut entry = self.entries.remove(handle)?;
        if !matches!(entry.state, State::Wanted(_)) {
            self.deposits -= 1;
            if self.deposits == 0 {
                self.earliest = None;
            }
        }
        if self.spare_keys.len() < SPARE_KEYS {
            self.spare_keys.push(std::mem::take(&mut entry.key));
        }
        Some(entry)
    }

    /// Deposits a tensor, or finds the request that waits for it.
    ///
    /// # Errors
    /// ResourceExhausted if the table is full, InvalidArgument if a tensor waits there already; the sender comes back.
    pub fn deposit(
        &mut self,
        at: Meeting<'_>,
        tensor: (TensorMeta, Payload),
        sender: S,
        deadline: Instant,
    ) -> Result<Deposited, (Error, S)> {
        if self.deposits >= self.deposits_max {
            let reason = format!("{} tensors wait to be received or released", self.deposits);
            return Err((Error::full("fusion.deposited_tensors_max", reason), sender));
        }
        let hash = self.hash(at);
        let Some(handle) = self.find(hash, at) else {
            self.deposits += 1;
            self.earliest = Some(self.earliest.map_or(deadline, |earliest| earliest.min(deadline)));
            return Ok(Deposited::Kept(self.insert(hash, at, State::Deposited { tensor, sender, deadline })));
        };
        let entry = self.entries.get_mut(handle).expect("the index holds live entries");
        let State::Wanted(by) = entry.state else {
            let reason =
                format!("a tensor for step {} key '{}' waits already; one send meets one recv", at.step, at.key);
            return Err((Error::invalid(reason), sender));
        };
        entry.state = State::Lent { sender, deadline, barred: None };
        self.deposits += 1;
        self.parked.remove(&by);
        self.unlink(hash, handle);
        Ok(Deposited::Wanted { by, tensor, deposit: handle })
    }

    /// Looks for the tensor of a request; parks the request, which is named by `by` then, if it is not there yet.
    ///
    /// # Errors
    /// InvalidArgument if another request waits there already, or this one's id is in use; whatever `by` answers.
    pub fn want(&mut self, at: Meeting<'_>, by: impl FnOnce() -> Result<Parked, Error>) -> Result<Found, Error> {
        let hash = self.hash(at);
        let Some(handle) = self.find(hash, at) else {
            let by = by()?;
            if self.parked.contains_key(&by) {
                return Err(Error::invalid("the id is that of another request, which waits"));
            }
            let handle = self.insert(hash, at, State::Wanted(by));
            self.parked.insert(by, handle);
            return Ok(Found::Parked(by));
        };
        let entry = self.entries.get_mut(handle).expect("the index holds live entries");
        if let State::Wanted(_) = entry.state {
            let reason = format!("a recv of step {} key '{}' waits already; one send meets one recv", at.step, at.key);
            return Err(Error::invalid(reason));
        }
        // Whatever stands in for the state while it is taken apart is overwritten on the next line.
        let nobody = State::Wanted(Parked::Local(handle));
        let State::Deposited { tensor, sender, deadline } = std::mem::replace(&mut entry.state, nobody) else {
            unreachable!("lent entries are not in the index")
        };
        entry.state = State::Lent { sender, deadline, barred: None };
        self.unlink(hash, handle);
        Ok(Found::Tensor(tensor, handle))
    }

    /// Ends the loan of a deposit. Taken: its sender is to be told so. Given back: it waits again, unless another
    /// tensor has taken its place or its step has ended meanwhile, or a request waits for it.
    pub fn settle(&mut self, deposit: Handle, tensor: (TensorMeta, Payload), taken: bool) -> Settled<S> {
        let Some(entry) = self.entries.get(deposit) else { return Settled::Gone };
        if taken {
            // First, while the sender is still in the table: memory of the caller's may panic when it is freed.
            drop(tensor);
            let Some(Entry { state: State::Lent { sender, .. }, .. }) = self.remove(deposit) else {
                return Settled::Gone;
            };
            return Settled::Taken(sender);
        }
        let key = entry.key.clone();
        let at = Meeting { pair: entry.pair, step: entry.step, key: &key };
        let Some(Entry { state: State::Lent { sender, deadline, barred }, .. }) = self.remove(deposit) else {
            return Settled::Gone;
        };
        if let Some(error) = barred {
            return Settled::Displaced(sender, *error);
        }
        match self.deposit(at, tensor, sender, deadline) {
            Ok(Deposited::Kept(_)) => Settled::Kept,
            Ok(Deposited::Wanted { by, tensor, deposit }) => Settled::Wanted { by, tensor, deposit },
            Err((error, sender)) => Settled::Displaced(sender, error),
        }
    }

    /// The key that a parked request waits for, if it still does.
    pub fn key_of(&self, by: Parked) -> Option<&str> {
        Some(&self.entries.get(*self.parked.get(&by)?)?.key)
    }

    /// Forgets a parked request; false if it has been answered already.
    pub fn withdraw(&mut self, by: Parked) -> bool {
        let Some(handle) = self.parked.remove(&by) else { return false };
        let hash = self.hash_of(handle);
        self.unlink(hash, handle);
        self.remove(handle);
        true
    }

    /// Forgets every parked request of a session: its link is gone, and what stands will be asked again.
    pub fn withdraw_session(&mut self, session: Handle) {
        let of_session = |by: &&Parked| matches!(by, Parked::Peer { session: of, .. } if *of == session);
        let mut parked: Vec<_> = self.parked.keys().filter(of_session).copied().collect();
        // A hash map's order is no order: the same history is to leave the same table behind.
        parked.sort_unstable();
        for by in parked {
            self.withdraw(by);
        }
    }

    /// Takes out the tensors that wait (not those lent) for which `pick(pair, step)` says yes.
    pub fn take_deposits(&mut self, mut pick: impl FnMut(u32, i64) -> bool) -> Vec<Unsent<S>> {
        self.take_those(|entry| pick(entry.pair, entry.step))
    }

    /// Tensors that are lent, and for which `pick(pair, step)` says yes, will not wait again when they come back: their
    /// senders hear `error`.
    pub fn bar_loans(&mut self, mut pick: impl FnMut(u32, i64) -> bool, error: &Error) {
        for (_, entry) in self.entries.iter_mut() {
            if let State::Lent { barred, .. } = &mut entry.state
                && pick(entry.pair, entry.step)
            {
                *barred = Some(Box::new(error.clone()));
            }
        }
    }

    /// Takes out the requests that wait for which `pick(pair, step)` says yes.
    pub fn take_parked(&mut self, mut pick: impl FnMut(u32, i64) -> bool) -> Vec<Parked> {
        let chosen =
            self.entries.select(|entry| matches!(entry.state, State::Wanted(_)) && pick(entry.pair, entry.step));
        let requests = chosen.into_iter().filter_map(|handle| match self.entries.get(handle)?.state {
            State::Wanted(by) => Some(by),
            _ => None,
        });
        let requests: Vec<_> = requests.collect();
        for by in &requests {
            self.withdraw(*by);
        }
        requests
    }

    /// When [`expire`](Self::expire) is to be called at the latest.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.earliest
    }

    /// Takes out the tensors that waited past their deadline.
    pub fn expire(&mut self, now: Instant) -> Vec<Unsent<S>> {
        if self.earliest.is_none_or(|earliest| earliest > now) {
            return Vec::new();
        }
        let expired =
            self.take_those(|entry| matches!(entry.state, State::Deposited { deadline, .. } if deadline <= now));
        let deadline = |entry: &Entry<S>| match entry.state {
            State::Deposited { deadline, .. } => Some(deadline),
            _ => None,
        };
        self.earliest = self.entries.iter().filter_map(|(_, entry)| deadline(entry)).min();
        expired
    }

    fn take_those(&mut self, mut pick: impl FnMut(&Entry<S>) -> bool) -> Vec<Unsent<S>> {
        let chosen = self.entries.select(|entry| matches!(entry.state, State::Deposited { .. }) && pick(entry));
        let take = |handle| {
            let hash = self.hash_of(handle);
            self.unlink(hash, handle);
            let key = self.entries.get(handle)?.key.clone();
            match self.remove(handle)? {
                Entry { state: State::Deposited { sender, deadline, .. }, step, .. } => {
                    Some(Unsent { sender, key, step, deadline })
                }
                _ => None,
            }
        };
        chosen.into_iter().filter_map(take).collect()
    }
}

/// What became of a loan that ended.
#[derive(Debug)]
pub enum Settled<S> {
    /// The consumer has it.
    Taken(S),
    /// It waits again.
    Kept,
    /// It came back, and another request waits for it: lend it on.
    Wanted {
        /// Who waits.
        by: Parked,
        /// The tensor.
        tensor: (TensorMeta, Payload),
        /// The deposit, lent again.
        deposit: Handle,
    },
    /// It came back, but its place was taken meanwhile or its step has ended.
    Displaced(S, Error),
    /// The deposit had ended before.
    Gone,
}

#[cfg(test)]
mod tests;
