//! The network between hosts: a namespace for each, whose one cable (a veth pair) ends at a bridge in a namespace of its
//! own. No address of it can be seen from outside, and two runs do not meet. Bounded by one subnet: 200 hosts.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

use crate::command::run;

/// Where `ip netns` keeps its namespaces.
const NAMESPACES: &str = "/run/netns";

/// How the names of ours begin; the process of the chore follows.
const PREFIX: &str = "sealane-";

/// The end of a cable in its host.
const WIRE: &str = "wire";

/// A port of the bridge that leads to no host.
const NOWHERE: &str = "nowhere";

/// How a cable fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// It is pulled: both ends see that it is gone.
    Pulled,
    /// What it should carry vanishes: nobody sees anything.
    Silent,
    /// What is sent to the host vanishes, and what it sends arrives: others take what it never hears that they took.
    OneWay,
    /// It carries so many megabits a second, each way.
    Throttled(u32),
}

/// The address of a host within the network.
pub(crate) fn address(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 83, 0, host as u8 + 1)
}

/// The hardware address of a host's end of its cable; not any vendor's.
fn hardware(host: usize) -> String {
    format!("02:00:00:00:53:{host:02x}")
}

/// See the module. Dropped, the namespaces go.
pub(crate) struct Network {
    process: u32,
    hosts: usize,
}

impl Network {
    /// Makes the namespaces and joins them, and removes those of runs that were killed.
    ///
    /// # Errors
    /// `ip` is missing, this is not root, or the kernel has no namespaces, veth or bridges.
    pub(crate) fn new(hosts: usize) -> Result<Network, String> {
        sweep();
        let network = Network { process: std::process::id(), hosts };
        network.lay().map_err(|error| format!("{error}\nnetwork namespaces need root, and `ip` of iproute2"))?;
        Ok(network)
    }

    fn lay(&self) -> Result<(), String> {
        let switch = self.switch();
        ip(&format!("netns add {switch}"))?;
        ip(&format!("-n {switch} link add bridge type bridge"))?;
        ip(&format!("-n {switch} link set bridge up"))?;
        ip(&format!("-n {switch} link add {NOWHERE} type veth peer name void"))?;
        ip(&format!("-n {switch} link set {NOWHERE} master bridge up"))?;
        for host in 0..self.hosts {
            let (namespace, port, hardware) = (self.namespace(host), port(host), hardware(host));
            ip(&format!("netns add {namespace}"))?;
            let other_end = format!("type veth peer name {port} netns {switch}");
            ip(&format!("-n {namespace} link add {WIRE} address {hardware} {other_end}"))?;
            ip(&format!("-n {switch} link set {port} master bridge up"))?;
            ip(&format!("-n {namespace} addr add {}/24 dev {WIRE}", address(host)))?;
            ip(&format!("-n {namespace} link set lo up"))?;
            ip(&format!("-n {namespace} link set {WIRE} up"))?;
        }
        Ok(())
    }

    /// The namespace of a host.
    pub(crate) fn namespace(&self, host: usize) -> String {
        format!("{PREFIX}{}-host{host}", self.process)
    }

    fn switch(&self) -> String {
        format!("{PREFIX}{}-switch", self.process)
    }

    /// Makes a host's cable fail.
    pub(crate) fn cut(&self, host: usize, cut: Cut) -> Result<(), String> {
        let (switch, namespace, port) = (self.switch(), self.namespace(host), port(host));
        match cut {
            Cut::Pulled => ip(&format!("-n {namespace} link set {WIRE} down")),
            Cut::Silent => ip(&format!("-n {switch} link set {port} nomaster")),
            // The bridge is told that the host is elsewhere.
            Cut::OneWay => self.misplace("replace", host),
            Cut::Throttled(megabits) => {
                let bucket = format!("root tbf rate {megabits}mbit burst 64kb latency 100ms");
                words("tc", &format!("-n {namespace} qdisc add dev {WIRE} {bucket}"))?;
                words("tc", &format!("-n {switch} qdisc add dev {port} {bucket}"))
            }
        }
    }

    /// Puts a host's cable right.
    pub(crate) fn heal(&self, host: usize, cut: Cut) -> Result<(), String> {
        let (switch, namespace, port) = (self.switch(), self.namespace(host), port(host));
        match cut {
            Cut::Pulled => ip(&format!("-n {namespace} link set {WIRE} up")),
            Cut::Silent => ip(&format!("-n {switch} link set {port} master bridge")),
            Cut::OneWay => self.misplace("del", host),
            Cut::Throttled(_) => {
                words("tc", &format!("-n {namespace} qdisc del dev {WIRE} root"))?;
                words("tc", &format!("-n {switch} qdisc del dev {port} root"))
            }
        }
    }

    /// Changes what the bridge believes of where a host is.
    fn misplace(&self, change: &str, host: usize) -> Result<(), String> {
        let (switch, hardware) = (self.switch(), hardware(host));
        // Sticky: it does not learn better from what the host sends.
        words("bridge", &format!("-n {switch} fdb {change} {hardware} dev {NOWHERE} master static sticky"))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let names = (0..self.hosts).map(|host| self.namespace(host)).chain([self.switch()]);
        for name in names.filter(|name| Path::new(NAMESPACES).join(name).exists()) {
            if let Err(error) = ip(&format!("netns del {name}")) {
                eprintln!("{error}");
            }
        }
    }
}

/// The bridge's end of a host's cable.
fn port(host: usize) -> String {
    format!("port{host}")
}

fn ip(arguments: &str) -> Result<(), String> {
    words("ip", arguments)
}

/// Runs a program whose arguments have no spaces in them.
fn words(program: &str, arguments: &str) -> Result<(), String> {
    run(Command::new(program).args(arguments.split_whitespace()))
}

/// Removes the namespaces of runs that are gone. Their processes went with them.
fn sweep() {
    let Ok(entries) = fs::read_dir(NAMESPACES) else { return };
    for name in entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
        if owner(&name).is_some_and(|owner| !Path::new("/proc").join(owner.to_string()).exists()) {
            // Another run may be sweeping as well.
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

/// The process that a namespace is named after.
fn owner(namespace: &str) -> Option<u32> {
    namespace.strip_prefix(PREFIX)?.split_once('-')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_tells_whose_it_is() {
        let network = Network { process: 4711, hosts: 0 };
        assert_eq!(owner(&network.namespace(2)), Some(4711));
        assert_eq!(owner(&network.switch()), Some(4711));
        assert_eq!(owner("sealane-x-host0"), None);
        assert_eq!(owner("cni-1"), None);
    }
}
