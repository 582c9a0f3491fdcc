//! What a simulation is given: how many of everything, which ps holds which variables, and what each of the four messages of a
//! worker and a ps costs at every station that it passes, in ticks. Plain data, one entry a ps.

use sealane_transport::limits::{CHUNK_BYTES, GROUP_BYTES, INLINE_PAYLOAD_BYTES, PART_BYTES};
use serde::{Deserialize, Serialize};

use super::plan::Course;
use super::station::{TICKS_PER_SECOND, Tick, of_ns};
use crate::plan::{Size, cut, spread};

/// Bytes of a frame's header. Those of TCP and IP are not counted: a segment of a large message has 3 to 5 % of them.
const HEADER_BYTES: f64 = 32.0;

/// Steps that are counted of all workers together, where that many are taken anyway: their 99th percentile has 200 beyond it.
const STEPS_COUNTED: u64 = 20_000;
/// Fewest and most steps that are counted of each worker.
const STEPS_OF_EACH: (u64, u64) = (2, 200);
/// Steps of each worker before them: in the first all begin nearly together, which they would not after a while.
const WARM_UP_OF_EACH: u64 = 2;

/// What a worker sends a ps in a step, and hears of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// The request for the ps's variables, of one frame, and those for rows.
    Request,
    /// The variables, and the rows.
    Answer,
    /// The gradients.
    Push,
    /// That they were taken: one frame.
    Taken,
}

impl Kind {
    /// What is answered to it.
    pub(super) fn reply(self) -> Kind {
        match self {
            Kind::Request | Kind::Answer => Kind::Answer,
            Kind::Push | Kind::Taken => Kind::Taken,
        }
    }
}

/// What a message costs where it passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Leg {
    /// Each of the sender's shards that have a part in it.
    pub(super) send: Tick,
    /// The sender's NIC.
    pub(super) leave: Tick,
    /// The receiver's NIC.
    pub(super) arrive: Tick,
    /// Each of the receiver's shards that have a part in it.
    pub(super) receive: Tick,
}

/// The four messages of a worker and one ps, by [`Kind`].
type Legs = [Leg; 4];

/// The machines of one simulation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Machines {
    pub(super) size: Size,
    pub(super) workers_per_host: usize,
    pub(super) ps_per_host: usize,
    /// Shards of a worker host and of a ps host.
    pub(super) worker_shards: u32,
    pub(super) ps_shards: u32,
    /// Shards that a worker and a ps share pulls between, at most the worker host's.
    pub(super) stripes: u32,
    /// Gbit/s of a worker host's NIC and of a ps host's; infinite for none.
    pub(super) worker_nic_gbit: f64,
    pub(super) ps_nic_gbit: f64,
    /// Microseconds from NIC to NIC.
    pub(super) propagation_us: f64,
}

/// Everything that a simulation is given.
#[derive(Clone, Debug)]
pub(super) struct Scene {
    pub(super) machines: Machines,
    pub(super) course: Course,
    pub(super) propagation: Tick,
    pub(super) compute: Tick,
    /// Steps of all workers together that pass before counting begins, and that are counted: as many of each, since those of
    /// many workers end in waves.
    pub(super) warm_up: u64,
    pub(super) counted: u64,
    /// One entry for each ps that a worker has to do with.
    pub(super) legs: Vec<Legs>,
}

impl Scene {
    /// The scene of these machines and loads. A ps without a load is left out.
    pub(super) fn new(machines: Machines, course: Course, costs: &Costs, loads: &[Load]) -> Scene {
        let workers = machines.size.workers as u64;
        let (fewest, most) = STEPS_OF_EACH;
        let busy = loads.iter().filter(|load| load.pull.messages + load.push.messages > 0.0);
        Scene {
            propagation: of_ns(machines.propagation_us * 1e3),
            compute: of_ns(course.compute_us * 1e3),
            warm_up: WARM_UP_OF_EACH * workers,
            counted: STEPS_COUNTED.div_ceil(workers).clamp(fewest, most) * workers,
            legs: busy.map(|load| legs(&machines, costs, load)).collect(),
            machines,
            course,
        }
    }
}

