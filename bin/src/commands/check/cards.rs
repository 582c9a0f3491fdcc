//! The network cards that this host's tensors pass, and whether the shards run on the NUMA node that a card is on: slabs lie
//! where their shard runs, and a card on another node reaches them by the link between the sockets. Pure but for `/sys`.

use serde::Serialize;

use super::kernel::{Kernel, list};
use super::topology::Topology;
use super::verdict::{Finding, advice};

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
pub(super) fn finding(cards: &[Card], topology: &Topology, free: &[usize], shards: usize) -> Finding {
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
    use super::super::topology::tests::TWO_SOCKETS;
    use super::super::verdict::{Remedy, Verdict};
    use super::*;

    const CARDS: &[(&str, &str)] = &[
        ("sys/class/net/eth0/device/numa_node", "1"),
        ("sys/class/net/veth/device/numa_node", "-1"),
        ("sys/class/infiniband/mlx5_0/device/numa_node", "0"),
    ];

    fn check(kind: Kind, name: &str, free: &[usize], shards: usize) -> Finding {
        let (_directory, kernel) = laid_out(&[TWO_SOCKETS, CARDS].concat());
        finding(&[Card::look(&kernel, kind, name)], &Topology::look(&kernel), free, shards)
    }

    #[test]
    fn shards_belong_on_the_cards_node() {
        let all: Vec<usize> = (0..8).collect();
        let far = check(Kind::Interface, "eth0", &all, 2);
        assert_eq!(far.verdict, Verdict::CouldBeBetter);
        assert_eq!(far.says, "free CPUs on nodes 0-1, slabs where their shard runs; eth0 on node 1");
        assert_eq!(far.remedy.as_ref().map(Remedy::text), Some("taskset -c 2-3,6-7 sealane daemon"));
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
        assert_eq!(finding(&[card], &Topology::look(&kernel), &[0], 1).verdict, Verdict::Ok);
    }
}
