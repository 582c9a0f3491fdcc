//! The Python package's native half: the crate `sealane` as Python objects.
//!
//! Everything that touches memory without the compiler's help is in `memory`, `numpy`, `buffer` and `dlpack`; the rest
//! is about calls. Rules that hold everywhere: whoever copies much or waits gives the interpreter's lock up; whoever
//! holds a lock of ours never waits for the interpreter's; references to Python objects may be dropped on any thread.

#![deny(unsafe_code)]

mod acceptor;
mod arrays;
mod batch;
mod bell;
mod buffer;
mod call;
mod connect;
mod dlpack;
mod dtype;
mod errors;
mod fork;
mod input;
mod memory;
mod numpy;
mod plan;
mod pull;
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
        plan::Plan,
        task::Task,
        tensor::Tensor,
    };
}
