//! What a message costs each end. Plain data; the defaults are measured, and `calibration` measures others.

use serde::{Deserialize, Serialize};

/// CPU time that one end of a session pays, the same for what it sends and for what it receives: measurements of whole steps do
/// not tell the two apart, since each end sends as often as it receives.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EndCosts {
    /// Nanoseconds for what leaves or arrives at once: the system call, and finding the session.
    pub write_ns: f64,
    /// Nanoseconds for each frame in it.
    pub message_ns: f64,
    /// Nanoseconds for each byte in it.
    pub byte_ns: f64,
}

impl EndCosts {
    /// What so many frames and bytes cost that leave or arrive at once.
    pub(super) fn ns(&self, messages: f64, bytes: f64) -> f64 {
        self.write_ns + self.message_ns * messages + self.byte_ns * bytes
    }
}

/// The costs of both ends.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// Of a worker's shard.
    pub worker: EndCosts,
    /// Of a ps's shard.
    pub ps: EndCosts,
}

/// The costs without a calibration, from the README's figures of a 2-core VM (AMD EPYC, loopback TCP, bbr):
///
/// | cost | value | from |
/// |---|---|---|
/// | byte, both ends | 0.11 ns | `bandwidth --size 4MiB`: 9.0 GB/s, one core at each end |
/// | message, both ends | 1.4 µs | `fuse --workload wide_deep_400`, plan: 0.57 ms for 131 messages and 3.5 MB |
/// | write, ps | 2.8 µs | `fanin --peers 1000 --fuse plan`: 1.9 M tensors/s in pulls of 16, of a request and an answer each |
/// | write, worker | 0.7 µs | `latency --size 64`: 8.3 µs for two messages, with two ends each |
///
/// All are taken as if the measured core had done nothing else, so they are the most that it can have been.
impl Default for Costs {
    fn default() -> Costs {
        let (message_ns, byte_ns) = (1_400.0, 0.11);
        Costs {
            worker: EndCosts { write_ns: 700.0, message_ns, byte_ns },
            ps: EndCosts { write_ns: 2_800.0, message_ns, byte_ns },
        }
    }
}
