//! Publishing and withdrawing: tells every shard, and keeps what the task has published. Runs on the callers' threads, and on the
//! republisher's.
//!
//! Only one set of tensors, or one withdrawal, is sent to the shards at a time: whoever tells the shards has the *turn*, from the
//! moment that it looks at what is published until every shard was told and that is noted. So all shards hear of keys in the same
//! order, and of each set without another in between; what is published again is always the newest, and never something that was
//! withdrawn. The attachment's lock would not do: it is released whenever a ring is full.

use std::sync::PoisonError;

use sealane_transport::{
    Error, Payload, Tensor, TensorMeta,
    shm::{NO_TIMEOUT, PayloadAt, Submission, limits::INLINE_BYTES_MAX},
};

use super::{
    Attachment, Held, Line, State,
    calls::Direction,
    memory::Memory,
    placing::{is_small, too_large},
    submit::down,
};
use crate::clock::Tick;

/// Where the tensors of a set lie when it is published.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lying {
    /// Anywhere: large ones are copied into the arena unless they lie there.
    Anywhere,
    /// Large ones in the arena, where their owner keeps writing them: a copy would be another tensor.
    InArena,
}

/// One tensor of a set, as shards are told.
pub(super) type InSet<'a> = (&'a str, i64, &'a TensorMeta, &'a Payload);

impl Attachment {
    /// The state, with the turn. The wait is short: a turn takes at most a second for the first record that finds no room in a ring, and
    /// not a second one after that.
    pub(super) fn in_turn(&self) -> Held<'_> {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut held = self.lock();
        held.extra().turn = Some(turn);
        held
    }

    /// [`in_turn`](Self::in_turn), with a link that takes calls, as [`up`](Self::up). A daemon is waited for before the turn.
    fn up_in_turn(&self) -> Result<Held<'_>, Error> {
        loop {
            drop(self.up(Tick::now(), None)?);
            let held = self.in_turn();
            if held.takes_calls() {
                return Ok(held);
            }
        }
    }

    /// Publishes at every shard; `each` is called for every call, or for a tensor that has none.
    pub(crate) fn publish_all<K: AsRef<str>>(
        &self,
        version: i64,
        (tensors, lying): (Vec<(K, Tensor)>, Lying),
        mut each: impl FnMut(Result<u32, Error>),
    ) {
        let (placed, refusal) = self.place_all(tensors, lying);
        let told = self.up_in_turn().and_then(|mut held| held.publish_set(version, &placed, &mut each));
        for error in refusal.into_iter().chain(told.err()) {
            each(Err(error));
        }
    }

    /// The tensors that lie where the daemon reads them, each to be lent to every shard; and why the others do not.
    fn place_all<K>(&self, tensors: Vec<(K, Tensor)>, lying: Lying) -> (Vec<(K, TensorMeta, Payload)>, Option<Error>) {
        // Nothing is copied behind a tensor that had no room, as in `send_all`.
        let mut refusal = None;
        let mut placed = Vec::with_capacity(tensors.len());
        for (key, tensor) in tensors {
            let mut tensor = Some(tensor);
            if lying == Lying::Anywhere && (refusal.is_none() || tensor.as_ref().is_some_and(is_small)) {
                refusal = match self.place(&mut tensor, Tick::now(), None) {
                    Ok(true) => refusal,
                    // A new version may have to wait for memory that becomes free only when it is published.
                    Ok(false) => tensor.take().map(|tensor| self.no_room(tensor.bytes().len())),
                    Err(error) => Some(error),
                }
            }
            placed.extend(tensor.filter(|tensor| is_small(tensor) || refusal.is_none()).map(|tensor| {
                // Every shard is lent the same bytes; they are free when the last has returned them.
                let (meta, payload) = tensor.into_parts();
                (key, meta, payload.into_shared())
            }));
        }
        (placed, refusal)
    }

    /// Tells every shard to remove a tensor. It is not published again, whether or not there is a daemon to hear it.
    pub(crate) fn withdraw(&self, key: &str) -> Result<(), Error> {
        self.check_fork()?;
        let (mut held, in_vain) = match self.up_in_turn() {
            Ok(held) => (held, None),
            Err(error) => (self.in_turn(), Some(error)),
        };
        let State { published, aftermath, .. } = &mut *held;
        published.forget(key, &mut aftermath.spent);
        if !matches!(held.line, Line::Up(_)) {
            return Err(in_vain.unwrap_or_else(|| down(&held.line)));
        }
        // Also to a daemon that drains, or has come meanwhile and may have heard of the tensor.
        held.tell_all(&Submission::Withdraw { key })
    }
}

