//! The device interface: the few verbs that Sealane uses on one open device, for one shard. `ibverbs/` calls the system's
//! library, `fake/` implements it in memory.
//!
//! A device is used by its shard alone. It owns one completion queue and one shared receive queue, whose sizes are set
//! when it is opened; posters respect them (`credits.rs`), so that neither can overrun.

#![allow(unsafe_code, reason = "the contract is unsafe to fulfil and to call; nothing unsafe is done here")]

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

pub use sealane_runtime::{DmaBuf, MemoryKind};

/// Memory that the device may read and write, with its two keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// Names it in [`Device::deregister`] and in [`Work::Bind`].
    pub id: u32,
    /// For this side's own work requests.
    pub lkey: u32,
    /// For the peer's work requests; useful to the peer only if the region was registered as open to peers.
    pub rkey: u32,
}

/// Who may use a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// This side, and peers through windows bound to parts of it.
    Windows,
    /// Every peer that knows the key: for devices without windows.
    Peers,
}

/// Bytes of registered memory on this side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    pub address: u64,
    pub bytes: u32,
    /// The region's local key.
    pub lkey: u32,
}

/// Bytes of the peer's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remote {
    pub address: u64,
    /// The window's key, or the region's.
    pub rkey: u32,
}

/// What a window lets the peer do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grant {
    Read,
    Write,
}

/// A memory window (type 2B, InfiniBand specification 10.6.7.2): gives one queue pair's peer access to a part of a region
/// until it is invalidated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Names it in [`Work::Bind`].
    pub id: u32,
    /// Its current key; the next bind uses [`next_key`](Self::next_key).
    pub rkey: u32,
}

impl Window {
    /// The key for the next bind: the owner may choose the low byte, and counts up so that an old key opens nothing.
    pub fn next_key(self) -> u32 {
        (self.rkey & !0xff) | (self.rkey.wrapping_add(1) & 0xff)
    }
}

/// A work request for a queue pair's send queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// A message into one buffer of the peer's shared receive queue.
    Send(Piece),
    /// Like [`Send`](Self::Send), but the call itself copies the bytes, which need not be registered. At most
    /// [`QueuePair::inline_bytes`].
    SendInline { address: u64, bytes: u32 },
    /// Bytes into the peer's memory; with immediate data, this also takes one buffer of the peer's shared receive queue and so
    /// notifies the peer.
    Write {
        from: Piece,
        to: Remote,
        /// The immediate data.
        word: Option<u32>,
    },
    /// Bytes out of the peer's memory.
    Read { into: Piece, from: Remote },
    /// Opens part of a region to the peer of this queue pair.
    Bind {
        window: Window,
        /// The window's new key.
        rkey: u32,
        region: u32,
        address: u64,
        bytes: u64,
        grant: Grant,
    },
    /// Closes what a bind has opened under this key.
    Invalidate { rkey: u32 },
}

/// A work request with its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Post {
    /// Returned with its completion.
    pub id: u64,
    /// Report a completion even if it succeeds; a failure always has one. The work requests of a queue pair complete in the
    /// order in which they were posted.
    pub signaled: bool,
    pub work: Work,
}

/// An entry of the completion queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// The id that was posted. [`RECEIVED`] is set in those of receive buffers and in no others.
    pub id: u64,
    pub status: Status,
    pub queue_pair: u32,
    /// Bytes received.
    pub bytes: u32,
    /// The immediate data of a peer's write; the buffer's bytes are untouched then.
    pub word: Option<u32>,
}

/// The bit that distinguishes ids of receive buffers from all others.
pub const RECEIVED: u64 = 1 << 63;

/// The id of the completion that [`Device::stop`] causes; nothing else is posted with it.
pub const STOPPED: u64 = 1 << 62;

/// How a work request ended; the numbers are those of `ibv_wc_status`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Status(pub u32);

impl Status {
    pub const SUCCESS: Status = Status(0);
    /// More bytes than a request may have, or than fit into the receive buffer.
    pub const LOCAL_LENGTH: Status = Status(1);
    /// The queue pair cannot do that, for example invalidate a key that it has not bound.
    pub const LOCAL_OPERATION: Status = Status(2);
    /// A local key or length does not fit.
    pub const LOCAL_PROTECTION: Status = Status(4);
    /// The queue pair was already in error: the request was not carried out.
    pub const FLUSHED: Status = Status(5);
    /// A window could not be bound.
    pub const WINDOW_BIND: Status = Status(6);
    /// The peer rejects it, for example a message longer than its receive buffer.
    pub const REMOTE_REJECTED: Status = Status(9);
    /// The peer's memory does not allow the access.
    pub const REMOTE_ACCESS: Status = Status(10);
    /// The peer could not complete it.
    pub const REMOTE_OPERATION: Status = Status(11);
    /// The peer does not answer.
    pub const RETRIES_EXCEEDED: Status = Status(12);
    /// The peer's shared receive queue is empty.
    pub const RECEIVER_NOT_READY: Status = Status(13);
    /// The device has failed.
    pub const FATAL: Status = Status(19);

