//! How many links an engine has, by their kind. Plain data.

use std::fmt;
use std::iter::Sum;

use sealane_transport::LinkKind;
use sealane_transport::provider::Figure;
use sealane_transport::verbs::{self, PortCounters};
use serde::{Deserialize, Serialize};

use crate::figures::ShardCounters;

/// The kinds of links besides TCP that this program knows, with what each counts: they are shown whether or not an engine uses them.
pub(crate) const KINDS: &[(LinkKind, &[Figure])] = &[(verbs::KIND, PortCounters::FIGURES)];

/// Links to other engines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Links {
    /// Over TCP.
    pub(crate) tcp: u64,
    /// Over RDMA verbs.
    pub(crate) verbs: u64,
}

impl Links {
    /// The links of all shards that these are the counters of.
    pub(crate) fn of<'a>(shards: impl Iterator<Item = &'a ShardCounters>) -> Links {
        let of_shard = |shard: &ShardCounters| {
            let verbs = shard.links_of(verbs::KIND);
            Links { tcp: shard.links.saturating_sub(verbs), verbs }
        };
        shards.map(of_shard).sum()
    }

    /// The kind that they all have, or both; nothing if there are none.
    pub(crate) fn kind(self) -> Option<&'static str> {
        match self {
            Links { tcp: 0, verbs: 0 } => None,
            Links { verbs: 0, .. } => Some("tcp"),
            Links { tcp: 0, .. } => Some("verbs"),
            _ => Some("verbs and tcp"),
        }
    }
}

impl Sum for Links {
    fn sum<I: Iterator<Item = Links>>(links: I) -> Links {
        links.fold(Links::default(), |sum, one| Links { tcp: sum.tcp + one.tcp, verbs: sum.verbs + one.verbs })
    }
}

impl fmt::Display for Links {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} verbs, {} tcp", self.verbs, self.tcp)
    }
}

#[cfg(test)]
mod tests {
    use sealane_fusion::Counters;
    use sealane_fusion::metrics::KindFigures;

    use super::*;

    #[test]
    fn links_are_counted_by_kind_over_all_shards() {
        let shard = |links, links_verbs| {
            let counters = Counters { links, ..Counters::default() };
            let verbs = KindFigures { kind: verbs::KIND, links: links_verbs, figures: Vec::new() };
            ShardCounters::new(counters, vec![verbs])
        };
        let links = |shards: &[ShardCounters]| Links::of(shards.iter());
        let all = links(&[shard(3, 1), shard(2, 2), shard(0, 0)]);
        assert_eq!(all, Links { tcp: 2, verbs: 3 });
        assert_eq!((all.to_string().as_str(), all.kind()), ("3 verbs, 2 tcp", Some("verbs and tcp")));
        assert_eq!(links(&[shard(2, 2)]).kind(), Some("verbs"));
        assert_eq!(links(&[shard(2, 0)]).kind(), Some("tcp"));
        assert_eq!(links(&[]).kind(), None);
    }
}
