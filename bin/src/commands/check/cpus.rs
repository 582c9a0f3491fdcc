//! The processors of this host: sockets, cores, hardware threads, NUMA nodes, isolated CPUs, CPUs claimed by running daemons, and
//! whether there are enough for the shards and near the network cards: slabs lie where their shard runs, and a card on another node
//! reaches them through the link between the sockets.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use serde::Serialize;

use super::kernel::{Kernel, list};
use super::verdict::{Finding, Remedy, advice};
use crate::counted;

/// Where the kernel lists CPUs.
const CPUS: &str = "sys/devices/system/cpu";
/// Where it lists NUMA nodes.
const NODES: &str = "sys/devices/system/node";

#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Topology {
    online: Vec<usize>,
    sockets: usize,
    cores: usize,
    /// Hardware threads of each core that has several; empty without SMT.
    siblings: BTreeSet<Vec<usize>>,
    /// The CPUs of each NUMA node, by the node's number.
    nodes: BTreeMap<usize, Vec<usize>>,
    /// CPUs that the scheduler does not use by itself (`isolcpus=`, isolated cpusets).
    isolated: Vec<usize>,
    /// CPUs without a scheduling tick while they run one task (`nohz_full=`).
    tickless: Vec<usize>,
}

/// What a daemon would need of the CPUs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish<'a> {
    /// The CPUs that it may use and that nobody claims.
    pub(super) free: &'a [usize],
    /// All CPUs that it may use.
    pub(super) allowed: &'a [usize],
    pub(super) shards: usize,
    /// `runtime.pin`, if set.
    pub(super) pin: Option<bool>,
    pub(super) is_polling: bool,
}

impl Topology {
    pub(super) fn look(kernel: &Kernel) -> Topology {
        let cpus = |file| kernel.listed(format!("{CPUS}/{file}")).unwrap_or_default();
        let online = cpus("online");
        let (mut cores, mut sockets, mut siblings) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for cpu in &online {
            let of = |name: &str| format!("{CPUS}/cpu{cpu}/topology/{name}");
            // -1 if the kernel does not know: a machine with one socket.
            sockets.insert(kernel.number(of("physical_package_id")).unwrap_or(-1).max(0));
            let threads = kernel.listed(of("thread_siblings_list")).unwrap_or_else(|| vec![*cpu]);
            cores.insert(threads.first().copied().unwrap_or(*cpu));
            siblings.extend((threads.len() > 1).then_some(threads));
        }
        let node = |name: String| {
            Some((name.strip_prefix("node")?.parse().ok()?, kernel.listed(format!("{NODES}/{name}/cpulist"))?))
        };
        let nodes = kernel.names(NODES).into_iter().filter_map(node).collect();
        let (sockets, cores) = (sockets.len(), cores.len());
        Topology { sockets, cores, siblings, nodes, isolated: cpus("isolated"), tickless: cpus("nohz_full"), online }
    }

    /// The number of cores with at least one of `cpus`.
    fn cores_of(&self, cpus: &[usize]) -> usize {
        let is_second = |cpu: &&usize| {
            let core = self.siblings.iter().find(|core| core.contains(cpu));
            core.is_some_and(|core| core.iter().find(|first| cpus.contains(first)) != Some(cpu))
        };
        cpus.len() - cpus.iter().filter(is_second).count()
    }

    pub(super) fn findings(&self, wish: Wish<'_>) -> Vec<Finding> {
        let (allowed, online) = (list(wish.allowed), list(&self.online));
        let says = format!("CPUs {allowed} of {online} are allowed by affinity mask and cgroup");
        vec![self.processors(wish), shards(wish), self.isolation(wish), Finding::ok("cpuset", says)]
    }

    fn processors(&self, wish: Wish<'_>) -> Finding {
        const NAME: &str = "processors";
        let threads = match self.siblings.is_empty() {
            true => "one hardware thread each".to_owned(),
            false => counted(self.online.len(), "hardware thread"),
        };
        let (sockets, cores) = (counted(self.sockets, "socket"), counted(self.cores, "core"));
        let shape = format!("{sockets}, {cores}, {threads}, {}", counted(self.nodes.len().max(1), "NUMA node"));
        let cores = self.cores_of(wish.free);
        if wish.shards > cores && wish.shards <= wish.free.len() && wish.pin != Some(false) {
            let says = format!("{shape}: {} shards share {}", wish.shards, counted(cores, "core"));
            return Finding::better(NAME, says, format!("sealane daemon --set runtime.shards={cores}"));
        }
        Finding::ok(NAME, shape)
    }

