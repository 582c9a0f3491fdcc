//! What gRPC runs on, and what it says when it fails.

use std::error::Error;

use tokio::runtime::{Builder, Runtime};

use crate::error::BenchError;

pub(super) const NAME: &str = "grpc";

/// A runtime of one thread: the caller's.
pub(super) fn runtime() -> Result<Runtime, BenchError> {
    Builder::new_current_thread().enable_all().build().map_err(BenchError::io("start a runtime for gRPC"))
}

/// Says what gRPC's library said, with the causes that its errors hide.
pub(super) fn failed<E: Error>(operation: &'static str) -> impl FnOnce(E) -> BenchError {
    move |error| {
        let mut reason = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            reason.push_str(": ");
            reason.push_str(&error.to_string());
            cause = error.source();
        }
        BenchError::Failed { system: "gRPC", operation, reason }
    }
}
