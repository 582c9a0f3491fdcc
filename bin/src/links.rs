//! How many links an engine has, by their kind. Plain data; a line of text carries it from a daemon to the demo.

use std::fmt;
use std::str::FromStr;

use sealane_fusion::Counters;
use serde::{Deserialize, Serialize};

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
    pub(crate) fn of(shards: &[Counters]) -> Links {
        let sum = |of: fn(&Counters) -> u64| shards.iter().map(of).sum::<u64>();
        let verbs = sum(|shard| shard.links_verbs);
        Links { tcp: sum(|shard| shard.links) - verbs, verbs }
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

    /// How many there are.
    pub(crate) fn count(self) -> u64 {
        self.tcp + self.verbs
    }
}

impl fmt::Display for Links {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} verbs, {} tcp", self.verbs, self.tcp)
    }
}

/// Reads what [`Display`](fmt::Display) writes.
impl FromStr for Links {
    type Err = ();

    fn from_str(text: &str) -> Result<Links, ()> {
        let (verbs, tcp) = text.split_once(" verbs, ").ok_or(())?;
        let tcp = tcp.strip_suffix(" tcp").ok_or(())?;
        let number = |text: &str| text.parse().map_err(|_| ());
        Ok(Links { tcp: number(tcp)?, verbs: number(verbs)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_counted_by_kind_over_all_shards() {
        let shard = |links, links_verbs| Counters { links, links_verbs, ..Counters::default() };
        let links = Links::of(&[shard(3, 1), shard(2, 2), shard(0, 0)]);
        assert_eq!(links, Links { tcp: 2, verbs: 3 });
        assert_eq!((links.count(), links.kind()), (5, Some("verbs and tcp")));
        assert_eq!(Links::of(&[shard(2, 2)]).kind(), Some("verbs"));
        assert_eq!(Links::of(&[shard(2, 0)]).kind(), Some("tcp"));
        assert_eq!(Links::of(&[]).kind(), None);
    }

    #[test]
    fn what_is_written_can_be_read() {
        let links = Links { tcp: 12, verbs: 3 };
        assert_eq!(links.to_string(), "3 verbs, 12 tcp");
        assert_eq!(links.to_string().parse(), Ok(links));
        for text in ["", "3 verbs", "3 verbs, 12", "x verbs, 12 tcp", "3 verbs, -1 tcp"] {
            assert_eq!(text.parse::<Links>(), Err(()), "{text}");
        }
    }
}
