//! Queues: pushing into those of peers, accepting from own ones.
#![allow(unsafe_code)]

use std::{ffi::c_void, sync::Arc};

use sealane::{AcceptOptions, Accepted, Acceptor, Error, SendOptions};

use crate::{
    call::{Done, ReceiverOfAll, check_place, ending, numbered, sealane_call, sealane_done, sealane_received_all},
    error::sealane_error,
    executor::Executor,
    fork::Process,
    guard::{Outcome, close, entry, given},
    input::{Options, array, options, sealane_text, text, timeout},
    lent::{Source, sealane_source},
    task::{place, sealane_task, task},
};

/// Capacity of a queue. Set `size` to the struct's `sizeof`; fields that are 0 take their defaults.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct sealane_accept_options {
    /// sizeof(sealane_accept_options), so that later headers can add fields.
    pub size: usize,
    /// Waiting tensors. Default 4096.
    pub tensors_max: u64,
    /// Their bytes; the queue is full when there are as many or more. Default 256 MiB; for an attached task at most half of the
    /// daemon's memory for received tensors.
    pub bytes_max: u64,
}

// SAFETY: plain numbers of 8 bytes each, the size first.
unsafe impl Options for sealane_accept_options {}

/// Called when an accept has ended: with the tensors that were taken, or the error.
pub type sealane_accepted = sealane_received_all;

/// The receiving end of a queue. Usable from any thread.
pub struct sealane_acceptor {
    acceptor: Arc<Acceptor>,
    group: u64,
    executor: Arc<Executor>,
    process: Process,
}

/// Pushes tensors into a queue of the task `to`, in order. `done`, which may be NULL, is called once, when the queue has taken all, or with the
/// first error. While the queue is full, or nobody accepts from it, the push waits.
///
/// `timeout_ms` says how long: 0 is the default of the daemon or the engine, SEALANE_NO_TIMEOUT no limit. `call` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_push(
    task: *mut sealane_task,
    to: sealane_text,
    queue: sealane_text,
    sources: *const sealane_source,
    count: usize,
    timeout_ms: i64,
    done: sealane_done,
    context: *mut c_void,
    call: *mut *mut sealane_call,
) -> *mut sealane_error {
    entry(|| {
        check_place(call)?;
        // SAFETY: as the header asks of C code.
        unsafe {
            let task = self::task(task)?;
            let (to, queue) = (text(to, "to")?, text(queue, "queue")?);
            let options = SendOptions { timeout: timeout(timeout_ms)? };
            let sources = array(sources, count, "sources")?;
            task.ready_for(count, options.timeout, |arena| {
                let bytes = sources.iter().map(|source| Source::waiting_bytes(source, &arena));
                bytes.fold(0, u64::saturating_add)
            })?;
            let sources = sources.iter().map(|source| Source::new(task, source));
            let sources = sources.collect::<Outcome<Vec<_>>>()?;
            let tensors = sources.into_iter().map(|source| source.take(task)).collect::<Outcome<Vec<_>>>()?;
            let pushing = task.task.push_all_with(to, queue, tensors, options);
            task.executor.start(ending(task, pushing, Done::new(done, context), call));
        }
        Ok(())
    })
}

/// Opens a queue of this task, into which any peer may push. A queue has one acceptor at a time: every accept of a second one
/// fails with SEALANE_CODE_INVALID_ARGUMENT. Close it with sealane_acceptor_close, even if its task was detached.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_acceptor_open(
    task: *mut sealane_task,
    queue: sealane_text,
    options: *const sealane_accept_options,
    acceptor: *mut *mut sealane_acceptor,
) -> *mut sealane_error {
    entry(|| {
        let place = place(acceptor, "acceptor")?;
        // SAFETY: as the header asks of C code.
        unsafe {
            let task = self::task(task)?;
            let (queue, options) = (text(queue, "queue")?, self::options(options)?);
            let AcceptOptions { tensors_max, bytes_max } = AcceptOptions::default();
            let or_default = |given: u64, default| match given {
                0 => default,
                given => usize::try_from(given).unwrap_or(usize::MAX),
            };
            let options = AcceptOptions {
                tensors_max: or_default(options.tensors_max, tensors_max),
                bytes_max: or_default(options.bytes_max, bytes_max),
            };
            let acceptor = Arc::new(task.task.acceptor(queue, options));
            let (group, executor) = (task.executor.number(), task.executor.clone());
            place.write(Box::into_raw(Box::new(sealane_acceptor { acceptor, group, executor, process: task.process })));
        }
        Ok(())
    })
}

