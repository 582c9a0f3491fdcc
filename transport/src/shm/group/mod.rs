//! Memory by which the processes of one host work on tensors together: collectives and messages between the ranks of a group.
//!
//! Each rank has a segment that it alone writes, and maps those of the others read-only; the kernel enforces it
//! (`F_SEAL_FUTURE_WRITE`). So a rank that goes wrong can give the others wrong bytes, and cannot change theirs. What a rank says is in
//! 32-bit words, which the others wait for by futexes.
//!
//! A segment holds those words; four *slots*, two for each [`Stage`] of a collective; and for each other rank a *mailbox* of a few pieces
//! of messages. [`Bootstrap`] is how ranks that know the names of each other's sockets exchange their segments, without a daemon.
//!
//! Numbers and lengths that others write are checked before they are used. Their tensors' bytes may change while they are read; no
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

/// Most ranks of one group on one host.
pub const RANKS_MAX: usize = 256;

/// Bytes of a slot. A tensor larger than that goes in pieces, of which one is written while the one before is read: a few of them fit a
/// core's second-level cache. (Not tuned: other sizes were not measured.)
pub const SLOT_BYTES: usize = 256 << 10;

/// Words of the description of a call.
pub const CALL_WORDS: usize = 8;

/// Longest reason for which a rank has ended its group.
pub const REASON_BYTES: usize = 504;

/// Pieces of a mailbox: one is read while the next is written.
pub const MAIL_PIECES: usize = 4;

/// Bytes of a piece. Less than a slot, for there are as many mailboxes as pairs.
pub const MAIL_PIECE_BYTES: usize = 32 << 10;
