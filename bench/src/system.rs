//! What the harness asks of anything that it measures.

use std::time::Duration;

use crate::error::BenchError;
use crate::figures::Sample;
use crate::machine::RdmaDevice;
use crate::peer::{Peer, PeerJob, PeerProgram};

/// What a system does when it is measured.
pub trait Rounds {
    /// Measures for `length`, after a warm-up that is not counted (see
    /// [`RoundClock`](crate::RoundClock)), and leaves nothing in flight.
    ///
    /// # Errors
    /// A dead producer, a stall, a reply of the wrong length.
    fn round(&mut self, length: Duration) -> Result<Sample, BenchError>;

    /// Wakes this process's side for a round.
    fn resume(&mut self) {}

    /// Makes this process's side quiet until the next [`resume`](Self::resume).
    fn rest(&mut self) {}
}

/// Something that moves tensors, set up once and then measured in turn with others.
///
/// The consumer's side runs in this process, on a thread that is pinned to the first CPU when a round is measured; the
/// producer's side is a process of its own on the second CPU. Between its rounds a system must be quiet on both, since
/// others are measured there.
pub struct System {
    /// The name in the report: `sealane`, `raw`, `grpc`, `grpc-stream` or `open`.
    pub(crate) name: &'static str,
    /// How it is run, as in `polling` or `unary`.
    pub(crate) variant: String,
    /// The congestion control of its sockets, read back from one; `None` where there is no TCP.
    pub(crate) congestion: Option<String>,
    /// The RDMA device that it has opened; `None` where there is none.
    pub(crate) device: Option<RdmaDevice>,
    /// The producer's process, if it rests between rounds. Before the rounds: its end is what they would otherwise wait to
    /// tell a process that rests.
    peer: Option<Peer>,
    rounds: Box<dyn Rounds>,
}

impl System {
    /// A system without a socket, a device, or a producer that rests.
    pub fn new(name: &'static str, variant: impl Into<String>, rounds: impl Rounds + 'static) -> Self {
        let (variant, rounds) = (variant.into(), Box::new(rounds));
        Self { name, variant, congestion: None, device: None, peer: None, rounds }
    }

    /// A system with a producer's process, which rests as soon as `set_up` has what it needs of it. If it ends before, that is
    /// the failure.
    pub(crate) fn with_peer(
        job: &PeerJob,
        program: &PeerProgram,
        set_up: impl FnOnce(&Peer) -> Result<Self, BenchError>,
    ) -> Result<Self, BenchError> {
        let mut peer = Peer::start(program, job)?;
        let system = set_up(&peer).map_err(|failure| peer.blame(failure))?;
        peer.rest()?;
        Ok(Self { peer: Some(peer), ..system })
    }

    /// With the congestion control of its sockets.
    pub(crate) fn with_congestion(self, congestion: impl Into<Option<String>>) -> Self {
        Self { congestion: congestion.into(), ..self }
    }

    /// With its RDMA device.
    pub(crate) fn with_device(self, device: Option<RdmaDevice>) -> Self {
        Self { device, ..self }
    }

    /// Wakes both sides for a round.
    ///
    /// # Errors
    /// [`BenchError::PeerDied`] when the producer is gone.
    pub(crate) fn resume(&mut self) -> Result<(), BenchError> {
        self.rounds.resume();
        self.peer.as_mut().map_or(Ok(()), Peer::resume)
    }

    /// Measures a round.
    ///
    /// # Errors
    /// What [`Rounds::round`] says, or how the producer ended, if it did.
    pub(crate) fn round(&mut self, length: Duration) -> Result<Sample, BenchError> {
        self.rounds.round(length).map_err(|failure| match &mut self.peer {
            Some(peer) => peer.blame(failure),
            None => failure,
        })
    }

    /// Makes both sides quiet until the next [`resume`](Self::resume).
    ///
    /// # Errors
    /// [`BenchError::PeerDied`] when the producer is gone.
    pub(crate) fn rest(&mut self) -> Result<(), BenchError> {
        self.peer.as_mut().map_or(Ok(()), Peer::rest)?;
        self.rounds.rest();
        Ok(())
    }
}
