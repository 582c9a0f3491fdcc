//! The processors of this host: sockets, cores, hardware threads, NUMA nodes, and the CPUs that the kernel keeps its own
//! work away from; and whether the shards run on the node of the network cards: slabs lie where their shard runs, and a card on
//! another node reaches them by the link between the sockets. Pure but for reading `/sys`.

use std::collections::BTreeSet;

use serde::Serialize;

use super::kernel::{Kernel, list};
use super::verdict::{Finding, Remedy, advice};
use crate::counted;

/// Where the kernel lists CPUs.
const CPUS: &str = "sys/devices/system/cpu";
/// Where it lists NUMA nodes.
const NODES: &str = "sys/devices/system/node";

/// The processors.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Topology {
    /// CPUs that run.
    online: Vec<usize>,
    sockets: usize,
    cores: usize,
    /// CPUs that share a core with another one, by core; empty where there is no SMT.
    siblings: Vec<Vec<usize>>,
    nodes: Vec<Node>,
    /// CPUs on which the scheduler puts nothing by itself (`isolcpus=`, isolated cpusets).
    isolated: Vec<usize>,
    /// CPUs without a scheduling tick while they run one task (`nohz_full=`).
    tickless: Vec<usize>,
}

/// A NUMA node with memory or CPUs.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Node {
    pub(super) number: usize,
    pub(super) cpus: Vec<usize>,
}

/// What a daemon would do with the CPUs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish<'a> {
    /// The CPUs that it may use and nobody claims.
    pub(super) free: &'a [usize],
    /// All that it may use.
    pub(super) allowed: &'a [usize],
    pub(super) shards: usize,
    /// `runtime.pin`, where it is set.
    pub(super) pin: Option<bool>,
    pub(super) is_polling: bool,
}

impl Topology {
    /// Reads it.
    pub(super) fn look(kernel: &Kernel) -> Topology {
        let online = kernel.cpus(format!("{CPUS}/online")).unwrap_or_default();
        let mut cores = BTreeSet::new();
        let mut sockets = BTreeSet::new();
        let mut siblings = BTreeSet::new();
        for cpu in &online {
            let of = |name: &str| format!("{CPUS}/cpu{cpu}/topology/{name}");
            // -1 where the kernel does not know: a machine of one socket.
            let socket: i64 = kernel.number(of("physical_package_id")).unwrap_or(-1).max(0);
            let threads = kernel.cpus(of("thread_siblings_list")).unwrap_or_else(|| vec![*cpu]);
            sockets.insert(socket);
            cores.insert(threads.first().copied().unwrap_or(*cpu));
            if threads.len() > 1 {
                siblings.insert(threads);
            }
        }
        let node = |name: String| {
            let number = name.strip_prefix("node")?.parse().ok()?;
            Some(Node { number, cpus: kernel.cpus(format!("{NODES}/{name}/cpulist"))? })
        };
        let mut nodes: Vec<Node> = kernel.names(NODES).into_iter().filter_map(node).collect();
        nodes.sort_by_key(|node| node.number);
        Topology {
            sockets: sockets.len(),
            cores: cores.len(),
            siblings: siblings.into_iter().collect(),
            nodes,
            isolated: kernel.cpus(format!("{CPUS}/isolated")).unwrap_or_default(),
            tickless: kernel.cpus(format!("{CPUS}/nohz_full")).unwrap_or_default(),
            online,
        }
    }

    /// The nodes on which CPUs of `cpus` are.
    pub(super) fn nodes_of(&self, cpus: &[usize]) -> Vec<usize> {
        let has = |node: &&Node| node.cpus.iter().any(|cpu| cpus.contains(cpu));
        self.nodes.iter().filter(has).map(|node| node.number).collect()
    }

    /// Those of `cpus` that are on a node.
    pub(super) fn on_node(&self, number: usize, cpus: &[usize]) -> Vec<usize> {
        let node = self.nodes.iter().find(|node| node.number == number);
        let of_node = node.map_or(&[][..], |node| &node.cpus);
        cpus.iter().copied().filter(|cpu| of_node.contains(cpu)).collect()
    }

