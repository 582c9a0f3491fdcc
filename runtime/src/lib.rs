//! Shards: one pinned thread each, with its own executor, epoll set, timers and memory; nothing is shared.
//!
//! A [`Runtime`] starts the shards and is the handle that any thread may keep. A [`Shard`] is one shard seen from
//! its own thread: it spawns tasks, sleeps, watches descriptors and polls [`Source`]s. A [`ShardRef`] is one
//! shard seen from any thread: it takes jobs through a bounded mailbox. A [`Slab`] is a shard's memory for
//! tensors in flight.
//!
//! ```
//! use sealane_runtime::{Pin, Runtime, RuntimeSettings};
//!
//! let runtime = Runtime::start(RuntimeSettings { shards: 2, pin: Pin::Off, ..RuntimeSettings::default() })?;
//! let sum = runtime.on_shard(1, async |shard| {
//!     let task = shard.spawn(async { 40 });
//!     task.await.unwrap() + 2
//! });
//! assert_eq!(sum.wait()?, 42);
//! runtime.stop()?;
//! # Ok::<(), sealane_runtime::RuntimeError>(())
//! ```
//!
//! Nothing outside this crate knows which executor runs a shard.

#![deny(unsafe_code)]

mod handshake;
mod return_stack;

#[cfg(not(loom))]
mod alarm;
#[cfg(not(loom))]
mod cpus;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod join;
#[cfg(not(loom))]
mod limits;
#[cfg(not(loom))]
mod mailbox;
#[cfg(not(loom))]
mod park;
#[cfg(not(loom))]
mod polling;
#[cfg(not(loom))]
mod probe;
#[cfg(not(loom))]
mod readiness;
#[cfg(not(loom))]
mod runtime;
#[cfg(not(loom))]
mod settings;
#[cfg(not(loom))]
mod shard;
#[cfg(not(loom))]
mod slab;
#[cfg(not(loom))]
mod source;
#[cfg(not(loom))]
mod stall;
#[cfg(not(loom))]
mod task;
#[cfg(not(loom))]
mod timers;
#[cfg(not(loom))]
mod turn;

#[cfg(not(loom))]
pub use self::{
    cpus::{CpuClaim, Wanted, allowed_cpus, claim_cpus},
    error::RuntimeError,
    join::JoinHandle,
    mailbox::{Job, MailboxFull, ShardRef},
    polling::Polling,
    readiness::{Interest, Readiness},
    runtime::Runtime,
    settings::{Pin, RuntimeSettings},
    shard::{Shard, Sleep},
    slab::{Buffer, Slab, SlabFull, SlabSettings},
    source::{Source, SourceId},
    task::TaskHandle,
};
