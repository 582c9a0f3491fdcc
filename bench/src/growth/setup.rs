//! The machines of one simulation, and what of them can be doubled. Pure.

use super::plan::{GrowthPlan, Size, is_small_enough};
use super::report::FirstLimit;
use super::scene::{Course, Machines, Scene};
use super::shards::Load;
use crate::byte_count::format_bytes;

/// Steps that are counted of all workers together, where that many are taken anyway: their 99th percentile has 200 beyond it.
const STEPS_COUNTED: u64 = 20_000;
/// Fewest and most steps that are counted of each worker.
const STEPS_OF_EACH: (u64, u64) = (2, 200);
/// Steps of each worker before them: in the first all begin nearly together, which they would not after a while.
const WARM_UP_OF_EACH: u64 = 2;

/// A ps with so many times the mean of all bytes holds the others up: then slices are worth a trial.
const IMBALANCE_MIN: f64 = 1.25;
/// Slices of a ps's share, so that shares of slices are about equal.
const SLICES_A_PS: u64 = 2;

/// The machines of one simulation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Setup {
    pub(super) size: Size,
    pub(super) slice_bytes: Option<u64>,
    pub(super) workers_per_host: u32,
    pub(super) worker_shards: u32,
    pub(super) ps_shards: u32,
    pub(super) worker_nic_gbit: f64,
    pub(super) ps_nic_gbit: f64,
    pub(super) propagation_us: f64,
}

/// A change of a setup, by which a limit may move.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Remedy {
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
    pub(super) fn against(limit: FirstLimit) -> &'static [Remedy] {
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
    pub(super) fn resource(self) -> FirstLimit {
        match self {
            Remedy::PsShards | Remedy::Ps | Remedy::Slices => FirstLimit::PsCpu,
            Remedy::PsNic => FirstLimit::PsNic,
            Remedy::WorkerShards | Remedy::WorkerHosts => FirstLimit::WorkerCpu,
            Remedy::WorkerNic => FirstLimit::WorkerNic,
            Remedy::Propagation => FirstLimit::Latency,
        }
    }

    /// The setup with the change, and what it is; `None` where it cannot be made, or would change nothing.
    pub(super) fn applied(self, setup: &Setup, plan: &GrowthPlan) -> Option<(Setup, String)> {
        let mut other = *setup;
        let what = match self {
            Remedy::PsShards => {
                other.ps_shards *= 2;
                format!("{} shards a ps", other.ps_shards)
            }
            Remedy::PsNic => {
                other.ps_nic_gbit *= 2.0;
                format!("{} Gbit/s a ps", other.ps_nic_gbit)
            }
            Remedy::Ps => {
                other.size.ps *= 2;
                if !is_small_enough(other.size) {
                    return None;
                }
                format!("{} ps", other.size.ps)
            }
            Remedy::Slices => {
                if imbalance(setup, plan) < IMBALANCE_MIN {
                    return None;
                }
                let bytes = plan.variables.pull.iter().sum::<u64>();
                let slice_bytes = (bytes / u64::from(setup.size.ps) / SLICES_A_PS).max(1);
                other.slice_bytes = Some(slice_bytes);
                format!("variables in slices of {}", format_bytes(slice_bytes as usize))
            }
            Remedy::WorkerShards => {
                other.worker_shards *= 2;
                format!("{} shards a worker host", other.worker_shards)
            }
            Remedy::WorkerNic => {
                other.worker_nic_gbit *= 2.0;
                format!("{} Gbit/s a worker host", other.worker_nic_gbit)
            }
            Remedy::WorkerHosts => {
                if setup.workers_per_host.min(setup.size.workers) == 1 {
                    return None;
                }
                other.workers_per_host = setup.workers_per_host.min(setup.size.workers).div_ceil(2);
                format!("{} workers a host", other.workers_per_host)
            }
            Remedy::Propagation => {
                if setup.propagation_us == 0.0 {
                    return None;
                }
                other.propagation_us /= 2.0;
                format!("{} µs of propagation", other.propagation_us)
            }
        };
        Some((other, what))
    }
}

/// The bytes of the ps that has the most, in those that each would have of an equal share.
pub(super) fn imbalance(setup: &Setup, plan: &GrowthPlan) -> f64 {
    let loads = setup.loads(plan);
    let bytes = || loads.iter().map(Load::bytes);
    let all = bytes().sum::<u64>().max(1);
    bytes().max().unwrap_or(0) as f64 * f64::from(setup.size.ps) / all as f64
}

impl Setup {
    /// The plan's machines at one of its sizes.
    pub(super) fn of(plan: &GrowthPlan, size: Size) -> Setup {
        Setup {
            size,
            slice_bytes: plan.slice_bytes,
            workers_per_host: plan.workers_per_host,
            worker_shards: plan.worker_shards,
            ps_shards: plan.ps_shards,
            worker_nic_gbit: plan.nic_gbit_per_s,
            ps_nic_gbit: plan.nic_gbit_per_s,
            propagation_us: plan.propagation_us,
        }
    }

    /// What each ps has of a step.
    fn loads(&self, plan: &GrowthPlan) -> Vec<Load> {
        let ps = self.size.ps as usize;
        match self.slice_bytes {
            Some(bytes_max) => plan.variables.sliced(bytes_max).over(ps),
            None => plan.variables.over(ps),
        }
    }

    /// What is simulated.
    pub(super) fn scene(&self, plan: &GrowthPlan) -> Scene {
        let machines = Machines {
            workers: self.size.workers,
            workers_per_host: self.workers_per_host,
            ps_per_host: 1,
            worker_shards: f64::from(self.worker_shards),
            ps_shards: f64::from(self.ps_shards),
            worker_nic: self.worker_nic_gbit * 1e9,
            ps_nic: self.ps_nic_gbit * 1e9,
            propagation_us: self.propagation_us,
        };
        let course = Course {
            mode: plan.mode,
            compute_us: plan.compute_us,
            sigma: plan.straggler_sigma,
            seed: plan.seed,
            warm_up: WARM_UP_OF_EACH * u64::from(self.size.workers),
            counted: steps_counted(self.size.workers),
        };
        Scene::new(machines, course, &plan.costs(), &self.loads(plan))
    }
}

/// Steps of all workers together that are counted: as many of each, since those of many workers end in waves.
pub(super) fn steps_counted(workers: u32) -> u64 {
    let workers = u64::from(workers);
    let (fewest, most) = STEPS_OF_EACH;
    STEPS_COUNTED.div_ceil(workers).clamp(fewest, most) * workers
}
