//! Which slices are pulled together: those of one owner over one shard. Pure.

use hashbrown::HashMap;
use sealane_transport::{Error, Keys, Slicing};

use crate::limits::STRIPE_BYTES_MIN;

/// Slices of one owner that are pulled over one shard.
pub(super) struct Share {
    pub(super) owner: Box<str>,
    /// The shard, counted from the one that serves the pair.
    pub(super) stripe: usize,
    pub(super) keys: Keys,
    pub(super) slices: Vec<Place>,
}

/// A slice: its tensor, and its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) tensor: usize,
    pub(super) slice: usize,
}

/// A share that is still being filled.
struct Dealt<'a> {
    owner: &'a str,
    stripe: usize,
    keys: Vec<String>,
    slices: Vec<Place>,
}

/// Assigns the slices of all tensors to shares. Large slices of one owner and tensor are spread over `shards`, beginning with the one that
/// serves the pair, over which all others go.
///
/// # Errors
/// InvalidArgument for too many keys, or one that is too long.
pub(super) fn shares(keys: &Keys, slicings: &[Slicing], shards: usize) -> Result<Box<[Share]>, Error> {
    let mut shares: Vec<Dealt<'_>> = Vec::new();
    let mut known: HashMap<(&str, usize), usize> = HashMap::new();
    for (tensor, (key, slicing)) in keys.iter().zip(slicings).enumerate() {
        let mut next: HashMap<&str, usize> = HashMap::new();
        for slice in 0..slicing.len() {
            let owner = slicing.owner(slice);
            let mut stripe = 0;
            if slicing.bytes_of(slice).len() >= STRIPE_BYTES_MIN {
                let next = next.entry(owner).or_default();
                (stripe, *next) = (*next, (*next + 1) % shards);
            }
            let share = *known.entry((owner, stripe)).or_insert_with(|| {
                shares.push(Dealt { owner, stripe, keys: Vec::new(), slices: Vec::new() });
                shares.len() - 1
            });
            shares[share].keys.push(slicing.key(key, slice));
            shares[share].slices.push(Place { tensor, slice });
        }
    }
    let share = |Dealt { owner, stripe, keys, slices }: Dealt<'_>| {
        Ok(Share { owner: owner.into(), stripe, keys: Keys::new(keys)?, slices })
    };
    shares.into_iter().map(share).collect()
}

#[cfg(test)]
mod tests {
    use sealane_transport::{TensorMeta, tensor::DType};

    use super::*;

    #[test]
    fn large_slices_of_an_owner_take_turns_over_the_shards_and_small_ones_stay() {
        let slicing = |bytes: usize, owners: &[&str]| {
            let meta = TensorMeta::new(DType::U8, &[bytes as u64]).unwrap();
            Slicing::even(meta, owners).unwrap()
        };
        let slicings = [
            slicing(5 * STRIPE_BYTES_MIN, &["a", "b", "a", "a", "a"]),
            slicing(2 * STRIPE_BYTES_MIN - 1, &["a", "a"]),
            slicing(2 * STRIPE_BYTES_MIN, &["a", "a"]),
        ];
        let keys = Keys::new(["x", "y", "z"]).unwrap();
        let dealt = |shards| {
            let shares = shares(&keys, &slicings, shards).unwrap().into_vec();
            let places = |share: &Share| share.slices.iter().map(|place| (place.tensor, place.slice)).collect();
            let each = |share: Share| (share.owner.to_string(), share.stripe, places(&share));
            shares.into_iter().map(each).collect::<Vec<(String, usize, Vec<(usize, usize)>)>>()
        };
        let of = |owner: &str, stripe, places: &[(usize, usize)]| (owner.to_owned(), stripe, places.to_vec());
        // In the second tensor the first slice is one byte too small, so the other slice is its first large one.
        assert_eq!(
            dealt(2),
            [
                of("a", 0, &[(0, 0), (0, 3), (1, 0), (1, 1), (2, 0)]),
                of("b", 0, &[(0, 1)]),
                of("a", 1, &[(0, 2), (0, 4), (2, 1)]),
            ]
        );
        assert_eq!(
            dealt(1),
            [of("a", 0, &[(0, 0), (0, 2), (0, 3), (0, 4), (1, 0), (1, 1), (2, 0), (2, 1)]), of("b", 0, &[(0, 1)]),]
        );
    }
}
