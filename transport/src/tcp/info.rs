//! The state of a TCP connection, as the kernel reports it: `TCP_INFO` in `linux/tcp.h`.
//!
//! Threads: any. Limits: three system calls.
#![allow(unsafe_code)]

use std::io;
use std::net::SocketAddr;
use std::ops::AddAssign;
use std::os::fd::AsRawFd;
use std::time::Duration;

use socket2::{SockAddr, Socket};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::congestion_of;

/// State of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpState {
    /// Address of this end.
    pub local: SocketAddr,
    /// Address of the other end.
    pub peer: SocketAddr,
    /// Congestion control, by its name in the kernel.
    pub congestion: String,
    /// Largest packet that the path is known to carry.
    pub mtu_bytes: u32,
    /// Bytes that congestion control permits in flight.
    pub congestion_window_bytes: u64,
    /// Bytes that the peer's receive buffer has room for.
    pub receive_window_bytes: u64,
    /// Counts since the connection was made.
    pub counts: TcpCounts,
}

/// What a connection has done in a period.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TcpCounts {
    /// Time with bytes to send or in flight.
    pub busy: Duration,
    /// Part of `busy` in which the peer's receive window stopped the sender.
    pub receive_window_limited: Duration,
    /// Part of `busy` in which the send buffer was full.
    pub send_buffer_limited: Duration,
    pub sent_bytes: u64,
    /// Part of `sent_bytes` that was sent again.
    pub resent_bytes: u64,
}

impl TcpCounts {
    /// Returns the counts of the period that began with `before`, counts of the same connection.
    pub fn since(&self, before: &TcpCounts) -> TcpCounts {
        TcpCounts {
            busy: self.busy.saturating_sub(before.busy),
            receive_window_limited: self.receive_window_limited.saturating_sub(before.receive_window_limited),
            send_buffer_limited: self.send_buffer_limited.saturating_sub(before.send_buffer_limited),
            sent_bytes: self.sent_bytes.saturating_sub(before.sent_bytes),
            resent_bytes: self.resent_bytes.saturating_sub(before.resent_bytes),
        }
    }
}

impl AddAssign for TcpCounts {
    fn add_assign(&mut self, more: TcpCounts) {
        self.busy += more.busy;
        self.receive_window_limited += more.receive_window_limited;
        self.send_buffer_limited += more.send_buffer_limited;
        self.sent_bytes += more.sent_bytes;
        self.resent_bytes += more.resent_bytes;
    }
}

/// The kernel's `struct tcp_info` up to `tcpi_snd_wnd` (Linux 5.4); fields that are not used are counted together.
#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct TcpInfo {
    state: [u8; 8],
    timeouts: [u32; 2],
    snd_mss: u32,
    counts: [u32; 10],
    pmtu: u32,
    round_trips: [u32; 4],
    snd_cwnd: u32,
    others: [u32; 5],
    pacing: [u64; 2],
    bytes: [u64; 2],
    segments: [u32; 6],
    delivery_rate: u64,
    busy_us: u64,
    rwnd_limited_us: u64,
    sndbuf_limited_us: u64,
    delivered: [u32; 2],
    bytes_sent: u64,
    bytes_retrans: u64,
    reordering: [u32; 3],
    snd_wnd: u32,
}

const _: () = assert!(
    std::mem::offset_of!(TcpInfo, pmtu) == 60
        && std::mem::offset_of!(TcpInfo, pacing) == 104
        && std::mem::offset_of!(TcpInfo, busy_us) == 168
        && size_of::<TcpInfo>() == 232,
    "the fields are where linux/tcp.h has them"
);

impl TcpState {
    /// Returns the state of a connected socket.
    ///
    /// # Errors
    /// The socket is not a TCP socket, or is not connected.
    pub(super) fn of(socket: &Socket) -> io::Result<TcpState> {
        let info = tcp_info(socket)?;
        let address = |address: SockAddr| address.as_socket().ok_or(io::ErrorKind::Unsupported);
        let (local, peer) = (address(socket.local_addr()?)?, address(socket.peer_addr()?)?);
        let counts = TcpCounts {
            busy: Duration::from_micros(info.busy_us),
            receive_window_limited: Duration::from_micros(info.rwnd_limited_us),
            send_buffer_limited: Duration::from_micros(info.sndbuf_limited_us),
            sent_bytes: info.bytes_sent,
            resent_bytes: info.bytes_retrans,
        };
        Ok(TcpState {
            local,
            peer,
            congestion: congestion_of(socket),
            mtu_bytes: info.pmtu,
            congestion_window_bytes: u64::from(info.snd_cwnd) * u64::from(info.snd_mss),
            receive_window_bytes: info.snd_wnd.into(),
            counts,
        })
    }
}

fn tcp_info(socket: &Socket) -> io::Result<TcpInfo> {
    let mut info = TcpInfo::read_from_bytes(&[0; size_of::<TcpInfo>()]).expect("zeros are valid");
    let mut size = size_of::<TcpInfo>() as libc::socklen_t;
    // SAFETY: the descriptor is open for the call; the kernel writes at most `size` bytes, the size of `info`, which is valid for
    // any bytes.
    let got = unsafe {
        let info: *mut TcpInfo = &raw mut info;
        libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, info.cast(), &raw mut size)
    };
    if got == 0 { Ok(info) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::*;

    #[test]
    fn state_shows_path_and_bytes_of_a_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut receiver, _) = listener.accept().unwrap();
        let local = sender.local_addr().unwrap();
        sender.write_all(&[1; 1000]).unwrap();
        receiver.read_exact(&mut [0; 1000]).unwrap();
        let state = TcpState::of(&sender.into()).unwrap();
        assert_eq!((state.local, state.peer), (local, listener.local_addr().unwrap()));
        assert_eq!((state.counts.sent_bytes, state.counts.resent_bytes), (1000, 0));
        assert!(!state.congestion.is_empty() && state.mtu_bytes >= 576, "{state:?}");
        assert!(state.congestion_window_bytes > 0 && state.receive_window_bytes > 0, "{state:?}");
    }

    #[test]
    fn state_of_another_socket_is_an_error() {
        assert!(TcpState::of(&UdpSocket::bind("127.0.0.1:0").unwrap().into()).is_err());
    }

    #[test]
    fn counts_of_a_period_are_differences() {
        let ms = Duration::from_millis;
        let before = TcpCounts { busy: ms(10), sent_bytes: 5, ..TcpCounts::default() };
        let after = TcpCounts { busy: ms(30), sent_bytes: 9, resent_bytes: 2, ..TcpCounts::default() };
        let mut total = after.since(&before);
        assert_eq!(total, TcpCounts { busy: ms(20), sent_bytes: 4, resent_bytes: 2, ..TcpCounts::default() });
        total += total;
        assert_eq!((total.busy, total.sent_bytes, total.resent_bytes), (ms(40), 8, 4));
    }
}
