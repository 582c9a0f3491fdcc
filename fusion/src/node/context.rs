//! What the parts of a node share that carry calls: lent to each by argument, while the part itself is at work.

use super::NodeSettings;
use super::memory::Memory;
use super::reporter::Reporter;

/// See the module.
pub(super) struct Context {
    pub(super) settings: NodeSettings,
    pub(super) reporter: Reporter,
    pub(super) memory: Memory,
    /// No new calls of clients, and no requests that would have to wait.
    pub(super) draining: bool,
}
