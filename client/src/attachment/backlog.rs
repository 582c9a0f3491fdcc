//! Calls that wait in this process: for room in a ring, as records in order of arrival, and for room in the arena, as tensors.
//! Under the attachment's lock; bounded by [`Backlog`], and by `BACKLOG_ORDERS_MAX` for records that are not calls. Calls made
//! [at once](super::at_once) wait here for room in a ring whether or not other calls do; bounded by the table of calls.
//!
//! Nothing signals that a daemon has read, or that memory was freed: every thread that polls the rings also forwards waiting
//! calls, and the driver polls while there are any.

use std::{collections::VecDeque, ops::Range, sync::atomic::Ordering, time::Duration};

use sealane_runtime::{Buffer, copy_bytes};
use sealane_transport::{
    Error, Operation, Payload, Tensor, TensorMeta,
    shm::{NO_TIMEOUT, PayloadAt, Record, Submission, limits::INLINE_BYTES_MAX},
};

use super::{
    Attachment, Held, Line, State,
    aftermath::{Aftermath, survive},
    calls::Calls,
    link::{Link, Peer, Unsubmitted},
    loss::is_at_once,
    memory::Memory,
    placing::{is_small, too_large},
    submit::{Purpose, table_full},
};
use crate::{
    attach::Backlog,
    clock::{Tick, timeout_ms},
    limits::{BACKLOG_ORDERS_MAX, ROOM_LOOK, ROOM_LOOK_MAX},
};

/// Where a submission went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Ring,
    /// It waits in this process.
    Backlog,
}

/// The calls of one attachment that wait in this process.
#[derive(Default)]
pub(super) struct Waiting {
    bounds: Option<Backlog>,
    /// Number of waiting records and tensors, and their bytes.
    count: usize,
    bytes: u64,
    /// Tensors for which the arena has no room, and pushes behind them.
    unplaced: VecDeque<Unplaced>,
    /// The one that is being copied.
    placing: Option<(u32, Purpose)>,
    /// The driver knows that calls wait.
    attended: bool,
    look: Duration,
}

pub(super) struct Stored {
    kind: u8,
    content: Box<[u64]>,
}

struct Unplaced {
    call: u32,
    peer: Peer,
    purpose: Purpose,
    name: Box<str>,
    timeout_ms: u32,
    meta: TensorMeta,
    payload: Payload,
}

impl Stored {
    pub(super) fn of(record: &Record) -> Stored {
        Stored { kind: record.kind(), content: record.content().into() }
    }

    pub(super) fn load(&self, into: &mut Record) {
        into.set(self.kind, &self.content);
    }

    /// The bytes for which it counts.
    fn bytes(&self) -> u64 {
        (size_of::<Stored>() + size_of_val(&*self.content)) as u64
    }
}

impl Unplaced {
    fn bytes(&self) -> u64 {
        (size_of::<Unplaced>() + self.name.len() + self.payload.len()) as u64
    }
}

