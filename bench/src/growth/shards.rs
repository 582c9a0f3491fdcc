//! Which ps holds which variables, and how many messages its part of a step is. Pure.

use sealane_transport::limits::{CHUNK_BYTES, GROUP_BYTES, INLINE_PAYLOAD_BYTES, PART_BYTES};

use crate::plan::spread;

/// The tensors of one worker's step, by their sizes in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Variables {
    /// What is pulled.
    pub pull: Vec<u64>,
    /// What is pushed.
    pub push: Vec<u64>,
}

/// What a worker's step moves between it and one ps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Load {
    pub(super) pull: Part,
    pub(super) push: Part,
}

/// One direction of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Part {
    pub(super) bytes: u64,
    /// Frames that carry them.
    pub(super) messages: f64,
}

impl Load {
    /// All bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.pull.bytes + self.push.bytes
    }
}

impl Variables {
    /// The same bytes in slices of at most so many.
    pub(super) fn sliced(&self, bytes_max: u64) -> Variables {
        let slices = |sizes: &[u64]| {
            let of_one = |&bytes: &u64| {
                let slices = bytes.div_ceil(bytes_max).max(1);
                (0..slices).map(move |slice| bytes * (slice + 1) / slices - bytes * slice / slices)
            };
            sizes.iter().flat_map(of_one).collect()
        };
        Variables { pull: slices(&self.pull), push: slices(&self.push) }
    }

    /// How many tensors there are of both kinds, in slices of at most so many bytes.
    pub(super) fn slices(&self, bytes_max: u64) -> u64 {
        self.pull.iter().chain(&self.push).map(|bytes| bytes.div_ceil(bytes_max).max(1)).sum()
    }

    /// What each of `ps` has to do, where the tensors are spread as in the experiment that is measured. A ps may get nothing:
    /// then nobody asks it.
    pub(super) fn over(&self, ps: usize) -> Vec<Load> {
        let pull = shared(&self.pull, ps, PART_BYTES as u64);
        let push = shared(&self.push, ps, GROUP_BYTES as u64);
        pull.into_iter().zip(push).map(|(pull, push)| Load { pull, push }).collect()
    }
}

fn shared(sizes: &[u64], ps: usize, frame_bytes: u64) -> Vec<Part> {
    let part = |share: Vec<usize>| {
        let own: Vec<u64> = share.into_iter().map(|tensor| sizes[tensor]).collect();
        Part { bytes: own.iter().sum(), messages: frames(&own, frame_bytes) as f64 }
    };
    spread(sizes, ps).into_iter().map(part).collect()
}

/// The frames that Sealane sends tensors in: those of at most `INLINE_PAYLOAD_BYTES` share one until it is full, in their order,
/// larger ones have one for each chunk.
fn frames(sizes: &[u64], frame_bytes: u64) -> u64 {
    let (mut frames, mut filled) = (0, None);
    for &bytes in sizes {
        if bytes > INLINE_PAYLOAD_BYTES as u64 {
            (frames, filled) = (frames + bytes.div_ceil(CHUNK_BYTES as u64), None);
            continue;
        }
        filled = match filled {
            Some(before) if before + bytes <= frame_bytes => Some(before + bytes),
            _ => {
                frames += 1;
                Some(bytes)
            }
        };
    }
    frames
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_as_many_as_sealane_sends() {
        // `bench fuse --tensors 1000 --size 64` counts 9 messages: the request, and these.
        assert_eq!(frames(&[64; 1_000], PART_BYTES as u64), 8);
        assert_eq!(frames(&[64, 9_000, 64], PART_BYTES as u64), 3);
        assert_eq!(frames(&[CHUNK_BYTES as u64 + 1], PART_BYTES as u64), 2);
        assert_eq!(frames(&[], PART_BYTES as u64), 0);
        assert_eq!(frames(&[0], PART_BYTES as u64), 1);
    }

    #[test]
    fn every_byte_has_one_holder_and_the_largest_tensor_decides() {
        let variables = Variables { pull: vec![100, 60, 50, 40, 10], push: vec![7; 6] };
        let loads = variables.over(3);
        assert_eq!(loads.iter().map(|load| load.pull.bytes).collect::<Vec<_>>(), [100, 70, 90]);
        assert_eq!(loads.iter().map(|load| load.push.bytes).collect::<Vec<_>>(), [14, 14, 14]);
        let loads = variables.over(8);
        assert_eq!(loads.iter().map(Load::bytes).sum::<u64>(), 260 + 42);
        assert_eq!(loads.iter().filter(|load| load.pull.messages == 0.0).count(), 3);
    }

    #[test]
    fn slices_keep_all_bytes() {
        let variables = Variables { pull: vec![100, 0, 7], push: vec![31] };
        let sliced = variables.sliced(10);
        assert_eq!(sliced.pull.iter().sum::<u64>(), 107);
        assert_eq!((sliced.pull.len(), sliced.push.len()), (12, 4));
        assert!(sliced.pull.iter().all(|bytes| *bytes <= 10));
        assert_eq!(variables.slices(10), 16);
        assert_eq!(variables.sliced(u64::MAX), variables);
    }
}
