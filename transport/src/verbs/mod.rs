//! The verbs link: RC queue pairs, and per shard one completion queue and one shared receive queue, on an RDMA device.
//!
//! `device.rs` is the device interface; `fake/` implements it in memory, `ibverbs/` on real devices. Everything above it is
//! tested on both. `docs/security.md` says what a hostile peer can do.
//!
//! - **Negotiation** (`negotiation.rs`). The handshake runs over TCP and has a feature bit; then each side offers a queue pair or
//!   says why not. Frames begin when both are connected; otherwise they continue over the same TCP connection, with the reason
//!   in both logs. The connection stays open next to the queue pair: it reports the exit of a process immediately, while RC
//!   notices nothing until something is sent and all retries have failed. New links to a peer whose verbs links fail three
//!   times in a row use TCP for 30 s. A TCP link that is up is replaced after the same time, which doubles with each further
//!   failure, up to half an hour. A link that uses TCP because of this side is replaced as soon as this side can do better, one
//!   every tenth of a second.
//! - **Small** data travels in SENDs: everything queued in a turn, up to 16 KiB each, inline if the device supports that size.
//!   It is copied once into a message buffer and parsed where it arrives.
//! - **Large** payloads (over 8 KiB) travel outside the messages, straight between slab, arena or the consumer's own buffer. By
//!   default the producer writes: the consumer announces its place with the request if it provides memory, and otherwise
//!   answers the offer of a payload with a place; the last write carries the transfer's number as immediate data. With
//!   `verbs.transfer = "read"` the producer names its place and the consumer reads. Writes are split into pieces of 1 MiB, with
//!   at most 4 MiB posted ahead, so a message never waits for more.
//! - **Flow control** (`credits.rs`). A link starts with a window of three receive buffers, busy ones grow to 64; a quarter of
//!   the shared receive queue is reserved for growth, the rest for new links: 1,024 buffers support 256 links. Work requests
//!   are counted per queue pair and per shard, whose completion queue has room for all of them and for all receive buffers. The
//!   fake device fails a test if a sender ever finds no buffer or a completion no entry.
//! - **Registration** (`regions.rs`): slabs once; a client's arena and area at first use, as a whole, on a separate thread per
//!   device; everything else for one transfer, and with `verbs.registration = "dynamic"` everything. Memory that cannot be
//!   registered is copied into messages.
//! - **Memory of devices** (`direct.rs`), where it is exported as a dma-buf: registered at first use as well, and deregistered when
//!   there is no handle to it any more. Payloads and destinations in it are moved as those in host memory, under the same
//!   windows. Until it is registered, and where it cannot be, the session copies it through the host's memory.
//! - **Windows** (`windows.rs`). Regions are not open to peers. A peer writes or reads through a type 2B memory window, bound
//!   through its queue pair to the bytes of one transfer, and invalidated before the tensor is delivered or the payload
//!   returned; also when a response does not use its announced place.
//! - **Cancellation.** A recv that ends while its place is announced does not free its memory: the link revokes the place, and
//!   frees the memory when the producer has confirmed that nothing is in transit (RC delivers in order) and the window is
//!   closed. So a late write hits nothing, and a response that crosses a cancel does not break the link.
//! - **Addresses.** Offers carry the port's current GID and LID; they are read again when the device reports a change. A port
//!   without an address offers nothing until it has one; links over a removed address fail on their own.
//! - **Failure.** After a completion with an error, or when a queue pair, port or device fails, the affected links end, and
//!   their queue pairs are in error and flushed, or destroyed, before any memory is returned. The session continues with the
//!   next link.
//! - **Polling.** The shard polls its completion queue in every turn and peeks at it in between; before it parks it arms the
//!   completion channel, which is in its epoll set, and polls once more. Asynchronous events are in the set too.

mod credits;
pub mod device;
mod direct;
mod failures;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod ibverbs;
mod limits;
mod link;
mod message;
mod negotiation;
mod port;
mod provider;
mod regions;
mod settings;
mod windows;

pub use negotiation::NegotiatedLink;
pub use port::{Depths, Port, PortCounters};
pub use provider::{KIND, PLAINTEXT_REFUSED, Verbs};
pub use settings::{Registration, Transfer, VerbsSettings};

/// Opens the device that `settings` name, using the system's library.
///
/// # Errors
/// The step that failed and what to do about it.
pub fn open(settings: &VerbsSettings) -> Result<Box<dyn device::Device>, device::VerbsError> {
    let Depths { completions, sends } = Depths::of(settings);
    Ok(Box::new(ibverbs::IbDevice::open(settings, completions, sends)?))
}
