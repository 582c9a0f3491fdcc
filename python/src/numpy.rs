//! The part of numpy's C API needed to read and create arrays: the function table that numpy provides for extensions, and the head
//! of its array object. Both are part of numpy's ABI, the same in 1.x and 2.x. Runs with the GIL. Creating an array this way costs
//! a tenth of `numpy.frombuffer`.
#![allow(unsafe_code)]

use std::{
    ffi::{c_char, c_int, c_uint, c_void},
    ptr,
};

use pyo3::{
    exceptions::PyImportError,
    ffi,
    prelude::*,
    sync::PyOnceLock,
    types::{PyCapsule, PyString, PyType},
};
use sealane::{DType, Shape, TensorMeta};

use crate::{
    dtype::{self, NUMPY},
    errors::{OrRaise, invalid},
    memory::{Borrowed, Strides},
    tensor::Tensor,
};

/// Indices in numpy's table.
const GET_ABI_VERSION: usize = 0;
const ARRAY_TYPE: usize = 2;
const NEW_FROM_DESCRIPTOR: usize = 94;
const SET_BASE_OBJECT: usize = 282;

/// The binary interfaces of numpy 1.x and 2.x.
const ABI_VERSIONS: [c_uint; 2] = [0x0100_0009, 0x0200_0000];

const C_CONTIGUOUS: c_int = 0x0001;
const ALIGNED: c_int = 0x0100;
const WRITEABLE: c_int = 0x0400;

/// Arrays up to this size are copied into numpy's own memory: cheaper than another object that keeps the tensor's memory, and no
/// more than what arrives with the answer itself.
const COPIED_BYTES_MAX: usize = 512;

/// numpy's most dimensions: 64 since 2.0.
const RANK_MAX: usize = 64;

type NewFromDescriptor = unsafe extern "C" fn(
    *mut ffi::PyTypeObject,
    *mut ffi::PyObject,
    c_int,
    *const isize,
    *const isize,
    *mut c_void,
    c_int,
    *mut ffi::PyObject,
) -> *mut ffi::PyObject;
type SetBaseObject = unsafe extern "C" fn(*mut ffi::PyObject, *mut ffi::PyObject) -> c_int;

#[repr(C)]
struct ArrayHead {
    object: ffi::PyObject,
    data: *mut c_char,
    rank: c_int,
    dimensions: *const isize,
    strides: *const isize,
    base: *mut ffi::PyObject,
    descriptor: *mut ffi::PyObject,
    flags: c_int,
}

/// numpy as it was found.
pub(crate) struct Numpy {
    array_type: *mut ffi::PyTypeObject,
    new_from_descriptor: NewFromDescriptor,
    set_base_object: SetBaseObject,
    dtype_class: Py<PyType>,
    /// numpy's own type objects for [`NUMPY`]'s types.
    descriptors: [Py<PyAny>; NUMPY.len()],
}

// SAFETY: the addresses are of functions and of a type that live as long as the process, used with a token that the
// interpreter's lock is held.
unsafe impl Send for Numpy {}
// SAFETY: as above.
unsafe impl Sync for Numpy {}

