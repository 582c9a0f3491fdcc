//! The system under test: see `between` for engines over tcp, verbs or loopback, `attached` for clients of one engine over shm,
//! `streams` for streams of bytes, and `peers` and `training` for measurements with many peers.

mod asking;
mod attached;
mod between;
mod consumer;
mod daemons;
mod engine;
mod peers;
mod producer;
mod streams;
#[cfg(test)]
mod tests;
pub(super) mod training;

pub(super) use attached::{serve as serve_attached, start as attached};
pub(super) use between::{between_processes, in_memory, serve};
pub(super) use daemons::{serve as serve_by_daemon, start as by_daemons};
pub(super) use peers::{GREETERS, greeting_bytes, idle};
pub(super) use streams::{accept, connect};
