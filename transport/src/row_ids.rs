//! The rows of a table that a request names, in the format of a frame or a record: numbers of 4 or 8 bytes or, if they
//! ascend, the differences between them as varints.
//!
//! Pure. The sender chooses the form, and a reader checks everything before it uses any number.

use crate::limits::{ROW_IDS_BYTES_MAX, ROW_IDS_MAX};
use crate::wire::WireError;

/// The first byte: the form of the others.
const FORM_32: u8 = 0;
const FORM_64: u8 = 1;
/// The first number, then the difference of each to the one before it, in LEB128.
const FORM_ASCENDING: u8 = 2;

/// Most bytes of a number in LEB128.
const VARINT_BYTES_MAX: usize = 10;

/// Most bytes per number if numbers are to be read without checking each: differences between rows are then at most two
/// million.
const SHORT_BYTES: usize = 3;

const _: () = assert!(ROW_IDS_BYTES_MAX < 1 << (63 - 7 * SHORT_BYTES), "a sum of short numbers could overflow");

/// Room that [`encode`] needs for one number, whatever it is.
pub const ID_BYTES_MAX: usize = 1 + VARINT_BYTES_MAX;

/// Checked numbers of rows: at most [`ROW_IDS_MAX`], in at most [`ROW_IDS_BYTES_MAX`] bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowIds<'a> {
    /// As received, including the form.
    bytes: &'a [u8],
    count: usize,
}

impl<'a> RowIds<'a> {
    /// Parses bytes, which may hold anything.
    ///
    /// # Errors
    /// They are not numbers of rows, too many, or too long.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        if bytes.len() > ROW_IDS_BYTES_MAX {
            let (found, limit) = (bytes.len() as u64, ROW_IDS_BYTES_MAX as u64);
            return Err(WireError::TooLong { what: "numbers of rows", found, limit });
        }
        let truncated = WireError::Truncated { what: "numbers of rows", found: bytes.len() };
        let Some((&form, numbers)) = bytes.split_first() else { return Err(truncated) };
        let count = match form {
            FORM_32 if numbers.len().is_multiple_of(4) => numbers.len() / 4,
            FORM_64 if numbers.len().is_multiple_of(8) => numbers.len() / 8,
            FORM_32 | FORM_64 => return Err(truncated),
            // The sum of as many numbers this short as fit into the bytes is far from overflowing.
            FORM_ASCENDING if are_short(numbers) => numbers.iter().filter(|&&byte| byte < 0x80).count(),
            FORM_ASCENDING => {
                let (mut rest, mut last, mut count) = (numbers, 0_u64, 0);
                while !rest.is_empty() {
                    let sum = next_varint(&mut rest).and_then(|step| last.checked_add(step));
                    last = sum.ok_or(WireError::BadValue { what: "number of a row", found: count as u64 })?;
                    count += 1;
                }
                count
            }
            other => return Err(WireError::BadValue { what: "form of numbers of rows", found: other.into() }),
        };
        if count > ROW_IDS_MAX {
            return Err(WireError::TooLong { what: "rows", found: count as u64, limit: ROW_IDS_MAX as u64 });
        }
        Ok(Self { bytes, count })
    }

    pub fn len(self) -> usize {
        self.count
    }

    pub fn is_empty(self) -> bool {
        self.count == 0
    }

    /// The bytes, as [`parse`](Self::parse) reads them.
    pub fn as_bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// Appends the numbers to `into`.
    pub fn decode(self, into: &mut Vec<u64>) {
        let Some((&form, numbers)) = self.bytes.split_first() else { return };
        match form {
            FORM_32 => into.extend(numbers.as_chunks().0.iter().map(|id| u64::from(u32::from_le_bytes(*id)))),
            FORM_64 => into.extend(numbers.as_chunks().0.iter().map(|id| u64::from_le_bytes(*id))),
            _ => {
                // A number is written at each of its bytes, and the write at the last one stays: no branch has to predict which
                // one that is.
                let start = into.len();
                into.resize(start + self.count + 1, 0);
                let (mut place, mut last, mut step, mut shift) = (start, 0_u64, 0_u64, 0);
                for &byte in numbers {
                    step |= u64::from(byte & 0x7f) << (shift & 63);
                    let is_last = byte < 0x80;
                    into[place] = last.wrapping_add(step);
                    place += usize::from(is_last);
                    last = if is_last { last.wrapping_add(step) } else { last };
                    step = if is_last { 0 } else { step };
                    shift = if is_last { 0 } else { shift + 7 };
                }
                into.truncate(start + self.count);
            }
        }
    }
}

/// True if all numbers have at most [`SHORT_BYTES`] bytes, and none is cut off.
fn are_short(numbers: &[u8]) -> bool {
    let goes_on = |bytes: &[u8; SHORT_BYTES]| bytes.iter().fold(0x80, |all, byte| all & byte);
    numbers.last().is_none_or(|&last| last < 0x80)
        && numbers.array_windows().fold(0, |any, bytes| any | goes_on(bytes)) == 0
}

