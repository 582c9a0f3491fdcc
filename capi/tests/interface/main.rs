//! The C functions, called as C code calls them: by tasks that are attached to a daemon in this process, and by embedded engines.

mod backlog;
#[allow(dead_code, reason = "the client's tests use more of it")]
#[path = "../../../client/tests/attached/daemon.rs"]
mod daemon;
mod embedded;
mod exchange;
mod fixture;
mod left;
mod published;
mod queues;
mod refused;
mod stopped;
mod streams;
mod tables;
