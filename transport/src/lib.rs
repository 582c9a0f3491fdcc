//! Sealane's transport: endpoint map, protocol and links.
//!
//! Protocol decisions are made without I/O ([`session`], [`wire`]); links ([`tcp`], [`loopback`]) only move bytes. To both, a
//! tensor is just metadata and payload; [`tensor`] defines their meaning.

#![deny(unsafe_code)]

#[cfg(not(loom))]
pub mod arena;
#[cfg(all(feature = "network", not(loom)))]
pub mod authentication;
#[cfg(not(loom))]
pub mod byte_socket;
#[cfg(not(loom))]
pub mod call;
#[cfg(not(loom))]
pub mod chains;
pub mod channel;
#[cfg(not(loom))]
mod destination;
#[cfg(not(loom))]
pub mod endpoint_map;
#[cfg(not(loom))]
pub mod error;
#[cfg(all(any(test, feature = "fake"), not(loom)))]
pub mod fake_device;
#[cfg(all(feature = "network", not(loom)))]
pub mod fault;
#[cfg(not(loom))]
pub mod gathered_rows;
#[cfg(not(loom))]
pub mod if_gone;
#[cfg(not(loom))]
pub mod interrupt;
#[cfg(not(loom))]
pub mod job;
#[cfg(not(loom))]
pub mod lane;
pub mod limits;
#[cfg(all(feature = "network", not(loom)))]
pub mod link;
#[cfg(all(feature = "network", not(loom)))]
pub mod loopback;
#[cfg(not(loom))]
pub mod named_rows;
#[cfg(all(feature = "network", not(loom)))]
pub mod outbox;
#[cfg(not(loom))]
pub mod payload;
#[cfg(all(feature = "network", not(loom)))]
pub mod provider;
#[cfg(not(loom))]
pub mod pull_buffer;
mod ring;
#[cfg(not(loom))]
pub mod row_ids;
#[cfg(all(feature = "network", not(loom)))]
pub mod session;
pub mod shm;
#[cfg(not(loom))]
pub mod slicing;
#[cfg(all(feature = "network", not(loom)))]
mod spares;
#[cfg(all(feature = "network", not(loom)))]
pub mod tcp;
#[cfg(not(loom))]
pub mod tensor;
#[cfg(all(feature = "network", not(loom)))]
pub mod trace;
#[cfg(all(feature = "network", not(loom)))]
mod transfers;
#[cfg(all(feature = "network", not(loom)))]
pub mod verbs;
#[cfg(not(loom))]
pub mod wire;

#[cfg(all(feature = "network", not(loom)))]
pub use self::link::{Link, LinkKind};
#[cfg(not(loom))]
pub use self::{
    arena::{Arena, Handle, reuse_key},
    call::{PullOptions, RecvOptions, RecvOutcome, SendOptions, SendOutcome, Unreceived},
    chains::Chains,
    destination::{Destination, Room},
    error::{Code, Error, Late, LinkError, Operation},
    job::{BadJobName, JobName},
    limits::SessionLimits,
    payload::{Meta, Payload},
    pull_buffer::{Keys, PullBuffer, Pulled},
    slicing::Slicing,
    tensor::{Tensor, TensorMeta},
};