/// Takes the next tensors from the queue, at most `most`: those that are available, or the first that arrives. `accepted` is
/// called with them.
///
/// `timeout_ms` says how long to wait for the first: 0 and SEALANE_NO_TIMEOUT mean no limit. `call` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_accept(
    acceptor: *mut sealane_acceptor,
    most: usize,
    timeout_ms: i64,
    accepted: sealane_accepted,
    context: *mut c_void,
    call: *mut *mut sealane_call,
) -> *mut sealane_error {
    // SAFETY: as this function's caller promises.
    unsafe { accept((acceptor, most), (std::ptr::null(), 0), timeout_ms, (accepted, context, call)) }
}

/// sealane_accept that ends with SEALANE_CODE_UNAVAILABLE when the process of one of `tasks_count` tasks has left and there is
/// nothing to accept, at once if it had left before. A task that was never there is waited for. The acceptor stays as it is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_accept_fail_if_gone(
    acceptor: *mut sealane_acceptor,
    most: usize,
    tasks: *const sealane_text,
    tasks_count: usize,
    timeout_ms: i64,
    accepted: sealane_accepted,
    context: *mut c_void,
    call: *mut *mut sealane_call,
) -> *mut sealane_error {
    // SAFETY: as this function's caller promises.
    unsafe { accept((acceptor, most), (tasks, tasks_count), timeout_ms, (accepted, context, call)) }
}

/// # Safety
/// As the header asks of C code.
unsafe fn accept(
    (acceptor, most): (*mut sealane_acceptor, usize),
    (tasks, tasks_count): (*const sealane_text, usize),
    timeout_ms: i64,
    (accepted, context, call): (sealane_accepted, *mut c_void, *mut *mut sealane_call),
) -> *mut sealane_error {
    entry(|| {
        check_place(call)?;
        let timeout = timeout(timeout_ms)?;
        // SAFETY: as the header asks of C code.
        let tasks = unsafe { array(tasks, tasks_count, "tasks") }?;
        // SAFETY: the same.
        let tasks =
            tasks.iter().map(|task| Ok(unsafe { text(*task, "tasks") }?.to_owned())).collect::<Outcome<Vec<_>>>()?;
        let receiver = ReceiverOfAll::new(accepted, context, "accepted")?;
        // SAFETY: as the header asks of C code.
        let given = unsafe { given(acceptor, "acceptor") }?;
        given.process.check()?;
        given.executor.ready()?;
        // SAFETY: as the header asks of C code.
        let number = unsafe { numbered(&given.executor, given.process, call) };
        let acceptor = given.acceptor.clone();
        let accept = async move { acceptor.accept_many(most).fail_if_gone(tasks).await };
        let tell = move |outcome: Outcome<Result<Vec<Accepted>, Error>>| {
            receiver.tell(outcome.and_then(|accepted| Ok(accepted?.into_iter().map(Into::into).collect())));
        };
        given.executor.start([Executor::call(number, given.group, accept, tell).within(timeout)]);
        Ok(())
    })
}

/// Closes a queue; does nothing with NULL. Pushes wait for its next acceptor, which first gets the tensors that were taken but
/// not accepted. Accepts in progress end with SEALANE_CODE_CANCELLED; the queue is closed when they have. No other function may
/// be using the acceptor, now or afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_acceptor_close(acceptor: *mut sealane_acceptor) {
    let end = |acceptor: Box<sealane_acceptor>| {
        acceptor.executor.give_up_group(acceptor.group, sealane_error::cancelled("the acceptor was closed"));
    };
    // SAFETY: null, or made by `sealane_acceptor_open` and closed once.
    unsafe { close(acceptor, |acceptor| acceptor.process, end) };
}
