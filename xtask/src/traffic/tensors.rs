//! What tasks exchange: what one sends to another in a tick of the clock, a pure function of the three that both know; and tensors
//! that carry a label, from which every byte follows.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};
use sealane::{Buffer, DType, Error, Task, Tensor, TensorMeta};

use super::ledger::Kind;

/// Duration of a tick, in microseconds: the step of sends and recvs.
pub(super) const TICK_US: u64 = 100_000;

/// The longest deadline of an answered call.
pub(crate) const TIMEOUT_MAX: Duration = Duration::from_secs(8);

/// Deadlines: most calls outlast a short fault, some a long one.
const TIMEOUTS: [Duration; 3] = [Duration::from_secs(3), Duration::from_secs(3), TIMEOUT_MAX];

/// A send and its recv.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parcel {
    pub(super) key: u32,
    pub(super) bytes: usize,
    pub(super) timeout: Duration,
}

/// The parcels of a tick: usually none, at most three.
pub(super) fn parcels(from: usize, to: usize, tick: u64) -> impl Iterator<Item = Parcel> {
    let fate = mix(mix(from as u64 + 1, to as u64 + 1), tick);
    let count = [1, 0, 2, 0, 3, 0, 1, 0][fate as usize % 8];
    (0..count).map(move |key| {
        let fate = mix(fate, u64::from(key));
        let bytes = match fate % 64 {
            0..8 => 0,
            8..34 => 64,
            34..50 => 8 * 1024,
            50..60 => 100 * 1024 + 7,
            60..63 => 600 * 1024 + 1,
            _ => 5 << 20,
        };
        Parcel { key, bytes, timeout: TIMEOUTS[(fate >> 8) as usize % TIMEOUTS.len()] }
    })
}

pub(super) fn mix(a: u64, b: u64) -> u64 {
    let mut mixed = (a ^ b.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^= mixed >> 29;
    mixed = mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 32)
}

/// Bytes of a label at the front of a tensor: the shortest tensor that has one.
pub(super) const HEAD_BYTES: usize = 32;

/// Identifies a tensor of its kind: the process of a task, a step, version or number, and a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label {
    pub(super) kind: Kind,
    pub(super) from: usize,
    pub(super) life: u32,
    pub(super) number: u64,
    pub(super) key: u32,
}

impl Label {
    /// For the first process of a task, to be compared with what arrives.
    pub(super) fn of(kind: Kind, from: usize, number: u64, key: u32) -> Label {
        Label { kind, from, life: 0, number, key }
    }

    /// `count` bytes: the label, and then bytes that follow from it, different for each label.
    pub(super) fn bytes(self, count: usize) -> Vec<u8> {
        let who = (self.from as u64) << 32 | u64::from(self.life);
        let head = [who, self.number, u64::from(self.key) << 8 | self.kind as u64, count as u64];
        let mut bytes: Vec<u8> = head.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.resize(count, 0);
        if let Some(rest) = bytes.get_mut(HEAD_BYTES..) {
            SmallRng::seed_from_u64(head.into_iter().fold(0, mix)).fill_bytes(rest);
        }
        bytes
    }

    /// The tensor, every other time in memory shared with the daemon if there is room. The shape of one without bytes contains the
    /// process.
    pub(super) fn tensor(self, task: &Task, count: usize) -> Result<Tensor, Error> {
        let shape = [count as u64, u64::from(self.life) + 1];
        let meta = TensorMeta::new(DType::U8, if count == 0 { &shape } else { &shape[..1] })?;
        let bytes = self.bytes(count);
        let shared = if self.number.is_multiple_of(2) { task.alloc(count).ok() } else { None };
        let buffer = match shared {
            Some(mut buffer) => {
                buffer.copy_from_slice(&bytes);
                buffer
            }
            None => Buffer::from_vec(bytes),
        };
        Tensor::new(meta, buffer)
    }

    /// The process in a tensor that should be this one (and, unless it was sent, its number), if every byte is right.
    pub(super) fn read(self, tensor: &Tensor, count: usize) -> Result<Label, String> {
        let (shape, bytes) = (tensor.shape(), tensor.bytes());
        if bytes.len() != count {
            return Err(format!("{} bytes instead of {count}", bytes.len()));
        }
        if count == 0 {
            let life = shape.get(1).and_then(|&life| u32::try_from(life).ok()?.checked_sub(1));
            return life.map(|life| Label { life, ..self }).ok_or_else(|| format!("shape {shape:?}"));
        }
        self.read_bytes(bytes)
    }

    /// Like `read`, for bytes; there must be some.
    pub(super) fn read_bytes(self, bytes: &[u8]) -> Result<Label, String> {
        let Some((head, _)) = bytes.split_first_chunk::<HEAD_BYTES>() else {
            return Err(format!("{} bytes have no label", bytes.len()));
        };
        let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
        let number = if self.kind == Kind::Send { self.number } else { word(8) };
        let label = Label { life: word(0) as u32, number, ..self };
        let wanted = label.bytes(bytes.len());
        if wanted == bytes {
            return Ok(label);
        }
        let wrong = wanted.iter().zip(bytes).position(|(wanted, came)| wanted != came);
        wrong.map_or(Ok(label), |at| Err(format!("it is another from byte {at} of {} on: {head:x?}", bytes.len())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_tells_its_process_and_any_other_bit_is_seen() {
        let label = Label { life: 2, ..Label::of(Kind::Send, 3, 77, 5) };
        let wanted = Label { life: 0, ..label };
        for count in [HEAD_BYTES, 64, 1001] {
            assert_eq!(wanted.read_bytes(&label.bytes(count)), Ok(label), "{count}");
        }
        for flip in [0, 8, 15, 16, 24, HEAD_BYTES, 1000] {
            let mut bytes = label.bytes(1001);
            bytes[flip] ^= 1;
            // The process may be any, but then every byte that follows is another.
            assert!(wanted.read_bytes(&bytes).is_err(), "{flip}");
        }
        for other in [Label { kind: Kind::Push, ..label }, Label { from: 4, ..label }, Label { key: 6, ..label }] {
            assert!(wanted.read_bytes(&other.bytes(64)).is_err(), "{other:?}");
        }
        assert!(wanted.read_bytes(&label.bytes(65)[..64]).is_err());
    }

    #[test]
    fn all_sizes_come_to_pass_and_both_directions_differ() {
        let sizes = |from, to| (0..2000).flat_map(move |tick| parcels(from, to, tick)).map(|parcel| parcel.bytes);
        assert_eq!(sizes(0, 1).collect::<std::collections::HashSet<_>>().len(), 6);
        assert!(!sizes(0, 1).eq(sizes(1, 0)));
    }
}
