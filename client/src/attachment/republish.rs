//! The *republisher*: a thread that waits for the daemon's end, attaches again, and publishes what the task had published. A program that
//! has published and does nothing more need not notice. One per attachment, started by the first publication; it ends with the
//! attachment. What lies in the former daemon's arena is [brought](super::moving) into the new one; if there is no room, this is
//! retried every `REPUBLISH_INTERVAL`.
//!
//! It becomes visible in sets, each as large as a shard makes visible at once; what the program publishes meanwhile comes
//! before such a set, which is then without it, or after it.

use std::thread;

use sealane_transport::{
    Code, Error,
    shm::{
        Moved, Submission,
        limits::{INLINE_BYTES_MAX, PUBLISHED_TOGETHER_MAX},
    },
};

use super::{Attachment, Calls, Held, Line, Link, State, memory::Memory, published::Stale, submit::down};
use crate::{
    clock::Tick,
    limits::{NO_LIMIT, REATTACH_INTERVAL, REATTACH_PAUSE_MAX, REPUBLISH_INTERVAL},
};

/// The result of publishing again.
#[derive(Default)]
struct Told {
    /// By call at the first shard: its publication, and its bytes.
    calls: Vec<(u32, u64, u64)>,
    copied_bytes: u64,
    /// What was not published.
    left: Moved,
    /// Some of that had no room, which may become free.
    without_room: bool,
}

impl Told {
    fn leave(&mut self, bytes: u64) {
        (self.left.tensors, self.left.bytes) = (self.left.tensors + 1, self.left.bytes + bytes);
    }
}

impl Attachment {
    /// Runs the republisher.
    pub(super) fn republish(&self) {
        let (mut pause, mut tried) = (REATTACH_INTERVAL, None);
        loop {
            let held = self.lock();
            let (serial, ear, draining) = match &held.line {
                Line::Up(link) => (link.serial, link.ear.clone(), link.draining),
                Line::Ended(_) => return,
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
            let done =
                draining || self.publish_again(serial, is_first) && !self.lock().published.awaits_answers(serial);
            if ear.wait_for_end(if done { NO_LIMIT } else { REPUBLISH_INTERVAL }) {
                let mut held = self.lock();
                if matches!(&held.line, Line::Up(link) if link.serial == serial) {
                    held.hung_up();
                }
            }
        }
    }

    /// Publishes over that link what it does not have; false if it is to be tried again.
    fn publish_again(&self, serial: u64, is_first: bool) -> bool {
        let stale = self.lock().published.stale(serial);
        if stale.is_empty() {
            return true;
        }
        let mut told = Told::default();
        let all_told = self.bring_within_reach(serial, &stale, &mut told).and_then(|keys| {
            let mut sets = keys.chunks(PUBLISHED_TOGETHER_MAX);
            sets.try_for_each(|keys| self.in_turn().publish_together(serial, keys, &mut told))
        });
        let Told { calls, copied_bytes, mut left, without_room } = told;
        if all_told.is_err() {
            // Another link is told instead, or this one again.
            calls.iter().for_each(|(call, ..)| self.forsake(*call, false));
            return false;
        }
        let (mut published, mut refused, mut outcomes) = (Moved::default(), Vec::new(), Vec::new());
        let numbers: Vec<u32> = calls.iter().map(|(call, ..)| *call).collect();
        let waited =
            self.wait_all(&numbers, Calls::take_all_sent, (Calls::take_sent, |outcome| outcome), &mut outcomes);
        for (&(_, number, bytes), outcome) in calls.iter().zip(outcomes) {
            let sum = if outcome.is_ok() { &mut published } else { &mut left };
            (sum.tensors, sum.bytes) = (sum.tensors + 1, sum.bytes + bytes);
            refused.extend(outcome.err().filter(|error| error.code() != Code::Unavailable).map(|_| number));
        }
        let mut held = self.lock();
        let State { line, published: all, aftermath, .. } = &mut *held;
        refused.iter().for_each(|number| aftermath.spent.extend(all.forget_refused(*number)));
        if let (Line::Up(link), Ok(())) = (line, waited)
            && link.serial == serial
            && (is_first || published.tensors > 0)
        {
            // These figures are not worth waiting for room.
            let _ = link.submit(0, &Submission::PublishedAgain { published, copied_bytes, left });
            held.submitted(1);
        }
        !without_room
    }

    /// Brings what lies in another arena into that of the link; returns the keys that can be published then.
    ///
    /// # Errors
    /// The link is not the current one any more.
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
            } else if let Some(copied) = self.bring(&arena, key, &payload) {
                told.copied_bytes += copied;
                within_reach.push(&**key);
            } else {
                told.leave(bytes);
                told.without_room = true;
            }
        }
        Ok(within_reach)
    }
}

impl Held<'_> {
    /// The link, if it is still that one and takes calls.
    fn check_link(&self, serial: u64) -> Result<&Link, Error> {
        match &self.line {
            Line::Up(link) if link.serial == serial && !link.draining => Ok(link),
            Line::Up(link) => Err(Error::unavailable(&link.daemon, "it is another one, or drains")),
            line => Err(down(line)),
        }
    }

    /// Publishes at all shards those of these that the link does not have, in turn, so that each makes them visible together: pulls do not
    /// find some of them and then something newer of the rest.
    fn publish_together(&mut self, serial: u64, keys: &[&str], told: &mut Told) -> Result<(), Error> {
        let stale = |key: &&str| Some((*key).to_owned()).zip(self.published.get_stale(serial, key));
        let batch: Vec<(String, Stale)> = keys.iter().filter_map(stale).collect();
        let (_, deadline) = self.time(Tick::now(), None)?;
        let segments = self.check_link(serial)?.segments();
        let mut whole = Ok(());
        for segment in 0..segments {
            let set = batch.iter().map(|(key, Stale { version, meta, payload, .. })| (&**key, *version, meta, payload));
            let mut calls = Vec::with_capacity(batch.len());
            self.tell_set((serial, segment), deadline, set, |_held, call| match call {
                Ok(call) => calls.push(call),
                Err(error) => whole = Err(error),
            });
            if segment == 0 {
                let of = batch.iter().map(|(_, stale)| (stale.number, stale.payload.len() as u64));
                told.calls.extend(calls.into_iter().zip(of).map(|(call, (number, bytes))| (call, number, bytes)));
            } else {
                let State { calls: all, aftermath, .. } = &mut **self;
                for call in calls {
                    let _told_alike = all.forsake(call, false, aftermath);
                }
            }
            whole.clone()?;
        }
        batch.iter().for_each(|(key, _)| self.published.told(key, serial));
        self.submitted(batch.len() * usize::from(segments));
        self.aftermath.spent.extend(batch.into_iter().map(|(_, stale)| Memory::Source(stale.payload)));
        Ok(())
    }
}