impl Waiting {
    pub(super) fn new(bounds: Option<Backlog>) -> Self {
        Self { bounds, look: ROOM_LOOK, ..Self::default() }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// True if tensors wait for the arena: what must not overtake them waits behind them.
    #[inline]
    pub(super) fn has_unplaced(&self) -> bool {
        !self.unplaced.is_empty() || self.placing.is_some()
    }

    /// Counts a record or tensor that is to wait.
    ///
    /// # Errors
    /// `Full` if calls do not wait here, ResourceExhausted if it is one too many.
    fn admit(&mut self, is_call: bool, bytes: u64) -> Result<(), Unsubmitted> {
        let Some(bounds) = self.bounds else { return Err(Unsubmitted::Full) };
        if is_call {
            self.room_for(bounds, 1, bytes).map_err(Unsubmitted::Refused)?;
        } else if self.count >= bounds.calls_max.saturating_add(BACKLOG_ORDERS_MAX) {
            return Err(Unsubmitted::Refused(full_of_calls(bounds, 1)));
        }
        self.more(bytes);
        Ok(())
    }

    fn room_for(&self, bounds: Backlog, calls: usize, bytes: u64) -> Result<(), Error> {
        let Backlog { calls_max, bytes_max } = bounds;
        if self.count.saturating_add(calls) > calls_max {
            return Err(full_of_calls(bounds, calls));
        }
        if self.bytes.saturating_add(bytes) > bytes_max {
            let reason = format!(
                "calls of {} bytes wait for a slow daemon or for room in the arena, and {bytes} more would exceed \
                 {bytes_max}",
                self.bytes
            );
            return Err(Error::full("client backlog_bytes", reason));
        }
        Ok(())
    }

    fn more(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes += bytes;
    }

    fn less(&mut self, bytes: u64) {
        self.count -= 1;
        self.bytes -= bytes;
        self.attended &= !self.is_empty();
    }

    /// Gives up all tensors that wait, with the link.
    pub(super) fn spend(&mut self, after: &mut Aftermath) {
        after.spent.extend(self.unplaced.drain(..).map(|unplaced| Memory::Source(unplaced.payload)));
    }

    /// Drops waiting tensors that are not wanted any more.
    fn prune(&mut self, calls: &mut Calls, after: &mut Aftermath) {
        for unplaced in std::mem::take(&mut self.unplaced) {
            if calls.queued(unplaced.call).is_some() {
                self.unplaced.push_back(unplaced);
            } else {
                self.less(unplaced.bytes());
                calls.not_queued(unplaced.call);
                after.spent.push(Memory::Source(unplaced.payload));
            }
        }
    }
}

fn full_of_calls(Backlog { calls_max, .. }: Backlog, calls: usize) -> Error {
    let reason = format!(
        "{calls} more would exceed the {calls_max} calls that may wait for a slow daemon or for room in the arena"
    );
    Error::full("client backlog_calls", reason)
}

impl Link {
    /// Queues the submission that was just encoded until there is room, behind what waits already.
    #[cold]
    pub(super) fn postpone(&mut self, segment: u16, submission: &Submission<'_>) -> Result<Way, Unsubmitted> {
        debug_assert_eq!(submission.more_calls(), 0, "a list would wait as what is no call");
        let Link { waiting, segments, outgoing, .. } = self;
        let stored = Stored::of(outgoing);
        if is_at_once() {
            waiting.more(stored.bytes());
        } else {
            waiting.admit(submission.starts().is_some(), stored.bytes())?;
        }
        segments[usize::from(segment)].waiting.push_back(stored);
        Ok(Way::Backlog)
    }

    /// Submits waiting records, as far as there is room.
    fn forward(&mut self, calls: &mut Calls) -> Result<(), Box<str>> {
        let now = Tick::now();
        let Link { waiting, segments, incoming: stored, outgoing, .. } = self;
        for segment in segments {
            while let Some(first) = segment.waiting.pop_front() {
                first.load(stored);
                let submission = Submission::decode(stored).map_err(|malformed| malformed.to_string())?;
                let call = submission.starts();
                let deadline = call.map(|call| calls.queued(call));
                if deadline == Some(None) {
                    call.into_iter().for_each(|call| calls.not_queued(call));
                } else {
                    let left =
                        deadline.flatten().and_then(|deadline| deadline.from(now)).map_or(NO_TIMEOUT, timeout_ms);
                    submission.within(left).encode(outgoing).map_err(|field| field.to_string())?;
                    if !segment.push(outgoing)? {
                        segment.waiting.push_front(first);
                        break;
                    }
                    waiting.look = ROOM_LOOK;
                    if let Some(call) = call {
                        calls.told(call);
                    }
                }
                waiting.less(first.bytes());
            }
        }
        Ok(())
    }

