//! A TCP connection as a raw channel, spinning or blocking.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::channel::Channel;
use crate::error::BenchError;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::systems::sockets;

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
}
