//! The network between hosts: a namespace for each, whose one cable (a veth pair) ends at a bridge in a separate namespace. Neither
//! its addresses nor its names can be seen from outside: two runs do not collide, and nothing outlives the chore, however that
//! ends. Bounded by one subnet: 200 hosts.

use std::fs;
use std::net::Ipv4Addr;
use std::process::Command;

use nix::sched::{CloneFlags, unshare};

use crate::command::run;

/// Where `ip netns` keeps its namespaces.
const NAMESPACES: &str = "/run/netns";

const SWITCH: &str = "switch";

/// The end of a cable in its host.
const WIRE: &str = "wire";

/// A port of the bridge that is connected to no host.
const NOWHERE: &str = "nowhere";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// It is pulled: both ends notice.
    Pulled,
    /// Everything sent over it vanishes, and nobody notices.
    Silent,
    /// What is sent to the host vanishes, and what it sends arrives: others accept messages, but their replies never reach it.
    OneWay,
    /// It carries this many megabits a second, each way.
    Throttled(u32),
}

pub(crate) fn address(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 83, 0, host as u8 + 1)
}

/// The hardware address of a host's end of its cable; not any vendor's.
fn hardware(host: usize) -> String {
    format!("02:00:00:00:53:{host:02x}")
}

/// The namespaces go when this is dropped.
pub(crate) struct Network {
    hosts: usize,
}

impl Network {
    /// Makes the namespaces and connects them. To be called on the main thread: what it starts from now on sees its own namespace
    /// names.
    ///
    /// # Errors
    /// `ip` is missing, this is not root, or the kernel has no namespaces, veth or bridges.
    pub(crate) fn new(hosts: usize) -> Result<Network, String> {
        let network = Network { hosts };
        let laid = hide_names().and_then(|()| network.lay());
        laid.map_err(|error| format!("{error}\nnetwork namespaces need root, and `ip` of iproute2"))?;
        Ok(network)
    }

    fn lay(&self) -> Result<(), String> {
        ip(&format!("netns add {SWITCH}"))?;
        switch("link add bridge type bridge")?;
        switch("link set bridge up")?;
        switch(&format!("link add {NOWHERE} type veth peer name void"))?;
        switch(&format!("link set {NOWHERE} master bridge up"))?;
        for host in 0..self.hosts {
            let (name, port, address) = (namespace(host), port(host), address(host));
            let hardware = hardware(host);
            ip(&format!("netns add {name}"))?;
            ip(&format!("-n {name} link add {WIRE} address {hardware} type veth peer name {port} netns {SWITCH}"))?;
            switch(&format!("link set {port} master bridge up"))?;
            ip(&format!("-n {name} addr add {address}/24 dev {WIRE}"))?;
            ip(&format!("-n {name} link set lo up"))?;
            ip(&format!("-n {name} link set {WIRE} up"))?;
        }
        Ok(())
    }

    /// Makes a host's cable fail, or restores it.
    pub(crate) fn set(&self, host: usize, cut: Cut, fails: bool) -> Result<(), String> {
        let (namespace, port, hardware) = (namespace(host), port(host), hardware(host));
        let choose = |failed, healed| if fails { failed } else { healed };
        match cut {
            Cut::Pulled => ip(&format!("-n {namespace} link set {WIRE} {}", choose("down", "up"))),
            Cut::Silent => switch(&format!("link set {port} {}", choose("nomaster", "master bridge"))),
            Cut::OneWay => {
                // The bridge is configured to find the host elsewhere. Sticky: it does not learn otherwise from what the host
                // sends.
                let (change, place) = (choose("replace", "del"), format!("dev {NOWHERE} master static sticky"));
                words("bridge", &format!("-n {SWITCH} fdb {change} {hardware} {place}"))
            }
            Cut::Throttled(megabits) => {
                let bucket = format!("tbf rate {megabits}mbit burst 64kb latency 100ms");
                let (change, bucket) = (choose("add", "del"), choose(bucket.as_str(), ""));
                words("tc", &format!("-n {namespace} qdisc {change} dev {WIRE} root {bucket}"))?;
                words("tc", &format!("-n {SWITCH} qdisc {change} dev {port} root {bucket}"))
            }
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in (0..self.hosts).map(namespace).chain([SWITCH.to_owned()]) {
            // Anything that remains goes with this process.
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

/// Makes the names of namespaces, which are mounts, visible only to this thread and what it starts: they go with those.
fn hide_names() -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| format!("{NAMESPACES}: {error}");
    fs::create_dir_all(NAMESPACES).map_err(|error| failed(&error))?;
    unshare(CloneFlags::CLONE_NEWNS).map_err(|error| failed(&error))?;
    words("mount", "--make-rprivate /")?;
    words("mount", &format!("-t tmpfs namespaces {NAMESPACES}"))
}

pub(crate) fn namespace(host: usize) -> String {
    format!("host{host}")
}

/// The bridge's end of a host's cable.
fn port(host: usize) -> String {
    format!("port{host}")
}

fn switch(arguments: &str) -> Result<(), String> {
    ip(&format!("-n {SWITCH} {arguments}"))
}

fn ip(arguments: &str) -> Result<(), String> {
    words("ip", arguments)
}

/// Runs a program whose arguments have no spaces in them.
fn words(program: &str, arguments: &str) -> Result<(), String> {
    run(Command::new(program).args(arguments.split_whitespace()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::output;

    /// As root; another user is told what is missing.
    #[test]
    fn a_network_is_seen_by_nobody_else() {
        let names = || fs::read_dir(NAMESPACES).map_or(0, |entries| entries.count());
        let before = names();
        let laid = std::thread::spawn(|| {
            let network = Network::new(2)?;
            let mut states = [true, false].into_iter().map(|fails| {
                network.set(1, Cut::Pulled, fails)?;
                output(Command::new("ip").args(["-n", "host1", "link", "show", WIRE]))
            });
            states.try_fold(String::new(), |text, state| Ok(text + &state?))
        });
        let told: Result<String, String> = laid.join().unwrap();
        match told {
            Ok(states) => assert_eq!(states.matches(",UP").count(), 1, "{states}"),
            Err(error) => assert!(error.contains("network namespaces need root"), "{error}"),
        }
        assert_eq!(names(), before);
    }
}
