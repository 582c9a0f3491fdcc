//! The verbs link: RC queue pairs, one completion queue and one shared receive queue a shard, on an RDMA device.
//!
//! `device.rs` is the seam to the device; `fake/` plays a device in memory, and with the feature `verbs`, `ibverbs/` is
//! the real thing. What is above the seam is tested on both. `docs/security.md` says what a hostile peer can do.
//!
//! - **Settling** (`settle.rs`). The greeting runs over TCP and has a feature bit; then each side offers a queue pair or says why
//!   not. Frames begin when both are connected; otherwise they continue over the same TCP connection, with the reason in both
//!   logs. The connection stays open beside the queue pair: it reports the end of a process immediately, where RC notices nothing
//!   until something is sent and all retries are over. New links to a peer whose verbs links fail three times in a row
//!   use TCP for 30 s. A TCP link that is up is replaced after the same time, which doubles with each further failure, up to
//!   half an hour. A link that is TCP because of this side is replaced as soon as this side can do better, one every tenth of
//!   a second.
//! - **Small** data travels in SENDs: all that a turn has queued, up to 16 KiB each, inline where the device copies that much. It is
//!   copied once into a message buffer and parsed where it arrives.
//! - **Large** payloads (over 8 KiB) travel beside the messages, straight between slab, arena or the consumer's own buffer. By
//!   default the producer writes: the consumer announces its place with the request if it brings memory, and otherwise answers the
//!   offer of a payload with a place; the last write carries the transfer's number as immediate data. With
//!   `verbs.transfer = "read"` the producer names its place and the consumer reads. Writes are cut into pieces of 1 MiB, 4 MiB
//!   ahead, so a message never waits for more.
//! - **Flow control** (`credits.rs`). A link starts with a window of three receive buffers, busy ones grow to 64; a quarter of the
//!   shared receive queue is for growth, the rest for beginnings: 1,024 buffers carry 256 links. Work requests are counted per
//!   queue pair and per shard, whose completion queue has room for all of them and for all receive buffers. The fake device
//!   fails a test if a sender ever finds no buffer or a completion no entry.
//! - **Registration** (`regions.rs`): slabs once; a client's arena and area at first use, as a whole, on a thread of the device's
//!   own; everything else for one transfer, and with `verbs.registration = "dynamic"` everything. What cannot be registered is
//!   copied into messages.
//! - **Windows** (`windows.rs`). Regions are not open to peers. What a peer may write or read is a type 2B memory window, bound
//!   through its queue pair to the bytes of one transfer, and invalidated before the tensor is handed on or the payload given
//!   back; also when an answer arrives in another way than into its announced place.
//! - **Cancelling.** A recv that ends while its place is announced does not free its memory: the link revokes the place, and frees
//!   the memory when the producer has said that nothing is on its way (RC delivers in order) and the window is closed. So a late
//!   write hits nothing, and an answer that crosses a cancel does not break the link.
//! - **Addresses.** Offers carry the GID and LID that the port has now; they are read again when the device reports a change. A
//!   port without an address offers nothing until it has one; links by an address that is gone fail by themselves.
//! - **Failure.** After a completion with an error, or when a queue pair, port or device fails, the affected links end, and their queue
//!   pairs are in error and flushed, or destroyed, before any memory is given back. The session continues with the next link.
//! - **Polling.** The shard polls its completion queue in every turn and peeks at it in between; before it parks it arms the
//!   completion channel, which is in its epoll set, and polls once more. Asynchronous events are in the set too.

mod credits;
pub mod device;
mod failures;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(feature = "verbs")]
pub mod ibverbs;
mod limits;
mod link;
mod message;
mod port;
mod regions;
mod settings;
mod settle;
mod windows;

pub use port::{Depths, Port, PortCounters, Told};
pub use settings::{Registration, Transfer, VerbsSettings};
pub use settle::SettledLink;

/// Opens the device that `settings` name, with the system's library.
///
/// # Errors
/// The step that failed and what to do about it; without the feature `verbs`, that this build has none.
#[cfg(feature = "verbs")]
pub fn open(settings: &VerbsSettings) -> Result<Box<dyn device::Device>, device::VerbsError> {
    let Depths { completions, sends } = Depths::of(settings);
    Ok(Box::new(ibverbs::IbDevice::open(settings, completions, sends)?))
}

/// Opens the device that `settings` name, with the system's library.
///
/// # Errors
/// Always: this build has no verbs.
#[cfg(not(feature = "verbs"))]
pub fn open(_settings: &VerbsSettings) -> Result<Box<dyn device::Device>, device::VerbsError> {
    let reason = "this build has no RDMA verbs: build it with `--features verbs`";
    Err(device::VerbsError::new("open the device", reason))
}
