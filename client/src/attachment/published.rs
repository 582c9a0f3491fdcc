//! What this task has published: kept, so that it is [published again](super::republish) when another daemon replaces the one
//! that has it. Under the attachment's lock, and changed [in turn](super::publish); bounded by what a daemon lets a task publish, and by
//! the calls in flight. Small tensors are copies; larger ones stay in the arena, where the daemon reads them anyway.
//!
//! A publication replaces the version before when the daemon has published it: a daemon that refuses it goes on serving the old one.
//!
//! A version never goes back: the newest requested publication is published again, even if the daemon was lost before it had
//! answered; but for a set that no shard was told completely, which none has shown, the one before. No I/O.

use std::{
    sync::{Arc, Weak},
    thread::{self, Thread},
};

use hashbrown::{HashMap, hash_map::Entry};
use sealane_runtime::Buffer;
use sealane_transport::{
    Payload, TensorMeta,
    limits::LOCKS_SUFFIX,
    shm::limits::{INLINE_BYTES_MAX, PUBLISHED_TOGETHER_MAX},
};

use super::{Held, State, driver::Resume, memory::Memory, publish::InSet};
use crate::memory::OwnTable;

#[derive(Default)]
pub(super) struct Published {
    by_key: HashMap<Box<str>, Publication>,
    /// Requested and not answered, by the call at the first shard.
    asked: HashMap<u32, (Box<str>, Publication)>,
    /// Number of publications so far, which numbers them.
    last: u64,
    /// The last publication before the set that the first shard is being told.
    before_set: Option<u64>,
    /// Tables that this task writes in place, by their keys and those of their locks.
    tables: HashMap<Box<str>, Weak<OwnTable>>,
    /// The republisher, once it runs.
    thread: Option<Thread>,
}

/// A version of a tensor.
struct Publication {
    number: u64,
    version: i64,
    meta: TensorMeta,
    /// Owned if it is a copy.
    payload: Payload,
    /// The link over which it was published.
    link: u64,
    /// How many newer ones are requested and not answered: until then it is not published again.
    newer: u32,
}

impl Publication {
    /// True if it is to be published over this link.
    fn is_stale(&self, link: u64) -> bool {
        self.link != link && self.newer == 0
    }
}

/// A tensor that was not published over a link yet.
pub(super) struct Stale {
    pub(super) number: u64,
    pub(super) version: i64,
    pub(super) meta: TensorMeta,
    pub(super) payload: Payload,
}

impl Published {
    /// Begins a set at the first shard.
    pub(super) fn begin_set(&mut self) {
        self.before_set = Some(self.last);
    }

    /// Ends a set: the first shard was told all of it, and may have shown it to others.
    pub(super) fn end_set(&mut self) {
        self.before_set = None;
    }

    /// Notes a publication that the first shard of a link was told by that call.
    pub(super) fn ask(&mut self, (key, version, meta, payload): InSet<'_>, (link, call): (u64, u32)) {
        if let Some(known) = self.by_key.get_mut(key) {
            known.newer += 1;
        }
        self.last += 1;
        // A shard shows at most so many at once, also of a larger set.
        self.before_set.take_if(|before| self.last - *before >= PUBLISHED_TOGETHER_MAX as u64);
        // The caller's own memory may change once the call has ended.
        let is_small = payload.len() <= INLINE_BYTES_MAX;
        let payload = if is_small { Buffer::copy_of(payload.as_ref()).into() } else { payload.share() };
        let asked = Publication { number: self.last, version, meta: meta.clone(), payload, link, newer: 0 };
        self.asked.insert(call, (key.into(), asked));
    }

    /// Handles the daemon's answer to a call. Returns memory that is not needed any more, to be dropped without the lock.
    pub(super) fn answered(&mut self, call: u32, refused: bool) -> Option<Memory> {
        let (key, asked) = self.asked.remove(&call)?;
        self.settle(key, asked, !refused)
    }

    /// The link is lost, and its answers with it.
    pub(super) fn lose(&mut self, spent: &mut Vec<Memory>) {
        let mut asked: Vec<_> = self.asked.drain().map(|(_, asked)| asked).collect();
        asked.sort_unstable_by_key(|(_, asked)| asked.number);
        let before_set = self.before_set.take();
        for (key, asked) in asked {
            let is_shown = before_set.is_none_or(|before| asked.number <= before);
            spent.extend(self.settle(key, asked, is_shown));
        }
    }

