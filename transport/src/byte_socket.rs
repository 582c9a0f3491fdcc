//! A connected TCP socket for one stream of bytes in each direction, and nothing else. Never blocks; any thread.
//!
//! Two counts of the kernel tell what became of bytes. Bytes that it reports as *unacknowledged* may be lost with the
//! connection. All others that were sent are in the other host's kernel, where they can be read even after the connection
//! was reset. So a sender that keeps the unacknowledged bytes can send them again another way, once the other end says how
//! many it has.
#![allow(unsafe_code)]

use std::{
    ffi::c_int,
    io::{self, ErrorKind},
    net::Shutdown,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use socket2::{Socket, TcpKeepalive, Type};

/// After this much silence the kernel probes the other host; if it does not answer for as long again, it is gone.
const SILENCE: Duration = Duration::from_secs(10);

/// A connected TCP socket for the bytes of one stream.
#[derive(Debug)]
pub struct ByteSocket(Socket);

impl ByteSocket {
    /// Takes over a connected socket. The kernel will detect by itself that the other host is gone.
    ///
    /// # Errors
    /// It is not a connected stream socket, or the system refuses an option.
    pub fn new(socket: OwnedFd) -> io::Result<ByteSocket> {
        let socket = Socket::from(socket);
        if socket.r#type()? != Type::STREAM {
            return Err(ErrorKind::InvalidInput.into());
        }
        socket.peer_addr()?;
        socket.set_nonblocking(true)?;
        let keepalive = TcpKeepalive::new().with_time(SILENCE).with_interval(SILENCE / 4).with_retries(4);
        socket.set_tcp_keepalive(&keepalive)?;
        // A reader that pauses must not end the connection, which a user timeout would do. What is never acknowledged is sent
        // again for as long as the kernel does.
        socket.set_tcp_user_timeout(None)?;
        Ok(ByteSocket(socket))
    }

    /// Most bytes that the kernel buffers for sending.
    ///
    /// # Errors
    /// The system's error.
    pub fn send_buffer_bytes(&self) -> io::Result<usize> {
        self.0.send_buffer_size()
    }

    /// Limits the kernel's send buffer to `most` bytes.
    ///
    /// # Errors
    /// The system's error.
    pub fn limit_send_buffer(&self, most: usize) -> io::Result<()> {
        // The kernel doubles the value that it is given.
        if self.send_buffer_bytes()? > most { self.0.set_send_buffer_size(most / 2) } else { Ok(()) }
    }

    /// Gives the kernel bytes to send; returns how many it accepted, or `None` if it has no room.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn send(&self, bytes: &[u8]) -> io::Result<Option<usize>> {
        loop {
            return match self.0.send_with_flags(bytes, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) {
                Ok(count) => Ok(Some(count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
        }
    }

    /// Reads what has come; returns the number of bytes, `None` if nothing has come, 0 if the other end sends no more (or
    /// `into` is empty).
    ///
    /// # Errors
    /// The connection is broken, and everything that had come was read.
    pub fn receive(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            let received = nix::sys::socket::recv(self.0.as_raw_fd(), into, nix::sys::socket::MsgFlags::MSG_DONTWAIT);
            return match received.map_err(io::Error::from) {
                Ok(count) => Ok(Some(count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
        }
    }

    /// Ends sending: the other end can read up to here.
    pub fn finish(&self) {
        // A broken connection has ended anyway.
        let _ = self.0.shutdown(Shutdown::Write);
    }

    /// Number of bytes that were sent and not acknowledged by the other host's kernel.
    ///
    /// # Errors
    /// The system's error.
    pub fn unacknowledged(&self) -> io::Result<u64> {
        self.count(libc::TIOCOUTQ)
    }

    /// Number of bytes that have come and were not read.
    ///
    /// # Errors
    /// The system's error.
    pub fn unread(&self) -> io::Result<u64> {
        self.count(libc::FIONREAD)
    }

    fn count(&self, of: libc::Ioctl) -> io::Result<u64> {
        let mut count: c_int = 0;
        // SAFETY: the descriptor is open, and both requests write one int to where they are pointed, which outlives the call.
        let asked = unsafe { libc::ioctl(self.0.as_raw_fd(), of, &raw mut count) };
        if asked < 0 { Err(io::Error::last_os_error()) } else { Ok(u64::try_from(count).unwrap_or(0)) }
    }

    /// Ends both directions at once, like a broken connection: what comes from now on is not acknowledged.
    pub fn break_off(&self) {
        let _ = self.0.shutdown(Shutdown::Both);
    }

    /// True if the connection is gone: both directions have ended, or it broke.
    pub fn is_closed(&self) -> bool {
        /// TCP_CLOSE in the kernel's net/tcp_states.h.
        const CLOSED: u8 = 7;
        let (mut state, mut size): (u8, libc::socklen_t) = (0, 1);
        // SAFETY: the descriptor is open; the kernel writes as many bytes as `size` says: one, the first of its tcp_info, into `state`.
        let got = unsafe {
            let state: *mut u8 = &raw mut state;
            libc::getsockopt(self.0.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, state.cast(), &raw mut size)
        };
        got < 0 || state == CLOSED
    }
}

impl AsFd for ByteSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::{TcpListener, TcpStream},
        os::unix::net::UnixDatagram,
    };

    use super::*;

    fn pair() -> (ByteSocket, ByteSocket) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (one, other) = (TcpStream::connect(listener.local_addr().unwrap()).unwrap(), listener.accept().unwrap().0);
        (ByteSocket::new(one.into()).unwrap(), ByteSocket::new(other.into()).unwrap())
    }

    /// Waits until the kernel has seen what the other end did.
    #[track_caller]
    fn until(mut is_so: impl FnMut() -> bool) {
        let begun = std::time::Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < Duration::from_secs(20), "it does not come to that");
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_was_acknowledged_is_read_after_the_connection_was_reset() {
        let (writer, reader) = pair();
        let mut sent = 0;
        while let Some(count) = writer.send(&[7; 10_000]).unwrap() {
            sent += count as u64;
        }
        // What the reader's kernel has no room for is not acknowledged.
        until(|| writer.unacknowledged().unwrap() + reader.unread().unwrap() == sent);
        let (acknowledged, lost) = (reader.unread().unwrap(), writer.unacknowledged().unwrap());
        assert!(acknowledged > 0 && lost > 0);
        writer.0.set_linger(Some(std::time::Duration::ZERO)).unwrap();
        drop(writer);
        until(|| reader.send(&[0]).is_err());
        assert_eq!(reader.unread().unwrap(), acknowledged);
        let (mut read, mut into) = (0, [0; 4096]);
        // The failed write above has consumed the error: the reads end without one.
        while let Ok(Some(count @ 1..)) = reader.receive(&mut into) {
            read += count as u64;
        }
        assert_eq!((read, reader.is_closed()), (acknowledged, true));
    }

    #[test]
    fn an_end_that_breaks_off_reads_what_it_has_acknowledged_and_no_more() {
        let (writer, reader) = pair();
        assert_eq!(writer.send(b"abc").unwrap(), Some(3));
        until(|| reader.unread().unwrap() == 3 && writer.unacknowledged().unwrap() == 0);
        reader.break_off();
        assert!(reader.send(b"x").is_err());
        let mut sent = 0;
        until(|| match writer.send(b"defg") {
            Ok(count) => {
                sent += count.unwrap_or(0) as u64;
                false
            }
            Err(_) => true,
        });
        assert_eq!(writer.unacknowledged().unwrap().min(sent), sent);
        let mut into = [0; 8];
        assert_eq!((reader.receive(&mut into).unwrap(), &into[..3]), (Some(3), &b"abc"[..]));
        assert!(matches!(reader.receive(&mut into), Ok(Some(0)) | Err(_)) && reader.unread().unwrap() == 0);
    }

    #[test]
    fn an_end_that_has_finished_still_reads() {
        let (one, other) = pair();
        let mut into = [0; 8];
        assert_eq!(one.receive(&mut into).unwrap(), None);
        assert_eq!(one.send(b"abc").unwrap(), Some(3));
        one.finish();
        until(|| other.unread().unwrap() == 3);
        assert_eq!((other.receive(&mut into).unwrap(), &into[..3]), (Some(3), &b"abc"[..]));
        until(|| other.receive(&mut into).unwrap() == Some(0));
        assert_eq!(other.send(b"de").unwrap(), Some(2));
        until(|| one.unread().unwrap() == 2);
        assert_eq!((one.receive(&mut into).unwrap(), &into[..2]), (Some(2), &b"de"[..]));
        until(|| other.unacknowledged().unwrap() == 0);
        assert!(!one.is_closed() && !other.is_closed());
        other.finish();
        // The end that finishes last waits for nothing.
        until(|| other.is_closed() && other.unacknowledged().unwrap() == 0);
    }

    #[test]
    fn what_is_no_connected_stream_socket_is_refused() {
        assert!(ByteSocket::new(UnixDatagram::unbound().unwrap().into()).is_err());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(ByteSocket::new(listener.into()).is_err());
    }
}
