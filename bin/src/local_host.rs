//! Which transport addresses of an endpoint map belong to this host: by its name, its interfaces, and what other names resolve to.
//! Many names are looked up at once, on their own threads; bounded by [`THREADS`] and [`LOOK_UP_TIME`].

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::sys::socket::SockaddrStorage;
use sealane_transport::endpoint_map::{Host, TransportAddress};
use sealane_transport::tcp::resolve;

/// Time limit for looking up all names together: a healthy name server answers thousands meanwhile, and nobody waits long for a
/// sick one.
pub(crate) const LOOK_UP_TIME: Duration = Duration::from_secs(3);

/// Names that are looked up at the same time. A look-up mostly waits, and a few at once do not burden a name server.
const THREADS: usize = 16;

/// Most addresses of this host shown in a message.
const ADDRESSES_SHOWN_MAX: usize = 8;

#[derive(Debug, Default)]
pub(crate) struct LocalHost {
    /// In lower case, as in the endpoint map.
    names: HashSet<String>,
    addresses: HashSet<IpAddr>,
}

/// The network interfaces of this host that have one of `addresses`, by name.
pub(crate) fn interfaces_of(addresses: &[IpAddr]) -> Vec<String> {
    let has = |interface: &InterfaceAddress| {
        let address = interface.address.as_ref().and_then(ip_of);
        address.is_some_and(|address| addresses.contains(&address))
    };
    let interfaces = getifaddrs().into_iter().flatten().filter(has);
    let mut names: Vec<String> = interfaces.map(|interface| interface.interface_name).collect();
    names.sort();
    names.dedup();
    names
}

fn ip_of(storage: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = storage.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
    v4.or_else(|| storage.as_sockaddr_in6().map(|v6| IpAddr::from(v6.ip())))
}

impl LocalHost {
    /// Reads the host's name and the addresses of its interfaces.
    pub(crate) fn look() -> LocalHost {
        let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let interfaces = getifaddrs().into_iter().flatten();
        let addresses = interfaces.filter_map(|interface| interface.address.as_ref().and_then(ip_of));
        LocalHost::with(name.trim(), addresses)
    }

    fn with(name: &str, addresses: impl IntoIterator<Item = IpAddr>) -> LocalHost {
        let names = [name.to_ascii_lowercase(), "localhost".to_owned()];
        LocalHost {
            names: names.into_iter().filter(|name| !name.is_empty()).collect(),
            addresses: addresses.into_iter().collect(),
        }
    }

    /// Those of `addresses` that are this host's, in the same order. Names other than this host's own are looked up; one that
    /// cannot be resolved belongs to another host, and a log line says so.
    pub(crate) fn of_these<'a>(
        &self,
        addresses: impl IntoIterator<Item = &'a TransportAddress>,
    ) -> Vec<TransportAddress> {
        let addresses: Vec<&TransportAddress> = addresses.into_iter().collect();
        let foreign_name =
            |address: &&&TransportAddress| matches!(address.host, Host::Name(_)) && !self.has(&address.host);
        let names: Vec<TransportAddress> =
            addresses.iter().filter(foreign_name).map(|address| (*address).clone()).collect();
        let looked_up = look_up(names, LOOK_UP_TIME);
        if let [first, ..] = looked_up.unknown.as_slice() {
            let count = looked_up.unknown.len();
            tracing::info!(count, first = %first.host, "host names that do not resolve are taken for other hosts'");
        }
        let resolves_here = |address: &TransportAddress| {
            looked_up.found.get(address).is_some_and(|found| found.iter().any(|ip| self.has_address(*ip)))
        };
        let ours = addresses.into_iter().filter(|address| self.has(&address.host) || resolves_here(address));
        ours.cloned().collect()
    }

    fn has_address(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.addresses.contains(&address)
    }

    /// True if `host` is this host, without looking up names.
    fn has(&self, host: &Host) -> bool {
        match host {
            Host::V4(address) => self.has_address((*address).into()),
            Host::V6(address) => self.has_address((*address).into()),
            Host::Name(name) => self.names.contains(name.trim_end_matches('.')),
        }
    }
}

