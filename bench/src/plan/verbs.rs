//! What there is to choose of the verbs link, as flags spell it.

use sealane_transport::verbs;
use serde::{Deserialize, Serialize};

/// How large tensors move over verbs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transfer {
    /// The producer writes into the consumer's memory.
    #[default]
    Write,
    /// The consumer reads out of the producer's.
    Read,
}

impl From<Transfer> for verbs::Transfer {
    fn from(transfer: Transfer) -> Self {
        match transfer {
            Transfer::Write => Self::Write,
            Transfer::Read => Self::Read,
        }
    }
}

/// When memory is registered with the RDMA device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Registration {
    /// Once, at start.
    #[default]
    Static,
    /// For each transfer.
    Dynamic,
}

impl From<Registration> for verbs::Registration {
    fn from(registration: Registration) -> Self {
        match registration {
            Registration::Static => Self::Static,
            Registration::Dynamic => Self::Dynamic,
        }
    }
}
