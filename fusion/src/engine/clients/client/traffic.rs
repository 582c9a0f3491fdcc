//! Traffic of a client, by peer task: counted by the shard, or reported by the client for other transports. Bounded by [`PEERS_SHOWN_MAX`];
//! further peers are counted together.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

use sealane_transport::shm::Moved;

use super::{Client, Misconduct};
use crate::limits::PEERS_SHOWN_MAX;
use crate::metrics::{Roll, SeqLock, TrafficCounters, TrafficFigures, TrafficMetrics};

#[derive(Default)]
pub(super) struct Traffic {
    rows: Vec<Row>,
    by_name: HashMap<Box<str>, usize>,
    /// The rows, by the client's numbers of its peers.
    by_number: Vec<Option<usize>>,
    /// The last pusher, usually also the next one, and its row.
    pusher: Option<(Arc<str>, usize)>,
}

struct Row {
    counters: TrafficCounters,
    /// It has changed since it was published.
    is_new: Cell<bool>,
    metrics: Arc<TrafficMetrics>,
}

impl Traffic {
    /// The row of a task, created if there is none.
    fn of_name(&mut self, name: &str, roll: &Roll<TrafficMetrics>) -> usize {
        if let Some(row) = self.by_name.get(name) {
            return *row;
        }
        if self.rows.len() >= PEERS_SHOWN_MAX && name != TrafficFigures::OTHERS {
            return self.of_name(TrafficFigures::OTHERS, roll);
        }
        let metrics = Arc::new(TrafficMetrics { peer: name.to_owned(), counters: SeqLock::default() });
        roll.add(&metrics);
        self.rows.push(Row { counters: TrafficCounters::default(), is_new: Cell::new(true), metrics });
        self.by_name.insert(name.into(), self.rows.len() - 1);
        self.rows.len() - 1
    }

    #[inline]
    fn change(&mut self, row: usize) -> &mut TrafficCounters {
        let row = &mut self.rows[row];
        row.is_new.set(true);
        &mut row.counters
    }

    /// Publishes for other threads what has changed.
    pub(super) fn show(&self) {
        for row in self.rows.iter().filter(|row| row.is_new.take()) {
            row.metrics.counters.write(&row.counters);
        }
    }
}

impl Client {
    /// The counters of a peer that the client has named.
    #[inline]
    pub(super) fn traffic_of(&mut self, peer: u16) -> &mut TrafficCounters {
        let number = usize::from(peer);
        let row = match self.traffic.by_number.get(number) {
            Some(Some(row)) => *row,
            _ => self.first_of(number),
        };
        self.traffic.change(row)
    }

    #[cold]
    fn first_of(&mut self, number: usize) -> usize {
        let Client { traffic, peers, metrics, .. } = self;
        let name = peers.get(number).map_or(TrafficFigures::OTHERS, |peer| &peer.name);
        let row = traffic.of_name(name, &metrics.traffic);
        if traffic.by_number.len() <= number {
            traffic.by_number.resize(number + 1, None);
        }
        traffic.by_number[number] = Some(row);
        row
    }

    pub(super) fn count_accepted(&mut self, from: &Arc<str>, bytes: usize) {
        let Client { traffic, metrics, .. } = self;
        let row = match &traffic.pusher {
            Some((pusher, row)) if Arc::ptr_eq(pusher, from) => *row,
            _ => {
                let row = traffic.of_name(from, &metrics.traffic);
                traffic.pusher = Some((from.clone(), row));
                row
            }
        };
        traffic.change(row).received(1, bytes as u64);
    }

    /// Counts what went over a lane, as reported by the client.
    pub(super) fn count_direct(&mut self, peer: u16, sent: Moved, received: Moved) -> Result<(), Misconduct> {
        if usize::from(peer) >= self.peers.len() {
            return Err(Misconduct(format!("peer {peer} was not named")));
        }
        let all = &mut self.counters;
        add(&mut all.tensors_sent, &mut all.bytes_sent, sent);
        add(&mut all.tensors_received, &mut all.bytes_received, received);
        let row = self.traffic_of(peer);
        add(&mut row.tensors_sent, &mut row.bytes_sent, sent);
        add(&mut row.tensors_received, &mut row.bytes_received, received);
        Ok(())
    }

    /// Counts what went over other transports, as reported by the client.
    pub(super) fn count_elsewhere(
        &mut self,
        peer: Option<u16>,
        sent: Moved,
        received: Moved,
    ) -> Result<(), Misconduct> {
        let counters = match peer {
            Some(peer) if usize::from(peer) >= self.peers.len() => {
                return Err(Misconduct(format!("peer {peer} was not named")));
            }
            Some(peer) => self.traffic_of(peer),
            None => {
                let row = self.traffic.of_name(TrafficFigures::OTHERS, &self.metrics.traffic);
                self.traffic.change(row)
            }
        };
        add(&mut counters.elsewhere_tensors_sent, &mut counters.elsewhere_bytes_sent, sent);
        add(&mut counters.elsewhere_tensors_received, &mut counters.elsewhere_bytes_received, received);
        Ok(())
    }
}

/// Adds what a client reports, which may be any number.
fn add(tensors: &mut u64, bytes: &mut u64, more: Moved) {
    *tensors = tensors.saturating_add(more.tensors);
    *bytes = bytes.saturating_add(more.bytes);
}

impl TrafficCounters {
    #[inline]
    pub(super) fn sent(&mut self, tensors: u64, bytes: u64) {
        self.tensors_sent = self.tensors_sent.saturating_add(tensors);
        self.bytes_sent = self.bytes_sent.saturating_add(bytes);
    }

    #[inline]
    pub(super) fn received(&mut self, tensors: u64, bytes: u64) {
        self.tensors_received = self.tensors_received.saturating_add(tensors);
        self.bytes_received = self.bytes_received.saturating_add(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_tasks_than_are_told_apart_are_others() {
        let (mut traffic, roll) = (Traffic::default(), Roll::default());
        for number in 0..PEERS_SHOWN_MAX + 10 {
            let row = traffic.of_name(&number.to_string(), &roll);
            traffic.change(row).sent(1, 1);
            assert_eq!(row == PEERS_SHOWN_MAX, number >= PEERS_SHOWN_MAX);
        }
        traffic.show();
        let shown = roll.all();
        assert_eq!(shown.len(), PEERS_SHOWN_MAX + 1);
        let others = shown.last().unwrap();
        assert_eq!((&*others.peer, others.counters.read().tensors_sent), (TrafficFigures::OTHERS, 10));
        assert_eq!(traffic.of_name("7", &roll), 7);
    }
}
