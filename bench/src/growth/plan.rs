//! What is to be simulated, checked before it begins. Plain data.

use std::ops::RangeInclusive;

use serde::Serialize;

use super::calibration::Calibration;
use super::scene::{Costs, Variables};
use super::size::{PAIRS_MAX, PS_MAX, Size, WORKERS_MAX, is_small_enough};
use crate::error::BenchError;
use crate::plan::{Mode, within};

/// The sizes that are simulated by default: from what one machine can run to what none can.
pub const SIZES: [Size; 7] = [
    Size { workers: 10, ps: 1 },
    Size { workers: 50, ps: 5 },
    Size { workers: 200, ps: 10 },
    Size { workers: 1_000, ps: 50 },
    Size { workers: 2_000, ps: 100 },
    Size { workers: 5_000, ps: 250 },
    Size { workers: 10_000, ps: 500 },
];

/// Most sizes of one run.
pub const SIZES_MAX: usize = 64;
/// Most tensors of both kinds, after they were cut into slices.
pub const SLICES_MAX: u64 = 1 << 20;
/// Most shards of a host, and most workers on one.
const SHARDS_MAX: u32 = 1_024;
const WORKERS_PER_HOST_MAX: u32 = 1_024;
/// The NICs that can be had, and some more, in Gbit/s.
const NIC_GBIT: RangeInclusive<f64> = 0.001..=100_000.0;
/// Longest propagation and compute time: a minute, in microseconds.
const TIME_US_MAX: f64 = 60e6;
/// A step that takes e times as long as another is common with 1; with more than this, few steps take all the time.
const SIGMA_MAX: f64 = 3.0;

/// What is simulated; in a report, its parameters.
#[derive(Clone, Debug, Serialize)]
pub struct GrowthPlan {
    /// One simulation, and those of what moves its limit, for each.
    #[serde(skip)]
    pub sizes: Vec<Size>,
    /// What the variables are called.
    pub workload: String,
    /// What a worker pulls and pushes in a step.
    #[serde(skip)]
    pub variables: Variables,
    /// Variables of more bytes are cut into slices of at most so many. Default: none is cut.
    pub slice_bytes: Option<u64>,
    /// Who waits for whom. Default: nobody.
    pub mode: Mode,
    /// Workers of a host. Default: 8.
    pub workers_per_host: u32,
    /// Cores that Sealane has on a worker host, and on a ps's. Default: 1.
    pub worker_shards: u32,
    /// See `worker_shards`.
    pub ps_shards: u32,
    /// Gbit/s of every host's NIC, in each direction. Default: 100.
    pub nic_gbit_per_s: f64,
    /// Microseconds from NIC to NIC. Default: 5.
    pub propagation_us: f64,
    /// Mean microseconds between a worker's last variable and its first gradient. Default: 0.
    pub compute_us: f64,
    /// Sigma of the lognormal distribution of that time. Default: 0, all take the mean.
    pub straggler_sigma: f64,
    /// What random numbers depend on. Default: 1.
    pub seed: u64,
    /// What messages cost, by measurement. Default: what [`Costs::default`] says.
    #[serde(skip)]
    pub calibration: Option<Calibration>,
}

impl GrowthPlan {
    /// The plan that `sealane bench growth` runs without flags, for these variables.
    pub fn new(workload: &str, variables: Variables) -> GrowthPlan {
        GrowthPlan {
            sizes: SIZES.to_vec(),
            workload: workload.to_owned(),
            variables,
            slice_bytes: None,
            mode: Mode::Async,
            workers_per_host: 8,
            worker_shards: 1,
            ps_shards: 1,
            nic_gbit_per_s: 100.0,
            propagation_us: 5.0,
            compute_us: 0.0,
            straggler_sigma: 0.0,
            seed: 1,
            calibration: None,
        }
    }

    /// What messages cost.
    pub fn costs(&self) -> Costs {
        self.calibration.as_ref().map_or_else(Costs::default, |calibration| calibration.costs)
    }