    /// Settles a requested publication; if it counts, it replaces the version before.
    fn settle(&mut self, key: Box<str>, asked: Publication, counts: bool) -> Option<Memory> {
        let spare = match self.by_key.entry(key) {
            Entry::Vacant(place) if counts => {
                place.insert(asked);
                return None;
            }
            Entry::Vacant(_) => asked,
            Entry::Occupied(mut known) => {
                let known = known.get_mut();
                known.newer = known.newer.saturating_sub(1);
                // Answers come in any order, and the daemon refuses versions that are older than its own.
                match counts && known.number < asked.number && known.version <= asked.version {
                    true => std::mem::replace(known, Publication { newer: known.newer, ..asked }),
                    false => asked,
                }
            }
        };
        Some(Memory::Source(spare.payload))
    }

    /// Forgets a tensor that was withdrawn.
    pub(super) fn forget(&mut self, key: &str, spent: &mut Vec<Memory>) {
        let asked = self.asked.extract_if(|_, (asked, _)| **asked == *key).map(|(_, (_, asked))| asked);
        spent.extend(asked.chain(self.by_key.remove(key)).map(|forgotten| Memory::Source(forgotten.payload)));
    }

    /// Forgets a tensor that a daemon has refused to publish again.
    pub(super) fn forget_refused(&mut self, number: u64) -> Option<Memory> {
        let mut refused = self.by_key.extract_if(|_, known| known.number == number);
        refused.next().map(|(_, publication)| Memory::Source(publication.payload))
    }

    /// Keys not yet published over this link: locks before their rows, which nobody may read without them, and large tensors
    /// before those that find room anywhere.
    pub(super) fn stale(&self, link: u64) -> Vec<Box<str>> {
        let mut stale: Vec<_> = self.by_key.iter().filter(|(_, known)| known.is_stale(link)).collect();
        stale.sort_by_key(|(key, known)| (!key.ends_with(LOCKS_SUFFIX), std::cmp::Reverse(known.payload.len())));
        stale.into_iter().map(|(key, _)| key.clone()).collect()
    }

    /// True if something may still have to be published again over this link, if the daemon refuses what is newer.
    pub(super) fn awaits_answers(&self, link: u64) -> bool {
        self.by_key.values().any(|known| known.link != link && known.newer > 0)
    }

    /// A tensor that was not published over this link yet, if it is still there.
    pub(super) fn get_stale(&self, link: u64, key: &str) -> Option<Stale> {
        let known = self.by_key.get(key).filter(|known| known.is_stale(link))?;
        Some(Stale {
            number: known.number,
            version: known.version,
            meta: known.meta.clone(),
            payload: known.payload.share(),
        })
    }

    /// Notes that a tensor was published over a link.
    pub(super) fn told(&mut self, key: &str, link: u64) {
        if let Some(known) = self.by_key.get_mut(key) {
            known.link = link;
        }
    }

    /// Moves what is published under a key to other memory, with at least that version. Returns the memory that is not needed any more: the
    /// old one, or the new one if something else is published under the key.
    pub(super) fn replace(&mut self, key: &str, (before, after): (&Payload, Payload), version: i64) -> Payload {
        let same = |known: &&mut Publication| std::ptr::eq(known.payload.as_ref(), before.as_ref());
        let Some(known) = self.by_key.get_mut(key).filter(same) else { return after };
        known.version = known.version.max(version);
        std::mem::replace(&mut known.payload, after)
    }

    /// Registers a table that this task writes in place, for as long as its owner has it.
    pub(super) fn register(&mut self, table: &Arc<OwnTable>) {
        self.tables.retain(|_, table| table.strong_count() > 0);
        for key in [&table.key, &table.locks_key] {
            self.tables.insert(key.clone(), Arc::downgrade(table));
        }
    }

    /// The table with that key, or whose locks have it.
    pub(super) fn table(&self, key: &str) -> Option<Arc<OwnTable>> {
        self.tables.get(key)?.upgrade()
    }

    /// Wakes the republisher when it is not waiting for a daemon.
    pub(super) fn waker(&self) -> Option<std::task::Waker> {
        self.thread.clone().map(|thread| Arc::new(Resume(thread)).into())
    }
}

impl Held<'_> {
    /// Starts the republisher with the first publication.
    pub(super) fn start_republisher(&mut self) {
        if self.published.thread.is_none()
            && let Some(attachment) = self.attachment.me.upgrade()
        {
            // If no thread can be started, the next publication tries again.
            let started = thread::Builder::new().name("sealane-publish".into()).spawn(move || attachment.republish());
            self.published.thread = started.ok().map(|started| started.thread().clone());
        }
    }

    /// Takes in the daemon's answers to publications.
    pub(super) fn settle_published(&mut self) {
        let State { published, calls, aftermath, .. } = &mut **self;
        while let Some((call, refused)) = calls.take_published() {
            aftermath.spent.extend(published.answered(call, refused));
        }
    }
}

#[cfg(test)]
mod tests;