    /// Ends calls that time out while they wait, and forgets those that are not wanted any more.
    fn expire(&mut self, now: Tick, calls: &mut Calls, after: &mut Aftermath) {
        let Link { waiting, segments, incoming: stored, .. } = self;
        for segment in segments {
            segment.waiting.retain(|each| {
                each.load(stored);
                let Ok(submission) = Submission::decode(stored) else { return true };
                let Some(call) = submission.starts() else { return true };
                if calls.queued(call).is_some_and(|deadline| deadline < now) {
                    calls.end_untold(call, late(&submission), after);
                }
                match calls.queued(call) {
                    Some(deadline) => calls.is_queued_until(deadline),
                    None => {
                        waiting.less(each.bytes());
                        calls.not_queued(call);
                    }
                }
                calls.queued(call).is_some()
            });
        }
        for Unplaced { call, purpose, name, timeout_ms, .. } in &waiting.unplaced {
            match calls.queued(*call) {
                Some(deadline) if deadline < now => calls.end_untold(*call, purpose.late(name, *timeout_ms), after),
                Some(deadline) => calls.is_queued_until(deadline),
                None => {}
            }
        }
        waiting.prune(calls, after);
    }
}

/// What a call waits for whose record is not in a ring yet.
const UNREAD: &str = "the daemon of this host, which has not read the calls before it";

/// What a tensor waits for that has no room in the arena yet.
const UNPLACED: &str = "room in the arena, which tensors before it still take (arena_bytes)";

/// The error of a call that the daemon was not told of in time.
fn late(submission: &Submission<'_>) -> Error {
    let waited = |timeout_ms: u32| Duration::from_millis(timeout_ms.into());
    match *submission {
        Submission::Send { step, key, timeout_ms, .. } => {
            Error::late(Operation::Send, step, key, waited(timeout_ms), UNREAD)
        }
        Submission::Recv { step, key, timeout_ms, .. } => {
            Error::late(Operation::Recv, step, key, waited(timeout_ms), UNREAD)
        }
        Submission::Push { queue, timeout_ms, .. } => {
            Error::late(Operation::Push, 0, queue, waited(timeout_ms), UNREAD)
        }
        Submission::Rows { min_version, rows, timeout_ms, .. } => {
            Error::late(Operation::Pull, min_version, rows.title(), waited(timeout_ms), UNREAD)
        }
        Submission::Pull { min_version, timeout_ms, .. } => {
            Error::late(Operation::Pull, min_version, "(all of a plan)", waited(timeout_ms), UNREAD)
        }
        _ => Error::unavailable("the daemon", "it did not read the call before its deadline"),
    }
}

impl Purpose {
    fn late(self, name: &str, timeout_ms: u32) -> Error {
        let waited = Duration::from_millis(timeout_ms.into());
        match self {
            Purpose::Send { step } => Error::late(Operation::Send, step, name, waited, UNPLACED),
            Purpose::Push => Error::late(Operation::Push, 0, name, waited, UNPLACED),
        }
    }
}

impl Held<'_> {
    /// True while calls wait in this process.
    #[inline]
    pub(super) fn has_backlog(&self) -> bool {
        matches!(&self.line, Line::Up(link) if !link.waiting.is_empty())
    }

    /// True while tensors wait for the arena.
    pub(super) fn has_unplaced(&self) -> bool {
        matches!(&self.line, Line::Up(link) if link.waiting.has_unplaced())
    }

    /// Submits what waits, as far as there is room.
    #[cold]
    pub(super) fn forward(&mut self) {
        let State { line: Line::Up(link), calls, .. } = &mut **self else { return };
        let forwarded = link.forward(calls);
        link.ring();
        if let Err(fault) = forwarded {
            return self.lose(&fault);
        }
        if !self.has_backlog() {
            self.note();
        }
    }

    /// Ends queued calls at their deadlines.
    pub(super) fn expire_backlog(&mut self, now: Tick) {
        let State { line: Line::Up(link), calls, aftermath, .. } = &mut **self else { return };
        if calls.may_expire(now) {
            link.expire(now, calls, aftermath);
        }
    }

    /// Has the driver look after the calls that wait in this process from now on.
    #[cold]
    pub(super) fn attend(&mut self) {
        let Line::Up(link) = &mut self.line else { return };
        if std::mem::replace(&mut link.waiting.attended, true) {
            return;
        }
        self.note();
        self.wake_driver();
        if self.listening.is_there() {
            // It sleeps until the daemon rings, which does not ring for this.
            let nudge = self.attachment.nudge_waker.clone();
            self.aftermath.wakers.push(nudge);
        }
    }

