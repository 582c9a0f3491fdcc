//! Attachments against a daemon that is a thread of the test.

mod allocations;
mod daemon;
mod exchange;
mod fixture;
mod fork;
mod limits;
mod published;
mod pushed;
mod restarted;
mod threads;
mod trouble;
