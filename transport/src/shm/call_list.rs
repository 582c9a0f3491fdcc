//! Small calls of one kind in one record: a head for each, then all payloads and metadata, then all keys, which are checked
//! to be text at once. No I/O; bounded by the record.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{
    fields::{Malformed, Sections},
    limits::{CALL_LIST_BYTES_MAX, INLINE_BYTES_MAX, NUMBERS_PER_RECORD},
};
use crate::limits::{KEY_BYTES_MAX, META_BYTES_MAX};

const NO_CALLS: Malformed = Malformed { what: "a list of calls" };

/// One call that sends a small tensor, requests one, or has received one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SmallCall<'a> {
    pub call: u32,
    /// The tensor's name; empty if the call is known.
    pub key: &'a str,
    /// The tensor's metadata; empty in a request.
    pub meta: &'a [u8],
    /// Its bytes; at most [`INLINE_BYTES_MAX`].
    pub bytes: &'a [u8],
}

/// The head of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Head {
    call: u32,
    key_bytes: u16,
    meta_bytes: u16,
    inline_bytes: u16,
    unused: u16,
}

/// The number of calls in a list, and the lengths of its parts.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct ListFixed {
    count: u16,
    key_bytes: u16,
    data_bytes: u16,
    unused: u16,
}

/// Calls in order, at most [`NUMBERS_PER_RECORD`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CallList<'a> {
    heads: &'a [Head],
    data: &'a [u8],
    keys: &'a str,
}

impl<'a> CallList<'a> {
    #[inline]
    pub fn len(&self) -> usize {
        self.heads.len()
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    #[inline]
    pub fn iter(self) -> impl ExactSizeIterator<Item = SmallCall<'a>> {
        let CallList { heads, mut data, mut keys } = self;
        heads.iter().map(move |head| {
            let (key, meta, bytes);
            // The sum of the lengths, and the ends of the keys, were checked when the list was read.
            (key, keys) = keys.split_at(head.key_bytes.into());
            (meta, data) = data.split_at(head.meta_bytes.into());
            (bytes, data) = data.split_at(head.inline_bytes.into());
            SmallCall { call: head.call, key, meta, bytes }
        })
    }

    /// The first calls, at most so many, and those behind them.
    #[inline]
    pub fn split_at(self, count: usize) -> (Self, Self) {
        let (first, rest) = self.heads.split_at(count.min(self.heads.len()));
        let (mut key_bytes, mut data_bytes) = (0, 0);
        for head in first {
            key_bytes += usize::from(head.key_bytes);
            data_bytes += usize::from(head.meta_bytes) + usize::from(head.inline_bytes);
        }
        let ((key, keys), (datum, data)) = (self.keys.split_at(key_bytes), self.data.split_at(data_bytes));
        (CallList { heads: first, data: datum, keys: key }, CallList { heads: rest, data, keys })
    }

    /// True if the calls have the same keys in the same order, as far as the shorter list goes.
    #[inline]
    pub fn begins_as(&self, other: &CallList<'_>) -> bool {
        let bytes = self.keys.len().min(other.keys.len());
        self.keys.as_bytes()[..bytes] == other.keys.as_bytes()[..bytes]
            && self.heads.iter().zip(other.heads).all(|(head, other)| head.key_bytes == other.key_bytes)
    }

    /// The calls' numbers.
    #[inline]
    pub fn numbers(self) -> impl ExactSizeIterator<Item = u32> {
        self.heads.iter().map(|head| head.call)
    }

