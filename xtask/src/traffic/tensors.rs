//! What tasks exchange: what one sends to another in a tick of the clock, a pure function of the three that is known to both; and
//! tensors that say whose they are, and whose every byte follows from that.

use std::time::Duration;

use sealane::{Buffer, DType, Error, Task, Tensor, TensorMeta};

/// A tick, in microseconds: the step of sends and recvs.
pub(super) const TICK_US: u64 = 100_000;

/// The longest deadline of a call that is answered.
pub(crate) const TIMEOUT_MAX: Duration = Duration::from_secs(8);

/// Deadlines: most calls outlast a short trouble, some a long one.
const TIMEOUTS: [Duration; 3] = [Duration::from_secs(3), Duration::from_secs(3), TIMEOUT_MAX];

/// A send and its recv.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parcel {
    pub(super) key: u32,
    pub(super) bytes: usize,
    pub(super) timeout: Duration,
}

/// The parcels of a tick: none in most, three at most.
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

/// Scatters two numbers.
pub(super) fn mix(a: u64, b: u64) -> u64 {
    let mut mixed = (a ^ b.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^= mixed >> 29;
    mixed = mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 32)
}

/// Words at the front of a tensor: a mark, who and which process, which one, and how long.
const HEAD_WORDS: usize = 4;

/// The shortest tensor that has room for them.
pub(super) const HEAD_BYTES: usize = HEAD_WORDS * 8;

/// What a tensor is for; part of its mark, so that none is taken for another kind's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Sent = 1,
    Published = 2,
    Pushed = 3,
    Row = 4,
}

/// Which tensor of its kind: a step or version or number, and a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label {
    pub(super) kind: Kind,
    pub(super) from: usize,
    pub(super) life: u32,
    pub(super) number: u64,
    pub(super) key: u32,
}

impl Label {
    pub(super) fn head(self, bytes: usize) -> [u64; HEAD_WORDS] {
        let mark = 0x5ea1_a9e0_0000_0000 | self.kind as u64;
        let who = (self.from as u64) << 32 | u64::from(self.life);
        [mark, who, self.number, u64::from(self.key) << 32 | bytes as u64]
    }

    /// The tensor, in memory shared with the daemon where that has room, every other time.
    pub(super) fn tensor(self, task: &Task, bytes: usize) -> Result<Tensor, Error> {
        let meta = meta(self.life, bytes)?;
        let shared = if self.number.is_multiple_of(2) { task.alloc(bytes).ok() } else { None };
        let mut buffer = shared.unwrap_or_else(|| Buffer::from_vec(vec![0; bytes]));
        fill(&mut buffer, &self.head(bytes));
        Tensor::new(meta, buffer)
    }
}

/// Bytes, or, where there are none, a shape that tells the process.
fn meta(life: u32, bytes: usize) -> Result<TensorMeta, Error> {
    match bytes {
        0 => TensorMeta::new(DType::U8, &[0, u64::from(life) + 1]),
        _ => TensorMeta::new(DType::U8, &[bytes as u64]),
    }
}

/// Bytes that follow from the head: a different sequence for each tensor.
pub(super) fn fill(bytes: &mut [u8], head: &[u64; HEAD_WORDS]) {
    for (index, chunk) in bytes.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&word(head, index).to_le_bytes()[..chunk.len()]);
    }
}

fn word(head: &[u64; HEAD_WORDS], index: usize) -> u64 {
    let seed = head[1] ^ head[2].rotate_left(21) ^ head[3].rotate_left(42);
    match head.get(index) {
        Some(&word) => word,
        None => (seed ^ index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15),
    }
}

/// What a tensor of `wanted` but its process (and, of a publication, its version) says of those, if every byte is right.
pub(super) fn read(tensor: &Tensor, wanted: Label, bytes: usize) -> Result<Label, String> {
    let (shape, data) = (tensor.shape(), tensor.bytes());
    if data.len() != bytes {
        return Err(format!("{} bytes instead of {bytes}", data.len()));
    }
    if bytes == 0 {
        let life = shape.get(1).and_then(|&life| u32::try_from(life).ok()?.checked_sub(1));
        return life.map(|life| Label { life, ..wanted }).ok_or_else(|| format!("shape {shape:?}"));
    }
    read_bytes(data, wanted)
}

/// [`read`] of bytes, of which there are some.
pub(super) fn read_bytes(data: &[u8], wanted: Label) -> Result<Label, String> {
    let bytes = data.len();
    let mut head = [0; HEAD_WORDS];
    for (word, chunk) in head.iter_mut().zip(data.chunks_exact(8)) {
        *word = u64::from_le_bytes(chunk.try_into().expect("eight bytes"));
    }
    let number = if wanted.kind == Kind::Sent { wanted.number } else { head[2] };
    let label = Label { life: head[1] as u32, number, ..wanted };
    if head != label.head(bytes) {
        return Err(format!("it begins with {head:x?} instead of {:x?}", label.head(bytes)));
    }
    let wrong =
        data.chunks(8).enumerate().find(|(index, chunk)| **chunk != word(&head, *index).to_le_bytes()[..chunk.len()]);
    match wrong {
        Some((index, _)) => Err(format!("it is another tensor from byte {} of {bytes} on", 8 * index)),
        None => Ok(label),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LABEL: Label = Label { kind: Kind::Sent, from: 3, life: 2, number: 77, key: 5 };

    fn tensor(label: Label, bytes: usize, flip: Option<usize>) -> Tensor {
        let mut data = vec![0; bytes];
        fill(&mut data, &label.head(bytes));
        if let Some(flip) = flip {
            data[flip] ^= 1;
        }
        Tensor::new(meta(label.life, bytes).unwrap(), Buffer::from_vec(data)).unwrap()
    }

    #[test]
    fn a_tensor_tells_its_process() {
        for bytes in [0, HEAD_BYTES, 64, 1001] {
            let wanted = Label { life: 0, ..LABEL };
            assert_eq!(read(&tensor(LABEL, bytes, None), wanted, bytes), Ok(LABEL), "{bytes}");
        }
    }

    #[test]
    fn any_other_bit_is_seen() {
        for flip in [0, 8, 15, 16, 24, HEAD_BYTES, 1000] {
            // The process may be any, but then every byte that follows is another.
            assert!(read(&tensor(LABEL, 1001, Some(flip)), LABEL, 1001).is_err(), "{flip}");
        }
        for other in [Label { kind: Kind::Pushed, ..LABEL }, Label { from: 4, ..LABEL }, Label { key: 6, ..LABEL }] {
            assert!(read(&tensor(other, 64, None), LABEL, 64).is_err(), "{other:?}");
        }
        assert!(read(&tensor(LABEL, 64, None), LABEL, 65).is_err());
    }

    #[test]
    fn all_sizes_come_to_pass() {
        let mut sizes: Vec<usize> = (0..2000).flat_map(|tick| parcels(0, 1, tick)).map(|parcel| parcel.bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        assert_eq!(sizes.len(), 6, "{sizes:?}");
    }

    #[test]
    fn both_directions_differ() {
        let of = |from, to| (0..100).map(move |tick| parcels(from, to, tick).count()).collect::<Vec<_>>();
        assert_ne!(of(0, 1), of(1, 0));
    }
}
