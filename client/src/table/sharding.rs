//! Which task has which row of a table. Pure.
//!
//! Those who publish parts and those who pull rows must agree: the ways below are part of the interface, and do not change.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use sealane_transport::{Error, limits::TABLE_KEY_BYTES_MAX};

use super::places::Row;

/// How the rows of a table are distributed over `n` owners, by row number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sharding(Way);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Way {
    /// All rows to one owner, however many there are.
    One,
    Range {
        /// Rows of each owner but the last, which may have fewer.
        each: u64,
        rows: u64,
        owners: u64,
    },
    /// By the remainder of the row's number times `factor` modulo `rows`; `inverse` undoes that. Plain modulo has a factor of 1.
    Modulo { rows: u64, owners: u64, factor: u64, inverse: u64 },
}

/// The golden ratio of 2^64, as in Knuth's multiplicative hashing (TAOCP 3, 6.4).
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl Sharding {
    /// Consecutive rows go to one owner: `rows / owners` each, rounded up.
    ///
    /// # Errors
    /// InvalidArgument without rows or owners.
    pub fn range(rows: u64, owners: usize) -> Result<Sharding, Error> {
        let owners = check(rows, owners)?;
        Ok(Sharding(Way::Range { each: rows.div_ceil(owners), rows, owners }))
    }

    /// Row `i` goes to owner `i % owners`, which has it as its row `i / owners`.
    ///
    /// # Errors
    /// InvalidArgument without rows or owners.
    pub fn modulo(rows: u64, owners: usize) -> Result<Sharding, Error> {
        let owners = check(rows, owners)?;
        Ok(Sharding(Way::Modulo { rows, owners, factor: 1, inverse: 1 }))
    }

    /// Rows are scattered: row `i` is where [`modulo`](Self::modulo) has row `i * factor % rows`. The factor is the first number from
    /// `0x9e3779b97f4a7c15 % rows` on (from 1, if that is 0) that has no divisor in common with `rows`. Numbers that come in runs, or
    /// in steps of the number of owners, are then spread over all of them, and every owner has as many rows as with modulo.
    ///
    /// # Errors
    /// InvalidArgument without rows or owners.
    pub fn hash(rows: u64, owners: usize) -> Result<Sharding, Error> {
        let owners = check(rows, owners)?;
        let mut factor = (GOLDEN % rows).max(1);
        while greatest_common_divisor(factor, rows) != 1 {
            factor += 1;
        }
        let factor = factor % rows.max(2);
        Ok(Sharding(Way::Modulo { rows, owners, factor, inverse: inverse(factor, rows) }))
    }

    /// Number of owners.
    pub fn owners(&self) -> usize {
        match self.0 {
            Way::One => 1,
            Way::Range { owners, .. } | Way::Modulo { owners, .. } => owners as usize,
        }
    }

    /// Rows of the whole table, if that is known here.
    pub fn rows(&self) -> Option<u64> {
        match self.0 {
            Way::One => None,
            Way::Range { rows, .. } | Way::Modulo { rows, .. } => Some(rows),
        }
    }

    /// The owner of a row, and the row's number in that owner's part. Arbitrary for a row that is not in the table.
    #[inline]
    pub fn place(&self, row: u64) -> (usize, u64) {
        match self.0 {
            Way::One => (0, row),
            Way::Range { each, .. } => ((row / each) as usize, row % each),
            Way::Modulo { owners, factor: 1, .. } => ((row % owners) as usize, row / owners),
            Way::Modulo { rows, owners, factor, .. } => {
                let place = product(row, factor, rows);
                ((place % owners) as usize, place / owners)
            }
        }
    }

    /// True if one owner has all rows, under their own numbers.
    pub(super) fn is_of_one(&self) -> bool {
        match self.0 {
            Way::One => true,
            Way::Range { each, rows, .. } => each >= rows,
            Way::Modulo { owners, factor, .. } => owners == 1 && factor == 1,
        }
    }

    /// How many rows an owner has.
    pub fn rows_of(&self, owner: usize) -> u64 {
        let owner = owner as u64;
        match self.0 {
            Way::One => u64::MAX,
            Way::Range { each, rows, .. } => rows.saturating_sub(owner.saturating_mul(each)).min(each),
            Way::Modulo { rows, owners, .. } => rows.saturating_sub(owner).div_ceil(owners),
        }
    }

    /// The number in the whole table of row `local` of an owner's part: what [`place`](Self::place) maps there.
    pub fn row(&self, owner: usize, local: u64) -> u64 {
        match self.0 {
            Way::One => local,
            Way::Range { each, .. } => owner as u64 * each + local,
            Way::Modulo { rows, owners, inverse, .. } => product(local * owners + owner as u64, inverse, rows),
        }
    }
}