    /// All keys, one behind the other.
    #[inline]
    pub fn keys(self) -> &'a str {
        self.keys
    }

    /// The length of each key.
    #[inline]
    pub fn key_lengths(self) -> impl ExactSizeIterator<Item = u16> {
        self.heads.iter().map(|head| head.key_bytes)
    }

    /// Metadata and bytes of all tensors.
    #[inline]
    pub fn data(self) -> &'a [u8] {
        self.data
    }

    /// The lengths of metadata and bytes of each tensor.
    #[inline]
    pub fn lengths(self) -> impl ExactSizeIterator<Item = (u16, u16)> {
        self.heads.iter().map(|head| (head.meta_bytes, head.inline_bytes))
    }

    /// Bytes of all tensors.
    #[inline]
    pub fn bytes(self) -> u64 {
        self.heads.iter().map(|head| u64::from(head.inline_bytes)).sum()
    }

    /// For calls that request tensors.
    pub(super) fn has_no_data(&self) -> Result<(), Malformed> {
        if self.data.is_empty() { Ok(()) } else { Err(Malformed { what: "data of calls that ask" }) }
    }

    /// For calls that are known.
    #[inline]
    pub(super) fn has_no_keys(&self) -> Result<(), Malformed> {
        if self.keys.is_empty() { Ok(()) } else { Err(Malformed { what: "keys of calls that are known" }) }
    }

    #[inline]
    pub(super) fn fixed(&self) -> ListFixed {
        let CallList { heads, data, keys } = self;
        // All lengths fit into a record, and so into 16 bits.
        ListFixed { count: heads.len() as u16, key_bytes: keys.len() as u16, data_bytes: data.len() as u16, unused: 0 }
    }

    #[inline]
    pub(super) fn sections(&self) -> [&'a [u8]; 3] {
        [self.heads.as_bytes(), self.data, self.keys.as_bytes()]
    }

    /// Reads the list in a record, which may hold anything.
    #[inline]
    pub(super) fn read(fixed: ListFixed, sections: &mut Sections<'a>) -> Result<Self, Malformed> {
        let heads: &[Head] = sections.numbers("calls", fixed.count, NUMBERS_PER_RECORD)?;
        let data = sections.bytes("data of calls", fixed.data_bytes, CALL_LIST_BYTES_MAX)?;
        // Arrivals have no keys, so no text needs to be checked.
        let keys = match fixed.key_bytes {
            0 => "",
            key_bytes => sections.text("keys of calls", key_bytes, CALL_LIST_BYTES_MAX)?,
        };
        let (mut data_end, mut key_end) = (0, 0);
        for head in heads {
            data_end += usize::from(head.meta_bytes) + usize::from(head.inline_bytes);
            key_end += usize::from(head.key_bytes);
            if !head.is_short() || !keys.is_char_boundary(key_end) {
                return Err(NO_CALLS);
            }
        }
        if (data_end, key_end) == (data.len(), keys.len()) { Ok(CallList { heads, data, keys }) } else { Err(NO_CALLS) }
    }
}

impl Head {
    #[inline]
    fn is_short(self) -> bool {
        let [key, meta, inline] = [self.key_bytes, self.meta_bytes, self.inline_bytes].map(usize::from);
        key <= KEY_BYTES_MAX && meta <= META_BYTES_MAX && inline <= INLINE_BYTES_MAX
    }
}

/// A list that grows up to what a record holds; its memory is reused.
#[derive(Debug, Default)]
pub struct CallListBuf {
    heads: Vec<Head>,
    data: Vec<u8>,
    keys: String,
}

impl CallListBuf {
    /// Adds a call; false if it does not fit behind the others, or into any record: then nothing was added.
    #[inline]
    pub fn push(&mut self, SmallCall { call, key, meta, bytes }: SmallCall<'_>) -> bool {
        let long = key.len() + meta.len() + bytes.len();
        let all = (self.heads.len() + 1) * size_of::<Head>() + self.data.len() + self.keys.len() + long;
        let is_short = key.len() <= KEY_BYTES_MAX && meta.len() <= META_BYTES_MAX && bytes.len() <= INLINE_BYTES_MAX;
        if !is_short || all > CALL_LIST_BYTES_MAX || self.heads.len() == NUMBERS_PER_RECORD {
            return false;
        }
        let [key_bytes, meta_bytes, inline_bytes] = [key.len(), meta.len(), bytes.len()].map(|len| len as u16);
        self.heads.push(Head { call, key_bytes, meta_bytes, inline_bytes, unused: 0 });
        self.data.extend_from_slice(meta);
        self.data.extend_from_slice(bytes);
        self.keys.push_str(key);
        true
    }

    /// Becomes a copy of a list.
    #[inline]
    pub fn copy_from(&mut self, list: CallList<'_>) {
        self.clear();
        self.heads.extend_from_slice(list.heads);
        self.data.extend_from_slice(list.data);
        self.keys.push_str(list.keys);
    }

    /// Becomes what has arrived for these recvs: the tensors of as many sends.
    #[inline]
    pub fn arrivals_of(&mut self, recvs: CallList<'_>, sends: CallList<'_>) {
        self.clear();
        let arrived = |(recv, send): (&Head, &Head)| Head { call: recv.call, key_bytes: 0, ..*send };
        self.heads.extend(recvs.heads.iter().zip(sends.heads).map(arrived));
        self.data.extend_from_slice(sends.data);
    }

