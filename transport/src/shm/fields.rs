//! Conversion between a record's words and fields: a fixed part first, then variable-length bytes. Works only in private
//! memory; every length is checked against the record's.

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{
    limits::{FIXED_BYTES_MAX, RECORD_WORDS_MAX},
    record::Record,
    text::padded_text,
};

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

impl From<TooLong> for Malformed {
    fn from(field: TooLong) -> Self {
        Self { what: field.what }
    }
}

/// Checks a field's length against its limit, which fits into 16 bits, as limits.rs asserts.
#[inline]
pub(super) fn at_most(what: &'static str, len: usize, limit: usize) -> Result<u16, TooLong> {
    debug_assert!(limit <= usize::from(u16::MAX), "a length would lose its upper bits in a record");
    if len <= limit { Ok(len as u16) } else { Err(TooLong { what, len, limit }) }
}

/// The beginning of a text that fits into `limit` bytes, cut between two characters.
pub(super) fn cut(text: &str, limit: usize) -> &str {
    &text[..text.floor_char_boundary(limit)]
}

/// Bytes that pad a fixed part to whole words: written as zeros, ignored when read.
pub(super) type Unused<const BYTES: usize> = [u8; BYTES];

/// Structs with the same layout in a record as in memory: the fixed parts of records.
macro_rules! fixed_parts {
    ($($(#[$meta:meta])* struct $name:ident { $($field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
        #[repr(C)]
        #[allow(dead_code, reason = "the other side may be the only one that names a field")]
        pub(super) struct $name {
            $(pub(super) $field: $type),*
        }
    )*};
}
pub(super) use fixed_parts;

fixed_parts! {
    /// For records that carry only a number, and for numbers that fill a word.
    struct Number { number: u32, unused: Unused<4> }
}

impl Number {
    #[inline]
    pub(super) fn new(number: u32) -> Self {
        Self { number, unused: [0; 4] }
    }
}

impl Record {
    /// Makes this a record of a fixed part and bytes. Each field must have been checked against its limit; limits.rs asserts
    /// that all of them together fit.
    #[inline]
    pub(super) fn fill<F: IntoBytes + Immutable>(&mut self, kind: u8, flags: u8, fixed: F, sections: &[&[u8]]) {
        const { assert!(size_of::<F>() <= FIXED_BYTES_MAX && size_of::<F>().is_multiple_of(8)) };
        let bytes: usize = sections.iter().map(|section| section.len()).sum();
        let len = size_of::<F>() / 8 + bytes.div_ceil(8);
        let words = &mut self.words[..len];
        // The padding of this record must not reveal earlier contents.
        if let Some(last) = words.last_mut() {
            *last = 0;
        }
        let (target, mut rest) = words.as_mut_bytes().split_at_mut(size_of::<F>());
        target.copy_from_slice(fixed.as_bytes());
        for section in sections {
            let (target, after) = rest.split_at_mut(section.len());
            target.copy_from_slice(section);
            rest = after;
        }
        debug_assert!(len <= RECORD_WORDS_MAX, "a record that no ring takes");
        self.become_record(kind, flags, len);
    }

    /// The fixed part, and a reader of the bytes behind it.
    #[inline]
    pub(super) fn parts<F: FromBytes>(&self) -> Result<(F, Sections<'_>), Malformed> {
        let mut sections = Sections { rest: self.words[..self.len + 1].as_bytes() };
        Ok((sections.fixed()?, sections))
    }
}

/// The bytes of a record, taken from front to back.
pub(super) struct Sections<'a> {
    /// Includes the word of zeros behind the content, which no field may contain.
    rest: &'a [u8],
}

const WORD: usize = size_of::<u64>();

impl<'a> Sections<'a> {
    /// The next fields of a fixed part.
    #[inline]
    pub(super) fn fixed<F: FromBytes>(&mut self) -> Result<F, Malformed> {
        const { assert!(size_of::<F>().is_multiple_of(8)) };
        match F::read_from_prefix(self.rest) {
            Ok((fixed, rest)) if rest.len() >= WORD => {
                self.rest = rest;
                Ok(fixed)
            }
            _ => Err(Malformed { what: "a record is too short for its kind" }),
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
        at_most(what, len, limit)?;
        match self.rest.split_at_checked(len) {
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
    pub(super) fn numbers<N>(&mut self, what: &'static str, count: u64, limit: usize) -> Result<&'a [N], Malformed>
    where
        N: FromBytes + Immutable,
    {
        let count = usize::try_from(count).map_err(|_| Malformed { what })?;
        // The count is checked against its limit first, so the product cannot overflow.
        at_most(what, count, limit)?;
        let bytes = self.bytes(what, count * size_of::<N>(), limit * size_of::<N>())?;
        <[N]>::ref_from_bytes(bytes).map_err(|_| Malformed { what })
    }

    /// Checks that only padding is left.
    #[inline]
    pub(super) fn end(self) -> Result<(), Malformed> {
        if self.rest.len() < 2 * WORD { Ok(()) } else { Err(Malformed { what: "a record is too long for its fields" }) }
    }
}
