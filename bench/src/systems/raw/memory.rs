//! Two rings of bytes in one thread: the bare operation of a link that stays in memory. A byte is
//! copied into a ring by one side and out of it by the other.

use std::io;

use super::channel::Channel;
use super::producer::RawProducer;
use crate::limits::RING_BYTES;

/// A bounded queue of bytes.
#[derive(Debug)]
struct ByteRing {
    bytes: Box<[u8]>,
    /// Bytes ever written and read; their difference is what the ring holds.
    written: usize,
    read: usize,
}

impl ByteRing {
    fn new() -> Self {
        Self { bytes: vec![0; RING_BYTES].into_boxed_slice(), written: 0, read: 0 }
    }

    fn write(&mut self, source: &[u8]) -> usize {
        let room = self.bytes.len() - (self.written - self.read);
        let count = source.len().min(room);
        let at = self.written % self.bytes.len();
        let before_the_seam = count.min(self.bytes.len() - at);
        self.bytes[at..at + before_the_seam].copy_from_slice(&source[..before_the_seam]);
        let after_the_seam = count - before_the_seam;
        self.bytes[..after_the_seam].copy_from_slice(&source[before_the_seam..count]);
        self.written += count;
        count
    }

    fn read(&mut self, target: &mut [u8]) -> usize {
        let count = target.len().min(self.written - self.read);
        let at = self.read % self.bytes.len();
        let before_the_seam = count.min(self.bytes.len() - at);
        target[..before_the_seam].copy_from_slice(&self.bytes[at..at + before_the_seam]);
        let after_the_seam = count - before_the_seam;
        target[before_the_seam..count].copy_from_slice(&self.bytes[..after_the_seam]);
        self.read += count;
        count
    }
}

/// The consumer's end of the rings; when nothing moves, the producer gets a turn.
#[derive(Debug)]
pub(super) struct MemoryChannel {
    to_producer: ByteRing,
    from_producer: ByteRing,
    producer: RawProducer,
}

impl MemoryChannel {
    pub(super) fn new(producer: RawProducer) -> Self {
        Self { to_producer: ByteRing::new(), from_producer: ByteRing::new(), producer }
    }
}

impl Channel for MemoryChannel {
    fn send(&mut self, source: &[u8]) -> io::Result<usize> {
        Ok(self.to_producer.write(source))
    }

    fn receive(&mut self, target: &mut [u8]) -> io::Result<usize> {
        Ok(self.from_producer.read(target))
    }

    fn idle(&mut self) -> io::Result<()> {
        let mut far = ProducerEnd { inbound: &mut self.to_producer, outbound: &mut self.from_producer };
        self.producer.turn(&mut far)
    }
}

/// The other end of the same rings, for the length of one turn.
struct ProducerEnd<'a> {
    inbound: &'a mut ByteRing,
    outbound: &'a mut ByteRing,
}

impl Channel for ProducerEnd<'_> {
    fn send(&mut self, source: &[u8]) -> io::Result<usize> {
        Ok(self.outbound.write(source))
    }

    fn receive(&mut self, target: &mut [u8]) -> io::Result<usize> {
        Ok(self.inbound.read(target))
    }

    fn idle(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_out_in_order_across_the_seam() {
        let mut ring = ByteRing::new();
        let mut target = vec![0; RING_BYTES];
        let (mut next_in, mut next_out) = (0_u8, 0_u8);
        for length in [1, 1000, RING_BYTES - 7, 64, RING_BYTES, 3].into_iter().cycle().take(60) {
            let source: Vec<u8> = (0..length)
                .map(|_| {
                    next_in = next_in.wrapping_add(1);
                    next_in
                })
                .collect();
            assert_eq!(ring.write(&source), length);
            assert_eq!(ring.read(&mut target), length);
            for byte in &target[..length] {
                next_out = next_out.wrapping_add(1);
                assert_eq!(*byte, next_out);
            }
        }
    }

    #[test]
    fn a_full_ring_takes_nothing_and_an_empty_one_gives_nothing() {
        let mut ring = ByteRing::new();
        assert_eq!(ring.read(&mut [0; 8]), 0);
        assert_eq!(ring.write(&vec![1; RING_BYTES + 5]), RING_BYTES);
        assert_eq!(ring.write(&[1]), 0);
        assert_eq!(ring.read(&mut [0; 8]), 8);
        assert_eq!(ring.write(&[1; 9]), 8);
    }
}
