//! The systems that can be measured, by name.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::words;
use crate::error::BenchError;

/// A system's name, as flags and reports spell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SystemName {
    /// Sealane itself: always measured, and so never a baseline.
    Sealane,
    /// The bare operation of the kernel, or of memory where the link is in memory.
    Raw,
    /// gRPC, through tonic.
    Grpc,
    /// Sealane whose two sides show each other nothing, beside Sealane with [`Security`](super::Security).
    Open,
}

impl SystemName {
    /// The name itself.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sealane => "sealane",
            Self::Raw => "raw",
            Self::Grpc => "grpc",
            Self::Open => "open",
        }
    }
}

impl FromStr for SystemName {
    type Err = BenchError;

    fn from_str(text: &str) -> Result<Self, BenchError> {
        let baselines = "raw, grpc or open";
        match words::read("--baseline", text, baselines)? {
            Self::Sealane => Err(BenchError::setting("--baseline", text, baselines)),
            baseline => Ok(baseline),
        }
    }
}
