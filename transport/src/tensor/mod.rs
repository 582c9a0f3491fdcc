//! A tensor: metadata in its wire form, and bytes.

#[cfg(feature = "network")]
mod batch;
mod dtype;
mod element;
mod meta;
mod strings;

use std::borrow::Borrow;
use std::sync::Arc;

use crate::{Error, Meta, Payload};
use sealane_runtime::{Buffer, MemoryKind};
use zerocopy::IntoBytes;

#[cfg(feature = "network")]
pub use batch::{TensorBatch, TensorView};
pub use dtype::{DType, TypeCode};
pub use element::Element;
pub use meta::{Shape, TensorMeta};

/// A tensor, as passed to a send and returned by a recv. It has no name of its own; calls name it.
///
/// The bytes are row-major and little-endian, as in DLPack and numpy by default. Cheap to move, not to clone.
#[derive(Debug)]
pub struct Tensor {
    meta: TensorMeta,
    data: Payload,
}

impl Tensor {
    /// A tensor of `data` with type and shape `meta`. Takes anything that owns bytes: a [`Buffer`], including [device
    /// memory](Buffer::on_device), a `Vec<u8>`, or `bytes::Bytes` for memory that many sends share without a copy.
    ///
    /// # Errors
    /// InvalidArgument if the number of bytes does not match type and shape.
    pub fn new(meta: TensorMeta, data: impl Into<Payload>) -> Result<Tensor, Error> {
        let data = data.into();
        meta.check_bytes(data.len() as u64)?;
        Ok(Tensor { meta, data })
    }

    /// A tensor with a copy of `elements`.
    ///
    /// ```
    /// use sealane_transport::tensor::Tensor;
    /// let tensor = Tensor::from_elements(&[2, 3], &[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
    /// assert_eq!(tensor.elements::<f32>()?[4], 5.0);
    /// # Ok::<(), sealane_transport::Error>(())
    /// ```
    ///
    /// # Errors
    /// InvalidArgument if the shape has a different number of elements, or more than 254 dimensions.
    pub fn from_elements<T: Element>(shape: &[u64], elements: &[T]) -> Result<Tensor, Error> {
        Tensor::new(TensorMeta::new(T::DTYPE, shape)?, Buffer::copy_of(elements.as_bytes()))
    }

    /// The value that TensorFlow's control flow sends on a branch that was not taken: no bytes, marked dead.
    pub fn dead(dtype: DType) -> Tensor {
        Tensor { meta: TensorMeta::dead(dtype), data: Payload::default() }
    }

    /// Combines untrusted metadata and bytes.
    ///
    /// # Errors
    /// InvalidArgument if the metadata is invalid or does not match the number of bytes.
    pub fn from_wire(meta: &[u8], data: Buffer) -> Result<Tensor, Error> {
        let meta = TensorMeta::from_wire(meta)?;
        meta.check_bytes(data.len() as u64)?;
        Ok(Tensor { meta, data: data.into() })
    }

    /// Type, shape and flags.
    pub fn meta(&self) -> &TensorMeta {
        &self.meta
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.meta.dtype()
    }

    /// The dimensions, outermost first; none for a scalar.
    pub fn shape(&self) -> Shape {
        self.meta.shape()
    }

    /// The payload that holds the bytes.
    pub fn payload(&self) -> &Payload {
        &self.data
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// True if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// The kind of memory that holds the bytes. A received tensor is in host memory, wherever it came from, unless the recv or
    /// pull supplied device memory.
    pub fn memory(&self) -> MemoryKind {
        self.data.memory()
    }

    /// The bytes.
    ///
    /// # Panics
    /// If they are in [device memory](Self::memory), or in memory that others may write to, which only the engine uses.
    pub fn bytes(&self) -> &[u8] {
        self.data.as_ref()
    }

    /// The bytes, mutable; `None` if the memory is shared, or a device's.
    #[inline]
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        self.buffer_mut().filter(|buffer| buffer.device().is_none()).map(|buffer| &mut **buffer)
    }

    #[inline]
    pub(crate) fn buffer_mut(&mut self) -> Option<&mut Buffer> {
        match &mut self.data {
            Payload::Owned(buffer) => Some(buffer),
            Payload::Shared(_) | Payload::Bytes(_) => None,
        }
    }

    /// The elements, in place.
    ///
    /// # Errors
    /// InvalidArgument if the tensor has a different type, or its memory is a device's or not aligned for it (slab memory is).
    pub fn elements<T: Element>(&self) -> Result<&[T], Error> {
        if self.dtype() != T::DTYPE {
            return Err(Error::invalid(format!("the tensor is {}, not {}", self.dtype(), T::DTYPE)));
        }
        if let MemoryKind::Device(name) = self.memory() {
            return Err(Error::invalid(format!("the bytes are in memory of a {name} device: copy them first")));
        }
        T::slice_of(self.bytes())
            .ok_or_else(|| Error::invalid(format!("the bytes are not aligned for {}: copy them first", T::DTYPE)))
    }

    /// The inverse of [`into_parts`](Self::into_parts); the bytes may have moved, but their number must be the same.
    pub fn from_parts(meta: TensorMeta, data: impl Into<Payload>) -> Tensor {
        let tensor = Tensor { meta, data: data.into() };
        debug_assert!(tensor.meta.check_bytes(tensor.data.len() as u64).is_ok());
        tensor
    }

