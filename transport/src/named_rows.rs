//! The rows that a request names, in the format of a frame or a record: rows of one table, or of several tables of one
//! task. One request for many small tables costs as much as one for a large table.
//!
//! Pure. A reader checks everything before it uses any number.

use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::limits::{NAMED_ROWS_BYTES_MAX, NAMED_TABLES_MAX, TABLE_KEY_BYTES_MAX};
use crate::row_ids::{self, RowIds};
use crate::wire::WireError;

/// The head of each table, before its key and row numbers.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct Head {
    key_bytes: U16,
    ids_bytes: U16,
    /// How often the consumer's caller has named these rows; only for counters.
    named: U32,
}

/// The rows of one table that a request names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OfTable<'a> {
    /// The table.
    pub key: &'a str,
    pub ids: RowIds<'a>,
    /// How often the caller has named these rows, each of which is requested only once; unchecked.
    pub named: u32,
}

/// Checked rows of tables: at most [`NAMED_TABLES_MAX`] tables, in at most [`NAMED_ROWS_BYTES_MAX`] bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamedRows<'a> {
    bytes: &'a [u8],
    tables: usize,
}

impl<'a> NamedRows<'a> {
    /// Parses bytes, which may hold anything.
    ///
    /// # Errors
    /// They do not name rows of tables, or name too many.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        if bytes.len() > NAMED_ROWS_BYTES_MAX {
            let (found, limit) = (bytes.len() as u64, NAMED_ROWS_BYTES_MAX as u64);
            return Err(WireError::TooLong { what: "names of rows", found, limit });
        }
        let (mut rest, mut tables) = (bytes, 0);
        while !rest.is_empty() {
            let truncated = WireError::Truncated { what: "names of rows", found: rest.len() };
            let (Raw { key, ids, .. }, behind) = split(rest).ok_or(truncated)?;
            if key.len() > TABLE_KEY_BYTES_MAX {
                let (found, limit) = (key.len() as u64, TABLE_KEY_BYTES_MAX as u64);
                return Err(WireError::TooLong { what: "key", found, limit });
            }
            crate::wire::text("key", key)?;
            RowIds::parse(ids)?;
            (rest, tables) = (behind, tables + 1);
        }
        match tables {
            0 => Err(WireError::Truncated { what: "names of rows", found: 0 }),
            1..=NAMED_TABLES_MAX => Ok(Self { bytes, tables }),
            more => Err(WireError::TooLong { what: "tables", found: more as u64, limit: NAMED_TABLES_MAX as u64 }),
        }
    }

    /// Number of tables, at least one; a table may occur more than once.
    #[expect(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(self) -> usize {
        self.tables
    }

    /// The bytes, as [`parse`](Self::parse) reads them.
    pub fn as_bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// Each table with how often its rows were named, in the order of the request; does not read the row numbers.
    pub fn tables(self) -> impl Iterator<Item = (&'a str, u32)> {
        self.raw().filter_map(|Raw { key, named, .. }| Some((str::from_utf8(key).ok()?, named)))
    }

    /// The rows of each table, in the order of the request. Reads all numbers.
    pub fn iter(self) -> impl Iterator<Item = OfTable<'a>> {
        // Both were checked by `parse`.
        self.raw().filter_map(|Raw { key, ids, named }| {
            Some(OfTable { key: str::from_utf8(key).ok()?, ids: RowIds::parse(ids).ok()?, named })
        })
    }

    fn raw(self) -> impl Iterator<Item = Raw<'a>> {
        let mut rest = self.bytes;
        std::iter::from_fn(move || {
            let (raw, behind) = split(rest)?;
            rest = behind;
            Some(raw)
        })
    }

    /// A title for messages: the first key, and how many more there are.
    pub fn title(self) -> String {
        let key = self.tables().next().map_or("", |(key, _)| key);
        match self.tables - 1 {
            0 => key.to_owned(),
            1 => format!("{key} and 1 more table"),
            more => format!("{key} and {more} more tables"),
        }
    }
}

/// The entry of one table, unchecked.
struct Raw<'a> {
    key: &'a [u8],
    ids: &'a [u8],
    named: u32,
}

/// The entry of the first table, and what follows.
fn split(bytes: &[u8]) -> Option<(Raw<'_>, &[u8])> {
    let (head, rest) = Head::ref_from_prefix(bytes).ok()?;
    let (key, rest) = rest.split_at_checked(head.key_bytes.get().into())?;
    let (ids, rest) = rest.split_at_checked(head.ids_bytes.get().into())?;
    Some((Raw { key, ids, named: head.named.get() }, rest))
}

/// Rows of tables that were checked once and are kept until needed; or that are being written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NamedRowsBuf {
    bytes: Vec<u8>,
    tables: usize,
}