fn check(rows: u64, owners: usize) -> Result<u64, Error> {
    match rows {
        0 => Err(Error::invalid("a table without rows has no owners")),
        _ if owners == 0 => Err(Error::invalid("a table has one owner at least")),
        _ => Ok(owners as u64),
    }
}

#[inline]
fn product(one: u64, other: u64, modulus: u64) -> u64 {
    match one.checked_mul(other) {
        Some(product) => product % modulus,
        None => (u128::from(one) * u128::from(other) % u128::from(modulus)) as u64,
    }
}

fn greatest_common_divisor(mut one: u64, mut other: u64) -> u64 {
    while other != 0 {
        (one, other) = (other, one % other);
    }
    one
}

/// The inverse of `factor` modulo `modulus`, by Euclid's extended algorithm.
fn inverse(factor: u64, modulus: u64) -> u64 {
    let (mut old, mut new) = ((i128::from(modulus), 0_i128), (i128::from(factor), 1_i128));
    while new.0 != 0 {
        let quotient = old.0 / new.0;
        (old, new) = (new, (old.0 - quotient * new.0, old.1 - quotient * new.1));
    }
    old.1.rem_euclid(i128::from(modulus)) as u64
}

/// A table, and the tasks that have its rows: each has published its part under the table's key.
///
/// ```
/// # use sealane::{ShardedTable, Sharding};
/// let owners = ["ps0.train:2222", "ps1.train:2222"];
/// let users = ShardedTable::new("user", owners, Sharding::modulo(1_000_000, 2)?)?;
/// assert_eq!(users.sharding().place(7), (1, 3));
/// # Ok::<(), sealane::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct ShardedTable {
    key: Box<str>,
    owners: Box<[Box<str>]>,
    sharding: Sharding,
    known: Arc<Known>,
}

/// What earlier pulls have learnt; not part of the table's identity. Clones share it.
#[derive(Debug)]
struct Known {
    /// What rows looked like in the last pull of some, and whether no call has failed since.
    row: Mutex<(Option<Row>, bool)>,
    /// By owner: the attachment's link over which its part could not be viewed; 0 if it could, or was not tried.
    unviewed: Box<[AtomicU64]>,
}

impl PartialEq for ShardedTable {
    fn eq(&self, other: &Self) -> bool {
        (&self.key, &self.owners, &self.sharding) == (&other.key, &other.owners, &other.sharding)
    }
}

impl Eq for ShardedTable {}

impl ShardedTable {
    /// A table distributed over several tasks.
    ///
    /// # Errors
    /// InvalidArgument if there are not as many owners as the sharding deals out to, or the key is longer than 512 bytes.
    pub fn new<O: AsRef<str>>(
        key: &str,
        owners: impl IntoIterator<Item = O>,
        sharding: Sharding,
    ) -> Result<ShardedTable, Error> {
        let owners: Box<[Box<str>]> = owners.into_iter().map(|owner| owner.as_ref().into()).collect();
        if owners.len() != sharding.owners() {
            let (found, wanted) = (owners.len(), sharding.owners());
            return Err(Error::invalid(format!("{found} owners of '{key}', whose rows are dealt out to {wanted}")));
        }
        if key.len() > TABLE_KEY_BYTES_MAX {
            let reason = format!("a table's key has {} bytes, at most {TABLE_KEY_BYTES_MAX} are accepted", key.len());
            return Err(Error::invalid(reason));
        }
        let unviewed = owners.iter().map(|_| AtomicU64::new(0)).collect();
        let known = Arc::new(Known { row: Mutex::default(), unviewed });
        Ok(ShardedTable { key: key.into(), owners, sharding, known })
    }

    /// A table that one task has, with any number of rows.
    ///
    /// # Errors
    /// InvalidArgument if the key is longer than 512 bytes.
    pub fn of(owner: &str, key: &str) -> Result<ShardedTable, Error> {
        Self::new(key, [owner], Sharding(Way::One))
    }

    /// The key under which each owner has published its part.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The owners, in the order of their numbers.
    pub fn owners(&self) -> impl ExactSizeIterator<Item = &str> {
        self.owners.iter().map(|owner| &**owner)
    }

