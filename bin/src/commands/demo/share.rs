//! A task's share of the workload: which tensors it sends to whom, and which it receives from whom. Tensor number `i`
//! belongs to ps number `i` modulo their count. Holds the memory of all of them, reused every step.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use sealane_fusion::{Buffer, Tensor};

use super::exchange::{Offer, Wanted};
use super::pattern::{Author, Pattern};
use super::protocol::{Job, Part, task_name};
use crate::workload::{TensorSpec, Workload};

/// The step in which a task that is told so flips a bit: not the first, so that all has moved once.
const FLIP_STEP: i64 = 1;

/// What one task sends and receives.
pub(super) struct Share {
    author: Author,
    /// The tasks of the other part, by number.
    peers: Vec<String>,
    outgoing: Vec<Outgoing>,
    /// By the number of the peer that it comes from.
    incoming: Vec<Vec<Incoming>>,
    flip_bit: bool,
}

/// A tensor that goes to some peers, who share its memory.
struct Outgoing {
    spec: TensorSpec,
    number: usize,
    to: Range<usize>,
    /// Empty while the bytes are being made.
    contents: Bytes,
}

/// A tensor that comes from a peer, and the memory that takes it.
struct Incoming {
    spec: TensorSpec,
    number: usize,
    author: Author,
    arrived: Option<Tensor>,
    memory: Vec<u8>,
}

impl Share {
    /// The share of the task of `job`. Takes the memory of all its tensors, and touches every page of it.
    pub(super) fn new(job: &Job, workload: &Workload) -> Share {
        let Job { part, index, workers, ps, .. } = *job;
        let owner = |number: usize| number % ps;
        let numbered = |specs: &[TensorSpec]| specs.iter().cloned().enumerate().collect::<Vec<_>>();
        let (pull, push) = (numbered(&workload.pull), numbered(&workload.push));
        let outgoing = |spec, number, to| Outgoing { spec, number, to, contents: Bytes::new() };
        let (author, peer_part, outgoing, incoming) = match part {
            Part::Ps => {
                let is_ours = |(number, _): &(usize, TensorSpec)| owner(*number) == index;
                let ours = pull.into_iter().filter(is_ours);
                let outgoing = ours.map(|(number, spec)| outgoing(spec, number, 0..workers)).collect();
                let gradients: Vec<_> = push.into_iter().filter(is_ours).collect();
                let from = |worker| gradients.iter().map(|one| Incoming::new(one, Author::Worker(worker))).collect();
                (Author::Ps, Part::Worker, outgoing, (0..workers).map(from).collect())
            }
            Part::Worker => {
                let to = |number| owner(number)..owner(number) + 1;
                let outgoing = push.into_iter().map(|(number, spec)| outgoing(spec, number, to(number))).collect();
                let from = |ps| {
                    let owned = pull.iter().filter(|(number, _)| owner(*number) == ps);
                    owned.map(|one| Incoming::new(one, Author::Ps)).collect()
                };
                (Author::Worker(index), Part::Ps, outgoing, (0..ps).map(from).collect())
            }
        };
        let peers = match peer_part {
            Part::Ps => ps,
            Part::Worker => workers,
        };
        let peers = (0..peers).map(|index| task_name(peer_part, index)).collect();
        Share { author, peers, outgoing, incoming, flip_bit: job.flip_bit }
    }

    /// The tasks of the other part, by number.
    pub(super) fn peers(&self) -> &[String] {
        &self.peers
    }

    /// Makes all that is sent in a step, in place where nobody holds the last step's memory any more.
    pub(super) fn fill(&mut self, step: i64) {
        let mut flips = if self.flip_bit && step == FLIP_STEP { 1 } else { 0 };
        for outgoing in &mut self.outgoing {
            let len = outgoing.spec.bytes() as usize;
            let mut memory = match std::mem::take(&mut outgoing.contents).try_into_mut() {
                Ok(memory) if memory.len() == len => memory,
                _ => BytesMut::zeroed(len),
            };
            Pattern::new(self.author, outgoing.number, step).fill(&mut memory);
            if flips > 0 && !memory.is_empty() {
                memory[len / 2] ^= 1;
                flips -= 1;
            }
            outgoing.contents = memory.freeze();
        }
    }

    /// What goes to a peer in this step.
    pub(super) fn offers_to(&self, peer: usize) -> Vec<Offer> {
        let to_peer = self.outgoing.iter().filter(|outgoing| outgoing.to.contains(&peer));
        to_peer
            .map(|outgoing| {
                let tensor = Tensor::new(outgoing.spec.meta().clone(), outgoing.contents.clone());
                let tensor = tensor.expect("the memory is as long as the tensor");
                Offer { key: outgoing.spec.name().clone(), tensor }
            })
            .collect()
    }

    /// Lends the memory for what comes from a peer.
    pub(super) fn wanted_from(&mut self, peer: usize) -> Vec<Wanted> {
        let lend = |incoming: &mut Incoming| Wanted {
            key: incoming.spec.name().clone(),
            destination: Buffer::from_vec(std::mem::take(&mut incoming.memory)),
        };
        self.incoming[peer].iter_mut().map(lend).collect()
    }

    /// Takes what came from a peer, in the order in which it was wanted.
    pub(super) fn arrived_from(&mut self, peer: usize, tensors: Vec<Tensor>) -> u64 {
        let mut bytes = 0;
        for (incoming, tensor) in self.incoming[peer].iter_mut().zip(tensors) {
            bytes += tensor.bytes().len() as u64;
            incoming.arrived = Some(tensor);
        }
        bytes
    }

