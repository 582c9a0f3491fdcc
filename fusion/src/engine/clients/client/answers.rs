//! The answering half of a client: outcomes become records in its completion ring, as room permits.

use std::sync::Arc;
use std::time::Instant;

use sealane_runtime::{Buffer, MemoryKind};
use sealane_transport::shm::limits::{INLINE_BYTES_MAX, NUMBERS_PER_RECORD};
use sealane_transport::shm::{AcceptedAt, Completion, PushError, ReceivedAt, Record, SmallCall};
use sealane_transport::{Error, Handle, Payload, Tensor, Unreceived};

use super::{Client, LENDS, News};
use crate::limits::CLIENT_BACKLOG_LOOK;
use crate::node::{ClientOutcome, Pool};

const WITHIN_LIMITS: &str = "metadata and inline bytes are within their limits, and texts are cut";

/// The outcome of a call, or other news, as the client is told.
pub(super) enum Answer {
    Received {
        call: u32,
        tensor: Tensor,
    },
    Failed {
        call: u32,
        error: Error,
        memory_back: bool,
    },
    /// A pull has ended; what is new of its plan is still to be told from tensor `next` on.
    Pulled {
        call: u32,
        plan: u32,
        next: usize,
    },
    /// Not for a call: a tensor that was pushed into a queue.
    Accepted {
        queue: u32,
        from: Arc<str>,
        tensor: Tensor,
    },
    /// Not for a call: a queue could not be opened.
    Unopened {
        queue: u32,
        error: Error,
    },
    /// Not for a call: a queue that the client has closed; no tensor of it follows.
    QueueClosed {
        queue: u32,
    },
    /// Not for a call: the client of an arena that this one was told of has gone.
    ArenaGone {
        arena: u64,
    },
    /// Not for a call: the engine is about to stop.
    Draining,
}

impl Client {
    /// Takes in a call's outcome, to be reported to the client; one of `few` in this turn, or of many. It is used up, or at least told.
    pub(in crate::engine::clients) fn answer(
        &mut self,
        name: Handle,
        outcome: &mut ClientOutcome,
        few: bool,
        record: &mut Record,
    ) {
        let (call, lends) = (name.to_bits() as u32, name.to_bits() & LENDS != 0);
        #[cfg(test)]
        crate::engine::clients::tests::fall_into_trap_of_call(call);
        if let ClientOutcome::Received(Ok(tensor)) = outcome {
            if let Some(receiving) = self.receiving.remove(call) {
                self.traffic_of(receiving.peer).received(1, tensor.len() as u64);
            }
            if self.tell_small(call, tensor, few, record) {
                self.under_way -= 1;
                return;
            }
        }
        let outcome = std::mem::replace(outcome, ClientOutcome::Returned);
        if let ClientOutcome::Pulled(pull_buffer) = outcome {
            if let Some(answer) = self.pulled(name, pull_buffer) {
                self.put(answer, record);
            }
            return;
        }
        // The call stays in flight until its memory is back.
        if let ClientOutcome::Late(error) = outcome {
            return self.put(Answer::Failed { call, error, memory_back: false }, record);
        }
        self.under_way -= 1;
        let answer = match outcome {
            ClientOutcome::Returned => return self.returned.push(call),
            // When the outcome of a send comes, its payload has already been freed, so the caller has its memory back. A push may still be
            // on its way after its deadline.
            ClientOutcome::Unsent(error) => Answer::Failed { call, error, memory_back: !lends },
            ClientOutcome::Received(Ok(tensor)) => match self.within_reach(&tensor) {
                Ok(moved) => Answer::Received { call, tensor: moved.unwrap_or(tensor) },
                Err(error) => Answer::Failed { call, error, memory_back: true },
            },
            ClientOutcome::Received(Err(Unreceived { error, destination })) => {
                let brought = self.receiving.remove(call).is_some_and(|receiving| receiving.has_destination);
                let memory_back = !brought || destination.is_some() || self.arena.has_returned(call);
                // Not dropped: the answer itself gives it back.
                let _token = destination.map(Buffer::into_token);
                Answer::Failed { call, error, memory_back }
            }
            ClientOutcome::Pulled(_) | ClientOutcome::Late(_) => unreachable!("just looked at"),
        };
        self.put(answer, record);
    }

