//! Tensors that arrived for cancelled recvs. Their producers were told that they arrived, so the next recv of the same key gets
//! them. No I/O; under the attachment's lock; once [`UNCLAIMED_MAX`] are kept, recvs of other keys are refused.

use std::collections::VecDeque;

use hashbrown::HashMap;
use sealane_transport::{Error, Room, Tensor};

use crate::limits::UNCLAIMED_MAX;

/// What a recv asks for.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Place {
    step: i64,
    key: String,
    peer: String,
}

impl Place {
    /// Makes it ask for something else, in the same memory.
    #[inline]
    pub(super) fn set(&mut self, peer: &str, step: i64, key: &str) {
        self.peer.clear();
        self.peer.push_str(peer);
        self.step = step;
        self.key.clear();
        self.key.push_str(key);
    }

    pub(super) fn step(&self) -> i64 {
        self.step
    }

    pub(super) fn key(&self) -> &str {
        &self.key
    }

    pub(super) fn peer(&self) -> &str {
        &self.peer
    }
}

#[derive(Default)]
pub(super) struct Unclaimed {
    steps: HashMap<i64, VecDeque<(Place, Tensor)>>,
    count: usize,
}

impl Unclaimed {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Keeps a tensor behind others of its key.
    pub(super) fn keep(&mut self, place: Place, tensor: Tensor) {
        self.steps.entry(place.step).or_default().push_back((place, tensor));
        self.count += 1;
    }

    /// Returns a tensor that was taken, ahead of others of its key.
    pub(super) fn put_back(&mut self, place: Place, tensor: Tensor) {
        self.steps.entry(place.step).or_default().push_front((place, tensor));
        self.count += 1;
    }

    /// Takes the first tensor of that key, for a recv whose destination is `room`.
    ///
    /// # Errors
    /// InvalidArgument if it does not fit there (it stays), ResourceExhausted if there is none and other keys have as many as
    /// allowed: the recv's own might have to be kept.
    pub(super) fn take(
        &mut self,
        (peer, step, key): (&str, i64, &str),
        room: Option<Room>,
    ) -> Result<Option<Tensor>, Error> {
        let is_meant = |(place, _): &(Place, Tensor)| place.peer == peer && place.key == key;
        let found = self.steps.get_mut(&step).and_then(|kept| Some((kept.iter().position(is_meant)?, kept)));
        let Some((index, kept)) = found else {
            if self.count < UNCLAIMED_MAX {
                return Ok(None);
            }
            let reason =
                format!("{UNCLAIMED_MAX} tensors arrived for cancelled recvs: receive them, or clean up their steps");
            return Err(Error::full("client unclaimed tensors", reason));
        };
        let tensor = &kept[index].1;
        room.map_or(Ok(()), |room| room.check(tensor.meta().as_wire(), tensor.len() as u64))?;
        let taken = kept.remove(index).map(|(_, tensor)| tensor);
        if kept.is_empty() {
            self.steps.remove(&step);
        }
        self.count -= 1;
        Ok(taken)
    }

    /// Steps and keys of the tensors from a peer.
    pub(super) fn names(&self, peer: &str) -> Vec<(i64, Box<str>)> {
        let kept = self.steps.values().flatten().filter(|(place, _)| place.peer == peer);
        kept.map(|(place, _)| (place.step, place.key.as_str().into())).collect()
    }

    /// Takes the tensors of a step that is over.
    pub(super) fn forget(&mut self, step: i64) -> impl Iterator<Item = Tensor> {
        let forgotten = self.steps.remove(&step).unwrap_or_default();
        self.count -= forgotten.len();
        forgotten.into_iter().map(|(_, tensor)| tensor)
    }
}

#[cfg(test)]
mod tests {
    use sealane_runtime::Buffer;
    use sealane_transport::{Code, Destination};

    use super::*;

    fn place(key: &str) -> Place {
        let mut place = Place::default();
        place.set("ps", 1, key);
        place
    }

    fn tensor(bytes: &[u8]) -> Tensor {
        Tensor::from_elements(&[bytes.len() as u64], bytes).unwrap()
    }

    #[test]
    fn tensors_of_one_key_are_taken_in_order_by_who_has_room_for_them() {
        let mut unclaimed = Unclaimed::default();
        let room = |bytes| Some(Destination::from(Buffer::from_vec(vec![0; bytes])).room());
        for (key, byte) in [("w", 1), ("v", 2), ("w", 3)] {
            unclaimed.keep(place(key), tensor(&[byte; 4]));
        }
        assert_eq!(unclaimed.take(("ps", 1, "w"), room(3)).unwrap_err().code(), Code::InvalidArgument);
        assert_eq!(unclaimed.take(("ps", 1, "w"), room(4)).unwrap().unwrap().bytes(), [1; 4]);
        for other in [("ps1", 1, "w"), ("ps", 2, "w"), ("ps", 1, "u")] {
            assert!(unclaimed.take(other, None).unwrap().is_none());
        }
        assert_eq!(unclaimed.take(("ps", 1, "w"), None).unwrap().unwrap().bytes(), [3; 4]);
        assert!(unclaimed.take(("ps", 1, "w"), None).unwrap().is_none() && !unclaimed.is_empty());
        assert_eq!((unclaimed.forget(2).count(), unclaimed.forget(1).count(), unclaimed.is_empty()), (0, 1, true));
    }

    #[test]
    fn when_too_many_are_kept_only_they_are_received() {
        let mut unclaimed = Unclaimed::default();
        (0..UNCLAIMED_MAX).for_each(|key| unclaimed.keep(place(&key.to_string()), tensor(&[])));
        assert_eq!(unclaimed.take(("ps", 1, "w"), None).unwrap_err().code(), Code::ResourceExhausted);
        assert!(unclaimed.take(("ps", 1, "7"), None).unwrap().is_some());
        assert!(unclaimed.take(("ps", 1, "w"), None).unwrap().is_none());
    }
}
