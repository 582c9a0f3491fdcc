//! Sends and recvs of a batch: over the channel to their peer, or with as many small ones in one record of a ring as fit. Runs on the callers'
//! threads.

use std::{cell::OnceCell, sync::atomic::Ordering, time::Duration};

use sealane_transport::{
    Error, RecvOptions, SendOptions, Tensor, Unreceived,
    shm::{CallList, SmallCall, Submission, limits::CALLS_PER_SHARD_MAX},
};

use super::{
    Attachment, Held, Line, State,
    calls::Direction,
    direct::{ChannelRecv, ChannelSend},
    link::Peer,
    memory::Memory,
    placing::{is_inline, is_of_device, is_small, on_device},
    submit::{Begun, Purpose, To, With},
};
use crate::clock::Tick;

/// Calls with one peer that may share a record.
#[derive(Clone, Copy)]
struct Shared<'a> {
    peer: &'a str,
    with: Peer,
    step: i64,
    now: Tick,
    timeout_ms: u32,
    deadline: Tick,
}

#[derive(Clone, Copy)]
enum Kind {
    Sends,
    Recvs { fail_if_gone: bool },
}

impl Kind {
    fn direction(self) -> Direction {
        match self {
            Kind::Sends => Direction::Send,
            Kind::Recvs { .. } => Direction::Recv,
        }
    }
}

impl Shared<'_> {
    fn submission(self, kind: Kind, calls: CallList<'_>) -> Submission<'_> {
        let Shared { with: Peer { number: peer, .. }, step, timeout_ms, .. } = self;
        match kind {
            Kind::Sends => Submission::SendMany { peer, step, timeout_ms, calls },
            Kind::Recvs { fail_if_gone } => Submission::RecvMany { peer, step, timeout_ms, calls, fail_if_gone },
        }
    }
}

/// How far the tensors of a batch were placed: see [`Attachment::place`].
struct Placement {
    /// The first so many are small, or lie in the arena.
    placed: usize,
    /// The first one that was refused, which is gone, and why.
    refused: Option<(usize, Error)>,
}

impl Placement {
    /// Places the tensors behind the `small` ones by `place`; once more if the daemon was replaced, in the arena of the next. Nothing is
    /// copied behind one that has no room, or was refused: a full arena is not tried a thousand times.
    fn place<K>(
        &mut self,
        tensors: &mut [(K, Option<Tensor>)],
        small: usize,
        mut place: impl FnMut(&mut Option<Tensor>) -> Result<bool, Error>,
    ) {
        let end = self.refused.as_ref().map_or(tensors.len(), |(first, _)| *first);
        self.placed = small;
        for (_, tensor) in &mut tensors[small..end] {
            match place(tensor) {
                Ok(true) => self.placed += 1,
                Ok(false) => return,
                Err(error) => {
                    self.refused = Some((self.placed, error));
                    return;
                }
            }
        }
    }
}

/// How many of the first of these tensors travel in a ring.
fn small_ones<K>(tensors: &[(K, Option<Tensor>)]) -> usize {
    tensors.iter().take_while(|(_, tensor)| tensor.as_ref().is_some_and(is_inline)).count()
}

impl Attachment {
    /// Begins many sends or pushes; `each` is called for every one, in order.
    pub(crate) fn send_all<K: AsRef<str>>(
        &self,
        to: To<'_>,
        tensors: impl Iterator<Item = (K, Tensor)>,
        options: &SendOptions,
        mut each: impl FnMut(Result<Begun<ChannelSend>, Error>),
    ) {
        // The iterator is the caller's code, and runs before anything is locked.
        let mut tensors: Vec<(K, Option<Tensor>)> = tensors.map(|(key, tensor)| (key, Some(tensor))).collect();
        let channel = match to.purpose {
            Purpose::Send { step } => self.channel_to(to.peer).map(|channel| (channel, step)),
            Purpose::Push => None,
        };
        let Some((channel, step)) = channel else {
            return self.send_all_by_daemon(to, &mut tensors, options, |sent| each(sent.map(Begun::AtDaemon)));
        };
        let mut rest = &mut tensors[..];
        while !rest.is_empty() {
            let sent = channel.send_all(step, rest, options.timeout, |sent| each(sent.map(Begun::OverChannel)));
            rest = &mut rest[sent..];
            // Those that the channel does not take, up to the next one that it might.
            let is_large = |tensor: &(K, Option<Tensor>)| tensor.1.as_ref().is_some_and(|tensor| !is_inline(tensor));
            let large = rest.iter().take_while(|tensor| is_large(tensor)).count().max(usize::from(!rest.is_empty()));
            let (these, others) = rest.split_at_mut(large);
            if !these.is_empty() {
                self.send_all_by_daemon(to, these, options, |sent| each(sent.map(Begun::AtDaemon)));
            }
            rest = others;
        }
    }

