//! The C interface of the crate `sealane`; `cargo xtask docs` generates `include/sealane.h` from it.
//!
//! Every function checks its arguments, catches panics, and returns a `sealane_error`, or null on success. Asynchronous calls
//! end with a callback, on one thread per task (`executor`). Comments on public items go into the header and are written for C
//! programmers; they state the obligations of C code that `// SAFETY:` comments rely on.
//!
//! All modules but `executor` handle foreign pointers, and may use `unsafe` code.

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
mod pushed;
mod queue;
mod recv;
mod rows;
mod send;
mod sharded;
mod stream;
mod table;
mod task;
mod tensor;
mod version;

pub use self::{
    attach::*, call::*, embedded::*, error::*, input::*, lent::*, memory::*, meta::*, plan::*, publish::*, pushed::*,
    queue::*, recv::*, rows::*, send::*, sharded::*, stream::*, table::*, task::*, tensor::*, version::*,
};
