//! A segment: the memory shared by one client and one shard. The daemon's end belongs to the shard's thread, the client's
//! end to any thread; bounded by its size.
//!
//! A page of header, the trunk's two directions (submissions, completions), the receive area. Words that one side writes while the other
//! polls have separate cache lines.

use std::{os::fd::OwnedFd, sync::Arc, sync::atomic::Ordering};

use sealane_runtime::SleepFlag;

use super::{
    error::ShmError,
    limits::{MEMORY_BYTES_MAX, TRUNK_WORDS},
    mapping::{Mapping, PAGE, Ring, SEGMENT, SharedMemory},
    ring::{Reader, Writer},
};

/// One direction of a trunk.
type Trunk = Ring<TRUNK_WORDS>;

/// Offsets within a segment, in bytes.
mod at {
    pub(super) const MAGIC: u64 = 0;
    pub(super) const LAYOUT: u64 = 8;
    /// The words of the reader of submissions.
    pub(super) const SUBMISSIONS_READER: u64 = LINE;
    pub(super) const COMPLETIONS_READER: u64 = 2 * LINE;
    pub(super) const DAEMON_SLEEP: u64 = 3 * LINE;
    pub(super) const CLIENT_SLEEP: u64 = 4 * LINE;
    pub(super) const SUBMISSIONS: u64 = super::PAGE;
    pub(super) const COMPLETIONS: u64 = SUBMISSIONS + super::TRUNK_WORDS * 8;
    pub(super) const AREA: u64 = COMPLETIONS + super::TRUNK_WORDS * 8;

    /// Two cache lines: the processor fetches them in pairs, so words closer than this disturb each other.
    const LINE: u64 = 128;
}

const _: () = {
    assert!(at::CLIENT_SLEEP + 128 <= at::SUBMISSIONS);
    assert!(at::SUBMISSIONS.is_multiple_of(PAGE) && at::AREA.is_multiple_of(PAGE));
    assert!(at::AREA + MEMORY_BYTES_MAX < u64::MAX);
};

/// "sealane" and a zero, as a little-endian number.
const MAGIC: u64 = u64::from_le_bytes(*b"sealane\0");

/// Number of this layout, and of the words of a direction of its trunk.
const LAYOUT: u64 = 2 << 32 | TRUNK_WORDS;

/// The size of a segment whose receive area has `area_bytes` bytes; both are whole pages.
pub const fn segment_bytes(area_bytes: u64) -> u64 {
    at::AREA.saturating_add(area_bytes)
}

/// The daemon's end of a segment.
#[derive(Debug)]
pub struct DaemonEnd {
    /// The client's requests.
    pub submissions: Reader<Trunk>,
    /// The shard's answers.
    pub completions: Writer<Trunk>,
    area: SharedMemory,
    mapping: Arc<Mapping>,
}

impl DaemonEnd {
    /// Creates a segment; the descriptor is for the client. `area_bytes` is rounded up to whole pages.
    ///
    /// # Errors
    /// [`ShmError::TooLarge`]; [`ShmError::System`] if there is not enough memory.
    pub fn create(area_bytes: u64) -> Result<(Self, OwnedFd), ShmError> {
        if area_bytes > MEMORY_BYTES_MAX {
            return Err(ShmError::TooLarge { bytes: area_bytes, limit: MEMORY_BYTES_MAX });
        }
        let (mapping, fd) = Mapping::create("sealane-segment", segment_bytes(area_bytes), SEGMENT)?;
        mapping.word(at::MAGIC).store(MAGIC, Ordering::Relaxed);
        mapping.word(at::LAYOUT).store(LAYOUT, Ordering::Relaxed);
        let end = Self {
            submissions: Reader::new(Ring::new(&mapping, at::SUBMISSIONS, at::SUBMISSIONS_READER)),
            completions: Writer::new(Ring::new(&mapping, at::COMPLETIONS, at::COMPLETIONS_READER)),
            area: SharedMemory::part(&mapping, at::AREA),
            mapping,
        };
        Ok((end, fd))
    }

    pub fn area(&self) -> &SharedMemory {
        &self.area
    }

    /// Where the shard announces that it sleeps; the client writes here too.
    #[inline]
    pub fn own_sleep(&self) -> &SleepFlag {
        self.mapping.sleep_flag(at::DAEMON_SLEEP)
    }

    /// Tells whether the client must be woken after completions were written.
    #[inline]
    pub fn client_sleep(&self) -> &SleepFlag {
        self.mapping.sleep_flag(at::CLIENT_SLEEP)
    }
}

/// The client's end of a segment.
#[derive(Debug)]
pub struct ClientEnd {
    /// The client's requests.
    pub submissions: Writer<Trunk>,
    /// The shard's answers.
    pub completions: Reader<Trunk>,
    area: SharedMemory,
    mapping: Arc<Mapping>,
}

impl ClientEnd {
    /// Opens a segment that the daemon announced with a receive area of `area_bytes`. Open it only once: a second end would
    /// begin again where the first one did.
    ///
    /// # Errors
    /// [`ShmError::Unsealed`], [`ShmError::WrongSize`], [`ShmError::NotASegment`], or [`ShmError::System`] if it cannot be
    /// mapped.
    pub fn open(fd: &OwnedFd, area_bytes: u64) -> Result<Self, ShmError> {
        let mapping = Mapping::open(fd, segment_bytes(area_bytes), SEGMENT)?;
        for (field, offset, expected) in [("magic", at::MAGIC, MAGIC), ("layout", at::LAYOUT, LAYOUT)] {
            let found = mapping.word(offset).load(Ordering::Relaxed);
            if found != expected {
                return Err(ShmError::NotASegment { field, expected, found });
            }
        }
        Ok(Self {
            submissions: Writer::new(Ring::new(&mapping, at::SUBMISSIONS, at::SUBMISSIONS_READER)),
            completions: Reader::new(Ring::new(&mapping, at::COMPLETIONS, at::COMPLETIONS_READER)),
            area: SharedMemory::part(&mapping, at::AREA),
            mapping,
        })
    }

    pub fn area(&self) -> &SharedMemory {
        &self.area
    }

    /// Where the client announces that it sleeps.
    #[inline]
    pub fn own_sleep(&self) -> &SleepFlag {
        self.mapping.sleep_flag(at::CLIENT_SLEEP)
    }

    /// Tells whether the shard must be woken after submissions were written.
    #[inline]
    pub fn daemon_sleep(&self) -> &SleepFlag {
        self.mapping.sleep_flag(at::DAEMON_SLEEP)
    }
}

#[cfg(test)]
mod tests;
