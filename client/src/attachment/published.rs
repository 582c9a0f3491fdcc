//! What this task has published: kept, so that it is [published again](super::republish) when another daemon takes the place of the one
//! that has it. Under the attachment's lock, and changed [in turn](super::publish); bounded by what a daemon lets a task publish, for
//! what it refuses is not kept. Small tensors are copies, larger ones stay in the arena, where the daemon reads them anyway.
//!
//! A version never goes back: what is published again is the newest that was asked for, even if the daemon was lost before it had
//! answered. No I/O.

use std::{
    sync::{Arc, Weak},
    thread::{self, Thread},
};

use hashbrown::HashMap;
use sealane_runtime::Buffer;
use sealane_transport::{Payload, TensorMeta, limits::LOCKS_SUFFIX, shm::limits::INLINE_BYTES_MAX};

use super::{Held, State, driver::Resume, memory::Memory};
use crate::memory::OwnTable;

/// See the module.
#[derive(Default)]
pub(super) struct Published {
    by_key: HashMap<Box<str>, Publication>,
    /// Tables that this task writes in place, by their keys and those of their locks.
    tables: HashMap<Box<str>, Weak<OwnTable>>,
    /// The republisher, once it runs.
    thread: Option<Thread>,
}

/// The newest version of a tensor.
struct Publication {
    version: i64,
    meta: TensorMeta,
    /// Owned where it is a copy.
    payload: Payload,
    /// The link that it was published by.
    link: u64,
    /// Its call at the first shard.
    call: u32,
}

/// A tensor that a link was not told.
pub(super) struct Stale {
    pub(super) version: i64,
    pub(super) meta: TensorMeta,
    pub(super) payload: Payload,
}

impl Published {
    /// Keeps what was just told to the daemon; the memory that this takes the place of is not to be dropped under the lock.
    pub(super) fn keep(
        &mut self,
        (key, version): (&str, i64),
        (meta, payload): (&TensorMeta, &Payload),
        (link, call): (u64, u32),
    ) -> Option<Payload> {
        let is_small = payload.len() <= INLINE_BYTES_MAX;
        let Some(known) = self.by_key.get_mut(key) else {
            let payload = if is_small { copy_of(payload) } else { payload.share() };
            self.by_key.insert(key.into(), Publication { version, meta: meta.clone(), payload, link, call });
            return None;
        };
        if known.version > version {
            // The daemon refuses it.
            return None;
        }
        (known.version, known.link, known.call) = (version, link, call);
        if known.meta != *meta {
            known.meta = meta.clone();
        }
        match &mut known.payload {
            Payload::Owned(copy) if is_small && copy.len() == payload.len() => {
                copy.copy_from_slice(payload.as_ref());
                None
            }
            place if is_small => Some(std::mem::replace(place, copy_of(payload))),
            place => Some(std::mem::replace(place, payload.share())),
        }
    }

    /// Forgets a tensor that is withdrawn.
    pub(super) fn forget(&mut self, key: &str) -> Option<Memory> {
        self.by_key.remove(key).map(|publication| Memory::Source(publication.payload))
    }

    /// Forgets a tensor whose publication by that link was refused.
    pub(super) fn forget_refused(&mut self, link: u64, call: u32) -> Option<Memory> {
        let mut refused = self.by_key.extract_if(|_, known| (known.link, known.call) == (link, call));
        refused.next().map(|(_, publication)| Memory::Source(publication.payload))
    }

    /// The keys of what was not published by this link: locks of rows before rows, which nobody is to read without them, and what is
    /// large before what finds room anywhere.
    pub(super) fn stale(&self, link: u64) -> Vec<Box<str>> {
        let mut stale: Vec<_> = self.by_key.iter().filter(|(_, known)| known.link != link).collect();
        stale.sort_by_key(|(key, known)| (!key.ends_with(LOCKS_SUFFIX), std::cmp::Reverse(known.payload.len())));
        stale.into_iter().map(|(key, _)| key.clone()).collect()
    }

    /// What was not published by this link, if it is there.
    pub(super) fn get_stale(&self, link: u64, key: &str) -> Option<Stale> {
        let known = self.by_key.get(key).filter(|known| known.link != link)?;
        Some(Stale { version: known.version, meta: known.meta.clone(), payload: known.payload.share() })
    }

    /// A link was told what it had not been.
    pub(super) fn told(&mut self, key: &str, link: u64, call: u32) {
        if let Some(known) = self.by_key.get_mut(key) {
            (known.link, known.call) = (link, call);
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

/// The caller's own memory may change once the call has ended.
fn copy_of(payload: &Payload) -> Payload {
    Buffer::copy_of(payload.as_ref()).into()
}

impl Held<'_> {
    /// Keeps what was just published by that link, of which `call` is the call at the first shard.
    pub(super) fn keep_published(&mut self, key: &str, version: i64, tensor: (&TensorMeta, &Payload), of: (u64, u32)) {
        let State { published, aftermath, .. } = &mut **self;
        let replaced = published.keep((key, version), tensor, of);
        aftermath.spent.extend(replaced.map(Memory::Source));
        if self.published.thread.is_none()
            && let Some(attachment) = self.attachment.me.upgrade()
        {
            // Without a thread it is started by the next publication.
            let started = thread::Builder::new().name("sealane-publish".into()).spawn(move || attachment.republish());
            self.published.thread = started.ok().map(|started| started.thread().clone());
        }
    }

    /// Forgets what the daemon has refused.
    #[cold]
    pub(super) fn forget_refused(&mut self) {
        let State { line: super::Line::Up(link), published, calls, aftermath, .. } = &mut **self else { return };
        while let Some(call) = calls.take_refused() {
            aftermath.spent.extend(published.forget_refused(link.serial, call));
        }
    }
}

#[cfg(test)]
mod tests;
