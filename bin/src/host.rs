//! What the kernel reports of this host: its estimate of available memory, and whether there are RDMA devices.

use std::fs;

/// Where the kernel reports memory.
const MEMINFO: &str = "/proc/meminfo";
/// Where the kernel lists RDMA devices.
const RDMA_DEVICES: &str = "/sys/class/infiniband";

/// Bytes that programs can still use without swapping; `None` if the kernel does not tell.
pub(crate) fn available_bytes() -> Option<u64> {
    available_in(&fs::read_to_string(MEMINFO).ok()?)
}

/// Reads [`available_bytes`] from the text of `/proc/meminfo`.
pub(crate) fn available_in(meminfo: &str) -> Option<u64> {
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