    /// Submits many sends or pushes under one lock and rings once; `each` is called for every one, in order.
    fn send_all_by_daemon<K: AsRef<str>>(
        &self,
        to: To<'_>,
        tensors: &mut [(K, Option<Tensor>)],
        options: &SendOptions,
        mut each: impl FnMut(Result<u32, Error>),
    ) {
        let now = Tick::now();
        let mut small = small_ones(tensors);
        let mut placement = Placement { placed: small, refused: None };
        let mut held = loop {
            placement.place(tensors, small, |tensor| self.place(tensor, now, options.timeout));
            let held = match self.up(now, options.timeout) {
                Ok(held) => held,
                Err(error) => return tensors.iter().for_each(|_| each(Err(error.clone()))),
            };
            if tensors[small..placement.placed].iter().all(|(_, tensor)| held.reaches(tensor.as_ref())) {
                break held;
            }
        };
        if let Err(error) = held.check_list(to.peer, tensors.len()) {
            drop(held);
            return tensors.iter().for_each(|_| each(Err(error.clone())));
        }
        let Placement { placed, refused } = placement;
        let (mut next, mut may_share) = (0, true);
        while next < tensors.len() {
            if let (true, Purpose::Send { step }) = (may_share, to.purpose) {
                if next >= small {
                    small = next + small_ones(&tensors[next..]);
                }
                let together = &tensors[next..small];
                let sent = held.send_together(now, (to.peer, step), together, options.timeout, &mut each);
                may_share = sent.is_some();
                if let Some(sent @ 1..) = sent {
                    next += sent;
                    continue;
                }
            }
            let (key, tensor) = &mut tensors[next];
            each(match &refused {
                Some((first, error)) if next >= *first && !tensor.as_ref().is_some_and(is_small) => Err(error.clone()),
                // Tensors behind one without room were not looked at before.
                _ if next >= placed && tensor.as_ref().is_some_and(is_of_device) => Err(on_device()),
                _ => held.send(now, to, key.as_ref(), tensor, options.timeout),
            });
            next += 1;
        }
        held.submitted(tensors.len());
        drop(held);
    }

    /// Begins many recvs; `each` is called for every one, in order.
    pub(crate) fn recv_all<K: AsRef<str>>(
        &self,
        from: With<'_>,
        mut wanted: Vec<(K, RecvOptions)>,
        mut each: impl FnMut(Result<Begun<ChannelRecv>, Unreceived>),
    ) {
        let channel = self.channel_to(from.peer).filter(|_| !self.has_unclaimed.load(Ordering::Relaxed));
        if let Some(channel) = channel {
            let begun = channel.recv_all(from.step, &mut wanted, |recv| each(recv.map(Begun::OverChannel)));
            wanted.drain(..begun);
        }
        if !wanted.is_empty() {
            self.recv_all_by_daemon(from, wanted, |asked| each(asked.map(Begun::AtDaemon)));
        }
    }

