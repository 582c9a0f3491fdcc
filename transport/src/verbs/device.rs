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

/// Memory that the device may read and write, by its two keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// Names it in [`Device::deregister`] and in [`Work::Bind`].
    pub id: u32,
    /// For this side's own work requests.
    pub lkey: u32,
    /// For the peer's; of use to it only if the region was registered as open to peers.
    pub rkey: u32,
}

/// Who may use a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// This side, and peers through windows that are bound to parts of it.
    Windows,
    /// Every peer that knows the key: for devices without windows.
    Peers,
}

/// Bytes of registered memory on this side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Where they begin.
    pub address: u64,
    /// How many they are.
    pub bytes: u32,
    /// The region's local key.
    pub lkey: u32,
}

/// Bytes of the peer's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remote {
    /// Where they begin.
    pub address: u64,
    /// The window's key, or the region's.
    pub rkey: u32,
}

/// What a window lets the peer do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grant {
    /// Read the bytes.
    Read,
    /// Write them.
    Write,
}

/// A memory window (of type 2B, InfiniBand specification 10.6.7.2): gives one queue pair's peer a part of a region until
/// it is invalidated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Names it in [`Work::Bind`].
    pub id: u32,
    /// Its key: what it is bound to next uses [`next_key`](Self::next_key) of it.
    pub rkey: u32,
}

impl Window {
    /// The key for the next bind: the low byte is the owner's to choose, and counts up so that an old key opens nothing.
    pub fn next_key(self) -> u32 {
        (self.rkey & !0xff) | (self.rkey.wrapping_add(1) & 0xff)
    }
}

/// A work request for a queue pair's send queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// A message into one buffer of the peer's shared receive queue.
    Send(Piece),
    /// The same; the bytes are copied by the call itself, and need not be registered. At most
    /// [`QueuePair::inline_bytes`].
    SendInline {
        /// Where they begin.
        address: u64,
        /// How many they are.
        bytes: u32,
    },
    /// Bytes into the peer's memory; with a word, this takes one buffer of the peer's shared receive queue, and tells it so.
    Write {
        /// The bytes.
        from: Piece,
        /// Where to.
        to: Remote,
        /// The word.
        word: Option<u32>,
    },
    /// Bytes out of the peer's memory.
    Read {
        /// Where to.
        into: Piece,
        /// Where from.
        from: Remote,
    },
    /// Opens part of a region to the peer of this queue pair.
    Bind {
        /// The window.
        window: Window,
        /// Its new key.
        rkey: u32,
        /// The region.
        region: u32,
        /// Where the part begins.
        address: u64,
        /// Its length.
        bytes: u64,
        /// What the peer may do.
        grant: Grant,
    },
    /// Closes what a bind has opened under this key.
    Invalidate {
        /// The key.
        rkey: u32,
    },
}

/// A work request with its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Post {
    /// Comes back with its completion.
    pub id: u64,
    /// A completion is wanted also if it succeeds; one that fails always has one. Work requests of a queue pair complete in
    /// the order in which they were posted.
    pub signaled: bool,
    /// The request.
    pub work: Work,
}

/// What the completion queue tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// The id that was posted. [`RECEIVED`] is set in those of receive buffers and in no others.
    pub id: u64,
    /// How it ended.
    pub status: Status,
    /// The queue pair's number.
    pub queue_pair: u32,
    /// Bytes received.
    pub bytes: u32,
    /// The word that came with a peer's write; the buffer's bytes are untouched then.
    pub word: Option<u32>,
}

/// The bit that tells ids of receive buffers from all others.
pub const RECEIVED: u64 = 1 << 63;

/// The id of the completion that [`Device::stop`] brings about; nothing is posted under it.
pub const STOPPED: u64 = 1 << 62;

/// How a work request ended; the numbers are those of `ibv_wc_status`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Status(pub u32);

impl Status {
    /// It succeeded.
    pub const SUCCESS: Status = Status(0);
    /// More bytes than a request may have, or than the receive buffer has.
    pub const LOCAL_LENGTH: Status = Status(1);
    /// The queue pair cannot do that, such as invalidating a key that it has not bound.
    pub const LOCAL_OPERATION: Status = Status(2);
    /// A local key or length does not fit.
    pub const LOCAL_PROTECTION: Status = Status(4);
    /// The queue pair was in error before: the request was not carried out.
    pub const FLUSHED: Status = Status(5);
    /// A window could not be bound.
    pub const WINDOW_BIND: Status = Status(6);
    /// The peer rejects it, such as a message that is longer than its receive buffer.
    pub const REMOTE_REJECTED: Status = Status(9);
    /// The peer's memory does not allow it.
    pub const REMOTE_ACCESS: Status = Status(10);
    /// The peer could not complete it.
    pub const REMOTE_OPERATION: Status = Status(11);
    /// The peer does not answer.
    pub const RETRIES_EXCEEDED: Status = Status(12);
    /// The peer's shared receive queue is empty.
    pub const RECEIVER_NOT_READY: Status = Status(13);
    /// The device has failed.
    pub const FATAL: Status = Status(19);

