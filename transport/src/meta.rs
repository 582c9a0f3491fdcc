//! Metadata of a tensor as the transport carries it.

use std::{fmt, ops::Deref};

use zerocopy::IntoBytes;

/// Opaque bytes, not allocated up to [`INLINE_BYTES`](Self::INLINE_BYTES).
///
/// Bytes in the value itself are copied with it as whole words from one place. A vector would be put together from its length and its
/// bytes, and a processor that copies it elsewhere at once waits until all stores before that are in its cache, which costs more than the
/// rest of a recv where some are on their way to another core.
#[derive(Clone, Default)]
pub struct Meta {
    own: Own,
    /// Longer bytes.
    #[expect(clippy::box_collection, reason = "a tensor is moved often: its size counts more than this rare case")]
    long: Option<Box<Vec<u8>>>,
}

/// What a value holds itself.
#[derive(Clone, Copy, Default)]
struct Own {
    words: [u64; Meta::INLINE_BYTES / 8],
    len: u64,
}

impl Meta {
    /// What the metadata of a tensor of rank 4 takes.
    pub const INLINE_BYTES: usize = 40;

    /// No metadata.
    #[inline]
    pub fn new() -> Meta {
        Meta::default()
    }

    /// A copy of these bytes.
    #[inline]
    pub fn from_slice(bytes: &[u8]) -> Meta {
        let mut own = Own::default();
        let Some(room) = own.words.as_mut_bytes().get_mut(..bytes.len()) else {
            return Meta { own, long: Some(Box::new(bytes.to_vec())) };
        };
        let ((to, to_rest), (words, rest)) = (room.as_chunks_mut::<8>(), bytes.as_chunks::<8>());
        to.iter_mut().zip(words).for_each(|(to, word)| *to = *word);
        to_rest.copy_from_slice(rest);
        own.len = bytes.len() as u64;
        Meta { own, long: None }
    }
}

impl Deref for Meta {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.long {
            None => &self.own.words.as_bytes()[..self.own.len as usize],
            Some(long) => long,
        }
    }
}

impl PartialEq for Meta {
    #[inline]
    fn eq(&self, other: &Meta) -> bool {
        **self == **other
    }
}

impl Eq for Meta {}

impl fmt::Debug for Meta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_the_same_whether_they_are_in_the_value_or_elsewhere() {
        let bytes: Vec<u8> = (0..=255).collect();
        for len in 0..=bytes.len() {
            let meta = Meta::from_slice(&bytes[..len]);
            assert_eq!((&*meta, &*meta.clone()), (&bytes[..len], &bytes[..len]));
            assert_eq!(meta.long.is_some(), len > Meta::INLINE_BYTES);
            assert_ne!(meta, Meta::from_slice(&bytes[..len.wrapping_sub(1).min(bytes.len())]));
            let mut other = bytes[..len].to_vec();
            if let Some(last) = other.last_mut() {
                *last ^= 1;
                assert_ne!(meta, Meta::from_slice(&other));
            }
        }
        assert_eq!(size_of::<Meta>(), 56, "a tensor is moved often");
    }
}