    /// How long to sleep at most while something waits for room, since nobody rings for that.
    pub(super) fn look_again(&mut self) -> Option<Duration> {
        let Line::Up(link) = &mut self.line else { return None };
        if link.waiting.is_empty() && !link.has_chores() {
            return None;
        }
        let look = link.waiting.look;
        link.waiting.look = (2 * look).min(ROOM_LOOK_MAX);
        Some(look)
    }

    /// Notes whether new calls must check for room first: see [`Attachment::room_for`].
    pub(super) fn note(&self) {
        let crowded = !self.takes_calls() || self.has_backlog();
        self.attachment.crowded.store(crowded, Ordering::Relaxed);
    }

    /// True if a tensor must wait for the arena, or behind one that does.
    #[inline]
    pub(super) fn must_wait(&self, purpose: Purpose, tensor: &Tensor) -> bool {
        let Line::Up(link) = &self.line else { return false };
        link.waiting.bounds.is_some()
            && (matches!(purpose, Purpose::Push) && link.waiting.has_unplaced()
                || !is_small(tensor) && link.arena.span_of(tensor.bytes()).is_none())
    }

    /// Queues a tensor for which the arena has no room.
    #[cold]
    pub(super) fn keep_waiting(
        &mut self,
        (peer, purpose, name): (Peer, Purpose, &str),
        (timeout_ms, deadline): (u32, Tick),
        tensor: Tensor,
    ) -> Result<u32, Error> {
        let State { line, calls, aftermath, .. } = &mut **self;
        let Line::Up(link) = line else { unreachable!("looked at by those who found the line up") };
        let (len, (arena_bytes, _)) = (tensor.bytes().len() as u64, link.arena.size_and_free());
        let mut admit = || {
            if len > link.tensor_bytes_max {
                return Err(too_large(len, link.tensor_bytes_max));
            }
            if len > arena_bytes {
                return Err(super::no_room(&link.arena, len as usize));
            }
            if !calls.have_room_for(1) {
                return Err(table_full());
            }
            let bytes = (size_of::<Unplaced>() + name.len()) as u64 + len;
            link.waiting.admit(true, bytes).map_err(|unsubmitted| match unsubmitted {
                Unsubmitted::Refused(error) => error,
                Unsubmitted::Full | Unsubmitted::Fault(_) => super::no_room(&link.arena, len as usize),
            })
        };
        if let Err(error) = admit() {
            aftermath.unwanted.push(tensor);
            return Err(error);
        }
        let opened = calls.open(purpose.direction(), peer.segment, deadline, Memory::Nothing);
        let call = opened.map_err(|_nothing| table_full())?;
        calls.waits(call);
        let (meta, payload) = tensor.into_parts();
        link.waiting.unplaced.push_back(Unplaced { call, peer, purpose, name: name.into(), timeout_ms, meta, payload });
        Ok(call)
    }

    /// Ends a step: its tensors that wait for the arena are not sent.
    pub(super) fn end_unplaced(&mut self, step: i64, reason: &str) {
        let State { line: Line::Up(link), calls, aftermath, .. } = &mut **self else { return };
        let waiting = &mut link.waiting;
        let of_step = |purpose: Purpose| matches!(purpose, Purpose::Send { step: of } if of == step);
        let placing = waiting.placing.iter().copied();
        let unplaced = waiting.unplaced.iter().map(|unplaced| (unplaced.call, unplaced.purpose));
        for (call, _) in placing.chain(unplaced).filter(|(_, purpose)| of_step(*purpose)) {
            calls.end_untold(call, Error::Aborted { step, reason: reason.into() }, aftermath);
        }
        waiting.prune(calls, aftermath);
    }

