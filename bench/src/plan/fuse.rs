//! What is made one, as flags spell it.

use serde::{Deserialize, Serialize};

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
