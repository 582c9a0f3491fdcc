//! Attaching to the host's daemon.
#![allow(unsafe_code)]

use std::{ffi::c_char, time::Duration};

use sealane::{Attach, Backlog, BadJobName, JobName, Polling};

use crate::{
    error::sealane_error,
    guard::{Outcome, entry},
    input::{Options, options, path, terminated, timeout},
    task::{place, sealane_task},
};

/// Value of idle_spin_us: waiting threads never sleep.
pub const SEALANE_NEVER_SLEEP: i64 = -1;

/// Value of idle_spin_us: waiting threads sleep immediately.
pub const SEALANE_SLEEP_AT_ONCE: i64 = -2;

/// Value of restart_timeout_ms: no function waits for a daemon.
pub const SEALANE_DO_NOT_WAIT: i64 = -1;

/// Options for attaching. Set `size` to the struct's `sizeof`; fields that are 0 take their defaults.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct sealane_attach_options {
    /// sizeof(sealane_attach_options), so that later headers can add fields.
    pub size: usize,
    /// The daemon's socket, a NUL-terminated path. Default: the first sealane.sock at which a daemon listens, of those in
    /// $XDG_RUNTIME_DIR, in /tmp/sealane-UID (this user's alone), in /run/user/UID and in /run/sealane.
    pub socket: *const c_char,
    /// Size in bytes of the memory shared with the daemon, for tensors to send and receive. Default 512 MiB, or less where the
    /// daemon grants less. The first 8 MiB are allocated when the client attaches, the rest on first use.
    pub arena_bytes: u64,
    /// How many microseconds a waiting thread spins before it sleeps, SEALANE_NEVER_SLEEP or SEALANE_SLEEP_AT_ONCE. Default 50,
    /// and none where that does not pay: on one CPU, where answers take longer, or other threads want the CPU.
    pub idle_spin_us: i64,
    /// How many milliseconds attaching may take, now and after a restart of the daemon. Default 5000.
    pub attach_timeout_ms: i64,
    /// How many milliseconds functions wait for the next daemon after one has drained, or SEALANE_DO_NOT_WAIT: then no function
    /// waits for a drained or dead daemon. Functions that start calls fail immediately with SEALANE_CODE_UNAVAILABLE, and a
    /// thread of the library attaches again. Default 30000, at most a day.
    pub restart_timeout_ms: i64,
    /// How many calls may wait in this process for a slow daemon. Functions that would start one more fail with
    /// SEALANE_CODE_RESOURCE_EXHAUSTED. Default 262144.
    pub backlog_calls_max: u64,
    /// How many bytes they may have, including tensors that wait for room in the arena. Default 256 MiB.
    pub backlog_bytes_max: u64,
    /// The name of the job that this process belongs to, terminated by NUL: 1 to 64 printable ASCII characters without spaces. A
    /// daemon of another job, or of none, refuses the process. Default: $SEALANE_JOB if set and not empty, else the daemon's job.
    pub job: *const c_char,
    /// If not 0, and another process of this user is attached as the task, that process is detached. Its functions fail with
    /// SEALANE_CODE_UNAVAILABLE, and it does not attach again.
    pub replace: u64,
}

// SAFETY: plain numbers and pointers of 8 bytes each, the size first.
unsafe impl Options for sealane_attach_options {}

/// The value of an `idle_spin_us`; `None` for the default.
pub(crate) fn idle_spin(microseconds: i64) -> Outcome<Option<Duration>> {
    match microseconds {
        0 => Ok(None),
        SEALANE_NEVER_SLEEP => Ok(Some(Duration::MAX)),
        SEALANE_SLEEP_AT_ONCE => Ok(Some(Duration::ZERO)),
        1.. => Ok(Some(Duration::from_micros(microseconds.unsigned_abs()))),
        _ => Err(sealane_error::invalid(format!("idle_spin_us: {microseconds} is not valid"))),
    }
}

/// The job's name in a text that C code gives; `None` for NULL.
///
/// # Safety
/// The pointer is NULL or points to a text that is terminated by NUL.
unsafe fn name_of_job(text: *const c_char) -> Outcome<Option<JobName>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller promises.
    let name = unsafe { terminated(text, "job")? };
    name.parse().map(Some).map_err(|error: BadJobName| sealane_error::invalid(format!("job: {error}")))
}

/// Attaches this process to the host's daemon as a task, named as in the endpoint map and terminated by NUL.
///
/// If options is NULL, all options have their defaults. After a restart of the daemon, the first call that reaches it attaches
/// again, or a background thread does (restart_timeout_ms): calls that were in flight end with SEALANE_CODE_UNAVAILABLE,
/// what the task has published is published again by a background thread, and the arena is a new one.
///
/// Fails with SEALANE_CODE_UNAVAILABLE if no daemon listens at the socket, SEALANE_CODE_NOT_FOUND if it does not serve the
/// task, SEALANE_CODE_PERMISSION_DENIED if it does not admit this user or serves another job.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_attach(
    task: *const c_char,
    options: *const sealane_attach_options,
    attached: *mut *mut sealane_task,
) -> *mut sealane_error {
    entry(|| {
        let attached = place(attached, "attached")?;
        // SAFETY: as the header asks of C code.
        let (name, options) = unsafe { (terminated(task, "task")?, self::options(options)?) };
        let mut attach = Attach::new(name);
        // SAFETY: as the header asks of C code.
        if let Some(socket) = unsafe { path(options.socket) } {
            attach = attach.socket(socket);
        }
        // SAFETY: as the header asks of C code.
        if let Some(job) = unsafe { name_of_job(options.job)? } {
            attach = attach.job(job);
        }
        attach = attach.replace(options.replace != 0);
        if options.arena_bytes > 0 {
            attach = attach.arena_bytes(options.arena_bytes);
        }
        attach = match idle_spin(options.idle_spin_us)? {
            None => attach,
            Some(idle_spin) => attach.polling(Polling::idle(idle_spin)),
        };
        let Backlog { calls_max, bytes_max } = Backlog::default();
        attach = attach.backlog(Backlog {
            calls_max: match options.backlog_calls_max {
                0 => calls_max,
                given => usize::try_from(given).unwrap_or(usize::MAX),
            },
            bytes_max: if options.backlog_bytes_max == 0 { bytes_max } else { options.backlog_bytes_max },
        });
        if let Some(timeout) = timeout(options.attach_timeout_ms)? {
            attach = attach.timeout(timeout);
        }
        if options.restart_timeout_ms == SEALANE_DO_NOT_WAIT {
            attach = attach.restart_timeout(Duration::ZERO);
        } else if let Some(timeout) = timeout(options.restart_timeout_ms)? {
            attach = attach.restart_timeout(timeout);
        }
        let task = sealane_task::new(attach.attach()?);
        // SAFETY: the place was checked.
        unsafe { task.hand_out(attached) };
        Ok(())
    })
}
