//! A task's share of the workload: which tensors it sends to whom, and which it receives from whom. Tensor number `i`
//! belongs to ps number `i` modulo their count. Holds the memory of all of them, reused every step.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use sealane_fusion::{Buffer, Error, Tensor};

use super::pattern::{Author, Pattern};
use super::protocol::{Job, Part, task_name};
use crate::workload::{TensorSpec, Workload};

/// The step in which a task that is told so flips a bit: not the first, so that all has moved once.
const FLIP_STEP: i64 = 1;

/// A tensor for a peer, under its key.
type Offer = (Arc<str>, Tensor);
/// The key of a tensor from a peer, and the memory that is to take it.
type Wanted = (Arc<str>, Buffer);

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
    memory: Arc<Buffer>,
}

/// Memory of an outgoing tensor on its way to one peer.
struct Lent(Arc<Buffer>);

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// A tensor that comes from a peer, and the memory that takes it.
struct Incoming {
    spec: TensorSpec,
    number: usize,
    author: Author,
    arrived: Option<Tensor>,
    memory: Buffer,
}

impl Share {
    /// The share of the task of `job`, without memory.
    pub(super) fn new(job: &Job, workload: &Workload) -> Share {
        let Job { part, index, workers, ps, .. } = *job;
        let owner = |number: usize| number % ps;
        let numbered = |specs: &[TensorSpec]| specs.iter().cloned().enumerate().collect::<Vec<_>>();
        let (pull, push) = (numbered(&workload.pull), numbered(&workload.push));
        let outgoing = |spec, number, to| Outgoing { spec, number, to, memory: Arc::default() };
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

    /// The length of each tensor that memory is needed for.
    pub(super) fn lengths(&self) -> impl Iterator<Item = u64> {
        let incoming = self.incoming.iter().flatten().map(|incoming| incoming.spec.bytes());
        self.outgoing.iter().map(|outgoing| outgoing.spec.bytes()).chain(incoming)
    }

    /// Takes the memory of all tensors, and touches every page of it.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn take_memory(&mut self, alloc: impl Fn(usize) -> Result<Buffer, Error>) -> Result<(), Error> {
        for outgoing in &mut self.outgoing {
            outgoing.memory = Arc::new(alloc(outgoing.spec.bytes() as usize)?);
        }
        for incoming in self.incoming.iter_mut().flatten() {
            incoming.memory = alloc(incoming.spec.bytes() as usize)?;
            // Memory comes page by page when it is first written: written here, it costs no transfer anything.
            incoming.memory.fill(0xa5);
        }
        Ok(())
    }

    /// Makes all that is sent in a step, in place where nobody holds the last step's memory any more.
    ///
    /// # Errors
    /// Other memory is needed, and there is none.
    pub(super) fn fill(&mut self, step: i64, alloc: impl Fn(usize) -> Result<Buffer, Error>) -> Result<(), Error> {
        let mut flips = if self.flip_bit && step == FLIP_STEP { 1 } else { 0 };
        for outgoing in &mut self.outgoing {
            let len = outgoing.spec.bytes() as usize;
            if Arc::get_mut(&mut outgoing.memory).is_none() {
                outgoing.memory = Arc::new(alloc(len)?);
            }
            let memory = Arc::get_mut(&mut outgoing.memory).expect("looked at, or made, just now");
            Pattern::new(self.author, outgoing.number, step).fill(memory);
            if flips > 0 && !memory.is_empty() {
                memory[len / 2] ^= 1;
                flips -= 1;
            }
        }
        Ok(())
    }

    /// What goes to each peer in this step.
    pub(super) fn offers(&self) -> Vec<(String, Vec<Offer>)> {
        let offer = |outgoing: &Outgoing| {
            let bytes = Bytes::from_owner(Lent(Arc::clone(&outgoing.memory)));
            let tensor = Tensor::new(outgoing.spec.meta().clone(), bytes);
            (outgoing.spec.name().clone(), tensor.expect("the memory is as long as the tensor"))
        };
        let with = |(number, peer): (usize, &String)| {
            let to_peer = self.outgoing.iter().filter(|outgoing| outgoing.to.contains(&number));
            (peer.clone(), to_peer.map(offer).collect())
        };
        self.peers.iter().enumerate().map(with).collect()
    }

