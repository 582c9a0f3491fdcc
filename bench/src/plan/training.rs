//! The parameter-server experiment, as written in flags: how many train, how, and in which variants.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Add;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::{Bench, Fuse, Link, Plan, Registration, SystemName, Tables, within};
use crate::error::BenchError;
use crate::limits::{
    COMPUTE_US_MAX, HOSTED_BYTES_MAX, HOSTED_WORKERS_MAX, PEERS_MAX, PS_MAX, SESSIONS_MAX, SIZE_BYTES_MAX,
    STEP_BYTES_MAX, STEP_TENSORS_MAX, WINDOW_MAX,
};

/// Who waits for whom between two steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Nobody: each worker pulls what is newest.
    #[default]
    Async,
    /// All: a worker pulls the version that has everybody's gradients of the step before.
    Sync,
}

/// How many train; written `50+5`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    pub workers: usize,
    pub ps: usize,
}

impl Size {
    /// Number of connections: one from each worker to each ps.
    fn pairs(self) -> usize {
        self.workers * self.ps
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.workers, self.ps)
    }
}

/// One way in which the tensors move, measured in turn with the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variant {
    /// How many train, where that is what is compared. Default: as many as in the experiment itself.
    pub size: Option<Size>,
    /// Requests that a worker has in flight at a ps, and pushes. Default: 40.
    pub request_buffers: usize,
    /// Whether the memory that a worker pulls into stays, or is made for each transfer. Default: static.
    pub registration: Registration,
    /// What is fused. Default: plan.
    pub fuse: Fuse,
    /// Whether both sides spin instead of sleeping. Default: yes.
    pub polling: bool,
}

impl Variant {
    /// Whether a tensor uses the same memory in every step.
    pub(crate) fn keeps_memory(&self) -> bool {
        self.registration == Registration::Static
    }
}

impl Default for Variant {
    fn default() -> Self {
        let (registration, fuse) = (Registration::Static, Fuse::Plan);
        Self { size: None, request_buffers: 40, registration, fuse, polling: true }
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { size, request_buffers, registration, fuse, polling } = self;
        if let Some(Size { workers, ps }) = size {
            write!(f, "{workers} workers + {ps} ps, ")?;
        }
        let buffers = if *request_buffers == 1 { "request buffer" } else { "request buffers" };
        let waiting = if *polling { "polling" } else { "parking" };
        write!(f, "fuse {fuse}, {request_buffers} {buffers}, {registration}, {waiting}")
    }
}

/// Who trains what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Training {
    /// How many; the tensors are spread over the parameter servers by size. Default: 50 workers and 5 parameter servers.
    #[serde(flatten)]
    pub size: Size,
    /// Who waits for whom. Default: nobody.
    pub mode: Mode,
    /// Microseconds that a worker computes between its pulls and its pushes. Default: 0.
    pub compute_us: u64,
    /// Bytes of every gradient that a worker pushes in a step. Default: those of the tensors that it pulls.
    pub push: Vec<usize>,
    /// What is measured, in turn.
    pub variants: Vec<Variant>,
}

impl Training {
    /// Number of connections: one from each worker to each ps.
    pub(crate) fn pairs(&self) -> usize {
        self.size.pairs()
    }

    /// The sizes of the experiment itself and of its variants.
    pub(super) fn sizes(&self) -> impl Iterator<Item = Size> {
        self.variants.iter().filter_map(|variant| variant.size).chain([self.size])
    }

    /// The default experiment with a step of these tensors.
    pub(super) fn of(step: &[usize]) -> Self {
        let variants = vec![Variant::default()];
        let size = Size { workers: 50, ps: 5 };
        Self { size, mode: Mode::Async, compute_us: 0, push: step.to_vec(), variants }
    }

    /// For pulling rows: one worker, and one ps.
    pub(super) fn of_rows() -> Self {
        let variants = vec![Variant { fuse: Fuse::Turn, ..Variant::default() }];
        Self { size: Size { workers: 1, ps: 1 }, variants, ..Self::of(&[1]) }
    }

    pub(super) fn check(&self) -> Result<(), BenchError> {
        for Size { workers, ps } in self.sizes() {
            within("--workers", workers, 1, PEERS_MAX)?;
            within("--ps", ps, 1, PS_MAX)?;
            if workers * ps > SESSIONS_MAX {
                let accepted = format!("at most {SESSIONS_MAX} connections, one of each worker with each ps");
                return Err(BenchError::setting("--workers", format!("{workers} with {ps} ps"), accepted));
            }
        }
        within("--compute-us", self.compute_us as usize, 0, COMPUTE_US_MAX as usize)?;
        within("--tensors", self.push.len(), 1, STEP_TENSORS_MAX)?;
        self.push.iter().try_for_each(|bytes| within("--size", *bytes, 1, SIZE_BYTES_MAX))?;
        let mut variants = self.variants.iter();
        variants.try_for_each(|variant| within("--request-buffers", variant.request_buffers, 1, WINDOW_MAX))
    }
}