    /// How many cores have one of `cpus`.
    fn cores_of(&self, cpus: &[usize]) -> usize {
        let second = |cpu: &usize| {
            let core = self.siblings.iter().find(|core| core.contains(cpu));
            core.is_some_and(|core| core.iter().find(|first| cpus.contains(first)) != Some(cpu))
        };
        cpus.iter().filter(|cpu| !second(cpu)).count()
    }

    /// What is to be said of the processors.
    pub(super) fn findings(&self, wish: Wish<'_>) -> Vec<Finding> {
        vec![self.shape(wish), shards(wish), self.isolation(wish), self.cpuset(wish)]
    }

    fn shape(&self, wish: Wish<'_>) -> Finding {
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
        let tickless = match &self.tickless[..] {
            [] => "none tickless".to_owned(),
            cpus => format!("tickless {}", list(cpus)),
        };
        if self.isolated.is_empty() {
            let says = format!("none isolated, {tickless}");
            if wish.is_polling && self.online.len() > 1 {
                let some = list(&wish.allowed[wish.allowed.len() / 2..]);
                let remedy =
                    advice(format!("boot with isolcpus={some} nohz_full={some}, then start the daemon on these"));
                return Finding::better(NAME, format!("{says}: polling shards share CPUs with other tasks"), remedy);
            }
            return Finding::ok(NAME, says);
        }
        let says = format!("isolated {}, {tickless}", list(&self.isolated));
        if self.isolated.iter().any(|cpu| wish.allowed.contains(cpu)) {
            return Finding::ok(NAME, says);
        }
        // A process gets them only if it asks for them.
        let remedy = format!("taskset -c {} sealane daemon", list(&self.isolated));
        Finding::better(NAME, format!("{says}: none of them is in this process's mask"), remedy)
    }

    fn cpuset(&self, wish: Wish<'_>) -> Finding {
        let (allowed, online) = (list(wish.allowed), list(&self.online));
        Finding::ok("cpuset", format!("CPUs {allowed} of {online} are allowed by affinity mask and cgroup"))
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

/// A network card.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Card {
    /// A network interface or an RDMA device.
    name: String,
    /// Its NUMA node; `null` where the kernel does not say, as for virtual ones.
    node: Option<usize>,
}

/// Which card to look for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Interface,
    RdmaDevice,
}

impl Card {
    /// Looks for the node of a card.
    pub(super) fn look(kernel: &Kernel, kind: Kind, name: &str) -> Card {
        let class = match kind {
            Kind::Interface => "net",
            Kind::RdmaDevice => "infiniband",
        };
        // -1 on a machine of one node.
        let node: Option<i64> = kernel.number(format!("sys/class/{class}/{name}/device/numa_node"));
        Card { name: name.to_owned(), node: node.and_then(|node| usize::try_from(node).ok()) }
    }
}

/// Compares the cards' nodes with those of the CPUs that a daemon may take.
pub(super) fn numa(cards: &[Card], topology: &Topology, free: &[usize], shards: usize) -> Finding {
    const NAME: &str = "NUMA";
    let nodes = topology.nodes_of(free);
    let cpus = match &nodes[..] {
        [] => "free CPUs on an unknown node".to_owned(),
        [node] => format!("free CPUs and slabs on node {node}"),
        nodes => format!("free CPUs on nodes {}, slabs where their shard runs", list(nodes)),
    };
    let shown = |card: &Card| match card.node {
        Some(node) => format!("{} on node {node}", card.name),
        None => format!("{} on no particular node", card.name),
    };
    let says = match cards {
        [] => cpus,
        cards => format!("{cpus}; {}", cards.iter().map(shown).collect::<Vec<_>>().join(", ")),
    };
    let far = cards.iter().find_map(|card| {
        let node = card.node?;
        (nodes.iter().any(|has| *has != node)).then_some((node, topology.on_node(node, free)))
    });
    match far {
        // As many as are wanted are near it.
        Some((_, near)) if near.len() >= shards.max(1) => {
            Finding::better(NAME, says, format!("taskset -c {} sealane daemon", list(&near)))
        }
        Some((node, _)) => {
            let says = format!("{says}: too few free CPUs on node {node} for {shards} shards");
            Finding::better(
                NAME,
                says,
                advice("move the daemon's cpuset to that node, or run fewer shards (runtime.shards)"),
            )
        }
        None => Finding::ok(NAME, says),
    }
}

#[cfg(test)]
mod tests {
    use super::super::kernel::laid_out;
    use super::super::verdict::Verdict;
    use super::*;

