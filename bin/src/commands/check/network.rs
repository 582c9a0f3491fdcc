//! The kernel's settings of sockets: buffers, backlog, ports. Pure but for reading `/proc/sys`.

use serde::Serialize;

use super::kernel::Kernel;
use super::memory::mebibytes;
use super::verdict::Finding;

/// To what a connection's buffers should be able to grow: a chunk of a large tensor (`transport.chunk_bytes`), which at
/// 100 Gb/s is a third of a millisecond.
const BUFFER_BYTES: u64 = 4 << 20;
/// What a listener asks the kernel for (`transport/src/tcp/listen.rs`).
const BACKLOG: u64 = 4096;

const CORE: &str = "proc/sys/net/core";
const IPV4: &str = "proc/sys/net/ipv4";

/// The settings; `null` for one that the kernel does not have here.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Sockets {
    rmem_max: Option<u64>,
    wmem_max: Option<u64>,
    /// Least, first and most bytes.
    tcp_rmem: Option<Vec<u64>>,
    tcp_wmem: Option<Vec<u64>>,
    somaxconn: Option<u64>,
    /// The first and the last port of outgoing connections.
    ip_local_port_range: Option<Vec<u64>>,
    /// Ports that no outgoing connection gets.
    ip_local_reserved_ports: Option<String>,
}

/// What a daemon would do with them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Traffic<'a> {
    /// `transport.tcp.receive_buffer_bytes` and `send_buffer_bytes`, where they are set.
    pub(super) receive_buffer_bytes: Option<u64>,
    pub(super) send_buffer_bytes: Option<u64>,
    /// Connections to one transport address: a shard each with a shard each.
    pub(super) links_to_one: u64,
    /// Connections that may come in at once.
    pub(super) callers: u64,
    /// The ports on which this host's daemon listens.
    pub(super) ports: &'a [u16],
}

impl Sockets {
    /// Reads them.
    pub(super) fn look(kernel: &Kernel) -> Sockets {
        let core = |name: &str| kernel.number(format!("{CORE}/{name}"));
        let three = |name: &str| kernel.numbers(format!("{IPV4}/{name}"));
        Sockets {
            rmem_max: core("rmem_max"),
            wmem_max: core("wmem_max"),
            tcp_rmem: three("tcp_rmem"),
            tcp_wmem: three("tcp_wmem"),
            somaxconn: core("somaxconn"),
            ip_local_port_range: three("ip_local_port_range"),
            ip_local_reserved_ports: kernel.text(format!("{IPV4}/ip_local_reserved_ports")),
        }
    }

    /// What is to be said of them.
    pub(super) fn findings(&self, traffic: Traffic<'_>) -> Vec<Finding> {
        vec![
            buffer("receive buffers", "rmem", self.rmem_max, &self.tcp_rmem, traffic.receive_buffer_bytes),
            buffer("send buffers", "wmem", self.wmem_max, &self.tcp_wmem, traffic.send_buffer_bytes),
            self.backlog(traffic),
            self.ports(traffic),
        ]
    }

    fn backlog(&self, traffic: Traffic<'_>) -> Finding {
        const NAME: &str = "backlog";
        let Some(somaxconn) = self.somaxconn else { return Finding::ok(NAME, "the kernel does not say") };
        let says = format!("net.core.somaxconn is {somaxconn}");
        if somaxconn < traffic.callers.min(BACKLOG) {
            let says = format!("{says}, but {} peers may connect at once", traffic.callers);
            return Finding::better(NAME, says, format!("sudo sysctl -w net.core.somaxconn={BACKLOG}"));
        }
        Finding::ok(NAME, says)
    }

    fn ports(&self, traffic: Traffic<'_>) -> Finding {
        const NAME: &str = "ports";
        let Some(&[first, last]) = self.ip_local_port_range.as_deref() else {
            return Finding::ok(NAME, "the kernel does not say");
        };
        let says = format!("net.ipv4.ip_local_port_range is {first} to {last}");
        let room = (last + 1).saturating_sub(first);
        if room < traffic.links_to_one {
            let says = format!("{says}, but there may be {} connections to one peer", traffic.links_to_one);
            return Finding::better(NAME, says, "sudo sysctl -w net.ipv4.ip_local_port_range='10240 65535'");
        }
        let is_reserved = |port: u16| {
            let reserved = self.ip_local_reserved_ports.as_deref().unwrap_or_default();
            let within = |part: &str| {
                let (first, last) = part.split_once('-').unwrap_or((part, part));
                matches!((first.parse(), last.parse()), (Ok(first), Ok(last)) if (first..=last).contains(&port))
            };
            reserved.split(',').any(within)
        };
        let is_within = |port: &&u16| (first..=last).contains(&u64::from(**port)) && !is_reserved(**port);
        if let Some(port) = traffic.ports.iter().find(is_within) {
            let says = format!("{says}: another program's outgoing connection may hold the transport's port {port}");
            let others = self.ip_local_reserved_ports.as_deref().filter(|others| !others.is_empty());
            let reserved = others.map_or_else(|| port.to_string(), |others| format!("{others},{port}"));
            return Finding::better(NAME, says, format!("sudo sysctl -w net.ipv4.ip_local_reserved_ports={reserved}"));
        }
        Finding::ok(NAME, says)
    }
}

