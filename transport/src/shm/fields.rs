//! How a record's words become fields and bytes, and back: fixed words first, then bytes one after the other. Works in
//! private memory alone; every length is checked against the record's.

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{limits::RECORD_WORDS_MAX, record::Record};

/// A part of the arena or of a receive area, not yet checked against its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
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
    /// The field.
    pub what: &'static str,
    /// Its length: bytes, or entries of a list.
    pub len: usize,
    /// The largest that there may be.
    pub limit: usize,
}

/// A record's content is not what its kind says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the other side wrote a malformed record: {what}")]
pub struct Malformed {
    /// What is wrong.
    pub what: &'static str,
}

impl From<TooLong> for Malformed {
    fn from(field: TooLong) -> Self {
        Self { what: field.what }
    }
}

/// Holds a field's length to its limit.
#[inline]
pub(super) fn at_most(what: &'static str, len: usize, limit: usize) -> Result<(), TooLong> {
    if len <= limit { Ok(()) } else { Err(TooLong { what, len, limit }) }
}

/// The part of a text that fits into `limit` bytes, cut between two characters.
pub(super) fn cut(text: &str, limit: usize) -> &str {
    &text[..text.floor_char_boundary(limit)]
}

/// `bits` of a word, from bit `shift`, where each field has whole bytes.
macro_rules! part {
    ($word:expr, $shift:expr, $type:ty) => {
        ($word >> $shift) as $type
    };
}
pub(super) use part;

impl Record {
    /// Makes this a record of fixed words and bytes. Each field has been held to its limit, and limits.rs asserts that
    /// all of them together fit.
    #[inline]
    pub(super) fn fill<const FIXED: usize>(&mut self, kind: u8, flags: u8, fixed: [u64; FIXED], sections: &[&[u8]]) {
        let bytes: usize = sections.iter().map(|section| section.len()).sum();
        let len = FIXED + bytes.div_ceil(8);
        let words = &mut self.words[..len];
        // What a record carried before must not be seen in the padding of this one.
        if let Some(last) = words.last_mut() {
            *last = 0;
        }
        words[..FIXED].copy_from_slice(&fixed);
        let mut rest = words[FIXED..].as_mut_bytes();
        for section in sections {
            let (target, after) = rest.split_at_mut(section.len());
            target.copy_from_slice(section);
            rest = after;
        }
        (self.kind, self.flags, self.len) = (kind, flags, len);
        debug_assert!(len <= RECORD_WORDS_MAX);
    }

    /// The fixed words, and a reader of the bytes behind them.
    #[inline]
    pub(super) fn parts<const FIXED: usize>(&self) -> Result<([u64; FIXED], Sections<'_>), Malformed> {
        let Some((fixed, rest)) = self.content().split_first_chunk() else {
            return Err(Malformed { what: "a record is too short for its kind" });
        };
        Ok((*fixed, Sections { rest: rest.as_bytes() }))
    }
}

/// The bytes behind the fixed words, taken from front to back.
pub(super) struct Sections<'a> {
    rest: &'a [u8],
}

impl<'a> Sections<'a> {
    /// The next `len` bytes, if the field may be that long.
    #[inline]
    pub(super) fn bytes(&mut self, what: &'static str, len: usize, limit: usize) -> Result<&'a [u8], Malformed> {
        at_most(what, len, limit)?;
        let Some((section, rest)) = self.rest.split_at_checked(len) else { return Err(Malformed { what }) };
        self.rest = rest;
        Ok(section)
    }

    /// The next `len` bytes as text.
    #[inline]
    pub(super) fn text(&mut self, what: &'static str, len: usize, limit: usize) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.bytes(what, len, limit)?).map_err(|_| Malformed { what })
    }

    /// The next `count` numbers; nothing but numbers may stand before them.
    #[inline]
    pub(super) fn numbers<N>(&mut self, what: &'static str, count: u64, limit: usize) -> Result<&'a [N], Malformed>
    where
        N: FromBytes + Immutable,
    {
        let count = usize::try_from(count).map_err(|_| Malformed { what })?;
        // The count is held to its limit first, so the product cannot overflow.
        at_most(what, count, limit)?;
        let bytes = self.bytes(what, count * size_of::<N>(), limit * size_of::<N>())?;
        <[N]>::ref_from_bytes(bytes).map_err(|_| Malformed { what })
    }

    /// Nothing but padding may be left.
    #[inline]
    pub(super) fn end(self) -> Result<(), Malformed> {
        if self.rest.len() < 8 { Ok(()) } else { Err(Malformed { what: "a record is too long for its fields" }) }
    }
}
