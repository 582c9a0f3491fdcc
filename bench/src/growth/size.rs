//! How many workers and parameter servers are simulated. Plain data.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::error::BenchError;

/// Most workers.
pub const WORKERS_MAX: u32 = 100_000;
/// Most parameter servers.
pub const PS_MAX: u32 = 10_000;
/// Most workers × ps. Each pair has one message in flight, and its place in several queues: some 60 bytes.
pub const PAIRS_MAX: u64 = 16 << 20;

/// So many workers and so many parameter servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Size {
    /// Workers.
    pub workers: u32,
    /// Parameter servers.
    pub ps: u32,
}

impl fmt::Display for Size {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}+{}", self.workers, self.ps)
    }
}

impl FromStr for Size {
    type Err = BenchError;

    fn from_str(text: &str) -> Result<Size, BenchError> {
        let numbers = text.split_once('+').and_then(|(workers, ps)| {
            Some(Size { workers: workers.trim().parse().ok()?, ps: ps.trim().parse().ok()? })
        });
        numbers.ok_or_else(|| BenchError::setting("--sizes", text, "workers and ps, as in 200+10"))
    }
}

/// Whether so many pairs have room.
pub(super) fn is_small_enough(size: Size) -> bool {
    u64::from(size.workers) * u64::from(size.ps) <= PAIRS_MAX && size.ps <= PS_MAX
}
