//! Receiving.
#![allow(unsafe_code)]

use std::ffi::c_void;

use sealane::{RecvOptions, RecvOutcome};

use crate::{
    call::{Receiver, check_place, numbered, sealane_call, sealane_received},
    error::sealane_error,
    executor::Executor,
    guard::{Outcome, entry},
    input::{array, sealane_text, text, timeout},
    lent::{check_destination, destination, lend, sealane_destination},
    send::places,
    task::{sealane_task, task},
};

/// One of many tensors that are requested together.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct sealane_wanted {
    /// Its name.
    pub key: sealane_text,
    /// Where to write it; memory is NULL if the library is to provide it.
    pub destination: sealane_destination,
    /// Passed to the callback for this tensor.
    pub context: *mut c_void,
}

/// Requests a tensor from the task `from`, which may send it before or after; `received` is called when it has arrived or the
/// recv has failed.
///
/// `destination` may be NULL: then the tensor arrives in the library's memory. `timeout_ms` says how long to wait: 0 is the
/// default of the daemon or the engine, SEALANE_NO_TIMEOUT no limit. `call` may be NULL; else it is written before `received`
/// is called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_recv(
    task: *mut sealane_task,
    from: sealane_text,
    step: i64,
    key: sealane_text,
    destination: *const sealane_destination,
    timeout_ms: i64,
    received: sealane_received,
    context: *mut c_void,
    call: *mut *mut sealane_call,
) -> *mut sealane_error {
    // SAFETY: as this function's caller promises.
    unsafe { recv(task, from, step, key, destination, timeout_ms, false, (received, context, call)) }
}

/// sealane_recv that does not wait for a task whose process has left, or leaves: it ends with SEALANE_CODE_UNAVAILABLE then, at once if
/// it had left before. A task that was never there is waited for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_recv_fail_if_gone(
    task: *mut sealane_task,
    from: sealane_text,
    step: i64,
    key: sealane_text,
    destination: *const sealane_destination,
    timeout_ms: i64,
    received: sealane_received,
    context: *mut c_void,
    call: *mut *mut sealane_call,
) -> *mut sealane_error {
    // SAFETY: as this function's caller promises.
    unsafe { recv(task, from, step, key, destination, timeout_ms, true, (received, context, call)) }
}

/// # Safety
/// As the header asks of C code.
#[allow(clippy::too_many_arguments, reason = "those of a function of the header")]
unsafe fn recv(
    task: *mut sealane_task,
    from: sealane_text,
    step: i64,
    key: sealane_text,
    destination: *const sealane_destination,
    timeout_ms: i64,
    fail_if_gone: bool,
    (received, context, call): (sealane_received, *mut c_void, *mut *mut sealane_call),
) -> *mut sealane_error {
    entry(|| {
        check_place(call)?;
        let receiver = Receiver::new(received, context)?;
        let timeout = timeout(timeout_ms)?;
        // SAFETY: as the header asks of C code.
        unsafe {
            let task = self::task(task)?;
            let (from, key) = (text(from, "from")?, text(key, "key")?);
            let destination = self::destination(destination)?;
            check_destination(&destination)?;
            task.ready_for(1, timeout, |_| key.len() as u64)?;
            let options = RecvOptions { timeout, destination: lend(task, &destination).map(Into::into), fail_if_gone };
            let receiving = task.task.recv_with(from, step, key, options);
            let number = numbered(&task.executor, task.process, call);
            task.executor.start([Executor::call(number, 0, receiving, move |outcome| tell(receiver, outcome))]);
        }
        Ok(())
    })
}

/// sealane_recv for many tensors at a fraction of the cost each, with one timeout. `received` is called for each, with the
/// context of its entry. `calls` is NULL or has an entry for each.
///
/// A list that is too long is refused as a whole, as by sealane_send_all. If this returns an error, none of them was requested.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_recv_all(
    task: *mut sealane_task,
    from: sealane_text,
    step: i64,
    wanted: *const sealane_wanted,
    count: usize,
    timeout_ms: i64,
    received: sealane_received,
    calls: *mut *mut sealane_call,
) -> *mut sealane_error {
    entry(|| {
        check_place(calls)?;
        let timeout = timeout(timeout_ms)?;
        // SAFETY: as the header asks of C code.
        unsafe {
            let task = self::task(task)?;
            let (from, wanted) = (text(from, "from")?, array(wanted, count, "wanted")?);
            let checked = wanted.iter().map(|each| {
                check_destination(&each.destination)?;
                Ok((text(each.key, "key")?, &each.destination, Receiver::new(received, each.context)?))
            });
            let checked = checked.collect::<Outcome<Vec<_>>>()?;
            let bytes = || checked.iter().map(|(key, ..)| key.len() as u64).sum();
            task.ready_for(count, timeout, |_| bytes())?;
            let asked = checked.iter().map(|(key, destination, _)| {
                let destination = lend(task, destination).map(Into::into);
                (*key, RecvOptions { timeout, destination, ..RecvOptions::default() })
            });
            let receivings = task.task.recv_all(from, step, asked);
            let started = receivings.into_iter().zip(checked).zip(places(calls, count));
            let started = started.map(|((receiving, (_, _, receiver)), place)| {
                let number = numbered(&task.executor, task.process, place);
                Executor::call(number, 0, receiving, move |outcome| tell(receiver, outcome))
            });
            task.executor.start(started.collect::<Vec<_>>());
        }
        Ok(())
    })
}

/// A destination that was not filled is released afterwards, when it is dropped.
fn tell(receiver: Receiver, outcome: Outcome<RecvOutcome>) {
    receiver.tell(match outcome {
        Ok(Ok(tensor)) => Ok(tensor.into()),
        Ok(Err(unreceived)) => Err(unreceived.error.into()),
        Err(error) => Err(error),
    });
}
