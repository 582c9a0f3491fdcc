//! What is to be simulated, checked before it begins. Plain data.

use std::ops::RangeInclusive;

use clap::{Args, Parser};
use sealane_transport::limits::SLICES_MAX as PUBLISHED_SLICES_MAX;
use serde::Serialize;

use super::calibration::Calibration;
use super::lookups::Lookups;
use super::scene::{Costs, Variables};
use crate::byte_count::parse_bytes;
use crate::error::BenchError;
use crate::plan::{Mode, Size, check_tables, within};

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
const WORKERS_PER_HOST_MAX: usize = 1_024;
/// The NICs that can be had, and some more, in Gbit/s.
const NIC_GBIT: RangeInclusive<f64> = 0.001..=100_000.0;
/// Longest propagation and compute time: a minute, in microseconds.
const TIME_US_MAX: f64 = 60e6;
/// A step that takes e times as long as another is common with 1; with more than this, few steps take all the time.
const SIGMA_MAX: f64 = 3.0;

/// Most workers.
pub const WORKERS_MAX: usize = 100_000;
/// Most parameter servers.
pub const PS_MAX: usize = 10_000;
/// Most workers × ps. Each pair has one message in flight, and its place in several queues: some 60 bytes.
pub const PAIRS_MAX: usize = 16 << 20;

/// What is simulated: the flags of `sealane bench growth`, and the parameters in its report.
#[derive(Clone, Debug, Serialize, Parser)]
pub struct GrowthPlan {
    /// Workers and parameter servers of each simulation, as in 200+10,1000+50 [default: seven, from 10+1 to 10000+500]
    #[arg(long, value_name = "W+PS,...", value_delimiter = ',', default_values_t = SIZES, hide_default_value = true)]
    #[serde(skip)]
    pub sizes: Vec<Size>,

    /// The tensors that a worker pulls and pushes in a step: resnet50, wide_deep_400, ..., or a JSON file
    #[arg(long, value_name = "NAME|FILE.json", default_value = "wide_deep_400")]
    pub workload: String,

    /// What a worker pulls and pushes in a step.
    #[arg(skip)]
    #[serde(skip)]
    pub variables: Variables,

    /// The rows that a worker pulls in a step besides.
    #[arg(skip)]
    #[serde(flatten)]
    pub lookups: Lookups,

    /// Split larger variables into slices of at most this many bytes, as in 64KiB [default: no split]
    #[arg(long = "slice", value_name = "BYTES", value_parser = |text: &str| parse_bytes(text).map(|bytes| bytes as u64))]
    pub slice_bytes: Option<u64>,

    /// Cut larger variables into this many slices, of 4 KiB at least, as `bench ps --slices` does [default: no split]
    #[arg(long, value_name = "N", conflicts_with = "slice_bytes")]
    pub slices: Option<usize>,

    /// Workers per host
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub workers_per_host: usize,

    /// Cores for Sealane on a worker host
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub worker_shards: u32,

    /// Cores for Sealane on a ps host
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub ps_shards: u32,

    /// Shards of a worker host that share a worker's pull from a ps, which holds its variables in as many slices
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub stripes: u32,

    /// Gbit/s of every host's NIC, in each direction
    #[arg(long = "nic-gbit", value_name = "GBIT", default_value_t = 100.0)]
    pub nic_gbit_per_s: f64,

    /// Latency between two NICs in microseconds
    #[arg(long, value_name = "US", default_value_t = 5.0)]
    pub propagation_us: f64,

    /// What the workers do.
    #[command(flatten)]
    #[serde(flatten)]
    pub course: Course,

    /// What messages cost, by measurement. Default: what [`Costs::default`] says.
    #[arg(skip)]
    #[serde(skip)]
    pub calibration: Option<Calibration>,
}

/// The steps of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Args)]
pub struct Course {
    /// Whether each worker steps on its own, or a ps waits for all workers' gradients before it answers the next pull
    #[arg(long, value_name = "async|sync", default_value_t = Mode::Async)]
    pub mode: Mode,

    /// Mean microseconds between a worker's last variable and its first gradient
    #[arg(long, value_name = "US", default_value_t = 0.0)]
    pub compute_us: f64,

    /// Spread of that time: sigma of a lognormal distribution
    #[arg(long, value_name = "SIGMA", default_value_t = 0.0)]
    pub straggler_sigma: f64,

    /// Random seed: the same seed gives the same figures
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

impl GrowthPlan {
    /// The plan that `sealane bench growth` runs without flags, for these variables.
    pub fn new(workload: &str, variables: Variables) -> GrowthPlan {
        GrowthPlan { workload: workload.to_owned(), variables, ..GrowthPlan::parse_from(["growth"]) }
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
            if !has_room(*size) {
                let accepted = format!("sizes of at most {PAIRS_MAX} pairs of a worker and a ps");
                return Err(BenchError::setting("--sizes", size, accepted));
            }
        }
        within("--workers-per-host", self.workers_per_host, 1..=WORKERS_PER_HOST_MAX)?;
        within("--worker-shards", self.worker_shards, 1..=SHARDS_MAX)?;
        within("--ps-shards", self.ps_shards, 1..=SHARDS_MAX)?;
        within("--stripes", self.stripes, 1..=self.worker_shards)?;
        check_tables(self.lookups.tables())?;
        if !self.lookups.tables().is_empty() && self.stripes > 1 {
            return Err(BenchError::setting("--stripes", self.stripes, "1 with --rows, which come over one shard"));
        }
        within("--nic-gbit", self.nic_gbit_per_s, NIC_GBIT)?;
        within("--propagation-us", self.propagation_us, 0.0..=TIME_US_MAX)?;
        within("--compute-us", self.course.compute_us, 0.0..=TIME_US_MAX)?;
        within("--straggler-sigma", self.course.straggler_sigma, 0.0..=SIGMA_MAX)?;
        if self.course.straggler_sigma > 0.0 && self.course.compute_us == 0.0 {
            let accepted = "it with a --compute-us that it can spread";
            return Err(BenchError::setting("--straggler-sigma", self.course.straggler_sigma, accepted));
        }
        within("--slices", self.slices.unwrap_or(1), 1..=PUBLISHED_SLICES_MAX)?;
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

/// Whether so many pairs have room.
pub(super) fn has_room(size: Size) -> bool {
    size.workers * size.ps <= PAIRS_MAX && size.ps <= PS_MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Tables;

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
        let cases: [(&str, Change); 21] = [
            ("--stripes", |plan| plan.stripes = 0),
            ("--stripes", |plan| (plan.stripes, plan.ps_shards) = (2, 2)),
            ("--stripes", |plan| {
                (plan.stripes, plan.worker_shards) = (2, 2);
                plan.lookups = Lookups::new(vec![Tables::default()]);
            }),
            ("--batch", |plan| plan.lookups = Lookups::new(vec![Tables { batch: 0, ..Tables::default() }])),
            ("--slices", |plan| plan.slices = Some(0)),
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
            ("--compute-us", |plan| plan.course.compute_us = f64::INFINITY),
            ("--straggler-sigma", |plan| plan.course.straggler_sigma = 4.0),
            ("--straggler-sigma", |plan| plan.course.straggler_sigma = 0.5),
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
