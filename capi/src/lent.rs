//! Memory of C code that the library uses until it releases it: tensors sent in place, and destinations.
#![allow(unsafe_code)]

use std::{
    ffi::c_void,
    ops::Range,
    ptr::{NonNull, null_mut},
    slice,
    sync::Arc,
};

use bytes::Bytes;
use sealane::{Buffer, Tensor};
use sealane_runtime::{Lender, copy_bytes};

use crate::{
    error::sealane_error,
    executor::Executor,
    fork::Process,
    guard::{Outcome, check},
    input::Context,
    memory::allocate,
    meta::{meta, sealane_meta},
    task::sealane_task,
};

/// Called when the library no longer uses memory that was lent to it: once per accepted call, on the thread of the task's
/// callbacks (see sealane_done), before or after the call's own callback. Memory that a peer or the daemon may still use when
/// the task is detached is released later, or never.
pub type sealane_release = Option<unsafe extern "C" fn(context: *mut c_void)>;

/// A tensor to send, publish or push.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct sealane_source {
    /// Type and shape.
    pub meta: sealane_meta,
    /// The bytes: row-major, little-endian, contiguous. May be NULL if there are none.
    pub data: *const c_void,
    /// Number of bytes; must match type and shape.
    pub bytes: usize,
    /// NULL: the bytes are copied before the function returns. Otherwise they must not change until this is called. An attached
    /// task sends memory of its arena (sealane_alloc) in place, and copies other memory of more than 512 bytes into the arena:
    /// before the function returns or, if the arena is full, as soon as there is room.
    pub release: sealane_release,
    /// Passed to release.
    pub release_context: *mut c_void,
}

/// Memory that a recv writes its tensor to. Only the library may use it until release is called, which is not before the tensor
/// is freed.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct sealane_destination {
    /// The first byte. NULL: no destination, and the tensor arrives in the library's memory. An attached task writes memory of
    /// its arena (sealane_alloc) in place, and other memory by a copy.
    pub memory: *mut c_void,
    /// Length in bytes. If a longer tensor arrives, the recv ends with SEALANE_CODE_INVALID_ARGUMENT, and may be repeated.
    pub bytes: usize,
    /// Must not be NULL unless memory is. For sealane_pull_all_rows_wait, which calls none, it must be NULL.
    pub release: sealane_release,
    /// Passed to release.
    pub release_context: *mut c_void,
}

struct Lent {
    start: NonNull<u8>,
    bytes: usize,
    release: unsafe extern "C" fn(*mut c_void),
    context: Context,
    executor: Arc<Executor>,
    process: Process,
}

// SAFETY: C code lends the memory to any thread.
unsafe impl Send for Lent {}
// SAFETY: a shared one only gives out `&[u8]`.
unsafe impl Sync for Lent {}

impl Lent {
    /// # Safety
    /// The bytes stay readable until `release` is called, and `release` may be called with its context.
    unsafe fn new(
        task: &sealane_task,
        start: *mut c_void,
        bytes: usize,
        release: unsafe extern "C" fn(*mut c_void),
        context: *mut c_void,
    ) -> Self {
        task.executor.lend();
        Self {
            start: NonNull::new(start.cast()).unwrap_or(NonNull::dangling()),
            bytes,
            release,
            context: Context::new(context),
            executor: task.executor.clone(),
            process: task.process,
        }
    }
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: readable and unchanged until it is released, as C code promises.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl Lender for Lent {
    fn give_back(&self, _token: u64) {
        // The buffer drops its reference to this right after, which is what releases the memory.
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // In a child there is no thread to do it, and a lock may be held forever.
        if !self.process.is_over() {
            let (release, context) = (self.release, self.context);
            // SAFETY: as C code promises; nobody uses the memory any more.
            self.executor.release(Box::new(move || unsafe { release(context.get()) }));
        }
    }
}

/// A tensor that is checked but not taken over yet, so that later ones in an array may still be refused.
pub(crate) struct Source<'a> {
    tensor: Option<Tensor>,
    given: &'a sealane_source,
}

impl<'a> Source<'a> {
    /// # Errors
    /// InvalidArgument if metadata and bytes do not fit, ResourceExhausted if there is no memory for a copy.
    ///
    /// # Safety
    /// As `sealane_source` says.
    pub(crate) unsafe fn new(task: &sealane_task, given: &'a sealane_source) -> Outcome<Self> {
        let sealane_source { meta: of, data, bytes, release, .. } = given;
        if *bytes > isize::MAX as usize {
            return Err(sealane_error::invalid(format!("a tensor of {bytes} bytes is too large")));
        }
        if *bytes > 0 {
            check(data.cast::<u8>(), "the tensor's data")?;
        }
        // SAFETY: as C code promises of a source.
        let tensor = unsafe { meta(of) }?;
        tensor.check_bytes(*bytes as u64)?;
        let tensor = if tensor.is_dead() {
            Some(Tensor::dead(tensor.dtype()))
        } else if release.is_some() {
            None
        } else {
            // SAFETY: as C code promises of a source.
            let bytes = unsafe { crate::input::array(data.cast::<u8>(), *bytes, "the tensor's data") }?;
            Some(Tensor::new(tensor, copy(task, bytes)?)?)
        };
        Ok(Self { tensor, given })
    }

