//! Sealane's sends and recvs and their fusion: tensors, the rendezvous that matches them, and the engine that moves them.
//!
//! Start with [`Engine`]: give it an endpoint map and the tasks it serves, then call `send` and `recv` from any thread, or run
//! code on a shard.
//!
//! # How messages are fused
//! Three layers, each improving on the previous one (1000 tensors of 64 B per step over TCP; `sealane bench fuse`):
//!
//! 1. **Within a turn**, everything queued for a peer is sent in one write. Requests of one task to another share a frame, and so do small
//!    tensors, up to 4 KiB of them: an entry costs 18 or 22 bytes, a frame 32. Small tensors that are sent ahead of their requests share
//!    frames of up to 8 KiB, at 6 bytes and the key per entry. Bounded by bytes (`fusion.turn_bytes`), by large payloads
//!    (`fusion.turn_payloads`), and by the turn itself: nothing waits for later messages, except lone releases, for one turn, and recvs
//!    whose tensors usually come ahead, for up to 1 ms before they are requested.
//! 2. **A fused receive** issues many recvs at once. On the wire each is like a single recv, whose tensor comes ahead or is requested, so
//!    reconnecting, releasing and aborting work as usual. Available tensors arrive at once, the rest when they are sent.
//! 3. **A plan** names its keys once per link; the producer looks up their slots once. A pull is then 36 bytes. The producer
//!    copies bytes behind one header, 8 KiB per message, without a request, table entry, release or metadata per tensor. The
//!    consumer overwrites the tensors of the previous pull. A waiting pull holds only numbers: bytes are read from the
//!    published tensor when they are sent, so a peer that does not read costs nothing. Metadata has a stamp; if the peer does
//!    not have the current one, it is sent before the tensor, so a changed shape is not an error.
//!
//! # Published tensors and queues
//! A published tensor has a version that never decreases. A pull of `min_version` waits for slots that are not available yet.
//! It is a read without a release: after a reconnect it is repeated from the start, and only a restart of the peer ends it.
//! `publish` from any thread goes to every shard; large tensors are shared, not copied.
//!
//! A push stream is numbered and keeps each push until the other side says *taken*; the acceptor remembers the next number
//! across links, and so takes each push once, in order. Queues are bounded. A stream has credit for at most 1,024 tensors and
//! 16 MiB, less if many share a queue, and gets more only while the queue is not full. Granted credit does not count against
//! the queue; otherwise one idle pusher could hold all of it. When a queue loses its acceptor, arriving pushes are discarded
//! and sent again with the next grant; tensors that the queue had already taken go to the next acceptor first, in order.
//!
//! # Flow control and large tensors
//! Tensors sent to a peer and not released count against its credit in bytes (`transport.in_flight_bytes`), so a slow consumer
//! stops only its own producer. A link that accepts no data for 64 turns is left to epoll, so it costs its neighbors nothing.
//!
//! Tensors over `transport.chunk_bytes` (4 MiB) are sent in chunks, up to eight tensors interleaved, two chunks ahead of the
//! link: a ping or a 64 B tensor can pass in between. 16 tensors of 4 MiB take the same time whole and in chunks of 256 KiB to
//! 1 MiB (8.9 to 9.5 ms, reno), but one stream with two in flight is an eighth slower with chunks of 1 MiB.

#![deny(unsafe_code)]

mod deadlines;
mod engine;
mod limits;
pub mod metrics;
pub mod node;
pub mod presence;
mod queue;
pub mod rendezvous;

#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use engine::fuzzing;
pub use engine::{
    Acceptor, BURST_TENSOR_BYTES, Begun, Brought, ClientEnds, ClientId, Engine, EngineSettings, LaneEnd, LocalEngine,
    LocalPair, LocalPlan, LocalPulling, LocalReceiving, LocalReceivingBatch, LocalReceivingMany, LocalSending,
    LocalTask, LoopbackAddress, Measured, Plan, Portion, Prepared, ROUND_TRIP_BYTES, Receiving, Sending, SharedArena,
    StartError, Task, loopback_addresses,
};
pub use limits::LINK_KINDS_MAX;
pub use node::{CallerCounters, Counters, Fuse, KindCounters, ReceivedBatch};
pub use queue::{AcceptOptions, AcceptQueue, Accepted, AcceptedBatch, AcceptingAll, AcceptingMany};
pub use sealane_runtime::{Buffer, DeviceError, DeviceMemory, MemoryKind, VolatileSlice, VolatileSliceMut};
pub use sealane_transport::authentication::{Authentication, TlsFiles};
pub use sealane_transport::endpoint_map::EndpointMap;
pub use sealane_transport::tensor::{
    DType, Element, IntoTensor, Shape, Tensor, TensorBatch, TensorMeta, TensorView, TypeCode,
};
pub use sealane_transport::{
    Code, Error, Keys, Operation, PullBuffer, Pulled, RecvOptions, RecvOutcome, SendOptions, SendOutcome, Unreceived,
};
