//! Sending.
#![allow(unsafe_code)]

use std::{ffi::c_void, time::Duration};

use sealane::{SendOptions, Tensor};

use crate::{
    call::{Done, check_place, ending, sealane_call, sealane_done},
    error::sealane_error,
    guard::{Outcome, check, entry},
    input::{array, sealane_text, text, timeout},
    lent::{Source, sealane_source},
    task::{sealane_task, task},
};

/// One of many tensors that are sent or published together.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct sealane_item {
    /// Its name.
    pub key: sealane_text,
    /// The tensor.
    pub source: sealane_source,
    /// Passed to the callback of sealane_send_all for this tensor; other functions ignore it.
    pub context: *mut c_void,
}

/// Sends a tensor to the task `to`, which may request it before or after; `done` is called when the consumer has it, or the send has failed.
///
/// `timeout_ms` is how long the tensor waits to be requested: 0 is the default of the daemon or the engine, SEALANE_NO_TIMEOUT
/// no limit. `done` may be NULL: then the outcome is not reported. `call` may be NULL; else it is written before `done` is
/// called.
///
/// Never waits for room: calls that a slow daemon has no room for, and tensors that the arena has no room for, wait in this
/// process and are sent as soon as there is room, within their timeout. Calls beyond the limits of sealane_attach_options are
/// refused with SEALANE_CODE_RESOURCE_EXHAUSTED and the limit's name, by this function or, if other threads start calls at the
/// same moment, by the callback. This applies to all functions that start calls. They may wait for a daemon that restarts,
/// unless restart_timeout_ms is SEALANE_DO_NOT_WAIT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_send(
    task: *mut sealane_task,
    to: sealane_text,
    step: i64,
    key: sealane_text,
    source: *const sealane_source,
    timeout_ms: i64,
    done: sealane_done,
    context: *mut c_void,
    call: *mut *mut sealane_call,
) -> *mut sealane_error {
    entry(|| {
        check(source, "source")?;
        check_place(call)?;
        // SAFETY: as the header asks of C code; the source is there.
        unsafe {
            let task = self::task(task)?;
            let (to, key, options) =
                (text(to, "to")?, text(key, "key")?, SendOptions { timeout: timeout(timeout_ms)? });
            let bytes = |arena| (key.len() as u64).saturating_add(Source::waiting_bytes(&*source, &arena));
            task.ready_for(1, options.timeout, bytes)?;
            let source = Source::new(task, &*source)?;
            let sending = task.task.send_with(to, step, key, source.take(task)?, options);
            task.executor.start(ending(task, sending, Done::new(done, context), call));
        }
        Ok(())
    })
}

/// sealane_send for many tensors at a fraction of the cost each, with one timeout. `done` is called for each, with the context
/// of its item. `calls` is NULL or has an entry for each.
///
/// A list that would bring the task's calls in flight on one shard of the daemon above 16,384 is refused as a whole: each tensor ends with
/// SEALANE_CODE_RESOURCE_EXHAUSTED. If this returns an error, none of them was sent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_send_all(
    task: *mut sealane_task,
    to: sealane_text,
    step: i64,
    items: *const sealane_item,
    count: usize,
    timeout_ms: i64,
    done: sealane_done,
    calls: *mut *mut sealane_call,
) -> *mut sealane_error {
    entry(|| {
        check_place(calls)?;
        let options = SendOptions { timeout: timeout(timeout_ms)? };
        // SAFETY: as the header asks of C code.
        unsafe {
            let task = self::task(task)?;
            let (to, items) = (text(to, "to")?, array(items, count, "items")?);
            let tensors = tensors(task, items, options.timeout)?;
            let sendings = task.task.send_all_with(to, step, tensors, options);
            let places = places(calls, count);
            let started = sendings.into_iter().zip(items).zip(places);
            let started = started
                .filter_map(|((sending, item), place)| ending(task, sending, Done::new(done, item.context), place));
            task.executor.start(started.collect::<Vec<_>>());
        }
        Ok(())
    })
}

/// The place for the handle of each call; null for each if there are none.
pub(crate) fn places(calls: *mut *mut sealane_call, count: usize) -> impl Iterator<Item = *mut *mut sealane_call> {
    // Null stays null.
    (0..count).map(move |index| if calls.is_null() { calls } else { calls.wrapping_add(index) })
}

/// The tensors of items with their keys; takes over all, or none if there is an error.
///
/// # Errors
/// As for [`Source::new`] and texts, and ResourceExhausted if there is no room.
///
/// # Safety
/// As `sealane_item` says.
pub(crate) unsafe fn tensors<'a>(
    task: &sealane_task,
    items: &'a [sealane_item],
    timeout: Option<Duration>,
) -> Outcome<Vec<(&'a str, Tensor)>> {
    task.ready_for(items.len(), timeout, |arena| {
        let bytes = items.iter().map(|item| Source::waiting_bytes(&item.source, &arena));
        bytes.fold(0, u64::saturating_add)
    })?;
    let checked = items.iter().map(|item| {
        // SAFETY: as this function's caller promises.
        unsafe { Ok((text(item.key, "key")?, Source::new(task, &item.source)?)) }
    });
    let checked = checked.collect::<Outcome<Vec<_>>>()?;
    // SAFETY: as this function's caller promises.
    checked.into_iter().map(|(key, source)| Ok((key, unsafe { source.take(task) }?))).collect()
}
