//! What a simulation is given: how many of everything, and what each of the four messages of a worker and a ps costs at every
//! station that it passes, in ticks. Plain data, one entry a ps.

use super::clock::{TICKS_PER_SECOND, Tick, of_ns};
use super::costs::Costs;
use super::shards::{Load, Part};
use super::size::Size;
use crate::plan::Mode;

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
    /// The request for the ps's variables, of one frame.
    Request,
    /// The variables.
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
    /// The sender's shard.
    pub(super) send: Tick,
    /// The sender's NIC.
    pub(super) leave: Tick,
    /// The receiver's NIC.
    pub(super) arrive: Tick,
    /// The receiver's shard.
    pub(super) receive: Tick,
}

/// The four messages of a worker and one ps, by [`Kind`].
pub(super) type Legs = [Leg; 4];

/// The machines of one simulation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Machines {
    pub(super) size: Size,
    pub(super) workers_per_host: u32,
    pub(super) ps_per_host: u32,
    /// Shards of a worker host and of a ps host.
    pub(super) worker_shards: u32,
    pub(super) ps_shards: u32,
    /// Gbit/s of a worker host's NIC and of a ps host's; infinite for none.
    pub(super) worker_nic_gbit: f64,
    pub(super) ps_nic_gbit: f64,
    /// Microseconds from NIC to NIC.
    pub(super) propagation_us: f64,
}

/// The steps of a simulation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Course {
    pub(super) mode: Mode,
    /// The mean of a step's compute time, in microseconds, and its sigma.
    pub(super) compute_us: f64,
    pub(super) sigma: f64,
    pub(super) seed: u64,
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
        let workers = u64::from(machines.size.workers);
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

fn legs(machines: &Machines, costs: &Costs, load: &Load) -> Legs {
    let control = Part { bytes: 0, messages: 1.0 };
    let from_worker = |part: Part| {
        let bytes = wire_bytes(part);
        Leg {
            send: of_ns(costs.worker.ns(part.messages, bytes) / f64::from(machines.worker_shards)),
            leave: nic_time(bytes, machines.worker_nic_gbit),
            arrive: nic_time(bytes, machines.ps_nic_gbit),
            receive: of_ns(costs.ps.ns(part.messages, bytes) / f64::from(machines.ps_shards)),
        }
    };
    let from_ps = |part: Part| {
        let Leg { send, leave, arrive, receive } = from_worker(part);
        Leg { send: receive, leave: arrive, arrive: leave, receive: send }
    };
    [from_worker(control), from_ps(load.pull), from_worker(load.push), from_ps(control)]
}

fn wire_bytes(part: Part) -> f64 {
    part.bytes as f64 + part.messages * HEADER_BYTES
}

fn nic_time(bytes: f64, gbit_per_second: f64) -> Tick {
    (bytes * 8.0 / (gbit_per_second * 1e9) * TICKS_PER_SECOND).round() as Tick
}
