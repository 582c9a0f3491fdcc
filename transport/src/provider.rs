//! The plug-in interface of a kind of link: what an engine calls to use it without knowing what it is.
//!
//! An engine is given [`LinkProvider`]s with its settings and opens each once on every shard. The resulting
//! [`LinkInterface`] stays on its shard. It offers its feature bit in greetings, which always go over TCP, and takes over
//! the connection to a peer that offers the same. A link that is up is called only through [`Link`]; this module's
//! interfaces make links, poll what they share, and describe them.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use sealane_runtime::{RuntimeError, Slab};

use crate::arena::Handle;
use crate::endpoint_map::TransportAddress;
use crate::limits::FIGURES_MAX;
use crate::link::{Link, LinkKind};
use crate::shm::SharedMemory;
use crate::tcp::TcpLink;

/// A kind of link with its settings, for all shards of an engine.
pub trait LinkProvider: std::fmt::Debug + Send + Sync {
    /// The kind of its links if both sides agree on it; otherwise they are TCP.
    fn kind(&self) -> LinkKind;

    /// The figures that its interfaces count, at most [`FIGURES_MAX`].
    fn figures(&self) -> &'static [Figure] {
        &[]
    }

    /// True if a link of another kind is an error; otherwise it is TCP, with the reason.
    fn is_required(&self) -> bool {
        false
    }

    /// Bytes of memory that an engine locks at startup with this many shards, each with slabs of these sizes.
    fn locked_bytes(&self, _shards: usize, _slab_bytes: [usize; 2], _is_encrypted: bool) -> u64 {
        0
    }

    /// Checks that an engine can start whose peers authenticate as configured; `is_encrypted` if by TLS.
    ///
    /// # Errors
    /// The settings contradict each other.
    fn check(&self, _is_encrypted: bool) -> Result<(), String> {
        Ok(())
    }

    /// Opens the kind on a shard.
    ///
    /// # Errors
    /// The shard requires the kind and cannot open it; the reason.
    fn open(&self, shard: &OpenOn<'_>) -> Result<Opened, String>;
}

/// The shard that a provider is opened on.
#[derive(Debug, Clone, Copy)]
pub struct OpenOn<'a> {
    pub shard: usize,
    /// The slabs that its tensors move from and to.
    pub slabs: [&'a Slab; 2],
    /// The addresses at which peers reach the engine.
    pub addresses: &'a [TransportAddress],
    /// Links are encrypted by TLS.
    pub is_encrypted: bool,
}

/// What a provider opened.
pub struct Opened {
    /// `None` if peers are not even told of the kind.
    pub interface: Option<Box<dyn LinkInterface>>,
    /// Why links that did not go through the interface are TCP.
    pub otherwise: String,
}

/// A kind of link, open on a shard.
pub trait LinkInterface {
    /// The bit of greetings that offers the kind.
    fn feature(&self) -> u64;

    /// The link to the peer at transport address `peer`, which also offers the kind. `tcp` is the connection on which both
    /// greetings were sent, or the welcome is about to be.
    fn link(&self, tcp: TcpLink, peer: &str) -> Box<dyn Link>;

    /// Called in every turn: adds to `into` the links that have something to do.
    fn poll(&self, _into: &mut Vec<Told>) {}

    /// Called between turns: true if [`poll`](Self::poll) would find something; `None` if checking is of no use.
    fn peek(&self) -> Option<bool> {
        None
    }

    /// The shard is about to sleep: the next event must make a descriptor readable. False if there is work already, which
    /// `into` then names.
    fn arm(&self, _into: &mut Vec<Told>) -> bool {
        true
    }

    /// Calls `watch` for each of its descriptors, with a number of its choice below [`DESCRIPTORS_MAX`].
    fn watch(&self, _watch: &mut dyn FnMut(u64, BorrowedFd<'_>) -> Result<(), RuntimeError>) {}

    /// The descriptor with this number was readable. True if links that fell back may do better from now on.
    fn descriptor_ready(&self, _number: u64, _into: &mut Vec<Told>) -> bool {
        false
    }

    /// The latest time to call [`poll`](Self::poll) again if no descriptor becomes readable.
    fn next_timeout(&self) -> Option<Instant> {
        None
    }

    /// A client process has come, whose tensors are in these memories.
    fn add_client(&self, _pid: i32, _memories: &[&SharedMemory]) {}

    /// The client with these memories is gone.
    fn remove_client(&self, _memories: &[&SharedMemory]) {}

    /// Pinned bytes of a memory that was [added](Self::add_client).
    fn pinned_bytes(&self, _memory: &SharedMemory) -> u64 {
        0
    }

    /// What it has done and what it holds, in the order of [`LinkProvider::figures`].
    fn figures(&self) -> [u64; FIGURES_MAX] {
        [0; FIGURES_MAX]
    }
}

/// Most descriptors of one interface.
pub const DESCRIPTORS_MAX: u64 = 2;

/// What a link's owner must do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Told {
    /// The name under which the link was adopted.
    pub link: Handle,
    /// It may have room, or something of its own to do, besides handling what has come.
    pub has_room: bool,
}

/// What a kind of link counts on each shard, as users see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Figure {
    /// Its key in JSON, in the object named after the kind.
    pub name: &'static str,
    /// Its name as a metric, after the kind's name; `None` if it is not a metric.
    pub metric: Option<&'static str>,
    pub help: &'static str,
    /// It only grows; otherwise it can go up and down.
    pub grows: bool,
}
