//! A task, and operations on its steps.
#![allow(unsafe_code)]

use std::{
    ffi::{CString, c_char},
    ops::Range,
    sync::{Arc, OnceLock},
    time::Duration,
};

use sealane::{Code, Direction, Keys, Streams, Task};

use crate::{
    error::sealane_error,
    executor::Executor,
    fork::Process,
    guard::{Outcome, check, entry, given},
    input::{sealane_text, text},
};

/// A task of this process, created by sealane_attach or sealane_embedded. Any number of threads may use it, until one of them
/// detaches it.
pub struct sealane_task {
    pub(crate) task: Task,
    pub(crate) executor: Arc<Executor>,
    pub(crate) process: Process,
    name: CString,
    /// `None` until the first stream is used.
    streams: OnceLock<Streams>,
    #[cfg(feature = "embedded")]
    own: Option<Own>,
}

/// State of a task whose engine is in this process.
#[cfg(feature = "embedded")]
pub(crate) struct Own {
    pub(crate) engine: sealane::Engine,
    /// It stays as it was loaded.
    pub(crate) map: Arc<sealane::EndpointMap>,
}

impl sealane_task {
    pub(crate) fn new(task: Task) -> Self {
        Self {
            name: CString::new(task.name()).unwrap_or_default(),
            task,
            executor: Arc::default(),
            streams: OnceLock::new(),
            process: Process::this(),
            #[cfg(feature = "embedded")]
            own: None,
        }
    }

    /// This task, with an engine that is stopped when the task is detached.
    #[cfg(feature = "embedded")]
    pub(crate) fn with_engine(self, own: Own) -> Self {
        Self { own: Some(own), ..self }
    }

    pub(crate) fn is_embedded(&self) -> bool {
        #[cfg(feature = "embedded")]
        return self.own.is_some();
        #[cfg(not(feature = "embedded"))]
        return false;
    }

    pub(crate) fn streams(&self) -> &Streams {
        self.streams.get_or_init(|| Streams::of(&self.task))
    }

    /// Makes sure that this many calls may be started, before anything is taken over for them.
    ///
    /// # Errors
    /// As [`Task::room_for`] says, and those of [`Executor::ready`].
    pub(crate) fn ready_for(
        &self,
        calls: usize,
        timeout: Option<Duration>,
        bytes: impl FnOnce(Range<*const u8>) -> u64,
    ) -> Outcome {
        self.executor.ready()?;
        Ok(self.task.room_for(calls, timeout, bytes)?)
    }

    /// # Errors
    /// Unavailable if the daemon is gone.
    fn knows(&self, other: &str) -> Outcome<bool> {
        #[cfg(feature = "embedded")]
        if let Some(own) = &self.own {
            return Ok(own.map.resolve(other).is_some());
        }
        // A pull of no keys only looks up its peer.
        let nothing = Keys::new([""; 0])?;
        match self.task.plan(other, nothing).pull_within(0, ANSWER_MAX).wait() {
            Ok(()) => Ok(true),
            Err(error) if error.code() == Code::NotFound => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Hands the task to C code, after its place was checked.
    ///
    /// # Safety
    /// `place` can be written.
    pub(crate) unsafe fn hand_out(self, place: *mut *mut sealane_task) {
        // SAFETY: as this function's caller promises.
        unsafe { place.write(Box::into_raw(Box::new(self))) };
    }

    /// # Errors
    /// InvalidArgument in a forked child.
    pub(crate) fn check(&self) -> Outcome<&Self> {
        self.process.check().map(|()| self)
    }

    /// To be called after the executor was stopped.
    fn leave(self) {
        drop((self.task, self.streams));
        #[cfg(feature = "embedded")]
        if let Some(own) = self.own {
            // A shard that hangs or has panicked was already reported, and nothing can be done about it.
            let _ = own.engine.stop();
        }
        self.executor.join();
    }
}

/// A task from C code, which must be used in the process that made it.
///
/// # Errors
/// InvalidArgument.
///
/// # Safety
/// Null, or a task that was not detached.
pub(crate) unsafe fn task<'a>(task: *const sealane_task) -> Outcome<&'a sealane_task> {
    // SAFETY: as this function's caller promises.
    unsafe { given(task, "task") }?.check()
}

/// The task's name, as it was attached. NUL-terminated, valid until the task is detached. NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_task_name(task: *const sealane_task) -> *const c_char {
    // SAFETY: null, or a task that was not detached.
    unsafe { task.as_ref() }.map_or(std::ptr::null(), |task| task.name.as_ptr())
}

/// Detaches the task, or stops its engine, and frees it; does nothing with NULL.
///
/// Calls in progress end with SEALANE_CODE_CANCELLED, and their callbacks have returned when this does; a send or push
/// continues as far as it can. Those callbacks may still call functions with the task, but no new calls are started. If this is
/// called from a callback of the task, it does not wait for the other callbacks, which must not use the task. Tensors stay
/// readable and memory from sealane_alloc usable; plans and acceptors can only be closed. In the child of a fork it does
/// nothing.
///
/// No other function may be using the task, its plans or its acceptors at this time, nor the task afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_detach(task: *mut sealane_task) {
    let unpanicked = crate::guard::unpanicked(|| {
        // SAFETY: null, or a task that was not detached.
        let Some(detached) = (unsafe { task.as_ref() }) else { return Ok(()) };
        // In a child its threads belong to the parent, and its locks may be held forever.
        if !detached.process.is_over() {
            // It stays at its address as long as callbacks may use it.
            detached.executor.stop();
            // SAFETY: `hand_out` made it, it is freed once, and nobody uses it any more.
            unsafe { Box::from_raw(task) }.leave();
        }
        Ok(())
    });
    // An error cannot be reported.
    drop(unpanicked);
}

