//! Memory, io_uring, sockets, GPUs and credentials of this host: one function for each question, which returns the answer.

use sealane_runtime::{ExecutorChoice, ExecutorKind, MemoryLimit, RuntimeError};
use serde_json::{Value, json};

use super::kernel::Kernel;
use super::verdict::{Finding, advice};
use crate::Failure;
use crate::engine_settings::authentication;
use crate::figures::days_left;
use crate::host::{AvailableMemory, SMALLER_SLABS};
use crate::locked_memory::LockLimit;
use crate::settings::{Peers, Settings, Sourced};

/// How far a connection's buffers should be able to grow: to a chunk of a large tensor (`transport.chunk_bytes`), which at 100 Gb/s
/// is a third of a millisecond.
const BUFFER_BYTES: u64 = 4 << 20;
/// The backlog that a listener requests from the kernel (`transport/src/tcp/listen.rs`).
const BACKLOG: u64 = 4096;
/// A certificate with fewer days left should be renewed.
const WARNING_DAYS: f64 = 7.0;
/// The kernel's TCP settings.
const IPV4: &str = "proc/sys/net/ipv4";

/// Formats bytes as `128 MiB`.
fn mebibytes(bytes: u64) -> String {
    match bytes {
        0..1_048_576 => format!("{} KiB", bytes / 1024),
        _ => format!("{} MiB", bytes >> 20),
    }
}

/// Checks that memory has room for slabs of this total size, which a daemon populates when it starts, and then for `client_bytes`
/// bytes, which a client may fill.
pub(super) fn memory(kernel: &Kernel, slabs_bytes: u64, client_bytes: u64) -> Finding {
    const NAME: &str = "memory";
    let (slabs, client) = (mebibytes(slabs_bytes), mebibytes(client_bytes));
    let Some(available) = AvailableMemory::below(&kernel.path("")) else {
        return Finding::ok(NAME, format!("slabs take {slabs}; the kernel does not report how much memory is free"));
    };
    let mut says = format!("slabs take {slabs} of {} available", mebibytes(available.bytes));
    if let Some(MemoryLimit { file, limit_bytes, .. }) = &available.limit {
        says += &format!(" under the limit of {} ({})", mebibytes(*limit_bytes), file.display());
    }
    if slabs_bytes > available.bytes {
        return Finding::fails(NAME, format!("{says}, and are populated at startup"), advice(SMALLER_SLABS));
    }
    if slabs_bytes.saturating_add(client_bytes) > available.bytes {
        let says = format!(
            "{says}; a client may fill {client} more, and without memory the kernel kills the daemon or the client"
        );
        let remedy = advice(
            "lower runtime.shards, the slabs' size or daemon.area_bytes, or have clients attach with smaller arenas",
        );
        return Finding::better(NAME, says, remedy);
    }
    Finding::ok(NAME, says)
}

