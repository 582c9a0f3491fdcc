//! The bytes of a record, written and read from front to back. Works only in private memory; every length is checked against the record's.

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{codec::head_bytes, limits::RECORD_WORDS_MAX, record::Record, text::padded_text};

/// A range of the arena or of a receive area, not yet checked against its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Span {
    /// Where it begins, in bytes.
    pub offset: u64,
    /// How long it is, in bytes.
    pub len: u64,
}

/// A field is longer than a record may carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what} of length {len}, at most {limit} is possible")]
pub struct TooLong {
    pub what: &'static str,
    /// Bytes, or entries of a list.
    pub len: usize,
    pub limit: usize,
}

/// A record's content does not match its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the other side wrote a malformed record: {what}")]
pub struct Malformed {
    pub what: &'static str,
}

/// The beginning of a text that fits into `limit` bytes, cut between two characters.
pub(super) fn cut(text: &str, limit: usize) -> &str {
    &text[..text.floor_char_boundary(limit)]
}

impl Record {
    /// The head, and a reader of the sections behind it.
    #[inline]
    pub(super) fn head<H: FromBytes>(&self) -> Result<(H, Sections<'_>), Malformed> {
        let bytes = self.words[..self.len + 1].as_bytes();
        match (H::read_from_prefix(bytes), bytes.get(const { head_bytes::<H>() }..)) {
            (Ok((head, _)), Some(rest)) if rest.len() >= WORD => Ok((head, Sections { rest })),
            _ => Err(TOO_SHORT),
        }
    }
}

/// Writes a record from front to back, but its head last. Limits.rs asserts that all fields of a record together fit.
pub(super) struct Sink<'r> {
    record: &'r mut Record,
    /// Bytes so far.
    len: usize,
}

impl<'r> Sink<'r> {
    #[inline]
    pub(super) fn new(record: &'r mut Record, head_bytes: usize) -> Self {
        Sink { record, len: head_bytes }
    }

    #[inline]
    pub(super) fn append(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        self.record.words.as_mut_bytes()[self.len..end].copy_from_slice(bytes);
        self.len = end;
    }

    /// Writes the head; the record is complete.
    #[inline]
    pub(super) fn end<H: IntoBytes + Immutable>(mut self, kind: u8, head: &H) {
        let len = self.len.div_ceil(WORD);
        debug_assert!(len <= RECORD_WORDS_MAX, "a record that no ring takes");
        self.record.words.as_mut_bytes()[..size_of::<H>()].copy_from_slice(head.as_bytes());
        // Padding must not reveal earlier contents.
        self.pad(size_of::<H>());
        self.pad(self.len);
        self.record.become_record(kind, len);
    }

    /// Clears the bytes from here to the end of the word.
    #[inline]
    fn pad(&mut self, from: usize) {
        if !from.is_multiple_of(WORD) {
            // The first bytes of a word are its low ones, as limits.rs asserts.
            self.record.words[from / WORD] &= (1 << (from % WORD * 8)) - 1;
        }
    }
}

const TOO_SHORT: Malformed = Malformed { what: "a record is too short for its kind" };

/// The bytes of a record, taken from front to back.
pub(super) struct Sections<'a> {
    /// Includes the word of zeros behind the content, which no field may contain.
    rest: &'a [u8],
}

const WORD: usize = size_of::<u64>();

impl<'a> Sections<'a> {
    /// The next fields of fixed size.
    #[inline]
    pub(super) fn fixed<F: FromBytes>(&mut self) -> Result<F, Malformed> {
        const { assert!(size_of::<F>().is_multiple_of(8)) };
        match F::read_from_prefix(self.rest) {
            Ok((fixed, rest)) if rest.len() >= WORD => {
                self.rest = rest;
                Ok(fixed)
            }
            _ => Err(TOO_SHORT),
        }
    }

    /// The next `len` bytes, if the field may be that long.
    #[inline]
    pub(super) fn bytes(
        &mut self,
        what: &'static str,
        len: impl Into<usize>,
        limit: usize,
    ) -> Result<&'a [u8], Malformed> {
        let len = len.into();
        match self.rest.split_at_checked(len).filter(|_| len <= limit) {
            Some((section, rest)) if rest.len() >= WORD => {
                self.rest = rest;
                Ok(section)
            }
            _ => Err(Malformed { what }),
        }
    }

    /// The next `len` bytes as text.
    #[inline]
    pub(super) fn text(&mut self, what: &'static str, len: u16, limit: usize) -> Result<&'a str, Malformed> {
        let with_padding = self.rest;
        let text = self.bytes(what, len, limit)?;
        padded_text(with_padding, text.len()).ok_or(Malformed { what })
    }

    /// The next `count` numbers; only numbers may come before them.
    #[inline]
    pub(super) fn numbers<N>(&mut self, what: &'static str, count: u16, limit: usize) -> Result<&'a [N], Malformed>
    where
        N: FromBytes + Immutable,
    {
        let count = usize::from(count);
        let bytes = self.bytes(what, count * size_of::<N>(), limit * size_of::<N>())?;
        <[N]>::ref_from_bytes(bytes).map_err(|_| Malformed { what })
    }

    /// Checks that only padding is left.
    #[inline]
    pub(super) fn end(self) -> Result<(), Malformed> {
        if self.rest.len() < 2 * WORD { Ok(()) } else { Err(Malformed { what: "a record is too long for its fields" }) }
    }
}
