//! Sealane's fusion of sends and recvs: tensors, the rendezvous where they meet, and the engine that moves them.
//!
//! Start with [`Engine`]: give it an endpoint map and the tasks it serves, and call `send` and `recv` from any thread,
//! or run code on a shard.

#![deny(unsafe_code)]

mod engine;
pub mod metrics;
pub mod node;
mod queue;
pub mod rendezvous;
mod shelf;

#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use engine::fuzzing;
pub use engine::{
    Acceptor, ClientEnds, ClientId, Engine, EngineSettings, LocalEngine, LocalPair, LocalPlan, LocalPulling,
    LocalReceiving, LocalReceivingMany, LocalSending, LocalTask, PLAINTEXT_REFUSED, Plan, PlanPulling, Portion,
    Publishing, Pulling, PullingMany, Receiving, ReceivingMany, Sending, StartError, Task, Verbs,
};
pub use node::{CallerCounters, Counters, Fuse};
pub use queue::{AcceptOptions, AcceptQueue, Accepted, AcceptingMany};
pub use sealane_runtime::Buffer;
pub use sealane_transport::authentication::{Authentication, TlsFiles};
pub use sealane_transport::endpoint_map::EndpointMap;
pub use sealane_transport::tensor::{DType, Element, Shape, Tensor, TensorMeta, TypeCode};
pub use sealane_transport::{
    Code, Error, Keys, Operation, Pulled, RecvOptions, RecvOutcome, SendOptions, SendOutcome, Tray, Unreceived,
};
