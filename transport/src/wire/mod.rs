//! The wire format between two shards: the handshake that opens a link and the frames that follow.
//!
//! `WIRE.md` in this crate is the specification; this module is its only parser and serializer. Numbers are
//! little-endian and unaligned; every length is checked before it is used to index or allocate.

mod ahead;
mod frame;
mod greeting;
mod group;
mod pull;
mod push;

pub use ahead::{
    Ahead, AheadEnd, AheadFrame, AheadRecord, AheadRecords, AheadRecordsBuf, AheadRelease, Ends, Fate, RecordPlace,
};
pub use frame::{
    Abort, Chunk, FRAME_HEADER_BYTES, Failure, Frame, FrameWriter, GoAway, Release, ReleaseEntries, Request, Response,
    RowRequest, parse,
};
pub use greeting::{
    FEATURE_PROBE, FEATURE_STREAMS, FEATURE_VERBS, Greeting, Hello, MAGIC, PREFACE_BYTES, PROOF_BYTES, Reject,
    RejectCode, VERSION_MAX, VERSION_MIN,
};
pub use group::{
    REQUEST_ENTRY_BYTES, RESPONSE_ENTRY_BYTES, RequestGroup, Requests, ResponseGroup, Responses, SmallResponse,
};
pub use pull::{KeySet, MetaGroup, Metas, Part, PartGroup, Parts, Pull, PullFailure, PullFrame};
pub use push::{
    Push, PushFailure, PushFrame, PushGrant, PushGroup, PushOpen, PushRecord, PushRecords, PushRecordsBuf, PushWant,
    Pushes,
};

/// Why bytes are not valid in Sealane's protocol. Each variant names what was read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The first bytes are of another protocol.
    #[error("not a Sealane peer: it began with {0:?}")]
    NotSealane(String),
    /// The two sides share no version.
    #[error("the peer speaks wire versions {theirs_min} to {theirs_max}, this side {VERSION_MIN} to {VERSION_MAX}")]
    Version { theirs_min: u16, theirs_max: u16 },
    #[error("{what} of {found} bytes, at most {limit} are accepted")]
    TooLong {
        /// What the length belongs to.
        what: &'static str,
        found: u64,
        limit: u64,
    },
    /// A body is shorter than its fixed part, or is not divisible as required.
    #[error("{what} is truncated: {found} bytes")]
    Truncated {
        /// What was being read.
        what: &'static str,
        found: usize,
    },
    /// A kind of frame that this version does not know.
    #[error("unknown frame kind {0}")]
    UnknownKind(u8),
    #[error("{0} is not UTF-8")]
    NotUtf8(&'static str),
    #[error("{what} is {found}")]
    BadValue { what: &'static str, found: u64 },
}

/// Reads one fixed part off the front of `body`.
fn fixed<'a, T>(what: &'static str, body: &'a [u8]) -> Result<(&'a T, &'a [u8]), WireError>
where
    T: zerocopy::FromBytes + zerocopy::KnownLayout + zerocopy::Immutable + zerocopy::Unaligned,
{
    T::ref_from_prefix(body).map_err(|_| WireError::Truncated { what, found: body.len() })
}

/// Bytes as text.
///
/// # Errors
/// They are not UTF-8.
pub fn text<'a>(what: &'static str, bytes: &'a [u8]) -> Result<&'a str, WireError> {
    std::str::from_utf8(bytes).map_err(|_| WireError::NotUtf8(what))
}

/// Frames as a peer sends them.
#[cfg(test)]
pub(crate) fn written(write: impl FnOnce(&mut FrameWriter<'_>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&mut FrameWriter(&mut bytes));
    bytes
}
