//! Where an engine listens for its transport addresses, and which hosts can connect there.
//!
//! Threads: the thread that starts the engine. Limits: one socket per transport address.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use sealane_transport::endpoint_map::{EndpointMap, Host, TransportAddress};
use sealane_transport::error::LinkError;
use sealane_transport::tcp::{listen, resolve};

use super::{EngineSettings, StartError};

/// A transport address that is a loopback address on its own host, although the endpoint map has other hosts. Prints what is wrong
/// and, after a semicolon, the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}; {}", self.problem(), self.remedy())]
pub struct LoopbackAddress {
    /// The address as the endpoint map has it.
    pub address: TransportAddress,
    /// Its IP address on this host.
    pub ip: IpAddr,
}

impl LoopbackAddress {
    /// Returns whether the host is a name that other hosts may resolve to a network address of this host. The engine then listens on all interfaces.
    pub fn is_name(&self) -> bool {
        !self.address.host.is_loopback()
    }

    pub fn problem(&self) -> String {
        let LoopbackAddress { address, ip } = self;
        match self.is_name() {
            true => format!(
                "{address} is {ip} on this host, where no other host can connect: the engine listens on all interfaces"
            ),
            false => {
                format!("{address} is a loopback address, where the other hosts of the endpoint map cannot connect")
            }
        }
    }

    pub fn remedy(&self) -> String {
        match self.is_name() {
            true => {
                let host = &self.address.host;
                format!(
                    "give {host} this host's network address in /etc/hosts, or set transport.listen to that address"
                )
            }
            false => "write this host's name or network address in the endpoint map".into(),
        }
    }
}

fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

/// Returns whether the map has a transport address whose host is neither a loopback address nor that of one of the engine's own `addresses`.
fn has_other_hosts(map: &EndpointMap, addresses: &[TransportAddress]) -> bool {
    let is_own = |host: &Host| host.is_loopback() || addresses.iter().any(|own| own.host == *host);
    map.addresses().any(|address| !is_own(&address.host))
}

/// Returns the transport addresses among an engine's `addresses` that do not lead other hosts of `map` to it, if `transport.listen` is
/// `listen`. Looks up names.
pub fn loopback_addresses(
    map: &EndpointMap,
    addresses: &[TransportAddress],
    listen: Option<IpAddr>,
) -> Vec<LoopbackAddress> {
    if listen.is_some() || !has_other_hosts(map, addresses) {
        return Vec::new();
    }
    let loopback = |address| loopback(address, &resolve(address).ok()?);
    addresses.iter().filter_map(loopback).collect()
}

/// Returns `address` with the first of the IP addresses `found` for it, if all of them are loopback addresses.
fn loopback(address: &TransportAddress, found: &[SocketAddr]) -> Option<LoopbackAddress> {
    let all = found.iter().all(|candidate| is_loopback(candidate.ip()));
    let ip = found.first().filter(|_| all)?.ip();
    Some(LoopbackAddress { address: address.clone(), ip })
}

/// Binds the transport addresses of an engine, one at a time.
pub(super) struct Binder<'a> {
    settings: &'a EngineSettings,
    has_other_hosts: bool,
}

impl<'a> Binder<'a> {
    /// Makes a binder for an engine with the transport addresses `addresses`.
    pub(super) fn new(settings: &'a EngineSettings, addresses: &[TransportAddress]) -> Binder<'a> {
        Binder { settings, has_other_hosts: has_other_hosts(&settings.map, addresses) }
    }

    /// Opens a listening socket for `address`.
    ///
    /// # Errors
    /// The address cannot be listened on, or other hosts can reach the socket and no authentication is configured.
    pub(super) fn bind(&self, address: &TransportAddress) -> Result<TcpListener, StartError> {
        let failed = |at, source| StartError::Listen { address: address.clone(), at, source };
        let mut error = failed(None, LinkError::Closed);
        for candidate in self.candidates(address).map_err(|source| failed(None, source))? {
            match listen(candidate, &self.settings.tcp) {
                Ok(socket) => return check_reach(candidate, self.settings).map(|()| socket.into()),
                Err(source) => error = failed(Some(candidate), source),
            }
        }
        Err(error)
    }

    /// Returns the socket addresses to try for `address`, in this order.
    fn candidates(&self, address: &TransportAddress) -> Result<Vec<SocketAddr>, LinkError> {
        let at = |ip: IpAddr| SocketAddr::new(ip, address.port);
        if let Some(ip) = self.settings.listen {
            return Ok(vec![at(ip)]);
        }
        let mut found = resolve(address)?;
        if !self.has_other_hosts {
            return Ok(found);
        }
        match loopback(address, &found) {
            None => found.retain(|candidate| !is_loopback(candidate.ip())),
            Some(loopback) => {
                tracing::warn!("{loopback}");
                if loopback.is_name() {
                    // For both address families, if the host has both.
                    found = vec![at(Ipv6Addr::UNSPECIFIED.into()), at(Ipv4Addr::UNSPECIFIED.into())];
                }
            }
        }
        Ok(found)
    }
}

/// Returns the remedy for an address that cannot be listened on.
pub(super) fn hint(source: &LinkError) -> &'static str {
    let LinkError::Io { kind, .. } = source else { return CHECK_THE_MAP };
    match kind {
        ErrorKind::AddrInUse => "is another Sealane or another program using the port?",
        ErrorKind::AddrNotAvailable => {
            "no interface of this host has that address, as behind NAT or a Kubernetes service: set transport.listen to an \
             address of this host, or to 0.0.0.0 for all of them"
        }
        ErrorKind::PermissionDenied => {
            "use a port from 1024 on, or give the process the capability CAP_NET_BIND_SERVICE"
        }
        _ => CHECK_THE_MAP,
    }
}

const CHECK_THE_MAP: &str = "correct this transport address in the endpoint map";

pub(super) fn address_of(socket: &TcpListener) -> Result<SocketAddr, StartError> {
    socket.local_addr().map_err(|error| StartError::Settings(format!("a listener has no address: {error}")))
}

/// Checks that an engine without authentication listens only where no other host can connect, unless `security.insecure` allows it.
pub(super) fn check_reach(address: SocketAddr, settings: &EngineSettings) -> Result<(), StartError> {
    if !settings.authentication.is_open() || is_loopback(address.ip()) {
        return Ok(());
    }
    if !settings.insecure {
        return Err(StartError::Insecure { address });
    }
    tracing::warn!(%address, "security.insecure: anyone who can reach this address may talk to the tasks here, and in their name");
    Ok(())
}
