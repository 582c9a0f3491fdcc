//! The TCP link: non-blocking sockets polled by their shard; vectored writes from where tensors lie, reads straight
//! to where they go.

mod dial;
mod door;
mod listen;
mod retransmission;
mod socket;
mod stream;
mod tls;

pub use dial::{Dial, DialError, Dialed, Progress, resolve};
pub use listen::{Answering, Call, CallError, listen};
pub use socket::{TcpLink, TcpSettings, congestion_of};
