//! Tensors in the memory of CUDA devices: as described by DLPack and `__cuda_array_interface__`, and as destinations. Runs with the
//! GIL; the object that keeps the memory may be dropped on any thread.
#![allow(unsafe_code)]

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
};

use pyo3::{intern, prelude::*, types::PyDict};
use sealane::{
    Error, Tensor, TensorMeta,
    cuda::{self, Copying, DeviceBytes, DeviceTensor, Direction, Staged},
};

use crate::{
    errors::{OrRaise, invalid},
    memory::{Layout, Strides},
    numpy::Numpy,
    wait::UnderWay,
};

/// The number of the legacy default stream.
const LEGACY_STREAM: u64 = 1;

/// An array in the memory of a CUDA device, row-major without gaps.
#[derive(Clone)]
pub(crate) struct OnDevice {
    tensor: DeviceTensor,
    writable: bool,
}

impl OnDevice {
    /// `after` is a stream whose work must complete before the memory is used.
    ///
    /// # Errors
    /// InvalidArgument for elements with gaps between them, and for types and shapes that no tensor has.
    ///
    /// # Safety
    /// While `keeper` is referenced, the elements are memory of the device, and writable if `writable`; `after` is one of its
    /// streams.
    pub(crate) unsafe fn new(
        layout: &Layout,
        (device, address): (usize, u64),
        after: Option<u64>,
        writable: bool,
        keeper: Py<PyAny>,
    ) -> Result<OnDevice, Error> {
        if layout.strides.is_some() {
            return Err(Error::invalid(
                "a tensor on a device must be row-major without gaps: make it contiguous first",
            ));
        }
        let meta = TensorMeta::new(layout.dtype, &layout.shape)?;
        // SAFETY: as the caller promises.
        let bytes = unsafe { DeviceBytes::new(device, address, layout.len, after, Arc::new(keeper)) };
        Ok(OnDevice { tensor: DeviceTensor::new(meta, bytes)?, writable })
    }

    /// The array described by an object's `__cuda_array_interface__`, version 2 or 3; `None` if it has none.
    ///
    /// # Errors
    /// InvalidArgument for masks, unknown types, and addresses that the driver does not know.
    pub(crate) fn by_interface(object: &Bound<'_, PyAny>, direction: Direction) -> PyResult<Option<OnDevice>> {
        let py = object.py();
        let Some(interface) = object.getattr_opt(intern!(py, "__cuda_array_interface__"))? else { return Ok(None) };
        let interface = interface.cast_into::<PyDict>()?;
        let member = |name: &str| Ok::<_, PyErr>(interface.get_item(name)?.filter(|value| !value.is_none()));
        let needed = |name: &str| {
            member(name)?.ok_or_else(|| invalid(py, format!("the CUDA array interface of this object has no '{name}'")))
        };
        if member("mask")?.is_some() {
            return Err(invalid(py, "the array has a mask, which no tensor has"));
        }
        let (address, read_only): (u64, bool) = needed("data")?.extract()?;
        let shape: Vec<u64> = needed("shape")?.extract()?;
        let strides: Option<Vec<isize>> = member("strides")?.map(|strides| strides.extract()).transpose()?;
        let version: u32 = needed("version")?.extract()?;
        let stream: Option<u64> = match version {
            // Version 2 implies only the default stream.
            ..3 => Some(LEGACY_STREAM),
            _ => member("stream")?.map(|stream| stream.extract()).transpose()?,
        };
        let dtype = Numpy::get(py)?.dtype_named(&needed("typestr")?)?;
        if strides.as_ref().is_some_and(|strides| strides.len() != shape.len()) {
            return Err(invalid(
                py,
                "the CUDA array interface of this object has strides of another rank than its shape",
            ));
        }
        let layout = Layout::new(dtype, shape.into(), strides.map(Strides::from_vec)).or_raise(py)?;
        // The location of empty memory is unknown.
        let device = if layout.len == 0 { Ok(0) } else { py.detach(|| cuda::device_of(address)) }.or_raise(py)?;
        // SAFETY: the object says so, and it is kept.
        let of = unsafe { OnDevice::new(&layout, (device, address), stream, !read_only, object.clone().unbind()) };
        let of = of.or_raise(py)?;
        if layout.len == 0 {
            return Ok(Some(of));
        }
        // Ordered now and on this thread, to which the per-thread stream 2 refers.
        py.detach(|| of.ordered(direction)).or_raise(py).map(Some)
    }

