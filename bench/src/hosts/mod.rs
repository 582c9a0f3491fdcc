//! Measurements between two hosts. `sealane bench serve` runs on the producer's host, and starts producers there for a `sealane bench`
//! with `--connect` on the consumer's host, which measures. One connection between the two carries orders and answers. The tensors
//! use connections of their own.

mod access;
mod control;
mod serve;
mod store;

pub(crate) use access::{Access, Connect};
pub(crate) use control::{Answer, Control, Order};
pub(crate) use serve::{Serve, serve};
pub(crate) use store::{Directory, mirror};

/// The port of `sealane bench serve`.
pub(crate) const PORT: u16 = 7411;