    /// Numbers the calls in order.
    #[inline]
    pub fn number(&mut self, mut next: impl FnMut() -> u32) {
        self.heads.iter_mut().for_each(|head| head.call = next());
    }

    pub fn clear(&mut self) {
        let CallListBuf { heads, data, keys } = self;
        heads.clear();
        data.clear();
        keys.clear();
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    #[inline]
    pub fn as_list(&self) -> CallList<'_> {
        CallList { heads: &self.heads, data: &self.data, keys: &self.keys }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small<'a>(call: u32, key: &'a str, bytes: &'a [u8]) -> SmallCall<'a> {
        SmallCall { call, key, meta: &[1, 2, 3], bytes }
    }

    #[test]
    fn calls_come_out_in_order_and_as_many_as_fit() {
        let mut list = CallListBuf::default();
        let calls = [small(7, "w", b"abc"), small(u32::MAX, "ключ", &[]), small(0, "", &[9; INLINE_BYTES_MAX])];
        assert!(calls.iter().all(|call| list.push(*call)));
        assert_eq!(list.as_list().iter().collect::<Vec<_>>(), calls);
        list.clear();
        let taken = (0..).take_while(|call| list.push(small(*call, "", &[]))).count();
        assert_eq!((taken, list.as_list().len()), (NUMBERS_PER_RECORD, NUMBERS_PER_RECORD));
        list.clear();
        let taken = (0..).take_while(|call| list.push(small(*call, "w", &[1; INLINE_BYTES_MAX]))).count();
        assert!(taken > 8 && taken < NUMBERS_PER_RECORD, "{taken}");
        assert_eq!(list.as_list().iter().map(|call| call.call).collect::<Vec<_>>(), Vec::from_iter(0..taken as u32));
    }

    #[test]
    fn lists_of_the_same_keys_are_matched_part_by_part() {
        let list = |first: u32, keys: &[&str], bytes: &[u8]| {
            let mut list = CallListBuf::default();
            assert!(keys.iter().zip(first..).all(|(key, call)| list.push(small(call, key, bytes))));
            list
        };
        let (recvs, sends) = (list(10, &["w", "ключ", "", "v"], &[]), list(20, &["w", "ключ"], b"abc"));
        let (recvs, sends) = (recvs.as_list(), sends.as_list());
        assert!(recvs.begins_as(&sends) && sends.begins_as(&recvs) && recvs.begins_as(&CallList::default()));
        // The same text, cut elsewhere.
        for keys in [&["wк", "люч"][..], &["w", "кл", "юч"], &["v", "ключ"], &["w", "ключ", "x"]] {
            assert!(!recvs.begins_as(&list(0, keys, &[]).as_list()), "{keys:?}");
        }
        let (first, rest) = recvs.split_at(2);
        let mut arrived = CallListBuf::default();
        arrived.arrivals_of(first, sends);
        let expected = [10, 11].map(|call| SmallCall { key: "", ..small(call, "", b"abc") });
        assert_eq!(arrived.as_list().iter().collect::<Vec<_>>(), expected);
        assert_eq!((sends.bytes(), rest.numbers().collect::<Vec<_>>()), (6, vec![12, 13]));
        assert_eq!(rest.iter().map(|call| call.key).collect::<Vec<_>>(), ["", "v"]);
        let (all, none) = recvs.split_at(9);
        assert_eq!((all, none.is_empty()), (recvs, true));
        arrived.copy_from(rest);
        assert_eq!(arrived.as_list(), rest);
    }

    #[test]
    fn the_longest_call_fits_alone_and_a_longer_one_not_at_all() {
        let (key, meta, bytes) = ("k".repeat(KEY_BYTES_MAX), [1; META_BYTES_MAX], [2; INLINE_BYTES_MAX]);
        let mut list = CallListBuf::default();
        let longest = SmallCall { call: 1, key: &key, meta: &meta, bytes: &bytes };
        assert!(list.push(longest) && !list.push(small(2, &key, &bytes)));
        list.clear();
        for longer in [
            SmallCall { key: &(key.clone() + "k"), ..longest },
            SmallCall { meta: &[1; META_BYTES_MAX + 1], ..longest },
            SmallCall { bytes: &[1; INLINE_BYTES_MAX + 1], ..longest },
        ] {
            assert!(!list.push(longer) && list.is_empty());
        }
    }
}
