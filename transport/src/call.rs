//! Options and outcomes of calls, the same whether the engine is in the caller's process or in the daemon.

use std::time::Duration;

use sealane_runtime::Buffer;

use crate::destination::Destination;
use crate::error::Error;
use crate::tensor::Tensor;

/// Options of a recv.
#[derive(Debug, Default)]
pub struct RecvOptions {
    /// How long to wait; default the engine's `request_timeout`, `Duration::MAX` for no limit.
    pub timeout: Option<Duration>,
    /// Memory for the tensor; default the receive slab. It is returned in the tensor or in the error. An embedded engine also
    /// accepts a [device's](Buffer::on_device). A tensor that does not [fit](Destination) is refused with InvalidArgument, and stays with
    /// its producer for the next recv.
    pub destination: Option<Destination>,
    /// Fail with Unavailable as soon as the producer's process is known to have ended or detached, even if that was earlier; a
    /// producer that was never there is waited for. Default: a producer that has left is waited for too, since it may come
    /// back. A recv that waits at the moment when its producer leaves fails in either case.
    pub fail_if_gone: bool,
}

/// Options of a pull.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PullOptions {
    /// How long to wait; default the engine's `request_timeout`, `Duration::MAX` for no limit.
    pub timeout: Option<Duration>,
    /// As in [`RecvOptions`]: fail if the publisher has left.
    pub fail_if_gone: bool,
}

/// Options of a send.
#[derive(Debug, Default)]
pub struct SendOptions {
    /// How long the tensor waits to be requested; default the engine's `request_timeout`, `Duration::MAX` for no limit.
    pub timeout: Option<Duration>,
}

/// A recv that ended without a tensor; returns the caller's memory if possible.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Unreceived {
    /// Why.
    pub error: Error,
    /// The destination, unless the tensor was arriving in it when the recv ended.
    pub destination: Option<Buffer>,
}

impl Unreceived {
    /// Returns the caller's memory with the error.
    pub fn returning(error: Error, destination: Option<Destination>) -> Unreceived {
        Unreceived { error, destination: destination.map(Destination::into_memory) }
    }
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

/// The outcome of a recv.
pub type RecvOutcome = Result<Tensor, Unreceived>;
/// The outcome of a send: `Ok` once the consumer has released the tensor.
pub type SendOutcome = Result<(), Error>;
