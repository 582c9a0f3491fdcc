//! What moves a task's tensors: an engine in the task's process, or the daemon that it is attached to. The same to the rest
//! of the demo.

mod attached;
mod embedded;

use std::sync::Arc;
use std::time::Duration;

use sealane_fusion::{Buffer, Error, Tensor};

pub(super) use self::attached::Attached;
pub(super) use self::embedded::Embedded;

use super::peers::PeerLink;
use crate::links::Links;

/// A tensor for a peer.
pub(super) struct Offer {
    pub(super) key: Arc<str>,
    pub(super) tensor: Tensor,
}

/// A tensor from a peer, and the memory that is to take it.
pub(super) struct Wanted {
    pub(super) key: Arc<str>,
    pub(super) destination: Buffer,
}

/// What goes to one peer, or is to come from it.
pub(super) struct With<T> {
    pub(super) peer: String,
    pub(super) tensors: Vec<T>,
}

/// What came from a peer.
pub(super) struct Arrived {
    /// In the order in which they were wanted.
    pub(super) tensors: Vec<Tensor>,
    /// From the request to the arrival, in the order of arrival.
    pub(super) latencies: Vec<Duration>,
    /// From the first request to the last arrival.
    pub(super) elapsed: Duration,
}

/// Moves the tensors of one task.
pub(super) trait Mover {
    /// Memory for a tensor, from which and into which it moves without another copy in this process.
    fn alloc(&self, bytes: usize) -> Result<Buffer, Error>;

    /// Offers tensors to peers.
    fn offer(&mut self, step: i64, offers: Vec<With<Offer>>);

    /// Waits until the peers have all that was offered: then its memory is free to be used again.
    fn settle(&mut self) -> Result<(), Error>;

    /// Receives tensors from all peers at once into their memory, a window of requests to each.
    fn fetch(&mut self, step: i64, wanted: Vec<With<Wanted>>) -> Result<Vec<Arrived>, Error>;

    /// The CPUs that shards in this process are pinned to.
    fn cpus(&self) -> Vec<usize>;

    /// The links of an engine in this process to others.
    fn links(&self) -> Result<Links, Error>;

    /// The same links one by one, and what they carried.
    fn peers(&self) -> Vec<PeerLink>;

    /// Ends it in good order.
    fn finish(self: Box<Self>) -> Result<(), Error>;
}
