//! Which rows are requested from which owner, and where each goes: every row is requested once, however often it is named. Pure.

use std::ops::Range;

use sealane_transport::Error;

use super::sharding::ShardedTable;
use crate::limits::ROWS_PER_CALL_MAX;

/// Rows of one owner, as they were named.
#[derive(Debug, Default)]
pub(super) struct Part {
    /// The owner's number.
    pub(super) owner: usize,
    /// The rows' numbers in its part.
    pub(super) ids: Vec<u64>,
    /// Where each row goes; empty if all named rows are this owner's: then each goes where it was named.
    places: Vec<u32>,
}

impl Part {
    /// Where each row goes; `None` if that is where it was named.
    pub(super) fn places(&self) -> Option<&[u32]> {
        (!self.places.is_empty()).then_some(&self.places)
    }

    /// The places of all rows.
    pub(super) fn all_places(&self) -> Vec<u32> {
        self.places().map_or_else(|| (0..self.ids.len() as u32).collect(), <[u32]>::to_vec)
    }

    /// The same rows, each once.
    pub(super) fn share(&self) -> Share {
        match self.ids.iter().all(|&id| id < PACKED_ROWS) {
            true => self.share_of::<u64>(),
            false => self.share_of::<(u64, u32)>(),
        }
    }

    fn share_of<N: Named>(&self) -> Share {
        let named = |(&id, place)| N::new(id, place);
        Share::of(
            self.owner,
            match self.places() {
                Some(places) => self.ids.iter().zip(places.iter().copied()).map(named).collect(),
                None => self.ids.iter().zip(0..).map(named).collect(),
            },
        )
    }
}

/// The rows of one owner, each once, and where they go.
#[derive(Debug)]
pub(super) struct Share {
    /// The owner's number.
    pub(super) owner: usize,
    /// Its rows, by their numbers in its part: ascending, each once.
    pub(super) rows: Vec<u64>,
    /// Places of the rows: those of the first, then those of the second, and so on.
    places: Vec<u32>,
    /// Where each row's places begin in `places`, and where the last row's end.
    starts: Vec<u32>,
}

impl Share {
    /// The places of a row, by its index in `rows`.
    #[inline]
    pub(super) fn places_of(&self, index: usize) -> &[u32] {
        self.places_of_all(index..index + 1)
    }

    /// The places of consecutive rows.
    #[inline]
    pub(super) fn places_of_all(&self, indices: Range<usize>) -> &[u32] {
        &self.places[self.starts[indices.start] as usize..self.starts[indices.end] as usize]
    }

    /// All places.
    pub(super) fn places(&self) -> &[u32] {
        &self.places
    }

    /// A share without rows, of the first owner.
    pub(super) fn empty() -> Self {
        Share { owner: 0, rows: Vec::new(), places: Vec::new(), starts: vec![0] }
    }

    /// The share of what was named, in the order of its places.
    fn of<N: Named>(owner: usize, mut named: Vec<N>) -> Self {
        N::sort(&mut named);
        let count = named.len();
        let (mut rows, mut starts) = (vec![0; count], vec![0; count + 1]);
        let (mut distinct, mut last) = (0, None);
        for (at, row) in named.iter().map(Named::row).enumerate() {
            // Written for every row, and kept for the first of equal ones: a branch on repeated rows could not be predicted.
            let place = distinct - usize::from(last == Some(row));
            starts[place] = if last == Some(row) { starts[place] } else { at as u32 };
            rows[place] = row;
            (distinct, last) = (place + 1, Some(row));
        }
        rows.truncate(distinct);
        starts.truncate(distinct + 1);
        starts[distinct] = count as u32;
        Share { owner, rows, places: named.iter().map(Named::place).collect(), starts }
    }
}

/// A named row, and the place where it was named.
trait Named: Sized {
    fn new(row: u64, place: u32) -> Self;
    fn row(&self) -> u64;
    fn place(&self) -> u32;
    /// Sorts by row, and then by place; they come in the order of places.
    fn sort(named: &mut Vec<Self>);
}

/// Low bits that hold the place, where row and place are packed into one number.
const PLACE_BITS: u32 = ROWS_PER_CALL_MAX.ilog2();

/// Larger row numbers cannot be packed with their places: no table has so many rows.
const PACKED_ROWS: u64 = 1 << (u64::BITS - PLACE_BITS);

impl Named for u64 {
    fn new(row: u64, place: u32) -> Self {
        row << PLACE_BITS | u64::from(place)
    }

    fn row(&self) -> u64 {
        self >> PLACE_BITS
    }

    fn place(&self) -> u32 {
        (self & ((1 << PLACE_BITS) - 1)) as u32
    }