    /// True if it succeeded.
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
    /// Names it to the device; never used again for another.
    pub id: u64,
    /// Its number on the wire (24 bits).
    pub number: u32,
    /// Most bytes of a [`Work::SendInline`]; 0 if there are none.
    pub inline_bytes: u32,
}

/// What each end must know of the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    /// The queue pair's number.
    pub number: u32,
    /// Number of its first packet (24 bits).
    pub first_packet: u32,
    /// The port's address.
    pub gid: [u8; 16],
    /// The port's local identifier; 0 on Ethernet.
    pub lid: u16,
    /// Path MTU in bytes: 256 to 4096. The smaller of both is used.
    pub mtu: u16,
    /// Reads that it answers at the same time.
    pub reads: u8,
}

/// What an open device is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attributes {
    /// Its name, `mlx5_0`.
    pub device: String,
    /// Its port.
    pub port: u8,
    /// Index of the GID.
    pub gid_index: u8,
    /// The GID.
    pub gid: [u8; 16],
    /// The port's local identifier; 0 on Ethernet.
    pub lid: u16,
    /// The path MTU that is asked for, in bytes.
    pub mtu: u16,
    /// Reads that a queue pair answers, and asks, at the same time.
    pub reads: u8,
    /// True if windows can be bound by work requests.
    pub has_windows: bool,
    /// Bytes of one work request at most.
    pub work_bytes_max: u32,
    /// Work requests that a queue pair holds.
    pub send_depth: u32,
    /// Buffers that the shared receive queue holds.
    pub receive_depth: u32,
    /// Entries of the completion queue.
    pub completion_depth: u32,
    /// How device, port and GID were chosen, for a person.
    pub chosen: String,
    /// Whether it registers memory of other devices, by dma-buf; else why not, for a person.
    pub direct: Result<(), String>,
}

/// What came of [`Device::begin_register`] and [`Device::begin_deregister`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RegistrationEvent {
    /// The memory is registered, or could not be.
    Registered {
        /// The number that it was begun under.
        ticket: u64,
        /// The region.
        region: Result<Region, VerbsError>,
    },
    /// This region's registration is undone: the device does not reach the memory any more.
    Deregistered(u32),
}

/// What happened to the device as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AsyncEvent {
    /// The port went down.
    PortDown,
    /// The port is up.
    PortUp,
    /// The port has another GID or LID, or the subnet manager wants it made known anew: see [`Device::refresh`].
    AddressChanged,
    /// The device has failed, or is being removed. Nothing works on it any more.
    DeviceFailed,
    /// A queue pair failed without a completion.
    QueuePairFailed(u32),
    /// A queue pair in error holds no buffer of the shared receive queue any more: the completions of those that it held are in
    /// the completion queue ("last WQE reached", InfiniBand specification 11.6.3.2).
    LastReceive(u32),
    /// The completion queue has overrun, which the limits of this side rule out.
    CompletionQueueOverrun,
}

/// A verb that failed: which, and the system's word for it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{verb}: {reason}")]
pub struct VerbsError {
    /// The verb or the step, `ibv_create_qp` or `queue pair to ready-to-receive`.
    pub verb: &'static str,
    /// Why, for a person.
    pub reason: String,
}

impl VerbsError {
    /// A verb that failed with a reason of ours.
    pub fn new(verb: &'static str, reason: impl Into<String>) -> Self {
        Self { verb, reason: reason.into() }
    }

    /// A verb that failed with a number of the system's.
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
    /// What it is. Changes with [`refresh`](Self::refresh) alone.
    fn attributes(&self) -> &Attributes;

    /// Asks for the port's addresses anew: GID, its index, and LID. The GID stays if the port still has it.
    ///
    /// # Errors
    /// The port has none that fits; the attributes are as before.
    fn refresh(&mut self) -> Result<(), VerbsError>;

