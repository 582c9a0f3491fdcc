//! Attachments to a real engine in the test's process.

mod allocations;
mod calls;
#[cfg(feature = "cuda")]
mod cuda;
mod daemon;
mod direct;
mod exchange;
mod fixture;
mod foreign;
mod fork;
mod in_turn;
mod left;
mod limits;
mod moved;
mod pinned;
mod published;
mod pushed;
mod republished;
mod restarted;
mod rings;
mod rows;
#[cfg(feature = "tokio")]
mod runtime;
mod sliced;
mod sockets;
mod stopped;
mod streams;
mod threads;
mod trouble;
mod views;
mod waiter;
