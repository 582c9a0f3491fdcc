//! Cancellation of recvs from other threads: a job tells the shard that serves them.
//!
//! One small allocation per call.

use std::sync::{Arc, OnceLock};

use sealane_runtime::ShardRef;
use sealane_transport::Handle;

use super::task::submit_always;
use crate::node::Ticket;

/// What the shard calls a call.
#[derive(Debug, Clone, Copy)]
pub(super) enum Name {
    /// A recv.
    Recv(Ticket),
    /// A fused receive.
    Batch(Handle),
}

/// Where the shard leaves its name for a call.
pub(super) type NameTag = Arc<OnceLock<Name>>;

/// How to cancel a call.
pub(super) struct Recall {
    shard: ShardRef,
    tag: NameTag,
}

impl Recall {
    /// For a call that `shard` serves, and the tag for its name.
    pub(super) fn of(shard: ShardRef) -> (Recall, NameTag) {
        let tag = NameTag::default();
        (Recall { shard, tag: tag.clone() }, tag)
    }

    /// Cancels a submitted call; no effect if it has ended. Drop the receiver first, so that a tensor that arrives meanwhile is
    /// returned.
    pub(super) fn give_up(&self) {
        let tag = self.tag.clone();
        // Jobs run in the order in which they were submitted: the call has its name by then, if it still waits.
        submit_always(&self.shard, move |node, _| match tag.get() {
            Some(&Name::Recv(ticket)) => {
                node.cancel(ticket);
            }
            Some(&Name::Batch(batch)) => node.close_batch(batch),
            None => {}
        });
    }
}
