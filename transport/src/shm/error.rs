//! Errors of shared memory and its descriptors, apart from misuse by a peer or caller.

use std::{io, path::PathBuf};

/// Why shared memory, a bell or a socket could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShmError {
    /// A system call failed.
    #[error("{operation} failed: {source}")]
    System {
        /// The operation that failed.
        operation: &'static str,
        /// The error from the kernel.
        source: io::Error,
    },
    /// Memory received over the socket can still change its size, which could kill this process with SIGBUS.
    #[error("shared memory is not sealed against a change of its size (seals {seals:#x})")]
    Unsealed {
        /// The seals that it has.
        seals: i32,
    },
    /// Memory received over the socket does not have the announced size.
    #[error("shared memory has {found} bytes, {announced} were announced")]
    WrongSize {
        /// The announced size.
        announced: u64,
        /// The actual size.
        found: u64,
    },
    /// More memory than allowed.
    #[error("{bytes} bytes of shared memory are more than the {limit} available")]
    TooLarge {
        /// The requested size.
        bytes: u64,
        /// The largest allowed.
        limit: u64,
    },
    /// A segment received over the socket has an invalid header.
    #[error("shared memory is not a segment of this version: its {field} is {found:#x}, not {expected:#x}")]
    NotASegment {
        /// The field of the header.
        field: &'static str,
        /// The value that it should have.
        expected: u64,
        /// The value that it has.
        found: u64,
    },
    /// The path of a socket exists already, from a running daemon or one that was killed.
    #[error("{} exists already", path.display())]
    InUse {
        /// The path.
        path: PathBuf,
    },
}

impl ShmError {
    /// For `map_err` on a result of `nix`.
    pub(super) fn system(operation: &'static str) -> impl FnOnce(nix::errno::Errno) -> Self {
        move |errno| Self::System { operation, source: errno.into() }
    }
}