    /// The first waiting tensor that can be submitted now, with its room in the arena, if it needs some.
    fn next_unplaced(&mut self) -> Option<(u64, Unplaced, Option<Buffer>)> {
        let State { line: Line::Up(link), calls, aftermath, .. } = &mut **self else { return None };
        while let Some(first) = link.waiting.unplaced.front() {
            let bytes = first.payload.as_ref();
            let is_there = bytes.len() <= INLINE_BYTES_MAX || link.arena.span_of(bytes).is_some();
            let is_wanted = calls.queued(first.call).is_some();
            let room = match is_there || !is_wanted {
                true => None,
                false => Some(link.arena.allocate(bytes.len())?),
            };
            let first = link.waiting.unplaced.pop_front()?;
            link.waiting.less(first.bytes());
            if is_wanted {
                link.waiting.look = ROOM_LOOK;
                link.waiting.placing = Some((first.call, first.purpose));
                // It still counts until it is submitted.
                link.waiting.count += 1;
                return Some((link.serial, first, room));
            }
            calls.not_queued(first.call);
            aftermath.spent.push(Memory::Source(first.payload));
        }
        None
    }

    /// Submits a tensor that has waited for the arena.
    fn submit_placed(&mut self, serial: u64, unplaced: Unplaced) {
        let Unplaced { call, peer: Peer { segment, number }, purpose, name, meta, payload, .. } = unplaced;
        let State { line, calls, aftermath, .. } = &mut **self;
        let link = match line {
            Line::Up(link) if link.serial == serial => link,
            _ => return aftermath.spent.push(Memory::Source(payload)),
        };
        link.waiting.placing = None;
        link.waiting.less(0);
        let Some(deadline) = calls.queued(call) else {
            calls.not_queued(call);
            return aftermath.spent.push(Memory::Source(payload));
        };
        let left = deadline.from(Tick::now()).map_or(NO_TIMEOUT, timeout_ms);
        let (call, meta, name) = ((call, number, left), meta.as_wire(), &*name);
        let submitted = match link.arena.span_of(payload.as_ref()) {
            Some(span) => {
                calls.lend(call.0, Memory::Source(payload));
                link.submit(segment, &purpose.submission(call, name, meta, PayloadAt::Arena(span)))
            }
            None => {
                let small = PayloadAt::Inline(payload.as_ref());
                let submitted = link.submit(segment, &purpose.submission(call, name, meta, small));
                aftermath.spent.push(Memory::Source(payload));
                submitted
            }
        };
        match submitted {
            Ok(Way::Ring) => calls.told(call.0),
            Ok(Way::Backlog) => {}
            Err(Unsubmitted::Refused(error)) => {
                calls.end_untold(call.0, error, aftermath);
                calls.not_queued(call.0);
            }
            Err(Unsubmitted::Full) => unreachable!("what has no room waits, where tensors wait for the arena"),
            Err(Unsubmitted::Fault(fault)) => return self.lose(&fault),
        }
        self.submitted(1);
    }
}

impl Attachment {
    /// Copies tensors that wait for the arena, as long as it has room, and submits them. On the driver's thread alone, so that they
    /// stay in order.
    pub(super) fn place_waiting(&self) {
        loop {
            let mut held = self.lock();
            let Some((serial, mut unplaced, room)) = held.next_unplaced() else { return };
            drop(held);
            if let Some(mut room) = room {
                copy_bytes(&mut room, unplaced.payload.as_ref());
                // The original goes back to its owner before the lock is taken again.
                let original = std::mem::replace(&mut unplaced.payload, room.into());
                survive(|| drop(original));
            }
            self.lock().submit_placed(serial, unplaced);
        }
    }

