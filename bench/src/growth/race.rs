//! Which of a fixed number of sources has the earliest event: a tournament tree, whose nodes keep the earlier of their two
//! children. Bounded by two nodes a source. Of equal times the source with the lower number wins, so that runs repeat exactly.

use super::clock::Tick;

/// The time of a source that has no event.
pub(super) const NEVER: Tick = Tick::MAX;

/// Sources and the times of their next events.
#[derive(Debug)]
pub(super) struct Race {
    leaves: usize,
    /// The root is at 1, the children of `n` at `2 n` and `2 n + 1`.
    nodes: Vec<(Tick, u32)>,
}

impl Race {
    /// So many sources without an event.
    pub(super) fn new(sources: usize) -> Race {
        let leaves = sources.next_power_of_two().max(2);
        let mut nodes = vec![(NEVER, u32::MAX); 2 * leaves];
        for (source, leaf) in nodes[leaves..].iter_mut().enumerate() {
            *leaf = (NEVER, source as u32);
        }
        Race { leaves, nodes }
    }

    /// The next event of `source` is at `time`.
    pub(super) fn set(&mut self, source: usize, time: Tick) {
        let mut node = self.leaves + source;
        self.nodes[node].0 = time;
        while node > 1 {
            node /= 2;
            let winner = self.nodes[2 * node].min(self.nodes[2 * node + 1]);
            if self.nodes[node] == winner {
                return;
            }
            self.nodes[node] = winner;
        }
    }

    /// The time of the earliest event and its source; [`NEVER`] when there is none.
    pub(super) fn first(&self) -> (Tick, usize) {
        let (time, source) = self.nodes[1];
        (time, source as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_is_first_and_of_equals_the_lowest() {
        let mut race = Race::new(5);
        assert_eq!(race.first().0, NEVER);
        for (source, time) in [(3, 7), (1, 9), (4, 7)] {
            race.set(source, time);
        }
        assert_eq!(race.first(), (7, 3));
        race.set(3, 20);
        assert_eq!(race.first(), (7, 4));
        race.set(4, NEVER);
        assert_eq!(race.first(), (9, 1));
        race.set(0, 9);
        assert_eq!(race.first(), (9, 0));
    }

    #[test]
    fn it_agrees_with_a_search_through_all() {
        let mut times = [NEVER; 37];
        let mut race = Race::new(times.len());
        let mut draw = 1_u64;
        for _ in 0..2_000 {
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (source, time) = ((draw >> 40) as usize % times.len(), (draw >> 20) % 50);
            times[source] = time;
            race.set(source, time);
            let earliest = times.iter().enumerate().map(|(source, time)| (*time, source)).min();
            assert_eq!(Some(race.first()), earliest);
        }
    }
}
