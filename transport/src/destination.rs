//! The caller's memory for a tensor to receive, and the tensors that may be received into it. No I/O.

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
};

use sealane_runtime::Buffer;

use crate::{error::Error, tensor::TensorMeta};

/// Memory for a tensor to receive: of any tensor that fits, as [`From`] makes it, or of one type and shape.
#[derive(Debug, Default)]
pub struct Destination {
    memory: Buffer,
    meta: Option<Arc<TensorMeta>>,
}

/// The tensors that fit a destination: those of at most `bytes` bytes and, if `meta` is given, of that type and shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Room {
    bytes: usize,
    meta: Option<Arc<TensorMeta>>,
}

impl Destination {
    /// Memory for a tensor of this type and shape only. Another tensor is refused before it is taken: the recv fails with InvalidArgument,
    /// and the tensor stays with its producer for the next recv.
    pub fn of(meta: TensorMeta, memory: Buffer) -> Destination {
        Destination { memory, meta: Some(Arc::new(meta)) }
    }

    /// Joins the parts that [`into_parts`](Self::into_parts) returned.
    pub fn from_parts(memory: Buffer, meta: Option<Arc<TensorMeta>>) -> Destination {
        Destination { memory, meta }
    }

    /// The memory, and the only type and shape that it takes.
    pub fn into_parts(self) -> (Buffer, Option<Arc<TensorMeta>>) {
        (self.memory, self.meta)
    }

    /// The memory.
    pub fn into_memory(self) -> Buffer {
        self.memory
    }

    /// The only type and shape that it takes.
    pub fn meta(&self) -> Option<&Arc<TensorMeta>> {
        self.meta.as_ref()
    }

    /// The tensors that fit.
    pub fn room(&self) -> Room {
        Room { bytes: self.memory.len(), meta: self.meta.clone() }
    }

    /// Checks whether a tensor of `bytes` bytes fits, with its metadata in wire form.
    ///
    /// # Errors
    /// InvalidArgument.
    #[inline]
    pub fn check(&self, meta: &[u8], bytes: u64) -> Result<(), Error> {
        check_room(self.memory.len(), self.meta.as_deref(), meta, bytes)
    }
}

impl Room {
    /// As [`Destination::check`].
    ///
    /// # Errors
    /// InvalidArgument.
    #[inline]
    pub fn check(&self, meta: &[u8], bytes: u64) -> Result<(), Error> {
        check_room(self.bytes, self.meta.as_deref(), meta, bytes)
    }
}

/// Checks whether a tensor fits `room` bytes of memory that only takes tensors with the metadata `wanted`.
///
/// # Errors
/// InvalidArgument.
#[inline]
pub(crate) fn check_room(room: usize, wanted: Option<&TensorMeta>, meta: &[u8], bytes: u64) -> Result<(), Error> {
    if room as u64 >= bytes && wanted.is_none_or(|wanted| wanted.as_wire() == meta) {
        return Ok(());
    }
    Err(misfit(room, wanted, meta, bytes))
}

#[cold]
fn misfit(room: usize, wanted: Option<&TensorMeta>, meta: &[u8], bytes: u64) -> Error {
    let Some(wanted) = wanted else {
        return Error::invalid(format!("the destination has {room} bytes, the tensor needs {bytes}"));
    };
    match TensorMeta::from_wire(meta) {
        Ok(found) => Error::invalid(format!("the destination takes {wanted:?}, the tensor is {found:?}")),
        Err(malformed) => {
            Error::invalid(format!("the destination takes {wanted:?}, the tensor has other metadata: {malformed}"))
        }
    }
}

impl crate::channel::Accepts for Destination {
    fn accepts(&self, meta: &[u8], bytes: u64) -> bool {
        self.memory.len() as u64 >= bytes && self.meta.as_deref().is_none_or(|wanted| wanted.as_wire() == meta)
    }
}

impl From<Buffer> for Destination {
    fn from(memory: Buffer) -> Destination {
        Destination { memory, meta: None }
    }
}

impl Deref for Destination {
    type Target = Buffer;

    #[inline]
    fn deref(&self) -> &Buffer {
        &self.memory
    }
}

impl DerefMut for Destination {
    #[inline]
    fn deref_mut(&mut self) -> &mut Buffer {
        &mut self.memory
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::DType;

    #[test]
    fn destination_takes_only_its_type_and_shape() {
        let meta = |dtype, shape: &[u64]| TensorMeta::new(dtype, shape).unwrap();
        let (wanted, memory) = (meta(DType::F32, &[2, 3]), || Buffer::from_vec(vec![0; 24]));
        let exact = Destination::of(wanted.clone(), memory());
        assert!(exact.check(wanted.as_wire(), 24).is_ok() && exact.room().check(wanted.as_wire(), 24).is_ok());
        for (other, bytes) in
            [(meta(DType::I32, &[2, 3]), 24), (meta(DType::F32, &[6]), 24), (meta(DType::F32, &[2, 2]), 16)]
        {
            let refused = exact.check(other.as_wire(), bytes).unwrap_err().to_string();
            assert!(refused.contains("f32[2, 3]"), "{refused}");
            assert!(Destination::from(memory()).check(other.as_wire(), bytes).is_ok());
        }
        assert!(Destination::from(memory()).check(wanted.as_wire(), 25).is_err());
    }
}
