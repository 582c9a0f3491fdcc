//! Channels: the way of small tensors from one task to another.
//!
//! A channel is an ordered pair of tasks. Its small tensors are records in a ring, and the consumer's library matches them with recvs, in its
//! [`Half`] of the channel. The other end of a ring belongs to the other task's process, or to the daemon's shard, which moves the records on
//! to that process with a [`Splice`]. What does not go through the ring goes through the
//! daemon, which this module calls the *switch*: large tensors, which are announced here; tensors sent before the channel existed; and calls
//! in steps that may have ended.
//!
//! | Word | Meaning |
//! |---|---|
//! | settled | of a tensor: taken by a recv, or returned with a reason; each tensor is settled once |
//! | acknowledgement | the number before which all tensors of a direction are settled |
//! | unexpected | of a tensor: it arrived before its recv; the consumer keeps it |
//! | held | of a tensor: there was no credit or no room for it; the producer keeps it, and the consumer asks for it by name |
//! | kept | of a tensor: its place in the ring was needed before it was settled; the producer has copied it out |
//!
//! Threads: a half is used by one thread at a time. Limits: see the modules; everything that a peer can cause is bounded.

#[cfg(not(loom))]
mod consumer;
#[cfg(not(loom))]
mod half;
#[cfg(not(loom))]
mod key;
#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(not(loom))]
mod producer;
mod record;
#[cfg(not(loom))]
mod slots;
#[cfg(not(loom))]
mod splice;
#[cfg(not(loom))]
mod steps;
#[cfg(not(loom))]
mod stored;
#[cfg(not(loom))]
mod table;

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(loom)]
use loom::sync::atomic::AtomicU64;
#[cfg(not(loom))]
use std::sync::atomic::AtomicU64;

pub use crate::ring::RingMemory;

#[cfg(not(loom))]
pub use self::{
    consumer::Posting,
    half::{Half, News, Recv, Refusal, Ring, Wanted},
    key::Seed,
    producer::{Outgoing, Sent},
    record::TENSOR_WORDS_MAX,
    slots::{Content, SLOTS_MAX},
    splice::{Splice, Spliced},
    steps::{ENDED_STEPS_MAX, Steps},
    stored::{HELD_BYTES_MAX, HELD_MAX, Unsettled},
};
use crate::limits::KEY_BYTES_MAX;

/// The memory of one direction of a channel: a ring, and two more words that its reader writes.
pub trait ChannelMemory: RingMemory {
    /// The number before which the reader has settled all tensors.
    fn took(&self) -> &AtomicU64;

    /// How many tensors the reader has returned.
    fn returned(&self) -> &AtomicU64;
}

/// A peer broke the rules of its ring, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the peer broke the channel: {0}")]
pub struct BrokenChannel(&'static str);

/// Most bytes of a tensor that goes through a ring; larger ones are announced.
pub const PAYLOAD_BYTES_MAX: usize = 512;

/// How long a consumer may take to return a tensor, or to say that it has taken it, in milliseconds. After that it counts as silent.
pub const SILENCE_MS: u64 = 1000;

/// Why a tensor was not taken, or a recv has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Why {
    /// Another tensor of its name is unexpected.
    Duplicate = 1,
    /// Its step has ended.
    Aborted = 2,
    /// Its producer took it back.
    Revoked = 3,
    /// The consumer has no room for more unexpected tensors, or the producer for more held ones.
    Full = 4,
    /// Its deadline has passed.
    Late = 5,
    /// The peer's process is gone.
    Gone = 6,
    /// This side has lost its daemon, or was closed.
    Closed = 7,
    /// The channel has ended although both sides live.
    Abandoned = 8,
    /// The switch did not take the call.
    Refused = 9,
    /// The consumer has not said in time whether it has taken the tensor.
    Silent = 10,
    /// The recv's destination does not accept the tensor, which is in the recv's slot to be compared, and stays for the next recv.
    Misfit = 11,
}

/// What a recv brings with it.
pub trait Accepts {
    /// True if the recv can have a tensor with this metadata, in wire form, and so many bytes.
    fn accepts(&self, meta: &[u8], bytes: u64) -> bool;
}

impl Why {
    /// The reason in a record that returns a tensor.
    fn of_return(number: u64) -> Option<Why> {
        match number {
            1 => Some(Why::Duplicate),
            2 => Some(Why::Aborted),
            3 => Some(Why::Revoked),
            4 => Some(Why::Full),
            _ => None,
        }
    }
}