    /// Takes in that a send or push has succeeded, to be reported to the client.
    #[inline]
    pub(in crate::engine::clients) fn sent(&mut self, name: Handle) {
        let (call, lends) = (name.to_bits() as u32, name.to_bits() & LENDS != 0);
        #[cfg(test)]
        crate::engine::clients::tests::fall_into_trap_of_call(call);
        self.under_way -= 1;
        if lends { self.lent_to_peers.push(call) } else { self.sent.push(call) }
    }

    /// Reports a small tensor, from where it lies, at once if it is one of `few`, else at the end of the turn together with others. False
    /// if it is not small, or cannot be reported yet.
    #[inline]
    fn tell_small(&mut self, call: u32, tensor: &Tensor, few: bool, record: &mut Record) -> bool {
        if !travels(tensor) || self.place_of(tensor).is_some() || !self.backlog.is_empty() || self.closed {
            return false;
        }
        match few && self.arrived.is_empty() {
            true => self.tell_alone(call, tensor, record),
            false => self.add_arrived(call, tensor, record),
        }
    }

    /// Reports a small tensor at once; false if the ring has no room.
    #[inline]
    fn tell_alone(&mut self, call: u32, tensor: &Tensor, record: &mut Record) -> bool {
        let completion = Completion::ArrivedAlone { call, meta: tensor.meta().as_wire(), bytes: tensor.bytes() };
        completion.encode(record).expect(WITHIN_LIMITS);
        let is_told = self.write_answer(record);
        if is_told {
            self.counters.count_received(1, tensor.len() as u64);
        }
        is_told
    }

    /// Adds a small tensor to those that are reported together; false if there is no room, even after trying to send those.
    #[inline]
    fn add_arrived(&mut self, call: u32, tensor: &Tensor, record: &mut Record) -> bool {
        let small = SmallCall { call, key: "", meta: tensor.meta().as_wire(), bytes: tensor.bytes() };
        let is_added = self.arrived.push(small) || self.tell_arrived(record) && self.arrived.push(small);
        if is_added {
            // It has been copied, and is reported unless the client goes first.
            self.counters.count_received(1, tensor.len() as u64);
        }
        is_added
    }

    /// Reports the small tensors that have come; false if the ring has no room.
    pub(in crate::engine::clients) fn tell_arrived(&mut self, record: &mut Record) -> bool {
        if self.arrived.is_empty() || self.closed {
            return true;
        }
        Completion::Arrived { calls: self.arrived.as_list() }.encode(record).expect(WITHIN_LIMITS);
        let is_told = self.write_answer(record);
        if is_told {
            self.arrived.clear();
        }
        is_told
    }

    /// Writes a record of answers into the ring; false if that has no room. A client that broke the ring is told nothing more.
    #[inline]
    fn write_answer(&mut self, record: &Record) -> bool {
        match self.write(record) {
            Ok(()) => self.news = News::Answers,
            Err(PushError::Full) => return false,
            Err(PushError::Broken(broken)) => self.hang_up(&broken.to_string()),
        }
        true
    }

    #[inline]
    fn write(&mut self, record: &Record) -> Result<(), PushError> {
        #[cfg(feature = "fuzzing")]
        if !crate::engine::clients::fuzzing::may_write() {
            return Ok(());
        }
        self.end.completions.push(record)
    }

    /// The client has been told of a tensor, which it holds from now on.
    fn handed_over(&mut self, tensor: Tensor) {
        let (_, payload) = tensor.into_parts();
        self.counters.count_received(1, payload.len() as u64);
        if let Payload::Owned(buffer) = payload {
            // The client holds it now, and gives it back when it is done with it.
            self.area.hand_over(buffer);
        }
    }