impl NamedRowsBuf {
    /// The rows of tables.
    ///
    /// # Panics
    /// If no table was [named](Self::name).
    pub fn as_rows(&self) -> NamedRows<'_> {
        assert!(self.tables > 0, "a request names a table");
        NamedRows { bytes: &self.bytes, tables: self.tables }
    }

    pub fn is_empty(&self) -> bool {
        self.tables == 0
    }

    /// Names as many of `ids`, from the first on, as there is room for; returns how many, or `None` if there is no room for the
    /// table. `named` is called with this number and says how often these rows were named.
    ///
    /// # Panics
    /// If the key is longer than [`TABLE_KEY_BYTES_MAX`].
    pub fn name(&mut self, key: &str, ids: &[u64], named: impl FnOnce(usize) -> u32) -> Option<usize> {
        assert!(key.len() <= TABLE_KEY_BYTES_MAX, "a table's key has {} bytes", key.len());
        let start = self.bytes.len();
        let room = NAMED_ROWS_BYTES_MAX.saturating_sub(start + size_of::<Head>() + key.len());
        if self.tables == NAMED_TABLES_MAX || room < row_ids::ID_BYTES_MAX {
            return None;
        }
        self.bytes.extend_from_slice(&[0; size_of::<Head>()]);
        self.bytes.extend_from_slice(key.as_bytes());
        let ids_at = self.bytes.len();
        let count = row_ids::encode(ids, room, &mut self.bytes);
        let ids_bytes = U16::new((self.bytes.len() - ids_at) as u16);
        let head = Head { key_bytes: U16::new(key.len() as u16), ids_bytes, named: U32::new(named(count)) };
        self.bytes[start..][..size_of::<Head>()].copy_from_slice(head.as_bytes());
        self.tables += 1;
        Some(count)
    }
}

impl From<NamedRows<'_>> for NamedRowsBuf {
    fn from(NamedRows { bytes, tables }: NamedRows<'_>) -> Self {
        Self { bytes: bytes.into(), tables }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(ids: RowIds<'_>) -> Vec<u64> {
        let mut numbers = Vec::new();
        ids.decode(&mut numbers);
        numbers
    }

    #[test]
    fn tables_come_back_as_they_were_named() {
        let mut named = NamedRowsBuf::default();
        assert_eq!(named.name("user", &[3, 9], |_| 5), Some(2));
        assert_eq!(named.name("", &[], |_| 0), Some(0));
        assert_eq!(named.name("item", &[7, 1], |count| count as u32), Some(2));
        let read = NamedRows::parse(named.as_rows().as_bytes()).unwrap();
        let tables: Vec<_> = read.iter().map(|OfTable { key, ids, named }| (key, numbers(ids), named)).collect();
        assert_eq!(tables, [("user", vec![3, 9], 5), ("", vec![], 0), ("item", vec![7, 1], 2)]);
        assert_eq!((read.len(), read.title()), (3, "user and 2 more tables".to_owned()));
        assert_eq!(NamedRowsBuf::from(read), named);
    }

    #[test]
    fn a_request_is_full_at_some_time_and_can_be_read() {
        let ids: Vec<u64> = (0..3000).map(|id| id * 200).collect();
        let mut named = NamedRowsBuf::default();
        let first = named.name("user", &ids, |_| 0).unwrap();
        assert_eq!(first, 3000);
        let second = named.name("item", &ids, |_| 0).unwrap();
        assert!(second < 3000);
        assert_eq!(named.name(&"k".repeat(TABLE_KEY_BYTES_MAX), &ids, |_| 0), None);
        let read = NamedRows::parse(named.as_rows().as_bytes()).unwrap();
        assert_eq!(read.iter().map(|table| table.ids.len()).collect::<Vec<_>>(), [first, second]);
        let mut small = NamedRowsBuf::default();
        while small.name("t", &[1], |_| 1).is_some() {}
        assert_eq!(NamedRows::parse(small.as_rows().as_bytes()).unwrap().len(), NAMED_TABLES_MAX);
    }

    #[test]
    fn bytes_that_name_no_rows_are_refused() {
        let long = vec![0; NAMED_ROWS_BYTES_MAX + 1];
        let wrong: [&[u8]; 7] = [
            &[],
            &[0, 0, 1],
            // A truncated key, truncated numbers, invalid numbers, a key that is not text.
            &[2, 0, 0, 0, 0, 0, 0, 0, b'k'],
            &[1, 0, 2, 0, 0, 0, 0, 0, b'k', 2],
            &[1, 0, 1, 0, 0, 0, 0, 0, b'k', 9],
            &[1, 0, 1, 0, 0, 0, 0, 0, 0xff, 2],
            &long,
        ];
        for bytes in wrong {
            assert!(NamedRows::parse(bytes).is_err(), "{:?}", &bytes[..bytes.len().min(12)]);
        }
        let mut long_key = vec![0; TABLE_KEY_BYTES_MAX + 1 + size_of::<Head>()];
        long_key[..2].copy_from_slice(&(TABLE_KEY_BYTES_MAX as u16 + 1).to_le_bytes());
        assert!(NamedRows::parse(&long_key).is_err());
        let many = [1, 0, 1, 0, 0, 0, 0, 0, b'k', 2].repeat(NAMED_TABLES_MAX + 1);
        assert!(NamedRows::parse(&many).is_err());
    }
}