    /// Compares type, shape and every byte of all that arrived in a step with what its sender should have sent, and
    /// takes the memory back. Gives the tensors and bytes compared.
    ///
    /// # Errors
    /// The first difference, with its place.
    pub(super) fn verify(&mut self, step: i64) -> Result<(u64, u64), String> {
        let (mut tensors, mut bytes) = (0, 0);
        for (peer, incoming) in self.peers.iter().zip(&mut self.incoming) {
            for incoming in incoming {
                let place = || format!("{} from {peer} in step {step}", incoming.spec.name());
                let Some(tensor) = incoming.arrived.take() else {
                    return Err(format!("{} did not arrive", place()));
                };
                if tensor.meta() != incoming.spec.meta() {
                    return Err(format!("{} is {:?}, not {:?}", place(), tensor.meta(), incoming.spec.meta()));
                }
                Pattern::new(incoming.author, incoming.number, step).verify(tensor.bytes()).map_err(|difference| {
                    let (offset, found, expected) = (difference.offset, difference.found, difference.expected);
                    format!("byte {offset} of {} is {found:#04x}, not {expected:#04x}", place())
                })?;
                (tensors, bytes) = (tensors + 1, bytes + incoming.spec.bytes());
                incoming.memory = tensor.into_buffer().into_vec().unwrap_or_else(|in_slab| in_slab.to_vec());
            }
        }
        Ok((tensors, bytes))
    }
}

impl Incoming {
    fn new((number, spec): &(usize, TensorSpec), author: Author) -> Incoming {
        // Zeroed memory comes page by page when it is first written: written here, it costs no transfer anything.
        let mut memory = vec![0; spec.bytes() as usize];
        memory.fill(0xa5);
        Incoming { spec: spec.clone(), number: *number, author, arrived: None, memory }
    }
}

/// Bytes that all tasks together hold for a workload.
pub(super) fn memory_bytes(workload: &Workload, workers: usize) -> u64 {
    let workers = workers as u64;
    let (pull, push) = (workload.pull_bytes(), workload.push_bytes());
    // On all ps: the parameters once and the gradients of each worker. On each worker: both.
    pull.saturating_mul(1 + workers).saturating_add(push.saturating_mul(2 * workers))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealane_fusion::DType;

    const TEXT: &str =
        r#"{"tensors": [{"name": "a", "shape": [3]}, {"name": "b", "shape": [0]}, {"name": "c", "shape": [5]}]}"#;

    fn share(part: Part, index: usize, flip_bit: bool) -> Share {
        let workload = TEXT.to_owned();
        let job = Job { part, index, workers: 2, ps: 2, workload, pin: false, flip_bit };
        Share::new(&job, &Workload::parse(TEXT, "test").unwrap())
    }

    /// Moves what `from` offers to peer number `to_number` as a transfer would: into the receiver's memory.
    fn carry(from: &Share, to_number: usize, to: &mut Share, from_number: usize) {
        let offers = from.offers_to(to_number);
        let wanted = to.wanted_from(from_number);
        let keys: Vec<_> = wanted.iter().map(|wanted| wanted.key.clone()).collect();
        assert_eq!(keys, offers.iter().map(|offer| offer.key.clone()).collect::<Vec<_>>());
        let land = |(wanted, offer): (Wanted, Offer)| {
            let mut memory = wanted.destination;
            memory.copy_from_slice(offer.tensor.bytes());
            Tensor::new(offer.tensor.meta().clone(), memory).unwrap()
        };
        let tensors = wanted.into_iter().zip(offers).map(land).collect();
        to.arrived_from(from_number, tensors);
    }

    #[test]
    fn what_every_task_sends_is_what_its_peers_expect_step_after_step() {
        let mut ps = [share(Part::Ps, 0, false), share(Part::Ps, 1, false)];
        let mut workers = [share(Part::Worker, 0, false), share(Part::Worker, 1, false)];
        assert_eq!(ps[0].peers(), ["worker0:2222", "worker1:2222"]);
        assert_eq!(workers[0].peers(), ["ps0:2222", "ps1:2222"]);
        for step in 0..3 {
            ps.iter_mut().chain(&mut workers).for_each(|share| share.fill(step));
            for (p, ps) in ps.iter_mut().enumerate() {
                for (w, worker) in workers.iter_mut().enumerate() {
                    carry(ps, w, worker, p);
                    carry(worker, p, ps, w);
                }
            }
            assert_eq!(workers[1].verify(step), Ok((3, 32)));
            assert_eq!(workers[0].verify(step), Ok((3, 32)));
            // Tensors a and c of two workers, and b of two workers.
            assert_eq!(ps[0].verify(step), Ok((4, 64)));
            assert_eq!(ps[1].verify(step), Ok((2, 0)));
        }
    }

    #[test]
    fn whatever_is_wrong_is_found() {
        let (mut ps, mut worker) = (share(Part::Ps, 0, true), share(Part::Worker, 0, false));
        assert_eq!(worker.verify(0), Err("a from ps0:2222 in step 0 did not arrive".to_owned()));
        ps.fill(FLIP_STEP);
        carry(&ps, 0, &mut worker, 0);
        let error = worker.verify(FLIP_STEP).unwrap_err();
        assert!(error.starts_with("byte 6 of a from ps0:2222 in step 1 is 0x"), "{error}");
        let other = Tensor::from_elements(&[3], &[0_i32; 3]).unwrap();
        worker.arrived_from(0, vec![other, Tensor::dead(DType::F32)]);
        assert_eq!(worker.verify(2), Err("a from ps0:2222 in step 2 is i32[3], not f32[3]".to_owned()));
    }

    #[test]
    fn memory_is_counted_for_all_tasks() {
        let workload = Workload::parse(TEXT, "test").unwrap();
        assert_eq!(memory_bytes(&workload, 2), 32 * (1 + 2) + 32 * 4);
    }
}
