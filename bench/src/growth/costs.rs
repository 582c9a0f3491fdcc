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

/// The costs without a calibration, fitted to measurements of a 2-core VM (AMD EPYC, loopback TCP, bbr): `--calibrate` with the results of
/// `bench ps` that bench/REPORT.md names, of three workloads by plan (3.5 MB in 406 tensors, 2 MB in 40, 102 MB in 214), whose steps a second it
/// foretells to 16 %. A write by itself could not be told from the messages in it.
///
/// | cost | value |
/// |---|---|
/// | byte, both ends | 0.148 ns: 6.7 GB/s, most of it the kernel's copies |
/// | message, worker | 1.05 µs, with its part of the writes |
/// | message, ps | 1.13 µs |
impl Default for Costs {
    fn default() -> Costs {
        let (write_ns, byte_ns) = (0.0, 0.148);
        Costs {
            worker: EndCosts { write_ns, message_ns: 1_050.0, byte_ns },
            ps: EndCosts { write_ns, message_ns: 1_130.0, byte_ns },
        }
    }
}
