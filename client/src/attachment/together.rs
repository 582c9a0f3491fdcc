//! Small sends and recvs of a call for many: as many as fit go in one record. Runs on the callers' threads, under the attachment's lock.

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
    submit::{With, is_small},
};
use crate::clock::Tick;

/// Calls with one peer that may share a record.
#[derive(Clone, Copy)]
struct Shared {
    with: Peer,
    step: i64,
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

impl Shared {
    fn submission(self, kind: Kind, calls: CallList<'_>) -> Submission<'_> {
        let Shared { with: Peer { number: peer, .. }, step, timeout_ms, .. } = self;
        match kind {
            Kind::Sends => Submission::SendMany { peer, step, timeout_ms, calls },
            Kind::Recvs { fail_if_gone } => Submission::RecvMany { peer, step, timeout_ms, calls, fail_if_gone },
        }
    }
}

impl Held<'_> {
    /// Sends the first of these tensors together, as many as are small and fit into a record; how many, of which `each` hears. None where
    /// each has to find its own way: by a lane, behind what waits, or to its error.
    pub(super) fn send_together<K: AsRef<str>>(
        &mut self,
        now: Tick,
        (to, step): (&str, i64),
        tensors: &[(K, Option<Tensor>)],
        timeout: Option<Duration>,
        each: &mut impl FnMut(Result<u32, Error>),
    ) -> usize {
        let Some(shared) = self.shared(now, (to, step), tensors.len(), timeout) else { return 0 };
        let small = tensors.iter().map_while(|(key, tensor)| {
            let tensor = tensor.as_ref().filter(|tensor| is_small(tensor))?;
            Some(SmallCall { call: 0, key: key.as_ref(), meta: tensor.meta().as_wire(), bytes: tensor.bytes() })
        });
        self.in_one_record(shared, Kind::Sends, small, |small, _, _| each(Ok(small.call)))
    }

    /// Asks for the first of these tensors together, as many as have the first one's options, no destination, and fit into a record; how
    /// many, of which `each` hears the numbers. None likewise.
    pub(super) fn recv_together<K: AsRef<str>>(
        &mut self,
        now: Tick,
        With { peer: from, step }: With<'_>,
        wanted: &[(K, RecvOptions)],
        mut each: impl FnMut(u32),
    ) -> usize {
        let Some((_, RecvOptions { timeout, fail_if_gone, .. })) = wanted.first() else { return 0 };
        if !self.calls.unclaimed().is_empty() {
            return 0;
        }
        let Some(shared) = self.shared(now, (from, step), wanted.len(), *timeout) else { return 0 };
        self.give_back_blocks();
        let alike = |options: &RecvOptions| {
            options.destination.is_none() && (options.timeout, options.fail_if_gone) == (*timeout, *fail_if_gone)
        };
        let alike = wanted.iter().take_while(|(_, options)| alike(options));
        let small = alike.map(|(key, _)| SmallCall { call: 0, key: key.as_ref(), meta: &[], bytes: &[] });
        let kind = Kind::Recvs { fail_if_gone: *fail_if_gone };
        self.in_one_record(shared, kind, small, |SmallCall { call, key, .. }, calls, after| {
            calls.asked(call, (from, step, key), false, after);
            each(call);
        })
    }

    /// What so many calls have in common that are made at `now`, if they may share a record.
    fn shared(
        &mut self,
        now: Tick,
        (name, step): (&str, i64),
        count: usize,
        timeout: Option<Duration>,
    ) -> Option<Shared> {
        if count < 2 {
            return None;
        }
        let (timeout_ms, deadline) = self.time(now, timeout).ok()?;
        let with = self.peer(name).ok()?;
        self.lane_of((with, name), now, count).is_none().then_some(Shared { with, step, timeout_ms, deadline })
    }

    /// Enters the first of these calls into the table, as many as fit into a record, and submits that; how many, each of which is `told`.
    fn in_one_record<'s>(
        &mut self,
        shared: Shared,
        kind: Kind,
        small: impl Iterator<Item = SmallCall<'s>>,
        mut told: impl FnMut(SmallCall<'_>, &mut Calls, &mut Aftermath),
    ) -> usize {
        let State { line: Line::Up(link), calls, aftermath, .. } = &mut **self else { return 0 };
        let (segment, direction) = (shared.with.segment, kind.direction());
        let mut list = std::mem::take(&mut link.together);
        for small in small {
            let Ok(call) = calls.open(direction, segment, shared.deadline, Memory::Nothing) else { break };
            if !list.push(SmallCall { call, ..small }) {
                calls.retract(call, aftermath);
                break;
            }
        }
        // A fault is met again by those that go one by one.
        let is_told =
            !list.is_empty() && matches!(link.try_submit(segment, &shared.submission(kind, list.as_list())), Ok(true));
        let count = if is_told { list.as_list().len() } else { 0 };
        for small in list.as_list().iter() {
            match is_told {
                true => told(small, calls, aftermath),
                false => drop(calls.retract(small.call, aftermath)),
            }
        }
        list.clear();
        link.together = list;
        count
    }
}