    /// Lends the memory for what comes from each peer.
    pub(super) fn wanted(&mut self) -> Vec<(String, std::vec::IntoIter<Wanted>)> {
        let lend = |incoming: &mut Incoming| (incoming.spec.name().clone(), std::mem::take(&mut incoming.memory));
        let from = self.peers.iter().zip(&mut self.incoming);
        from.map(|(peer, all)| (peer.clone(), all.iter_mut().map(lend).collect::<Vec<_>>().into_iter())).collect()
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
                incoming.memory = tensor.into_buffer();
            }
        }
        Ok((tensors, bytes))
    }
}

impl Incoming {
    fn new((number, spec): &(usize, TensorSpec), author: Author) -> Incoming {
        Incoming { spec: spec.clone(), number: *number, author, arrived: None, memory: Buffer::default() }
    }
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
        let mut share = Share::new(&job, &Workload::parse(TEXT, "test").unwrap());
        share.take_memory(alloc).unwrap();
        share
    }

    fn alloc(bytes: usize) -> Result<Buffer, Error> {
        Ok(Buffer::from_vec(vec![0; bytes]))
    }

    /// Moves what `senders` offer to their peer `to_number` as a transfer would: into the receiver's memory.
    fn carry(senders: &[Share], to_number: usize, to: &mut Share) {
        for (number, (from, (_, wanted))) in senders.iter().zip(to.wanted()).enumerate() {
            let (_, offers) = from.offers().swap_remove(to_number);
            let land = |((key, mut memory), (sent_key, tensor)): (Wanted, Offer)| {
                assert_eq!(key, sent_key);
                memory.copy_from_slice(tensor.bytes());
                Tensor::new(tensor.meta().clone(), memory).unwrap()
            };
            assert_eq!(wanted.len(), offers.len());
            let tensors = wanted.zip(offers).map(land).collect();
            to.arrived_from(number, tensors);
        }
    }

    #[test]
    fn what_every_task_sends_is_what_its_peers_expect_step_after_step() {
        let mut ps = [share(Part::Ps, 0, false), share(Part::Ps, 1, false)];
        let mut workers = [share(Part::Worker, 0, false), share(Part::Worker, 1, false)];
        let peers = |share: &Share| share.offers().into_iter().map(|(peer, _)| peer).collect::<Vec<_>>();
        assert_eq!(peers(&ps[0]), ["worker0:2222", "worker1:2222"]);
        assert_eq!(peers(&workers[0]), ["ps0:2222", "ps1:2222"]);
        for step in 0..3 {
            ps.iter_mut()
                .chain(&mut workers)
                .for_each(|share| share.fill(step, |_| panic!("memory is there")).unwrap());
            ps.iter_mut().enumerate().for_each(|(number, ps)| carry(&workers, number, ps));
            workers.iter_mut().enumerate().for_each(|(number, worker)| carry(&ps, number, worker));
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
        ps.fill(FLIP_STEP, alloc).unwrap();
        carry(&[ps], 0, &mut worker);
        let error = worker.verify(FLIP_STEP).unwrap_err();
        assert!(error.starts_with("byte 6 of a from ps0:2222 in step 1 is 0x"), "{error}");
        let other = Tensor::from_elements(&[3], &[0_i32; 3]).unwrap();
        worker.arrived_from(0, vec![other, Tensor::dead(DType::F32)]);
        assert_eq!(worker.verify(2), Err("a from ps0:2222 in step 2 is i32[3], not f32[3]".to_owned()));
    }

    #[test]
    fn memory_that_is_still_lent_is_left_alone() {
        let mut ps = share(Part::Ps, 0, false);
        ps.fill(0, alloc).unwrap();
        let lent = ps.offers();
        let before = lent[0].1[0].1.bytes().to_vec();
        let full = ps.fill(1, |_| Err(Error::full("memory", "there is none")));
        assert!(full.is_err());
        ps.fill(1, alloc).unwrap();
        assert_eq!(lent[0].1[0].1.bytes(), before);
        assert_ne!(ps.offers()[0].1[0].1.bytes(), before);
    }

    #[test]
    fn memory_is_needed_for_all_that_a_task_sends_and_receives() {
        // Tensors a and c to all workers, and a and c from each of two.
        assert_eq!(share(Part::Ps, 0, false).lengths().sum::<u64>(), 32 + 2 * 32);
        assert_eq!(share(Part::Worker, 0, false).lengths().sum::<u64>(), 32 + 32);
    }
}