/// Ends a step of this task, here and at its peers: every waiting recv of it ends with SEALANE_CODE_ABORTED and the reason,
/// waiting tensors are freed, and later calls fail the same way until sealane_cleanup.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_abort(task: *mut sealane_task, step: i64, reason: sealane_text) -> *mut sealane_error {
    entry(|| {
        // SAFETY: as the header asks of C code.
        let (task, reason) = unsafe { (self::task(task)?, text(reason, "reason")?) };
        Ok(task.task.abort(step, reason)?)
    })
}

/// Frees everything left of a step of this task: waiting tensors, waiting requests, and the record of an abort. The step's
/// number may be used again. A recv of a peer that is made before the word of it has come there may still get a small tensor (4 KiB)
/// that was sent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_cleanup(task: *mut sealane_task, step: i64) -> *mut sealane_error {
    entry(|| {
        // SAFETY: as the header asks of C code.
        Ok(unsafe { self::task(task) }?.task.cleanup(step)?)
    })
}

/// Value of direction: from the task to its peer.
pub const SEALANE_SENT: i32 = 1;

/// Value of direction: from the peer to the task.
pub const SEALANE_RECEIVED: i32 = 2;

/// Records that this many tensors went to the task `peer` (SEALANE_SENT), or came from it (SEALANE_RECEIVED), over another transport such as gRPC. They
/// are reported to the daemon at most once a second, at the task's next calls or when it is detached; the daemon shows them next to those that
/// Sealane carried, in `sealane stat` and in its metrics, separately for up to 1,024 peers and together beyond that. Never waits. Ignored with an
/// embedded engine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_note_elsewhere(
    task: *mut sealane_task,
    peer: sealane_text,
    direction: i32,
    tensors: u64,
    bytes: u64,
) -> *mut sealane_error {
    entry(|| {
        // SAFETY: as the header asks of C code.
        let (task, peer) = unsafe { (self::task(task)?, text(peer, "peer")?) };
        let direction = match direction {
            SEALANE_SENT => Direction::Sent,
            SEALANE_RECEIVED => Direction::Received,
            other => return Err(sealane_error::invalid(format!("direction: {other} is not valid"))),
        };
        task.task.note_elsewhere(peer, direction, tensors, bytes);
        Ok(())
    })
}

/// How long the daemon has to say whether it knows a task: it only looks into its map.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Whether the current endpoint map of the daemon or the engine has a task. Waits for the answer, usually microseconds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_knows_task(
    task: *mut sealane_task,
    other: sealane_text,
    known: *mut bool,
) -> *mut sealane_error {
    entry(|| {
        let place = place(known, "known")?;
        // SAFETY: as the header asks of C code.
        let (task, other) = unsafe { (self::task(task)?, text(other, "other")?) };
        let known = task.knows(other)?;
        // SAFETY: the place was checked.
        unsafe { place.write(known) };
        Ok(())
    })
}

/// Checks the place that C code provides for a result.
///
/// # Errors
/// InvalidArgument.
pub(crate) fn place<T>(place: *mut T, what: &str) -> Outcome<*mut T> {
    check(place, what).map(|()| place)
}
