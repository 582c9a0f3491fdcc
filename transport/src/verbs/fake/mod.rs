//! RDMA devices in memory, for tests: as strict as reliable connections on real devices, and stricter where that finds
//! bugs.
//!
//! A [`Fabric`] connects devices of any threads behind one lock. Posting, polling and arming execute due requests; nothing
//! runs in the background. Differences from a real network:
//!
//! - A request to a peer that is not connected yet, or that was told other numbers, ends at once with `RETRIES_EXCEEDED`; one that
//!   finds no receive buffer, at once with `RECEIVER_NOT_READY`.
//! - Places of send queue and shared receive queue are free only once a completion was polled.
//! - A queue pair that fails leaves its peer's as it is, until that one's next request.
//! - A queue pair that is destroyed before it was stopped, and its [`LastReceive`](super::device::AsyncEvent::LastReceive)
//!   taken, takes the buffer of a message along that broke off.
//! - A request may be carried out and its acknowledgement lost.

mod counters;
mod delivery;
mod device;
mod fabric;
mod fault;
mod memory;
mod network;
mod protection;
mod queue_pair;
mod queues;
mod random;
mod settings;
#[cfg(test)]
mod tests;

pub use counters::{Counters, Tally};
pub use device::FakeDevice;
pub use fabric::Fabric;
pub use fault::{Fault, RequestKind, Strike, Verb, Weather};
pub use settings::FakeSettings;
