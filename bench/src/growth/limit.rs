//! Where the first limit of a size lies, and what moves it: the same simulation again, with more of something.

use super::plan::{GrowthPlan, Size};
use super::report::{FirstLimit, MovedBy, SessionBytes, Shares, SizeRow, StepTimes};
use super::setup::{Remedy, Setup, imbalance};
use super::simulation::simulate;
use super::tally::Tally;
use crate::spread::rounded;

/// A resource that works for so much of the time is the limit: queues before it are long, and grow fast with what is left.
const LIMIT_UTILISATION: f64 = 0.9;
/// Where none does, one that moves so much when it is doubled is the limit all the same, as in synchronous steps, where
/// sending and receiving take turns.
const LIMIT_FACTOR: f64 = 1.2;
/// Compute time of at least this share of a step is the limit where no resource is.
const COMPUTE_SHARE: f64 = 0.5;

/// What a session holds at each of its ends, in bytes: what `bench idle --peers 1000` measured a peer at 14 KB of resident memory.
pub(super) const SESSION_BYTES: u64 = 14_000;

/// Simulates one size. `first` gives the steps a second and worker of the first size, unless this is it.
pub(super) fn measure(plan: &GrowthPlan, size: Size, first: Option<f64>) -> SizeRow {
    let setup = Setup::of(plan, size);
    let tally = simulate(&setup.scene(plan));
    let steps_per_s = tally.steps_per_second();
    let of_each = steps_per_s / f64::from(size.workers);
    let (first_limit, tried) = limit(plan, &setup, &tally);
    let all = [&tally.ps_cpu, &tally.ps_nic, &tally.worker_cpu, &tally.worker_nic];
    SizeRow {
        workers: size.workers,
        ps: size.ps,
        steps_per_s: rounded(steps_per_s),
        step_ms: StepTimes { p50: rounded(tally.step_ms(0.5)), p99: rounded(tally.step_ms(0.99)) },
        utilisation: Shares::of(|one| one.busiest, all),
        mean_utilisation: Shares::of(|one| one.mean, all),
        efficiency: rounded(of_each / first.unwrap_or(of_each)),
        imbalance: rounded(imbalance(&setup, plan)),
        session_bytes: SessionBytes {
            ps: u64::from(size.workers) * SESSION_BYTES,
            worker_host: u64::from(size.workers.min(plan.workers_per_host)) * u64::from(size.ps) * SESSION_BYTES,
        },
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
    if let Some(limit) = busiest(tally) {
        return (limit, trials(limit, plan, setup, tally));
    }
    let compute_ms = plan.compute_us / 1e3;
    if compute_ms >= COMPUTE_SHARE * tally.step_ms(0.5) {
        return (FirstLimit::Compute, Vec::new());
    }
    let tried = trials(FirstLimit::Latency, plan, setup, tally);
    let moves_most = best(&tried).filter(|(_, moved)| moved.factor >= LIMIT_FACTOR);
    let limit = moves_most.map_or(FirstLimit::Latency, |(remedy, _)| remedy.resource());
    (limit, tried)
}

/// The resource that works most, if it hardly ever rests.
fn busiest(tally: &Tally) -> Option<FirstLimit> {
    let shares = [
        (FirstLimit::PsCpu, tally.ps_cpu.busiest),
        (FirstLimit::PsNic, tally.ps_nic.busiest),
        (FirstLimit::WorkerCpu, tally.worker_cpu.busiest),
        (FirstLimit::WorkerNic, tally.worker_nic.busiest),
    ];
    let (limit, share) = shares.into_iter().rev().max_by(|(_, one), (_, other)| one.total_cmp(other))?;
    (share >= LIMIT_UTILISATION).then_some(limit)
}

fn trials(limit: FirstLimit, plan: &GrowthPlan, setup: &Setup, tally: &Tally) -> Vec<Trial> {
    let trial = |&remedy: &Remedy| {
        let (other, what) = remedy.applied(setup, plan)?;
        let factor = simulate(&other.scene(plan)).steps_per_second() / tally.steps_per_second();
        Some((remedy, MovedBy { what, factor: rounded(factor) }))
    };
    Remedy::against(limit).iter().filter_map(trial).collect()
}