    /// Submits many recvs under one lock and rings once; `each` is called for every one, in order.
    fn recv_all_by_daemon<K: AsRef<str>>(
        &self,
        from: With<'_>,
        mut wanted: Vec<(K, RecvOptions)>,
        mut each: impl FnMut(Result<u32, Unreceived>),
    ) {
        let now = Tick::now();
        // Deadlines differ: the longest is used for waiting, and calls whose deadline passes meanwhile end at once.
        let timeouts = wanted.iter().map(|(_, options)| options.timeout);
        let timeout = timeouts.max_by_key(|timeout| timeout.unwrap_or(Duration::MAX)).flatten();
        let arena = OnceCell::new();
        let arena = || arena.get_or_init(|| self.arena(now, timeout)).clone();
        // Before the lock is taken.
        let destinations = wanted.iter_mut().filter_map(|(_, options)| options.destination.as_mut());
        let memories = destinations.map(|destination| self.destination(Some(std::mem::take(destination)), arena));
        let mut memories = memories.collect::<Vec<_>>().into_iter();
        // Each taken destination was replaced by an empty buffer.
        let mut next_memory = |options: &RecvOptions| match options.destination {
            None => Ok(Memory::Nothing),
            Some(_) => memories.next().expect("each destination has its memory"),
        };
        let up = self.up(now, timeout).and_then(|mut held| {
            held.check_list(from.peer, wanted.len())?;
            Ok(held)
        });
        let mut held = match up {
            Ok(held) => held,
            Err(error) => {
                let refused = |memory: Memory| Unreceived::returning(error.clone(), memory.into_destination().0);
                return wanted
                    .iter()
                    .for_each(|(_, options)| each(Err(next_memory(options).map_or_else(|e| e, refused))));
            }
        };
        let (mut next, mut may_share) = (0, true);
        while let Some((key, options)) = wanted.get(next) {
            if may_share && options.destination.is_none() {
                let asked = held.recv_together(now, from, &wanted[next..], |asked| {
                    each(asked.map_err(|error| Unreceived::returning(error, None)));
                });
                may_share = asked.is_some();
                if let Some(asked @ 1..) = asked {
                    next += asked;
                    continue;
                }
            }
            each(next_memory(options).and_then(|mut memory| {
                let what = (key.as_ref(), true, options.fail_if_gone);
                let asked = held.recv(now, from, what, &mut memory, options.timeout);
                asked.map_err(|error| Unreceived::returning(error, memory.into_destination().0))
            }));
            next += 1;
        }
        held.submitted(wanted.len());
        // Keys are the caller's and are dropped like payloads, without the lock.
        drop(held);
    }
}

