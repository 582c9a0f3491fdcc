//! The Python package's native half: the crate `sealane` as Python objects.
//!
//! All unsafe memory access is in `memory`, `numpy`, `buffer`, `dlpack` and `device`; the rest handles calls. Rules: release the GIL
//! before a large copy or a wait; never wait for the GIL while holding a lock of this crate; references to Python objects may
//! be dropped on any thread.

#![deny(unsafe_code)]

mod acceptor;
mod arrays;
mod batch;
mod bell;
mod buffer;
mod call;
mod connect;
mod device;
mod dlpack;
mod dtype;
mod errors;
mod fork;
mod group;
mod input;
mod memory;
mod numpy;
mod plan;
mod pull;
mod rows;
mod slicing;
mod stream;
mod strings;
mod task;
mod tensor;
mod wait;

use pyo3::prelude::*;

#[pymodule]
mod _sealane {
    #[pymodule_export]
    use super::{
        acceptor::Acceptor,
        bell::Bell,
        call::{Receiving, Sending},
        connect::{attach, embedded},
        fork::forked,
        group::{Group, GroupCall, end_callbacks},
        plan::Plan,
        rows::{ShardedTable, Table},
        slicing::Slicing,
        stream::{Stream, StreamListener, dial, listen},
        task::Task,
        tensor::Tensor,
    };
}