    /// Rows that are already in order, as some programs name them, are not sorted again. Few are sorted by comparison, many by radix, which
    /// takes a quarter of the time.
    fn sort(named: &mut Vec<Self>) {
        if named.is_sorted() {
            return;
        }
        if named.len() < RADIX_MIN {
            return named.sort_unstable();
        }
        let bits = u64::BITS
            - PLACE_BITS
            - (named.iter().fold(0, |bits, each| bits | each.row()) << PLACE_BITS).leading_zeros();
        let width = bits.div_ceil(bits.div_ceil(DIGIT_BITS_MAX));
        let mut other = vec![0; named.len()];
        let mut ends = [0_u32; 1 << DIGIT_BITS_MAX];
        for shift in (PLACE_BITS..PLACE_BITS + bits).step_by(width as usize) {
            let digit = |each: u64| (each >> shift) as usize & ((1 << width) - 1);
            let ends = &mut ends[..1 << width];
            ends.fill(0);
            named.iter().for_each(|&each| ends[digit(each)] += 1);
            let mut start = 0;
            for end in &mut *ends {
                start += std::mem::replace(end, start);
            }
            for &each in &*named {
                let place = &mut ends[digit(each)];
                other[*place as usize] = each;
                *place += 1;
            }
            std::mem::swap(named, &mut other);
        }
    }
}

impl Named for (u64, u32) {
    fn new(row: u64, place: u32) -> Self {
        (row, place)
    }

    fn row(&self) -> u64 {
        self.0
    }

    fn place(&self) -> u32 {
        self.1
    }

    fn sort(named: &mut Vec<Self>) {
        named.sort_unstable();
    }
}

/// Fewer rows than this are sorted by comparison.
const RADIX_MIN: usize = 256;

/// Most bits of one radix pass: so many counters are cleared and summed in each.
const DIGIT_BITS_MAX: u32 = 11;

/// Splits rows by their owners; owners without rows have no part.
///
/// # Errors
/// InvalidArgument naming a row that the table does not have, ResourceExhausted for more than [`ROWS_PER_CALL_MAX`].
pub(super) fn split(table: &ShardedTable, ids: &[u64]) -> Result<Vec<Part>, Error> {
    let (parts, beyond) = split_what_is_there(table, ids)?;
    match beyond {
        None => Ok(parts),
        Some((_, error)) => Err(error),
    }
}

/// Places of rows that the table does not have, and the error for the first of them.
pub(super) type Beyond = (Vec<u32>, Error);

/// [`split`], but rows that the table does not have are returned with their places.
///
/// # Errors
/// ResourceExhausted for more than [`ROWS_PER_CALL_MAX`].
pub(super) fn split_what_is_there(table: &ShardedTable, ids: &[u64]) -> Result<(Vec<Part>, Option<Beyond>), Error> {
    if ids.len() > ROWS_PER_CALL_MAX {
        let reason =
            format!("{} rows of '{}' are named, at most {ROWS_PER_CALL_MAX} in one call", ids.len(), table.key());
        return Err(Error::full("rows of a call", reason));
    }
    let sharding = table.sharding();
    let rows = sharding.rows().unwrap_or(u64::MAX);
    let first_beyond = ids.iter().position(|&id| sharding.rows().is_some() && id >= rows);
    let mut beyond = first_beyond.map(|first| {
        let reason = format!("row {} of '{}', which has {rows} rows", ids[first], table.key());
        (Vec::new(), Error::invalid(reason))
    });
    if beyond.is_none() && sharding.is_of_one() {
        let all = Part { owner: 0, ids: ids.into(), places: Vec::new() };
        return Ok((Some(all).filter(|_| !ids.is_empty()).into_iter().collect(), None));
    }
    let owners = sharding.owners();
    let room = ids.len() / owners;
    let part = |owner| Part { owner, ids: Vec::with_capacity(room), places: Vec::with_capacity(room) };
    let mut parts: Vec<Part> = (0..owners).map(part).collect();
    for (place, &id) in ids.iter().enumerate() {
        match &mut beyond {
            Some((places, _)) if id >= rows => places.push(place as u32),
            _ => {
                let (owner, local) = sharding.place(id);
                parts[owner].ids.push(local);
                parts[owner].places.push(place as u32);
            }
        }
    }
    parts.retain(|part| !part.ids.is_empty());
    Ok((parts, beyond))
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
        let share = share.share();
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
        for (count, bits) in
            [(0, 1), (RADIX_MIN - 1, 64), (RADIX_MIN, 40), (5_000, 9), (5_000, 17), (300, 0), (300, 64)]
        {
            let mut next = || {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                seed.checked_shr(64 - bits).unwrap_or(0)
            };
            let ids: Vec<u64> = (0..count).map(|_| next()).collect();
            let shares = split(&ShardedTable::of("ps", "t").unwrap(), &ids).unwrap();
            let Some(share) = shares.first().map(Part::share) else {
                assert_eq!(count, 0);
                continue;
            };
            let named = ids.iter().copied().zip(0..).collect();
            assert_eq!(
                format!("{share:?}"),
                format!("{:?}", Share::of::<(u64, u32)>(0, named)),
                "{count} of {bits} bits"
            );
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
                for share in split(&table, &ids).unwrap().iter().map(Part::share) {
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