impl Machines {
    /// Parts that a message goes in, each over other shards: pulls are striped, pushes are not.
    pub(super) fn stripes_of(&self, kind: Kind) -> u32 {
        match kind {
            Kind::Request | Kind::Answer => self.stripes.clamp(1, self.worker_shards),
            Kind::Push | Kind::Taken => 1,
        }
    }
}

fn legs(machines: &Machines, costs: &Costs, load: &Load) -> Legs {
    let from_worker = |kind: Kind, part: Part| {
        let stripes = f64::from(machines.stripes_of(kind));
        // Each has a frame at least.
        let messages = (part.messages / stripes).max(part.messages.min(1.0));
        let bytes = part.bytes as f64 / stripes + messages * HEADER_BYTES;
        Leg {
            send: of_ns(costs.worker.ns(messages, bytes) + costs.worker.row_ns * part.rows),
            leave: nic_time(bytes * stripes, machines.worker_nic_gbit),
            arrive: nic_time(bytes * stripes, machines.ps_nic_gbit),
            receive: of_ns(costs.ps.ns(messages, bytes) + costs.ps.row_ns * part.rows),
        }
    };
    let from_ps = |kind: Kind, part: Part| {
        let Leg { send, leave, arrive, receive } = from_worker(kind, part);
        Leg { send: receive, leave: arrive, arrive: leave, receive: send }
    };
    [
        from_worker(Kind::Request, load.request),
        from_ps(Kind::Answer, load.pull),
        from_worker(Kind::Push, load.push),
        from_ps(Kind::Taken, Part::CONTROL),
    ]
}

fn nic_time(bytes: f64, gbit_per_second: f64) -> Tick {
    (bytes * 8.0 / (gbit_per_second * 1e9) * TICKS_PER_SECOND).round() as Tick
}

/// The tensors of one worker's step, by their sizes in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Variables {
    /// What is pulled.
    pub pull: Vec<u64>,
    /// What is pushed.
    pub push: Vec<u64>,
}

/// What a worker's step moves between it and one ps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Load {
    pub(super) request: Part,
    pub(super) pull: Part,
    pub(super) push: Part,
}

/// One direction of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Part {
    pub(super) bytes: u64,
    /// Frames that carry them.
    pub(super) messages: f64,
    /// Rows of tables among them.
    pub(super) rows: f64,
}

impl Part {
    /// One frame without a tensor.
    pub(super) const CONTROL: Part = Part { bytes: 0, messages: 1.0, rows: 0.0 };

    /// With so much more.
    pub(super) fn and(self, messages: f64, bytes: f64, rows: f64) -> Part {
        Part { bytes: self.bytes + bytes.round() as u64, messages: self.messages + messages, rows: self.rows + rows }
    }
}

impl Load {
    /// All bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.request.bytes + self.pull.bytes + self.push.bytes
    }
}

impl Variables {
    /// The same bytes in slices of at most so many.
    pub(super) fn sliced(&self, bytes_max: u64) -> Variables {
        let slices = |sizes: &[u64]| {
            let of_one = |&bytes: &u64| {
                let slices = bytes.div_ceil(bytes_max).max(1);
                (0..slices).map(move |slice| bytes * (slice + 1) / slices - bytes * slice / slices)
            };
            sizes.iter().flat_map(of_one).collect()
        };
        Variables { pull: slices(&self.pull), push: slices(&self.push) }
    }

    /// The same bytes, with each variable that is large enough in so many slices.
    pub(super) fn cut(&self, slices: usize) -> Variables {
        let of_one = |&bytes: &u64| cut(bytes as usize, slices).map(|bytes| bytes as u64);
        let of_all = |sizes: &[u64]| sizes.iter().flat_map(of_one).collect();
        Variables { pull: of_all(&self.pull), push: of_all(&self.push) }
    }

    /// How many tensors there are of both kinds, in slices of at most so many bytes.
    pub(super) fn slices(&self, bytes_max: u64) -> u64 {
        self.pull.iter().chain(&self.push).map(|bytes| bytes.div_ceil(bytes_max).max(1)).sum()
    }

