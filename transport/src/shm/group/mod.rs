//! Memory through which the processes of one host work on tensors together: collectives and messages between the ranks of a
//! group.
//!
//! Each rank has a segment that only it can write, and maps those of the others read-only; the kernel enforces this
//! (`F_SEAL_FUTURE_WRITE`). So a faulty rank can give the others wrong bytes, but cannot change theirs. A rank signals by
//! 32-bit words, which the others wait for with futexes.
//!
//! A segment holds those words; four *slots*, two for each [`Stage`] of a collective; and for each other rank a *mailbox*
//! of a few message pieces. With [`Bootstrap`], ranks that know the names of each other's sockets exchange their segments,
//! without a daemon.
//!
//! Numbers and lengths written by others are checked before use. Their tensors' bytes may change while they are read; no
//! decision depends on them.

mod bootstrap;
mod counters;
mod memory;
mod peer_process;

pub use self::{
    bootstrap::{Bootstrap, JoinError, Joined, Neighbour, host, random_bytes},
    counters::{COUNTERS, CounterPage, FoundPage},
    memory::{GroupWords, Mailboxes, OthersSegment, OwnSegment, OwnWords, Slots, Stage, Word, state},
    peer_process::PeerProcess,
};

/// Most ranks of a group on one host.
pub const RANKS_MAX: usize = 256;

/// Bytes of a slot. A larger tensor goes in pieces, of which one is written while the previous is read: a few of them fit
/// into a core's second-level cache. (Not tuned: other sizes were not measured.)
pub const SLOT_BYTES: usize = 256 << 10;

/// Words that describe a call.
pub const CALL_WORDS: usize = 8;

/// Longest reason for which a rank can end its group, in bytes.
pub const REASON_BYTES: usize = 504;

/// Pieces of a mailbox: one is read while the next is written.
pub const MAIL_PIECES: usize = 4;

/// Bytes of a piece. Smaller than a slot, since there are as many mailboxes as pairs.
pub const MAIL_PIECE_BYTES: usize = 32 << 10;
