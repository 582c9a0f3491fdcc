//! Whether the kernel has RDMA devices, without opening any.

use std::fs;
use std::path::Path;

/// Where the kernel lists RDMA devices.
pub(crate) const DEVICES: &str = "/sys/class/infiniband";

/// True if there is one, whatever its state.
pub(crate) fn are_there() -> bool {
    are_in(Path::new(DEVICES))
}

fn are_in(directory: &Path) -> bool {
    fs::read_dir(directory).is_ok_and(|mut devices| devices.next().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_missing_or_empty_has_none() {
        let directory = tempfile::tempdir().unwrap();
        let devices = directory.path().join("infiniband");
        assert!(!are_in(&devices));
        fs::create_dir(&devices).unwrap();
        assert!(!are_in(&devices));
        fs::create_dir(devices.join("rxe0")).unwrap();
        assert!(are_in(&devices));
    }
}
