//! Which rows are asked of which owner, and where each goes: every row is asked for once, however often it is named. Pure.

use std::ops::Range;

use sealane_transport::Error;

use super::sharding::ShardedTable;
use crate::limits::ROWS_PER_CALL_MAX;

/// The rows of one owner.
#[derive(Debug)]
pub(super) struct Share {
    /// The owner's number.
    pub(super) owner: usize,
    /// Its rows, by their numbers in its part: ascending, each once.
    pub(super) rows: Vec<u64>,
    /// Where rows go: the places of the first, then those of the second, and so on.
    places: Vec<u32>,
    /// Where the places of each row end.
    ends: Vec<u32>,
}

impl Share {
    /// The places of a row, by its number in `rows`.
    #[inline]
    pub(super) fn places_of(&self, index: usize) -> &[u32] {
        self.places_of_all(index..index + 1)
    }

    /// The places of consecutive rows.
    #[inline]
    pub(super) fn places_of_all(&self, indices: Range<usize>) -> &[u32] {
        let end_of = |index: usize| if index == 0 { 0 } else { self.ends[index - 1] as usize };
        &self.places[end_of(indices.start)..end_of(indices.end)]
    }

    /// All places.
    pub(super) fn places(&self) -> &[u32] {
        &self.places
    }

    /// No rows, of the first owner.
    pub(super) fn empty() -> Self {
        Share::of(0, Vec::new())
    }

    /// Of (row, place), by places.
    fn of(owner: usize, named: Vec<(u64, u32)>) -> Self {
        let named = sorted(named);
        let (mut rows, mut ends): (Vec<u64>, Vec<u32>) =
            (Vec::with_capacity(named.len()), Vec::with_capacity(named.len()));
        for (at, &(row, _)) in named.iter().enumerate() {
            let end = at as u32 + 1;
            match ends.last_mut() {
                Some(last) if rows.last() == Some(&row) => *last = end,
                _ => {
                    rows.push(row);
                    ends.push(end);
                }
            }
        }
        let places = named.into_iter().map(|(_, place)| place).collect();
        Share { owner, rows, places, ends }
    }
}

/// Rows and their places, by rows. Rows that are named in order, as some programs do, are not sorted again; few are by comparing
/// them, and many by eight bits of their numbers after the other, which takes a third of the time.
fn sorted(mut named: Vec<(u64, u32)>) -> Vec<(u64, u32)> {
    if named.is_sorted() {
        return named;
    }
    if named.len() < RADIX_MIN {
        named.sort_unstable();
        return named;
    }
    let largest = named.iter().fold(0, |bits, (row, _)| bits | row);
    let mut other = vec![(0, 0); named.len()];
    for shift in (0..u64::BITS - largest.leading_zeros()).step_by(8) {
        let digit = |row: u64| (row >> shift) as usize & 0xff;
        let mut ends = [0; 256];
        named.iter().for_each(|&(row, _)| ends[digit(row)] += 1);
        let mut start = 0;
        for end in &mut ends {
            start += std::mem::replace(end, start);
        }
        for &each in &named {
            let place = &mut ends[digit(each.0)];
            other[*place] = each;
            *place += 1;
        }
        std::mem::swap(&mut named, &mut other);
    }
    named
}

/// Fewer rows are sorted by comparing them.
const RADIX_MIN: usize = 256;

/// Splits rows by their owners; owners without rows have no share.
///
/// # Errors
/// InvalidArgument naming a row that the table does not have, ResourceExhausted for more than [`ROWS_PER_CALL_MAX`].
pub(super) fn split(table: &ShardedTable, ids: &[u64]) -> Result<Vec<Share>, Error> {
    let (shares, beyond) = split_what_is_there(table, ids)?;
    match beyond {
        None => Ok(shares),
        Some((_, error)) => Err(error),
    }
}

/// Places of rows that the table does not have, and what is wrong with the first.
pub(super) type Beyond = (Vec<u32>, Error);

