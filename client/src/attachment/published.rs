//! What this task has published: kept, so that it is [published again](super::republish) when another daemon takes the place of the one
//! that has it. Under the attachment's lock, and changed [in turn](super::publish); bounded by what a daemon lets a task publish, and by
//! the calls in flight. Small tensors are copies, larger ones stay in the arena, where the daemon reads them anyway.
//!
//! What was asked for takes the place of the version before when the daemon has published it: one that refuses it goes on serving that.
//!
//! A version never goes back: what is published again is the newest that was asked for, even if the daemon was lost before it had
//! answered; but of a set that no shard was told whole, which none has shown, it is what was published before. No I/O.

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

/// See the module.
#[derive(Default)]
pub(super) struct Published {
    by_key: HashMap<Box<str>, Publication>,
    /// What was asked for and not answered, by its call at the first shard.
    asked: HashMap<u32, (Box<str>, Publication)>,
    /// Publications so far, which numbers them.
    last: u64,
    /// The last before the set that the first shard is being told.
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
    /// Owned where it is a copy.
    payload: Payload,
    /// The link that it was published by.
    link: u64,
    /// What is asked for in its place: it is not published again after that.
    newer: u32,
}

impl Publication {
    /// It is to be published by this link.
    fn is_stale(&self, link: u64) -> bool {
        self.link != link && self.newer == 0
    }
}

/// A tensor that a link was not told.
pub(super) struct Stale {
    pub(super) number: u64,
    pub(super) version: i64,
    pub(super) meta: TensorMeta,
    pub(super) payload: Payload,
}

impl Published {
    /// The first shard is told a set from now on.
    pub(super) fn begin_set(&mut self) {
        self.before_set = Some(self.last);
    }

    /// The first shard was told all of it, and may have shown it to others.
    pub(super) fn end_set(&mut self) {
        self.before_set = None;
    }

    /// Notes what the first shard of a link was told by that call.
    pub(super) fn ask(&mut self, (key, version, meta, payload): InSet<'_>, (link, call): (u64, u32)) {
        if let Some(known) = self.by_key.get_mut(key) {
            known.newer += 1;
        }
        self.last += 1;
        // Shards show so many at once, also of a set that has more.
        self.before_set.take_if(|before| self.last - *before >= PUBLISHED_TOGETHER_MAX as u64);
        // The caller's own memory may change once the call has ended.
        let is_small = payload.len() <= INLINE_BYTES_MAX;
        let payload = if is_small { Buffer::copy_of(payload.as_ref()).into() } else { payload.share() };
        let asked = Publication { number: self.last, version, meta: meta.clone(), payload, link, newer: 0 };
        self.asked.insert(call, (key.into(), asked));
    }

    /// The daemon has answered a call. The memory that nobody needs is not to be dropped under the lock.
    pub(super) fn answered(&mut self, call: u32, refused: bool) -> Option<Memory> {
        let (key, asked) = self.asked.remove(&call)?;
        self.settle(key, asked, !refused)
    }

    /// The link is lost, and with it the answers.
    pub(super) fn lose(&mut self, spent: &mut Vec<Memory>) {
        let mut asked: Vec<_> = self.asked.drain().map(|(_, asked)| asked).collect();
        asked.sort_unstable_by_key(|(_, asked)| asked.number);
        let before_set = self.before_set.take();
        for (key, asked) in asked {
            let is_shown = before_set.is_none_or(|before| asked.number <= before);
            spent.extend(self.settle(key, asked, is_shown));
        }
    }