/// The number at the front; `None` if there is none, or it has more than 64 bits.
#[inline]
fn next_varint(rest: &mut &[u8]) -> Option<u64> {
    let (&first, tail) = rest.split_first()?;
    *rest = tail;
    if first < 0x80 {
        return Some(first.into());
    }
    let mut number = u64::from(first & 0x7f);
    for at in 1..VARINT_BYTES_MAX {
        let (&byte, tail) = rest.split_first()?;
        *rest = tail;
        let bits = u64::from(byte & 0x7f);
        // The tenth byte holds only the one remaining bit.
        if at == VARINT_BYTES_MAX - 1 && byte > 1 {
            return None;
        }
        number |= bits << (7 * at);
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

#[inline]
fn put_varint(mut number: u64, into: &mut Vec<u8>) {
    while number >= 0x80 {
        into.push(number as u8 | 0x80);
        number >>= 7;
    }
    into.push(number as u8);
}

/// Appends to `into` as many of `ids`, from the first on, as fit into `room` bytes and into one request; returns how many.
/// Ascending ids take one to three bytes each in most tables, others four, or eight if one needs more than 32 bits.
///
/// # Panics
/// If there is no room for one number, which takes [`ID_BYTES_MAX`].
pub fn encode(ids: &[u64], room: usize, into: &mut Vec<u8>) -> usize {
    assert!(room >= ID_BYTES_MAX, "{room} bytes are too few for a number");
    let room = room.min(ROW_IDS_BYTES_MAX);
    let most = &ids[..ids.len().min(ROW_IDS_MAX)];
    if most.is_sorted() {
        let start = into.len();
        into.push(FORM_ASCENDING);
        let mut last = 0;
        for (count, &id) in most.iter().enumerate() {
            let before = into.len();
            put_varint(id - last, into);
            if into.len() - start > room {
                into.truncate(before);
                return count;
            }
            last = id;
        }
        return most.len();
    }
    let narrow = &most[..most.len().min((room - 1) / 4)];
    if narrow.iter().all(|&id| id <= u32::MAX.into()) {
        into.push(FORM_32);
        narrow.iter().for_each(|&id| into.extend_from_slice(&(id as u32).to_le_bytes()));
        return narrow.len();
    }
    let wide = &most[..most.len().min((room - 1) / 8)];
    into.push(FORM_64);
    wide.iter().for_each(|&id| into.extend_from_slice(&id.to_le_bytes()));
    wide.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there_and_back(ids: &[u64]) -> (Vec<u8>, usize) {
        let mut bytes = Vec::new();
        let count = encode(ids, ROW_IDS_BYTES_MAX, &mut bytes);
        let read = RowIds::parse(&bytes).expect("what was written can be read");
        let mut back = vec![7];
        read.decode(&mut back);
        assert_eq!((read.len(), &back[1..]), (count, &ids[..count]));
        (bytes, count)
    }

    #[test]
    fn ids_come_back_as_they_were_and_ascending_ones_are_short() {
        assert_eq!(there_and_back(&[]).0, [FORM_ASCENDING]);
        assert_eq!(there_and_back(&[5, 5, 300]).0, [FORM_ASCENDING, 5, 0, 0xa7, 2]);
        assert_eq!(there_and_back(&[3, 1]).0, [FORM_32, 3, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(there_and_back(&[1 << 40, 1]).0.len(), 17);
        there_and_back(&[0, u64::MAX]);
        there_and_back(&[u64::MAX, 0, 1]);
        // Differences of every length, next to those of every other length.
        let steps =
            |bits: u32| (0..bits).flat_map(move |one| (0..bits).map(move |other| [1_u64 << one, 1 << other])).flatten();
        for bits in [7, 14, 21, 28, 50] {
            let ids = steps(bits).scan(0_u64, |sum, step| {
                *sum = sum.checked_add(step)?;
                Some(*sum)
            });
            there_and_back(&ids.take(600).collect::<Vec<_>>());
        }
    }

    #[test]
    fn one_request_names_as_many_as_fit() {
        let ascending: Vec<u64> = (0..20_000).map(|id| id * 3).collect();
        assert_eq!(there_and_back(&ascending).1, ROW_IDS_MAX);
        let sparse: Vec<u64> = (0..20_000).map(|id| id << 20).collect();
        let (bytes, count) = there_and_back(&sparse);
        assert!(bytes.len() <= ROW_IDS_BYTES_MAX && count < ROW_IDS_MAX && count > ROW_IDS_BYTES_MAX / 4, "{count}");
        let falling: Vec<u64> = (0..20_000).rev().collect();
        assert_eq!(there_and_back(&falling).1, (ROW_IDS_BYTES_MAX - 1) / 4);
        let wide: Vec<u64> = (0..20_000).rev().map(|id| id << 32).collect();
        assert_eq!(there_and_back(&wide).1, (ROW_IDS_BYTES_MAX - 1) / 8);
    }

    #[test]
    fn bytes_that_are_no_ids_are_refused() {
        let long = vec![0; ROW_IDS_BYTES_MAX + 1];
        let many = [&[FORM_ASCENDING][..], &vec![0; ROW_IDS_MAX + 1]].concat();
        let past_64_bits = [FORM_ASCENDING, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2];
        let endless = [FORM_ASCENDING, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
        let sum_overflows = [FORM_ASCENDING, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 1];
        let wrong: [&[u8]; 11] = [
            &[],
            &[3],
            &[FORM_32, 0],
            &[FORM_64, 0, 0, 0, 0],
            &[FORM_ASCENDING, 0x80],
            &[FORM_ASCENDING, 1, 2, 0x80, 0x80],
            &long,
            &many,
            &past_64_bits,
            &endless,
            &sum_overflows,
        ];
        for bytes in wrong {
            assert!(RowIds::parse(bytes).is_err(), "{:?}", &bytes[..bytes.len().min(12)]);
        }
    }
}