/// One direction: what the settings ask for is capped by `net.core`, what the kernel does by itself by `net.ipv4`.
fn buffer(
    name: &'static str,
    direction: &str,
    most: Option<u64>,
    growth: &Option<Vec<u64>>,
    asked: Option<u64>,
) -> Finding {
    let sysctl = format!("net.core.{direction}_max");
    if let (Some(asked), Some(most)) = (asked, most) {
        let says = format!("{} requested, {sysctl} allows {}", mebibytes(asked), mebibytes(most));
        if asked > most {
            return Finding::better(name, says, format!("sudo sysctl -w {sysctl}={asked}"));
        }
        return Finding::ok(name, says);
    }
    let tcp = format!("net.ipv4.tcp_{direction}");
    match growth.as_deref() {
        Some(&[least, first, most]) => {
            let says = format!("grow to {} ({tcp})", mebibytes(most));
            if most < BUFFER_BYTES {
                let says = format!("{says}, less than a chunk of {}", mebibytes(BUFFER_BYTES));
                let remedy = format!("sudo sysctl -w {tcp}='{least} {first} {BUFFER_BYTES}'");
                return Finding::better(name, says, remedy);
            }
            Finding::ok(name, says)
        }
        _ => Finding::ok(name, "the kernel does not say"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::kernel::laid_out;
    use super::super::verdict::Verdict;
    use super::*;

    const FILES: &[(&str, &str)] = &[
        ("proc/sys/net/core/rmem_max", "212992"),
        ("proc/sys/net/core/wmem_max", "212992"),
        ("proc/sys/net/core/somaxconn", "128"),
        ("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456"),
        ("proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t2097152"),
        ("proc/sys/net/ipv4/ip_local_port_range", "32768\t60999"),
        ("proc/sys/net/ipv4/ip_local_reserved_ports", "40000,50000-50002"),
    ];

    fn findings(traffic: Traffic<'_>) -> Vec<Finding> {
        let (_directory, kernel) = laid_out(FILES);
        Sockets::look(&kernel).findings(traffic)
    }

    #[test]
    fn buffers_that_grow_too_little_are_named_with_the_command() {
        let [receive, send, ..] = &findings(Traffic::default())[..] else { panic!() };
        assert_eq!((receive.verdict, receive.says.as_str()), (Verdict::Ok, "grow to 6 MiB (net.ipv4.tcp_rmem)"));
        assert_eq!(send.verdict, Verdict::CouldBeBetter);
        assert_eq!(send.remedy(), "sudo sysctl -w net.ipv4.tcp_wmem='4096 16384 4194304'");
    }

    #[test]
    fn buffers_that_are_asked_for_are_capped_silently() {
        let traffic =
            Traffic { receive_buffer_bytes: Some(8 << 20), send_buffer_bytes: Some(4096), ..Traffic::default() };
        let [receive, send, ..] = &findings(traffic)[..] else { panic!() };
        assert_eq!(receive.verdict, Verdict::CouldBeBetter);
        assert_eq!(receive.says, "8 MiB requested, net.core.rmem_max allows 208 KiB");
        assert_eq!(receive.remedy(), "sudo sysctl -w net.core.rmem_max=8388608");
        assert_eq!(
            (send.verdict, send.says.as_str()),
            (Verdict::Ok, "4 KiB requested, net.core.wmem_max allows 208 KiB")
        );
    }

    #[test]
    fn a_backlog_is_compared_with_the_peers() {
        let backlog = |callers| findings(Traffic { callers, ..Traffic::default() })[2].verdict;
        assert_eq!(backlog(128), Verdict::Ok);
        assert_eq!(backlog(129), Verdict::CouldBeBetter);
    }

    #[test]
    fn ports_must_suffice_and_the_transports_own_be_kept() {
        fn ports(traffic: Traffic<'_>) -> (Verdict, String) {
            let finding = findings(traffic).remove(3);
            (finding.verdict, finding.remedy().to_owned())
        }
        let few = Traffic { links_to_one: 28_232, ..Traffic::default() };
        assert_eq!(ports(few).0, Verdict::Ok);
        let many = Traffic { links_to_one: 28_233, ..Traffic::default() };
        assert_eq!(
            ports(many),
            (Verdict::CouldBeBetter, "sudo sysctl -w net.ipv4.ip_local_port_range='10240 65535'".into())
        );
        let listens = |port| ports(Traffic { ports: &[7000, port], ..Traffic::default() });
        assert_eq!(
            listens(33_000),
            (Verdict::CouldBeBetter, "sudo sysctl -w net.ipv4.ip_local_reserved_ports=40000,50000-50002,33000".into())
        );
        for reserved in [40_000, 50_001, 61_000] {
            assert_eq!(listens(reserved).0, Verdict::Ok, "{reserved}");
        }
    }

    #[test]
    fn a_kernel_that_says_nothing_is_no_trouble() {
        let (_directory, kernel) = laid_out(&[]);
        let traffic = Traffic { callers: 1000, receive_buffer_bytes: Some(1), ports: &[40_000], ..Traffic::default() };
        let findings = Sockets::look(&kernel).findings(traffic);
        assert!(findings.iter().all(|finding| finding.verdict == Verdict::Ok), "{findings:?}");
    }
}
