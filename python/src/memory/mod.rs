//! Memory that crosses the border: what Python objects own and tensors read or write, and what tensors own and Python
//! objects look at.

mod borrowed;
mod owned;

pub(crate) use borrowed::{Borrowed, Strides};
pub(crate) use owned::Owned;