impl Plan {
    /// Checks what the link supports of the experiment, over tcp everything, and what the daemons of a plan support.
    pub(super) fn check_trainees(&self) -> Result<(), BenchError> {
        let Some(training) = &self.training else { return Ok(()) };
        if self.daemon.is_some() {
            if let Some(Size { workers, ps }) = training.sizes().find(|size| size.pairs() != 1) {
                let accepted = "1 with 1 ps and --daemon, which names one task of each";
                return Err(BenchError::setting("--workers", format!("{workers} with {ps} ps"), accepted));
            }
            if training.variants.len() > 1 {
                let given = format!("given with {} variants", training.variants.len());
                let accepted = "one value for each flag that accepts a list: only one process can attach as a task";
                return Err(BenchError::setting("--daemon", given, accepted));
            }
        }
        if self.bench != Bench::Ps {
            return Ok(());
        }
        if self.link != Link::Verbs && !self.has_hosted_workers() {
            return Ok(());
        }
        let has_whole = self.baselines.contains(&SystemName::Whole);
        let whole = if has_whole { self.with_whole_tables().step.iter().sum() } else { 0 };
        if whole > STEP_BYTES_MAX {
            let accepted = format!("it with --table-rows-max, so that they are at most {STEP_BYTES_MAX} bytes");
            return Err(BenchError::setting("--baseline", format!("whole, which are {whole} bytes a step"), accepted));
        }
        let named: usize = self.tables.iter().map(Tables::step_bytes).sum();
        let pulled = whole.max(self.step.iter().sum::<usize>() + named);
        let place = match (&self.daemon, self.tables.is_empty()) {
            (Some(_), _) => "with --daemon".to_owned(),
            (None, true) => format!("over {}", self.link),
            (None, false) => "with --rows".to_owned(),
        };
        for Size { workers, .. } in training.sizes() {
            if workers > HOSTED_WORKERS_MAX {
                let accepted =
                    format!("at most {HOSTED_WORKERS_MAX} {place}, where each has a thread and its own memory");
                return Err(BenchError::setting("--workers", workers, accepted));
            }
            let bytes = workers * (pulled + training.push.iter().sum::<usize>());
            if bytes > HOSTED_BYTES_MAX {
                let accepted = format!("at most {HOSTED_BYTES_MAX} bytes of all workers {place}");
                return Err(BenchError::setting("--workers", format!("{workers} with {bytes} bytes a step"), accepted));
            }
        }
        let mut variants = training.variants.iter();
        let Some(variant) = variants.find(|one| one.fuse == Fuse::Plan && !one.keeps_memory()) else { return Ok(()) };
        if self.link == Link::Verbs {
            return Ok(());
        }
        let accepted = format!("static with --fuse plan {place}, where a plan keeps its memory");
        Err(BenchError::setting("--registration", variant.registration, accepted))
    }
}

/// Distributes tensors over `ps` parameter servers: the largest first, each to the ps with the fewest bytes so far, as TensorFlow's
/// `GreedyLoadBalancingStrategy` does by size, which is at most a third worse than the optimum (Graham 1969). Returns for each ps
/// the numbers of its tensors, in order.
pub(crate) fn spread<T: Copy + Default + Ord + Add<Output = T>>(sizes: &[T], ps: usize) -> Vec<Vec<usize>> {
    let mut numbers: Vec<usize> = (0..sizes.len()).collect();
    numbers.sort_by_key(|&number| std::cmp::Reverse(sizes[number]));
    let mut shares = vec![Vec::new(); ps];
    // Ordered by bytes, tensors, and the ps's number.
    let mut least: BTreeSet<(T, usize, usize)> = (0..ps).map(|ps| (T::default(), 0, ps)).collect();
    for number in numbers {
        let (bytes, tensors, ps) = least.pop_first().expect("one ps at least");
        least.insert((bytes + sizes[number], tensors + 1, ps));
        shares[ps].push(number);
    }
    shares.iter_mut().for_each(|share| share.sort_unstable());
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_are_spread_by_size() {
        assert_eq!(spread(&[5, 1, 3, 4, 2], 2), [vec![0, 1, 4], vec![2, 3]]);
        assert_eq!(spread(&[7], 3), [vec![0], vec![], vec![]]);
    }
}
