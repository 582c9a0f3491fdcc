//! What a training process links.

#![deny(unsafe_code)]

pub use sealane_runtime::Buffer;
pub use sealane_transport::tensor::{DType, Element, Shape, Tensor, TensorMeta, TypeCode};
pub use sealane_transport::{Code, Error};