    pub fn is_success(self) -> bool {
        self == Status::SUCCESS
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = match self.0 {
            0 => "success",
            1 => "local length error",
            2 => "local queue pair operation error",
            4 => "local protection error",
            5 => "flushed: the queue pair was in error before",
            6 => "memory window bind error",
            7 => "bad response",
            8 => "local access error",
            9 => "the peer rejected the request",
            10 => "the peer's memory may not be accessed",
            11 => "the peer failed at the request",
            12 => "the peer does not acknowledge (transport retry counter exceeded)",
            13 => "the peer has no receive buffer (RNR retry counter exceeded)",
            19 => "fatal device error",
            20 => "response timeout",
            _ => return write!(f, "completion status {}", self.0),
        };
        f.write_str(said)
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({self})", self.0)
    }
}

/// A reliable connection's local end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuePair {
    /// Identifies it to the device; never reused.
    pub id: u64,
    /// Its number on the wire (24 bits).
    pub number: u32,
    /// Most bytes of a [`Work::SendInline`]; 0 if there are none.
    pub inline_bytes: u32,
}

/// What each end must know about the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    pub number: u32,
    /// Number of its first packet (24 bits).
    pub first_packet: u32,
    /// The port's address.
    pub gid: [u8; 16],
    /// The port's local identifier; 0 on Ethernet.
    pub lid: u16,
    /// Path MTU in bytes: 256 to 4096. The smaller of both is used.
    pub mtu: u16,
    /// Number of reads that it answers at the same time.
    pub reads: u8,
}

/// Properties of an open device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attributes {
    /// Its name, `mlx5_0`.
    pub device: String,
    pub port: u8,
    pub gid_index: u8,
    pub gid: [u8; 16],
    /// The port's local identifier; 0 on Ethernet.
    pub lid: u16,
    /// The requested path MTU, in bytes.
    pub mtu: u16,
    /// Number of reads that a queue pair answers, and issues, at the same time.
    pub reads: u8,
    /// True if windows can be bound by work requests.
    pub has_windows: bool,
    /// Most bytes of one work request.
    pub work_bytes_max: u32,
    /// Number of work requests that a queue pair holds.
    pub send_depth: u32,
    /// Number of buffers that the shared receive queue holds.
    pub receive_depth: u32,
    /// Number of entries of the completion queue.
    pub completion_depth: u32,
    /// How device, port and GID were chosen, human-readable.
    pub chosen: String,
    /// Whether it can register memory of other devices, by dma-buf; otherwise why not, human-readable.
    pub direct: Result<(), String>,
}

/// The result of [`Device::begin_register`] or [`Device::begin_deregister`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RegistrationEvent {
    /// The memory is registered, or could not be.
    Registered {
        /// The ticket under which it was begun.
        ticket: u64,
        region: Result<Region, VerbsError>,
    },
    /// This region is deregistered: the device no longer accesses the memory.
    Deregistered(u32),
}

/// What happened to the device as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AsyncEvent {
    PortDown,
    PortUp,
    /// The port has another GID or LID, or the subnet manager wants it announced again: see [`Device::refresh`].
    AddressChanged,
    /// The device has failed, or is being removed. Nothing works on it any more.
    DeviceFailed,
    /// A queue pair failed without a completion.
    QueuePairFailed(u32),
    /// A queue pair in error no longer holds any buffer of the shared receive queue: the completions of those that it held are
    /// in the completion queue ("last WQE reached", InfiniBand specification 11.6.3.2).
    LastReceive(u32),
    /// The completion queue has overrun, which this side's limits rule out.
    CompletionQueueOverrun,
}

/// A verb that failed: which one, and the system's message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{verb}: {reason}")]
pub struct VerbsError {
    /// The verb or the step, for example `ibv_create_qp` or `queue pair to ready-to-receive`.
    pub verb: &'static str,
    pub reason: String,
}

impl VerbsError {
    /// A verb that failed for a reason of our own.
    pub fn new(verb: &'static str, reason: impl Into<String>) -> Self {
        Self { verb, reason: reason.into() }
    }

    /// A verb that failed with a system error.
    pub fn system(verb: &'static str, error: &std::io::Error) -> Self {
        Self { verb, reason: error.to_string() }
    }
}

/// One open device, used by one shard.
///
/// # Safety
/// Implementors touch memory only as posted requests say, and not after the completion of the request, after
/// [`destroy`](Self::destroy) of its queue pair has returned, or after the device was dropped; a peer's requests touch none after
/// [`stop`](Self::stop).
pub unsafe trait Device {
    /// Its properties. They change only with [`refresh`](Self::refresh).
    fn attributes(&self) -> &Attributes;

    /// Reads the port's addresses again: GID, its index, and LID. The GID stays if the port still has it.
    ///
    /// # Errors
    /// The port has no suitable one; the attributes are unchanged.
    fn refresh(&mut self) -> Result<(), VerbsError>;

