//! A call of all ranks of a group, as flags spell it.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::within;
use crate::error::BenchError;
use crate::limits::{RANKS_MAX, SHARED_BYTES_MAX};

/// The call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Collective {
    /// All get the sum of all tensors.
    #[default]
    AllReduce,
    /// Each gets its part of the sum.
    ReduceScatter,
    /// All get the tensors of all.
    AllGather,
    /// Each gets a part of each tensor.
    AllToAll,
    /// All get the tensor of the first.
    Broadcast,
    /// Nothing but that all have come.
    Barrier,
    /// A message from the first rank to the last, and one back.
    Send,
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// Who makes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collectives {
    /// The call. Default: all_reduce.
    pub call: Collective,
    /// How many ranks there are. Default: 2.
    pub ranks: usize,
    /// On how many hosts they pretend to be: Sealane's ranks of different ones use TCP. Default: 1.
    pub hosts: usize,
}

impl Default for Collectives {
    fn default() -> Self {
        Collectives { call: Collective::default(), ranks: 2, hosts: 1 }
    }
}

impl Collectives {
    pub(super) fn check(&self, size_bytes: usize) -> Result<(), BenchError> {
        within("--ranks", self.ranks, 2, RANKS_MAX)?;
        within("--hosts", self.hosts, 1, self.ranks)?;
        within("--size", size_bytes, 4, SHARED_BYTES_MAX / self.ranks / self.ranks)?;
        if size_bytes.is_multiple_of(4) {
            return Ok(());
        }
        Err(BenchError::setting("--size", size_bytes, "whole elements of 4 bytes"))
    }
}
