//! Sealane's transport: who a task's peer is, what the two say to each other, and the links that carry it.
//!
//! Protocol is decided without I/O ([`session`], [`wire`]); links ([`tcp`], [`loopback`]) only move bytes. Both know of a
//! tensor only that it is metadata and payload; what those mean to users is in [`tensor`].

#![deny(unsafe_code)]

#[cfg(not(loom))]
pub mod arena;
#[cfg(not(loom))]
pub mod authentication;
#[cfg(not(loom))]
pub mod call;
#[cfg(not(loom))]
pub mod endpoint_map;
#[cfg(not(loom))]
pub mod error;
#[cfg(not(loom))]
pub mod fault;
#[cfg(not(loom))]
pub mod lane;
pub mod limits;
#[cfg(not(loom))]
pub mod link;
#[cfg(not(loom))]
pub mod loopback;
#[cfg(not(loom))]
pub mod outbox;
#[cfg(not(loom))]
pub mod payload;
#[cfg(not(loom))]
pub mod session;
pub mod shm;
#[cfg(not(loom))]
pub mod tcp;
#[cfg(not(loom))]
pub mod tensor;
#[cfg(not(loom))]
mod transfers;
#[cfg(not(loom))]
pub mod tray;
#[cfg(not(loom))]
pub mod verbs;
#[cfg(not(loom))]
pub mod wire;

#[cfg(not(loom))]
pub use self::{
    arena::{Arena, Handle},
    call::{RecvOptions, RecvOutcome, SendOptions, SendOutcome, Unreceived},
    error::{Code, Error, LinkError},
    limits::SessionLimits,
    link::{Link, LinkKind, Meta},
    payload::Payload,
    tensor::{Tensor, TensorMeta},
    tray::{Keys, Pulled, Tray},
};
