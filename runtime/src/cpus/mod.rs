//! CPUs: which ones this process may use, and which of them it has claimed. Called at startup; bounded by the machine.

mod allowed;
mod claim;
mod list;
mod near;

pub(crate) use self::near::near_cpus;
pub use self::{
    allowed::{allowed_cpus, usable_cpus},
    claim::{CpuClaim, Wanted, claim_cpus, claimed_cpus},
    list::parse_list,
};
