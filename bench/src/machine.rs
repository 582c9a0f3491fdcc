//! The CPUs of the two sides of a run, and its RDMA device.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use sealane_transport::verbs::device::Attributes;
use serde::{Deserialize, Serialize};

use crate::error::BenchError;

/// Chooses the CPUs of the consumer and the producer: the requested ones, else the first two allowed ones, else none.
///
/// # Errors
/// [`BenchError::Setting`] when a CPU was asked for that is not allowed.
pub(crate) fn choose_cpus(wanted: Option<[usize; 2]>, allowed: &[usize]) -> Result<Option<[usize; 2]>, BenchError> {
    match wanted.iter().flatten().find(|cpu| !allowed.contains(cpu)) {
        Some(cpu) => Err(BenchError::setting("--cpus", cpu, format!("CPUs that this process may use: {allowed:?}"))),
        None => Ok(wanted.or(allowed.first_chunk().copied())),
    }
}

/// The calling thread is pinned while this lives, and free again afterwards.
#[derive(Debug)]
pub(crate) struct Pinned {
    before: CpuSet,
}

impl Pinned {
    /// Pins the calling thread to `cpu`; threads and processes that it starts inherit that.
    ///
    /// # Errors
    /// [`BenchError::Io`] when the kernel refuses.
    pub fn to(cpu: usize) -> Result<Self, BenchError> {
        let asked = sched_getaffinity(Pid::from_raw(0));
        let before = asked.map_err(BenchError::io("ask for the CPUs that this process may use"))?;
        let mut only = CpuSet::new();
        only.set(cpu)
            .and_then(|()| sched_setaffinity(Pid::from_raw(0), &only))
            .map_err(BenchError::io(format!("pin a thread to CPU {cpu}")))?;
        Ok(Self { before })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // The mask was valid when it was read; if those CPUs have been taken away since, the thread stays where it is.
        let _ = sched_setaffinity(Pid::from_raw(0), &self.before);
    }
}

/// An RDMA device, as the measured processes opened it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaDevice {
    pub name: String,
    pub port: u8,
    pub gid_index: u8,
    /// The path MTU, in bytes.
    pub mtu: u16,
}

impl From<&Attributes> for RdmaDevice {
    fn from(attributes: &Attributes) -> Self {
        let Attributes { device, port, gid_index, mtu, .. } = attributes;
        Self { name: device.clone(), port: *port, gid_index: *gid_index, mtu: *mtu }
    }
}

#[cfg(test)]
mod tests {
    use sealane_runtime::allowed_cpus;

    use super::*;

    #[test]
    fn the_first_two_allowed_cpus_are_the_default() {
        assert_eq!(choose_cpus(None, &[2, 5, 7]).expect("two"), Some([2, 5]));
        assert_eq!(choose_cpus(None, &[2]).expect("one"), None);
        assert_eq!(choose_cpus(Some([7, 2]), &[2, 5, 7]).expect("allowed"), Some([7, 2]));
        let error = choose_cpus(Some([2, 9]), &[2, 5]).expect_err("9 is not allowed");
        assert!(error.is_usage());
        assert!(error.to_string().contains("[2, 5]"), "{error}");
    }

    #[test]
    fn pinning_ends_with_the_guard() {
        let before = allowed_cpus().expect("linux tells");
        let pinned = Pinned::to(before[0]).expect("allowed");
        assert_eq!(allowed_cpus().expect("linux tells"), before[..1]);
        drop(pinned);
        assert_eq!(allowed_cpus().expect("linux tells"), before);
    }
}