/// Which pages slabs get: they ask for huge ones by `madvise`. Reserved huge pages are left to others.
pub(super) fn huge_pages(kernel: &Kernel) -> Finding {
    const NAME: &str = "huge pages";
    match kernel.chosen("sys/kernel/mm/transparent_hugepage/enabled").as_deref() {
        Some("never") => Finding::better(
            NAME,
            "transparent: never, so slabs use 4 KiB pages",
            "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        ),
        Some(choice) => Finding::ok(NAME, format!("transparent: {choice}, so slabs use them")),
        None => Finding::ok(NAME, "this kernel has no transparent ones"),
    }
}

/// Whether this process may lock the memory that its shards would register with an RDMA device, if they would use one.
pub(super) fn memory_lock(limit: LockLimit, needed: Option<(usize, u64)>, requires_verbs: bool) -> (Finding, Value) {
    const NAME: &str = "memory lock";
    const REMEDY: &str = "ulimit -l unlimited  # in a unit: LimitMEMLOCK=infinity";
    let LockLimit { bytes, hard_bytes, error, is_lifted } = limit;
    let show = |bytes: Option<u64>| bytes.map_or_else(|| "no limit".to_owned(), mebibytes);
    let mut says = match error {
        Some(error) => format!("unknown: {error}"),
        None if bytes == hard_bytes => show(bytes),
        None => format!("{}, can be raised to {}", show(bytes), show(hard_bytes)),
    };
    if is_lifted {
        says += "; CAP_IPC_LOCK lifts it";
    }
    if let Some((shards, bytes)) = needed {
        let needed = mebibytes(bytes);
        says += &format!("; with verbs, {shards} shards register {needed}, plus each client's arena and area");
    }
    let problem = needed.and_then(|(_, needed)| limit.problem(needed));
    let finding = match (&problem, requires_verbs) {
        (None, _) => Finding::ok(NAME, says),
        (Some(_), true) => Finding::fails(NAME, says + ": too low, and verbs are required", REMEDY),
        (Some(_), false) => Finding::better(NAME, says + ": too low, so links would use TCP", REMEDY),
    };
    let facts = json!({
        "soft_bytes": bytes,
        "hard_bytes": hard_bytes,
        "error": error.map(|error| error.to_string()),
        "lifted": is_lifted,
        "needed": needed.map(|(shards, bytes)| json!({ "shards": shards, "bytes": bytes })),
        "problem": problem,
    });
    (finding, facts)
}

/// The executor of the shards, given the result of trying io_uring.
pub(super) fn io_uring(tried: Result<(), RuntimeError>, choice: &Sourced<ExecutorChoice>) -> (Finding, Value) {
    const NAME: &str = "io_uring";
    let available = tried.is_ok();
    let (executor, word) = match choice.value {
        ExecutorChoice::Auto => (Some(if available { ExecutorKind::IoUring } else { ExecutorKind::Epoll }), "auto"),
        ExecutorChoice::IoUring => (available.then_some(ExecutorKind::IoUring), "io_uring"),
        ExecutorChoice::Epoll => (Some(ExecutorKind::Epoll), "epoll"),
    };
    let reason = match tried {
        Ok(()) => "a ring was created".to_owned(),
        Err(RuntimeError::IoUring { reason }) => reason,
        Err(error) => error.to_string(),
    };
    let executor = executor.map(|kind| kind.to_string());
    let because = format!("since runtime.executor is {word} ({})", choice.source);
    // A reason ends with the remedy.
    let (says, remedy) = reason.split_once("; ").unwrap_or((&reason, "check the kernel log (dmesg)"));
    let finding = match &executor {
        None => {
            let says = format!("not available: {says}; shards do not start, {because}");
            Finding::fails(NAME, says, advice("set runtime.executor to auto"))
        }
        Some(executor) if available => {
            Finding::ok(NAME, format!("available: {reason}; shards run on {executor}, {because}"))
        }
        Some(executor) => {
            Finding::better(NAME, format!("not available: {says}; shards run on {executor}, {because}"), advice(remedy))
        }
    };
    let facts = json!({ "available": available, "reason": reason, "executor": executor });
    (finding, facts)
}

/// Whether the wanted congestion control is available, to a process with or without privileges.
pub(super) fn congestion(kernel: &Kernel, wanted: Option<&str>, is_privileged: bool) -> Finding {
    const NAME: &str = "congestion";
    let text = |which| kernel.text(format!("{IPV4}/tcp_{which}congestion_control")).unwrap_or_default();
    let (default, available, allowed) = (text(""), text("available_"), text("allowed_"));
    let has = |list: &str, name| list.split_whitespace().any(|one| one == name);
    let shown = available.split_whitespace().collect::<Vec<_>>().join(", ");
    match wanted {
        None => Finding::ok(NAME, format!("{default}, the kernel's default; available: {shown}")),
        Some(wanted) if !has(&available, wanted) => {
            let says = format!("transport.tcp.congestion is {wanted}; available: {shown}");
            Finding::fails(NAME, says, format!("sudo modprobe tcp_{wanted}"))
        }
        Some(wanted) if !has(&allowed, wanted) && !is_privileged => {
            let all = format!("{allowed} {wanted}");
            let says = format!("transport.tcp.congestion is {wanted}, which needs privileges here");
            let remedy = format!("sudo sysctl -w net.ipv4.tcp_allowed_congestion_control='{}'", all.trim());
            Finding::fails(NAME, says, remedy)
        }
        Some(wanted) => {
            Finding::ok(NAME, format!("{wanted} (transport.tcp.congestion); the kernel's default is {default}"))
        }
    }
}

/// Socket buffers of one direction, `rmem` or `wmem`: `net.core` caps what the settings ask for, and `net.ipv4` what the kernel
/// chooses by itself.
pub(super) fn buffers(kernel: &Kernel, name: &'static str, direction: &str, asked: usize) -> Finding {
    let sysctl = format!("net.core.{direction}_max");
    let most = kernel.number(format!("proc/sys/net/core/{direction}_max"));
    if let (Some(most), asked @ 1..) = (most, asked as u64) {
        let says = format!("{} requested, {sysctl} allows {}", mebibytes(asked), mebibytes(most));
        if asked > most {
            return Finding::better(name, says, format!("sudo sysctl -w {sysctl}={asked}"));
        }
        return Finding::ok(name, says);
    }
    let tcp = format!("net.ipv4.tcp_{direction}");
    match kernel.numbers(format!("{IPV4}/tcp_{direction}")).as_deref() {
        Some(&[least, first, most]) if most < BUFFER_BYTES => {
            let (most, chunk) = (mebibytes(most), mebibytes(BUFFER_BYTES));
            let remedy = format!("sudo sysctl -w {tcp}='{least} {first} {BUFFER_BYTES}'");
            Finding::better(name, format!("grow to {most} ({tcp}), less than a chunk of {chunk}"), remedy)
        }
        Some(&[_, _, most]) => Finding::ok(name, format!("grow to {} ({tcp})", mebibytes(most))),
        _ => Finding::ok(name, "the kernel does not say"),
    }
}

/// Whether that many callers may connect at once.
pub(super) fn backlog(kernel: &Kernel, callers: u64) -> Finding {
    const NAME: &str = "backlog";
    let Some(somaxconn) = kernel.number::<u64>("proc/sys/net/core/somaxconn") else {
        return Finding::ok(NAME, "the kernel does not say");
    };
    let says = format!("net.core.somaxconn is {somaxconn}");
    if somaxconn < callers.min(BACKLOG) {
        let says = format!("{says}, but {callers} peers may connect at once");
        return Finding::better(NAME, says, format!("sudo sysctl -w net.core.somaxconn={BACKLOG}"));
    }
    Finding::ok(NAME, says)
}

/// Whether there are ports for that many connections to one address, and none of them is a port on which this host's daemon
/// listens.
pub(super) fn ports(kernel: &Kernel, links_to_one: u64, listened: &[u16]) -> Finding {
    const NAME: &str = "ports";
    let Some(&[first, last]) = kernel.numbers(format!("{IPV4}/ip_local_port_range")).as_deref() else {
        return Finding::ok(NAME, "the kernel does not say");
    };
    let says = format!("net.ipv4.ip_local_port_range is {first} to {last}");
    if (last + 1).saturating_sub(first) < links_to_one {
        let says = format!("{says}, but there may be {links_to_one} connections to one peer");
        return Finding::better(NAME, says, "sudo sysctl -w net.ipv4.ip_local_port_range='10240 65535'");
    }
    let file = format!("{IPV4}/ip_local_reserved_ports");
    let reserved = kernel.listed(&file).unwrap_or_default();
    let is_at_risk = |port: &&u16| (first..=last).contains(&u64::from(**port)) && !reserved.contains(&(**port).into());
    if let Some(port) = listened.iter().find(is_at_risk) {
        let says = format!("{says}: another program's outgoing connection may hold the transport's port {port}");
        let others = kernel.text(&file).filter(|others| !others.is_empty());
        let reserved = others.map_or_else(|| port.to_string(), |others| format!("{others},{port}"));
        return Finding::better(NAME, says, format!("sudo sysctl -w net.ipv4.ip_local_reserved_ports={reserved}"));
    }
    Finding::ok(NAME, says)
}

/// The devices that the CUDA driver names, or why there are none. Most hosts have none and need none.
pub(super) fn gpus(devices: Result<Vec<String>, String>) -> Finding {
    let says = match devices {
        Err(reason) => format!("none: {reason}"),
        Ok(none) if none.is_empty() => "none, though there is a CUDA driver".to_owned(),
        Ok(all) => format!("{}; tensors there are copied through pinned memory (experimental)", all.join(", ")),
    };
    Finding::ok("GPUs", says)
}

/// Who may communicate with the tasks of this host, and whether a daemon would be `refused` to start with that.
pub(super) fn security(settings: &Settings, refused: Option<&Failure>) -> Finding {
    const NAME: &str = "who may talk";
    if let Some(failure) = refused {
        return Finding::refused(NAME, &format!("a daemon would not start: {failure}"));
    }
    let security = &settings.security;
    let who = match &security.peers {
        Peers::Anyone if security.insecure.value => "anyone who can connect (security.insecure)",
        Peers::Anyone => "anyone, but only this host can connect",
        Peers::Secret(_) => "holders of the shared secret; not encrypted",
        Peers::Tls(_) if security.plaintext_rdma.value => {
            "holders of a certificate for their tasks; encrypted by TLS 1.3, except RDMA (security.plaintext_rdma)"
        }
        Peers::Tls(_) => "holders of a certificate for their tasks; encrypted by TLS 1.3, without RDMA",
    };
    match authentication(security).ok().and_then(|known| known.ends()).map(days_left) {
        None => Finding::ok(NAME, who),
        Some(days) if days > WARNING_DAYS => {
            Finding::ok(NAME, format!("{who}; the certificate is valid for {days:.0} days"))
        }
        Some(days) => {
            let remedy = advice("replace its files; a running daemon reloads them (sealane keys --help)");
            Finding::better(NAME, format!("{who}; the certificate or its authority expires in {days:.1} days"), remedy)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::kernel::laid_out;
    use super::super::verdict::Verdict::{CouldBeBetter, Ok as Fine, WillNotWork};
    use super::*;
    use crate::settings::Source;

    const MIB: u64 = 1 << 20;

    /// A kernel with small send buffers, few ports, no huge pages, and a congestion control that only root may choose.
    fn kernel() -> (tempfile::TempDir, Kernel) {
        laid_out(&[
            ("proc/meminfo", "MemTotal: 9999999 kB\nMemAvailable: 262144 kB"),
            ("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]"),
            ("proc/sys/net/core/rmem_max", "212992"),
            ("proc/sys/net/core/wmem_max", "212992"),
            ("proc/sys/net/core/somaxconn", "128"),
            ("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456"),
            ("proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t2097152"),
            ("proc/sys/net/ipv4/ip_local_port_range", "32768\t60999"),
            ("proc/sys/net/ipv4/ip_local_reserved_ports", "40000,50000-50002"),
            ("proc/sys/net/ipv4/tcp_congestion_control", "bbr"),
            ("proc/sys/net/ipv4/tcp_available_congestion_control", "reno bbr cubic"),
            ("proc/sys/net/ipv4/tcp_allowed_congestion_control", "reno bbr"),
        ])
    }

    #[test]
    fn memory_limit_of_a_control_group_counts() {
        let (_directory, kernel) = laid_out(&[
            ("proc/meminfo", "MemAvailable: 262144 kB"),
            ("proc/self/cgroup", "0::/pod/container"),
            ("sys/fs/cgroup/pod/memory.max", "134217728"),
            ("sys/fs/cgroup/pod/memory.current", "33554432"),
        ]);
        let finding = memory(&kernel, 128 * MIB, 0);
        assert_eq!(finding.verdict, WillNotWork, "{}", finding.says);
        let says = "slabs take 128 MiB of 96 MiB available under the limit of 128 MiB (";
        assert!(finding.says.starts_with(says), "{}", finding.says);
        assert!(finding.says.contains("pod/memory.max"), "{}", finding.says);
        assert_eq!(memory(&kernel, 96 * MIB, 0).verdict, Fine);
    }

    #[test]
    fn every_verdict_names_the_command_that_mends_it() {
        let (_directory, kernel) = kernel();
        let kernel = &kernel;
        let cases = [
            (memory(kernel, 200 * MIB, 56 * MIB), Fine, "slabs take 200 MiB of 256 MiB available", ""),
            (
                memory(kernel, 200 * MIB, 57 * MIB),
                CouldBeBetter,
                "a client may fill 57 MiB more",
                "lower runtime.shards",
            ),
            (memory(kernel, 257 * MIB, 0), WillNotWork, "are populated at startup", "lower runtime.shards"),
            (huge_pages(kernel), CouldBeBetter, "so slabs use 4 KiB pages", "echo madvise |"),
            (buffers(kernel, "r", "rmem", 0), Fine, "grow to 6 MiB (net.ipv4.tcp_rmem)", ""),
            (
                buffers(kernel, "s", "wmem", 0),
                CouldBeBetter,
                "less than a chunk of 4 MiB",
                "sudo sysctl -w net.ipv4.tcp_wmem='4096 16384 4194304'",
            ),
            (
                buffers(kernel, "r", "rmem", 8 << 20),
                CouldBeBetter,
                "8 MiB requested, net.core.rmem_max allows 208 KiB",
                "sudo sysctl -w net.core.rmem_max=8388608",
            ),
            (buffers(kernel, "s", "wmem", 4096), Fine, "4 KiB requested, net.core.wmem_max allows 208 KiB", ""),
            (backlog(kernel, 128), Fine, "is 128", ""),
            (backlog(kernel, 129), CouldBeBetter, "129 peers may connect", "sudo sysctl -w net.core.somaxconn=4096"),
            (ports(kernel, 28_232, &[]), Fine, "32768 to 60999", ""),
            (ports(kernel, 28_233, &[]), CouldBeBetter, "28233 connections", "sudo sysctl -w net.ipv4.ip_local_port"),
            (
                ports(kernel, 1, &[7000, 33_000]),
                CouldBeBetter,
                "may hold the transport's port 33000",
                "sudo sysctl -w net.ipv4.ip_local_reserved_ports=40000,50000-50002,33000",
            ),
            (ports(kernel, 1, &[40_000, 50_001, 61_000]), Fine, "", ""),
            (congestion(kernel, None, false), Fine, "bbr, the kernel's default; available: reno, bbr, cubic", ""),
            (congestion(kernel, Some("reno"), false), Fine, "reno (transport.tcp.congestion)", ""),
            (congestion(kernel, Some("cubic"), true), Fine, "the kernel's default is bbr", ""),
            (
                congestion(kernel, Some("cubic"), false),
                WillNotWork,
                "needs privileges here",
                "sudo sysctl -w net.ipv4.tcp_allowed_congestion_control='reno bbr cubic'",
            ),
            (
                congestion(kernel, Some("vegas"), true),
                WillNotWork,
                "transport.tcp.congestion is vegas; available: reno, bbr, cubic",
                "sudo modprobe tcp_vegas",
            ),
            (gpus(Err("no driver".into())), Fine, "none: no driver", ""),
            (gpus(Ok(vec!["A".into(), "B".into()])), Fine, "A, B; tensors there are copied", ""),
        ];
        for (finding, verdict, says, remedy) in cases {
            assert_eq!(finding.verdict, verdict, "{finding:?}");
            assert!(finding.says.contains(says) && finding.remedy().starts_with(remedy), "{finding:?}");
            assert_eq!(finding.remedy.is_some(), verdict != Fine, "{finding:?}");
        }
    }

    #[test]
    fn a_kernel_that_says_nothing_is_no_trouble() {
        let (_directory, kernel) = laid_out(&[]);
        let all = [
            memory(&kernel, MIB, MIB),
            huge_pages(&kernel),
            buffers(&kernel, "r", "rmem", 1),
            backlog(&kernel, 1000),
            ports(&kernel, 1000, &[40_000]),
            congestion(&kernel, None, false),
        ];
        assert!(all.iter().all(|finding| finding.verdict == Fine), "{all:?}");
    }

    #[test]
    fn the_memory_limit_has_a_verdict() {
        let plain = LockLimit { bytes: Some(8192), hard_bytes: None, error: None, is_lifted: false };
        assert_eq!(memory_lock(plain, None, true).0.says, "8 KiB, can be raised to no limit");
        let lifted = LockLimit { is_lifted: true, hard_bytes: Some(8192), ..plain };
        assert_eq!(memory_lock(lifted, None, true).0.says, "8 KiB; CAP_IPC_LOCK lifts it");
        for (requires_verbs, verdict) in [(false, CouldBeBetter), (true, WillNotWork)] {
            let (low, facts) = memory_lock(plain, Some((2, 9000)), requires_verbs);
            let needed = "; with verbs, 2 shards register 8 KiB, plus each client's arena and area: too low, ";
            assert!(low.verdict == verdict && low.says.contains(needed), "{low:?}");
            assert_eq!((&facts["needed"]["bytes"], facts["problem"].is_string()), (&9000.into(), true));
        }
    }

    #[test]
    fn shards_run_without_io_uring_unless_it_is_asked_for() {
        for (value, is_there, executor, says) in [
            (ExecutorChoice::Auto, true, "io_uring", "available: a ring was created; shards run on io_uring, since"),
            (ExecutorChoice::Auto, false, "epoll", "not available: a seccomp profile forbids it; shards run on epoll"),
            (ExecutorChoice::IoUring, true, "io_uring", "since runtime.executor is io_uring (--set)"),
            (ExecutorChoice::IoUring, false, "", "shards do not start, since runtime.executor is io_uring (--set)"),
            (ExecutorChoice::Epoll, true, "epoll", "shards run on epoll, since runtime.executor is epoll (--set)"),
            (ExecutorChoice::Epoll, false, "epoll", "shards run on epoll, since runtime.executor is epoll (--set)"),
        ] {
            let reason = "a seccomp profile forbids it".to_owned();
            let tried = if is_there { Ok(()) } else { Err(RuntimeError::IoUring { reason }) };
            let (finding, facts) = io_uring(tried, &Sourced { value, source: Source::Flag("--set") });
            assert_eq!((&facts["available"], facts["executor"].as_str().unwrap_or("")), (&is_there.into(), executor));
            assert!(finding.says.contains(says), "{}", finding.says);
        }
    }
}
