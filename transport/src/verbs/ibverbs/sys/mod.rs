//! The part of libibverbs' C interface that is used here: its types (`types.rs`) and functions (`library.rs`), under their
//! names in `infiniband/verbs.h`, where they are documented.
//!
//! The interface is stable: structures only grow at their ends, and symbols have versions. `tests/abi` compares every size, offset and
//! constant with those of the crate `rdma-sys`, which generates them from rdma-core's headers.

#![allow(non_camel_case_types, reason = "the names of verbs.h")]

mod library;
mod types;

pub(super) use library::*;
pub(super) use types::*;
