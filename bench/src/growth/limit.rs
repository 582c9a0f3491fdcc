//! Where the first limit of a size lies, and what moves it: the same simulation again, with more of something.

use super::lookups::Asked;
use super::plan::{GrowthPlan, has_room};
use super::report::{FirstLimit, MovedBy, RowsOfSize, SessionBytes, SizeRow, StepTimes};
use super::scene::{Load, Machines, Scene};
use super::simulation::{Tally, simulate};
use crate::byte_count::format_bytes;
use crate::plan::Size;
use crate::spread::rounded;

/// A resource that works for so much of the time is the limit: queues before it are long, and grow fast with what is left.
const LIMIT_UTILISATION: f64 = 0.9;
/// Where none does, one that moves so much when it is doubled is the limit all the same, as in synchronous steps, where
/// sending and receiving take turns.
const LIMIT_FACTOR: f64 = 1.2;
/// Compute time of at least this share of a step is the limit where no resource is.
const COMPUTE_SHARE: f64 = 0.5;
/// A ps with so many times the mean of all bytes holds the others up: then slices are worth a trial.
const IMBALANCE_MIN: f64 = 1.25;
/// Slices of a ps's share, so that shares of slices are about equal.
const SLICES_A_PS: u64 = 2;

/// What a session holds at each of its ends, in bytes: what `bench idle --peers 1000` measured a peer at, 6.1 kB of resident memory.
pub(super) const SESSION_BYTES: u64 = 6_100;

/// The machines of a simulation, and how the variables are cut.
#[derive(Clone, Copy, Debug)]
struct Setup {
    machines: Machines,
    cut: Cut,
}

/// Slices that variables are cut into.
#[derive(Clone, Copy, Debug)]
enum Cut {
    None,
    /// Of at most so many bytes.
    Bytes(u64),
    /// So many, as `bench ps` cuts them.
    Count(usize),
}

impl Setup {
    fn of(plan: &GrowthPlan, size: Size) -> Setup {
        let machines = Machines {
            size,
            workers_per_host: plan.workers_per_host,
            ps_per_host: 1,
            worker_shards: plan.worker_shards,
            ps_shards: plan.ps_shards,
            stripes: plan.stripes,
            worker_nic_gbit: plan.nic_gbit_per_s,
            ps_nic_gbit: plan.nic_gbit_per_s,
            propagation_us: plan.propagation_us,
        };
        let cut = match (plan.slice_bytes, plan.slices) {
            (Some(bytes), _) => Cut::Bytes(bytes),
            (None, Some(count)) => Cut::Count(count),
            (None, None) => Cut::None,
        };
        Setup { machines, cut }
    }

    /// What each ps has of a step.
    fn loads(&self, plan: &GrowthPlan) -> Vec<Load> {
        let (ps, variables) = (self.machines.size.ps, &plan.variables);
        let mut loads = match self.cut {
            Cut::None => variables.over(ps),
            Cut::Bytes(bytes) => variables.sliced(bytes).over(ps),
            Cut::Count(count) => variables.cut(count).over(ps),
        };
        plan.lookups.add_to(&mut loads);
        loads
    }

    /// What pulls of rows are for the parameter servers, at so many steps a second of all workers.
    fn rows(&self, plan: &GrowthPlan, steps_per_s: f64) -> Option<RowsOfSize> {
        if plan.lookups.tables().is_empty() {
            return None;
        }
        let asked = plan.lookups.over(self.machines.size.ps);
        let of_all = |of: fn(&Asked) -> f64| asked.iter().map(of).sum::<f64>();
        let most = |of: fn(&Asked) -> f64| rounded(asked.iter().map(of).fold(0.0, f64::max) * steps_per_s);
        Some(RowsOfSize {
            rows_per_step: rounded(of_all(|asked| asked.rows)),
            requests_per_step: rounded(of_all(|asked| asked.requests)),
            requests_per_s_and_shard: rounded(most(|asked| asked.requests) / f64::from(self.machines.ps_shards)),
            request_bytes_per_s: most(|asked| asked.request_bytes),
            row_bytes_per_s: most(|asked| asked.row_bytes),
        })
    }

    /// The bytes of the ps that has the most, in those that each would have of an equal share.
    fn imbalance(&self, plan: &GrowthPlan) -> f64 {
        let loads = self.loads(plan);
        let bytes = || loads.iter().map(Load::bytes);
        bytes().max().unwrap_or(0) as f64 * self.machines.size.ps as f64 / bytes().sum::<u64>().max(1) as f64
    }

    fn simulate(&self, plan: &GrowthPlan) -> Tally {
        simulate(&Scene::new(self.machines, plan.course, &plan.costs(), &self.loads(plan)))
    }

    /// The setup with more of something, and what that is; `None` where it cannot be had, or would change nothing.
    fn with(&self, remedy: Remedy, plan: &GrowthPlan) -> Option<(Setup, String)> {
        let mut other = *self;
        let machines = &mut other.machines;
        let what = match remedy {
            Remedy::PsShards => {
                machines.ps_shards *= 2;
                format!("{} shards a ps", machines.ps_shards)
            }
            Remedy::PsNic => {
                machines.ps_nic_gbit *= 2.0;
                format!("{} Gbit/s a ps", machines.ps_nic_gbit)
            }
            Remedy::Ps => {
                machines.size.ps *= 2;
                has_room(machines.size).then(|| format!("{} ps", machines.size.ps))?
            }
            Remedy::Slices => {
                let bytes = plan.variables.pull.iter().sum::<u64>() / machines.size.ps as u64 / SLICES_A_PS;
                other.cut = Cut::Bytes(bytes.max(1));
                (self.imbalance(plan) >= IMBALANCE_MIN)
                    .then(|| format!("variables in slices of {}", format_bytes(bytes.max(1) as usize)))?
            }
            Remedy::WorkerShards => {
                machines.worker_shards *= 2;
                format!("{} shards a worker host", machines.worker_shards)
            }
            Remedy::WorkerNic => {
                machines.worker_nic_gbit *= 2.0;
                format!("{} Gbit/s a worker host", machines.worker_nic_gbit)
            }
            Remedy::WorkerHosts => {
                let before = machines.workers_per_host.min(machines.size.workers);
                machines.workers_per_host = before.div_ceil(2);
                (before > 1).then(|| format!("{} workers a host", machines.workers_per_host))?
            }
            Remedy::Propagation => {
                machines.propagation_us /= 2.0;
                (machines.propagation_us > 0.0).then(|| format!("{} µs of propagation", machines.propagation_us))?
            }
        };
        Some((other, what))
    }
}

