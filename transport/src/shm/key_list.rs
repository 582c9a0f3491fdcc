//! Keys of a plan in a record: concatenated, each preceded by its length in 16 bits. No I/O; bounded by
//! `KEY_LIST_BYTES_MAX`.

use super::{fields::Malformed, limits::KEY_LIST_BYTES_MAX};
use crate::limits::KEY_BYTES_MAX;

const LENGTH_BYTES: usize = size_of::<u16>();

const NO_KEYS: Malformed = Malformed { what: "a list of keys" };

/// Keys of a plan, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyList<'a>(&'a [u8]);

impl<'a> KeyList<'a> {
    /// Packs as many keys as fit into one list, from the first on, into `packed`, whose contents are replaced.
    ///
    /// # Errors
    /// [`Malformed`] if the first does not fit.
    pub fn pack<'k>(keys: impl Iterator<Item = &'k str>, packed: &'a mut Vec<u8>) -> Result<Self, Malformed> {
        packed.clear();
        for key in keys {
            if packed.len() + LENGTH_BYTES + key.len() > KEY_LIST_BYTES_MAX {
                if packed.is_empty() {
                    return Err(NO_KEYS);
                }
                break;
            }
            packed.extend_from_slice(&(key.len() as u16).to_le_bytes());
            packed.extend_from_slice(key.as_bytes());
        }
        Ok(KeyList(packed))
    }

    /// The keys in these bytes, which may hold anything.
    pub(super) fn of(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut rest = bytes;
        while !rest.is_empty() {
            rest = next(rest).ok_or(NO_KEYS)?.1;
        }
        Ok(KeyList(bytes))
    }

    pub(super) fn as_bytes(&self) -> &'a [u8] {
        self.0
    }

    pub fn iter(self) -> impl Iterator<Item = &'a str> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let (key, after) = next(rest)?;
            rest = after;
            Some(key)
        })
    }
}

/// The first key, and the bytes behind it.
fn next(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    let length = usize::from(u16::from_le_bytes(*length));
    let (key, rest) = rest.split_at_checked(length).filter(|_| length <= KEY_BYTES_MAX)?;
    Some((std::str::from_utf8(key).ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_out_in_order_and_as_many_as_fit() {
        let mut packed = Vec::new();
        let list = KeyList::pack(["w", "", "ключ"].into_iter(), &mut packed).unwrap();
        assert_eq!(KeyList::of(list.as_bytes()).unwrap().iter().collect::<Vec<_>>(), ["w", "", "ключ"]);
        let long = "k".repeat(KEY_BYTES_MAX);
        let list = KeyList::pack([&*long, "more"].into_iter(), &mut packed).unwrap();
        assert_eq!(list.iter().collect::<Vec<_>>(), [&*long]);
        assert_eq!(KeyList::pack([].into_iter(), &mut packed).unwrap().iter().count(), 0);
        let longer = long + "k";
        assert!(KeyList::pack([&*longer].into_iter(), &mut packed).is_err());
    }

    #[test]
    fn bytes_that_are_no_keys_are_refused() {
        for wrong in [&[1][..], &[1, 0], &[0, 0, 3, 0, b'a', b'b'], &[2, 0, 0xff, 0xfe], &[0xff, 0xff, 1]] {
            assert!(KeyList::of(wrong).is_err(), "{wrong:?}");
        }
    }
}