    /// Two sockets of two cores of two threads, with a node each.
    const TWO_SOCKETS: &[(&str, &str)] = &[
        ("sys/devices/system/cpu/online", "0-7"),
        ("sys/devices/system/cpu/isolated", ""),
        ("sys/devices/system/cpu/cpu0/topology/physical_package_id", "0"),
        ("sys/devices/system/cpu/cpu1/topology/physical_package_id", "0"),
        ("sys/devices/system/cpu/cpu2/topology/physical_package_id", "1"),
        ("sys/devices/system/cpu/cpu3/topology/physical_package_id", "1"),
        ("sys/devices/system/cpu/cpu4/topology/physical_package_id", "0"),
        ("sys/devices/system/cpu/cpu5/topology/physical_package_id", "0"),
        ("sys/devices/system/cpu/cpu6/topology/physical_package_id", "1"),
        ("sys/devices/system/cpu/cpu7/topology/physical_package_id", "1"),
        ("sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0,4"),
        ("sys/devices/system/cpu/cpu4/topology/thread_siblings_list", "0,4"),
        ("sys/devices/system/cpu/cpu1/topology/thread_siblings_list", "1,5"),
        ("sys/devices/system/cpu/cpu5/topology/thread_siblings_list", "1,5"),
        ("sys/devices/system/cpu/cpu2/topology/thread_siblings_list", "2,6"),
        ("sys/devices/system/cpu/cpu6/topology/thread_siblings_list", "2,6"),
        ("sys/devices/system/cpu/cpu3/topology/thread_siblings_list", "3,7"),
        ("sys/devices/system/cpu/cpu7/topology/thread_siblings_list", "3,7"),
        ("sys/devices/system/node/node0/cpulist", "0-1,4-5"),
        ("sys/devices/system/node/node1/cpulist", "2-3,6-7"),
        ("sys/devices/system/node/possible", "0-1"),
    ];

    const ALL: &[usize] = &[0, 1, 2, 3, 4, 5, 6, 7];

