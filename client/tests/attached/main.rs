//! Attachments to a real engine, which runs in the process of the test.

mod allocations;
mod daemon;
mod exchange;
mod fixture;
mod foreign;
mod fork;
mod limits;
mod pinned;
mod published;
mod pushed;
mod republished;
mod restarted;
mod sliced;
mod streams;
mod threads;
mod trouble;
mod views;
mod waiter;
