//! Which hosts of an endpoint map are this one. Looks at names and interfaces; asks no name server.

use std::collections::HashSet;
use std::fs;
use std::net::IpAddr;

use nix::ifaddrs::getifaddrs;
use sealane_transport::endpoint_map::Host;

/// The names and addresses of this host.
#[derive(Debug, Default)]
pub(super) struct LocalHost {
    /// In lower case, as the endpoint map keeps them.
    names: HashSet<String>,
    addresses: HashSet<IpAddr>,
}

impl LocalHost {
    /// Reads the host's name and the addresses of its interfaces.
    pub(super) fn look() -> LocalHost {
        let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let interfaces = getifaddrs().into_iter().flatten();
        let address = |storage: nix::sys::socket::SockaddrStorage| {
            let v4 = storage.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
            v4.or_else(|| storage.as_sockaddr_in6().map(|v6| IpAddr::from(v6.ip())))
        };
        let addresses = interfaces.filter_map(|interface| interface.address.and_then(address));
        LocalHost::with(name.trim(), addresses)
    }

    fn with(name: &str, addresses: impl IntoIterator<Item = IpAddr>) -> LocalHost {
        let names = [name.to_ascii_lowercase(), "localhost".to_owned()];
        LocalHost {
            names: names.into_iter().filter(|name| !name.is_empty()).collect(),
            addresses: addresses.into_iter().collect(),
        }
    }

    /// True if `host` is this host.
    pub(super) fn has(&self, host: &Host) -> bool {
        let has = |address: IpAddr| address.is_loopback() || self.addresses.contains(&address);
        match host {
            Host::V4(address) => has((*address).into()),
            Host::V6(address) => has((*address).into()),
            Host::Name(name) => self.names.contains(name.trim_end_matches('.')),
        }
    }
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
    fn every_host_is_its_own_localhost() {
        assert!(LocalHost::look().has(&Host::parse("127.0.0.1").unwrap()));
        assert!(LocalHost::look().has(&Host::parse("localhost").unwrap()));
    }
}
