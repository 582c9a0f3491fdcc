//! What the raw consumer and producer need of a link, and how long they wait for it; and both such links: a TCP connection,
//! spinning or blocking, and two rings of bytes in one thread, the bare operation of a link that stays in memory, where a byte is
//! copied into a ring by one side and out of it by the other.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::producer::RawProducer;
use crate::error::BenchError;
use crate::limits::{IDLE_PASSES_A_LOOK, RING_BYTES, STALL_LIMIT};

pub(super) const NAME: &str = "raw";

/// Two streams of bytes, one each way.
pub(in crate::systems) trait Channel {
    /// Takes some bytes of `source`; 0 means that there is no room now.
    fn send(&mut self, source: &[u8]) -> io::Result<usize>;

    /// Fills some bytes of `target`, 0 when nothing is there now; the end is an error.
    fn receive(&mut self, target: &mut [u8]) -> io::Result<usize>;

    /// As `send`, from several places in turn.
    fn send_vectored(&mut self, sources: &[IoSlice<'_>]) -> io::Result<usize> {
        sources.first().map_or(Ok(0), |source| self.send(source))
    }

    /// As `receive`, to several places in turn.
    fn receive_vectored(&mut self, targets: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        targets.first_mut().map_or(Ok(0), |target| self.receive(target))
    }

    /// Called when nothing moved: where both sides share a thread, the other side's turn.
    fn idle(&mut self) -> io::Result<()>;
}

/// Sends all of `source`.
pub(super) fn send_all(channel: &mut impl Channel, mut source: &[u8]) -> io::Result<()> {
    let mut patience = Patience::default();
    while !source.is_empty() {
        let sent = channel.send(source)?;
        source = &source[sent..];
        patience.passed(channel, sent)?;
    }
    Ok(())
}

/// Fills all of `target`.
pub(super) fn receive_exact(channel: &mut impl Channel, target: &mut [u8]) -> io::Result<()> {
    let mut patience = Patience::default();
    let mut filled = 0;
    while filled < target.len() {
        let received = channel.receive(&mut target[filled..])?;
        filled += received;
        patience.passed(channel, received)?;
    }
    Ok(())
}

/// Ends a spinning loop on a link that moves nothing for `STALL_LIMIT`, at next to no cost: the
/// clock is looked at once in thousands of idle passes.
#[derive(Debug, Default)]
pub(super) struct Patience {
    idle_passes: u32,
    idle_since: Option<Instant>,
}

impl Patience {
    /// Notes a pass in which `moved` bytes went either way.
    pub(super) fn passed(&mut self, channel: &mut impl Channel, moved: usize) -> io::Result<()> {
        if moved > 0 {
            *self = Self::default();
            return Ok(());
        }
        channel.idle()?;
        self.idle_pass()
    }

    /// Notes a pass in which nothing happened.
    #[inline]
    pub(super) fn idle_pass(&mut self) -> io::Result<()> {
        self.idle_passes = self.idle_passes.wrapping_add(1);
        if self.idle_passes.is_multiple_of(IDLE_PASSES_A_LOOK) && self.is_over(Instant::now()) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }

    fn is_over(&mut self, now: Instant) -> bool {
        let idle: Duration = now - *self.idle_since.get_or_insert(now);
        idle >= STALL_LIMIT
    }
}

/// Tells a link that stands still from one that failed.
pub(super) fn explained(failure: io::Error) -> BenchError {
    match failure.kind() {
        io::ErrorKind::TimedOut => BenchError::Stalled { system: NAME, waited: STALL_LIMIT },
        _ => BenchError::io("move bytes over the raw link")(failure),
    }
}

/// One end of a connection.
#[derive(Debug)]
pub(super) struct TcpChannel {
    stream: TcpStream,
    spins: bool,
}

impl TcpChannel {
    /// Takes the connection over; a blocking one waits at most `limit`.
    pub(super) fn new(stream: TcpStream, spins: bool, limit: Option<Duration>) -> Result<Self, BenchError> {
        stream
            .set_nonblocking(spins)
            .and_then(|()| stream.set_read_timeout(limit))
            .and_then(|()| stream.set_write_timeout(limit))
            .map_err(BenchError::io("prepare a raw socket"))?;
        Ok(Self { stream, spins })
    }

    /// A full or empty socket is no failure, unless it was waited for and the limit passed.
    fn moved(&self, outcome: io::Result<usize>) -> io::Result<usize> {
        match outcome.map_err(|error| (error.kind(), error)) {
            Ok(count) => Ok(count),
            Err((io::ErrorKind::Interrupted, _)) => Ok(0),
            Err((io::ErrorKind::WouldBlock, _)) if self.spins => Ok(0),
            Err((io::ErrorKind::WouldBlock, _)) => Err(io::ErrorKind::TimedOut.into()),
            Err((_, error)) => Err(error),
        }
    }
}

impl Channel for TcpChannel {
    fn send(&mut self, source: &[u8]) -> io::Result<usize> {
        let outcome = self.stream.write(source);
        self.moved(outcome)
    }

    fn receive(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let outcome = not_ended(self.stream.read(target));
        self.moved(outcome)
    }

    fn send_vectored(&mut self, sources: &[IoSlice<'_>]) -> io::Result<usize> {
        let outcome = self.stream.write_vectored(sources);
        self.moved(outcome)
    }

    fn receive_vectored(&mut self, targets: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let outcome = not_ended(self.stream.read_vectored(targets));
        self.moved(outcome)
    }

    fn idle(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn not_ended(outcome: io::Result<usize>) -> io::Result<usize> {
    match outcome {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        outcome => outcome,
    }
}

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
    use crate::systems::sockets;

    #[test]
    fn patience_ends_after_the_limit() {
        let mut patience = Patience::default();
        let now = Instant::now();
        assert!(!patience.is_over(now));
        assert!(!patience.is_over(now + STALL_LIMIT / 2));
        assert!(patience.is_over(now + STALL_LIMIT));
    }

    fn pair(spins: bool, limit: Option<Duration>) -> (TcpChannel, TcpChannel) {
        let listener = sockets::listen(None).expect("a port is free");
        let port = sockets::port(&listener).expect("bound");
        let near = sockets::connect(port, None).expect("listening");
        let far = sockets::accept(&listener).expect("connected");
        let channel = |stream| TcpChannel::new(stream, spins, limit).expect("open");
        (channel(near), channel(far))
    }

    #[test]
    fn an_empty_socket_is_no_failure_and_a_closed_one_is() {
        for spins in [true, false] {
            let (mut near, far) = pair(spins, None);
            let mut target = [0; 8];
            if spins {
                assert_eq!(near.receive(&mut target).expect("open"), 0);
            }
            drop(far);
            let error = loop {
                match near.receive(&mut target) {
                    Ok(0) => {}
                    Ok(_) => panic!("nothing was sent"),
                    Err(error) => break error,
                }
            };
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        }
    }

    #[test]
    fn a_blocking_channel_waits_no_longer_than_its_limit() {
        let (mut near, _far) = pair(false, Some(Duration::from_millis(1)));
        let error = near.receive(&mut [0; 8]).expect_err("nothing was sent");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn a_full_socket_takes_nothing_more() {
        let (mut near, _far) = pair(true, None);
        let chunk = vec![0; 1 << 20];
        while near.send(&chunk).expect("open") > 0 {}
    }

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
