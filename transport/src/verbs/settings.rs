//! Settings of the verbs link.

use std::net::{IpAddr, ToSocketAddrs};
use std::time::Duration;

use super::limits::{MESSAGE_BYTES, SEND_BUFFERS};
use crate::endpoint_map::{Host, TransportAddress};

/// How large tensors move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transfer {
    /// The producer writes to memory that the consumer names: with its request if it knows the place, otherwise when it is
    /// offered the tensor.
    #[default]
    Write,
    /// The consumer reads from memory that the producer names with its answer, as TensorFlow's gdr does.
    Read,
}

/// When memory is registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Registration {
    /// Slabs at startup, clients' memory on first use, other memory for each transfer.
    #[default]
    Static,
    /// All memory for each transfer. Slow; for the experiment that shows how slow.
    Dynamic,
}

/// Settings of the verbs link. Names and defaults are those that TensorFlow's verbs read from `RDMA_*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerbsSettings {
    /// The device. `None`: the device with an active port whose network has an address of `near`, else the first.
    pub device: Option<String>,
    /// Its port; `None`: the first active one.
    pub port: Option<u8>,
    /// Index of the port's GID. `None`: the RoCE v2 GID of an address of `near`, else of an IPv4 address, else another RoCE v2
    /// one, else the first.
    pub gid_index: Option<u8>,
    /// Index of the partition key. Default 0.
    pub pkey_index: u16,
    /// Buffers of a shard's shared receive queue. Default 1024, limited by the device.
    pub queue_depth: u32,
    /// Acknowledgement timeout: 4.096 µs times 2 to this power. Default 14.
    pub timeout: u8,
    /// How often an unacknowledged packet is sent again. Default 7.
    pub retry_count: u8,
    /// Service level. Default 0.
    pub service_level: u8,
    /// Path MTU in bytes; `None`: the port's active one.
    pub mtu: Option<u16>,
    /// Traffic class. Default 0.
    pub traffic_class: u8,
    /// How large tensors move. Default [`Transfer::Write`].
    pub transfer: Transfer,
    /// When memory is registered. Default [`Registration::Static`].
    pub registration: Registration,
    /// Most bytes of one client's memory that a shard registers, and so pins; the rest travels by copy. Default 17 GiB.
    pub client_pinned_bytes_max: u64,
    /// How long a peer is reached over TCP after its verbs links have failed several times in a row. Default 30 s.
    pub retry_after: Duration,
    /// This side's own addresses, at which peers reach it. See [`reached_at`](Self::reached_at). Default: none.
    pub near: Vec<IpAddr>,
}

impl VerbsSettings {
    /// These settings for an engine that peers reach at these transport addresses: fills in [`near`](Self::near). Names are
    /// looked up; those without an address are left out.
    pub fn reached_at<'a>(mut self, addresses: impl IntoIterator<Item = &'a TransportAddress>) -> Self {
        for address in addresses {
            match &address.host {
                Host::V4(address) => self.near.push(IpAddr::V4(*address)),
                Host::V6(address) => self.near.push(IpAddr::V6(*address)),
                Host::Name(name) => {
                    let found = (&**name, address.port).to_socket_addrs();
                    self.near.extend(found.into_iter().flatten().map(|address| address.ip()));
                }
            }
        }
        self
    }

    /// Bytes that an engine registers at startup: the message buffers and, unless memory is registered for each transfer, both
    /// slabs, of every shard. Clients' arenas are added once for each shard.
    pub fn registered_bytes(&self, shards: usize, slab_bytes: [usize; 2]) -> u64 {
        let message_buffers = (u64::from(self.queue_depth) + SEND_BUFFERS as u64) * MESSAGE_BYTES as u64;
        let [send, receive] = match self.registration {
            Registration::Static => slab_bytes.map(|bytes| bytes as u64),
            Registration::Dynamic => [0; 2],
        };
        message_buffers.saturating_add(send).saturating_add(receive).saturating_mul(shards as u64)
    }
}

impl VerbsSettings {
    /// The defaults, which the program's settings read from here. [`retry_after`](Self::retry_after) is long enough to plug in
    /// a cable or reset a device, and short enough to return to verbs within a few steps.
    pub const DEFAULT: &VerbsSettings = &VerbsSettings {
        device: None,
        port: None,
        gid_index: None,
        pkey_index: 0,
        queue_depth: 1024,
        timeout: 14,
        retry_count: 7,
        service_level: 0,
        mtu: None,
        traffic_class: 0,
        transfer: Transfer::Write,
        registration: Registration::Static,
        client_pinned_bytes_max: 17 << 30,
        near: Vec::new(),
        retry_after: Duration::from_secs(30),
    };
}

impl Default for VerbsSettings {
    fn default() -> Self {
        Self::DEFAULT.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn every_shard_registers_its_slabs_and_message_buffers() {
        let verbs = VerbsSettings::default();
        // 1024 receive buffers and 256 send buffers of 16 KiB.
        assert_eq!(verbs.registered_bytes(1, [0, 0]), 20 * MIB);
        assert_eq!(verbs.registered_bytes(4, [64 << 20, 32 << 20]), 4 * (64 + 32 + 20) * MIB);
        let dynamic = VerbsSettings { registration: Registration::Dynamic, ..verbs.clone() };
        assert_eq!(dynamic.registered_bytes(4, [64 << 20, 32 << 20]), 4 * 20 * MIB);
        assert_eq!(verbs.registered_bytes(1024, [usize::MAX; 2]), u64::MAX);
    }
}
