//! Registration of memory, and advice if it cannot be locked.

use std::io;

use nix::sys::resource::{Resource, getrlimit};

use super::owned::{Domain, MemoryRegion};
use super::sys::ibv_access_flags as flags;
use crate::verbs::device::{Access, VerbsError};

/// What the device may do with a region.
pub(super) fn access_flags(access: Access, has_windows: bool) -> u32 {
    let local = flags::IBV_ACCESS_LOCAL_WRITE;
    match access {
        Access::Windows if has_windows => local | flags::IBV_ACCESS_MW_BIND,
        Access::Windows => local,
        Access::Peers => local | flags::IBV_ACCESS_REMOTE_READ | flags::IBV_ACCESS_REMOTE_WRITE,
    }
}

/// The error of a failed registration.
pub(super) fn refused(verb: &'static str, bytes: usize, error: &io::Error) -> VerbsError {
    let limit = getrlimit(Resource::RLIMIT_MEMLOCK).ok().map(|(soft, _)| soft);
    VerbsError::new(verb, reason(bytes, error, limit))
}

/// Whether library, driver and kernel can register dma-bufs, otherwise why not. If they can, they refuse an invalid
/// descriptor as such.
pub(super) fn registers_direct(domain: &Domain) -> Result<(), String> {
    // SAFETY: the domain lives; there are no bytes.
    let error = match unsafe { MemoryRegion::register_direct_in(domain.as_ptr(), (0, 0, 0), -1, 0) } {
        Ok(_) => return Ok(()),
        Err(error) => error,
    };
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::ENOSYS) => Err(format!(
            "ibv_reg_dmabuf_mr: {error}: it takes rdma-core 34 and Linux 5.12 or newer, and a driver that has it"
        )),
        _ => Ok(()),
    }
}

fn reason(bytes: usize, error: &io::Error, limit: Option<u64>) -> String {
    let kib = bytes.div_ceil(1024);
    if error.raw_os_error() != Some(libc::ENOMEM) {
        return format!("{error} ({kib} KiB)");
    }
    let limit = match limit {
        Some(libc::RLIM_INFINITY) => "unlimited".to_owned(),
        Some(limit) => format!("{} KiB", limit / 1024),
        None => "unknown".to_owned(),
    };
    format!(
        "{error}: {kib} KiB could not be locked; RLIMIT_MEMLOCK is {limit} for all registered memory together. Raise it: \
         LimitMEMLOCK=infinity in the systemd unit, `ulimit -l unlimited` in a shell, or the capability CAP_IPC_LOCK"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_lockable_memory_names_the_limit_and_the_remedy() {
        let full = io::Error::from_raw_os_error(libc::ENOMEM);
        let said = reason(1 << 20, &full, Some(64 << 10));
        for part in ["1024 KiB", "RLIMIT_MEMLOCK is 64 KiB", "LimitMEMLOCK=infinity", "ulimit -l", "CAP_IPC_LOCK"] {
            assert!(said.contains(part), "{said}");
        }
        assert!(reason(1, &full, Some(libc::RLIM_INFINITY)).contains("is unlimited"));
        let other = io::Error::from_raw_os_error(libc::EFAULT);
        assert!(!reason(1, &other, None).contains("MEMLOCK"));
        assert!(refused("ibv_reg_mr", 1, &full).to_string().starts_with("ibv_reg_mr: "));
    }

    #[test]
    fn a_region_is_open_to_peers_only_where_that_is_asked_for() {
        assert_eq!(access_flags(Access::Windows, true), 1 | 16);
        assert_eq!(access_flags(Access::Windows, false), 1);
        assert_eq!(access_flags(Access::Peers, true), 1 | 2 | 4);
    }
}