impl Held<'_> {
    /// Checks whether the shard that serves a peer takes `count` more calls. A list that exceeds its limit is refused as a whole: otherwise
    /// the daemon would refuse the rest of the list when the first calls have already taken effect.
    ///
    /// # Errors
    /// ResourceExhausted, and those of a peer that cannot be named.
    fn check_list(&mut self, peer: &str, count: usize) -> Result<(), Error> {
        // Usually fewer calls are in flight on all shards together.
        if count + self.calls.entered() <= CALLS_PER_SHARD_MAX {
            return Ok(());
        }
        let segment = self.peer(peer)?.segment;
        let open = self.calls.open_on(segment);
        if count + open <= CALLS_PER_SHARD_MAX {
            return Ok(());
        }
        let reason = format!(
            "this list has {count} calls, and {open} others of this task are in flight on one shard of the daemon, which takes \
             {CALLS_PER_SHARD_MAX}: none of the list was begun; divide it, and wait for some calls before making more"
        );
        Err(Error::full("client calls", reason))
    }

    /// Sends the first of these small tensors together, as many as find room; returns how many, and calls `each` for them. 0 if the
    /// first has to go by itself, `None` if all have to: past a channel, or into an error that each meets then.
    pub(super) fn send_together<K: AsRef<str>>(
        &mut self,
        now: Tick,
        (to, step): (&str, i64),
        tensors: &[(K, Option<Tensor>)],
        timeout: Option<Duration>,
        each: &mut impl FnMut(Result<u32, Error>),
    ) -> Option<usize> {
        if tensors.len() < 2 {
            return Some(0);
        }
        let small = tensors.iter().map_while(|(key, tensor)| Some((key.as_ref(), tensor.as_ref()?)));
        let shared = self.shared(now, (to, step), timeout)?;
        let calls = small.map(|(key, tensor)| {
            let (meta, bytes) = (tensor.meta().as_wire(), tensor.bytes());
            SmallCall { call: 0, key, meta, bytes }
        });
        Some(self.in_one_record(shared, Kind::Sends, calls, each))
    }

    /// Asks for the first of these tensors together, as many as share the first one's options, have no destination, and find room; returns
    /// how many, and calls `each` with their numbers. 0 and `None` as for sends.
    pub(super) fn recv_together<K: AsRef<str>>(
        &mut self,
        now: Tick,
        With { peer: from, step }: With<'_>,
        wanted: &[(K, RecvOptions)],
        each: impl FnMut(Result<u32, Error>),
    ) -> Option<usize> {
        // The next recv may want what came for one that was given up.
        let [(_, RecvOptions { timeout, fail_if_gone, .. }), _, ..] = wanted else { return Some(0) };
        if !self.calls.unclaimed().is_empty() {
            return Some(0);
        }
        let shared = self.shared(now, (from, step), *timeout)?;
        let alike = |options: &RecvOptions| {
            options.destination.is_none() && (options.timeout, options.fail_if_gone) == (*timeout, *fail_if_gone)
        };
        let keys = wanted.iter().take_while(|(_, options)| alike(options)).map(|(key, _)| key.as_ref());
        self.give_back_blocks();
        let calls = keys.map(|key| SmallCall { call: 0, key, meta: &[], bytes: &[] });
        let kind = Kind::Recvs { fail_if_gone: *fail_if_gone };
        Some(self.in_one_record(shared, kind, calls, each))
    }

    /// What calls made at `now` have in common, if they may share a record. Each meets an error again by itself.
    fn shared<'a>(&mut self, now: Tick, (peer, step): (&'a str, i64), timeout: Option<Duration>) -> Option<Shared<'a>> {
        let (timeout_ms, deadline) = self.time(now, timeout).ok()?;
        let with = self.peer(peer).ok()?;
        // A channel must know of each.
        self.channel(peer).is_none().then_some(Shared { peer, with, step, now, timeout_ms, deadline })
    }

    /// Enters the first of these calls into the table, as many as fit into a record, and submits that; returns how many, after calling
    /// `each` with their numbers. 0 if the ring or the table has no room for them.
    fn in_one_record<'s>(
        &mut self,
        shared: Shared<'_>,
        kind: Kind,
        small: impl Iterator<Item = SmallCall<'s>>,
        mut each: impl FnMut(Result<u32, Error>),
    ) -> usize {
        let State { line: Line::Up(link), calls, aftermath, .. } = &mut **self else { return 0 };
        let (segment, direction) = (shared.with.segment, kind.direction());
        if !link.segments[usize::from(segment)].waiting.is_empty() {
            return 0;
        }
        link.together.clear();
        // Keys and tensors run the caller's code: no call is entered meanwhile.
        for small in small {
            if !link.together.push(small) {
                break;
            }
        }
        let mut list = std::mem::take(&mut link.together);
        if !list.is_empty() && calls.have_room_for(list.as_list().len()) {
            calls.open_all(&mut list, direction, segment, shared.deadline);
            if matches!(link.try_submit(segment, &shared.submission(kind, list.as_list())), Ok(true)) {
                if let Kind::Recvs { .. } = kind {
                    calls.all_asked(list.as_list(), (shared.peer, shared.step), aftermath);
                }
                list.as_list().numbers().for_each(|call| each(Ok(call)));
            } else {
                // Calls that go one by one meet a fault again, and a shard that sleeps makes no room.
                calls.retract_all(list.as_list(), aftermath);
                list.clear();
                link.ring_shards();
            }
        } else {
            list.clear();
        }
        let count = list.as_list().len();
        match kind {
            _ if count == 0 => {}
            Kind::Sends => {
                let of = (shared.peer, count as u32, shared.now);
                self.sent_by_daemon(list.as_list().numbers(), of, (shared.step, ""));
            }
            Kind::Recvs { .. } => self.counts(shared.peer, shared.now, count),
        }
        if let Line::Up(link) = &mut self.line {
            link.together = list;
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_that_was_refused_is_not_placed_again_in_the_arena_of_the_next_daemon() {
        let tensor = |elements: usize| Tensor::from_elements(&[elements as u64], &vec![0_u8; elements]).unwrap();
        let mut tensors: Vec<_> = [1, 4096, 4096, 4096].map(|elements| ((), Some(tensor(elements)))).into();
        let small = small_ones(&tensors);
        let mut placement = Placement { placed: small, refused: None };
        // The third is refused, and the daemon is replaced before the lock is taken.
        let mut looked_at = 0;
        placement.place(&mut tensors, small, |tensor| {
            looked_at += 1;
            if looked_at == 1 {
                return Ok(true);
            }
            *tensor = None;
            Err(on_device())
        });
        for _ in 0..2 {
            let Placement { placed, refused: Some((refused, error)) } = &placement else { panic!("it was refused") };
            assert_eq!((small, *placed, *refused, error.code()), (1, 2, 2, on_device().code()));
            placement.place(&mut tensors, small, |tensor| {
                assert!(tensor.is_some(), "it is gone");
                Ok(true)
            });
        }
    }
}
