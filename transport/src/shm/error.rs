//! Errors of shared memory and its descriptors, apart from misuse by a peer or caller.

use std::{io, path::PathBuf};

use sealane_runtime::WithRemedy;

/// Why shared memory, a bell or a socket could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShmError {
    #[error("{operation} failed: {}", WithRemedy(.source))]
    System { operation: &'static str, source: io::Error },
    /// Memory received over the socket can still change its size, which could kill this process with SIGBUS.
    #[error("shared memory is not sealed against a change of its size (seals {seals:#x})")]
    Unsealed { seals: i32 },
    /// Memory received over the socket does not have the announced size.
    #[error("shared memory has {found} bytes, {announced} were announced")]
    WrongSize { announced: u64, found: u64 },
    #[error("{bytes} bytes of shared memory are more than the {limit} available")]
    TooLarge { bytes: u64, limit: u64 },
    /// The limit on the size of files counts for shared memory too.
    #[error(
        "{bytes} bytes of shared memory exceed the limit on file sizes, {limit} bytes (RLIMIT_FSIZE); raise the limit with `ulimit -f \
         unlimited` in a shell, or LimitFSIZE=infinity in a systemd unit"
    )]
    FileSizeLimit { bytes: u64, limit: u64 },
    /// A segment received over the socket has an invalid header.
    #[error("shared memory is not a segment of this version: its {field} is {found:#x}, not {expected:#x}")]
    NotASegment { field: &'static str, expected: u64, found: u64 },
    /// The path of a socket exists already, from a running daemon or one that was killed.
    #[error("{} exists already", path.display())]
    InUse { path: PathBuf },
}

impl ShmError {
    /// For `map_err` on a result of `nix`.
    pub(super) fn system(operation: &'static str) -> impl FnOnce(nix::errno::Errno) -> Self {
        move |errno| Self::System { operation, source: errno.into() }
    }
}
