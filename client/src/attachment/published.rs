//! What this task has published: kept, so that it is published again when another daemon takes the place of the one that has it. Under
//! the attachment's lock; bounded by what a daemon lets a task publish, for what it refuses is not kept. Small tensors are copies,
//! larger ones stay in the arena, where the daemon reads them anyway.
//!
//! A thread, the *republisher*, waits for the daemon's end, attaches again, and publishes: a program that has published and does
//! nothing more need not notice. One per attachment, started by the first publication; it ends with the attachment. What lies in the
//! arena of the daemon before is copied into the new one; where there is no room, it is tried again every `REPUBLISH_INTERVAL`.
//!
//! All of it becomes visible together, as the last of it did. A version never goes back: what is published again is the newest that was
//! asked for, even if the daemon was lost before it had answered, and whatever the program publishes meanwhile takes its place.

use std::{
    sync::Arc,
    thread::{self, Thread},
};

use hashbrown::HashMap;
use sealane_runtime::Buffer;
use sealane_transport::{
    Code, Error, Payload, TensorMeta,
    shm::{Moved, Submission, limits::INLINE_BYTES_MAX},
};

use super::{Attachment, Calls, Held, Line, Link, State, driver::Resume, memory::Memory, submit::down};
use crate::{
    clock::Tick,
    limits::{NO_LIMIT, REATTACH_INTERVAL, REATTACH_PAUSE_MAX, REPUBLISH_INTERVAL},
    memory::Arena,
};

/// See the module.
#[derive(Default)]
pub(super) struct Published {
    by_key: HashMap<Box<str>, Publication>,
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
struct Stale {
    version: i64,
    meta: TensorMeta,
    payload: Payload,
}

/// What came of publishing again.
#[derive(Default)]
struct Told {
    /// At the first shard, and how many bytes each has.
    calls: Vec<(u32, u64)>,
    copied_bytes: u64,
    /// Those that were not told.
    left: Moved,
    /// Of these, some had no room, which may come.
    without_room: bool,
}

impl Told {
    fn leave(&mut self, bytes: u64) {
        (self.left.tensors, self.left.bytes) = (self.left.tensors + 1, self.left.bytes + bytes);
    }
}

impl Published {
    /// Keeps what was just told to the daemon; the memory that this takes the place of is not to be dropped under the lock.
    fn keep(
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
    fn forget_refused(&mut self, link: u64, call: u32) -> Option<Memory> {
        let mut refused = self.by_key.extract_if(|_, known| (known.link, known.call) == (link, call));
        refused.next().map(|(_, publication)| Memory::Source(publication.payload))
    }

    /// The keys of what was not published by this link.
    fn stale(&self, link: u64) -> Vec<Box<str>> {
        self.by_key.iter().filter(|(_, known)| known.link != link).map(|(key, _)| key.clone()).collect()
    }

    /// What was not published by this link, if it is there.
    fn get_stale(&self, link: u64, key: &str) -> Option<Stale> {
        let known = self.by_key.get(key).filter(|known| known.link != link)?;
        Some(Stale { version: known.version, meta: known.meta.clone(), payload: known.payload.share() })
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

impl Attachment {
    /// The republisher.
    fn republish(&self) {
        let (mut pause, mut tried) = (REATTACH_INTERVAL, None);
        loop {
            let held = self.lock();
            let (serial, ear, draining) = match &held.line {
                Line::Up(link) => (link.serial, link.ear.clone(), link.draining),
                Line::Closed => return,
                Line::Lost(_) => {
                    let interval = if held.awaits_restart() { REATTACH_INTERVAL } else { pause };
                    drop(held);
                    if self.attach_by(false).is_err() {
                        thread::park_timeout(interval);
                        pause = (2 * pause).min(REATTACH_PAUSE_MAX);
                    }
                    continue;
                }
            };
            drop(held);
            pause = REATTACH_INTERVAL;
            let is_first = tried.replace(serial) != Some(serial);
            let done = draining || self.publish_again(serial, is_first);
            if ear.wait_for_end(if done { NO_LIMIT } else { REPUBLISH_INTERVAL }) {
                let mut held = self.lock();
                if matches!(&held.line, Line::Up(link) if link.serial == serial) {
                    held.hung_up();
                }
            }
        }
    }

    /// Publishes by that link what it has not got; false if it is to be tried again.
    fn publish_again(&self, serial: u64, is_first: bool) -> bool {
        let stale = self.lock().published.stale(serial);
        if stale.is_empty() {
            return true;
        }
        let mut told = Told::default();
        let all_told = self.bring_within_reach(serial, &stale, &mut told).and_then(|keys| {
            let mut held = self.lock();
            held.check_link(serial)?;
            held.publish_together(serial, &keys, &mut told)
        });
        let Told { calls, copied_bytes, mut left, without_room } = told;
        if all_told.is_err() {
            // Another link is told instead, or this one again.
            calls.iter().for_each(|(call, _)| self.forsake(*call, false));
            return false;
        }
        let (mut published, mut refused, mut of) = (Moved::default(), Vec::new(), calls.iter());
        let waited = self.wait_all(calls.iter().map(|(call, _)| *call), Calls::take_sent, |outcome| {
            let Some(&(call, bytes)) = of.next() else { return };
            let sum = if outcome.is_ok() { &mut published } else { &mut left };
            (sum.tensors, sum.bytes) = (sum.tensors + 1, sum.bytes + bytes);
            refused.extend(outcome.err().filter(|error| error.code() != Code::Unavailable).map(|_| call));
        });
        let mut held = self.lock();
        let State { line, published: all, aftermath, .. } = &mut *held;
        refused.iter().for_each(|call| aftermath.spent.extend(all.forget_refused(serial, *call)));
        if let (Line::Up(link), Ok(())) = (line, waited)
            && link.serial == serial
            && (is_first || published.tensors > 0)
        {
            // Figures are not worth waiting for room.
            let _ = link.submit(0, &Submission::PublishedAgain { published, copied_bytes, left });
            held.submitted(1);
        }
        !without_room
    }

    /// Copies what lies in another arena into that of the link; the keys of what it can be told then.
    ///
    /// # Errors
    /// It is not the link any more.
    fn bring_within_reach<'k>(
        &self,
        serial: u64,
        keys: &'k [Box<str>],
        told: &mut Told,
    ) -> Result<Vec<&'k str>, Error> {
        let mut within_reach = Vec::with_capacity(keys.len());
        for key in keys {
            let (arena, bytes_max, stale) = {
                let held = self.lock();
                let link = held.check_link(serial)?;
                (link.arena.clone(), link.tensor_bytes_max, held.published.get_stale(serial, key))
            };
            let Some(Stale { payload, .. }) = stale else { continue };
            let bytes = payload.len() as u64;
            if bytes > bytes_max {
                told.leave(bytes);
            } else if payload.len() <= INLINE_BYTES_MAX || arena.span_of(payload.as_ref()).is_some() {
                within_reach.push(&**key);
            } else if let Some(copy) = self.copy_into(&arena, &payload) {
                told.copied_bytes += bytes;
                within_reach.push(&**key);
                let mut held = self.lock();
                let State { published, aftermath, .. } = &mut *held;
                // The program may have published meanwhile.
                let same = published
                    .by_key
                    .get_mut(&**key)
                    .filter(|known| std::ptr::eq(known.payload.as_ref(), payload.as_ref()));
                let replaced = same.map_or(copy.share(), |known| std::mem::replace(&mut known.payload, copy.share()));
                aftermath.spent.push(Memory::Source(replaced));
            } else {
                told.leave(bytes);
                told.without_room = true;
            }
        }
        Ok(within_reach)
    }

    /// The same bytes in another arena, if that has room.
    fn copy_into(&self, arena: &Arc<Arena>, payload: &Payload) -> Option<Payload> {
        let room = arena.allocate(payload.len());
        let mut copy = room.or_else(|| {
            // What the daemon is done with may still be waiting in the rings.
            self.lock().pump();
            arena.allocate(payload.len())
        })?;
        // Rows of a table may be written at this moment.
        copy.volatile_mut().copy_from(payload.volatile());
        Some(Payload::from(copy).into_shared())
    }
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
        let State { line: Line::Up(link), published, calls, aftermath, .. } = &mut **self else { return };
        while let Some(call) = calls.take_refused() {
            aftermath.spent.extend(published.forget_refused(link.serial, call));
        }
    }

