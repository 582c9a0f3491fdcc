//! Calls in flight: callbacks, and cancellation.
#![allow(unsafe_code)]

use std::{ffi::c_void, future::Future, sync::Arc};

use sealane::Error;

use crate::{
    error::sealane_error,
    executor::{Call, Executor},
    fork::Process,
    guard::{Outcome, check, entry, given},
    input::Context,
    task::sealane_task,
    tensor::sealane_tensor,
};

/// Called when a call has ended: with NULL on success, else with the error, which belongs to the library and is valid until
/// this returns.
///
/// If the function that starts a call returns NULL, the callback is called exactly once, whatever happens; if it returns an
/// error, never. All callbacks of a task run one after the other on one thread of the library: never within the function that
/// started the call, and with no lock of the library held. So a callback may call any function of this header; while it runs,
/// the task's other callbacks wait. It must not throw. In the child of a fork, no callbacks are called. While a drained daemon
/// is being replaced, callbacks may wait for the next one.
pub type sealane_done = Option<unsafe extern "C" fn(context: *mut c_void, error: *const sealane_error)>;

/// The same for a call that returns a tensor, which the callback must free; NULL if there is an error.
pub type sealane_received =
    Option<unsafe extern "C" fn(context: *mut c_void, error: *const sealane_error, tensor: *mut sealane_tensor)>;

/// Called when a call has ended that returns any number of tensors: with the tensors, each of which the callback must free, in an
/// array that is valid until this returns; or with the error and no tensors. Otherwise like sealane_done.
pub type sealane_received_all = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        error: *const sealane_error,
        tensors: *const *mut sealane_tensor,
        count: usize,
    ),
>;

/// Handle of a started call, for cancelling it. Free it with sealane_call_free, on any thread, before or after the call has
/// ended.
pub struct sealane_call {
    number: u64,
    executor: Arc<Executor>,
    process: Process,
}

/// A callback that only learns that a call has ended.
#[derive(Clone, Copy)]
pub(crate) struct Done(sealane_done, Context);

impl Done {
    pub(crate) fn new(done: sealane_done, context: *mut c_void) -> Self {
        Self(done, Context::new(context))
    }

    pub(crate) fn tell(self, outcome: Outcome) {
        let Self(Some(done), context) = self else { return };
        let error = outcome.err();
        let error = error.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the callback is what C code gave for this; the error lives until it returns.
        unsafe { done(context.get(), error) }
    }

    pub(crate) fn tell_end(self, outcome: Outcome<Result<(), Error>>) {
        self.tell(outcome.and_then(|ended| Ok(ended?)));
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Receiver(unsafe extern "C" fn(*mut c_void, *const sealane_error, *mut sealane_tensor), Context);

impl Receiver {
    /// # Errors
    /// InvalidArgument if there is none.
    pub(crate) fn new(received: sealane_received, context: *mut c_void) -> Outcome<Self> {
        match received {
            Some(received) => Ok(Self(received, Context::new(context))),
            None => Err(sealane_error::invalid("received: there is no callback")),
        }
    }

    pub(crate) fn tell(self, outcome: Outcome<sealane_tensor>) {
        let Self(received, context) = self;
        match outcome {
            // SAFETY: the callback is what C code gave for this, and the tensor is its own.
            Ok(tensor) => unsafe { received(context.get(), std::ptr::null(), tensor.into_raw()) },
            // SAFETY: the error lives until it returns.
            Err(error) => unsafe { received(context.get(), &error, std::ptr::null_mut()) },
        }
    }
}

/// A callback that gets any number of tensors.
#[derive(Clone, Copy)]
pub(crate) struct ReceiverOfAll(
    unsafe extern "C" fn(*mut c_void, *const sealane_error, *const *mut sealane_tensor, usize),
    Context,
);

impl ReceiverOfAll {
    /// # Errors
    /// InvalidArgument if there is none; `what` names it in the message.
    pub(crate) fn new(received: sealane_received_all, context: *mut c_void, what: &str) -> Outcome<Self> {
        match received {
            Some(received) => Ok(Self(received, Context::new(context))),
            None => Err(sealane_error::invalid(format!("{what}: there is no callback"))),
        }
    }

    pub(crate) fn tell(self, outcome: Outcome<Vec<sealane_tensor>>) {
        let Self(received, context) = self;
        match outcome {
            Ok(tensors) => {
                let tensors: Vec<_> = tensors.into_iter().map(sealane_tensor::into_raw).collect();
                // SAFETY: the callback is what C code gave for this, and the tensors are its own.
                unsafe { received(context.get(), std::ptr::null(), tensors.as_ptr(), tensors.len()) }
            }
            // SAFETY: the error lives until it returns.
            Err(error) => unsafe { received(context.get(), &error, std::ptr::null(), 0) },
        }
    }
}

/// Checks the place for a call's handle, which may be null.
///
/// # Errors
/// InvalidArgument.
pub(crate) fn check_place(call: *mut *mut sealane_call) -> Outcome {
    if call.is_null() { Ok(()) } else { check(call, "call") }
}

/// The number of a new call; its handle is written to the place if there is one.
///
/// # Safety
/// The place is null or can be written.
pub(crate) unsafe fn numbered(executor: &Arc<Executor>, process: Process, place: *mut *mut sealane_call) -> u64 {
    let number = executor.number();
    if !place.is_null() {
        let call = sealane_call { number, executor: executor.clone(), process };
        // SAFETY: as this function's caller promises.
        unsafe { place.write(Box::into_raw(Box::new(call))) };
    }
    number
}

/// A call without a result; `None` if nobody wants to know its end: then it continues by itself.
/// # Safety
/// The place is null or can be written.
pub(crate) unsafe fn ending<F>(
    task: &sealane_task,
    future: F,
    done: Done,
    place: *mut *mut sealane_call,
) -> Option<Call>
where
    F: Future<Output = Result<(), Error>> + Send + 'static,
{
    if done.0.is_none() && place.is_null() {
        return None;
    }
    // SAFETY: as this function's caller promises.
    let number = unsafe { numbered(&task.executor, task.process, place) };
    Some(Executor::call(number, 0, future, move |outcome| done.tell_end(outcome)))
}

/// Cancels a call: its callback is called with SEALANE_CODE_CANCELLED, unless the call has ended. This does not wait for that.
/// A recv or pull is cancelled here and at the peer; a send, push or publication continues unobserved.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_call_cancel(call: *mut sealane_call) -> *mut sealane_error {
    entry(|| {
        // SAFETY: null, or a call of this library that was not freed.
        let call = unsafe { given(call, "call") }?;
        call.process.check()?;
        call.executor.give_up(call.number, sealane_error::cancelled("the call was cancelled"));
        Ok(())
    })
}

/// Frees the handle of a call without cancelling it; does nothing with NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_call_free(call: *mut sealane_call) {
    if !call.is_null() {
        // SAFETY: `numbered` made it, and it is freed once.
        drop(unsafe { Box::from_raw(call) });
    }
}
