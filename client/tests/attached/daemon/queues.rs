//! What a client pushes and accepts, at a daemon of the tests: each shard hands what a client pushes to that client itself,
//! as far as its queue has credit, and keeps the rest.

use std::collections::{HashMap, VecDeque};

use sealane_transport::shm::{Completion, PayloadAt, ReceivedAt, SharedMemory, Submission, limits::INLINE_BYTES_MAX};

use super::{Shard, read, write};

#[derive(Default)]
pub(super) struct Queues {
    open: HashMap<u32, Queue>,
    waiting: HashMap<String, VecDeque<Push>>,
}

struct Queue {
    name: String,
    tensors: u32,
    bytes: i64,
}

struct Push {
    call: u32,
    meta: Vec<u8>,
    bytes: Vec<u8>,
    lent: bool,
}

/// Who has pushed, for the client.
const FROM: &str = "worker0.train:2222";

impl Shard {
    pub(super) fn serve_queues(&mut self, submission: Submission<'_>, arena: &SharedMemory) {
        match submission {
            Submission::Push { call, queue, timeout_ms, meta, payload, .. } => {
                let (bytes, lent) = match payload {
                    PayloadAt::Inline(bytes) => (bytes.to_vec(), false),
                    PayloadAt::Arena(span) => (read(arena, span), true),
                };
                self.limit(timeout_ms, call, sealane::Operation::Push, 0, queue);
                let push = Push { call, meta: meta.to_vec(), bytes, lent };
                self.queues.waiting.entry(queue.to_owned()).or_default().push_back(push);
                self.hand_over(queue);
            }
            Submission::OpenQueue { queue, name, .. } => {
                if self.queues.open.values().any(|open| open.name == name) {
                    let error = sealane::Error::InvalidArgument { reason: "it has an acceptor".into() };
                    return self.say(&Completion::Unopened { queue, error });
                }
                let opened = self.queues.open.insert(queue, Queue { name: name.to_owned(), tensors: 0, bytes: 0 });
                assert!(opened.is_none());
            }
            Submission::Grant { queue, tensors, bytes } => {
                let Some(open) = self.queues.open.get_mut(&queue) else { return };
                (open.tensors, open.bytes) = (open.tensors + tensors, open.bytes + bytes as i64);
                let name = open.name.clone();
                self.hand_over(&name);
            }
            Submission::CloseQueue { queue } => {
                self.queues.open.remove(&queue);
                self.say(&Completion::QueueClosed { queue });
            }
            other => unreachable!("{other:?} is no matter of queues"),
        }
    }

    fn hand_over(&mut self, name: &str) {
        loop {
            let Some((&queue, open)) = self.queues.open.iter_mut().find(|(_, open)| open.name == name) else { return };
            if open.tensors == 0 || open.bytes <= 0 {
                return;
            }
            let Some(push) = self.queues.waiting.get_mut(name).and_then(VecDeque::pop_front) else { return };
            (open.tensors, open.bytes) = (open.tensors - 1, open.bytes - push.bytes.len() as i64);
            let Push { call, meta, bytes, lent } = push;
            let payload = if bytes.len() <= INLINE_BYTES_MAX {
                ReceivedAt::Inline(&bytes)
            } else {
                let (span, token) = self.take_block(bytes.len());
                write(self.end.area(), span, &bytes);
                ReceivedAt::Area { span, token }
            };
            self.say(&Completion::Accepted { queue, from: FROM, meta: &meta, payload });
            if lent {
                self.say(&Completion::Published { calls: &[call] });
                self.say(&Completion::Returned { calls: &[call] });
            } else {
                self.say(&Completion::Sent { calls: &[call] });
            }
        }
    }

    /// Takes out a push that waits; whether its memory was lent, if there is one of that call.
    pub(super) fn take_push(&mut self, call: u32) -> Option<bool> {
        self.queues.waiting.values_mut().find_map(|waiting| {
            let at = waiting.iter().position(|push| push.call == call)?;
            waiting.remove(at).map(|push| push.lent)
        })
    }
}