    fn wish(cpus: &[usize], shards: usize) -> Wish<'_> {
        Wish { free: cpus, allowed: cpus, shards, pin: None, is_polling: false }
    }

    fn look(more: &[(&str, &str)]) -> Topology {
        let (_directory, kernel) = laid_out(&[TWO_SOCKETS, more].concat());
        Topology::look(&kernel)
    }

    #[test]
    fn sockets_cores_threads_and_nodes_are_counted() {
        let topology = look(&[]);
        assert_eq!((topology.sockets, topology.cores, topology.siblings.len()), (2, 4, 4));
        assert_eq!(topology.nodes_of(&[4, 5]), [0]);
        assert_eq!(topology.nodes_of(ALL), [0, 1]);
        assert_eq!(topology.on_node(1, &[1, 2, 3]), [2, 3]);
        let says = &topology.findings(wish(ALL, 4))[0];
        assert_eq!(
            (says.verdict, says.says.as_str()),
            (Verdict::Ok, "2 sockets, 4 cores, 8 hardware threads, 2 NUMA nodes")
        );
    }

    #[test]
    fn shards_that_share_cores_could_be_fewer() {
        let finding = &look(&[]).findings(wish(ALL, 5))[0];
        assert_eq!(finding.verdict, Verdict::CouldBeBetter);
        assert!(finding.says.ends_with("5 shards share 4 cores"), "{}", finding.says);
        assert_eq!(finding.remedy(), "sealane daemon --set runtime.shards=4");
        // Two CPUs of one core.
        assert_eq!(look(&[]).cores_of(&[0, 4, 1]), 2);
    }

    #[test]
    fn a_kernel_that_tells_nothing_is_taken_as_it_is() {
        let (_directory, kernel) = laid_out(&[("sys/devices/system/cpu/online", "0-1")]);
        let topology = Topology::look(&kernel);
        assert_eq!((topology.sockets, topology.cores), (1, 2));
        let says = &topology.findings(wish(&[0, 1], 1))[0].says;
        assert_eq!(says, "1 socket, 2 cores, one hardware thread each, 1 NUMA node");
    }

    #[test]
    fn more_shards_than_free_cpus_are_unpinned_or_refused() {
        let of = |pin, shards| {
            let finding = super::shards(Wish { pin, ..wish(&[0, 1], shards) });
            (finding.verdict, finding.remedy.is_some())
        };
        assert_eq!(of(None, 2), (Verdict::Ok, false));
        assert_eq!(of(None, 3), (Verdict::CouldBeBetter, true));
        assert_eq!(of(Some(true), 3), (Verdict::WillNotWork, true));
        assert_eq!(of(Some(false), 3), (Verdict::Ok, false));
    }

    #[test]
    fn isolated_cpus_must_be_asked_for() {
        let isolated = look(&[("sys/devices/system/cpu/isolated", "2-3"), ("sys/devices/system/cpu/nohz_full", "3")]);
        let of = |topology: &Topology, wish: Wish<'_>| {
            let finding = topology.isolation(wish);
            (finding.verdict, finding.remedy().to_owned())
        };
        assert_eq!(
            of(&isolated, wish(&[0, 1], 1)),
            (Verdict::CouldBeBetter, "taskset -c 2-3 sealane daemon".to_owned())
        );
        assert_eq!(of(&isolated, wish(&[2], 1)).0, Verdict::Ok);
        assert_eq!(isolated.isolation(wish(&[2], 1)).says, "isolated 2-3, tickless 3");
        let plain = look(&[]);
        assert_eq!(of(&plain, wish(ALL, 1)).0, Verdict::Ok);
        let (verdict, remedy) = of(&plain, Wish { is_polling: true, ..wish(ALL, 1) });
        assert_eq!(verdict, Verdict::CouldBeBetter);
        assert!(remedy.starts_with("boot with isolcpus=4-7 nohz_full=4-7"), "{remedy}");
    }

    #[test]
    fn this_host_has_a_core() {
        let topology = Topology::look(&Kernel::at("/"));
        assert!(topology.cores > 0 && topology.sockets > 0);
    }

    const CARDS: &[(&str, &str)] = &[
        ("sys/class/net/eth0/device/numa_node", "1"),
        ("sys/class/net/veth/device/numa_node", "-1"),
        ("sys/class/infiniband/mlx5_0/device/numa_node", "0"),
    ];

    fn check(kind: Kind, name: &str, free: &[usize], shards: usize) -> Finding {
        let (_directory, kernel) = laid_out(&[TWO_SOCKETS, CARDS].concat());
        numa(&[Card::look(&kernel, kind, name)], &Topology::look(&kernel), free, shards)
    }

    #[test]
    fn shards_belong_on_the_cards_node() {
        let all: Vec<usize> = (0..8).collect();
        let far = check(Kind::Interface, "eth0", &all, 2);
        assert_eq!(far.verdict, Verdict::CouldBeBetter);
        assert_eq!(far.says, "free CPUs on nodes 0-1, slabs where their shard runs; eth0 on node 1");
        assert_eq!(far.remedy(), "taskset -c 2-3,6-7 sealane daemon");
        let near = check(Kind::Interface, "eth0", &[2, 3], 2);
        assert_eq!((near.verdict, near.says.as_str()), (Verdict::Ok, "free CPUs and slabs on node 1; eth0 on node 1"));
        assert_eq!(check(Kind::RdmaDevice, "mlx5_0", &[0], 1).verdict, Verdict::Ok);
    }

    #[test]
    fn a_node_without_enough_free_cpus_is_said() {
        let few = check(Kind::Interface, "eth0", &[0, 1, 2], 2);
        assert_eq!(few.verdict, Verdict::CouldBeBetter);
        assert!(few.says.ends_with("too few free CPUs on node 1 for 2 shards"), "{}", few.says);
    }

    #[test]
    fn cards_without_a_node_and_kernels_without_nodes_are_no_trouble() {
        let all: Vec<usize> = (0..8).collect();
        for name in ["veth", "none"] {
            let finding = check(Kind::Interface, name, &all, 2);
            assert_eq!(finding.verdict, Verdict::Ok);
            assert!(finding.says.ends_with(&format!("{name} on no particular node")), "{}", finding.says);
        }
        let (_directory, kernel) = laid_out(CARDS);
        let card = Card::look(&kernel, Kind::Interface, "eth0");
        assert_eq!(numa(&[card], &Topology::look(&kernel), &[0], 1).verdict, Verdict::Ok);
    }
}
