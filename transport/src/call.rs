//! What a caller may say besides step and key, and how calls end: the same whether the engine is in the caller's process
//! or in the daemon.

use std::time::Duration;

use sealane_runtime::Buffer;

use crate::error::Error;
use crate::tensor::Tensor;

/// What a recv may be told besides step and key.
#[derive(Debug, Default)]
pub struct RecvOptions {
    /// How long to wait; the engine's `request_timeout` unless given, `Duration::MAX` for no limit.
    pub timeout: Option<Duration>,
    /// Memory for the tensor; the receive slab's unless given. It comes back in the tensor or in the error.
    pub destination: Option<Buffer>,
}

/// What a send may be told besides step and key.
#[derive(Debug, Default)]
pub struct SendOptions {
    /// How long the tensor waits to be asked for; the engine's `request_timeout` unless given, `Duration::MAX` for no
    /// limit.
    pub timeout: Option<Duration>,
}

/// A recv that ended without a tensor; gives the caller's memory back where it can.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Unreceived {
    /// Why.
    pub error: Error,
    /// The memory that was to take the tensor, unless the tensor was arriving in it when the recv ended.
    pub destination: Option<Buffer>,
}

impl From<Unreceived> for Error {
    fn from(unreceived: Unreceived) -> Error {
        unreceived.error
    }
}

impl From<Error> for Unreceived {
    fn from(error: Error) -> Unreceived {
        Unreceived { error, destination: None }
    }
}

/// How a recv ends.
pub type RecvOutcome = Result<Tensor, Unreceived>;
/// How a send ends: `Ok` once the consumer has released the tensor.
pub type SendOutcome = Result<(), Error>;
