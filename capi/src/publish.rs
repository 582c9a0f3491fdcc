//! Publishing and pulling tensors.
#![allow(unsafe_code)]

use std::ffi::c_void;

use sealane::{Error, Keys, Pulled};

use crate::{
    call::{Done, Receiver, check_place, ending, numbered, sealane_call, sealane_done, sealane_received},
    error::sealane_error,
    executor::Executor,
    guard::{Outcome, entry},
    input::{array, sealane_text, text, timeout},
    send::{sealane_item, tensors},
    task::{sealane_task, task},
};

/// Publishes tensors under one version: any peer may pull each as often as it likes, until a newer version replaces it, it is withdrawn,
/// or the task ends. `done`, which may be NULL, is called once, when all peers can see all of them, or with the first error.
///
/// The version is chosen by the caller, such as the step number, and may not decrease. Lent memory is released when a newer
/// version has replaced it and nobody reads it any more. `call` may be NULL. A tensor for which the arena has no room fails
/// with SEALANE_CODE_RESOURCE_EXHAUSTED: waiting could mean waiting for memory that only its own publication frees.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_publish(
    task: *mut sealane_task,
    version: i64,
    items: *const sealane_item,
    count: usize,
    done: sealane_done,
    context: *mut c_void,
    call: *mut *mut sealane_call,
) -> *mut sealane_error {
    entry(|| {
        check_place(call)?;
        // SAFETY: as the header asks of C code.
        unsafe {
            let task = self::task(task)?;
            let tensors = tensors(task, array(items, count, "items")?, None)?;
            let publishing = task.task.publish_many(version, tensors);
            task.executor.start(ending(task, publishing, Done::new(done, context), call));
        }
        Ok(())
    })
}

/// Withdraws a published tensor; pulls of it wait for the next publication. A pull that another task asks for a moment later may still
/// get it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_withdraw(task: *mut sealane_task, key: sealane_text) -> *mut sealane_error {
    entry(|| {
        // SAFETY: as the header asks of C code.
        let (task, key) = unsafe { (self::task(task)?, text(key, "key")?) };
        Ok(task.task.withdraw(key)?)
    })
}

/// Pulls tensors that the task `from` publishes, each at `min_version` or newer, and waits for them if necessary. When all have
/// arrived or failed, `received` is called for each, in order, with its entry of `contexts`, or with NULL if `contexts` is
/// NULL.
///
/// `timeout_ms` says how long to wait: 0 is the default of the daemon or the engine, SEALANE_NO_TIMEOUT no limit. `call`, which
/// may be NULL, cancels all of them. To pull the same keys repeatedly, a plan is cheaper.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_pull(
    task: *mut sealane_task,
    from: sealane_text,
    keys: *const sealane_text,
    count: usize,
    min_version: i64,
    timeout_ms: i64,
    received: sealane_received,
    contexts: *const *mut c_void,
    call: *mut *mut sealane_call,
) -> *mut sealane_error {
    entry(|| {
        check_place(call)?;
        let timeout = timeout(timeout_ms)?;
        // SAFETY: as the header asks of C code.
        unsafe {
            let task = self::task(task)?;
            let (from, keys) = (text(from, "from")?, self::keys(keys, count)?);
            let contexts = match contexts.is_null() {
                true => None,
                false => Some(array(contexts, count, "contexts")?),
            };
            let context = |index| contexts.map_or(std::ptr::null_mut(), |contexts: &[*mut c_void]| contexts[index]);
            let receivers = (0..count).map(|index| Receiver::new(received, context(index)));
            let receivers = receivers.collect::<Outcome<Vec<_>>>()?;
            task.ready_for(1, timeout, |_| 0)?;
            let pulling = task.task.pull_many_within(from, keys, min_version, timeout);
            let number = numbered(&task.executor, task.process, call);
            let tell = move |outcome: Outcome<Vec<Result<Pulled, Error>>>| match outcome {
                Ok(pulled) => receivers.into_iter().zip(pulled).for_each(|(receiver, pulled)| {
                    receiver.tell(pulled.map(Into::into).map_err(Into::into));
                }),
                Err(error) => receivers.into_iter().for_each(|receiver| receiver.tell(Err(error.clone()))),
            };
            task.executor.start([Executor::call(number, 0, pulling, tell)]);
        }
        Ok(())
    })
}

/// Keys from C code.
///
/// # Errors
/// InvalidArgument.
///
/// # Safety
/// As `sealane_text` says, for `count` of them.
pub(crate) unsafe fn keys(keys: *const sealane_text, count: usize) -> Outcome<Keys> {
    // SAFETY: as this function's caller promises.
    let keys = unsafe { array(keys, count, "keys") }?;
    // SAFETY: as this function's caller promises.
    let keys = keys.iter().map(|key| unsafe { text(*key, "key") }).collect::<Outcome<Vec<_>>>()?;
    Ok(Keys::new(keys)?)
}
