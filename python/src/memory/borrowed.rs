//! Memory that a Python object owns, used to send tensors or receive into. Set up with the GIL, used by any thread without it; a
//! reference that may be dropped on any thread keeps the object alive.
#![allow(unsafe_code)]

use std::{ptr::NonNull, sync::Arc};

use bytes::Bytes;
use pyo3::prelude::*;
use sealane::{Buffer, DType, Error, Shape};
use sealane_runtime::Lender;
use smallvec::SmallVec;

/// Distances in bytes from one element to the next, outermost dimension first.
pub(crate) type Strides = SmallVec<[isize; 6]>;

/// An array that a Python object keeps alive: type, shape and the location of the elements.
///
/// Other Python threads may write to the memory while it is copied: what is read is then torn, as it is with numpy.
pub(crate) struct Borrowed {
    start: NonNull<u8>,
    layout: Layout,
    writable: bool,
    keeper: Py<PyAny>,
}

/// Type and shape of an array, and the layout of its elements.
pub(crate) struct Layout {
    pub(crate) dtype: DType,
    pub(crate) shape: Shape,
    /// `None` if the elements lie row-major without gaps.
    pub(crate) strides: Option<Strides>,
    /// Bytes of all elements.
    pub(crate) len: usize,
}

impl Layout {
    /// # Errors
    /// InvalidArgument if shape and type need more bytes than possible, or elements with gaps between them are not whole bytes.
    pub(crate) fn new(dtype: DType, shape: Shape, strides: Option<Strides>) -> Result<Self, Error> {
        let too_large = || Error::invalid(format!("an array of shape {:?} is too large", &shape[..]));
        let count = shape.iter().try_fold(1_u64, |count, dimension| count.checked_mul(*dimension));
        let bytes = count.and_then(|count| dtype.bytes_of(count)).and_then(|bytes| isize::try_from(bytes).ok());
        let len = bytes.ok_or_else(too_large)? as usize;
        let strides = strides.filter(|strides| len > 0 && !row_major(dtype, &shape, strides));
        if strides.is_some() && !dtype.element_bits().is_multiple_of(8) {
            return Err(Error::invalid(format!("elements of {dtype} can only be sent if they are contiguous")));
        }
        Ok(Self { dtype, shape, strides, len })
    }
}

// SAFETY: the address may be used by any thread as long as `keeper` is held, which may be dropped by any thread.
unsafe impl Send for Borrowed {}
// SAFETY: a shared one only describes itself.
unsafe impl Sync for Borrowed {}

impl Borrowed {
    /// # Errors
    /// As [`Layout::new`].
    ///
    /// # Safety
    /// While `keeper` is referenced, every element of that shape, at the given strides, lies in readable memory, and in writable
    /// memory if `writable`. Without strides the elements lie row-major, without gaps. `start` may be null if there are no
    /// elements.
    pub(crate) unsafe fn new(
        start: *mut u8,
        dtype: DType,
        shape: Shape,
        strides: Option<Strides>,
        writable: bool,
        keeper: Py<PyAny>,
    ) -> Result<Self, Error> {
        let layout = Layout::new(dtype, shape, strides)?;
        let start = NonNull::new(start).filter(|_| layout.len > 0).unwrap_or(NonNull::dangling());
        Ok(Self { start, layout, writable, keeper })
    }

    pub(crate) fn dtype(&self) -> DType {
        self.layout.dtype
    }

    pub(crate) fn shape(&self) -> &[u64] {
        &self.layout.shape
    }

    pub(crate) fn len(&self) -> usize {
        self.layout.len
    }

    pub(crate) fn writable(&self) -> bool {
        self.writable
    }

    /// True if the bytes lie as in a tensor: row-major, without gaps.
    pub(crate) fn contiguous(&self) -> bool {
        self.layout.strides.is_none()
    }

    /// Copies all elements to `target`, row-major.
    ///
    /// # Panics
    /// If `target` is not exactly as long.
    pub(crate) fn copy_to(&self, target: &mut [u8]) {
        assert_eq!(target.len(), self.layout.len, "a copy has as many bytes");
        match &self.layout.strides {
            // SAFETY: `new`'s caller promised `len` readable bytes; the target is Rust's own.
            None => unsafe { std::ptr::copy_nonoverlapping(self.start.as_ptr(), target.as_mut_ptr(), self.layout.len) },
            Some(strides) => {
                let element = (self.layout.dtype.element_bits() / 8) as usize;
                // SAFETY: `new`'s caller promised that all elements at these strides are readable; the target has room
                // for each of them.
                unsafe { gather(self.start.as_ptr(), &self.layout.shape, strides, element, &mut target.as_mut_ptr()) }
            }
        }
    }

    /// The bytes in place, to be read until the result is dropped. Python code should not write to them meanwhile.
    ///
    /// # Panics
    /// If they are not [`contiguous`](Self::contiguous).
    pub(crate) fn into_bytes(self) -> Bytes {
        assert!(self.contiguous(), "asked before");
        Bytes::from_owner(InPlace(self))
    }

