//! What the harness asks of anything that it measures.

use std::time::Duration;

use crate::error::BenchError;
use crate::rdma_device::RdmaDevice;
use crate::sample::Sample;

/// Something that moves tensors, set up once and then measured in turn with others.
///
/// The consumer's side runs in this process, on a thread that is pinned to the first CPU when
/// [`round`](System::round) is called; the producer's side is a process of its own on the second
/// CPU. Between its rounds a system must be quiet on both, since others are measured there.
pub trait System {
    /// The name in the report: `sealane`, `raw` or `grpc`.
    fn name(&self) -> &'static str;

    /// How it is run, as in `polling` or `unary`.
    fn variant(&self) -> String;

    /// The congestion control of its sockets, read back from one; `None` where there is no TCP.
    fn congestion(&self) -> Option<&str>;

    /// The RDMA device that it has opened; `None` where there is none.
    fn device(&self) -> Option<&RdmaDevice> {
        None
    }

    /// Wakes both sides for a round.
    ///
    /// # Errors
    /// Whatever keeps the system from running.
    fn resume(&mut self) -> Result<(), BenchError>;

    /// Measures for `length`, after a warm-up that is not counted (see
    /// [`RoundClock`](crate::RoundClock)), and leaves nothing in flight.
    ///
    /// # Errors
    /// A dead producer, a stall, a reply of the wrong length.
    fn round(&mut self, length: Duration) -> Result<Sample, BenchError>;

    /// Makes both sides quiet until the next [`resume`](System::resume).
    ///
    /// # Errors
    /// Whatever keeps the system from resting.
    fn rest(&mut self) -> Result<(), BenchError>;
}
