//! A lane: memory shared by two clients of one host and one user. It holds the two rings of their [channel](crate::channel), which
//! carries small tensors without the daemon, and [rings of bytes](BytesWriter) for streams. The daemon creates the lane, gives it to both
//! clients, and ends it when one of them is gone.
//!
//! Two clients that must not share memory have a lane each, whose other side belongs to a shard: it moves the records of the channel from one
//! lane to the other, and nobody uses the rings of bytes.
//!
//! A side that no longer uses the lane closes its end, after it has told which tensors it took. Only then does the other side send the rest
//! through the daemon, so that no tensor is both taken and sent again.
//!
//! Threads: each end is used by any thread; its rings by one at a time. Limits: the memory has a fixed size.

mod bytes;
#[cfg(not(loom))]
mod memory;

pub use self::bytes::{BytesMemory, BytesReader, BytesWriter};
#[cfg(not(loom))]
pub use self::memory::{DirectLane, LaneBytes, LaneKeeper, LaneNews, Side, Standing, Way};
