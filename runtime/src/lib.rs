//! Shards: one pinned thread each, with its own executor, epoll set, timers and memory; nothing is shared.
//!
//! A [`Runtime`] starts the shards and is a handle that any thread may keep. A [`Shard`] is one shard seen from its own thread: it
//! spawns tasks, sleeps, watches descriptors and polls [`Source`]s. A [`ShardRef`] is one shard seen from any thread: it takes jobs
//! through a bounded mailbox. A [`Slab`] is a shard's memory for tensors in flight.
//!
//! ```
//! # #[cfg(feature = "executor")] {
//! use sealane_runtime::{Pin, Runtime, RuntimeSettings};
//!
//! let runtime = Runtime::start(RuntimeSettings { shards: 2, pin: Pin::Off, ..RuntimeSettings::default() })?;
//! let sum = runtime.on_shard(1, async |shard| {
//!     let task = shard.spawn(async { 40 });
//!     task.await.unwrap() + 2
//! });
//! assert_eq!(sum.wait()?, 42);
//! runtime.stop()?;
//! # }
//! # Ok::<(), sealane_runtime::RuntimeError>(())
//! ```
//!
//! Without the feature `executor` (on by default) there are no shards and no executor: only the memory, for programs
//! that share it with a shard of another process.
//!
//! A shard runs on one of two executors, see [`ExecutorChoice`]; nothing outside this crate depends on which.

#![deny(unsafe_code)]

mod handshake;
mod return_stack;
mod stripes;

#[cfg(shards)]
mod alarm;
#[cfg(shards)]
mod cgroup;
#[cfg(not(loom))]
mod counter;
#[cfg(shards)]
mod cpus;
#[cfg(not(loom))]
mod device_memory;
#[cfg(not(loom))]
mod dma_buf;
#[cfg(not(loom))]
mod earliest;
#[cfg(not(loom))]
mod error;
#[cfg(shards)]
mod executor;
#[cfg(not(loom))]
mod histogram;
#[cfg(shards)]
mod idleness;
#[cfg(shards)]
mod join;
#[cfg(shards)]
mod limits;
#[cfg(shards)]
mod load;
#[cfg(shards)]
mod mailbox;
#[cfg(not(loom))]
mod polling;
#[cfg(not(loom))]
pub mod prefetch;
#[cfg(shards)]
mod readiness;
#[cfg(not(loom))]
mod rows;
#[cfg(shards)]
mod runtime;
#[cfg(shards)]
mod settings;
#[cfg(shards)]
mod shard;
#[cfg(not(loom))]
mod slab;
#[cfg(shards)]
mod source;
#[cfg(shards)]
mod stall;
#[cfg(not(loom))]
mod sweep;
#[cfg(shards)]
mod task;
#[cfg(shards)]
mod timers;
#[cfg(shards)]
mod turn;
#[cfg(not(loom))]
mod volatile;

pub use self::handshake::{SleepFlag, Urgency};
pub use self::stripes::Stripe;
#[cfg(shards)]
pub use self::{
    cgroup::{ControlGroups, MemoryLimit},
    cpus::{CpuClaim, Wanted, allowed_cpus, claim_cpus, claimed_cpus, parse_list, usable_cpus},
    error::panic_message,
    executor::{ExecutorChoice, ExecutorKind, try_io_uring},
    join::JoinHandle,
    load::{LoadSnapshot, ShardLoad},
    mailbox::{Job, MailboxFull, ShardRef},
    readiness::{Interest, Readiness},
    runtime::Runtime,
    settings::{Pin, RuntimeSettings},
    shard::{Shard, Sleep},
    source::{Source, SourceId},
    task::TaskHandle,
};
#[cfg(not(loom))]
pub use self::{
    counter::{Counter, Gauge},
    device_memory::{DeviceError, DeviceMemory, HostCopy, MemoryKind},
    dma_buf::{DmaBuf, Reach, Reacher},
    earliest::earliest,
    error::{RuntimeError, WithRemedy},
    histogram::{Histogram, HistogramSnapshot},
    polling::Polling,
    rows::{Rows, STRIPES_MAX},
    slab::{Block, Buffer, Extents, Lender, Slab, SlabFull, SlabSettings},
    sweep::Sweep,
    volatile::{VolatileSlice, VolatileSliceMut, copy_bytes},
};