    /// The link, if it is that one and takes calls.
    fn check_link(&self, serial: u64) -> Result<&Link, Error> {
        match &self.line {
            Line::Up(link) if link.serial == serial && !link.draining => Ok(link),
            Line::Up(link) => Err(Error::unavailable(&link.daemon, "it is another one, or drains")),
            line => Err(down(line)),
        }
    }

    /// Tells all shards what the link was not told of these, so that each makes it visible together: whoever pulls does not find some
    /// of it and then something newer of the rest.
    fn publish_together(&mut self, serial: u64, keys: &[&str], told: &mut Told) -> Result<(), Error> {
        let stale = |key: &&str| Some((*key).to_owned()).zip(self.published.get_stale(serial, key));
        let batch: Vec<(String, Stale)> = keys.iter().filter_map(stale).collect();
        let (_, deadline) = self.time(Tick::now(), None)?;
        let segments = self.link().segments();
        for segment in 0..segments {
            for (at, (key, Stale { version, meta, payload })) in batch.iter().enumerate() {
                let more = at + 1 < batch.len();
                self.check_link(serial)?;
                let call = self.publish(segment, deadline, (key, *version, more), meta, payload)?;
                let State { calls, aftermath, .. } = &mut **self;
                match segment {
                    0 => told.calls.push((call, payload.len() as u64)),
                    _ => drop(calls.forsake(call, false, aftermath)),
                }
            }
        }
        for ((key, stale), (call, _)) in batch.iter().zip(&told.calls) {
            // While this waited for room in a ring, the program may have published.
            let same = |known: &&mut Publication| known.link != serial && known.version == stale.version;
            if let Some(known) = self.published.by_key.get_mut(&**key).filter(same) {
                (known.link, known.call) = (serial, *call);
            }
        }
        self.submitted(batch.len() * usize::from(segments));
        self.aftermath.spent.extend(batch.into_iter().map(|(_, stale)| Memory::Source(stale.payload)));
        Ok(())
    }
}