/// Prints names and addresses, for the message that none of them is in an endpoint map.
impl fmt::Display for LocalHost {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        names.sort_unstable();
        let mut addresses: Vec<&IpAddr> = self.addresses.iter().collect();
        addresses.sort_unstable();
        let shown = addresses.len().min(ADDRESSES_SHOWN_MAX);
        let all: Vec<String> =
            names.iter().map(ToString::to_string).chain(addresses[..shown].iter().map(ToString::to_string)).collect();
        out.write_str(&all.join(", "))?;
        match addresses.len() - shown {
            0 => Ok(()),
            more => write!(out, " and {more} more addresses"),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct LookedUp {
    /// The addresses that each name resolved to, by the transport address asked for.
    pub(crate) found: HashMap<TransportAddress, Vec<IpAddr>>,
    /// Transport addresses whose name has no address, or none that was found in time.
    pub(crate) unknown: Vec<TransportAddress>,
}

/// Looks up the hosts of `wanted`, for at most `time`. A look-up cannot be interrupted: a slower one ends on its own thread, and
/// its result is ignored.
pub(crate) fn look_up(wanted: Vec<TransportAddress>, time: Duration) -> LookedUp {
    let until = Instant::now() + time;
    let (tell, told) = channel();
    let threads = wanted.len().min(THREADS);
    let mut unknown = wanted.clone();
    let queue = Arc::new(Mutex::new(wanted));
    for _ in 0..threads {
        let (queue, tell) = (queue.clone(), tell.clone());
        let take = move || queue.lock().unwrap_or_else(PoisonError::into_inner).pop();
        std::thread::spawn(move || {
            while let Some(address) = take().filter(|_| Instant::now() < until) {
                let found = resolve(&address).unwrap_or_default();
                if tell.send((address, found)).is_err() {
                    return;
                }
            }
        });
    }
    drop(tell);
    let mut looked_up = LookedUp::default();
    loop {
        match told.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok((address, found)) if !found.is_empty() => {
                looked_up.found.insert(address, found.iter().map(SocketAddr::ip).collect());
            }
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    unknown.retain(|address| !looked_up.found.contains_key(address));
    looked_up.unknown = unknown;
    looked_up
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_its_names_and_addresses() {
        let host = LocalHost::with("PS0", ["10.0.0.7".parse().unwrap()]);
        for (text, ours) in [
            ("ps0", true),
            ("ps0.", true),
            ("localhost", true),
            ("127.0.0.2", true),
            ("[::1]", true),
            ("10.0.0.7", true),
            ("10.0.0.8", false),
            ("[fd00::1]", false),
            ("ps1", false),
        ] {
            assert_eq!(host.has(&Host::parse(text).unwrap()), ours, "{text}");
        }
    }

    #[test]
    fn loopback_has_an_interface() {
        assert_eq!(interfaces_of(&["127.0.0.1".parse().unwrap()]).len(), 1);
        assert!(interfaces_of(&["192.0.2.77".parse().unwrap()]).is_empty());
    }

    #[test]
    fn every_host_is_its_own_localhost() {
        assert!(LocalHost::look().has(&Host::parse("127.0.0.1").unwrap()));
        assert!(LocalHost::look().has(&Host::parse("localhost").unwrap()));
    }

    #[test]
    fn a_name_that_resolves_to_this_host_is_this_hosts() {
        let host = LocalHost { names: HashSet::new(), addresses: HashSet::from(["10.0.0.7".parse().unwrap()]) };
        let address = |text: &str| text.parse::<TransportAddress>().unwrap();
        // A name that no hosts file needs to have: `inet_aton` reads it as 127.0.0.1.
        let map = ["10.0.0.8:1", "0x7f000001:2", "10.0.0.7:3", "sealane.invalid:4"].map(address);
        assert_eq!(host.of_these(&map), [address("0x7f000001:2"), address("10.0.0.7:3")]);
    }

    #[test]
    fn names_come_before_addresses_and_not_all_addresses_are_shown() {
        let address = |last| IpAddr::from([10, 0, 0, last]);
        let host = LocalHost::with("ps0", [address(2), address(1)]);
        assert_eq!(host.to_string(), "localhost, ps0, 10.0.0.1, 10.0.0.2");
        let host = LocalHost::with("", (0..10).map(address));
        assert!(host.to_string().ends_with("10.0.0.7 and 2 more addresses"), "{host}");
    }

    #[test]
    fn what_has_addresses_is_found_and_all_else_is_said_to_be_unknown() {
        // Numbers need no name server, even those that only `inet_aton` reads; a name that ends in `.invalid` never exists
        // (RFC 6761).
        let wanted: Vec<TransportAddress> =
            ["0x7f000001:1", "127.0.0.1:2", "sealane.invalid:3"].iter().map(|text| text.parse().unwrap()).collect();
        let looked_up = look_up(wanted.clone(), Duration::from_secs(60));
        assert!(looked_up.found[&wanted[0]].iter().all(IpAddr::is_loopback));
        assert_eq!(looked_up.found[&wanted[1]], ["127.0.0.1".parse::<IpAddr>().unwrap()]);
        assert_eq!(looked_up.unknown, wanted[2..]);
    }

    #[test]
    fn without_time_all_are_unknown() {
        let wanted: Vec<TransportAddress> = vec!["sealane.invalid:1".parse().unwrap()];
        assert_eq!(look_up(wanted.clone(), Duration::ZERO).unknown, wanted);
        assert!(look_up(Vec::new(), Duration::from_secs(60)).unknown.is_empty());
    }
}
