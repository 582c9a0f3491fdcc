//! Random numbers of the fake devices: the same seed gives the same delays and faults at the same calls.

/// SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `limit`, which must not be 0.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }

    pub(super) fn happens(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.below(1_000_000) < u64::from(per_million)
    }

    pub(super) fn shuffle(&mut self, numbers: &mut [u32]) {
        for last in (1..numbers.len()).rev() {
            numbers.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}