    /// An owner's name.
    pub(crate) fn owner(&self, number: usize) -> &str {
        &self.owners[number]
    }

    /// What its rows looked like in earlier pulls: a guess, since the owners may have published something else.
    pub(super) fn row(&self) -> Option<Row> {
        self.known().0.clone()
    }

    /// Bytes of a row, likewise; `None` after an error, which the size of rows may have caused.
    pub(super) fn row_bytes(&self) -> Option<usize> {
        let (row, is_sure) = &*self.known();
        row.as_ref().filter(|_| *is_sure).map(Row::bytes)
    }

    pub(super) fn set_row(&self, row: &Row) {
        *self.known() = (Some(row.clone()), true);
    }

    /// Notes that an error came in place of rows.
    pub(super) fn doubt_row(&self) {
        self.known().1 = false;
    }

    fn known(&self) -> MutexGuard<'_, (Option<Row>, bool)> {
        self.known.row.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True unless it is known that this process cannot read an owner's part over that link of the attachment.
    pub(super) fn may_be_viewed(&self, owner: usize, link: u64) -> bool {
        self.known.unviewed[owner].load(Ordering::Relaxed) != link
    }

    /// Notes that this process cannot read an owner's part over that link.
    pub(super) fn is_unviewed(&self, owner: usize, link: u64) {
        self.known.unviewed[owner].store(link, Ordering::Relaxed);
    }

    /// How the rows are distributed.
    pub fn sharding(&self) -> &Sharding {
        &self.sharding
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(rows: u64, owners: usize) -> [Sharding; 3] {
        [Sharding::range(rows, owners), Sharding::modulo(rows, owners), Sharding::hash(rows, owners)]
            .map(Result::unwrap)
    }

    #[test]
    fn every_row_has_one_place_and_every_place_its_row() {
        for rows in [1, 2, 3, 7, 64, 100, 101, 1000] {
            for owners in [1, 2, 3, 5, 200] {
                for sharding in all(rows, owners) {
                    let mut seen = std::collections::HashSet::new();
                    for row in 0..rows {
                        let (owner, local) = sharding.place(row);
                        assert!(owner < owners && local < sharding.rows_of(owner), "{sharding:?} has {row} nowhere");
                        assert!(seen.insert((owner, local)), "{sharding:?} has two rows in one place");
                        assert_eq!(sharding.row(owner, local), row, "{sharding:?}");
                    }
                    let sum: u64 = (0..owners).map(|owner| sharding.rows_of(owner)).sum();
                    assert_eq!(sum, rows, "{sharding:?}");
                }
            }
        }
    }

    /// Other programs may compute these places, so they must never change.
    #[test]
    fn places_are_those_of_every_release() {
        let places = |sharding: &Sharding, rows: [u64; 5]| rows.map(|row| sharding.place(row));
        let [range, modulo, hash] = all(1_000_000, 4);
        let rows = [0, 1, 2, 250_000, 999_999];
        assert_eq!(places(&range, rows), [(0, 0), (0, 1), (0, 2), (1, 0), (3, 249_999)]);
        assert_eq!(places(&modulo, rows), [(0, 0), (1, 0), (2, 0), (0, 62_500), (3, 249_999)]);
        assert_eq!(places(&hash, rows), [(0, 0), (3, 49_621), (2, 99_243), (0, 187_500), (1, 200_378)]);
        let prime = Sharding::hash(10_000_019, 4).unwrap();
        assert_eq!(places(&prime, rows)[..4], [(0, 0), (1, 1_549_571), (3, 599_137), (0, 2_076_459)]);
    }

    #[test]
    fn large_tables_do_not_overflow() {
        for sharding in all(u64::MAX, 3) {
            for row in [0, 1, u64::MAX / 2, u64::MAX - 1] {
                let (owner, local) = sharding.place(row);
                assert_eq!(sharding.row(owner, local), row, "{sharding:?}");
            }
        }
    }

    #[test]
    fn what_cannot_be_a_table_is_refused() {
        assert!(Sharding::range(0, 1).is_err() && Sharding::hash(1, 0).is_err());
        assert!(ShardedTable::new("t", ["a", "b"], Sharding::modulo(10, 3).unwrap()).is_err());
        assert!(ShardedTable::of("a", &"t".repeat(513)).is_err());
    }
}
