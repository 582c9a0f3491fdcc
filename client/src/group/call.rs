//! What a rank calls. All ranks must call alike, so it is compared before their tensors are used.

use std::fmt;

use sealane_transport::{Error, shm::group::CALL_WORDS, tensor::DType};

use super::ReduceOp;

/// A collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    AllReduce = 1,
    Reduce,
    ReduceScatter,
    AllGather,
    Gather,
    Scatter,
    Broadcast,
    AllToAll,
    /// With parts of any length.
    AllToAllUneven,
    Barrier,
}

pub(super) const NAMES: [&str; 10] = [
    "all_reduce",
    "reduce",
    "reduce_scatter",
    "all_gather",
    "gather",
    "scatter",
    "broadcast",
    "all_to_all",
    "all_to_all of uneven parts",
    "barrier",
];

/// One call of a collective.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    pub(super) kind: Kind,
    /// Element type and operation, of calls that compute.
    pub(super) arithmetic: Option<(DType, ReduceOp)>,
    /// Bytes of each rank, or of each part; 0 if they may differ.
    pub(super) bytes: usize,
    /// The root, of calls to or from one rank.
    pub(super) root: Option<usize>,
}

impl Call {
    /// The call in words, with its number in the group and a digest of the calls before: calls that nobody compares, as no
    /// rank reads another, are compared by the next.
    pub(super) fn words(&self, number: u32, before: u64) -> [u64; CALL_WORDS] {
        let arithmetic = self.arithmetic.map_or(0, |(dtype, op)| {
            u64::from(dtype.code as u8) | u64::from(dtype.bits) << 8 | u64::from(dtype.lanes) << 16 | (op as u64) << 32
        });
        let root = self.root.map_or(0, |root| root as u64 + 1);
        [u64::from(number), self.kind as u64, arithmetic, self.bytes as u64, root, before, 0, 0]
    }
}

/// A digest of a call and those before it.
pub(super) fn digest(call: &[u64; CALL_WORDS]) -> u64 {
    // FNV-1a, by words: it is no defence, but differs for calls that differ.
    call.iter()
        .fold(0xcbf2_9ce4_8422_2325, |digest, word| (digest ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(29))
}

/// A rank's call in words, which may contain anything.
pub(super) struct Told(pub(super) [u64; CALL_WORDS]);

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [number, kind, arithmetic, bytes, root, ..] = self.0;
        let name = usize::try_from(kind).ok().and_then(|kind| NAMES.get(kind.wrapping_sub(1)));
        let Some(name) = name else { return f.write_str("nothing that is known here") };
        write!(f, "{name} (call {number}")?;
        if kind != Kind::Barrier as u64 && kind != Kind::AllToAllUneven as u64 {
            write!(f, ", {bytes} bytes")?;
        }
        let [code, bits, ..] = arithmetic.to_le_bytes();
        if let Ok(dtype) = DType::from_numbers(code, bits, (arithmetic >> 16) as u16)
            && let Some(op) = ReduceOp::ALL.get((arithmetic >> 32).wrapping_sub(1) as usize)
        {
            write!(f, ", {} of {dtype}", op.name())?;
        }
        if let Some(root) = root.checked_sub(1) {
            write!(f, ", root {root}")?;
        }
        f.write_str(")")
    }
}

/// The error of ranks whose calls differ.
pub(super) fn differs((own, mine): (usize, Told), (rank, theirs): (usize, Told)) -> Error {
    let (mine, theirs) = (mine.to_string(), theirs.to_string());
    let before = if mine == theirs { ", and they called differently before" } else { "" };
    Error::invalid(format!(
        "the ranks of a group must make the same calls in the same order: rank {own} calls {mine}, rank {rank} calls \
         {theirs}{before}"
    ))
}