    /// A copy of the tensor in memory that the client can reach, unless it is there already or small enough for the ring.
    pub(super) fn within_reach(&self, tensor: &Tensor) -> Result<Option<Tensor>, Error> {
        if self.place_of(tensor).is_some() || travels(tensor) {
            return Ok(None);
        }
        let mut buffer = self.area.allocate(tensor.len())?;
        buffer.volatile_mut().copy_from(tensor.payload().volatile());
        Tensor::new(tensor.meta().clone(), buffer).map(Some)
    }

    /// The position of a tensor in memory that the client can reach.
    fn place_of(&self, tensor: &Tensor) -> Option<ReceivedAt> {
        let Payload::Owned(buffer) = tensor.payload() else { return None };
        if self.arena.is_destination(buffer) {
            return Some(ReceivedAt::Destination { len: tensor.len() as u64 });
        }
        let (span, token) = self.area.place_of(buffer)?;
        Some(match self.area.lends_by(token) {
            true => ReceivedAt::Lending { span, token },
            false => ReceivedAt::Area { span, token },
        })
    }

    pub(in crate::engine::clients) fn announce_drain(&mut self, record: &mut Record) {
        self.put(Answer::Draining, record);
    }

    /// True if the client has read all that it was told, and none of its submissions is unread.
    pub(in crate::engine::clients) fn is_aware(&mut self) -> bool {
        // A client that has gone, or whose ring is broken, submits nothing more.
        let has_unread = self.end.completions.has_unread();
        self.closed
            || self.arrived.is_empty() && self.backlog.is_empty() && !has_unread && self.end.submissions.is_empty()
    }

    /// Writes an answer into the ring, or keeps it until there is room.
    pub(super) fn put(&mut self, answer: Answer, record: &mut Record) {
        if self.closed {
            // Nobody reads it.
            return;
        }
        if !self.backlog.is_empty() {
            return self.backlog.push_back(answer);
        }
        if let Some(unwritten) = self.push(answer, record) {
            self.backlog.push_back(unwritten);
        }
    }

    /// Writes an answer into the ring; returns it if there is no room.
    fn push(&mut self, answer: Answer, record: &mut Record) -> Option<Answer> {
        let encoded = match &answer {
            Answer::Pulled { call, plan, next } => return self.push_plan(*call, *plan, *next, record),
            Answer::Received { call, tensor } => {
                let Some(payload) = self.place_of(tensor) else {
                    debug_assert!(travels(tensor), "answers are within reach");
                    return if self.add_arrived(*call, tensor, record) { None } else { Some(answer) };
                };
                Completion::Received { call: *call, meta: tensor.meta().as_wire(), payload }.encode(record)
            }
            Answer::Failed { call, error, memory_back } => {
                Completion::Failed { call: *call, memory_back: *memory_back, error: error.clone() }.encode(record)
            }
            Answer::Accepted { queue, from, tensor } => {
                let payload = match self.place_of(tensor) {
                    Some(ReceivedAt::Area { span, token }) => AcceptedAt::Area { span, token },
                    Some(_) => unreachable!("what was pushed has no destination and lends nothing"),
                    None => AcceptedAt::Inline(tensor.bytes()),
                };
                Completion::Accepted { queue: *queue, from, meta: tensor.meta().as_wire(), payload }.encode(record)
            }
            Answer::Unopened { queue, error } => {
                Completion::Unopened { queue: *queue, error: error.clone() }.encode(record)
            }
            Answer::QueueClosed { queue } => Completion::QueueClosed { queue: *queue }.encode(record),
            Answer::ArenaGone { arena } => Completion::ArenaGone { arena: *arena }.encode(record),
            Answer::Draining => Completion::Draining.encode(record),
        };
        encoded.expect(WITHIN_LIMITS);
        if !self.write_answer(record) {
            return Some(answer);
        }
        if let Answer::Received { tensor, .. } | Answer::Accepted { tensor, .. } = answer {
            self.handed_over(tensor);
        }
        None
    }