impl Numpy {
    /// numpy, imported on the first call.
    ///
    /// # Errors
    /// ImportError if it is missing, or of an unknown future version.
    pub(crate) fn get(py: Python<'_>) -> PyResult<&'static Numpy> {
        static FOUND: PyOnceLock<Numpy> = PyOnceLock::new();
        FOUND.get_or_try_init(py, || Self::find(py))
    }

    fn find(py: Python<'_>) -> PyResult<Numpy> {
        let module = py.import("numpy._core.multiarray").or_else(|_| py.import("numpy.core.multiarray"))?;
        let capsule = module.getattr("_ARRAY_API")?.cast_into::<PyCapsule>()?;
        let table: *const *const c_void = capsule.pointer_checked(None)?.as_ptr().cast_const().cast();
        // SAFETY: numpy's table has hundreds of entries, these ones with these meanings since 1.7, and lives as long as the
        // process. Its version, in the first, is checked before any other is used.
        let (version, array_type, new_from_descriptor, set_base_object) = unsafe {
            let version =
                std::mem::transmute::<*const c_void, unsafe extern "C" fn() -> c_uint>(*table.add(GET_ABI_VERSION));
            let make = std::mem::transmute::<*const c_void, NewFromDescriptor>(*table.add(NEW_FROM_DESCRIPTOR));
            let set_base = std::mem::transmute::<*const c_void, SetBaseObject>(*table.add(SET_BASE_OBJECT));
            (version(), (*table.add(ARRAY_TYPE)).cast_mut().cast(), make, set_base)
        };
        if !ABI_VERSIONS.contains(&version) {
            let reason = format!("sealane supports the C API of numpy 1.x and 2.x, not {version:#x}");
            return Err(PyImportError::new_err(reason));
        }
        let dtype_class = py.import("numpy")?.getattr("dtype")?.cast_into::<PyType>()?;
        let mut descriptors = Vec::with_capacity(NUMPY.len());
        for (name, _) in NUMPY {
            descriptors.push(dtype_class.call1((name,))?.unbind());
        }
        let descriptors = descriptors.try_into().expect("one a name");
        let dtype_class = dtype_class.unbind();
        Ok(Numpy { array_type, new_from_descriptor, set_base_object, dtype_class, descriptors })
    }

    /// The array in an object; `None` for anything but arrays of numbers, for example for arrays of strings.
    ///
    /// # Errors
    /// InvalidArgument if its elements are of a type that no tensor has.
    pub(crate) fn borrow(&self, object: &Bound<'_, PyAny>) -> PyResult<Option<Borrowed>> {
        let py = object.py();
        // SAFETY: both are types, and the interpreter's lock is held.
        let is_array = unsafe { ffi::PyObject_TypeCheck(object.as_ptr(), self.array_type) } != 0;
        if !is_array {
            return Ok(None);
        }
        // SAFETY: an array begins with this head, which only changes with the interpreter's lock. `dimensions` and
        // `strides` have `rank` members, or are null if it is 0.
        let (data, dimensions, strides, descriptor, flags) = unsafe {
            let head = &*object.as_ptr().cast::<ArrayHead>();
            let descriptor = Bound::from_borrowed_ptr(py, head.descriptor);
            let rank = head.rank as usize;
            (head.data, slice(head.dimensions, rank), slice(head.strides, rank), descriptor, head.flags)
        };
        let Some(dtype) = self.dtype(&descriptor)? else { return Ok(None) };
        let shape: Shape = dimensions.iter().map(|dimension| *dimension as u64).collect();
        let strides = (flags & C_CONTIGUOUS == 0).then(|| Strides::from_slice(strides));
        let writable = flags & WRITEABLE != 0;
        // SAFETY: numpy keeps the elements of an array where its head says, until it is gone; `resize` refuses arrays that are
        // referenced.
        let borrowed = unsafe { Borrowed::new(data.cast(), dtype, shape, strides, writable, object.clone().unbind()) };
        borrowed.or_raise(py).map(Some)
    }

    /// The tensor type for one of numpy's; `None` for strings and objects.
    ///
    /// # Errors
    /// InvalidArgument if there is none.
    fn dtype(&self, descriptor: &Bound<'_, PyAny>) -> PyResult<Option<DType>> {
        match self.descriptors.iter().position(|known| known.is(descriptor)) {
            Some(place) => Ok(Some(NUMPY[place].1)),
            None => unusual(descriptor),
        }
    }

    /// The type that an object stands for, if numpy accepts it as a dtype.
    ///
    /// # Errors
    /// What numpy raises, InvalidArgument if tensors do not have the type.
    pub(crate) fn dtype_named(&self, name: &Bound<'_, PyAny>) -> PyResult<DType> {
        if let Ok(name) = name.cast::<PyString>()
            && let Some(dtype) = dtype::by_name(name.to_str()?)
        {
            return Ok(dtype);
        }
        let dtype = self.dtype(&self.dtype_class.bind(name.py()).call1((name,))?)?;
        dtype.ok_or_else(|| invalid(name.py(), "there is no empty tensor of strings or objects"))
    }

    /// numpy's object for a type; `None` if numpy does not know it.
    pub(crate) fn descriptor(&self, dtype: DType) -> Option<&Py<PyAny>> {
        dtype::numpy_place(dtype).map(|place| &self.descriptors[place])
    }

    /// A tensor as an array, over its memory unless it is small; `None`, with the tensor, if numpy lacks the type or does not allow
    /// that many dimensions.
    ///
    /// # Errors
    /// MemoryError.
    pub(crate) fn array<'py>(
        &self,
        py: Python<'py>,
        tensor: sealane::Tensor,
    ) -> PyResult<Result<Bound<'py, PyAny>, sealane::Tensor>> {
        let descriptor = self.descriptor(tensor.dtype()).filter(|_| is_plain(tensor.meta()));
        let Some(descriptor) = descriptor else { return Ok(Err(tensor)) };
        if tensor.bytes().len() > COPIED_BYTES_MAX {
            return self.array_over(&Bound::new(py, Tensor::new(tensor))?, descriptor.bind(py)).map(Ok);
        }
        // SAFETY: without data, numpy allocates as many bytes as shape and type need, and the tensor has that many.
        unsafe {
            let array = self.make(descriptor.bind(py), &tensor.shape(), ptr::null_mut(), 0)?;
            let head = &*array.as_ptr().cast::<ArrayHead>();
            ptr::copy_nonoverlapping(tensor.bytes().as_ptr(), head.data.cast(), tensor.bytes().len());
            Ok(Ok(array))
        }
    }

    /// An array over a tensor's memory, which keeps the tensor; `descriptor` has elements as large as the tensor's.
    ///
    /// # Errors
    /// MemoryError.
    pub(crate) fn array_over<'py>(
        &self,
        tensor: &Bound<'py, Tensor>,
        descriptor: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let memory = tensor.get().memory();
        let element = tensor.get().meta().dtype().element_bits() / 8;
        let aligned = (memory.start() as u64).is_multiple_of(element.max(1));
        let flags = C_CONTIGUOUS | if aligned { ALIGNED } else { 0 } | if memory.writable() { WRITEABLE } else { 0 };
        // SAFETY: the tensor keeps its memory, which has the bytes that shape and type need, and the array keeps the tensor: the
        // reference to it is handed over.
        unsafe {
            let array = self.make(descriptor, &tensor.get().meta().shape(), memory.start().cast(), flags)?;
            match (self.set_base_object)(array.as_ptr(), tensor.clone().into_ptr()) {
                0 => Ok(array),
                _ => Err(PyErr::fetch(tensor.py())),
            }
        }
    }

    /// # Safety
    /// `data` is null, or lives as long as the array, with as many bytes as shape and type need.
    unsafe fn make<'py>(
        &self,
        descriptor: &Bound<'py, PyAny>,
        shape: &[u64],
        data: *mut c_void,
        flags: c_int,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = descriptor.py();
        if shape.len() > RANK_MAX {
            return Err(invalid(py, format!("numpy has at most {RANK_MAX} dimensions, not {}", shape.len())));
        }
        let dimensions: Strides = shape.iter().map(|dimension| *dimension as isize).collect();
        // SAFETY: as numpy documents `PyArray_NewFromDescr`, which takes over the reference to the descriptor and answers
        // with a reference, or null and an exception; the rest is the caller's promise.
        unsafe {
            let array = (self.new_from_descriptor)(
                self.array_type,
                descriptor.clone().into_ptr(),
                dimensions.len() as c_int,
                dimensions.as_ptr(),
                ptr::null(),
                data,
                flags,
                ptr::null_mut(),
            );
            Bound::from_owned_ptr_or_err(py, array)
        }
    }

    /// numpy's object for a type that `ml_dtypes` adds, or for its own.
    ///
    /// # Errors
    /// InvalidArgument if neither knows the type.
    pub(crate) fn descriptor_of<'py>(&self, py: Python<'py>, dtype: DType) -> PyResult<Bound<'py, PyAny>> {
        if let Some(descriptor) = self.descriptor(dtype) {
            return Ok(descriptor.bind(py).clone());
        }
        let name = dtype::name(dtype);
        let scalar = py.import("ml_dtypes").and_then(|module| module.getattr(&*name));
        let reason = || format!("numpy has no {name}, and ml_dtypes is not installed: use the tensor through DLPack");
        let scalar = scalar.map_err(|_| invalid(py, reason()))?;
        self.dtype_class.bind(py).call1((scalar,))
    }
}