    /// The same tensor in memory that can be shared without a copy; small tensors are not moved.
    pub fn into_shared(self) -> Tensor {
        Tensor { meta: self.meta, data: self.data.into_shared() }
    }

    /// Another handle to the same tensor: without a copy if its memory is [shared](Self::into_shared).
    pub fn share(&self) -> Tensor {
        Tensor { meta: self.meta.clone(), data: self.data.share() }
    }

    /// Separates metadata and bytes.
    pub fn into_parts(self) -> (TensorMeta, Payload) {
        (self.meta, self.data)
    }

    /// The memory, for reuse, for example by the next recv. Shared memory is copied, unless it is a device's.
    pub fn into_buffer(self) -> Buffer {
        match self.data {
            Payload::Owned(buffer) => buffer,
            Payload::Shared(buffer) => Arc::try_unwrap(buffer).unwrap_or_else(|shared| shared.duplicate()),
            Payload::Bytes(bytes) => Buffer::from_vec(bytes.into()),
        }
    }
}

/// A tensor or a reference to one: code that only copies small tensors needs no more.
pub trait IntoTensor: Borrow<Tensor> {
    /// The tensor itself.
    fn into_tensor(self) -> Tensor;
}

impl IntoTensor for Tensor {
    fn into_tensor(self) -> Tensor {
        self
    }
}

/// Another handle to the same tensor, from [`Tensor::share`].
impl IntoTensor for &Tensor {
    fn into_tensor(self) -> Tensor {
        self.share()
    }
}

/// Combines untrusted metadata and bytes, as [`Tensor::from_wire`] does, and remembers the last kind of tensor: the next is
/// usually of the same kind, and so known to be valid.
#[derive(Debug, Default)]
pub struct LastKind(Option<TensorKind>);

/// Valid metadata, and the number of bytes that it was valid for.
#[derive(Debug)]
struct TensorKind {
    meta: [u8; KIND_BYTES],
    meta_bytes: usize,
    bytes: usize,
}

/// Longer metadata is not remembered: as much as [`Meta`] holds without an allocation.
const KIND_BYTES: usize = 48;

impl TensorKind {
    /// Compares word by word, as [`TensorMeta`]s are compared.
    #[inline]
    fn is(&self, meta: &[u8], bytes: usize) -> bool {
        let mut words = self.meta.as_chunks::<8>().0.iter().zip(meta.as_chunks::<8>().0);
        self.meta_bytes == meta.len() && self.bytes == bytes && words.all(|(ours, theirs)| ours == theirs)
    }

    /// One copy of known length.
    #[inline]
    fn meta(&self) -> TensorMeta {
        TensorMeta::from_own_wire(Meta::from_buf_and_len(self.meta, self.meta_bytes))
    }
}

impl LastKind {
    /// The tensor with this metadata and these bytes.
    ///
    /// # Errors
    /// InvalidArgument if the metadata is invalid or does not match the number of bytes.
    // Most of its cost would be the call.
    #[inline(always)]
    pub fn tensor(&mut self, meta: &[u8], data: Buffer) -> Result<Tensor, Error> {
        match &self.0 {
            Some(last) if last.is(meta, data.len()) => Ok(Tensor::from_parts(last.meta(), data)),
            _ => self.check(meta, data),
        }
    }

    /// True if a tensor may have this metadata and these bytes.
    #[inline]
    pub fn allows(&mut self, meta: &[u8], bytes: &[u8]) -> bool {
        match &self.0 {
            Some(last) if last.is(meta, bytes.len()) => true,
            _ => self.check(meta, Buffer::copy_of(bytes)).is_ok(),
        }
    }

    /// The tensor, if it is of another kind than the last.
    #[cold]
    fn check(&mut self, meta: &[u8], data: Buffer) -> Result<Tensor, Error> {
        let tensor = Tensor::from_wire(meta, data)?;
        if meta.len() <= KIND_BYTES {
            let mut own = [0; KIND_BYTES];
            own[..meta.len()].copy_from_slice(meta);
            self.0 = Some(TensorKind { meta: own, meta_bytes: meta.len(), bytes: tensor.len() });
        }
        Ok(tensor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_from_the_last_kind_is_checked_anew() {
        let (mut kinds, meta) = (LastKind::default(), TensorMeta::new(DType::F32, &[2]).unwrap());
        let mut other = meta.as_wire().to_vec();
        other[8] = 3;
        for _ in 0..2 {
            assert_eq!(kinds.tensor(meta.as_wire(), Buffer::of_len(8)).unwrap().shape().as_slice(), [2]);
            assert!(kinds.tensor(meta.as_wire(), Buffer::of_len(12)).is_err(), "other bytes of the same kind");
            assert!(kinds.tensor(&other, Buffer::of_len(8)).is_err(), "as many bytes of another kind");
            assert!(kinds.tensor(&other[..15], Buffer::of_len(8)).is_err());
        }
        assert_eq!(kinds.tensor(&other, Buffer::of_len(12)).unwrap().shape().as_slice(), [3]);
    }

    #[test]
    fn a_tensor_without_bytes_has_elements_all_the_same() {
        for tensor in [Tensor::from_elements::<f64>(&[0], &[]).unwrap(), Tensor::dead(DType::F64)] {
            assert!(tensor.elements::<f64>().unwrap().is_empty());
            assert!(tensor.elements::<f32>().is_err(), "the type still counts");
        }
    }
}
