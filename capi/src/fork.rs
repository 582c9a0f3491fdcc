//! Detects forks. A child has neither its parent's threads nor consistent state.
#![allow(unsafe_code)]

use std::sync::{
    Once,
    atomic::{AtomicU64, Ordering},
};

use crate::{error::sealane_error, guard::Outcome, memory::forget_in_child};

static FORKS: AtomicU64 = AtomicU64::new(0);

/// The process in which an object was made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process(u64);

impl Process {
    pub(crate) fn this() -> Self {
        static WATCHED: Once = Once::new();
        WATCHED.call_once(|| {
            extern "C" fn in_child() {
                FORKS.fetch_add(1, Ordering::Relaxed);
                forget_in_child();
            }
            // If memory for it is lacking, children go unnoticed here; the client itself notices those of attached tasks.
            // SAFETY: the function stays as long as the library, and only writes two atomics.
            let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        });
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// True in a child of that process.
    pub(crate) fn is_over(self) -> bool {
        self.0 != FORKS.load(Ordering::Relaxed)
    }

    /// # Errors
    /// InvalidArgument in a child.
    pub(crate) fn check(self) -> Outcome {
        match self.is_over() {
            true => Err(sealane_error::invalid(
                "this process was forked after it became this task: attach again in the child, under another task's name",
            )),
            false => Ok(()),
        }
    }
}
