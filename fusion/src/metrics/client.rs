//! A shard's metrics of one client process of this host.

use std::borrow::Borrow;

use sealane_transport::Tensor;
use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{Roll, SeqLock, TrafficFigures, TrafficMetrics};

/// Traffic between a client and a shard, and calls in flight.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, Serialize, Deserialize)]
#[repr(C)]
pub struct ClientCounters {
    /// Tensors that the client sent, pushed and published.
    pub tensors_sent: u64,
    pub bytes_sent: u64,
    /// Tensors that it received, accepted and pulled.
    pub tensors_received: u64,
    pub bytes_received: u64,
    /// Of the received tensors, those that it views in the arena of their publisher: they were not copied.
    pub tensors_viewed: u64,
    pub bytes_viewed: u64,
    /// Large tensors that it asked to view but that were copied: published by another user's process or from memory that is not a client's,
    /// or views are off, or it had too many.
    pub views_refused: u64,
    /// Its views, now.
    pub views: u64,
    /// Its calls that have not ended, now.
    pub under_way: u64,
    /// Tensors that it had published with the previous daemon, and has published again here by itself.
    pub tensors_published_again: u64,
    pub bytes_published_again: u64,
    /// Tensors that it could not publish again at first.
    pub tensors_not_published_again: u64,
    /// Bytes of its memory that the shard has registered with devices, and so pinned.
    pub pinned_bytes: u64,
}

impl ClientCounters {
    /// Counts a tensor that the client hands over, if it is valid: other claims of the client are not trusted.
    #[inline]
    pub(crate) fn count_sent<T: Borrow<Tensor>, E>(&mut self, tensor: &Result<T, E>) {
        if let Ok(tensor) = tensor {
            // A client may have reported the largest possible count.
            self.count_sent_together(1, tensor.borrow().len() as u64);
        }
    }

    #[inline]
    pub(crate) fn count_sent_together(&mut self, tensors: u64, bytes: u64) {
        self.tensors_sent = self.tensors_sent.saturating_add(tensors);
        self.bytes_sent = self.bytes_sent.saturating_add(bytes);
    }

    #[inline]
    pub(crate) fn count_received(&mut self, tensors: u64, bytes: u64) {
        self.tensors_received = self.tensors_received.saturating_add(tensors);
        self.bytes_received = self.bytes_received.saturating_add(bytes);
    }
}

/// A client's metrics. Written by the shard, read by any thread.
#[derive(Debug)]
pub(crate) struct ClientMetrics {
    pub(crate) task: String,
    pub(crate) pid: i32,
    pub(crate) counters: SeqLock<ClientCounters>,
    /// One for each other task.
    pub(crate) traffic: Roll<TrafficMetrics>,
}

impl ClientMetrics {
    pub(crate) fn figures(&self) -> ClientFigures {
        let of =
            |traffic: &TrafficMetrics| TrafficFigures { peer: traffic.peer.clone(), counters: traffic.counters.read() };
        let mut traffic: Vec<TrafficFigures> = self.traffic.all().iter().map(|traffic| of(traffic)).collect();
        traffic.sort_by(|one, other| one.peer.cmp(&other.peer));
        ClientFigures { task: self.task.clone(), pid: self.pid, counters: self.counters.read(), traffic }
    }
}

/// A shard's metrics of one client.
#[derive(Debug, Clone)]
pub struct ClientFigures {
    pub task: String,
    pub pid: i32,
    pub counters: ClientCounters,
    /// Its traffic by peer task, sorted by name; at most 1,024 are listed separately.
    pub traffic: Vec<TrafficFigures>,
}
