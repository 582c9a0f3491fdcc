//! Memory shared between Python and Rust: owned by Python objects and accessed by tensors, or owned by tensors and viewed by
//! Python objects.

mod borrowed;
mod owned;
mod raw;

pub(crate) use borrowed::{Borrowed, Layout, Strides};
pub(crate) use owned::Owned;
pub(crate) use raw::{Raw, apart};