    fn isolation(&self, wish: Wish<'_>) -> Finding {
        const NAME: &str = "isolated CPUs";
        let shown = |what, cpus: &[usize]| match cpus {
            [] => format!("none {what}"),
            cpus => format!("{what} {}", list(cpus)),
        };
        let says = format!("{}, {}", shown("isolated", &self.isolated), shown("tickless", &self.tickless));
        if self.isolated.is_empty() && wish.is_polling && self.online.len() > 1 {
            let some = list(&wish.allowed[wish.allowed.len() / 2..]);
            let remedy = advice(format!("boot with isolcpus={some} nohz_full={some}, then start the daemon on these"));
            return Finding::better(NAME, format!("{says}: polling shards share CPUs with other tasks"), remedy);
        }
        if self.isolated.is_empty() || self.isolated.iter().any(|cpu| wish.allowed.contains(cpu)) {
            return Finding::ok(NAME, says);
        }
        // A process uses them only if it asks for them.
        let remedy = format!("taskset -c {} sealane daemon", list(&self.isolated));
        Finding::better(NAME, format!("{says}: none of them is in this process's mask"), remedy)
    }
}

/// Whether every shard can have a CPU.
fn shards(wish: Wish<'_>) -> Finding {
    const NAME: &str = "shards";
    let (shards, free) = (wish.shards, wish.free.len());
    let says = format!("{shards} for {free} free CPUs");
    if wish.pin == Some(false) {
        return Finding::ok(NAME, format!("{says}; not pinned (runtime.pin)"));
    }
    if shards <= free {
        return Finding::ok(NAME, format!("{says}, one pinned to each"));
    }
    let remedy: Remedy = match free {
        0 => advice("stop the process that claims the CPUs, or do not pin: sealane daemon --set runtime.pin=false"),
        free => format!("sealane daemon --set runtime.shards={free}").into(),
    };
    match wish.pin {
        Some(_) => Finding::fails(NAME, format!("{says}, and pinning is required (runtime.pin)"), remedy),
        None => Finding::better(NAME, format!("{says}: they are not pinned and share CPUs"), remedy),
    }
}

/// Compares the NUMA nodes of cards, network interfaces (class `net`) or RDMA devices (`infiniband`), with the nodes of the CPUs
/// that a daemon may use.
pub(super) fn numa(
    kernel: &Kernel,
    (class, cards): (&str, &[String]),
    topology: &Topology,
    free: &[usize],
    shards: usize,
) -> Finding {
    const NAME: &str = "NUMA";
    let on_node = |of_node: &Vec<usize>| free.iter().copied().filter(|cpu| of_node.contains(cpu)).collect::<Vec<_>>();
    let nodes = topology.nodes.iter().filter(|(_, cpus)| !on_node(cpus).is_empty());
    let nodes: Vec<usize> = nodes.map(|(number, _)| *number).collect();
    let mut says = match &nodes[..] {
        [] => "free CPUs on an unknown node".to_owned(),
        [node] => format!("free CPUs and slabs on node {node}"),
        nodes => format!("free CPUs on nodes {}, slabs where their shard runs", list(nodes)),
    };
    let mut far = None;
    for (card, separator) in cards.iter().zip(std::iter::once(';').chain(std::iter::repeat(','))) {
        // -1 on a machine with one node.
        let node = kernel.number::<usize>(format!("sys/class/{class}/{card}/device/numa_node"));
        let place = node.map_or("no particular node".to_owned(), |node| format!("node {node}"));
        says += &format!("{separator} {card} on {place}");
        far = far.or(node.filter(|node| nodes.iter().any(|has| has != node)));
    }
    let Some(node) = far else { return Finding::ok(NAME, says) };
    let near = topology.nodes.get(&node).map(on_node).unwrap_or_default();
    // Enough CPUs are near the card.
    if near.len() >= shards.max(1) {
        return Finding::better(NAME, says, format!("taskset -c {} sealane daemon", list(&near)));
    }
    let says = format!("{says}: too few free CPUs on node {node} for {shards} shards");
    let remedy = advice("move the daemon's cpuset to that node, or run fewer shards (runtime.shards)");
    Finding::better(NAME, says, remedy)
}