    /// Registers memory of the host.
    ///
    /// # Errors
    /// The system's word; for want of lockable memory it says so with the remedy. Memory of a kind that it does not register.
    ///
    /// # Safety
    /// The bytes stay mapped until the region is deregistered.
    unsafe fn register(
        &mut self,
        kind: MemoryKind,
        address: u64,
        bytes: usize,
        access: Access,
    ) -> Result<Region, VerbsError>;

    /// Ends a registration. No posted request uses it, and no window is bound to it.
    fn deregister(&mut self, region: u32);

    /// Registers memory on another thread than the shard's, since that takes time by bytes (every page is looked up and pinned);
    /// [`next_registered`](Self::next_registered) tells how it went, under `ticket`.
    ///
    /// # Errors
    /// It could not be begun; nothing is told then.
    ///
    /// # Safety
    /// The bytes stay mapped until the region is deregistered, the registration is told to have failed, or the device was
    /// dropped.
    unsafe fn begin_register(
        &mut self,
        ticket: u64,
        address: u64,
        bytes: usize,
        access: Access,
    ) -> Result<(), VerbsError>;

    /// The same for memory of another device, which the kernel keeps as long as it is registered.
    ///
    /// # Errors
    /// It could not be begun; nothing is told then. [`Attributes::direct`] says why if none is registered.
    fn begin_register_direct(&mut self, ticket: u64, memory: Arc<DmaBuf>, access: Access) -> Result<(), VerbsError>;

    /// Ends a registration on another thread; told likewise. No posted request uses it, and no window is bound to it.
    fn begin_deregister(&mut self, region: u32);

    /// What has come of what was begun, without waiting.
    fn next_registered(&mut self) -> Option<RegistrationEvent>;

    /// A window that is bound to nothing.
    ///
    /// # Errors
    /// The device has no more.
    fn allocate_window(&mut self) -> Result<Window, VerbsError>;

    /// Gives a window back, whatever it is bound to.
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

    /// Moves a queue pair to the error state: what it holds is flushed, and its peer reaches nothing through it any more.
    /// Windows that were bound through it last end as with [`destroy`](Self::destroy). True if two things follow: a completion
    /// with the id [`STOPPED`], behind those of all that was posted, and [`AsyncEvent::LastReceive`], before which `destroy` may
    /// lose a buffer of the shared receive queue into which a message had begun to come (InfiniBand specification 10.3.1; not
    /// every device tells, nor if it has told before). False if the queue pair was never connected or cannot be stopped.
    fn stop(&mut self, queue_pair: u64) -> bool;

    /// Ends a queue pair. What it had posted may have no completion; completions of it that wait in the completion queue
    /// stay there. Windows that were bound through it last, closed or not, end with it: they can be freed, and nothing else.
    fn destroy(&mut self, queue_pair: u64);

    /// Posts requests, in order. How many were taken; if not all, the first that was not is why.
    ///
    /// # Errors
    /// The number of requests that were taken before the one that was not, and why it was not.
    ///
    /// # Safety
    /// Local memory that a request names stays mapped and registered, is not read by anyone while the request writes to it
    /// nor written while the request reads it (a peer's memory may change: then what arrives is not decided upon), until
    /// its completion or the end of the queue pair.
    unsafe fn post(&mut self, queue_pair: u64, posts: &[Post]) -> Result<(), (usize, VerbsError)>;

    /// Gives buffers to the shared receive queue; each id has [`RECEIVED`] set.
    ///
    /// # Errors
    /// The queue is full, or the device has failed.
    ///
    /// # Safety
    /// As for [`post`](Self::post), for writing.
    unsafe fn post_receives(&mut self, buffers: &[(u64, Piece)]) -> Result<(), VerbsError>;

    /// Moves completions into `into`, `most` at most; how many.
    ///
    /// # Errors
    /// The device has failed.
    fn poll(&mut self, into: &mut Vec<Completion>, most: usize) -> Result<usize, VerbsError>;

    /// From now on the next completion makes [`completion_descriptor`](Self::completion_descriptor) readable. Poll
    /// once more afterwards: what came before is not told.
    ///
    /// # Errors
    /// The device has failed.
    fn arm(&mut self) -> Result<(), VerbsError>;

    /// Takes what made the completion descriptor readable.
    fn disarm(&mut self);

    /// Readable after a completion, if armed.
    fn completion_descriptor(&self) -> BorrowedFd<'_>;

    /// Readable when there is an event.
    fn event_descriptor(&self) -> BorrowedFd<'_>;

    /// The next event, without waiting.
    fn next_event(&mut self) -> Option<AsyncEvent>;
}