    fn push_plan(&mut self, call: u32, plan: u32, next: usize, record: &mut Record) -> Option<Answer> {
        self.news = News::Answers;
        match self.tell_plan(call, plan, next, record) {
            Ok(()) => None,
            Err((next, PushError::Full)) => Some(Answer::Pulled { call, plan, next }),
            Err((_, PushError::Broken(broken))) => {
                self.hang_up(&broken.to_string());
                None
            }
        }
    }

    /// True if there is something to report, or something reported that the client may have to be woken for.
    pub(in crate::engine::clients) fn has_news(&self) -> bool {
        self.news > News::None || self.is_stuck() || self.arena.any_returned()
    }

    /// Writes what is left to report, as far as the ring has room, and wakes the client if it sleeps. True if anything was written since
    /// the last call.
    pub(in crate::engine::clients) fn flush(&mut self, now: Instant, record: &mut Record) -> bool {
        let mut has_room = self.tell_arrived(record);
        while has_room
            && !self.closed
            && let Some(answer) = self.backlog.pop_front()
        {
            if let Some(unwritten) = self.push(answer, record) {
                self.backlog.push_front(unwritten);
                has_room = false;
            }
        }
        if has_room {
            self.tell_arrived(record);
        }
        self.arena.take_returned(&mut self.returned);
        let (sent, published) = (std::mem::take(&mut self.sent), std::mem::take(&mut self.lent_to_peers));
        self.sent = self.push_calls(sent, News::Releases, record, |calls| Completion::Sent { calls });
        self.lent_to_peers =
            self.push_calls(published, News::Releases, record, |calls| Completion::Published { calls });
        // What comes back was published earlier, or has failed.
        if self.lent_to_peers.is_empty() && self.backlog.is_empty() {
            let returned = std::mem::take(&mut self.returned);
            self.returned = self.push_calls(returned, News::Answers, record, |calls| Completion::Returned { calls });
        }
        self.look_at = self.is_stuck().then(|| now + CLIENT_BACKLOG_LOOK);
        let news = std::mem::replace(&mut self.news, News::None);
        let must_ring = match news {
            News::None => false,
            News::Releases if self.has_much_room() => self.end.client_sleep().must_ring_if_light(),
            News::Releases | News::Answers => self.end.client_sleep().must_ring(),
        };
        if must_ring {
            self.bell.ring();
        }
        news > News::None
    }

    /// Writes a list of calls, many to a record; returns those that found no room, in the same memory.
    fn push_calls(
        &mut self,
        mut calls: Vec<u32>,
        news: News,
        record: &mut Record,
        completion: impl Fn(&[u32]) -> Completion<'_>,
    ) -> Vec<u32> {
        if calls.is_empty() {
            return calls;
        }
        let mut told = 0;
        for some in calls.chunks(NUMBERS_PER_RECORD) {
            if self.closed {
                break;
            }
            completion(some).encode(record).expect("as many as a record holds");
            match self.write(record) {
                Ok(()) => told += some.len(),
                Err(PushError::Full) => break,
                Err(PushError::Broken(broken)) => self.hang_up(&broken.to_string()),
            }
        }
        if told > 0 {
            self.news = self.news.max(news);
        }
        calls.drain(..told);
        calls
    }

    /// True if the ring has room for reports that do not wake the client, until something else does.
    fn has_much_room(&mut self) -> bool {
        !self.is_stuck() && self.end.completions.is_half_free()
    }

    /// True if answers wait because the client does not read.
    fn is_stuck(&self) -> bool {
        let lists = [&self.sent, &self.lent_to_peers, &self.returned];
        !self.closed
            && (!self.arrived.is_empty() || !self.backlog.is_empty() || lists.iter().any(|calls| !calls.is_empty()))
    }
}

/// True if the tensor is small enough for a record, and in memory that can be copied into it.
fn travels(tensor: &Tensor) -> bool {
    tensor.len() <= INLINE_BYTES_MAX && tensor.memory() == MemoryKind::Host
}
