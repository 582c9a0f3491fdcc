//! Whether this process may lock as much memory as will be registered with RDMA devices. The kernel counts every registration:
//! memory that two shards register counts twice. Asked on the main thread, before the shards start.

use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};
use sealane_fusion::EngineSettings;
use sealane_transport::provider::LinkProvider;

use crate::{Failure, host};

/// What to do if the limit is too low.
const REMEDY: &str = "raise it with `ulimit -l unlimited` in a shell or LimitMEMLOCK=infinity in the systemd unit, or give \
                      the process the capability CAP_IPC_LOCK";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LockLimit {
    /// The current limit; `None` if there is none or it is not known.
    pub(crate) bytes: Option<u64>,
    /// The value to which this process may raise it; `None` as above.
    pub(crate) hard_bytes: Option<u64>,
    /// Why the limit is not known, if so.
    pub(crate) error: Option<Errno>,
    /// True if this process is exempt from the limit.
    pub(crate) is_lifted: bool,
}

impl LockLimit {
    pub(crate) fn look() -> LockLimit {
        let limits = getrlimit(Resource::RLIMIT_MEMLOCK);
        let [bytes, hard_bytes] = limits
            .map_or([RLIM_INFINITY; 2], |(soft, hard)| [soft, hard])
            .map(|bytes| (bytes != RLIM_INFINITY).then_some(bytes));
        let is_lifted = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
        LockLimit { bytes, hard_bytes, error: limits.err(), is_lifted }
    }

    /// What is wrong with the limit and what to do about it, if `needed` is more than may be locked.
    pub(crate) fn problem(self, needed: u64) -> Option<String> {
        let limit = self.bytes.filter(|limit| !self.is_lifted && *limit < needed)?;
        Some(format!(
            "an engine registers {} KiB of memory with the RDMA device when it starts, and RLIMIT_MEMLOCK lets this process \
             lock {} KiB; {REMEDY}",
            needed.div_ceil(1024),
            limit / 1024
        ))
    }
}

/// Warns of a limit that is too low for an engine with these settings. Silent if no device would be used.
///
/// # Errors
/// The limit is too low, and verbs are required.
pub(crate) fn check(settings: &EngineSettings) -> Result<(), Failure> {
    // Without a device nothing is registered; if one is required, the engine reports that it is missing.
    if host::has_rdma_device() { check_against(settings, LockLimit::look()) } else { Ok(()) }
}

fn check_against(settings: &EngineSettings, limit: LockLimit) -> Result<(), Failure> {
    let slab_bytes = [settings.slab_send_bytes, settings.slab_receive_bytes];
    let is_encrypted = settings.authentication.is_encrypted();
    let locked = |links: &Arc<dyn LinkProvider>| links.locked_bytes(settings.runtime.shards, slab_bytes, is_encrypted);
    let required = settings.links.iter().find(|links| links.is_required());
    match limit.problem(settings.links.iter().map(locked).sum()) {
        Some(problem) if let Some(links) = required => {
            let name = links.kind().name();
            Err(Failure::work(format!("{name} are required (transport.require), but {problem}")))
        }
        Some(problem) => {
            tracing::warn!("{problem}; links may be TCP until then");
            Ok(())
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use sealane_fusion::EndpointMap;
    use sealane_transport::verbs::{Verbs, VerbsSettings};

    use super::*;

    const MIB: u64 = 1 << 20;

    fn limited(bytes: u64) -> LockLimit {
        LockLimit { bytes: Some(bytes), hard_bytes: None, error: None, is_lifted: false }
    }

    fn engine(is_required: bool) -> EngineSettings {
        let map = EndpointMap::parse("ps0:2222=127.0.0.1:7000\n", "test").unwrap();
        let mut settings = EngineSettings::new(map, &["ps0:2222"]).unwrap();
        settings.runtime.shards = 2;
        settings.links = vec![Arc::new(Verbs { is_required, ..Verbs::new(VerbsSettings::default()) })];
        settings
    }

    #[test]
    fn a_limit_is_a_problem_only_if_it_counts_and_is_too_low() {
        assert_eq!(limited(8 * MIB).problem(8 * MIB), None);
        assert_eq!(LockLimit { bytes: None, ..limited(0) }.problem(u64::MAX), None);
        assert_eq!(LockLimit { is_lifted: true, ..limited(0) }.problem(MIB), None);
        let problem = limited(8 * MIB).problem(20 * MIB).unwrap();
        for part in ["20480 KiB", "8192 KiB", "ulimit -l unlimited", "LimitMEMLOCK=infinity", "CAP_IPC_LOCK"] {
            assert!(problem.contains(part), "{problem}");
        }
    }

    #[test]
    fn too_low_a_limit_is_an_error_where_verbs_are_required_and_else_a_warning() {
        let needed = 2 * (128 + 20) * MIB;
        for is_required in [true, false] {
            assert!(check_against(&engine(is_required), limited(needed)).is_ok());
        }
        assert!(check_against(&engine(false), limited(needed - 1)).is_ok());
        let failure = check_against(&engine(true), limited(needed - 1)).unwrap_err().to_string();
        assert!(failure.starts_with("verbs are required (transport.require), but an engine registers "), "{failure}");
        let without = EngineSettings { links: Vec::new(), ..engine(true) };
        assert!(check_against(&without, limited(0)).is_ok());
        assert!(check(&without).is_ok());
    }
}