    /// Checks whether so many calls may be started now, with their bytes that may have to wait; `bytes` gets the arena's addresses.
    /// Usually this only checks a flag. If room runs out in between, the calls report it when they end.
    ///
    /// # Errors
    /// Unavailable if there is no daemon, ResourceExhausted if so many calls cannot wait; none if calls wait in their callers' threads.
    pub(crate) fn room_for(
        &self,
        calls: usize,
        timeout: Option<Duration>,
        bytes: impl FnOnce(Range<*const u8>) -> u64,
    ) -> Result<(), Error> {
        let Some(bounds) = self.settings.backlog else { return Ok(()) };
        if !self.crowded.load(Ordering::Relaxed) && calls <= bounds.calls_max {
            return Ok(());
        }
        let mut held = self.up(Tick::now(), timeout)?;
        held.pump();
        held.note();
        let Line::Up(link) = &held.line else { return Ok(()) };
        link.waiting.room_for(bounds, calls, bytes(link.arena.range()))?;
        if held.calls.have_room_for(calls) { Ok(()) } else { Err(table_full()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealane_transport::{Code, SendOptions};

    use crate::{
        attachment::{
            rig::{AREA_BYTES, Rig},
            submit::{To, With},
        },
        clock,
        limits::CALL_INDEX_BITS,
        under_way::{Handle, Sending},
    };

    #[test]
    fn what_waits_for_room_is_not_told_as_another_call_that_has_its_number() {
        let mut rig = Rig::with_backlog("task", Some(Backlog::default()));
        let attachment = rig.attachment.clone();
        // All under one lock: the driver would forget what is dropped.
        let mut held = attachment.lock();
        let recv = |held: &mut Held<'_>, key: &str| {
            let from = With { peer: "peer", step: 1 };
            held.recv(Tick::now(), from, (key, false, false), &mut Memory::Nothing, None).unwrap()
        };
        while !held.has_backlog() {
            recv(&mut held, "wanted");
        }
        // Behind one that is wanted, as many as would use up the numbers of a slot.
        for _ in 0..1 << (u32::BITS - CALL_INDEX_BITS) {
            let dropped = recv(&mut held, "dropped");
            let State { calls, aftermath, .. } = &mut *held;
            calls.forsake(dropped, true, aftermath);
        }
        recv(&mut held, "last");
        let mut told = rig.told();
        while held.has_backlog() {
            held.pump();
            told.extend(rig.told());
        }
        assert_eq!(told.pop().unwrap(), "recv last");
        assert!(told.iter().all(|told| told == "recv wanted"));
        assert_eq!(held.calls.held(), told.len() + 1, "what was dropped has no slot any more");
    }

    #[test]
    fn call_that_waits_for_the_arena_ends_at_its_deadline_and_the_next_goes_on() {
        clock::set_by_hand(Some(1_000));
        let rig = Rig::with_backlog("task", Some(Backlog::default()));
        let attachment = rig.attachment.clone();
        // A driver would see the system's time.
        attachment.lock().driver.is_the_caller();
        let _rest = attachment.allocate(AREA_BYTES as usize).unwrap();
        let send = |key: &str, timeout_ms| {
            let tensor = Tensor::from_elements(&[4096], &[7_u8; 4096]).unwrap();
            let to = To { peer: "peer", purpose: Purpose::Send { step: 1 } };
            let options = SendOptions { timeout: Some(Duration::from_millis(timeout_ms)) };
            Sending::of(&attachment, attachment.send(to, key, tensor, &options))
        };
        let (mut short, mut long) = (send("short", 35), send("long", 500));
        for now in [1_020, 1_036] {
            clock::set_by_hand(Some(now));
            attachment.lock().sweep();
        }
        assert_eq!(short.try_outcome().unwrap().unwrap_err().code(), Code::DeadlineExceeded);
        assert!(long.try_outcome().is_none());
        clock::set_by_hand(Some(1_501));
        attachment.lock().sweep();
        assert_eq!(long.try_outcome().unwrap().unwrap_err().code(), Code::DeadlineExceeded);
    }

    #[test]
    fn what_waits_after_all_others_have_gone_is_attended_to_anew() {
        let mut waiting = Waiting::new(Some(Backlog::default()));
        (0..2).for_each(|_| assert!(waiting.admit(true, 10).is_ok()));
        waiting.attended = true;
        waiting.less(10);
        assert!(waiting.attended);
        waiting.less(10);
        assert!(!waiting.attended);
    }
}