impl Held<'_> {
    fn publish_set<K: AsRef<str>>(
        &mut self,
        version: i64,
        set: &[(K, TensorMeta, Payload)],
        each: &mut impl FnMut(Result<u32, Error>),
    ) -> Result<(), Error> {
        let (_, deadline) = self.time(Tick::now(), None)?;
        let (serial, segments) = (self.link().serial, self.link().segments());
        self.start_republisher();
        self.published.begin_set();
        for segment in 0..segments {
            let all = || set.iter().map(|(key, meta, payload)| (key.as_ref(), version, meta, payload));
            let mut rest = all();
            self.tell_set((serial, segment), deadline, all(), |held, call| {
                // At once, before anybody looks at the answers.
                if let (Some(tensor), 0, Ok(call)) = (rest.next(), segment, &call) {
                    held.published.ask(tensor, (serial, *call));
                }
                each(call);
            });
            // Later shards are told only what the first may have shown by then, however the link ends.
            self.published.end_set();
        }
        self.submitted(set.len() * usize::from(segments));
        Ok(())
    }

    /// Tells one shard of a link of tensors that it is to make visible together; `each` is called for every one, in order.
    /// If the last finds no room or is refused, those before it become visible anyway.
    pub(super) fn tell_set<'t>(
        &mut self,
        (serial, segment): (u64, u16),
        deadline: Tick,
        set: impl ExactSizeIterator<Item = InSet<'t>>,
        mut each: impl FnMut(&mut Self, Result<u32, Error>),
    ) {
        let last = set.len().wrapping_sub(1);
        let mut is_open = self.take_uncommitted(segment);
        for (at, tensor) in set.enumerate() {
            let told = match self.is_link(serial) {
                true => self.publish(segment, deadline, (tensor, at < last)),
                false => Err(self.lost_in_transit()),
            };
            if told.is_ok() {
                is_open = at < last;
            }
            each(self, told);
        }
        if is_open && self.is_link(serial) {
            self.commit(segment);
        }
    }

    /// Submits a publication to one shard; `more` follow that are to become visible with it.
    fn publish(
        &mut self,
        segment: u16,
        deadline: Tick,
        ((key, version, meta, payload), more): (InSet<'_>, bool),
    ) -> Result<u32, Error> {
        if let Line::Up(link) = &self.line
            && payload.len() as u64 > link.tensor_bytes_max
        {
            return Err(too_large(payload.len() as u64, link.tensor_bytes_max));
        }
        let meta = meta.as_wire();
        let inline = PayloadAt::Inline(payload.as_ref());
        let (memory, payload) = if payload.len() <= INLINE_BYTES_MAX {
            (Memory::Nothing, inline)
        } else {
            let memory = Memory::Source(payload.share());
            let span = self.span(&memory)?;
            (memory, PayloadAt::Arena(span.unwrap_or_default()))
        };
        let published = self.enter(Direction::Publish, segment, deadline, memory, |call| {
            (NO_TIMEOUT, Submission::Publish { call, version, key, meta, payload, more })
        });
        published.map_err(|(error, memory)| {
            self.aftermath.spent.push(memory);
            error
        })
    }

    /// True if that link is still the current one.
    pub(super) fn is_link(&self, serial: u64) -> bool {
        matches!(&self.line, Line::Up(link) if link.serial == serial)
    }

    fn lost_in_transit(&self) -> Error {
        match &self.line {
            Line::Up(link) => Error::unavailable(&link.daemon, "it was lost while tensors were published"),
            line => down(line),
        }
    }

    /// Tells a shard that a set is complete; if its ring has no room, as soon as there is some.
    fn commit(&mut self, segment: u16) {
        let Line::Up(link) = &mut self.line else { return };
        link.commit(segment);
        if let Err(fault) = link.flush() {
            self.lose(&fault);
        }
    }

    /// True if a shard was not told yet where the set before ends: then it ends with the next one.
    fn take_uncommitted(&mut self, segment: u16) -> bool {
        let Line::Up(link) = &mut self.line else { return false };
        link.take_uncommitted(segment)
    }
}
