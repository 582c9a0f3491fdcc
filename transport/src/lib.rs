//! Sealane's transport: who a task's peer is, what the two say to each other, and the links that carry it.
//!
//! Protocol is decided without I/O ([`session`], [`wire`]); links ([`tcp`], [`loopback`]) only move bytes. Both know of a
//! tensor only that it is metadata and payload; what those mean to users is in [`tensor`].

#![deny(unsafe_code)]

pub mod arena;
pub mod call;
pub mod endpoint_map;
pub mod error;
pub mod fault;
pub mod lane;
pub mod limits;
pub mod link;
pub mod loopback;
pub mod outbox;
pub mod payload;
pub mod session;
pub mod tcp;
pub mod tensor;
pub mod wire;

pub use arena::{Arena, Handle};
pub use call::{RecvOptions, RecvOutcome, SendOptions, SendOutcome, Unreceived};
pub use error::{Code, Error, LinkError};
pub use limits::SessionLimits;
pub use link::{Link, LinkKind, Meta};
pub use payload::Payload;
pub use tensor::{Tensor, TensorMeta};
