//! Which ranks of a group are on which host.
//!
//! Each rank has a *counterpart* on each other host: the one at the same place among that host's ranks, wrapping around if there are fewer.
//! Counterparts exchange what their hosts have made.

#[derive(Debug, Clone)]
pub(in crate::group) struct Layout {
    rank: usize,
    /// The ranks of each host, in order. Hosts are in the order of their first ranks.
    hosts: Vec<Vec<usize>>,
    /// The host of each rank, and its place there.
    places: Vec<(usize, usize)>,
}

impl Layout {
    /// The layout as seen by rank `rank`; two ranks are on one host if their hosts are equal.
    pub(in crate::group) fn new<H: PartialEq>(rank: usize, host_of: &[H]) -> Layout {
        let mut hosts: Vec<Vec<usize>> = Vec::new();
        let mut places = Vec::new();
        for (rank, host) in host_of.iter().enumerate() {
            let known = hosts.iter().position(|ranks| host_of[ranks[0]] == *host);
            let index = known.unwrap_or_else(|| {
                hosts.push(Vec::new());
                hosts.len() - 1
            });
            places.push((index, hosts[index].len()));
            hosts[index].push(rank);
        }
        Layout { rank, hosts, places }
    }

    /// This rank's number.
    pub(in crate::group) fn rank(&self) -> usize {
        self.rank
    }

    pub(in crate::group) fn size(&self) -> usize {
        self.places.len()
    }

    pub(in crate::group) fn hosts(&self) -> usize {
        self.hosts.len()
    }

    /// The number of a rank's host.
    pub(in crate::group) fn host_of(&self, rank: usize) -> usize {
        self.places[rank].0
    }

    /// The number of this rank's host.
    pub(in crate::group) fn own_host(&self) -> usize {
        self.host_of(self.rank)
    }

    /// This rank's place among the ranks of its host.
    pub(in crate::group) fn own_index(&self) -> usize {
        self.places[self.rank].1
    }

    /// The ranks of this host, including this one.
    pub(in crate::group) fn neighbours(&self) -> &[usize] {
        &self.hosts[self.own_host()]
    }

    /// The place of a rank among those of this host, if it is on it.
    pub(in crate::group) fn local(&self, rank: usize) -> Option<usize> {
        let (host, index) = self.places[rank];
        (host == self.own_host()).then_some(index)
    }

    /// The ranks of other hosts, beginning behind this one, so that not all turn to the same rank first.
    pub(in crate::group) fn far(&self) -> impl Iterator<Item = usize> + use<'_> {
        let size = self.size();
        (1..size).map(move |ahead| (self.rank + ahead) % size).filter(|rank| self.local(*rank).is_none())
    }

    /// True if a rank is the only one of its host.
    pub(in crate::group) fn is_alone(&self, rank: usize) -> bool {
        self.hosts[self.host_of(rank)].len() == 1
    }

    /// The other hosts.
    pub(in crate::group) fn other_hosts(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.own_host();
        (0..self.hosts()).filter(move |host| *host != own)
    }

    /// How many places every host has: the ranks at each of them reduce a part for all.
    pub(in crate::group) fn lanes(&self) -> usize {
        self.hosts.iter().map(Vec::len).min().unwrap_or(0)
    }

    /// The rank at a place of a host, wrapping around if that has fewer.
    pub(in crate::group) fn at(&self, host: usize, index: usize) -> usize {
        self.hosts[host][index % self.hosts[host].len()]
    }

    /// This rank's counterpart on each other host.
    pub(in crate::group) fn counterparts(&self) -> impl Iterator<Item = usize> + use<'_> {
        self.other_hosts().map(|host| self.at(host, self.own_index()))
    }

    /// The ranks of other hosts whose counterpart this one is.
    pub(in crate::group) fn counterpart_of(&self) -> impl Iterator<Item = usize> + use<'_> {
        self.far().filter(|rank| self.at(self.own_host(), self.places[*rank].1) == self.rank)
    }

    /// The ranks whose parts each rank of this host has after counterparts have exchanged them.
    pub(in crate::group) fn held(&self) -> Vec<Vec<usize>> {
        let mut held: Vec<Vec<usize>> = self.neighbours().iter().map(|rank| vec![*rank]).collect();
        for rank in (0..self.size()).filter(|rank| self.local(*rank).is_none()) {
            let index = self.places[rank].1 % held.len();
            held[index].push(rank);
        }
        held
    }

    /// The rank through which a host receives what `root` sends to all.
    pub(in crate::group) fn entry(&self, host: usize, root: usize) -> usize {
        match host == self.host_of(root) {
            true => root,
            false => self.at(host, self.places[root].1 % self.lanes()),
        }
    }

    /// The host from which a host receives what host `root` sends to all, and those to which it passes it on: a binomial tree.
    pub(in crate::group) fn tree(&self, host: usize, root: usize) -> (Option<usize>, Vec<usize>) {
        let count = self.hosts();
        let from_root = (host + count - root) % count;
        let parent = (from_root != 0).then(|| (from_root & (from_root - 1)) + root);
        let below = if from_root == 0 { count.next_power_of_two() } else { 1 << from_root.trailing_zeros() };
        let steps = std::iter::successors(Some(below / 2), |step| Some(step / 2)).take_while(|step| *step > 0);
        let children = steps.map(|step| from_root + step).filter(|child| *child < count);
        (parent.map(|parent| parent % count), children.map(|child| (child + root) % count).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_equal_hosts_have_counterparts_at_the_same_place() {
        let layout = Layout::new(3, &["a", "a", "b", "b"]);
        assert_eq!((layout.own_host(), layout.own_index(), layout.lanes()), (1, 1, 2));
        assert_eq!(layout.neighbours(), [2, 3]);
        assert!(layout.counterparts().eq([1]) && layout.counterpart_of().eq([1]));
        assert!(layout.far().eq([0, 1]));
    }

    #[test]
    fn where_hosts_differ_each_rank_is_somebodys_and_has_somebody() {
        let hosts = ["a", "b", "a", "a", "c", "b"];
        let layouts: Vec<Layout> = (0..6).map(|rank| Layout::new(rank, &hosts)).collect();
        for layout in &layouts {
            assert_eq!(layout.counterparts().count(), 2);
            for other in layout.counterparts() {
                assert!(layouts[other].counterpart_of().any(|rank| rank == layout.rank()));
            }
        }
        assert!(layouts[4].counterpart_of().eq([5, 0, 1, 2, 3]), "the only one of its host");
    }

    #[test]
    fn a_tree_of_hosts_reaches_each_host_once() {
        for count in 1..20 {
            let layout = Layout::new(0, &(0..count).collect::<Vec<usize>>());
            for root in 0..count {
                let mut reached = vec![0; count];
                for host in 0..count {
                    let (parent, children) = layout.tree(host, root);
                    assert_eq!(parent.is_none(), host == root);
                    for child in children {
                        assert_eq!(layout.tree(child, root).0, Some(host));
                        reached[child] += 1;
                    }
                }
                reached[root] += 1;
                assert!(reached.iter().all(|times| *times == 1), "{count} hosts, root {root}: {reached:?}");
            }
        }
    }
}