pub(super) fn claims(claims: &io::Result<Vec<(usize, Option<u32>)>>, directory: &Path) -> Finding {
    const NAME: &str = "claims";
    let directory = directory.display();
    let shown = |(cpu, process): &(usize, Option<u32>)| match process {
        Some(process) => format!("{cpu} by process {process}"),
        None => cpu.to_string(),
    };
    match claims {
        Err(error) => {
            let says = format!("the claims in {directory} cannot be read: {error}");
            Finding::better(NAME, says, format!("sudo install -d -m 1777 {directory}"))
        }
        Ok(none) if none.is_empty() => Finding::ok(NAME, format!("no CPU is claimed in {directory}")),
        Ok(claims) => {
            let shown = claims.iter().map(shown).collect::<Vec<_>>().join(", ");
            Finding::ok(NAME, format!("claimed: CPU {shown} in {directory}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use sealane_runtime::{Wanted, claim_cpus, claimed_cpus};

    use super::super::kernel::laid_out;
    use super::super::verdict::Verdict::{CouldBeBetter, Ok as Fine, WillNotWork};
    use super::*;

    const ALL: &[usize] = &[0, 1, 2, 3, 4, 5, 6, 7];

    /// Two sockets, each with two cores of two threads and a NUMA node of its own, and some cards.
    fn two_sockets(more: &[(&str, &str)]) -> (tempfile::TempDir, Kernel) {
        let of_cpu = |cpu: usize| {
            let core = format!("{},{}", cpu % 4, cpu % 4 + 4);
            let directory = format!("{CPUS}/cpu{cpu}/topology");
            let socket = (cpu % 4 / 2).to_string();
            [(format!("{directory}/thread_siblings_list"), core), (format!("{directory}/physical_package_id"), socket)]
        };
        let of_cpus: Vec<_> = (0..8).flat_map(of_cpu).collect();
        let mut files: Vec<_> = of_cpus.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        files.extend([
            ("sys/devices/system/cpu/online", "0-7"),
            ("sys/devices/system/node/node0/cpulist", "0-1,4-5"),
            ("sys/devices/system/node/node1/cpulist", "2-3,6-7"),
            ("sys/devices/system/node/possible", "0-1"),
            ("sys/class/net/eth0/device/numa_node", "1"),
            ("sys/class/net/veth/device/numa_node", "-1"),
            ("sys/class/infiniband/mlx5_0/device/numa_node", "0"),
        ]);
        laid_out(&[&files, more].concat())
    }

    fn look(more: &[(&str, &str)]) -> Topology {
        Topology::look(&two_sockets(more).1)
    }

    fn wish(cpus: &[usize], shards: usize) -> Wish<'_> {
        Wish { free: cpus, allowed: cpus, shards, pin: None, is_polling: false }
    }

    #[test]
    fn shards_have_cores_that_are_counted() {
        let topology = look(&[]);
        let shape = "2 sockets, 4 cores, 8 hardware threads, 2 NUMA nodes";
        assert_eq!(topology.processors(wish(ALL, 4)), Finding::ok("processors", shape));
        let remedy = "sealane daemon --set runtime.shards=4";
        let shared = Finding::better("processors", format!("{shape}: 5 shards share 4 cores"), remedy);
        assert_eq!(topology.processors(wish(ALL, 5)), shared);
        assert_eq!(topology.cores_of(&[0, 4, 1]), 2, "two CPUs of one core");
        let (_directory, kernel) = laid_out(&[("sys/devices/system/cpu/online", "0-1")]);
        let says = Topology::look(&kernel).processors(wish(&[0, 1], 1)).says;
        assert_eq!(says, "1 socket, 2 cores, one hardware thread each, 1 NUMA node");
        let here = Topology::look(&Kernel::at("/"));
        assert!(here.cores > 0 && here.sockets > 0);
    }

    #[test]
    fn more_shards_than_free_cpus_are_unpinned_or_refused() {
        for (pin, shards, verdict) in
            [(None, 2, Fine), (None, 3, CouldBeBetter), (Some(true), 3, WillNotWork), (Some(false), 3, Fine)]
        {
            let finding = super::shards(Wish { pin, ..wish(&[0, 1], shards) });
            assert_eq!((finding.verdict, finding.remedy.is_some()), (verdict, verdict != Fine));
        }
    }

    #[test]
    fn isolated_cpus_must_be_asked_for() {
        let isolated = look(&[("sys/devices/system/cpu/isolated", "2-3"), ("sys/devices/system/cpu/nohz_full", "3")]);
        let without = isolated.isolation(wish(&[0, 1], 1));
        assert_eq!((without.verdict, without.remedy()), (CouldBeBetter, "taskset -c 2-3 sealane daemon"));
        assert_eq!(isolated.isolation(wish(&[2], 1)), Finding::ok("isolated CPUs", "isolated 2-3, tickless 3"));
        let plain = look(&[]);
        assert_eq!(plain.isolation(wish(ALL, 1)).says, "none isolated, none tickless");
        let polling = plain.isolation(Wish { is_polling: true, ..wish(ALL, 1) });
        assert_eq!(polling.verdict, CouldBeBetter);
        assert!(polling.remedy().starts_with("boot with isolcpus=4-7 nohz_full=4-7"), "{polling:?}");
    }

    #[test]
    fn shards_belong_on_the_cards_node() {
        let (_directory, kernel) = two_sockets(&[]);
        let both = "free CPUs on nodes 0-1, slabs where their shard runs";
        for (class, card, free, verdict, says, remedy) in [
            ("net", "eth0", ALL, CouldBeBetter, format!("{both}; eth0 on node 1"), "taskset -c 2-3,6-7 sealane daemon"),
            ("net", "eth0", &[2, 3], Fine, "free CPUs and slabs on node 1; eth0 on node 1".to_owned(), ""),
            ("infiniband", "mlx5_0", &[0], Fine, "free CPUs and slabs on node 0; mlx5_0 on node 0".to_owned(), ""),
            (
                "net",
                "eth0",
                &[0, 1, 2],
                CouldBeBetter,
                format!("{both}; eth0 on node 1: too few free CPUs on node 1 for 2 shards"),
                "move the daemon's cpuset to that node, or run fewer shards (runtime.shards)",
            ),
            ("net", "veth", ALL, Fine, format!("{both}; veth on no particular node"), ""),
            ("net", "none", ALL, Fine, format!("{both}; none on no particular node"), ""),
        ] {
            let found = numa(&kernel, (class, &[card.to_owned()]), &Topology::look(&kernel), free, 2);
            assert_eq!((found.verdict, found.says.as_str(), found.remedy()), (verdict, says.as_str(), remedy));
        }
        let nothing = numa(&kernel, ("net", &["eth0".to_owned()]), &Topology::default(), &[0], 1);
        assert_eq!(nothing.verdict, Fine, "the kernel says nothing of nodes");
    }

    #[test]
    fn claims_are_seen_while_they_are_held() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        let held = claim_cpus(at, Wanted::Any(1), Vec::new()).unwrap();
        let (cpu, process) = (held[0].cpu(), std::process::id());
        assert_eq!(claimed_cpus(at).unwrap(), [(cpu, Some(process))]);
        let says = claims(&claimed_cpus(at), at).says;
        assert!(says.starts_with(&format!("claimed: CPU {cpu} by process {process} in ")), "{says}");
        drop(held);
        // The file of a dead daemon is no claim.
        fs::write(at.join("cpu-0.lock"), "4000000\n").unwrap();
        fs::write(at.join("cpu-x.lock"), "1\n").unwrap();
        assert_eq!(claimed_cpus(at).unwrap(), []);
        fs::write(at.join("cpu-7.lock"), "?").unwrap();
        let holder = File::open(at.join("cpu-7.lock")).unwrap();
        holder.lock().unwrap();
        assert_eq!(claimed_cpus(at).unwrap(), [(7, None)]);
        assert_eq!(claimed_cpus(&at.join("none")).unwrap(), []);
        std::os::unix::fs::symlink(at.join("cpu-7.lock"), at.join("cpu-1.lock")).unwrap();
        let refused = claims(&claimed_cpus(at), at);
        assert!(refused.verdict == CouldBeBetter && refused.says.contains(" cannot be read: "), "{refused:?}");
    }
}
