//! What the kernel gives this process: CPUs, lockable memory, TCP congestion controls.

use std::fmt;
use std::fs;

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use serde::Serialize;

use crate::locked_memory::LockLimit;

/// Where the kernel says which congestion control it uses, and which it would let a socket have.
const CONGESTION: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
const CONGESTION_AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";
const CONGESTION_ALLOWED: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";

/// How much memory this process may lock.
#[derive(Debug, Serialize)]
pub(super) struct MemoryLock {
    /// `null` means no limit.
    soft_bytes: Option<u64>,
    /// `null` means no limit.
    hard_bytes: Option<u64>,
    error: Option<String>,
    /// True if the limit does not count, because this process has CAP_IPC_LOCK.
    lifted: bool,
    /// What an engine registers with an RDMA device when it starts; `null` if it would use none.
    needed: Option<Registered>,
    /// What to do where that is more than may be locked.
    problem: Option<String>,
}

/// What an engine registers.
#[derive(Debug, Serialize)]
pub(super) struct Registered {
    pub(super) shards: usize,
    /// Slabs and message buffers of all shards.
    pub(super) bytes: u64,
}

impl MemoryLock {
    /// Reads the limits of this process.
    pub(super) fn look(needed: Option<Registered>) -> MemoryLock {
        let finite = |bytes| (bytes != RLIM_INFINITY).then_some(bytes);
        let (soft_bytes, hard_bytes, error) = match getrlimit(Resource::RLIMIT_MEMLOCK) {
            Ok((soft, hard)) => (finite(soft), finite(hard), None),
            Err(error) => (None, None, Some(error.to_string())),
        };
        let limit = LockLimit::look();
        let problem = needed.as_ref().and_then(|needed| limit.problem(needed.bytes));
        MemoryLock { soft_bytes, hard_bytes, error, lifted: limit.is_lifted, needed, problem }
    }
}

impl fmt::Display for MemoryLock {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |bytes: Option<u64>| match bytes {
            Some(bytes) => format!("{bytes} bytes"),
            None => "no limit".to_owned(),
        };
        match &self.error {
            Some(error) => write!(out, "unknown: {error}")?,
            None => {
                let (soft, hard) = (show(self.soft_bytes), show(self.hard_bytes));
                write!(out, "{soft}, can be raised to {hard}")?;
            }
        }
        if self.lifted {
            out.write_str("; CAP_IPC_LOCK lifts it")?;
        }
        if let Some(Registered { shards, bytes }) = self.needed {
            write!(
                out,
                "; for verbs {shards} shards register {bytes} bytes, and each client's arena and area besides"
            )?;
        }
        match &self.problem {
            Some(problem) => write!(out, "; too low: {problem}"),
            None => Ok(()),
        }
    }
}

/// The congestion controls of this host's TCP.
#[derive(Debug, Serialize)]
pub(super) struct Tcp {
    /// The kernel's default.
    congestion: String,
    /// Those that the kernel has loaded.
    congestion_available: Vec<String>,
    /// Those that a process without privilege may choose.
    congestion_allowed: Vec<String>,
    /// Whether the one that `transport.tcp.congestion` asks for can be had; `null` if none is.
    wanted_available: Option<bool>,
}

impl Tcp {
    /// Reads the kernel's lists; `wanted` is what the settings ask for.
    pub(super) fn look(wanted: Option<&str>) -> Tcp {
        let text = |file| fs::read_to_string(file).unwrap_or_default();
        let (default, available) = (text(CONGESTION), text(CONGESTION_AVAILABLE));
        Tcp::of(wanted, &default, &available, &text(CONGESTION_ALLOWED))
    }

    fn of(wanted: Option<&str>, default: &str, available: &str, allowed: &str) -> Tcp {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let congestion_available = words(available);
        Tcp {
            wanted_available: wanted.map(|name| congestion_available.iter().any(|has| has == name)),
            congestion: default.trim().to_owned(),
            congestion_allowed: words(allowed),
            congestion_available,
        }
    }
}

impl fmt::Display for Tcp {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let available = self.congestion_available.join(", ");
        let allowed = self.congestion_allowed.join(", ");
        let default = &self.congestion;
        write!(out, "congestion control {default}; available {available}; ")?;
        write!(out, "without privilege {allowed}")?;
        if self.wanted_available == Some(false) {
            out.write_str("; the one in transport.tcp.congestion is not available")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_the_memory_limit() {
        let plain = || MemoryLock {
            soft_bytes: Some(8192),
            hard_bytes: None,
            error: None,
            lifted: false,
            needed: None,
            problem: None,
        };
        assert_eq!(plain().to_string(), "8192 bytes, can be raised to no limit");
        let lifted = MemoryLock { lifted: true, ..plain() };
        assert_eq!(lifted.to_string(), "8192 bytes, can be raised to no limit; CAP_IPC_LOCK lifts it");
        let needed = Some(Registered { shards: 2, bytes: 9000 });
        let low = MemoryLock { needed, problem: Some("raise it".to_owned()), ..plain() };
        assert_eq!(
            low.to_string(),
            "8192 bytes, can be raised to no limit; for verbs 2 shards register 9000 bytes, and each client's arena and \
             area besides; too low: raise it"
        );
    }

    #[test]
    fn looks_at_the_memory_limit_for_what_is_needed() {
        let nothing = MemoryLock::look(None);
        assert!(nothing.error.is_none() && nothing.problem.is_none());
        let all = MemoryLock::look(Some(Registered { shards: 1, bytes: u64::MAX }));
        assert_eq!(all.problem.is_some(), all.soft_bytes.is_some() && !all.lifted);
    }

    #[test]
    fn says_if_the_wanted_congestion_control_is_missing() {
        let of = |wanted| Tcp::of(wanted, "bbr\n", "reno bbr cubic\n", "reno bbr\n");
        assert_eq!(of(None).wanted_available, None);
        assert_eq!(of(Some("cubic")).wanted_available, Some(true));
        let missing = of(Some("vegas")).to_string();
        assert_eq!(
            missing,
            "congestion control bbr; available reno, bbr, cubic; without privilege reno, bbr; \
             the one in transport.tcp.congestion is not available"
        );
    }
}
