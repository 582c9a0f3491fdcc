//! What a task's streams have carried, by peer. Under the hub's lock; bounded by the number of peers counted separately.

use std::{collections::BTreeMap, sync::Arc};

use crate::limits::STREAM_PEERS_SHOWN_MAX;

/// The name for all peers beyond the first 1,024.
const OTHERS: &str = "others";

/// What the streams with one peer have carried. From [`Streams::figures`](crate::Streams::figures).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamFigures {
    /// Streams that exist now, including those that wait to be accepted, and those that ended and were not dropped.
    pub open: u64,
    /// Streams that were dialed, from either side.
    pub opened: u64,
    /// Streams that were reset, here or there, or ended with their peer.
    pub reset: u64,
    /// Bytes that were sent.
    pub bytes_sent: u64,
    /// Bytes that were received.
    pub bytes_received: u64,
}

/// By peer.
#[derive(Default)]
pub(super) struct Figures(BTreeMap<Arc<str>, StreamFigures>);

impl Figures {
    pub(super) fn of(&mut self, peer: &Arc<str>) -> &mut StreamFigures {
        let is_shown = self.0.len() < STREAM_PEERS_SHOWN_MAX || self.0.contains_key(peer);
        self.0.entry(if is_shown { peer.clone() } else { OTHERS.into() }).or_default()
    }

    /// The figures of all peers, where each of `open` stands for an open stream.
    pub(super) fn with<'a>(&self, open: impl Iterator<Item = &'a Arc<str>>) -> Vec<(Arc<str>, StreamFigures)> {
        let mut all = Figures(self.0.clone());
        open.for_each(|peer| all.of(peer).open += 1);
        all.0.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_beyond_the_limit_count_together() {
        let mut figures = Figures::default();
        let name = |number: usize| Arc::from(format!("worker{number}"));
        for number in 0..STREAM_PEERS_SHOWN_MAX + 2 {
            figures.of(&name(number)).opened += 1;
        }
        figures.of(&name(0)).reset += 1;
        let open = [name(1), name(STREAM_PEERS_SHOWN_MAX + 1)];
        let all: BTreeMap<_, _> = figures.with(open.iter()).into_iter().collect();
        assert_eq!(all.len(), STREAM_PEERS_SHOWN_MAX + 1);
        let of = |name: &str| {
            let StreamFigures { open, opened, reset, .. } = all[name];
            (open, opened, reset)
        };
        assert_eq!((of("worker0"), of("worker1"), of(OTHERS)), ((0, 1, 1), (1, 1, 0), (1, 2, 0)));
    }
}
