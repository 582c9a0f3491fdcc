//! How both processes divide their registered memory. Pure; both compute it from the plan.

use crate::limits::{FUSED_BYTES_MAX, REQUEST_BYTES};
use crate::plan::{Bench, Fuse, Plan};

/// SENDs that a window is divided into, so that the next is under way when one has been answered.
const SENDS_A_WINDOW: usize = 4;

/// RDMA WRITEs that are outstanding at least: with one the path would be empty while it is acknowledged.
const WRITES_MIN: usize = 2;

/// Areas begin at multiples of this, so that none shares a cache line with another.
const ALIGNMENT: usize = 64;

/// Whose memory it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Consumer,
    Producer,
}

/// The areas, one behind the other: what is sent or written, receive buffers, and where the peer writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Areas {
    /// Bytes of the longest SEND or WRITE.
    pub(super) out_bytes: usize,
    /// Receive buffers.
    pub(super) slots: usize,
    pub(super) slot_bytes: usize,
    /// Bytes that the peer writes to.
    pub(super) place_bytes: usize,
}

/// Tensors of one SEND at most.
pub(super) fn tensors_a_send(plan: &Plan) -> usize {
    match plan.fuse {
        Fuse::Off => 1,
        Fuse::Turn | Fuse::Receive | Fuse::ReceiveWaitAll | Fuse::Plan | Fuse::Push => {
            let fitting = FUSED_BYTES_MAX / plan.size_bytes.max(REQUEST_BYTES);
            fitting.clamp(1, plan.window.div_ceil(SENDS_A_WINDOW))
        }
    }
}

/// RDMA WRITEs that are outstanding at once.
pub(super) fn writes_outstanding(plan: &Plan) -> usize {
    plan.window.max(WRITES_MIN)
}

impl Areas {
    pub(super) fn of(plan: &Plan, side: Side) -> Self {
        let none = Self { out_bytes: 0, slots: 0, slot_bytes: 0, place_bytes: 0 };
        match plan.bench {
            Bench::Latency | Bench::Rate => {
                let tensors = tensors_a_send(plan);
                let (requests, answers) = (tensors * REQUEST_BYTES, tensors * plan.size_bytes);
                let (out_bytes, slot_bytes) = match side {
                    Side::Consumer => (requests, answers),
                    Side::Producer => (answers, requests),
                };
                // One more than can be under way: an answer may leave before its request's buffer is posted again.
                Self { out_bytes, slots: plan.window.div_ceil(tensors) + 1, slot_bytes, ..none }
            }
            // The consumer reads one byte back.
            Bench::Bandwidth if side == Side::Consumer => Self { out_bytes: plan.size_bytes, place_bytes: 1, ..none },
            Bench::Bandwidth => Self { place_bytes: plan.size_bytes * writes_outstanding(plan), ..none },
            Bench::Fuse => {
                let step = plan.step.iter().sum();
                let (out_bytes, place_bytes) = match side {
                    Side::Consumer => (REQUEST_BYTES, step),
                    Side::Producer => (step, 0),
                };
                Self { out_bytes, slots: 2, slot_bytes: REQUEST_BYTES, place_bytes }
            }
            none => none.is_measured_elsewhere(),
        }
    }

    /// Where a receive buffer begins.
    pub(super) fn slot(&self, slot: usize) -> usize {
        self.out_bytes.next_multiple_of(ALIGNMENT) + slot * self.slot_bytes.next_multiple_of(ALIGNMENT)
    }

    /// Where the peer's bytes begin.
    pub(super) fn place(&self) -> usize {
        self.slot(self.slots)
    }

    /// All of it; never nothing, which no device would register.
    pub(super) fn bytes(&self) -> usize {
        (self.place() + self.place_bytes).max(ALIGNMENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_divided_into_a_few_sends() {
        let rate = |window, size_bytes, fuse| Plan { window, size_bytes, fuse, ..Plan::new(Bench::Rate) };
        assert_eq!(tensors_a_send(&rate(256, 64, Fuse::Turn)), 64);
        assert_eq!(tensors_a_send(&rate(256, 64, Fuse::Off)), 1);
        assert_eq!(tensors_a_send(&rate(1, 64, Fuse::Turn)), 1);
        assert_eq!(tensors_a_send(&rate(256, 100_000, Fuse::Turn)), 2);
        assert_eq!(tensors_a_send(&rate(256, 1 << 20, Fuse::Turn)), 1);
        let areas = Areas::of(&rate(256, 64, Fuse::Turn), Side::Consumer);
        assert_eq!((areas.slots, areas.slot_bytes, areas.out_bytes), (5, 4096, 4096));
    }

    #[test]
    fn areas_do_not_overlap_and_hold_what_the_peer_needs() {
        for bench in [Bench::Latency, Bench::Rate, Bench::Bandwidth, Bench::Fuse] {
            let plan = Plan { size_bytes: 100, ..Plan::new(bench) };
            let (consumer, producer) = (Areas::of(&plan, Side::Consumer), Areas::of(&plan, Side::Producer));
            for areas in [consumer, producer] {
                assert!(areas.slot(0) >= areas.out_bytes && areas.place() >= areas.slot(0));
                assert!(areas.bytes() >= areas.place() + areas.place_bytes && areas.bytes() > 0);
            }
            assert_eq!(consumer.slots, producer.slots);
            match bench {
                Bench::Bandwidth => assert_eq!(producer.place_bytes, 2 * consumer.out_bytes),
                Bench::Fuse => assert_eq!(producer.out_bytes, consumer.place_bytes),
                _ => assert_eq!((consumer.out_bytes, consumer.slot_bytes), (producer.slot_bytes, producer.out_bytes)),
            }
        }
    }
}