    /// Takes in what was asked for; if it counts, in the place of the version before.
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
                // Answers come in any order; and the daemon refuses what is older than it was.
                match counts && known.number < asked.number && known.version <= asked.version {
                    true => std::mem::replace(known, Publication { newer: known.newer, ..asked }),
                    false => asked,
                }
            }
        };
        Some(Memory::Source(spare.payload))
    }

    /// Forgets a tensor that is withdrawn.
    pub(super) fn forget(&mut self, key: &str, spent: &mut Vec<Memory>) {
        let asked = self.asked.extract_if(|_, (asked, _)| **asked == *key).map(|(_, (_, asked))| asked);
        spent.extend(asked.chain(self.by_key.remove(key)).map(|forgotten| Memory::Source(forgotten.payload)));
    }

    /// Forgets what a daemon has refused that was to publish it again.
    pub(super) fn forget_refused(&mut self, number: u64) -> Option<Memory> {
        let mut refused = self.by_key.extract_if(|_, known| known.number == number);
        refused.next().map(|(_, publication)| Memory::Source(publication.payload))
    }

    /// The keys of what was not published by this link: locks of rows before rows, which nobody is to read without them, and what is
    /// large before what finds room anywhere.
    pub(super) fn stale(&self, link: u64) -> Vec<Box<str>> {
        let mut stale: Vec<_> = self.by_key.iter().filter(|(_, known)| known.is_stale(link)).collect();
        stale.sort_by_key(|(key, known)| (!key.ends_with(LOCKS_SUFFIX), std::cmp::Reverse(known.payload.len())));
        stale.into_iter().map(|(key, _)| key.clone()).collect()
    }

    /// True if something that was not published by this link is again to be, should the daemon refuse what is newer.
    pub(super) fn awaits_answers(&self, link: u64) -> bool {
        self.by_key.values().any(|known| known.link != link && known.newer > 0)
    }

    /// What was not published by this link, if it is there.
    pub(super) fn get_stale(&self, link: u64, key: &str) -> Option<Stale> {
        let known = self.by_key.get(key).filter(|known| known.is_stale(link))?;
        Some(Stale {
            number: known.number,
            version: known.version,
            meta: known.meta.clone(),
            payload: known.payload.share(),
        })
    }

    /// A link was told what it had not been.
    pub(super) fn told(&mut self, key: &str, link: u64) {
        if let Some(known) = self.by_key.get_mut(key) {
            known.link = link;
        }
    }

    /// What is published under a key lies elsewhere now, and is of that version if it was older. The memory that nobody needs: that of
    /// before, or that of after where something else is published.
    pub(super) fn replace(&mut self, key: &str, (before, after): (&Payload, Payload), version: i64) -> Payload {
        let same = |known: &&mut Publication| std::ptr::eq(known.payload.as_ref(), before.as_ref());
        let Some(known) = self.by_key.get_mut(key).filter(same) else { return after };
        known.version = known.version.max(version);
        std::mem::replace(&mut known.payload, after)
    }

    /// A table that this task writes in place, as long as its owner has it.
    pub(super) fn register(&mut self, table: &Arc<OwnTable>) {
        self.tables.retain(|_, table| table.strong_count() > 0);
        for key in [&table.key, &table.locks_key] {
            self.tables.insert(key.clone(), Arc::downgrade(table));
        }
    }

    /// The table that a key, or that of its locks, is of.
    pub(super) fn table(&self, key: &str) -> Option<Arc<OwnTable>> {
        self.tables.get(key)?.upgrade()
    }

    /// What wakes the republisher where it waits for no daemon.
    pub(super) fn waker(&self) -> Option<std::task::Waker> {
        self.thread.clone().map(|thread| Arc::new(Resume(thread)).into())
    }
}

impl Held<'_> {
    /// Whoever publishes again runs from the first publication on.
    pub(super) fn start_republisher(&mut self) {
        if self.published.thread.is_none()
            && let Some(attachment) = self.attachment.me.upgrade()
        {
            // Without a thread it is started by the next publication.
            let started = thread::Builder::new().name("sealane-publish".into()).spawn(move || attachment.republish());
            self.published.thread = started.ok().map(|started| started.thread().clone());
        }
    }

    /// Takes in what the daemon has answered to publications.
    pub(super) fn settle_published(&mut self) {
        let State { published, calls, aftermath, .. } = &mut **self;
        while let Some((call, refused)) = calls.take_published() {
            aftermath.spent.extend(published.answered(call, refused));
        }
    }
}

#[cfg(test)]
mod tests;
