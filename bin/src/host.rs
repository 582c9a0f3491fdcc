//! What the kernel reports of this host: its estimate of available memory, the memory limit of control groups, and whether there are
//! RDMA devices.

use std::fs;
use std::path::Path;

use sealane_runtime::{ControlGroups, MemoryLimit};

use crate::Failure;

/// Where the kernel reports memory, below the root.
const MEMINFO: &str = "proc/meminfo";
/// Where the kernel lists RDMA devices.
const RDMA_DEVICES: &str = "/sys/class/infiniband";

/// Memory that this process can still use.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct AvailableMemory {
    pub(crate) bytes: u64,
    /// The limit of a control group, if less is left of that than of the host's memory.
    pub(crate) limit: Option<MemoryLimit>,
}

impl AvailableMemory {
    /// Reads `proc` and `sys` in `root`; `None` if the kernel reports neither the host's memory nor a limit.
    pub(crate) fn below(root: &Path) -> Option<AvailableMemory> {
        let host = fs::read_to_string(root.join(MEMINFO)).ok().and_then(|text| available_in(&text));
        let limit = ControlGroups::below(root).memory();
        match (host, limit) {
            (Some(bytes), Some(limit)) if bytes <= limit.available_bytes => {
                Some(AvailableMemory { bytes, limit: None })
            }
            (_, Some(limit)) => Some(AvailableMemory { bytes: limit.available_bytes, limit: Some(limit) }),
            (host, None) => host.map(|bytes| AvailableMemory { bytes, limit: None }),
        }
    }
}

/// Returns the bytes that this process can still use without swapping; `None` if the kernel does not report it.
pub(crate) fn available_bytes() -> Option<u64> {
    AvailableMemory::below(Path::new("/")).map(|available| available.bytes)
}

/// Checks that a control group's memory limit has room for `bytes` bytes that a process populates when it starts. The kernel kills a
/// process that exceeds the limit.
///
/// # Errors
/// The limit is lower; the message names its file and what to do.
pub(crate) fn check_memory_limit(bytes: u64) -> Result<(), Failure> {
    let limit = ControlGroups::of_this_process().memory().filter(|limit| limit.available_bytes < bytes);
    limit.map_or(Ok(()), |MemoryLimit { file, limit_bytes, available_bytes }| {
        Err(Failure::work(format!(
            "the slabs need {} KiB, but the memory limit of this control group leaves {} of {} KiB ({}); {SMALLER_SLABS}, or raise \
             the limit",
            bytes.div_ceil(1024),
            available_bytes / 1024,
            limit_bytes / 1024,
            file.display(),
        )))
    })
}

/// What to do if the slabs do not fit.
pub(crate) const SMALLER_SLABS: &str = "lower runtime.shards, runtime.slab_send_bytes or runtime.slab_receive_bytes";

/// Bytes that programs can still use without swapping, by the text of `/proc/meminfo`.
fn available_in(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// True if there is an RDMA device, whatever its state. Opens none.
pub(crate) fn has_rdma_device() -> bool {
    fs::read_dir(RDMA_DEVICES).is_ok_and(|mut devices| devices.next().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_estimate_is_read() {
        assert_eq!(available_in("MemTotal: 9 kB\nMemAvailable:   12 kB\n"), Some(12 * 1024));
        for text in ["", "MemAvailable: many kB", "MemAvailable: 12", "MemAvailable: 18446744073709551615 kB"] {
            assert_eq!(available_in(text), None, "{text}");
        }
        assert!(available_bytes().is_some_and(|bytes| bytes > 0));
    }
}