/// As [`split`], with the places of what the table does not have.
///
/// # Errors
/// ResourceExhausted for more than [`ROWS_PER_CALL_MAX`].
pub(super) fn split_what_is_there(table: &ShardedTable, ids: &[u64]) -> Result<(Vec<Share>, Option<Beyond>), Error> {
    if ids.len() > ROWS_PER_CALL_MAX {
        let reason =
            format!("{} rows of '{}' are named, at most {ROWS_PER_CALL_MAX} in one call", ids.len(), table.key());
        return Err(Error::full("rows of a call", reason));
    }
    let sharding = table.sharding();
    let rows = sharding.rows().unwrap_or(u64::MAX);
    let first_beyond = ids.iter().position(|&id| sharding.rows().is_some() && id >= rows);
    let owners = sharding.owners();
    let mut named: Vec<Vec<(u64, u32)>> = (0..owners).map(|_| Vec::with_capacity(ids.len() / owners)).collect();
    let mut beyond = first_beyond.map(|first| {
        let reason = format!("row {} of '{}', which has {rows} rows", ids[first], table.key());
        (Vec::new(), Error::invalid(reason))
    });
    for (place, &id) in ids.iter().enumerate() {
        match &mut beyond {
            Some((places, _)) if id >= rows => places.push(place as u32),
            _ => {
                let (owner, local) = sharding.place(id);
                named[owner].push((local, place as u32));
            }
        }
    }
    let with_rows = named.into_iter().enumerate().filter(|(_, named)| !named.is_empty());
    Ok((with_rows.map(|(owner, named)| Share::of(owner, named)).collect(), beyond))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Sharding;

    #[test]
    fn rows_that_are_named_twice_are_asked_for_once() {
        let table = ShardedTable::of("ps", "t").unwrap();
        let shares = split(&table, &[9, 4, 9, 9, 0]).unwrap();
        let [share] = &shares[..] else { panic!("{shares:?}") };
        assert_eq!((share.owner, &share.rows[..]), (0, &[0, 4, 9][..]));
        assert_eq!([0, 1, 2].map(|index| share.places_of(index).to_vec()), [vec![4], vec![1], vec![0, 2, 3]]);
        assert!(split(&table, &[]).unwrap().is_empty());
    }

    #[test]
    fn a_row_that_no_owner_has_is_named() {
        let table = ShardedTable::new("t", ["a", "b"], Sharding::range(10, 2).unwrap()).unwrap();
        let error = split(&table, &[3, 10, 99]).unwrap_err().to_string();
        assert!(error.contains("row 10 of 't', which has 10 rows"), "{error}");
    }

    #[test]
    fn rows_are_sorted_however_many_and_large_they_are() {
        let mut seed = 1_u64;
        for (count, bits) in [(0, 1), (RADIX_MIN - 1, 64), (RADIX_MIN, 64), (5_000, 9), (5_000, 17), (300, 0)] {
            let mut next = || {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                seed.checked_shr(64 - bits).unwrap_or(0)
            };
            let named: Vec<(u64, u32)> = (0..count as u32).map(|place| (next(), place)).collect();
            let mut expected = named.clone();
            expected.sort();
            assert_eq!(sorted(named), expected, "{count} of {bits} bits");
        }
    }

    #[test]
    fn every_place_gets_the_row_that_was_named_there() {
        let mut seed = 1_u64;
        let mut below = |most: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % most
        };
        for owners in 1..6 {
            for sharding in [Sharding::range(500, owners), Sharding::modulo(500, owners), Sharding::hash(500, owners)] {
                let ids: Vec<u64> = (0..below(800)).map(|_| below(500)).collect();
                let names = (0..owners).map(|owner| owner.to_string());
                let table = ShardedTable::new("t", names, sharding.unwrap()).unwrap();
                let mut got = vec![u64::MAX; ids.len()];
                for share in split(&table, &ids).unwrap() {
                    assert!(share.rows.is_sorted_by(|one, next| one < next));
                    for (index, &local) in share.rows.iter().enumerate() {
                        let row = table.sharding().row(share.owner, local);
                        share.places_of(index).iter().for_each(|&place| got[place as usize] = row);
                    }
                }
                assert_eq!(got, ids);
            }
        }
    }
}