    /// What each of `ps` has to do, where the tensors are spread as in the experiment that is measured. A ps may get nothing:
    /// then nobody asks it.
    pub(super) fn over(&self, ps: usize) -> Vec<Load> {
        let pull = shared(&self.pull, ps, PART_BYTES as u64);
        let push = shared(&self.push, ps, GROUP_BYTES as u64);
        pull.into_iter().zip(push).map(|(pull, push)| Load { request: Part::CONTROL, pull, push }).collect()
    }
}

fn shared(sizes: &[u64], ps: usize, frame_bytes: u64) -> Vec<Part> {
    let part = |share: Vec<usize>| {
        let own: Vec<u64> = share.into_iter().map(|tensor| sizes[tensor]).collect();
        Part { bytes: own.iter().sum(), messages: frames(&own, frame_bytes) as f64, rows: 0.0 }
    };
    spread(sizes, ps).into_iter().map(part).collect()
}

/// The frames that Sealane sends tensors in: those of at most `INLINE_PAYLOAD_BYTES` share one until it is full, in their order,
/// larger ones have one for each chunk.
fn frames(sizes: &[u64], frame_bytes: u64) -> u64 {
    let (mut frames, mut filled) = (0, None);
    for &bytes in sizes {
        if bytes > INLINE_PAYLOAD_BYTES as u64 {
            (frames, filled) = (frames + bytes.div_ceil(CHUNK_BYTES as u64), None);
            continue;
        }
        filled = match filled {
            Some(before) if before + bytes <= frame_bytes => Some(before + bytes),
            _ => {
                frames += 1;
                Some(bytes)
            }
        };
    }
    frames
}

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
    /// Nanoseconds for each row of a table that is gathered, or put into its place, besides its bytes. 0 where it was not measured.
    #[serde(default)]
    pub row_ns: f64,
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
            worker: EndCosts { write_ns, message_ns: 1_050.0, byte_ns, row_ns: 0.0 },
            ps: EndCosts { write_ns, message_ns: 1_130.0, byte_ns, row_ns: 0.0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_as_many_as_sealane_sends() {
        // `bench fuse --tensors 1000 --size 64` counts 9 messages: the request, and these.
        assert_eq!(frames(&[64; 1_000], PART_BYTES as u64), 8);
        assert_eq!(frames(&[64, 9_000, 64], PART_BYTES as u64), 3);
        assert_eq!(frames(&[CHUNK_BYTES as u64 + 1], PART_BYTES as u64), 2);
        assert_eq!(frames(&[], PART_BYTES as u64), 0);
        assert_eq!(frames(&[0], PART_BYTES as u64), 1);
    }

    #[test]
    fn every_byte_has_one_holder_and_the_largest_tensor_decides() {
        let variables = Variables { pull: vec![100, 60, 50, 40, 10], push: vec![7; 6] };
        let loads = variables.over(3);
        assert_eq!(loads.iter().map(|load| load.pull.bytes).collect::<Vec<_>>(), [100, 70, 90]);
        assert_eq!(loads.iter().map(|load| load.push.bytes).collect::<Vec<_>>(), [14, 14, 14]);
        let loads = variables.over(8);
        assert_eq!(loads.iter().map(Load::bytes).sum::<u64>(), 260 + 42);
        assert_eq!(loads.iter().filter(|load| load.pull.messages == 0.0).count(), 3);
    }

    #[test]
    fn slices_keep_all_bytes() {
        let variables = Variables { pull: vec![100, 0, 7], push: vec![31] };
        let sliced = variables.sliced(10);
        assert_eq!(sliced.pull.iter().sum::<u64>(), 107);
        assert_eq!((sliced.pull.len(), sliced.push.len()), (12, 4));
        assert!(sliced.pull.iter().all(|bytes| *bytes <= 10));
        assert_eq!(variables.slices(10), 16);
        assert_eq!(variables.sliced(u64::MAX), variables);
    }
}
