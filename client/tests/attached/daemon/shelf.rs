//! What a client publishes and pulls, at a daemon of the tests: each shard has a shelf, from which a client pulls what it
//! published itself.

use std::collections::HashMap;

use sealane::Error;
use sealane_runtime::Block;
use sealane_transport::shm::{BOARD_BYTES_PER_KEY, Completion, PayloadAt, SharedMemory, Span, Submission};

use super::{Shard, read, write};

#[derive(Default)]
pub(super) struct Shelf {
    published: HashMap<String, Published>,
    plans: HashMap<u32, Plan>,
    /// Pulls that wait, by call: plan and version.
    waiting: HashMap<u32, (u32, i64)>,
}

struct Published {
    version: i64,
    meta: Vec<u8>,
    bytes: Vec<u8>,
    /// Its call, if it lies in the arena.
    lent: Option<u32>,
}

#[derive(Default)]
struct Plan {
    expected: usize,
    keys: Vec<String>,
    board: Option<Span>,
    /// Where its tensors lie, and the metadata that was told.
    places: Vec<Option<(Span, Vec<u8>)>>,
}

impl Shard {
    pub(super) fn serve_shelf(&mut self, submission: Submission<'_>, arena: &SharedMemory) {
        match submission {
            Submission::Publish { call, version, key, meta, payload, .. } => {
                let (bytes, lent) = match payload {
                    PayloadAt::Inline(bytes) => (bytes.to_vec(), None),
                    PayloadAt::Arena(span) => (read(arena, span), Some(call)),
                };
                let newer = self.shelf.published.get(key).filter(|before| before.version > version);
                if let Some(Published { version, .. }) = newer {
                    let reason = format!("older than {version}");
                    return self.fail(call, Error::InvalidArgument { reason: reason.into() });
                }
                match lent {
                    Some(_) => self.say(&Completion::Published { calls: &[call] }),
                    None => self.say(&Completion::Sent { calls: &[call] }),
                }
                let published = Published { version, meta: meta.to_vec(), bytes, lent };
                let before = self.shelf.published.insert(key.to_owned(), published);
                self.give_back(before);
                let waiting: Vec<u32> = self.shelf.waiting.keys().copied().collect();
                waiting.into_iter().for_each(|call| self.pull(call, false));
            }
            Submission::Withdraw { key } => {
                let before = self.shelf.published.remove(key);
                self.give_back(before);
            }
            Submission::OpenPlan { plan, keys, .. } => {
                let (expected, places) = (keys as usize, (0..keys).map(|_| None).collect());
                let opened = self.shelf.plans.insert(plan, Plan { expected, places, ..Plan::default() });
                assert!(opened.is_none());
            }
            Submission::PlanKeys { plan, keys } => {
                self.shelf.plans.get_mut(&plan).unwrap().keys.extend(keys.iter().map(str::to_owned));
            }
            Submission::Pull { call, plan, min_version, timeout_ms } => {
                let Plan { keys, expected, .. } = &self.shelf.plans[&plan];
                assert_eq!(keys.len(), *expected);
                assert!(self.shelf.waiting.values().all(|(other, _)| *other != plan), "one pull of a plan at a time");
                self.shelf.waiting.insert(call, (plan, min_version));
                self.limit(timeout_ms, call, sealane::Operation::Pull, min_version, "");
                self.pull(call, false);
            }
            Submission::ClosePlan { plan } => {
                self.shelf.plans.remove(&plan).unwrap();
                let ended: Vec<u32> =
                    self.shelf.waiting.extract_if(|_, (pulled, _)| *pulled == plan).map(|(call, _)| call).collect();
                ended.into_iter().for_each(|call| self.fail(call, aborted()));
            }
            other => unreachable!("{other:?} is no matter of the shelf"),
        }
    }

    fn give_back(&mut self, published: Option<Published>) {
        if let Some(call) = published.and_then(|published| published.lent) {
            self.say(&Completion::Returned { calls: &[call] });
        }
    }

    /// Gives a pull up; false if there is none of that call.
    pub(super) fn cancel_pull(&mut self, call: u32) -> bool {
        let cancelled = self.shelf.waiting.remove(&call).is_some();
        if cancelled {
            self.fail(call, aborted());
        }
        cancelled
    }

    /// Ends a pull that waits, if all of it is there or it is `late`.
    pub(super) fn pull(&mut self, call: u32, late: bool) {
        let Some(&(number, min_version)) = self.shelf.waiting.get(&call) else { return };
        let is_there = |shelf: &Shelf, key: &String| {
            shelf.published.get(key).is_some_and(|published| published.version >= min_version)
        };
        let keys = self.shelf.plans[&number].keys.clone();
        if !late && !keys.iter().all(|key| is_there(&self.shelf, key)) {
            return;
        }
        self.shelf.waiting.remove(&call);
        if self.shelf.plans[&number].board.is_none() {
            let (span, token) = self.take_block(keys.len() * BOARD_BYTES_PER_KEY);
            self.shelf.plans.get_mut(&number).unwrap().board = Some(span);
            self.say(&Completion::Board { plan: number, span, token });
        }
        for (index, key) in keys.iter().enumerate() {
            if is_there(&self.shelf, key) {
                self.place(number, index, key);
            } else {
                let error = Error::late(
                    sealane_transport::Operation::Pull,
                    min_version,
                    key.as_str(),
                    std::time::Duration::from_millis(1),
                );
                self.say(&Completion::Missed { plan: number, index: index as u32, error });
            }
        }
        self.say(&Completion::Pulled { call });
    }

    fn place(&mut self, number: u32, index: usize, key: &str) {
        let Published { version, meta, bytes, .. } = &self.shelf.published[key];
        let (version, meta, bytes) = (*version, meta.clone(), bytes.clone());
        let place = self.shelf.plans[&number].places[index].clone();
        let (plan, at) = (number, index as u32);
        let span = match place {
            Some((span, told)) if span.len == bytes.len() as u64 => {
                if told != meta {
                    self.say(&Completion::Reshaped { plan, index: at, meta: &meta });
                }
                span
            }
            _ => {
                let (span, token) = self.take_block(bytes.len());
                self.say(&Completion::Placed { plan, index: at, meta: &meta, span, token });
                span
            }
        };
        write(self.end.area(), span, &bytes);
        let plan = self.shelf.plans.get_mut(&number).unwrap();
        plan.places[index] = Some((span, meta));
        let (board, step) = (plan.board.unwrap(), BOARD_BYTES_PER_KEY as u64);
        write(self.end.area(), Span { offset: board.offset + at as u64 * step, len: step }, &version.to_le_bytes());
    }

    /// A block that the client gives back by its token.
    pub(super) fn take_block(&mut self, len: usize) -> (Span, u64) {
        if len == 0 {
            return (Span::default(), 0);
        }
        let block: Block = self.area.allocate(len).expect("tests pull what fits");
        let (span, token) = (Span { offset: block.offset() as u64, len: len as u64 }, self.next_token);
        self.next_token += 1;
        self.blocks.insert(token, block);
        (span, token)
    }
}

fn aborted() -> Error {
    Error::Aborted { step: 0, reason: "it was given up".into() }
}
