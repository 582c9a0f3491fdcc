//! The CUDA driver, loaded on first use: a program that uses it also runs on hosts without one. Any thread.
//!
//! Only the functions that copies between host and device need, with safe types over the driver's handles. Reference:
//! the CUDA driver API, <https://docs.nvidia.com/cuda/cuda-driver-api/>.
#![allow(unsafe_code)]

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    ptr,
    sync::OnceLock,
};

use libloading::Library;
use sealane_transport::Error;

/// A `CUresult`.
type Status = c_int;
/// A `CUcontext`, `CUstream` or `CUevent`.
type Handle = *mut c_void;

const OUT_OF_MEMORY: Status = 2;
const NO_CONTEXT: Status = 201;
const NOT_READY: Status = 600;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const CAPTURE_RELAXED: c_int = 2;

/// `CU_STREAM_NON_BLOCKING`: it does not wait for the legacy default stream.
const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_DISABLE_TIMING`.
const EVENT_DISABLE_TIMING: c_uint = 2;
/// `CU_MEMHOSTREGISTER_PORTABLE`: for the contexts of all devices.
const REGISTER_PORTABLE: c_uint = 1;

/// `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`.
const DEVICE_ORDINAL: c_int = 9;

/// Names of the driver's library, in the order tried.
const LIBRARIES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

macro_rules! driver {
    ($($field:ident = $name:literal ($($argument:ty),*);)*) => {
        struct Functions {
            $($field: unsafe extern "C" fn($($argument),*) -> Status,)*
        }

        impl Functions {
            fn of(library: &'static Library) -> Result<Functions, String> {
                // SAFETY: each has that signature in every driver that has a function of that name: the driver versions its
                // names, and not what they mean.
                unsafe { Ok(Functions { $($field: *library.get($name).map_err(|error| error.to_string())?,)* }) }
            }
        }
    };
}

driver! {
    init = b"cuInit" (c_uint);
    device_get = b"cuDeviceGet" (*mut c_int, c_int);
    device_get_count = b"cuDeviceGetCount" (*mut c_int);
    device_get_name = b"cuDeviceGetName" (*mut c_char, c_int, c_int);
    primary_context_retain = b"cuDevicePrimaryCtxRetain" (*mut Handle, c_int);
    context_push = b"cuCtxPushCurrent_v2" (Handle);
    context_pop = b"cuCtxPopCurrent_v2" (*mut Handle);
    exchange_capture_mode = b"cuThreadExchangeStreamCaptureMode" (*mut c_int);
    stream_create = b"cuStreamCreate" (*mut Handle, c_uint);
    stream_synchronize = b"cuStreamSynchronize" (Handle);
    stream_wait_event = b"cuStreamWaitEvent" (Handle, Handle, c_uint);
    event_create = b"cuEventCreate" (*mut Handle, c_uint);
    event_record = b"cuEventRecord" (Handle, Handle);
    event_query = b"cuEventQuery" (Handle);
    event_destroy = b"cuEventDestroy_v2" (Handle);
    launch_host_function = b"cuLaunchHostFunc" (Handle, unsafe extern "C" fn(*mut c_void), *mut c_void);
    host_register = b"cuMemHostRegister_v2" (*mut c_void, usize, c_uint);
    host_unregister = b"cuMemHostUnregister" (*mut c_void);
    allocate = b"cuMemAlloc_v2" (*mut u64, usize);
    free = b"cuMemFree_v2" (u64);
    read = b"cuMemcpyDtoH_v2" (*mut c_void, u64, usize);
    write = b"cuMemcpyHtoD_v2" (u64, *const c_void, usize);
    copy_to_host = b"cuMemcpyDtoHAsync_v2" (*mut c_void, u64, usize, Handle);
    copy_to_device = b"cuMemcpyHtoDAsync_v2" (u64, *const c_void, usize, Handle);
    pointer_attribute = b"cuPointerGetAttribute" (*mut c_void, c_int, u64);
    error_name = b"cuGetErrorName" (Status, *mut *const c_char);
    error_string = b"cuGetErrorString" (Status, *mut *const c_char);
}

/// The driver of this host, initialized.
pub(super) struct Driver {
    functions: Functions,
    devices: usize,
}

impl Driver {
    /// # Errors
    /// Unavailable, with what was tried, if no driver is found, or none works.
    pub(super) fn get() -> Result<&'static Driver, Error> {
        static DRIVER: OnceLock<Result<Driver, String>> = OnceLock::new();
        let driver = DRIVER.get_or_init(Driver::load).as_ref();
        driver.map_err(|reason| Error::unavailable("the CUDA driver", reason.as_str()))
    }

    fn load() -> Result<Driver, String> {
        let mut reasons = Vec::new();
        let open = |name: &&str| {
            // SAFETY: loading runs the driver's initializers, which CUDA allows at any time and on any thread.
            unsafe { Library::new(name) }.map_err(|error| reasons.push(error.to_string())).ok()
        };
        let library = LIBRARIES.iter().find_map(open).ok_or_else(|| reasons.join("; "))?;
        // It is never unloaded: its threads and handles are there until the process ends.
        let functions = Functions::of(Box::leak(Box::new(library)))?;
        let mut driver = Driver { functions, devices: 0 };
        let mut count = 0;
        // SAFETY: `count` has room for the answer.
        let found = unsafe {
            driver
                .check("cuInit", (driver.functions.init)(0))
                .and_then(|()| driver.check("cuDeviceGetCount", (driver.functions.device_get_count)(&raw mut count)))
        };
        found.map_err(|error| error.to_string())?;
        driver.devices = usize::try_from(count).unwrap_or(0);
        Ok(driver)
    }

    pub(super) fn devices(&self) -> usize {
        self.devices
    }

    /// The name of a device, such as `NVIDIA H200`.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn device_name(&self, ordinal: usize) -> Result<String, Error> {
        let mut name = [0_u8; 256];
        // SAFETY: the name has room for so many bytes, the last of which the driver makes a zero.
        unsafe {
            let (device, room) = (self.device(ordinal)?, name.len() as c_int);
            let status = (self.functions.device_get_name)(name.as_mut_ptr().cast(), room, device);
            self.check("cuDeviceGetName", status)?;
        }
        Ok(CStr::from_bytes_until_nul(&name).map_or_else(|_| String::new(), |name| name.to_string_lossy().into_owned()))
    }

    /// The device that has memory at this address.
    ///
    /// # Errors
    /// The driver's, most often because no device has memory there.
    pub(super) fn device_of(&self, address: u64) -> Result<usize, Error> {
        let mut ordinal: c_int = 0;
        let place = (&raw mut ordinal).cast();
        // SAFETY: `ordinal` has room for the answer to this question.
        let ask = || unsafe { (self.functions.pointer_attribute)(place, DEVICE_ORDINAL, address) };
        let status = match ask() {
            // Any context will do.
            NO_CONTEXT => Context::of(0)?.with(|_| Ok(ask()))?,
            status => status,
        };
        self.check("cuPointerGetAttribute", status)?;
        Ok(usize::try_from(ordinal).unwrap_or(0))
    }

    fn device(&self, ordinal: usize) -> Result<c_int, Error> {
        if ordinal >= self.devices {
            return Err(Error::invalid(format!("there is no CUDA device {ordinal}: the driver has {}", self.devices)));
        }
        let mut device = 0;
        // SAFETY: `device` has room for the answer.
        self.check("cuDeviceGet", unsafe { (self.functions.device_get)(&raw mut device, ordinal as c_int) })?;
        Ok(device)
    }

    fn check(&self, function: &str, status: Status) -> Result<(), Error> {
        match status {
            0 => Ok(()),
            OUT_OF_MEMORY => Err(Error::full("CUDA memory", format!("{function}: {}", self.words(status)))),
            other => Err(Error::unavailable("the CUDA device", format!("{function}: {}", self.words(other)))),
        }
    }

    /// The driver's text for a status.
    fn words(&self, status: Status) -> String {
        let text = |of: unsafe extern "C" fn(Status, *mut *const c_char) -> Status| {
            let mut text = ptr::null();
            // SAFETY: the driver gives a string that it keeps, or none.
            unsafe {
                let known = of(status, &raw mut text) == 0 && !text.is_null();
                known.then(|| CStr::from_ptr(text).to_string_lossy())
            }
        };
        let name = text(self.functions.error_name).unwrap_or_default();
        format!("{} ({name}, {status})", text(self.functions.error_string).unwrap_or("unknown error".into()))
    }
}

/// Pinned memory, until it is dropped.
pub(super) struct Registered {
    driver: &'static Driver,
    start: *mut u8,
}

// SAFETY: the address is only told to the driver, which any thread may call.
unsafe impl Send for Registered {}
// SAFETY: shared, it does nothing.
unsafe impl Sync for Registered {}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: it was registered at this address, and is still mapped, as the caller of `register` promised. It fails
        // where the process or the device is about to end, which unpins it too.
        let _ = unsafe { (self.driver.functions.host_unregister)(self.start.cast()) };
    }
}

/// The primary context of a device, which the frameworks use too. It is kept until the process ends.
#[derive(Clone, Copy)]
pub(super) struct Context {
    driver: &'static Driver,
    handle: Handle,
}

// SAFETY: a context is for any thread, which makes it current before it uses it.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// # Errors
    /// InvalidArgument for a device that does not exist, and the driver's.
    pub(super) fn of(ordinal: usize) -> Result<Context, Error> {
        let driver = Driver::get()?;
        let (device, mut handle) = (driver.device(ordinal)?, ptr::null_mut());
        // SAFETY: `handle` has room for the answer.
        let status = unsafe { (driver.functions.primary_context_retain)(&raw mut handle, device) };
        driver.check("cuDevicePrimaryCtxRetain", status)?;
        Ok(Context { driver, handle })
    }

    /// Runs `during` with the context current on this thread. A graph capture of another thread is not disturbed.
    ///
    /// # Errors
    /// The driver's, or those of `during`.
    pub(super) fn with<T>(&self, during: impl FnOnce(&Current) -> Result<T, Error>) -> Result<T, Error> {
        let functions = &self.driver.functions;
        // SAFETY: the context is retained for good.
        self.driver.check("cuCtxPushCurrent", unsafe { (functions.context_push)(self.handle) })?;
        let (mut mode, mut popped) = (CAPTURE_RELAXED, ptr::null_mut());
        // SAFETY: `mode` has room for what it was before.
        let exchanged = unsafe { (functions.exchange_capture_mode)(&raw mut mode) };
        let outcome = during(&Current { driver: self.driver });
        // SAFETY: both have room for the answer. They fail only if nothing was exchanged or pushed.
        unsafe {
            if exchanged == 0 {
                let _ = (functions.exchange_capture_mode)(&raw mut mode);
            }
            let _ = (functions.context_pop)(&raw mut popped);
        }
        outcome
    }
}

/// Proof that a context is current on this thread.
pub(super) struct Current {
    driver: &'static Driver,
}

/// A stream that this crate has created.
pub(super) struct Stream(Handle);

/// A stream created elsewhere, as a number: 1 is the legacy default stream, 2 the per-thread default stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ForeignStream(pub(super) u64);

// SAFETY: streams are used by any thread on which their context is current, as `Current` says.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// The number by which other libraries know it.
    pub(super) fn number(&self) -> u64 {
        self.0 as u64
    }
}

/// Rung by the driver, on a thread of its own.
pub(super) trait Bell: Sync {
    /// It must not call the driver.
    fn ring(&self);
}

/// A point in a stream.
pub(super) struct Event {
    driver: &'static Driver,
    handle: Handle,
}

// SAFETY: as for streams.
unsafe impl Send for Event {}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: it was created, and is destroyed once; the driver keeps it as long as a stream waits for it.
        let _ = unsafe { (self.driver.functions.event_destroy)(self.handle) };
    }
}

impl Current {
    /// Pins host memory, so that copies from and to it, on any device, are asynchronous and at full speed.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// The memory stays mapped until the [`Registered`] is dropped.
    pub(super) unsafe fn register(&self, start: *mut u8, len: usize) -> Result<Registered, Error> {
        // SAFETY: the caller says that it is mapped.
        let status = unsafe { (self.driver.functions.host_register)(start.cast(), len, REGISTER_PORTABLE) };
        self.driver.check("cuMemHostRegister", status)?;
        Ok(Registered { driver: self.driver, start })
    }

    /// # Errors
    /// The driver's.
    pub(super) fn stream(&self) -> Result<Stream, Error> {
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` has room for the answer.
        let status = unsafe { (self.driver.functions.stream_create)(&raw mut handle, STREAM_NON_BLOCKING) };
        self.driver.check("cuStreamCreate", status)?;
        Ok(Stream(handle))
    }

    fn event_in(&self, stream: Handle) -> Result<Event, Error> {
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` has room for the answer.
        let status = unsafe { (self.driver.functions.event_create)(&raw mut handle, EVENT_DISABLE_TIMING) };
        self.driver.check("cuEventCreate", status)?;
        let event = Event { driver: self.driver, handle };
        // SAFETY: the event is new, and the stream the caller's.
        self.driver.check("cuEventRecord", unsafe { (self.driver.functions.event_record)(event.handle, stream) })?;
        Ok(event)
    }

    /// Allocates memory of the device.
    ///
    /// # Errors
    /// ResourceExhausted if it has none, and the driver's.
    pub(super) fn allocate(&self, len: usize) -> Result<u64, Error> {
        let mut address = 0;
        // SAFETY: `address` has room for the answer.
        let status = unsafe { (self.driver.functions.allocate)(&raw mut address, len) };
        self.driver.check("cuMemAlloc", status).map(|()| address)
    }

    /// # Safety
    /// It is from [`allocate`](Self::allocate), and nobody uses it any more.
    pub(super) unsafe fn free(&self, address: u64) {
        // SAFETY: as the caller promises. It fails where the device is lost, and the memory with it.
        let _ = unsafe { (self.driver.functions.free)(address) };
    }

    /// Copies bytes to the host, and waits until they are there.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// As many bytes at `device` are memory of the device.
    pub(super) unsafe fn read(&self, host: &mut [u8], device: u64) -> Result<(), Error> {
        // SAFETY: as the caller promises; the host's are borrowed.
        let status = unsafe { (self.driver.functions.read)(host.as_mut_ptr().cast(), device, host.len()) };
        self.driver.check("cuMemcpyDtoH", status)
    }

    /// Copies bytes to the device, and waits until they are there.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// As many bytes at `device` are memory of the device.
    pub(super) unsafe fn write(&self, device: u64, host: &[u8]) -> Result<(), Error> {
        // SAFETY: as the caller promises; the host's are borrowed.
        let status = unsafe { (self.driver.functions.write)(device, host.as_ptr().cast(), host.len()) };
        self.driver.check("cuMemcpyHtoD", status)?;
        // From unpinned memory the call returns before the copy has ended; it runs in the default stream.
        // SAFETY: that stream is there.
        self.driver.check("cuStreamSynchronize", unsafe { (self.driver.functions.stream_synchronize)(ptr::null_mut()) })
    }

    /// Records an event at what the stream has been given so far.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn record(&self, stream: &Stream) -> Result<Event, Error> {
        self.event_in(stream.0)
    }

    /// Makes `stream` wait for everything that was put into `other` so far.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// `other` is a stream that exists, of this context.
    pub(super) unsafe fn wait_for(&self, stream: &Stream, other: ForeignStream) -> Result<(), Error> {
        let event = self.event_in(other.0 as Handle)?;
        // SAFETY: both exist.
        let status = unsafe { (self.driver.functions.stream_wait_event)(stream.0, event.handle, 0) };
        self.driver.check("cuStreamWaitEvent", status)
    }

    /// Whether the stream has passed the event.
    ///
    /// # Errors
    /// Why it never will.
    pub(super) fn has_passed(&self, event: &Event) -> Result<bool, Error> {
        // SAFETY: the event exists.
        match unsafe { (self.driver.functions.event_query)(event.handle) } {
            NOT_READY => Ok(false),
            status => self.driver.check("cuEventQuery", status).map(|()| true),
        }
    }

    /// Rings a bell when the stream has done everything it was given so far; never if the device is lost before.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn ring<B: Bell>(&self, stream: &Stream, bell: &'static B) -> Result<(), Error> {
        unsafe extern "C" fn rings<B: Bell>(bell: *mut c_void) {
            // SAFETY: it is the bell that was given, which lives for good and is for any thread.
            unsafe { &*bell.cast::<B>() }.ring();
        }
        let bell = ptr::from_ref(bell).cast_mut().cast();
        // SAFETY: the driver calls the function with the bell, once.
        let status = unsafe { (self.driver.functions.launch_host_function)(stream.0, rings::<B>, bell) };
        self.driver.check("cuLaunchHostFunc", status)
    }

    /// Puts a copy from the device to the host into the stream.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// Until the stream has passed it, nobody else uses the `len` bytes at `host`, and those at `device` are memory of the device.
    pub(super) unsafe fn copy_to_host(&self, host: *mut u8, device: u64, len: usize, on: &Stream) -> Result<(), Error> {
        // SAFETY: as the caller promises.
        let status = unsafe { (self.driver.functions.copy_to_host)(host.cast(), device, len, on.0) };
        self.driver.check("cuMemcpyDtoHAsync", status)
    }

    /// Puts a copy from the host to the device into the stream.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// Until the stream has passed it, nobody writes to the `len` bytes at `host`, and those at `device` are memory of the device
    /// that nobody else uses.
    pub(super) unsafe fn copy_to_device(
        &self,
        device: u64,
        host: *const u8,
        len: usize,
        on: &Stream,
    ) -> Result<(), Error> {
        // SAFETY: as the caller promises.
        let status = unsafe { (self.driver.functions.copy_to_device)(device, host.cast(), len, on.0) };
        self.driver.check("cuMemcpyHtoDAsync", status)
    }
}
