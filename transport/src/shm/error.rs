//! What can go wrong with shared memory and its descriptors, apart from what a peer or a caller does.

use std::{io, path::PathBuf};

/// Why shared memory, a bell or a socket could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShmError {
    /// A system call failed.
    #[error("{operation} failed: {source}")]
    System {
        /// What was being done.
        operation: &'static str,
        /// What the kernel answered.
        source: io::Error,
    },
    /// Memory that came over the socket can still change its size, which would kill whoever touches what is gone.
    #[error("shared memory is not sealed against a change of its size (seals {seals:#x})")]
    Unsealed {
        /// The seals that it has.
        seals: i32,
    },
    /// Memory that came over the socket has another size than was announced.
    #[error("shared memory has {found} bytes, {announced} were announced")]
    WrongSize {
        /// What was announced.
        announced: u64,
        /// What it has.
        found: u64,
    },
    /// More memory than can be asked for.
    #[error("{bytes} bytes of shared memory are more than the {limit} that can be had")]
    TooLarge {
        /// What was asked for.
        bytes: u64,
        /// The most that there may be.
        limit: u64,
    },
    /// A segment that came over the socket does not begin as one.
    #[error("shared memory is not a segment of this version: its {field} is {found:#x}, not {expected:#x}")]
    NotASegment {
        /// The field of the header.
        field: &'static str,
        /// What it should be.
        expected: u64,
        /// What it is.
        found: u64,
    },
    /// The path of a socket is taken, by a daemon that runs or by one that was killed.
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