    /// Makes sure that the plan can be simulated.
    ///
    /// # Errors
    /// [`BenchError::Setting`] names the first flag that is outside its limits.
    pub fn check(&self) -> Result<(), BenchError> {
        within("--sizes", self.sizes.len(), 1..=SIZES_MAX)?;
        for size in &self.sizes {
            within("--sizes", size.workers, 1..=WORKERS_MAX)?;
            within("--sizes", size.ps, 1..=PS_MAX)?;
            if !is_small_enough(*size) {
                let accepted = format!("sizes of at most {PAIRS_MAX} pairs of a worker and a ps");
                return Err(BenchError::setting("--sizes", size, accepted));
            }
        }
        within("--workers-per-host", self.workers_per_host, 1..=WORKERS_PER_HOST_MAX)?;
        within("--worker-shards", self.worker_shards, 1..=SHARDS_MAX)?;
        within("--ps-shards", self.ps_shards, 1..=SHARDS_MAX)?;
        within("--nic-gbit", self.nic_gbit_per_s, NIC_GBIT)?;
        within("--propagation-us", self.propagation_us, 0.0..=TIME_US_MAX)?;
        within("--compute-us", self.compute_us, 0.0..=TIME_US_MAX)?;
        within("--straggler-sigma", self.straggler_sigma, 0.0..=SIGMA_MAX)?;
        if self.straggler_sigma > 0.0 && self.compute_us == 0.0 {
            let accepted = "it with a --compute-us that it can spread";
            return Err(BenchError::setting("--straggler-sigma", self.straggler_sigma, accepted));
        }
        let slice_bytes = self.slice_bytes.unwrap_or(u64::MAX);
        within("--slice", slice_bytes, 1..=u64::MAX)?;
        let slices = self.variables.slices(slice_bytes);
        if slices > SLICES_MAX {
            let given = format!("{slice_bytes} bytes, which makes {slices} slices");
            let accepted = format!("so many bytes that there are at most {SLICES_MAX} slices");
            return Err(BenchError::setting("--slice", given, accepted));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> GrowthPlan {
        GrowthPlan::new("some", Variables { pull: vec![100; 10], push: vec![100; 10] })
    }

    #[test]
    fn the_default_plan_is_valid_and_sizes_are_written_as_they_are_read() {
        plan().check().unwrap();
        for size in SIZES {
            assert_eq!(size.to_string().parse::<Size>().unwrap(), size);
        }
        for text in ["", "200", "200+", "+10", "a+b", "-1+2", "1+2+3"] {
            let error = text.parse::<Size>().unwrap_err().to_string();
            assert!(error.ends_with("give workers and ps, as in 200+10"), "{error}");
        }
        assert!("both".parse::<Mode>().unwrap_err().to_string().contains("async or sync"));
    }

    #[test]
    fn what_is_outside_its_limits_is_named() {
        type Change = fn(&mut GrowthPlan);
        let cases: [(&str, Change); 16] = [
            ("--sizes", |plan| plan.sizes.clear()),
            ("--sizes", |plan| plan.sizes = vec![SIZES[0]; SIZES_MAX + 1]),
            ("--sizes", |plan| plan.sizes[0].workers = 0),
            ("--sizes", |plan| plan.sizes[0].ps = PS_MAX + 1),
            ("--sizes", |plan| plan.sizes[0] = Size { workers: 100_000, ps: 1_000 }),
            ("--workers-per-host", |plan| plan.workers_per_host = 0),
            ("--worker-shards", |plan| plan.worker_shards = 0),
            ("--ps-shards", |plan| plan.ps_shards = SHARDS_MAX + 1),
            ("--nic-gbit", |plan| plan.nic_gbit_per_s = 0.0),
            ("--nic-gbit", |plan| plan.nic_gbit_per_s = f64::NAN),
            ("--propagation-us", |plan| plan.propagation_us = -1.0),
            ("--compute-us", |plan| plan.compute_us = f64::INFINITY),
            ("--straggler-sigma", |plan| plan.straggler_sigma = 4.0),
            ("--straggler-sigma", |plan| plan.straggler_sigma = 0.5),
            ("--slice", |plan| plan.slice_bytes = Some(0)),
            ("--slice", |plan| {
                (plan.variables.pull, plan.slice_bytes) = (vec![SLICES_MAX + 1], Some(1));
            }),
        ];
        for (flag, change) in cases {
            let mut plan = plan();
            change(&mut plan);
            let error = plan.check().unwrap_err();
            assert!(error.to_string().starts_with(flag) && error.is_usage(), "{error}");
        }
    }
}