    /// Bytes that wait with its call, if that has to wait: those that are outside the arena and must be copied.
    pub(crate) fn waiting_bytes(given: &sealane_source, arena: &Range<*const u8>) -> u64 {
        match arena.contains(&given.data.cast::<u8>()) && given.bytes > SMALL_BYTES {
            true => 0,
            false => given.bytes as u64,
        }
    }

    /// The tensor; from now on the memory belongs to the library until it is released.
    ///
    /// # Errors
    /// Only those that [`new`](Self::new) did not find.
    ///
    /// # Safety
    /// As `sealane_source` says.
    pub(crate) unsafe fn take(self, task: &sealane_task) -> Outcome<Tensor> {
        let sealane_source { meta: of, data, bytes, release, release_context } = *self.given;
        // SAFETY: as C code promises of a source.
        let lent = release.map(|release| unsafe { Lent::new(task, data.cast_mut(), bytes, release, release_context) });
        match (self.tensor, lent) {
            (Some(tensor), _) => Ok(tensor),
            (None, lent) => {
                let bytes = lent.map(Bytes::from_owner).unwrap_or_default();
                // SAFETY: as C code promises of a source.
                Ok(Tensor::new(unsafe { meta(&of) }?, bytes)?)
            }
        }
    }
}

/// Memory that a task sends from, with a copy of `bytes`: a single copy, directly to where it is sent from, if there is room.
fn copy(task: &sealane_task, bytes: &[u8]) -> Outcome<Buffer> {
    if bytes.len() <= SMALL_BYTES {
        return Ok(Buffer::copy_of(bytes));
    }
    match allocate(task, bytes.len()) {
        Ok(mut copy) => {
            copy_bytes(&mut copy, bytes);
            Ok(copy)
        }
        // The copy waits there until there is room.
        Err(error) if error.is_full() && !task.is_embedded() => Ok(Buffer::copy_of(bytes)),
        Err(error) => Err(error),
    }
}

/// Tensors up to this size travel in the ring, and are copied there anyway.
const SMALL_BYTES: usize = 512;

/// The destination behind a pointer; for null, an empty one.
///
/// # Errors
/// InvalidArgument.
///
/// # Safety
/// Null, or a destination.
pub(crate) unsafe fn destination(given: *const sealane_destination) -> Outcome<sealane_destination> {
    if given.is_null() {
        return Ok(sealane_destination { memory: null_mut(), bytes: 0, release: None, release_context: null_mut() });
    }
    check(given, "destination")?;
    // SAFETY: as this function's caller promises.
    Ok(unsafe { *given })
}

/// Checks a destination before it is [lent](lend).
///
/// # Errors
/// InvalidArgument.
pub(crate) fn check_destination(given: &sealane_destination) -> Outcome {
    if given.memory.is_null() {
        return Ok(());
    }
    if given.release.is_none() {
        return Err(sealane_error::invalid(
            "a destination needs a release callback: the library calls it when it is done with the memory",
        ));
    }
    match isize::try_from(given.bytes) {
        Ok(_) => Ok(()),
        Err(_) => Err(sealane_error::invalid(format!("a destination of {} bytes is too large", given.bytes))),
    }
}

/// A destination as a buffer; `None` if it has no memory. From now on it belongs to the library until it is released.
///
/// # Safety
/// As `sealane_destination` says.
pub(crate) unsafe fn lend(task: &sealane_task, given: &sealane_destination) -> Option<Buffer> {
    let sealane_destination { memory, bytes, release, release_context } = *given;
    let (start, release) = (NonNull::new(memory.cast::<u8>())?, release?);
    // SAFETY: as C code promises of a destination.
    let lent = unsafe { Lent::new(task, memory, bytes, release, release_context) };
    // SAFETY: the memory belongs to the library alone, and is writable, until it is released, which is when the lender is dropped.
    Some(unsafe { Buffer::lent(start, bytes, 0, Arc::new(lent)) })
}

/// A destination of a blocked caller, as a buffer; `None` if it has no memory. Its release is not reported.
///
/// # Errors
/// InvalidArgument.
///
/// # Safety
/// The memory is no longer than `isize::MAX`, and belongs to the library alone, and is writable, until the buffer is gone.
pub(crate) unsafe fn lend_while_waiting(given: &sealane_destination) -> Outcome<Option<Buffer>> {
    let Some(start) = NonNull::new(given.memory.cast::<u8>()) else { return Ok(None) };
    if given.release.is_some() {
        return Err(sealane_error::invalid(
            "destination: release must be NULL in a function that waits, which calls none",
        ));
    }
    // SAFETY: as this function's caller promises.
    Ok(Some(unsafe { Buffer::lent(start, given.bytes, 0, Arc::new(Kept)) }))
}

/// Lends memory whose owner is not told when it is given back.
struct Kept;

impl Lender for Kept {
    fn give_back(&self, _token: u64) {}
}
