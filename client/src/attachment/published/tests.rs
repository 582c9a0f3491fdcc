//! Every history of a few turns, with the daemon dying before any of their records: all shards of the next daemon have what the program
//! was told that it had published.

use std::collections::BTreeMap;

use sealane_runtime::Buffer;
use sealane_transport::{Payload, TensorMeta, tensor::DType};

use super::Published;

const SHARDS: usize = 2;

/// One turn of the program, or the end of a daemon between two.
#[derive(Debug, Clone, Copy)]
enum Turn {
    Publish(&'static [&'static str]),
    /// A set that the daemon does not accept.
    Refused(&'static str),
    Withdraw(&'static str),
    Republish,
    Die,
}

const TURNS: [Turn; 6] = [
    Turn::Publish(&["a"]),
    Turn::Publish(&["a", "b"]),
    Turn::Refused("a"),
    Turn::Withdraw("a"),
    Turn::Republish,
    Turn::Die,
];

/// A task, and the daemon that it is attached to.
struct World {
    published: Published,
    link: u64,
    shards: [BTreeMap<String, u8>; SHARDS],
    /// Records until the daemon dies; `None` if it does not.
    left: Option<usize>,
    /// What the program has published, except for failures that it was told.
    told: BTreeMap<&'static str, u8>,
    value: u8,
}

impl World {
    fn die(&mut self) {
        self.published.lose(&mut Vec::new());
        self.link += 1;
        self.shards = Default::default();
        self.left = None;
    }

    /// Whether the daemon lives to get one more record.
    fn lives(&mut self) -> bool {
        match &mut self.left {
            Some(0) => self.die(),
            Some(left) => {
                *left -= 1;
                return true;
            }
            None => return true,
        }
        false
    }

    /// Sends records to all shards in turn, until the daemon dies; whether it still lives.
    fn tell(&mut self, records: &[(&str, Option<u8>)]) -> bool {
        for shard in 0..SHARDS {
            for (key, value) in records {
                if !self.lives() {
                    return false;
                }
                match value {
                    Some(value) => drop(self.shards[shard].insert((*key).to_owned(), *value)),
                    None => drop(self.shards[shard].remove(*key)),
                }
            }
        }
        true
    }

    /// Publishes a set. A shard shows the set once it has all of it, unless it refuses it.
    fn publish(&mut self, keys: &[&'static str], refused: bool) {
        self.value += 1;
        let (meta, payload) = tensor(self.value);
        self.published.begin_set();
        for shard in 0..SHARDS {
            for (call, key) in (0..).zip(keys) {
                if !self.lives() {
                    let whole = keys.iter().filter(|_| shard > 0);
                    return self.told.extend(whole.map(|key| (*key, self.value)));
                }
                if shard == 0 {
                    self.published.ask((key, 1, &meta, &payload), (self.link, call));
                }
            }
            self.published.end_set();
            let shown = keys.iter().filter(|_| !refused);
            self.shards[shard].extend(shown.map(|key| ((*key).to_owned(), self.value)));
        }
        // Answers may come in any order.
        for (call, key) in keys.iter().enumerate().rev() {
            self.published.answered(call as u32, refused);
            self.told.extend(Some((*key, self.value)).filter(|_| !refused));
        }
    }

    fn take(&mut self, turn: Turn) {
        match turn {
            Turn::Publish(keys) => self.publish(keys, false),
            Turn::Refused(key) => self.publish(&[key], true),
            Turn::Withdraw(key) => {
                self.published.forget(key, &mut Vec::new());
                self.told.remove(key);
                self.tell(&[(key, None)]);
            }
            Turn::Republish => {
                let link = self.link;
                let stale = self.published.stale(link);
                let value = |key: &str| self.published.get_stale(link, key).unwrap().payload.as_ref()[0];
                let set: Vec<_> = stale.iter().map(|key| (&**key, Some(value(key)))).collect();
                if self.tell(&set) {
                    stale.iter().for_each(|key| self.published.told(key, link));
                }
            }
            Turn::Die => self.die(),
        }
    }
}

fn tensor(value: u8) -> (TensorMeta, Payload) {
    (TensorMeta::new(DType::U8, &[1]).unwrap(), Buffer::copy_of(&[value]).into())
}

#[test]
fn whatever_the_turns_and_wherever_the_daemon_dies_the_next_one_has_what_the_program_was_told() {
    const LONG: u32 = 5;
    for history in 0..TURNS.len().pow(LONG) {
        let turns: Vec<Turn> = (0..LONG).map(|at| TURNS[history / TURNS.len().pow(at) % TURNS.len()]).collect();
        // Each turn sends at most two keys to each shard.
        for dies in (0..SHARDS * 2 * LONG as usize).map(Some).chain([None]) {
            let mut world = World {
                published: Published::default(),
                link: 1,
                shards: Default::default(),
                left: dies,
                told: BTreeMap::new(),
                value: 0,
            };
            turns.iter().for_each(|turn| world.take(*turn));
            world.left = None;
            world.take(Turn::Republish);
            for shard in &world.shards {
                let there = shard.iter().map(|(key, value)| (&**key, *value));
                assert!(
                    there.eq(world.told.clone()),
                    "{turns:?}, dies before {dies:?}: {shard:?}, not {:?}",
                    world.told
                );
            }
        }
    }
}
