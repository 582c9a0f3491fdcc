//! The TCP link: non-blocking sockets polled by their shard; vectored writes from where tensors lie, reads straight
//! to where they go.

mod dial;
mod listen;
mod socket;

pub use dial::{Dial, DialError, Dialed, Progress, resolve};
pub use listen::{Answering, Call, CallError, listen, reject};
pub use socket::{TcpLink, TcpSettings, congestion_of};
