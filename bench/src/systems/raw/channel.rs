//! The interface that both ends of the bare operation need of a link, and how long they wait for it; and two such links: a TCP
//! connection, spinning or blocking, and two queues of bytes in one thread. The latter are the bare operation of a link that stays
//! in memory: one side copies a byte into a queue, and the other copies it out.

use std::collections::VecDeque;
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

    /// Fills some bytes of `target`; 0 means that nothing is there now, and the end is an error.
    fn receive(&mut self, target: &mut [u8]) -> io::Result<usize>;

    /// As `send`, from several places in turn.
    fn send_vectored(&mut self, sources: &[IoSlice<'_>]) -> io::Result<usize> {
        sources.first().map_or(Ok(0), |source| self.send(source))
    }

    /// As `receive`, to several places in turn.
    fn receive_vectored(&mut self, targets: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        targets.first_mut().map_or(Ok(0), |target| self.receive(target))
    }

    /// Like [`Client::resume`](crate::system::Client::resume) and [`rest`](crate::system::Client::rest) of its user.
    fn resume(&mut self) {}
    fn rest(&mut self) {}

    /// Called when nothing moved: if both sides share a thread, the other side gets its turn.
    fn idle(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(super) fn send_all(channel: &mut impl Channel, mut source: &[u8]) -> io::Result<()> {
    let mut patience = Patience::default();
    while !source.is_empty() {
        let sent = channel.send(source)?;
        source = &source[sent..];
        patience.passed(channel, sent)?;
    }
    Ok(())
}

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

/// Ends a spinning loop on a link that moves nothing for `STALL_LIMIT`, at next to no cost: the clock is read once in thousands of
/// idle passes.
#[derive(Debug, Default)]
pub(super) struct Patience {
    idle_passes: u32,
    idle_since: Option<Instant>,
}

impl Patience {
    /// Records a pass in which `moved` bytes went either way.
    pub(super) fn passed(&mut self, channel: &mut impl Channel, moved: usize) -> io::Result<()> {
        if moved > 0 {
            *self = Self::default();
            return Ok(());
        }
        channel.idle()?;
        self.idle_pass()
    }

    /// Records a pass in which nothing happened.
    #[inline]
    pub(super) fn idle_pass(&mut self) -> io::Result<()> {
        self.idle_passes = self.idle_passes.wrapping_add(1);
        if self.idle_passes.is_multiple_of(IDLE_PASSES_A_LOOK) { self.look() } else { Ok(()) }
    }

    /// Like [`idle_pass`](Self::idle_pass), but reads the clock.
    pub(super) fn look(&mut self) -> io::Result<()> {
        let since = self.idle_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= STALL_LIMIT { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) }
    }
}

/// Distinguishes a link that is stalled from one that failed.
pub(super) fn explained(failure: io::Error) -> BenchError {
    match failure.kind() {
        io::ErrorKind::TimedOut => BenchError::Stalled { system: NAME, waited: STALL_LIMIT },
        _ => BenchError::io("move bytes over the raw link")(failure),
    }
}

#[derive(Debug)]
pub(super) struct TcpChannel {
    stream: TcpStream,
    spins: bool,
}

impl TcpChannel {
    /// Takes over the connection; a blocking one waits at most `limit`.
    pub(super) fn new(stream: TcpStream, spins: bool, limit: Option<Duration>) -> Result<Self, BenchError> {
        stream
            .set_nonblocking(spins)
            .and_then(|()| stream.set_read_timeout(limit))
            .and_then(|()| stream.set_write_timeout(limit))
            .map_err(BenchError::io("prepare a raw socket"))?;
        Ok(Self { stream, spins })
    }

    /// A full or empty socket is no failure, unless it was waited for and the limit has passed.
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
}

fn not_ended(outcome: io::Result<usize>) -> io::Result<usize> {
    match outcome {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        outcome => outcome,
    }
}

/// One end of two queues of bytes, each of at most `RING_BYTES`.
struct Queues<'a> {
    outbound: &'a mut VecDeque<u8>,
    inbound: &'a mut VecDeque<u8>,
}

impl Channel for Queues<'_> {
    fn send(&mut self, source: &[u8]) -> io::Result<usize> {
        let count = source.len().min(RING_BYTES - self.outbound.len());
        self.outbound.write(&source[..count])
    }

    fn receive(&mut self, target: &mut [u8]) -> io::Result<usize> {
        self.inbound.read(target)
    }
}

/// The consumer's end of the queues; if nothing moves, the producer gets a turn.
#[derive(Debug)]
pub(super) struct MemoryChannel {
    to_producer: VecDeque<u8>,
    from_producer: VecDeque<u8>,
    producer: RawProducer,
}

impl MemoryChannel {
    pub(super) fn new(producer: RawProducer) -> Self {
        let queue = || VecDeque::with_capacity(RING_BYTES);
        Self { to_producer: queue(), from_producer: queue(), producer }
    }
}

impl Channel for MemoryChannel {
    fn send(&mut self, source: &[u8]) -> io::Result<usize> {
        Queues { outbound: &mut self.to_producer, inbound: &mut self.from_producer }.send(source)
    }

    fn receive(&mut self, target: &mut [u8]) -> io::Result<usize> {
        self.from_producer.read(target)
    }

    fn idle(&mut self) -> io::Result<()> {
        let mut far = Queues { outbound: &mut self.from_producer, inbound: &mut self.to_producer };
        self.producer.turn(&mut far)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::Hosts;
    use crate::systems::sockets;

    #[test]
    fn a_socket_that_is_empty_full_late_or_closed_says_so() {
        for (spins, limit) in [(true, None), (false, Some(Duration::from_millis(1)))] {
            let listener = sockets::listen(Hosts::default().producer, None).expect("a port is free");
            let near = sockets::connect(listener.local_addr().expect("bound"), None).expect("listening");
            let far = sockets::accept(&listener, Hosts::default()).expect("connected");
            let mut near = TcpChannel::new(near, spins, limit).expect("open");
            match near.receive(&mut [0; 8]) {
                Ok(count) => assert!(spins && count == 0),
                Err(error) => assert!(!spins && error.kind() == io::ErrorKind::TimedOut, "{error}"),
            }
            let chunk = vec![0; 1 << 20];
            while near.send(&chunk).unwrap_or(0) > 0 {}
            drop(far);
            let error = loop {
                match near.receive(&mut [0; 8]) {
                    Ok(0) => {}
                    Ok(_) => panic!("nothing was sent"),
                    Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
                    Err(error) => break error,
                }
            };
            assert!(super::super::is_end(&error), "{error}");
        }
    }
}