    /// The bytes in place, to be written until the result is dropped. Python code should not use them meanwhile.
    ///
    /// # Panics
    /// If they are not [`contiguous`](Self::contiguous) or not [`writable`](Self::writable).
    pub(crate) fn destination(&self, py: Python<'_>) -> Buffer {
        assert!(self.contiguous() && self.writable, "asked before");
        let keeper = Arc::new(Keeper { _object: self.keeper.clone_ref(py) });
        // SAFETY: `new`'s caller promised `len` readable and writable bytes as long as the keeper is referenced, which the lender
        // does. The caller of `recv(out=...)` must make sure that nothing else uses them, as with `out` in numpy; otherwise what is
        // read is torn, but nothing is decided by it.
        unsafe { Buffer::lent(self.start, self.layout.len, 0, keeper) }
    }

    /// Copies these bytes to the start of this memory, unless they already are there.
    ///
    /// # Panics
    /// If the memory is not [`contiguous`](Self::contiguous), not [`writable`](Self::writable) or shorter.
    pub(crate) fn hold(&self, bytes: &[u8]) {
        if bytes.is_empty() || bytes.as_ptr() == self.start.as_ptr() {
            return;
        }
        assert!(self.contiguous() && self.writable && bytes.len() <= self.layout.len, "asked before");
        // SAFETY: `new`'s caller promised `len` writable bytes without gaps; `copy` allows that the two overlap.
        unsafe { std::ptr::copy(bytes.as_ptr(), self.start.as_ptr(), bytes.len()) };
    }
}

struct InPlace(Borrowed);

impl AsRef<[u8]> for InPlace {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `new`'s caller promised `len` readable bytes without gaps as long as the keeper is referred to.
        unsafe { std::slice::from_raw_parts(self.0.start.as_ptr(), self.0.layout.len) }
    }
}

/// Keeps the object until nobody writes to its memory any more.
struct Keeper {
    _object: Py<PyAny>,
}

impl Lender for Keeper {
    fn give_back(&self, _token: u64) {
        // The buffer drops its reference to the lender right after this, and with it the object's.
    }
}

/// True if elements at these strides lie row-major without gaps.
fn row_major(dtype: DType, shape: &[u64], strides: &[isize]) -> bool {
    if !dtype.element_bits().is_multiple_of(8) {
        return false;
    }
    let mut expected = (dtype.element_bits() / 8) as isize;
    for (dimension, stride) in shape.iter().zip(strides).rev() {
        // The stride of a dimension of length one is never used, and may be anything.
        if *dimension != 1 && *stride != expected {
            return false;
        }
        expected *= *dimension as isize;
    }
    true
}

/// Copies elements of `element` bytes to `target`, which it advances.
///
/// # Safety
/// All elements at these strides from `source` are readable, and `target` has room for them.
unsafe fn gather(source: *const u8, shape: &[u64], strides: &[isize], element: usize, target: &mut *mut u8) {
    match (shape, strides) {
        ([], _) | (_, []) => {
            // SAFETY: one element at `source` is readable, and there is room for one more.
            unsafe {
                std::ptr::copy_nonoverlapping(source, *target, element);
                *target = target.add(element);
            }
        }
        ([count], [stride]) => {
            // SAFETY: as this function's caller promises, for each element of this row.
            unsafe {
                match element {
                    1 => gather_row::<1>(source, *count, *stride, target),
                    2 => gather_row::<2>(source, *count, *stride, target),
                    4 => gather_row::<4>(source, *count, *stride, target),
                    8 => gather_row::<8>(source, *count, *stride, target),
                    16 => gather_row::<16>(source, *count, *stride, target),
                    _ => {
                        for index in 0..*count as isize {
                            std::ptr::copy_nonoverlapping(source.offset(index * stride), *target, element);
                            *target = target.add(element);
                        }
                    }
                }
            }
        }
        ([count, shape @ ..], [stride, strides @ ..]) => {
            for index in 0..*count as isize {
                // SAFETY: as this function's caller promises, for each row.
                unsafe { gather(source.offset(index * stride), shape, strides, element, target) };
            }
        }
    }
}

/// Copies a row of elements whose size is known to the compiler, so that each is one move.
///
/// # Safety
/// As for [`gather`].
unsafe fn gather_row<const ELEMENT: usize>(source: *const u8, count: u64, stride: isize, target: &mut *mut u8) {
    let first = *target;
    for index in 0..count as isize {
        // SAFETY: the caller promises that each element is readable and has room; arrays of bytes need no alignment.
        unsafe {
            let value = source.offset(index * stride).cast::<[u8; ELEMENT]>().read();
            first.offset(index * ELEMENT as isize).cast::<[u8; ELEMENT]>().write(value);
        }
    }
    // SAFETY: as many elements were written.
    *target = unsafe { first.add(count as usize * ELEMENT) };
}
