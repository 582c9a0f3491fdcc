//! Publications of one client on one shard: tensors that must become visible together are collected until the last has arrived.
//! Bounded by `PUBLISHED_TOGETHER_MAX`, and by the calls that a client may have in flight.

use sealane_transport::shm::limits::PUBLISHED_TOGETHER_MAX;
use sealane_transport::shm::{Moved, PayloadAt};
use sealane_transport::{Error, Tensor};

use super::Client;
use crate::node::Node;

/// A tensor that is about to be published.
pub(super) struct Publication {
    pub(super) call: u32,
    pub(super) version: i64,
    key: Box<str>,
    tensor: Tensor,
    /// It lies in the client's arena.
    lent: bool,
}

impl Client {
    /// Takes in a publication. If it is the last of its set, publishes the set.
    pub(super) fn publish(
        &mut self,
        node: &mut Node,
        (call, version, more): (u32, i64, bool),
        key: &str,
        meta: &[u8],
        payload: PayloadAt<'_>,
    ) {
        self.under_way += 1;
        let lent = matches!(payload, PayloadAt::Arena(_));
        let tensor = self.check_calls(()).and_then(|()| self.tensor_to_publish(call, meta, payload));
        self.counters.count_sent(&tensor);
        match tensor {
            Ok(tensor) if more || !self.together.is_empty() => {
                self.together.push(Publication { call, version, key: key.into(), tensor, lent });
            }
            Ok(tensor) => {
                let published = node.publish(self.task, key, version, tensor);
                self.published(call, lent, published);
            }
            Err(error) => self.published(call, lent, Err(error)),
        }
        if !more || self.together.len() >= PUBLISHED_TOGETHER_MAX {
            self.commit(node);
        }
    }

    /// Publishes what has been collected of a set, without waiting for the rest.
    pub(super) fn commit(&mut self, node: &mut Node) {
        let mut together = std::mem::take(&mut self.together);
        for Publication { call, version, key, tensor, lent } in together.drain(..) {
            let published = node.publish(self.task, &key, version, tensor);
            self.published(call, lent, published);
        }
        self.together = together;
    }

    /// The client reports how much of what it had published with the previous daemon is published here again. Logged once, since the client
    /// may report it at any time.
    pub(super) fn note_published_again(&mut self, published: Moved, copied_bytes: u64, left: Moved) {
        let (pid, task, counters) = (self.pid, &self.metrics.task, &mut self.counters);
        let sum = |counter: &mut u64, more: u64| *counter = counter.saturating_add(more);
        if counters.tensors_published_again == 0 && published.tensors > 0 {
            let Moved { tensors, bytes } = published;
            tracing::info!(
                task,
                pid,
                tensors,
                bytes,
                copied_bytes,
                "a client has published again what it had published before"
            );
        }
        if counters.tensors_not_published_again == 0 && left.tensors > 0 {
            let Moved { tensors, bytes } = left;
            tracing::warn!(
                task,
                pid,
                tensors,
                bytes,
                "a client could not publish again all that it had published before: its arena has no room for these, or they were refused"
            );
        }
        sum(&mut counters.tensors_published_again, published.tensors);
        sum(&mut counters.bytes_published_again, published.bytes);
        sum(&mut counters.tensors_not_published_again, left.tensors);
    }

    fn published(&mut self, call: u32, lent: bool, outcome: Result<(), Error>) {
        self.under_way -= 1;
        match outcome {
            Ok(()) if lent => self.lent_to_peers.push(call),
            Ok(()) => self.sent.push(call),
            Err(error) => {
                // The failure itself reports this.
                let _ = lent && self.arena.has_returned(call);
                self.refused.push((call, error));
            }
        }
    }

    /// A tensor whose memory is given back by a message of its own.
    pub(super) fn tensor_to_publish(
        &mut self,
        call: u32,
        meta: &[u8],
        payload: PayloadAt<'_>,
    ) -> Result<Tensor, Error> {
        let buffer = match payload {
            PayloadAt::Inline(_) => return self.tensor(call, meta, payload),
            PayloadAt::Arena(span) => {
                self.arena.destination(call, span).map_err(|outside| Error::invalid(outside.to_string()))?
            }
        };
        self.kinds.tensor(meta, buffer)
    }
}