    fn ordered(self, direction: Direction) -> Result<OnDevice, Error> {
        let bytes = self.tensor.bytes().clone().ordered(direction)?;
        Ok(OnDevice { tensor: DeviceTensor::new(self.tensor.meta().clone(), bytes)?, writable: self.writable })
    }

    pub(crate) fn writable(&self) -> bool {
        self.writable
    }

    pub(crate) fn meta(&self) -> &TensorMeta {
        self.tensor.meta()
    }

    pub(crate) fn into_tensor(self) -> DeviceTensor {
        self.tensor
    }

    pub(crate) fn bytes(&self) -> DeviceBytes {
        self.tensor.bytes().clone()
    }
}

/// The stream in which copies of this device are enqueued, for code that orders it after its own.
///
/// # Errors
/// Unavailable if there is no driver, and those of the driver.
pub(crate) fn stream(py: Python<'_>, device: usize, direction: Direction) -> PyResult<u64> {
    // The driver may take a second to start.
    py.detach(|| cuda::stream(device, direction)).or_raise(py)
}

impl<C: UnderWay> UnderWay for Staged<C> {
    type Value = C::Value;

    fn look(&mut self) -> Option<Result<C::Value, Error>> {
        match self.poll_call(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(call)) => call.look(),
            Poll::Ready(Err(error)) => Some(Err(error)),
            Poll::Pending => None,
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<C::Value, Error>> {
        ready!(self.poll_call(context))?.poll(context)
    }
}

/// A tensor being received, which is copied to a device if its place is there.
pub(crate) struct Landing<C> {
    call: C,
    place: Option<(sealane::Task, OnDevice)>,
    copying: Option<(Copying, Tensor)>,
}

impl<C: UnderWay<Value = Tensor>> Landing<C> {
    /// `place` is in a device's memory; without it, the tensor stays where it arrives.
    pub(crate) fn new(call: C, place: Option<(sealane::Task, OnDevice)>) -> Self {
        Self { call, place, copying: None }
    }

    fn proceed(
        &mut self,
        mut ask: impl FnMut(&mut C) -> Poll<Result<Tensor, Error>>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Tensor, Error>> {
        if self.copying.is_none() {
            let tensor = ready!(ask(&mut self.call))?;
            let Some((task, place)) = self.place.take() else { return Poll::Ready(Ok(tensor)) };
            matches(tensor.meta(), place.meta())?;
            let tensor = tensor.into_shared();
            let copying = task.copy_to_device(vec![(tensor.share(), place.bytes())]);
            self.copying = Some((copying, tensor));
        }
        let (copying, _) = self.copying.as_mut().expect("it was begun");
        let copied = ready!(Future::poll(Pin::new(copying), context));
        let (_, tensor) = self.copying.take().expect("it was begun");
        Poll::Ready(copied.map(|()| tensor))
    }
}

impl<C: UnderWay<Value = Tensor>> UnderWay for Landing<C> {
    type Value = Tensor;

    fn look(&mut self) -> Option<Result<Tensor, Error>> {
        let look = |call: &mut C| call.look().map_or(Poll::Pending, Poll::Ready);
        match self.proceed(look, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => None,
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Tensor, Error>> {
        let waker = context.waker().clone();
        self.proceed(|call| call.poll(&mut Context::from_waker(&waker)), context)
    }
}

/// # Errors
/// InvalidArgument if a tensor of `found` does not fit into an array of `wanted`.
pub(crate) fn matches(found: &TensorMeta, wanted: &TensorMeta) -> Result<(), Error> {
    if found == wanted {
        return Ok(());
    }
    let said = |meta: &TensorMeta| match meta.is_strings() {
        true => "strings".into(),
        false => crate::dtype::name(meta.dtype()),
    };
    let (kind, shape, room) = (said(found), found.shape(), wanted.shape());
    let reason =
        format!("the tensor is {kind} of shape {:?}, and out is {} of shape {:?}", &shape[..], said(wanted), &room[..]);
    Err(Error::invalid(reason))
}