/// A change of a setup, by which a limit may move.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Remedy {
    PsShards,
    PsNic,
    Ps,
    Slices,
    WorkerShards,
    WorkerNic,
    WorkerHosts,
    Propagation,
}

impl Remedy {
    /// What is tried against a limit; against [`FirstLimit::Latency`] each resource by itself, in the order of what it costs.
    fn against(limit: FirstLimit) -> &'static [Remedy] {
        match limit {
            FirstLimit::PsCpu => &[Remedy::PsShards, Remedy::Ps, Remedy::Slices],
            FirstLimit::PsNic => &[Remedy::PsNic, Remedy::Ps, Remedy::Slices],
            FirstLimit::WorkerCpu => &[Remedy::WorkerShards, Remedy::WorkerHosts],
            FirstLimit::WorkerNic => &[Remedy::WorkerNic, Remedy::WorkerHosts],
            FirstLimit::Latency => {
                &[Remedy::PsShards, Remedy::WorkerShards, Remedy::PsNic, Remedy::WorkerNic, Remedy::Propagation]
            }
            FirstLimit::Compute => &[],
        }
    }

    /// The resource of which there is more then.
    fn resource(self) -> FirstLimit {
        match self {
            Remedy::PsShards | Remedy::Ps | Remedy::Slices => FirstLimit::PsCpu,
            Remedy::PsNic => FirstLimit::PsNic,
            Remedy::WorkerShards | Remedy::WorkerHosts => FirstLimit::WorkerCpu,
            Remedy::WorkerNic => FirstLimit::WorkerNic,
            Remedy::Propagation => FirstLimit::Latency,
        }
    }
}

/// Simulates one size. `first` gives the steps a second and worker of the first size, unless this is it.
pub(super) fn measure(plan: &GrowthPlan, size: Size, first: Option<f64>) -> SizeRow {
    let setup = Setup::of(plan, size);
    let tally = setup.simulate(plan);
    let steps_per_s = tally.steps_per_second();
    let of_each = steps_per_s / size.workers as f64;
    let (first_limit, tried) = limit(plan, &setup, &tally);
    SizeRow {
        size,
        steps_per_s: rounded(steps_per_s),
        step_ms: StepTimes { p50: rounded(tally.step_ms(0.5)), p99: rounded(tally.step_ms(0.99)) },
        utilisation: tally.busiest,
        mean_utilisation: tally.mean,
        efficiency: rounded(of_each / first.unwrap_or(of_each)),
        imbalance: rounded(setup.imbalance(plan)),
        session_bytes: SessionBytes {
            ps: size.workers as u64 * SESSION_BYTES,
            worker_host: (size.workers.min(plan.workers_per_host) * size.ps) as u64 * SESSION_BYTES,
        },
        rows: setup.rows(plan, steps_per_s),
        first_limit,
        moved_by: best(&tried).map(|(_, moved)| moved.clone()),
        tried: tried.into_iter().map(|(_, moved)| moved).collect(),
    }
}

type Trial = (Remedy, MovedBy);

fn best(tried: &[Trial]) -> Option<&Trial> {
    // Of equal ones the first, which costs least.
    tried.iter().rev().max_by(|(_, one), (_, other)| one.factor.total_cmp(&other.factor))
}

fn limit(plan: &GrowthPlan, setup: &Setup, tally: &Tally) -> (FirstLimit, Vec<Trial>) {
    let trials = |limit: FirstLimit| -> Vec<Trial> {
        let trial = |&remedy: &Remedy| {
            let (other, what) = setup.with(remedy, plan)?;
            let factor = other.simulate(plan).steps_per_second() / tally.steps_per_second();
            Some((remedy, MovedBy { what, factor: rounded(factor) }))
        };
        Remedy::against(limit).iter().filter_map(trial).collect()
    };
    let shares = [
        (FirstLimit::PsCpu, tally.busiest.ps_cpu),
        (FirstLimit::PsNic, tally.busiest.ps_nic),
        (FirstLimit::WorkerCpu, tally.busiest.worker_cpu),
        (FirstLimit::WorkerNic, tally.busiest.worker_nic),
    ];
    // The resource that works most, if it hardly ever rests.
    let busiest = shares.into_iter().rev().max_by(|(_, one), (_, other)| one.total_cmp(other));
    if let Some((limit, _)) = busiest.filter(|(_, share)| *share >= LIMIT_UTILISATION) {
        return (limit, trials(limit));
    }
    if plan.course.compute_us / 1e3 >= COMPUTE_SHARE * tally.step_ms(0.5) {
        return (FirstLimit::Compute, Vec::new());
    }
    let tried = trials(FirstLimit::Latency);
    let moves_most = best(&tried).filter(|(_, moved)| moved.factor >= LIMIT_FACTOR);
    let limit = moves_most.map_or(FirstLimit::Latency, |(remedy, _)| remedy.resource());
    (limit, tried)
}
