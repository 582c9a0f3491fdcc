//! Detects forks. A child has no threads of its parent's engine and must not use its parent's attachment.

use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::prelude::*;
use sealane::Error;

static FORKS: AtomicU64 = AtomicU64::new(0);

/// Called in every child, by `os.register_at_fork`.
#[pyfunction]
pub(crate) fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The process in which an object was made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Generation(u64);

impl Generation {
    pub(crate) fn now() -> Self {
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// True in a child of the process in which this was made.
    pub(crate) fn is_over(self) -> bool {
        self != Self::now()
    }

    /// # Errors
    /// InvalidArgument in a child.
    pub(crate) fn check(self, task: &str) -> Result<(), Error> {
        if self.is_over() {
            return Err(Error::invalid(format!(
                "this process was forked after it became {task}: attach again in the child, under another task's name, \
                 or start processes with multiprocessing's 'spawn'"
            )));
        }
        Ok(())
    }
}
