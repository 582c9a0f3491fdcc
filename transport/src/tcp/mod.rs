//! The TCP link: non-blocking sockets polled by their shard; vectored writes straight from tensor memory, reads straight into
//! destinations.
//!
//! - Payloads up to 8 KiB are copied behind their frame, since an iovec costs more. Frames are read 16 KiB at a time, so that
//!   both ends work at once (window 256: 2.6 M tensors/s; 2.1 M with 64 KiB). A payload is read straight into its destination by
//!   `readv`, with the staging buffer behind it.
//! - With `fuse = "off"` each message has its own write; all but a turn's last use MSG_MORE, because a separate TCP segment
//!   costs about 4 µs on both sides together (raw: 0.24 M/s), and the write itself less than 1 µs.
//! - The retransmission timeout is bounded by 1 s (TCP_RTO_MAX_MS, Linux 6.15). Unbounded it doubles: after a cable was cut
//!   silently for 7 s, the link stayed dead for 6.7 s; with the bound, for 0.7 s.
//! - Tried over loopback and rejected: MSG_ZEROCOPY sends 4 MiB at 4.9 GB/s where plain `send` reaches 9.5 (the kernel copies
//!   anyway, and the notifications cost); SO_BUSY_POLL makes no difference (53 to 56 µs for a blocking 64 B round trip; there
//!   is no device to poll). Both should be measured again on a real network card.

mod authenticator;
mod dial;
mod info;
mod listen;
mod pipe;
mod retransmission;
mod socket;
mod staging;
mod stream;
mod tls;

pub use dial::{Dial, DialError, Dialed, Progress, call, resolve};
pub use info::{TcpCounts, TcpState};
pub use listen::{Answering, Call, CallError, listen};
pub use pipe::{CalledPipe, Caller, CallingPipe, OPENING_BYTES, Pipe};
pub use socket::{TcpLink, TcpSettings, congestion_of};
