//! What is made one, as flags spell it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::BenchError;

/// How much is made one: nothing, what leaves in a turn, or what is asked for in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fuse {
    /// One write a message, on both sides.
    Off,
    /// What a turn queued leaves as one write.
    Turn,
    /// What a turn queued leaves as one write, and one request asks for all tensors of a step.
    Receive,
    /// The same, and nothing goes on before the slowest of a step's tensors is there.
    ReceiveWaitAll,
    /// What a turn queued leaves as one write, and the tensors of a step are agreed on once and then asked for by number.
    Plan,
    /// Nobody asks: tensors are pushed one way into a queue, and accepted from it.
    Push,
}

impl Fuse {
    /// Whether one request asks for many tensors.
    pub fn is_of_many(self) -> bool {
        matches!(self, Self::Receive | Self::ReceiveWaitAll | Self::Plan)
    }
}

impl fmt::Display for Fuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Turn => "turn",
            Self::Receive => "receive",
            Self::ReceiveWaitAll => "receive-wait-all",
            Self::Plan => "plan",
            Self::Push => "push",
        })
    }
}

impl FromStr for Fuse {
    type Err = BenchError;

    fn from_str(text: &str) -> Result<Self, BenchError> {
        match text {
            "off" => Ok(Self::Off),
            "turn" => Ok(Self::Turn),
            "receive" => Ok(Self::Receive),
            "receive-wait-all" => Ok(Self::ReceiveWaitAll),
            "plan" => Ok(Self::Plan),
            "push" => Ok(Self::Push),
            _ => Err(BenchError::Setting {
                setting: "--fuse",
                value: text.to_owned(),
                accepted: "off, turn, receive, receive-wait-all, plan or push".to_owned(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fusion_is_read_by_name() {
        for fuse in [Fuse::Off, Fuse::Turn, Fuse::Receive, Fuse::ReceiveWaitAll, Fuse::Plan, Fuse::Push] {
            assert_eq!(fuse.to_string().parse::<Fuse>().expect("known"), fuse);
        }
        assert!("wire".parse::<Fuse>().expect_err("unknown").is_usage());
    }
}
