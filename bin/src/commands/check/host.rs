//! What the kernel gives this process: lockable memory, TCP congestion controls.

use serde::Serialize;

use super::kernel::Kernel;
use super::memory::mebibytes;
use super::verdict::Finding;
use crate::locked_memory::LockLimit;

/// Where the kernel says which congestion control it uses, and which it would let a socket have.
const CONGESTION: &str = "proc/sys/net/ipv4/tcp_congestion_control";
const CONGESTION_AVAILABLE: &str = "proc/sys/net/ipv4/tcp_available_congestion_control";
const CONGESTION_ALLOWED: &str = "proc/sys/net/ipv4/tcp_allowed_congestion_control";

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
        let limit = LockLimit::look();
        let problem = needed.as_ref().and_then(|needed| limit.problem(needed.bytes));
        let LockLimit { bytes: soft_bytes, hard_bytes, error, is_lifted: lifted } = limit;
        MemoryLock { soft_bytes, hard_bytes, error: error.map(|error| error.to_string()), lifted, needed, problem }
    }

    /// What is to be said of it; too low a limit is the end where verbs are required.
    pub(super) fn finding(&self, requires_verbs: bool) -> Finding {
        const NAME: &str = "memory lock";
        const REMEDY: &str = "ulimit -l unlimited  # in a unit: LimitMEMLOCK=infinity";
        let show = |bytes: Option<u64>| bytes.map_or_else(|| "no limit".to_owned(), mebibytes);
        let mut says = match &self.error {
            Some(error) => format!("unknown: {error}"),
            None if self.soft_bytes == self.hard_bytes => show(self.soft_bytes),
            None => format!("{}, can be raised to {}", show(self.soft_bytes), show(self.hard_bytes)),
        };
        if self.lifted {
            says += "; CAP_IPC_LOCK lifts it";
        }
        if let Some(Registered { shards, bytes }) = self.needed {
            let needed = mebibytes(bytes);
            says += &format!("; with verbs, {shards} shards register {needed}, plus each client's arena and area");
        }
        match (&self.problem, requires_verbs) {
            (None, _) => Finding::ok(NAME, says),
            (Some(_), true) => Finding::fails(NAME, says + ": too low, and verbs are required", REMEDY),
            (Some(_), false) => Finding::better(NAME, says + ": too low, so links would use TCP", REMEDY),
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
    pub(super) fn look(kernel: &Kernel, wanted: Option<&str>) -> Tcp {
        let text = |file| kernel.text(file).unwrap_or_default();
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

    /// What is to be said of them, for a process that has privilege or has not.
    pub(super) fn finding(&self, wanted: Option<&str>, is_privileged: bool) -> Finding {
        const NAME: &str = "congestion";
        let available = self.congestion_available.join(", ");
        let Some(wanted) = wanted else {
            return Finding::ok(NAME, format!("{}, the kernel's default; available: {available}", self.congestion));
        };
        if self.wanted_available == Some(false) {
            let says = format!("transport.tcp.congestion is {wanted}; available: {available}");
            return Finding::fails(NAME, says, format!("sudo modprobe tcp_{wanted}"));
        }
        let is_allowed = self.congestion_allowed.iter().any(|allowed| allowed == wanted);
        if !is_allowed && !is_privileged {
            let all = format!("{} {wanted}", self.congestion_allowed.join(" "));
            let says = format!("transport.tcp.congestion is {wanted}, which needs privileges here");
            let remedy = format!("sudo sysctl -w net.ipv4.tcp_allowed_congestion_control='{}'", all.trim());
            return Finding::fails(NAME, says, remedy);
        }
        Finding::ok(NAME, format!("{wanted} (transport.tcp.congestion); the kernel's default is {}", self.congestion))
    }
}

#[cfg(test)]
mod tests {
    use super::super::verdict::Verdict;
    use super::*;

    #[test]
    fn the_memory_limit_has_a_verdict() {
        let plain = || MemoryLock {
            soft_bytes: Some(8192),
            hard_bytes: None,
            error: None,
            lifted: false,
            needed: None,
            problem: None,
        };
        assert_eq!(plain().finding(true).says, "8 KiB, can be raised to no limit");
        let lifted = MemoryLock { lifted: true, hard_bytes: Some(8192), ..plain() };
        assert_eq!(lifted.finding(true).says, "8 KiB; CAP_IPC_LOCK lifts it");
        let needed = Some(Registered { shards: 2, bytes: 9000 });
        let low = MemoryLock { needed, problem: Some("raise it".to_owned()), ..plain() };
        let finding = low.finding(false);
        assert_eq!(
            finding.says,
            "8 KiB, can be raised to no limit; with verbs, 2 shards register 8 KiB, plus each client's arena and \
             area: too low, so links would use TCP"
        );
        assert_eq!((finding.verdict, low.finding(true).verdict), (Verdict::CouldBeBetter, Verdict::WillNotWork));
    }

    #[test]
    fn looks_at_the_memory_limit_for_what_is_needed() {
        let nothing = MemoryLock::look(None);
        assert!(nothing.error.is_none() && nothing.problem.is_none());
        let all = MemoryLock::look(Some(Registered { shards: 1, bytes: u64::MAX }));
        assert_eq!(all.problem.is_some(), all.soft_bytes.is_some() && !all.lifted);
    }

    #[test]
    fn the_wanted_congestion_control_must_be_there_and_allowed() {
        let of = |wanted, is_privileged| {
            let tcp = Tcp::of(wanted, "bbr\n", "reno bbr cubic\n", "reno bbr\n");
            tcp.finding(wanted, is_privileged)
        };
        assert_eq!(of(None, false).says, "bbr, the kernel's default; available: reno, bbr, cubic");
        assert_eq!(of(Some("reno"), false).verdict, Verdict::Ok);
        assert_eq!(of(Some("cubic"), true).verdict, Verdict::Ok);
        let forbidden = of(Some("cubic"), false);
        assert_eq!(forbidden.verdict, Verdict::WillNotWork);
        assert_eq!(forbidden.remedy(), "sudo sysctl -w net.ipv4.tcp_allowed_congestion_control='reno bbr cubic'");
        let missing = of(Some("vegas"), true);
        assert_eq!(missing.verdict, Verdict::WillNotWork);
        assert_eq!(missing.says, "transport.tcp.congestion is vegas; available: reno, bbr, cubic");
        assert_eq!(missing.remedy(), "sudo modprobe tcp_vegas");
    }
}
