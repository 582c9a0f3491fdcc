//! The C interface of the crate `sealane`; `include/sealane.h` is made of it by `cargo xtask docs`.
//!
//! Every function checks what it is given, catches panics, and returns a `sealane_error`, or null if all is well. Calls that take
//! time end with a callback, on one thread a task (`executor`). The comments of what is public are the header's, written for
//! readers of C; what C code promises stands there, and `// SAFETY:` relies on it.
//!
//! All but `executor` handles pointers that others made, and is allowed `unsafe` code.

#![deny(unsafe_code)]
#![allow(non_camel_case_types, reason = "names are those of the header")]
#![allow(clippy::missing_safety_doc, reason = "the header says what C code promises, in words of C")]

mod attach;
mod call;
mod embedded;
mod error;
mod executor;
mod fork;
mod guard;
mod input;
mod lent;
mod memory;
mod meta;
mod plan;
mod publish;
mod queue;
mod recv;
mod send;
mod task;
mod tensor;
mod version;

pub use self::{
    attach::*, call::*, embedded::*, error::*, input::*, lent::*, memory::*, meta::*, plan::*, publish::*, queue::*,
    recv::*, send::*, task::*, tensor::*, version::*,
};
