//! Small sends and recvs of a batch, with as many in one record as fit. Runs on the callers' threads, under the attachment's lock.

use std::time::Duration;

use sealane_transport::{
    Error, RecvOptions, Tensor,
    shm::{CallList, SmallCall, Submission},
};

use super::{
    Held, Line, State,
    aftermath::Aftermath,
    calls::{Calls, Direction},
    link::Peer,
    memory::Memory,
    submit::{With, is_of_device, is_small},
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

impl Held<'_> {
    /// Sends the first of these tensors together, as many as are small and fit into a record; returns how many, and calls `each` for
    /// them. 0 if the first has to go by itself, `None` if all have to: over a lane, or into an error that each meets then.
    pub(super) fn send_together<K: AsRef<str>>(
        &mut self,
        now: Tick,
        (to, step): (&str, i64),
        tensors: &[(K, Option<Tensor>)],
        timeout: Option<Duration>,
        each: &mut impl FnMut(Result<u32, Error>),
    ) -> Option<usize> {
        let travels = |tensor: &&Tensor| is_small(tensor) && !is_of_device(tensor);
        if tensors.len() < 2 || tensors[0].1.as_ref().filter(travels).is_none() {
            return Some(0);
        }
        let shared = self.shared(now, (to, step), timeout)?;
        let calls = tensors.iter().map_while(|(key, tensor)| {
            let tensor = tensor.as_ref().filter(travels)?;
            Some(SmallCall { call: 0, key: key.as_ref(), meta: tensor.meta().as_wire(), bytes: tensor.bytes() })
        });
        Some(self.in_one_record(shared, Kind::Sends, calls, |call, _, _| each(Ok(call.call))))
    }

    /// Asks for the first of these tensors together, as many as share the first one's options, have no destination, and fit into a record;
    /// returns how many, and calls `each` with their numbers. 0 and `None` as for sends.
    pub(super) fn recv_together<K: AsRef<str>>(
        &mut self,
        now: Tick,
        With { peer: from, step }: With<'_>,
        wanted: &[(K, RecvOptions)],
        mut each: impl FnMut(u32),
    ) -> Option<usize> {
        // The next recv may want what came for one that was given up.
        let [(_, RecvOptions { timeout, fail_if_gone, .. }), _, ..] = wanted else { return Some(0) };
        if !self.calls.unclaimed().is_empty() {
            return Some(0);
        }
        let shared = self.shared(now, (from, step), *timeout)?;
        self.give_back_blocks();
        let alike = |options: &RecvOptions| {
            options.destination.is_none() && (options.timeout, options.fail_if_gone) == (*timeout, *fail_if_gone)
        };
        let alike = wanted.iter().take_while(|(_, options)| alike(options));
        let calls = alike.map(|(key, _)| SmallCall { call: 0, key: key.as_ref(), meta: &[], bytes: &[] });
        let kind = Kind::Recvs { fail_if_gone: *fail_if_gone };
        Some(self.in_one_record(shared, kind, calls, |SmallCall { call, key, .. }, calls, after| {
            calls.asked(call, (from, step, key), false, after);
            each(call);
        }))
    }

    /// What calls made at `now` have in common, if they may share a record. Each meets an error again by itself.
    fn shared<'a>(&mut self, now: Tick, (peer, step): (&'a str, i64), timeout: Option<Duration>) -> Option<Shared<'a>> {
        let (timeout_ms, deadline) = self.time(now, timeout).ok()?;
        let with = self.peer(peer).ok()?;
        // Tensors are counted once their number is known.
        let has_lane = self.lane_of((with, peer), now, 0).is_some();
        (!has_lane).then_some(Shared { peer, with, step, now, timeout_ms, deadline })
    }

    /// Enters the first of these calls into the table, as many as fit into a record, and submits that; returns how many, after calling
    /// `told` for each. 0 if the ring or the table has no room for them.
    fn in_one_record<'s>(
        &mut self,
        shared: Shared<'_>,
        kind: Kind,
        small: impl Iterator<Item = SmallCall<'s>>,
        mut told: impl FnMut(SmallCall<'_>, &mut Calls, &mut Aftermath),
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
            list.number(|| {
                let opened = calls.open(direction, segment, shared.deadline, Memory::Nothing);
                opened.unwrap_or_else(|_| unreachable!("there is room"))
            });
            if matches!(link.try_submit(segment, &shared.submission(kind, list.as_list())), Ok(true)) {
                list.as_list().iter().for_each(|small| told(small, calls, aftermath));
            } else {
                // Calls that go one by one meet a fault again, and a shard that sleeps makes no room.
                list.as_list().iter().for_each(|small| drop(calls.retract(small.call, aftermath)));
                list.clear();
                link.ring_shards();
            }
        } else {
            list.clear();
        }
        let count = list.as_list().len();
        link.together = list;
        if count > 0 {
            self.lane_of((shared.with, shared.peer), shared.now, count);
        }
        count
    }
}