    /// Registers host memory.
    ///
    /// # Errors
    /// The system's message, with the remedy if there is not enough lockable memory; or the kind of memory cannot be
    /// registered.
    ///
    /// # Safety
    /// The bytes must stay mapped until the region is deregistered.
    unsafe fn register(
        &mut self,
        kind: MemoryKind,
        address: u64,
        bytes: usize,
        access: Access,
    ) -> Result<Region, VerbsError>;

    /// Ends a registration. No posted request may use it, and no window may be bound to it.
    fn deregister(&mut self, region: u32);

    /// Registers memory on a thread other than the shard's, since the time grows with the size (every page is looked up and
    /// pinned). [`next_registered`](Self::next_registered) reports the result under `ticket`.
    ///
    /// # Errors
    /// It could not be started; nothing is reported then.
    ///
    /// # Safety
    /// The bytes must stay mapped until the region is deregistered, the registration is reported to have failed, or the device
    /// was dropped.
    unsafe fn begin_register(
        &mut self,
        ticket: u64,
        address: u64,
        bytes: usize,
        access: Access,
    ) -> Result<(), VerbsError>;

    /// As [`begin_register`](Self::begin_register), for memory of another device, which the kernel keeps as long as it is
    /// registered.
    ///
    /// # Errors
    /// It could not be started; nothing is reported then. [`Attributes::direct`] says why if none can be registered.
    fn begin_register_direct(&mut self, ticket: u64, memory: Arc<DmaBuf>, access: Access) -> Result<(), VerbsError>;

    /// Ends a registration on another thread; also reported. No posted request may use it, and no window may be bound to it.
    fn begin_deregister(&mut self, region: u32);

    /// The next result of a registration or deregistration, without waiting.
    fn next_registered(&mut self) -> Option<RegistrationEvent>;

    /// A window that is not bound.
    ///
    /// # Errors
    /// The device has no more.
    fn allocate_window(&mut self) -> Result<Window, VerbsError>;

    /// Frees a window, whatever it is bound to.
    fn free_window(&mut self, window: u32);

    /// A queue pair that is not connected.
    ///
    /// # Errors
    /// The device has no more.
    fn create(&mut self) -> Result<QueuePair, VerbsError>;

    /// Connects a queue pair: it can receive and send when this returns. `first_packet` is what the peer was told.
    ///
    /// # Errors
    /// The step that failed.
    fn connect(&mut self, queue_pair: u64, first_packet: u32, peer: &Endpoint) -> Result<(), VerbsError>;

    /// Moves a queue pair to the error state: what it holds is flushed, and its peer can access nothing through it any more.
    /// Windows bound last through it end as with [`destroy`](Self::destroy). True if two things follow: a completion with the
    /// id [`STOPPED`], behind those of everything posted, and [`AsyncEvent::LastReceive`]. If it is destroyed before that
    /// event, a buffer of the shared receive queue may be lost into which a message had begun to come (InfiniBand specification
    /// 10.3.1; not every device reports this, nor if it has before). False if the queue pair was never connected or cannot be
    /// stopped.
    fn stop(&mut self, queue_pair: u64) -> bool;

    /// Ends a queue pair. What it had posted may have no completion; its completions in the completion queue stay there.
    /// Windows bound last through it, closed or not, end with it: the only thing that can be done with them is to free them.
    fn destroy(&mut self, queue_pair: u64);

    /// Posts requests, in order.
    ///
    /// # Errors
    /// The number of requests accepted before the first refused one, and why that was refused.
    ///
    /// # Safety
    /// Until a request's completion or the end of the queue pair, the local memory that it names must stay mapped and
    /// registered; nobody may read it while the request writes to it, nor write to it while the request reads it. (A peer's
    /// memory may change: then nothing may depend on what arrives.)
    unsafe fn post(&mut self, queue_pair: u64, posts: &[Post]) -> Result<(), (usize, VerbsError)>;

    /// Adds buffers to the shared receive queue; each id has [`RECEIVED`] set.
    ///
    /// # Errors
    /// The queue is full, or the device has failed.
    ///
    /// # Safety
    /// As for [`post`](Self::post), for writing.
    unsafe fn post_receives(&mut self, buffers: &[(u64, Piece)]) -> Result<(), VerbsError>;

    /// Moves at most `most` completions to `into`; returns how many.
    ///
    /// # Errors
    /// The device has failed.
    fn poll(&mut self, into: &mut Vec<Completion>, most: usize) -> Result<usize, VerbsError>;

    /// The next completion will make [`completion_descriptor`](Self::completion_descriptor) readable. Poll once more
    /// afterwards: earlier completions are not reported.
    ///
    /// # Errors
    /// The device has failed.
    fn arm(&mut self) -> Result<(), VerbsError>;

    /// Clears what made the completion descriptor readable.
    fn disarm(&mut self);

    /// Readable after a completion, if armed.
    fn completion_descriptor(&self) -> BorrowedFd<'_>;

    /// Readable when there is an event.
    fn event_descriptor(&self) -> BorrowedFd<'_>;

    /// The next event, without waiting.
    fn next_event(&mut self) -> Option<AsyncEvent>;
}
