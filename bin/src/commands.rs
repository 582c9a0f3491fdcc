//! The subcommands, one file each: `Args` says what the command takes, `run` does it.

pub mod bench;
pub mod check;
pub mod demo;
pub mod map;
pub mod recv;
pub mod send;
mod transfer;
