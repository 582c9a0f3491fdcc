//! What there is to choose of the verbs link, as flags spell it.

use std::fmt;
use std::str::FromStr;

use sealane_transport::verbs;
use serde::{Deserialize, Serialize};

use crate::error::BenchError;

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

impl fmt::Display for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Write => "write",
            Self::Read => "read",
        })
    }
}

impl FromStr for Transfer {
    type Err = BenchError;

    fn from_str(text: &str) -> Result<Self, BenchError> {
        match text {
            "write" => Ok(Self::Write),
            "read" => Ok(Self::Read),
            _ => Err(refused("--transfer", text, "write or read")),
        }
    }
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

impl fmt::Display for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Static => "static",
            Self::Dynamic => "dynamic",
        })
    }
}

impl FromStr for Registration {
    type Err = BenchError;

    fn from_str(text: &str) -> Result<Self, BenchError> {
        match text {
            "static" => Ok(Self::Static),
            "dynamic" => Ok(Self::Dynamic),
            _ => Err(refused("--registration", text, "static or dynamic")),
        }
    }
}

impl From<Registration> for verbs::Registration {
    fn from(registration: Registration) -> Self {
        match registration {
            Registration::Static => Self::Static,
            Registration::Dynamic => Self::Dynamic,
        }
    }
}

fn refused(setting: &'static str, value: &str, accepted: &str) -> BenchError {
    BenchError::Setting { setting, value: value.to_owned(), accepted: accepted.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_of_moving_are_read_by_name() {
        for transfer in [Transfer::Write, Transfer::Read] {
            assert_eq!(transfer.to_string().parse::<Transfer>().expect("known"), transfer);
            assert_eq!(serde_json::to_value(transfer).expect("a string"), transfer.to_string());
        }
        for registration in [Registration::Static, Registration::Dynamic] {
            assert_eq!(registration.to_string().parse::<Registration>().expect("known"), registration);
            assert_eq!(serde_json::to_value(registration).expect("a string"), registration.to_string());
        }
        assert!("push".parse::<Transfer>().expect_err("unknown").is_usage());
        assert!("lazy".parse::<Registration>().expect_err("unknown").is_usage());
    }
}