/// True for tensors that can become arrays if numpy has their type.
pub(crate) fn is_plain(meta: &TensorMeta) -> bool {
    !meta.is_dead() && !meta.is_strings() && meta.rank() <= RANK_MAX
}

/// # Safety
/// `start` has `len` members, which stay while the slice is used, or `len` is 0.
unsafe fn slice<'a>(start: *const isize, len: usize) -> &'a [isize] {
    // SAFETY: as the caller promises.
    if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(start, len) } }
}

/// The type of an uncommon descriptor: one that equals a common one, or one of `ml_dtypes`.
#[cold]
fn unusual(descriptor: &Bound<'_, PyAny>) -> PyResult<Option<DType>> {
    let py = descriptor.py();
    if matches!(descriptor.getattr("kind")?.extract::<&str>()?, "O" | "S" | "U") {
        return Ok(None);
    }
    let name: String = descriptor.getattr("name")?.extract()?;
    if descriptor.getattr("byteorder")?.extract::<&str>()? == ">" {
        let reason = format!("the array's {name} is big-endian: send `a.astype(a.dtype.newbyteorder('='))`");
        return Err(invalid(py, reason));
    }
    let known = dtype::by_name(&name);
    // A structured type may have any name, but its size differs.
    let itemsize: u64 = descriptor.getattr("itemsize")?.extract()?;
    let known = known.filter(|dtype| dtype.element_bits() == itemsize * 8);
    known.map(Some).ok_or_else(|| {
        let hint = match name.as_str() {
            name if name.starts_with("datetime64") || name.starts_with("timedelta64") => ": send `a.view('int64')`",
            name if name.starts_with("longdouble") || name.starts_with("float128") => ": send `a.astype('float64')`",
            _ => "",
        };
        invalid(py, format!("no tensor has elements of numpy's {name}{hint}"))
    })
}
