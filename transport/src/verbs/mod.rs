//! The verbs link: RC queue pairs, one completion queue and one shared receive queue a shard, on an RDMA device.
//!
//! `device.rs` is the seam to the device; `fake/` plays a device in memory, and with the feature `verbs`, `ibverbs/` is
//! the real thing. ARCHITECTURE.md says how bytes move and what a hostile peer can do.

mod credits;
pub mod device;
mod failures;
pub mod fake;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(feature = "verbs")]
pub mod ibverbs;
mod limits;
mod link;
mod message;
mod port;
mod regions;
mod settings;
mod settle;
mod windows;

pub use port::{Depths, Port, PortCounters, Told};
pub use settings::{Registration, Transfer, VerbsSettings};
pub use settle::SettledLink;

/// Opens the device that `settings` name, with the system's library.
///
/// # Errors
/// The step that failed and what to do about it; without the feature `verbs`, that this build has none.
#[cfg(feature = "verbs")]
pub fn open(settings: &VerbsSettings) -> Result<Box<dyn device::Device>, device::VerbsError> {
    let Depths { completions, sends } = Depths::of(settings);
    Ok(Box::new(ibverbs::IbDevice::open(settings, completions, sends)?))
}

/// Opens the device that `settings` name, with the system's library.
///
/// # Errors
/// Always: this build has no verbs.
#[cfg(not(feature = "verbs"))]
pub fn open(_settings: &VerbsSettings) -> Result<Box<dyn device::Device>, device::VerbsError> {
    let reason = "this build has no RDMA verbs: build it with `--features verbs`";
    Err(device::VerbsError::new("open the device", reason))
}
