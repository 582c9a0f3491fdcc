//! The subcommands, one file each: `Args` says what the command takes, `run` does it.

pub mod bench;
pub mod check;
pub mod daemon;
pub mod demo;
pub mod drain;
pub mod forward;
pub mod keys;
pub mod map;
pub mod recv;
pub mod send;
pub mod stat;
mod transfer;
